package rules

// Limits bound what one rule admits for one run. The zero Limits bound nothing.
// They are counted outside of [Policy.Decide], which has no memory.
type Limits struct {
	Requests   Rate // requests, and streams that nobody looks into
	Sent       Rate // octets, sandbox to upstream
	Received   Rate // octets, upstream to sandbox
	Concurrent int64
}

// Rate is so much in each period of so many seconds, 0 for no bound.
type Rate struct {
	N      int64
	Period int64
}

// IsZero reports whether nothing is bounded.
func (l Limits) IsZero() bool { return l == Limits{} }

// LimitsOf returns the limits of a rule, nil if it has none.
func (p *Policy) LimitsOf(rule string) *Limits {
	if p == nil {
		return nil
	}
	for i := range p.rules {
		if p.rules[i].ID == rule {
			return p.rules[i].limits()
		}
	}
	return nil
}

func (r *Rule) limits() *Limits {
	if r.Limits.IsZero() {
		return nil
	}
	return &r.Limits
}

// Limited reports whether any rule has limits.
func (p *Policy) Limited() bool {
	if p == nil {
		return false
	}
	for i := range p.rules {
		if !p.rules[i].Limits.IsZero() {
			return true
		}
	}
	return false
}
