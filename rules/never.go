package rules

import "slices"

// A statement under never holds in every mode (ADR-0028): over what rules
// admit it is proved when a policy is read, and of what a mode lets through
// beside them it takes its part away when a request comes.

// forbidden is the refusal of what no mode may let through, if a statement says
// so. As long as a question does not look at what a statement restricts, the
// statement waits, as a deny rule does.
func (p *Policy) forbidden(r *Request) (Decision, bool) {
	s := survey{req: r, depth: depthOf(r)}
	for i := range p.never {
		n := &p.never[i]
		if n.aboutHost(r) && (s.denies(n) || s.cannotJudge(n)) {
			return s.explained(p.speak(Deny, DeniedByRule, n)), true
		}
	}
	return Decision{}, false
}

// aboutHost reports whether a statement is about a request's host. One that
// names none is about all.
func (r *Rule) aboutHost(req *Request) bool {
	return len(r.Hosts) == 0 || slices.ContainsFunc(r.Hosts, func(h HostPattern) bool { return h.Match(req.Endpoint.Host) })
}
