package rules

import "slices"

// The groups of [Rule.Terms] that are no single condition.
const (
	MethodsTerm = "methods"
	PathsTerm   = "paths"
	BodyTerm    = "request_body"
	HeadTerm    = "request_head"
)

// Terms returns what a rule asks of a request to its hosts and ports, in the words
// of a policy file: each of its groups and conditions.
func (r *Rule) Terms() []string { return r.terms(func(bool) bool { return true }, nil) }

// Unmet returns those of the rule's [Rule.Terms] that a request does not meet, read
// as [Policy.Decide] reads them. It is false where the rule would not speak of the
// request whatever is in it: another host, port or question, or a rule that has
// expired.
func (r *Rule) Unmet(req *Request) ([]string, bool) {
	s := survey{req: req, depth: atRequest}
	about := func(h HostPattern) bool { return h.Match(req.Endpoint.Host) }
	if req.Question != Fetch || blind(r) || s.past(r) || !slices.ContainsFunc(r.Hosts, about) || len(r.Ports) > 0 && !r.covers(req.Endpoint.Port) {
		return nil, false
	}
	return r.terms(func(met bool) bool { return !met }, req), true
}

// terms lists the terms of which a request that meets them, or does not, is wanted;
// without a request, met is false.
func (r *Rule) terms(want func(met bool) bool, req *Request) (list []string) {
	add := func(term string, met func() bool) {
		if want(req != nil && met()) {
			list = append(list, term)
		}
	}
	allows := r.Action == AllowAction
	if len(r.Methods) > 0 {
		add(MethodsTerm, func() bool { return slices.Contains(r.Methods, req.Method) })
	}
	if len(r.Paths) > 0 {
		add(PathsTerm, func() bool { return allows && r.allowsPath(req) || !allows && r.deniesPath(req) })
	}
	for i := range r.Conditions {
		c := &r.Conditions[i]
		add(c.String(), func() bool { return allows && c.surely(req) || !allows && c.maybe(req) })
	}
	if r.Limits.Body > 0 {
		add(BodyTerm, func() bool { return req.Length <= r.Limits.Body })
	}
	if r.Limits.Head > 0 {
		add(HeadTerm, func() bool { return req.HeadOctets() <= r.Limits.Head })
	}
	return list
}
