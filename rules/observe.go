package rules

import "slices"

// observed is asked about a refusal where something is only observed: what is
// let through instead says in Observed what it would have been refused for.
//
// Only what rules decide is let through. What guards against abuse stays as it
// is: special-purpose addresses, credentials in the wrong place, requests that
// cannot be understood, methods that nobody may use, and the gateway's own name.
// Nothing that is let through is granted a credential that the rules do not
// grant to it.
func (p *Policy) observed(r *Request, d Decision) Decision {
	if n, ok := r.Endpoint.Host.Name(); !observable(d.Reason) || ok && IsReserved(n) {
		return d
	}
	through := d
	if p.lax != nil {
		through = p.lax.decide(r)
	}
	learned := !refused(&through) && p.learns(through.Rule)
	if refused(&through) && p.observe && through.Scope == scopePolicy && !p.stands(&through) {
		if n, forbidden := p.forbidden(r); forbidden {
			return n
		}
		through, learned = p.letThrough(r, d), p.learn
	}
	if refused(&through) {
		return d
	}
	if through.Observed = d.Reason; d.Rule != "" {
		through.Rule, through.Where, through.Scope = d.Rule, d.Where, d.Scope
	}
	if learned {
		through.Reason = Learned
	}
	return through
}

// stands reports a refusal that is not widened by learning: that of a deny rule.
func (p *Policy) stands(d *Decision) bool {
	return p.learn && (d.Reason == DeniedByRule || d.Reason == PathAmbiguous || d.Reason == QueryAmbiguous)
}

// learns reports whether the rule of that id is learned from.
func (p *Policy) learns(id string) bool {
	return slices.ContainsFunc(p.lax.rules, func(r Rule) bool { return r.ID == id && r.Learn })
}

func refused(d *Decision) bool { return d.Verdict == Deny || d.Explain }

// observable reports the reasons that are matters of rules.
func observable(r Reason) bool {
	switch r {
	case HostNotAllowed, AddressNotAllowed, PortNotAllowed, ProtocolNotAllowed, MethodNotAllowed,
		PathNotAllowed, PathAmbiguous, QueryNotAllowed, QueryAmbiguous, HeaderNotAllowed, DeniedByRule, RuleExpired:
		return true
	default:
		return false
	}
}

// letThrough answers for a policy that enforces nothing. Streams are inspected
// where they can be.
func (p *Policy) letThrough(r *Request, d Decision) Decision {
	out := p.refuse(Allowed)
	out.Verdict, out.Totals = Inspect, p.totals
	if n, narrowed := p.outside(r); narrowed {
		return n
	}
	switch {
	case r.Question == Hello && r.Protocol == Opaque && p.wouldBeUnseen(r):
		return d
	case r.Question == Hello && r.Protocol == Opaque:
		out.Verdict = Tunnel
	case r.Question == Fetch && neverMethod(r.Method):
		return d
	case r.Question == Fetch:
		if out = p.judgeCarries(r, &out); out.Verdict == Deny {
			return out
		}
		return tooLarge(r, out)
	case r.Question == Reach:
		return p.letReach(r, d)
	}
	return out
}

func (p *Policy) letReach(r *Request, d Decision) Decision {
	stream := streamOf(r)
	out := p.Decide(stream)
	addr := r.Addr.Unmap()
	if _, special := Special(addr); refused(&out) || special && !p.opens(&stream, addr) {
		return d
	}
	if p.denies(&stream, addr, func(s Scope) bool { return s != PolicyScope || p.learn }) != nil {
		return d
	}
	return out
}

// loosen returns the policy without what some of its rules only observe: their
// denials, and the methods, paths and conditions of what they allow. Nil if none does.
func (p *Policy) loosen() *Policy {
	if !slices.ContainsFunc(p.rules, func(r Rule) bool { return r.Observe }) {
		return nil
	}
	out := *p
	out.rules, out.lax, out.observe = nil, nil, false
	for _, r := range p.rules {
		if !r.Observe || r.Action == AllowAction {
			out.rules = append(out.rules, r)
		}
		if r.Observe && r.Action == AllowAction && r.judgesRequests() {
			// The rule as it is comes first: it may grant a credential.
			r.Methods, r.Paths, r.Conditions, r.Credential = nil, nil, nil, ""
			out.rules = append(out.rules, r)
		}
	}
	slices.SortStableFunc(out.rules, byRank)
	out.index = newIndex(out.rules)
	return &out
}

// outside is the refusal of what other scopes take away: what is observed of
// the policy widens none of them.
func (p *Policy) outside(r *Request) (Decision, bool) {
	s := survey{req: r, depth: depthOf(r)}
	var taken *Rule
	p.near(r.Endpoint.Host, func(i int32) bool {
		rule := &p.rules[i]
		if rule.Action == DenyAction && rule.Scope != PolicyScope && (s.denies(rule) || s.cannotJudge(rule) || s.cannotJudgeQuery(rule)) {
			taken = rule
		}
		return taken == nil
	})
	if taken != nil {
		return s.explained(p.speak(Deny, DeniedByRule, taken)), true
	}
	if !p.filter {
		return Decision{}, false
	}
	p.survey(&s)
	d := p.judge(&s, &s.run)
	if !refused(&d) && d.Verdict == Inspect {
		return d, false
	}
	if !refused(&d) {
		d = s.explained(p.refuse(ProtocolNotAllowed))
	}
	d.Scope = RunScope.String()
	return d, true
}

// wouldBeUnseen reports a deny rule of another scope than the policy's, or a
// statement, that would have to look at requests on a stream which cannot be
// looked into.
func (p *Policy) wouldBeUnseen(r *Request) (yes bool) {
	if slices.ContainsFunc(p.never, func(n Rule) bool { return n.aboutHost(r) && n.wouldLook(r) }) {
		return true
	}
	p.near(r.Endpoint.Host, func(i int32) bool {
		rule := &p.rules[i]
		yes = rule.Action == DenyAction && rule.Scope != PolicyScope && rule.wouldLook(r)
		return !yes
	})
	return yes
}

// wouldLook reports a deny rule about the request's host that is about some
// requests at its port.
func (r *Rule) wouldLook(req *Request) bool {
	return r.judgesRequests() && (len(r.Ports) == 0 || r.covers(req.Endpoint.Port))
}

// Observes reports whether the policy as a whole only observes, or learns.
func (p *Policy) Observes() bool { return p != nil && p.observe }

// Learns reports whether the policy as a whole learns: see [Source].
func (p *Policy) Learns() bool { return p != nil && p.learn }

// Enforced returns the policy as if everything in it were enforced.
func (p *Policy) Enforced() *Policy {
	if p == nil || !p.observe && p.lax == nil {
		return p
	}
	out := *p
	out.observe, out.learn, out.lax = false, false, nil
	return &out
}

// Loosest returns a policy that enforces everything and admits what p lets
// through because rules only observe; not what it lets through as a whole.
func (p *Policy) Loosest() *Policy {
	if p == nil || p.lax == nil {
		return p.Enforced()
	}
	return p.lax
}
