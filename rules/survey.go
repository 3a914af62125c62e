package rules

import "slices"

// stage is a step of judging a rule: how far a question looks, and where a
// rule ceased to match.
type stage uint8

const (
	atHost stage = iota
	atPort
	atProtocol
	atMethod
	atPath
	atAll // matched as far as the question looks
)

// survey goes through the rules near a request and keeps what it saw. Rules
// are sorted, so of several that match the one with the lowest position
// speaks, in whatever order they come.
type survey struct {
	req   *Request
	depth stage

	best    int32 // first rule that admits, -1 for none
	inspect int32 // first that admits and inspects
	raw     int32 // first that admits any bytes
	expired int32 // first that would admit, had it not expired
	denied  int32 // first deny rule that matches
	unclear bool  // a deny rule with paths cannot judge the path
	nearest stage // where the nearest allow rule ceased to match
}

func (p *Policy) survey(s *survey) {
	s.best, s.inspect, s.raw, s.expired, s.denied = -1, -1, -1, -1, -1
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
		return
	}
	d := s.matches(r)
	switch {
	case d < atAll:
		s.nearest = max(s.nearest, d)
	case s.past(r):
		first(&s.expired, i)
	default:
		first(&s.best, i)
		switch {
		case r.Raw:
			first(&s.raw, i)
		case r.TLS == InspectTLS:
			first(&s.inspect, i)
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

// denies reports whether a deny rule about the request's host matches. As long
// as a question does not look at what the rule restricts, the rule waits.
func (s *survey) denies(r *Rule) bool {
	if len(r.Ports) > 0 && (s.depth == atHost || !r.covers(s.req.Endpoint.Port)) {
		return false
	}
	if len(r.Methods) == 0 && len(r.Paths) == 0 {
		return true
	}
	if s.depth < atPath || !r.deniesMethod(s.req.Method) {
		return false
	}
	for i := range r.Paths {
		if r.Paths[i].matchLoosely(s.req.Path) {
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
	return s.depth == atPath && len(r.Paths) > 0 && s.req.Path.Ambiguous() &&
		(len(r.Ports) == 0 || r.covers(s.req.Endpoint.Port)) && r.deniesMethod(s.req.Method)
}

// refusal returns the decision if the request is refused.
func (s *survey) refusal(p *Policy) (Decision, bool) {
	switch {
	case s.denied >= 0:
		return p.speak(Deny, DeniedByRule, &p.rules[s.denied]), true
	case s.unclear:
		return p.refuse(PathAmbiguous), true
	case s.best >= 0:
		return Decision{}, false
	case s.expired >= 0:
		return p.speak(Deny, RuleExpired, &p.rules[s.expired]), true
	}
	return p.refuse(s.reason()), true
}

func (s *survey) reason() Reason { return s.reasonAt(s.nearest) }

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
	default:
	}
	if _, raw := s.req.Endpoint.Host.Addr(); raw {
		return AddressNotAllowed
	}
	return HostNotAllowed
}
