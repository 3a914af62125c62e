package prove

import (
	"net/netip"
	"slices"

	"sallyport/rules"
	"sallyport/rules/target"
)

// cell is a place at which a policy says one thing about each request: nothing
// in it but method and path makes a difference to any rule.
type cell struct {
	host target.Host
	port uint16
	now  int64
	// addr is what the host resolved to; invalid for before that, or for an
	// address that no rule tells from others.
	addr netip.Addr
}

// carriage is how streams at a cell are carried.
type carriage uint8

const (
	refused   carriage = iota
	inspected          // each request is judged
	unopened           // TLS is carried as it is; nothing else is
	raw                // any bytes
)

// view is what one policy says at a cell.
type view struct {
	carriage carriage
	allows   []*rules.Rule // about requests
	denies   []*rules.Rule // about requests, with methods, paths or conditions
	// speaks is the rule that carries a stream which nobody looks into.
	speaks *rules.Rule
	work   *rules.Work // of the comparison
}

// side is one of two policies that are compared.
type side struct {
	policy *rules.Policy // enforces all that it says: see [rules.Policy.Loosest]
	list   []rules.Rule
	ranges []*rules.Rule // that deny addresses which names resolve to
	work   *rules.Work   // of the comparison
}

func (s *side) about(h target.Host) []*rules.Rule { return s.at(s.policy.About(h)) }

func (s *side) at(positions []int32) []*rules.Rule {
	out := make([]*rules.Rule, 0, len(positions))
	for _, i := range positions {
		out = append(out, &s.list[i])
	}
	return out
}

func allowsAt(r *rules.Rule, c cell) bool {
	return r.Action == rules.AllowAction && slices.Contains(r.Ports, c.port) && (r.Expires == 0 || c.now < r.Expires)
}

func deniesAt(r *rules.Rule, c cell) bool {
	return r.Action == rules.DenyAction && (len(r.Ports) == 0 || slices.Contains(r.Ports, c.port))
}

// near returns the rules about a cell.
func (s *side) near(c cell) []*rules.Rule {
	near := s.about(c.host)
	if _, isName := c.host.Name(); isName && c.addr.IsValid() {
		for _, r := range s.at(s.policy.AboutAddr(c.addr)) {
			if r.Action == rules.DenyAction { // an allow rule's range names no host
				near = append(near, r)
			}
		}
	}
	return near
}

// view says what s says at c, as [rules.Policy.Decide] does question after
// question.
func (s *side) view(c cell) view {
	v := view{work: s.work}
	seen, blind, ok := s.sort(c, &v)
	if !ok {
		return view{}
	}
	carried := slices.Concat(blind, seen)
	if _, special := rules.Special(c.addr); c.addr.IsValid() && special {
		opens := func(r *rules.Rule) bool { return r.Opens(c.addr) }
		if !slices.ContainsFunc(carried, opens) {
			return view{}
		}
		v.allows = slices.DeleteFunc(slices.Clone(seen), func(r *rules.Rule) bool { return !opens(r) })
	} else {
		v.allows = seen
	}
	v.carriage, v.speaks = carries(blind, seen)
	if v.carriage != inspected {
		return view{carriage: v.carriage, speaks: v.speaks}
	}
	return v
}

// sort tells the allow rules that look into requests at c from those that do
// not, and puts the deny rules that do into v; ok is false if one denies it all.
func (s *side) sort(c cell, v *view) (seen, blind []*rules.Rule, ok bool) {
	for _, r := range s.near(c) {
		switch {
		case allowsAt(r, c) && !r.Raw && r.TLS == rules.InspectTLS:
			seen = append(seen, r)
		case allowsAt(r, c):
			blind = append(blind, r)
		case !deniesAt(r, c):
		case len(r.Methods)+len(r.Paths)+len(r.Conditions) == 0:
			return nil, nil, false
		default:
			v.denies = append(v.denies, r)
		}
	}
	return seen, blind, true
}

// carries says how a stream is carried that these rules admit: any bytes if a
// rule says so; else requests are judged where one can be; else TLS unopened.
func carries(blind, seen []*rules.Rule) (carriage, *rules.Rule) {
	for _, r := range blind {
		if r.Raw {
			return raw, r
		}
	}
	switch {
	case len(seen) > 0:
		return inspected, nil
	case len(blind) > 0:
		return unopened, blind[0]
	default:
		return refused, nil
	}
}

// ask is about the requests at a cell with one method, in TLS or not, and with
// one header and query.
type ask struct {
	method string
	plain  bool
	facts  *rules.Request // nil for none
	// credential, if not empty, is what a request must be granted to count as
	// admitted.
	credential string
}

// never reports an ask that no rule can say yes to.
func (a *ask) never() bool {
	return rules.NeverAdmitted(a.method) || a.credential != "" && a.plain
}

// asks reports whether a rule is about the method, header and query of a.
func (a *ask) asks(r *rules.Rule) bool {
	return (len(r.Methods) == 0 || slices.Contains(r.Methods, a.method)) && r.MeetsConditions(a.facts)
}

// set is which paths a view admits for an ask: those that one of in matches,
// and none of notIn and out. Nil patterns in "in" stand for all.
type set struct {
	in    []rules.PathPattern // as allow rules match; empty with all for every path
	all   bool
	work  *rules.Work
	notIn []rules.PathPattern // as allow rules match
	out   []rules.PathPattern // as deny rules match
}

// denied returns the paths that deny rules take away; ok is false for all of them.
func (v *view) denied(a ask) (out []rules.PathPattern, ok bool) {
	for _, r := range v.denies {
		if len(r.Methods) > 0 && !slices.Contains(r.Methods, a.method) || !r.Touches(a.facts) {
			continue
		}
		if len(r.Paths) == 0 {
			return nil, false
		}
		out = append(out, r.Paths...)
	}
	return out, true
}

// admits returns the paths that v admits for a; ok is false for none.
func (v *view) admits(a ask) (s set, ok bool) {
	if v.carriage != inspected || a.never() {
		return s, false
	}
	if a.facts == nil {
		a.facts = &rules.Request{}
	}
	s.work = v.work
	if s.out, ok = v.denied(a); !ok {
		return set{}, false
	}
	for _, r := range v.allows {
		switch {
		case !a.asks(r):
		case a.plain && r.Credential != "":
			// What would be granted a credential is refused in plain.
			if len(r.Paths) == 0 {
				return set{}, false
			}
			s.notIn = append(s.notIn, r.Paths...)
		case a.credential != "" && r.Credential != a.credential:
		default:
			s.in, s.all = append(s.in, r.Paths...), s.all || len(r.Paths) == 0
		}
	}
	return s, s.all || len(s.in) > 0
}

// list returns the patterns of which one has to match, nil for every path.
func (s *set) list() []rules.PathPattern {
	if s.all {
		return nil
	}
	return s.in
}

// twoReadings reports whether paths with two readings are in s: a rule without
// paths admits them, and any rule that would have to judge them refuses them.
func (s *set) twoReadings() bool { return s.all && len(s.out) == 0 && len(s.notIn) == 0 }

// common returns a path in s and t that one of the patterns in within matches,
// if there are any.
func (s *set) common(t *set, within []rules.PathPattern) (target.Path, bool, error) {
	q := rules.PathQuestion{
		Work: s.work,
		In:   [][]rules.PathPattern{s.list(), t.list(), within}, NotIn: slices.Concat(s.notIn, t.notIn), Out: slices.Concat(s.out, t.out),
	}
	return q.Find()
}

// beyond returns a path in s and not in t, which is nil for no path, that one of
// the patterns in within matches.
func (s *set) beyond(t *set, within []rules.PathPattern) (target.Path, bool, error) {
	base := rules.PathQuestion{In: [][]rules.PathPattern{s.list(), within}, NotIn: s.notIn, Out: s.out, Work: s.work}
	if t == nil {
		return base.Find()
	}
	questions := make([]rules.PathQuestion, 0, 3)
	if !t.all { // none of its patterns matches
		q := base
		q.NotIn = slices.Concat(q.NotIn, t.in)
		questions = append(questions, q)
	}
	if len(t.out) > 0 { // or it denies
		q := base
		q.Within = [][]rules.PathPattern{t.out}
		questions = append(questions, q)
	}
	if len(t.notIn) > 0 { // or it would have to be in TLS
		q := base
		q.In = append(slices.Clone(q.In), t.notIn)
		questions = append(questions, q)
	}
	for _, q := range questions {
		if p, found, err := q.Find(); found || err != nil {
			return p, found, err
		}
	}
	return target.Path{}, false, nil
}
