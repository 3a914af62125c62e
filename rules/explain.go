package rules

// Follow asks what a request meets on its way, question after question, and
// returns the refusal that its sandbox would be told, or the decision that
// carries it. It is for tests of a policy and for people who ask why; nothing
// is recorded and no address is vetted.
func (p *Policy) Follow(r Request) Decision {
	ask := func(q Question, protocol Protocol) Decision {
		step := r
		step.Question, step.Protocol = q, protocol
		return p.Decide(step)
	}
	switch r.Question {
	case Connect:
		d := ask(Connect, 0)
		if d.Explain {
			d.Verdict, d.Explain = Deny, false
		}
		return d
	case Fetch:
		protocol := HTTP
		if r.Secure {
			protocol = TLS
		}
		for _, d := range []Decision{ask(Connect, 0), ask(Hello, protocol)} {
			if d.Verdict != Inspect {
				return d
			}
		}
		return ask(Fetch, 0)
	default:
		return p.Decide(r)
	}
}
