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
	if refused(&through) && p.observe {
		through = p.letThrough(r, d)
	}
	if refused(&through) {
		return d
	}
	if through.Observed = d.Reason; d.Rule != "" {
		through.Rule, through.Where = d.Rule, d.Where
	}
	return through
}

func refused(d *Decision) bool { return d.Verdict == Deny || d.Explain }

// observable reports the reasons that are matters of rules.
func observable(r Reason) bool {
	switch r {
	case HostNotAllowed, AddressNotAllowed, PortNotAllowed, ProtocolNotAllowed, MethodNotAllowed,
		PathNotAllowed, PathAmbiguous, DeniedByRule, RuleExpired:
		return true
	default:
		return false
	}
}

// letThrough answers for a policy that enforces nothing. Streams are inspected
// where they can be.
func (p *Policy) letThrough(r *Request, d Decision) Decision {
	out := p.refuse(Allowed)
	out.Verdict = Inspect
	switch {
	case r.Question == Hello && r.Protocol == Opaque:
		out.Verdict = Tunnel
	case r.Question == Fetch && neverMethod(r.Method):
		return d
	case r.Question == Fetch:
		return p.judgeCarries(r, &out)
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
	return out
}

// loosen returns the policy without what some of its rules only observe: their
// denials, and the methods and paths of what they allow. Nil if none does.
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
		if r.Observe && r.Action == AllowAction && len(r.Methods)+len(r.Paths) > 0 {
			// The rule as it is comes first: it may grant a credential.
			r.Methods, r.Paths, r.Credential = nil, nil, ""
			out.rules = append(out.rules, r)
		}
	}
	slices.SortStableFunc(out.rules, byRank)
	out.index = newIndex(out.rules)
	return &out
}

// Observes reports whether the policy as a whole only observes.
func (p *Policy) Observes() bool { return p != nil && p.observe }

// Enforced returns the policy as if everything in it were enforced.
func (p *Policy) Enforced() *Policy {
	if p == nil || !p.observe && p.lax == nil {
		return p
	}
	out := *p
	out.observe, out.lax = false, nil
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
