package prove

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sallyport/rules"
	"sallyport/rules/target"
)

// part is a part of what a rule admits. What is found in one is told once, for
// the earliest time.
type part struct {
	host, path string
	port       uint16
	method     string
	carrying   Carrying
	twice      bool // paths with two readings
	facts      bool // with some headers and queries only
	plain      bool
	into       netip.Prefix
}

// finding is a part in which two policies differ.
type finding struct {
	part
	from    int64
	witness Witness
}

// partAt is a part at a time.
type partAt struct {
	part
	now int64
}

// finder looks for what one rule of a policy admits and another policy does not.
type finder struct {
	*comparer
	kind       Kind
	lacks, has *side
	rule       *rules.Rule
	credential string
	found      map[part]int
	findings   []finding
	same       map[partAt]bool // parts of which some is the same in both
	domain     []string        // methods of the rule, one of each kind that is told apart
}

func (f *finder) look() error {
	f.domain = f.methodsOf(f.rule)
	return f.eachHost(f.lookAt)
}

// hostOf is a host, and the pattern or range of a rule that covers it.
type hostOf struct {
	pattern string
	host    target.Host
}

// eachHost yields the hosts of the rule that are told apart and of which the
// two policies do not say the same.
func (f *finder) eachHost(yield func(hostOf) error) error {
	same := f.sameRanges()
	visit := func(pattern string, list []target.Host) error {
		for _, h := range list {
			was, is := f.old.about(h), f.new.about(h)
			if same && alike(was, is) {
				continue
			}
			if err := canCompare(was, is); err != nil {
				return err
			}
			if err := yield(hostOf{pattern, h}); err != nil {
				return err
			}
		}
		return nil
	}
	for _, h := range f.rule.Hosts {
		if err := visit(h.String(), f.namesOf(h)); err != nil {
			return err
		}
	}
	if len(f.rule.Hosts) > 0 {
		return nil
	}
	for _, p := range f.rule.Private {
		var list []target.Host
		f.within(nil, func(h target.Host) {
			if a, _ := h.Addr(); p.Contains(a) && !slices.Contains(list, h) {
				list = append(list, h)
			}
		})
		if err := visit(p.String(), list); err != nil {
			return err
		}
	}
	return nil
}

// namesOf returns one host of each kind that a pattern covers and rules tell apart.
func (x *comparer) namesOf(h rules.HostPattern) []target.Host {
	if !h.Wildcard {
		return []target.Host{h.Host}
	}
	parent, _ := h.Host.Name()
	var list []target.Host
	x.below(parent, func(c target.Host) {
		if n, _ := c.Name(); h.Match(c) && !rules.IsReserved(n) {
			list = append(list, c)
		}
	})
	slices.SortFunc(list, func(a, b target.Host) int {
		return cmp.Or(cmp.Compare(len(a.String()), len(b.String())), cmp.Compare(a.String(), b.String()))
	})
	return slices.Compact(list)
}

// methodsOf returns the methods of a rule, or one of each kind for any.
func (x *comparer) methodsOf(r *rules.Rule) []string {
	if len(r.Methods) > 0 {
		return r.Methods
	}
	list := slices.Clone(x.methodsNamed)
	return append(list, fresh(list))
}

// lookAt compares both policies at a host.
func (f *finder) lookAt(h hostOf) error {
	places := f.addrs(h.host)
	for _, now := range f.times {
		if f.rule.Expires != 0 && now >= f.rule.Expires {
			continue
		}
		for _, port := range f.rule.Ports {
			for _, a := range places {
				if err := f.enter(); err != nil {
					return err
				}
				if err := f.at(h.pattern, cell{h.host, port, now, a.addr}, a.in); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// canCompare refuses what narrows one run.
func canCompare(lists ...[]*rules.Rule) error {
	for _, r := range slices.Concat(lists...) {
		if r.Scope == rules.RunScope {
			return fmt.Errorf("rule %q (%s) narrows a run: compare the policies themselves", r.ID, r.Where)
		}
	}
	return nil
}

// alike reports whether two lists of rules say the same about everything.
func alike(a, b []*rules.Rule) bool {
	return slices.EqualFunc(a, b, func(x, y *rules.Rule) bool {
		return sameMatch(x, y) && x.ID == y.ID && x.Action == y.Action && x.Raw == y.Raw && x.TLS == y.TLS && x.Credential == y.Credential &&
			x.Scope == y.Scope && x.Log == y.Log && x.CallersKey == y.CallersKey && x.Limits == y.Limits && x.Expires == y.Expires
	})
}

// sameMatch reports whether two rules match the same.
func sameMatch(x, y *rules.Rule) bool {
	return slices.Equal(x.Conditions, y.Conditions) && slices.Equal(x.Ports, y.Ports) && slices.Equal(x.Methods, y.Methods) &&
		slices.Equal(x.Private, y.Private) && slices.Equal(x.Hosts, y.Hosts) &&
		slices.EqualFunc(x.Paths, y.Paths, func(p, q rules.PathPattern) bool { return p.String() == q.String() })
}

// sameRanges reports whether both policies deny the same ranges.
func (x *comparer) sameRanges() bool { return alike(x.old.ranges, x.new.ranges) }

// place is an address, and the range in a policy that tells it from others.
type place struct {
	addr netip.Addr
	in   netip.Prefix
}

// addrs returns one address of each kind that a host can resolve to and that
// rules tell apart, after none.
func (x *comparer) addrs(h target.Host) []place {
	if a, ok := h.Addr(); ok {
		return []place{{addr: a}}
	}
	out := []place{{}}
	var near []*rules.Rule
	for _, s := range []*side{&x.old, &x.new} {
		near = append(append(near, s.ranges...), s.about(h)...)
	}
	near = slices.DeleteFunc(near, func(r *rules.Rule) bool { return len(r.Private) == 0 })
	if len(near) == 0 {
		return out
	}
	seen := map[string]bool{}
	x.within(nil, func(c target.Host) {
		a, _ := c.Addr()
		in, kind := kindOfAddr(near, a)
		if in.IsValid() && !seen[kind] {
			seen[kind] = true
			out = append(out, place{a, in})
		}
	})
	return out
}

// kindOfAddr returns the narrowest range of some rules that holds an address,
// and what these rules make of it: addresses of one kind are one to them all.
func kindOfAddr(near []*rules.Rule, a netip.Addr) (in netip.Prefix, kind string) {
	var b strings.Builder
	block, _ := rules.Special(a)
	b.WriteString(block)
	for _, r := range near {
		for _, p := range r.Private {
			if p.Contains(a) && (!in.IsValid() || p.Bits() > in.Bits()) {
				in = p
			}
		}
		holds := slices.ContainsFunc(r.Private, func(p netip.Prefix) bool { return p.Contains(a) })
		switch {
		case holds && r.Opens(a):
			b.WriteString("+")
		case holds:
			b.WriteString("-")
		default:
			b.WriteString(".")
		}
	}
	return in, b.String()
}

// at compares both policies at a cell.
func (f *finder) at(pattern string, c cell, into netip.Prefix) error {
	has, lacks := f.has.view(c), f.lacks.view(c)
	p := part{host: pattern, port: c.port, into: into}
	switch {
	case has.carriage == refused || has.carriage < raw && lacks.carriage == raw && f.credential == "":
		return nil
	case f.rule.Raw || f.rule.TLS == rules.PassthroughTLS:
		return f.stream(p, c, &has, &lacks)
	case has.carriage != inspected || !slices.Contains(has.allows, f.rule): // it does not open the address
		return nil
	}
	kinds, err := facts(f.nearAddr(c)...)
	if err != nil {
		return err
	}
	for i := range kinds {
		if !f.rule.MeetsConditions(&kinds[i]) {
			continue
		}
		if err := f.enter(); err != nil {
			return err
		}
		p.facts = i > 0
		if err := f.withFacts(p, c, &has, &lacks, &kinds[i]); err != nil {
			return err
		}
	}
	return nil
}

// withFacts compares both policies at a cell for one header and query.
func (f *finder) withFacts(p part, c cell, has, lacks *view, kind *rules.Request) error {
	for _, m := range f.domain {
		first := c.port == 80 && f.rule.Credential == "" // which scheme is at home here
		for _, plain := range []bool{first, !first} {
			p.method, p.plain = m, plain != first && plain
			if err := f.requests(p, c, has, lacks, ask{method: m, plain: plain, facts: kind, credential: f.credential}); err != nil {
				return err
			}
		}
	}
	return nil
}

// stream looks at a rule whose streams nobody looks into.
func (f *finder) stream(p part, c cell, has, lacks *view) error {
	if f.credential != "" || has.speaks != f.rule || lacks.carriage >= has.carriage {
		return nil
	}
	p.carrying = AnyBytes
	w := Witness{Addr: c.addr, Request: rules.Request{Question: rules.Connect, Endpoint: target.Endpoint{Host: c.host, Port: c.port}, Now: c.now}}
	if has.carriage == unopened {
		// Unopened, TLS carries any request, also those that nobody may send
		// where requests are judged.
		p.carrying = UnopenedTLS
		w = f.unopened(c, lacks)
	}
	f.same[partAt{p, c.now}] = f.same[partAt{p, c.now}] || lacks.carriage != refused
	return f.add(p, c, w)
}

// unopened returns a request that a view refuses.
func (f *finder) unopened(c cell, lacks *view) Witness {
	for _, m := range append(slices.Clone(f.methodsNamed), "GET", "POST", "DELETE") {
		s, ok := lacks.admits(ask{method: m})
		if !ok {
			return witness(c, m, false, rootPath())
		}
		if p, found, err := (&set{all: true}).beyond(&s, nil); found && err == nil {
			return witness(c, m, false, p)
		}
	}
	return witness(c, "TRACE", false, rootPath())
}

func rootPath() target.Path { return mustPath("/") }

func mustPath(s string) target.Path {
	p, err := target.ParsePath(s)
	if err != nil {
		panic("prove: " + err.Error())
	}
	return p
}

func witness(c cell, method string, plain bool, p target.Path) Witness {
	return Witness{Addr: c.addr, Request: rules.Request{
		Question: rules.Fetch, Endpoint: target.Endpoint{Host: c.host, Port: c.port}, Method: method, Path: p, Secure: !plain, Now: c.now,
	}}
}

// witnessOf is a request as it is asked about.
func witnessOf(c cell, a ask, p target.Path) Witness {
	w := witness(c, a.method, a.plain, p)
	if a.facts != nil {
		w.Request.Header, w.Request.Query = a.facts.Header, a.facts.Query
	}
	return w
}

// requests looks at the requests that the rule admits at a cell.
func (f *finder) requests(p part, c cell, has, lacks *view, a ask) error {
	if !a.plain && lacks.carriage > inspected && a.credential == "" {
		return nil // TLS is carried there as it comes
	}
	if a.plain && f.rule.Credential != "" {
		return nil
	}
	admits, ok := has.admits(a)
	if !ok {
		return nil
	}
	admits.in, admits.all = f.rule.Paths, len(f.rule.Paths) == 0
	other, some := lacks.admits(a)
	lost := &other
	if !some {
		lost = nil
	}
	patterns := [][]rules.PathPattern{nil}
	if !admits.all {
		patterns = patterns[:0]
		for i := range f.rule.Paths {
			patterns = append(patterns, f.rule.Paths[i:i+1])
		}
	}
	p.carrying = Requests
	for _, within := range patterns {
		if p.path = ""; within != nil {
			p.path = within[0].String()
		}
		if err := f.paths(p, c, a, &admits, lost, within); err != nil {
			return err
		}
	}
	return f.twoReadings(p, c, a, &admits, lost)
}

func (f *finder) paths(p part, c cell, a ask, admits, lost *set, within []rules.PathPattern) error {
	if at := (partAt{p, c.now}); lost != nil && !f.same[at] {
		_, some, err := admits.common(lost, within)
		if err != nil {
			return err
		}
		f.same[at] = some
	}
	if f.known(p, c.now) {
		return nil
	}
	path, found, err := admits.beyond(lost, within)
	if err != nil || !found {
		return err
	}
	return f.add(p, c, witnessOf(c, a, path))
}

// twoReadings looks at the paths that no pattern can judge.
func (f *finder) twoReadings(p part, c cell, a ask, admits, lost *set) error {
	p.path = ""
	if !admits.twoReadings() || lost != nil && lost.twoReadings() || f.known(p, c.now) {
		return nil
	}
	p.twice = true
	return f.add(p, c, witnessOf(c, a, mustPath("/any/../any")))
}

// known reports whether p, or something that holds it, has been found for a
// time or an earlier one.
func (f *finder) known(p part, now int64) bool {
	for n := range 8 {
		q := p
		if n&1 > 0 {
			q.plain = false
		}
		if n&2 > 0 {
			q.into = netip.Prefix{}
		}
		if n&4 > 0 {
			q.facts = false
		}
		if i, ok := f.found[q]; ok && f.findings[i].from <= now {
			return true
		}
	}
	return false
}

func (f *finder) add(p part, c cell, w Witness) error {
	if f.known(p, c.now) {
		return nil
	}
	if err := f.verify(f.kind, &w); err != nil {
		return err
	}
	i, again := f.found[p]
	if !again {
		i = len(f.findings)
		f.found[p], f.findings = i, append(f.findings, finding{})
	}
	f.findings[i] = finding{part: p, from: c.now, witness: w}
	return nil
}
