package rules

import (
	"slices"

	"sallyport/rules/target"
)

// stage is a step of judging a rule: how far a question looks, and where a
// rule ceased to match.
type stage uint8

const (
	atHost stage = iota
	atPort
	atProtocol
	atMethod
	atPath
	atQuery
	atHeader
	atAll // matched as far as the question looks
)

// atRequest is the depth of a question about a request.
const atRequest = atHeader

// survey goes through the rules near a request and keeps what it saw. Rules
// are sorted, so of several that match the one with the lowest position
// speaks, in whatever order they come.
type survey struct {
	req   *Request
	depth stage

	denied       int32 // first deny rule that matches, -1 for none
	unclear      bool  // a deny rule with paths cannot judge the path
	unclearQuery bool  // one about the query cannot judge that
	policy       found
	run          found
	approved     found
}

// found is what the allow rules of a scope say. Positions are -1 for none.
type found struct {
	best    int32 // first rule that admits
	inspect int32 // first that admits and inspects
	raw     int32 // first that admits any bytes
	expired int32 // first that would admit, had it not expired
	nearest stage // where the nearest allow rule ceased to match
}

var nothing = found{best: -1, inspect: -1, raw: -1, expired: -1}

func (p *Policy) survey(s *survey) {
	s.denied, s.policy, s.run, s.approved = -1, nothing, nothing, nothing
	p.near(s.req.Endpoint.Host, func(i int32) bool {
		s.consider(i, &p.rules[i])
		return true
	})
}

func (s *survey) consider(i int32, r *Rule) {
	if r.Action != AllowAction {
		if s.denies(r) {
			first(&s.denied, i)
		}
		s.unclear = s.unclear || s.cannotJudge(r)
		s.unclearQuery = s.unclearQuery || s.cannotJudgeQuery(r)
		return
	}
	switch r.Scope {
	case RunScope:
		s.allow(&s.run, i, r)
	case ApprovalScope:
		s.allow(&s.approved, i, r)
	default:
		s.allow(&s.policy, i, r)
	}
}

func (s *survey) allow(f *found, i int32, r *Rule) {
	d := s.matches(r)
	switch {
	case d < atAll:
		f.nearest = max(f.nearest, d)
	case s.past(r):
		first(&f.expired, i)
	default:
		first(&f.best, i)
		switch {
		case r.Raw:
			first(&f.raw, i)
		case r.TLS == InspectTLS:
			first(&f.inspect, i)
		}
	}
}

func first(at *int32, i int32) {
	if *at < 0 || i < *at {
		*at = i
	}
}

func (s *survey) past(r *Rule) bool { return r.Expires != 0 && s.req.Now >= r.Expires }

func (s *survey) admits(r *Rule) bool { return s.matches(r) == atAll && !s.past(r) }

// matches tells where an allow rule about the request's host ceases to match.
func (s *survey) matches(r *Rule) stage {
	switch {
	case s.depth == atHost:
		return atAll
	case !r.covers(s.req.Endpoint.Port):
		return atPort
	case s.depth == atPort:
		return atAll
	case r.Raw || r.TLS == PassthroughTLS:
		return atProtocol // carries streams, not requests
	case !allowsMethod(r, s.req.Method):
		return atMethod
	case !r.allowsPath(s.req):
		return atPath
	case !r.meets(s.req, InQuery):
		return atQuery
	case !r.meets(s.req, InHeader):
		return atHeader
	default:
		return atAll
	}
}

func (r *Rule) allowsPath(req *Request) bool {
	for i := range r.Paths {
		if r.Paths[i].Match(req.Path) {
			return true
		}
	}
	return len(r.Paths) == 0
}

// judgesRequests reports a rule that is about some requests to its hosts only.
func (r *Rule) judgesRequests() bool { return len(r.Methods)+len(r.Paths)+len(r.Conditions) > 0 }

// denies reports whether a deny rule about the request's host matches. As long
// as a question does not look at what the rule restricts, the rule waits.
func (s *survey) denies(r *Rule) bool {
	if len(r.Ports) > 0 && (s.depth == atHost || !r.covers(s.req.Endpoint.Port)) {
		return false
	}
	if !r.judgesRequests() {
		return true
	}
	return s.depth == atRequest && r.deniesMethod(s.req.Method) && r.deniesPath(s.req) && r.MeetsConditions(s.req)
}

func (r *Rule) deniesPath(req *Request) bool {
	for i := range r.Paths {
		if r.Paths[i].matchLoosely(req.Path) {
			return true
		}
	}
	return len(r.Paths) == 0
}

func (r *Rule) deniesMethod(m string) bool {
	return len(r.Methods) == 0 || slices.Contains(r.Methods, m)
}

// cannotJudge reports a deny rule that would have to read an ambiguous path.
// An allow rule with paths never matches such a path, and one without allows
// any, so this is what makes a host path-ruled: removing an allow rule must
// never admit more.
func (s *survey) cannotJudge(r *Rule) bool {
	return s.depth == atRequest && len(r.Paths) > 0 && s.req.Path.Ambiguous() &&
		(len(r.Ports) == 0 || r.covers(s.req.Endpoint.Port)) && r.deniesMethod(s.req.Method) && r.meets(s.req, InHeader) &&
		(r.meets(s.req, InQuery) || target.AmbiguousQuery(s.req.Query))
}

// cannotJudgeQuery is cannotJudge for a query that servers take apart in more
// than one way.
func (s *survey) cannotJudgeQuery(r *Rule) bool {
	return s.depth == atRequest && r.judgesQuery() && target.AmbiguousQuery(s.req.Query) &&
		(len(r.Ports) == 0 || r.covers(s.req.Endpoint.Port)) && r.deniesMethod(s.req.Method) && r.deniesPath(s.req) && r.meets(s.req, InHeader)
}

// forbidden returns the decision of the deny rules, if they refuse.
func (s *survey) forbidden(p *Policy) (Decision, bool) {
	switch {
	case s.denied >= 0:
		return p.speak(Deny, DeniedByRule, &p.rules[s.denied]), true
	case s.unclear:
		return p.refuse(PathAmbiguous), true
	case s.unclearQuery:
		return p.refuse(QueryAmbiguous), true
	default:
		return Decision{}, false
	}
}

// refusal returns the decision if allow rules do not admit.
func (s *survey) refusal(p *Policy, f *found) (Decision, bool) {
	switch {
	case f.best >= 0:
		return Decision{}, false
	case f.expired >= 0:
		return p.speak(Deny, RuleExpired, &p.rules[f.expired]), true
	}
	return p.refuse(s.reasonAt(f.nearest)), true
}

// reasonAt is what a request is refused for if the nearest rule ceased to
// match at a stage.
func (s *survey) reasonAt(at stage) Reason {
	switch at {
	case atPort:
		return PortNotAllowed
	case atProtocol:
		return ProtocolNotAllowed
	case atMethod:
		return MethodNotAllowed
	case atPath:
		if s.req.Path.Ambiguous() {
			return PathAmbiguous
		}
		return PathNotAllowed
	case atQuery:
		if target.AmbiguousQuery(s.req.Query) {
			return QueryAmbiguous
		}
		return QueryNotAllowed
	case atHeader:
		return HeaderNotAllowed
	default:
	}
	if _, raw := s.req.Endpoint.Host.Addr(); raw {
		return AddressNotAllowed
	}
	return HostNotAllowed
}
