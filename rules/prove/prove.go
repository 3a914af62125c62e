// Package prove answers whether a policy could ever admit what it must not.
//
// A [Statement] is a set of requests. [Check] looks for one that the policy
// admits: hosts, ports, methods, paths and conditions are sets that can be
// intersected and taken from each other, so the answer is exact, and where it
// is no it is a request that can be tried. What is too large to be answered is an error, and
// counts as not proved.
//
// It is about what is admitted, at any time and before a name is resolved: a
// rule that has expired once admitted, and a deny rule about addresses may or
// may not meet those that a name resolves to. What narrows a run is left out:
// it only takes away.
package prove

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sallyport/rules"
	"sallyport/rules/target"
)

// Statement is what must never be admitted: requests and streams in all of its
// fields. Empty fields mean any; the zero Statement is every request. Hosts and
// paths are matched as widely as those of a deny rule.
type Statement struct {
	Credential string // granted this one
	Hosts      []rules.HostPattern
	Ports      []uint16
	Methods    []string
	Paths      []rules.PathPattern
}

// Example is a request, or a stream that nobody looks into, that a policy
// admits although it must not.
type Example struct {
	Request  rules.Request
	Decision rules.Decision
	// Carries is a request that a stream carries though the statement forbids it: nil
	// of a request, which says it itself.
	Carries *rules.Request
}

// Within says what a stream carries, "" of a request.
func (e Example) Within() string {
	if e.Carries == nil {
		return ""
	}
	return "any bytes, unjudged, such as those of " + Example{Request: *e.Carries}.String()
}

// String writes what is asked as a policy's tests do.
func (e Example) String() string {
	r := &e.Request
	if r.Question != rules.Fetch {
		return "connect " + r.Endpoint.String()
	}
	scheme, port := "https", uint16(443)
	if !r.Secure {
		scheme, port = "http", 80
	}
	text := fmt.Sprintf("%s %s://%s%s", r.Method, scheme, r.Endpoint.Authority(port), r.Path)
	if r.Query != "" {
		text += "?" + r.Query
	}
	if len(r.Header) == 0 {
		return text
	}
	var fields []string
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		fields = append(fields, name+": "+r.Header[name][0])
	}
	return text + " (" + strings.Join(fields, ", ") + ")"
}

// statementWork bounds the search for an example against one statement.
const statementWork = 1 << 23

// NewWork returns what the proofs of one policy may cost together. stop, if not
// nil, ends them with its error.
func NewWork(stop func() error) *rules.Work {
	return &rules.Work{Left: 4 * statementWork, Stop: stop}
}

// Check returns an example against s, nil if there is none. An error says that
// it could not be answered: among others, that it took too much of work, which
// several checks share.
func Check(p *rules.Policy, s Statement, work *rules.Work) (*Example, error) {
	own := rules.Work{Left: min(work.Left, statementWork), Stop: work.Stop}
	had := own.Left
	defer func() { work.Left -= had - max(own.Left, 0) }()
	return check(p, s, &own)
}

func check(p *rules.Policy, s Statement, work *rules.Work) (*Example, error) {
	p = p.WithoutRun()
	list := p.Rules()
	w := world{policy: p, s: &s, work: work, names: map[target.Name]bool{}}
	for i := range list {
		if list[i].Action == rules.DenyAction {
			w.denies = append(w.denies, &list[i])
			w.mention(list[i].Hosts, list[i].Private, len(list[i].Hosts) == 0)
		}
	}
	w.mention(s.Hosts, nil, false)
	// Errors wait: an example is the better answer.
	var errs []error
	for i := range list {
		r := &list[i]
		if r.Action != rules.AllowAction || s.Credential != "" && r.Credential != s.Credential {
			continue
		}
		e, err := w.against(r)
		if e != nil {
			return e, nil
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("rule %q: %w", r.ID, err))
		}
	}
	return nil, errors.Join(errs...)
}

// world is what deny rules and the statement name.
type world struct {
	policy *rules.Policy
	s      *Statement
	work   *rules.Work
	denies []*rules.Rule
	names  map[target.Name]bool
	ranges []netip.Prefix
}

func (w *world) mention(hosts []rules.HostPattern, ranges []netip.Prefix, about bool) {
	for _, h := range hosts {
		if n, ok := h.Host.Name(); ok {
			w.names[n] = true
		} else if a, ok := h.Host.Addr(); ok {
			w.ranges = append(w.ranges, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	if about {
		w.ranges = append(w.ranges, ranges...)
	}
}

// against looks for an example that an allow rule admits.
func (w *world) against(r *rules.Rule) (*Example, error) {
	for _, h := range w.hosts(r) {
		near := slices.DeleteFunc(slices.Clone(w.denies), func(d *rules.Rule) bool { return !about(d, h) })
		for _, port := range r.Ports {
			if len(w.s.Ports) > 0 && !slices.Contains(w.s.Ports, port) {
				continue
			}
			at := slices.DeleteFunc(slices.Clone(near), func(d *rules.Rule) bool {
				return len(d.Ports) > 0 && !slices.Contains(d.Ports, port)
			})
			e, err := w.at(r, target.Endpoint{Host: h, Port: port}, at)
			if e != nil || err != nil {
				return e, err
			}
		}
	}
	return nil, nil
}

// at looks at one host and port, where these deny rules speak.
func (w *world) at(r *rules.Rule, e target.Endpoint, denies []*rules.Rule) (*Example, error) {
	if r.Raw || r.TLS == rules.PassthroughTLS {
		x, err := w.verify(rules.Request{Question: rules.Connect, Endpoint: e}, denies)
		if x != nil {
			x.Carries = w.carried(r, e)
		}
		return x, err
	}
	facts, err := conditions(r, denies)
	if err != nil {
		return nil, err
	}
	for _, m := range w.methods(r, denies) {
		for _, f := range facts {
			path, found, err := w.path(r, m, f, denies)
			if err != nil {
				return nil, err
			}
			if !found {
				continue
			}
			f.Question, f.Endpoint, f.Method, f.Path = rules.Fetch, e, m, path
			f.Secure = e.Port != 80 || r.Credential != ""
			return w.verify(f, nil)
		}
	}
	return nil, nil
}

// carried returns a request that the statement forbids, in a stream that nobody looks
// into: no rule is about what is in it.
func (w *world) carried(r *rules.Rule, e target.Endpoint) *rules.Request {
	req := &rules.Request{Question: rules.Fetch, Endpoint: e, Method: "GET", Path: rootPath(), Secure: !r.Raw}
	if len(w.s.Methods) > 0 {
		req.Method = w.s.Methods[0]
	}
	own := rules.Work{Left: statementWork}
	if p, found, err := (rules.PathQuestion{Within: [][]rules.PathPattern{w.s.Paths}, Work: &own}).Find(); found && err == nil {
		req.Path = p
	}
	return req
}

// path looks for a path of a request with a method, fields and query.
func (w *world) path(r *rules.Rule, m string, f rules.Request, denies []*rules.Rule) (target.Path, bool, error) {
	var out []rules.PathPattern
	for _, d := range denies {
		if (len(d.Methods) > 0 && !slices.Contains(d.Methods, m)) || !d.MeetsConditions(&f) {
			continue
		}
		if len(d.Paths) == 0 {
			return target.Path{}, false, nil
		}
		out = append(out, d.Paths...)
	}
	return rules.PathQuestion{In: [][]rules.PathPattern{r.Paths}, Within: [][]rules.PathPattern{w.s.Paths}, Out: out, Work: w.work}.Find()
}

// verify asks the engine, which has the last word on what it admits.
func (w *world) verify(req rules.Request, denies []*rules.Rule) (*Example, error) {
	if slices.ContainsFunc(denies, func(d *rules.Rule) bool {
		return len(d.Methods)+len(d.Paths)+len(d.Conditions) == 0
	}) {
		return nil, nil
	}
	e := &Example{Request: req, Decision: w.policy.Follow(req)}
	if req.Question == rules.Fetch {
		e.Decision = w.policy.Decide(req)
	}
	if e.Decision.Verdict == rules.Deny {
		return nil, fmt.Errorf("%s seemed to be admitted and is denied (%s)", e, e.Decision.Reason)
	}
	return e, nil
}

func about(r *rules.Rule, h target.Host) bool {
	if a, ok := h.Addr(); ok && len(r.Hosts) == 0 {
		return slices.ContainsFunc(r.Private, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	return matches(r.Hosts, h)
}

func matches(list []rules.HostPattern, h target.Host) bool {
	return slices.ContainsFunc(list, func(p rules.HostPattern) bool { return p.Match(h) })
}

// methods returns those that matter: all that are named, or one for the rest.
func (w *world) methods(r *rules.Rule, denies []*rules.Rule) []string {
	list := r.Methods
	if len(list) == 0 {
		list = w.s.Methods
	}
	if len(list) == 0 {
		for _, d := range denies {
			list = append(list, d.Methods...)
		}
		list = append(list, fresh(list))
	}
	return slices.DeleteFunc(slices.Clone(list), func(m string) bool {
		return m == "TRACE" || m == "TRACK" || m == "CONNECT" || // never admitted
			len(w.s.Methods) > 0 && !slices.Contains(w.s.Methods, m)
	})
}

// fresh returns a method that is none of these.
func fresh(list []string) string {
	for _, m := range []string{"GET", "POST", "PUT", "DELETE", "PATCH"} {
		if !slices.Contains(list, m) {
			return m
		}
	}
	m := "OTHER"
	for slices.Contains(list, m) && len(m) < 32 {
		m += "X"
	}
	return m
}

// hosts returns the hosts of a rule that matter for the statement, one of each
// kind that something tells apart, sorted.
func (w *world) hosts(r *rules.Rule) []target.Host {
	found := map[target.Host]bool{}
	add := func(h target.Host) {
		name, isName := h.Name()
		if about(r, h) && (len(w.s.Hosts) == 0 || matches(w.s.Hosts, h)) && !(isName && rules.IsReserved(name)) {
			found[h] = true
		}
	}
	for _, h := range r.Hosts {
		if !h.Wildcard {
			add(h.Host)
			continue
		}
		parent, _ := h.Host.Name()
		w.below(parent, add)
	}
	if len(r.Hosts) == 0 {
		w.within(r.Private, add)
	}
	out := make([]target.Host, 0, len(found))
	for h := range found {
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b target.Host) int { return cmp.Compare(a.String(), b.String()) })
	return out
}

// below yields names below one: each that is named, and a new child of each.
// A name lies below the same patterns as a new child of the last named one
// above it, so there are no others that differ.
func (w *world) below(parent target.Name, yield func(target.Host)) {
	at := func(n target.Name) {
		yield(target.HostOf(n))
		if c, ok := w.child(n); ok {
			yield(target.HostOf(c))
		}
	}
	at(parent)
	for n := range w.names {
		if n.Below(parent) {
			at(n)
		}
	}
}

// child returns a name right below n that nothing names; there is none where
// names would become too long.
func (w *world) child(n target.Name) (target.Name, bool) {
	const letters = "abcdefghijklmnopqrstuvwxyz"
	for _, label := range []string{"any", "some"} {
		if c, err := target.ParseName(label + "." + n.String()); err == nil && !w.names[c] {
			return c, true
		}
	}
	for i := range len(letters) * len(letters) {
		label := letters[i%26 : i%26+1]
		if i >= 26 {
			label += letters[i/26 : i/26+1]
		}
		if c, err := target.ParseName(label + "." + n.String()); err == nil && !w.names[c] {
			return c, true
		}
	}
	return target.Name{}, false
}

// within yields addresses in ranges: the first of each range that is named and
// the one after its last. Ranges hold each other or are apart, so what remains
// of one begins at one of these.
func (w *world) within(ranges []netip.Prefix, yield func(target.Host)) {
	for _, p := range slices.Concat(ranges, w.ranges) {
		yield(target.HostOfAddr(p.Addr()))
		if a := lastOf(p).Next(); a.IsValid() {
			yield(target.HostOfAddr(a))
		}
	}
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
