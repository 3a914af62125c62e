package rules

import "slices"

// Limits bound what one rule admits for one run. The zero Limits bound nothing.
// All but Body and Head are counted outside of [Policy.Decide], which has no memory.
type Limits struct {
	Requests   Rate // requests, and streams that nobody looks into
	Sent       Rate // octets, sandbox to upstream
	Received   Rate // octets, upstream to sandbox
	Concurrent int64
	Body       int64 // octets of one request's body
	Head       int64 // octets of one request's head: see [Request.HeadOctets]
}

// Rate is so much in any period of so many seconds, 0 for no bound. The period is one
// of [Periods].
type Rate struct {
	N      int64
	Period int64
}

// Periods are a minute, an hour and a day, in seconds.
var Periods = [...]int64{60, 3600, 86400}

// Totals are the limits of a run over all of its rules, by who set them.
type Totals struct{ Floor, Policy, Run Limits }

// Total is one of them.
type Total struct {
	Scope  Scope
	Limits *Limits
}

// IsZero reports whether nothing is bounded.
func (t Totals) IsZero() bool { return t == Totals{} }

// All returns the limits of each scope, be they none.
func (t *Totals) All() [3]Total {
	return [3]Total{{FloorScope, &t.Floor}, {PolicyScope, &t.Policy}, {RunScope, &t.Run}}
}

// IsZero reports whether nothing is bounded.
func (l Limits) IsZero() bool { return l == Limits{} }

// BodyLimit returns how many octets of body an admitted request may have, 0 for
// any number.
func (d *Decision) BodyLimit() int64 { return d.lowest(func(l *Limits) int64 { return l.Body }) }

// HeadLimit returns how many octets of head an admitted request may have, 0 for
// any number.
func (d *Decision) HeadLimit() int64 { return d.lowest(func(l *Limits) int64 { return l.Head }) }

// lowest returns the lowest of a limit that is in force, 0 for none.
func (d *Decision) lowest(of func(*Limits) int64) (most int64) {
	lower := func(l *Limits) {
		if n := of(l); n > 0 && (most == 0 || n < most) {
			most = n
		}
	}
	if d.Limits != nil {
		lower(d.Limits)
	}
	if d.Totals != nil {
		lower(&d.Totals.Floor)
		lower(&d.Totals.Policy)
		lower(&d.Totals.Run)
	}
	return most
}

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

// Totals returns the limits of a run over all rules, nil if there are none.
func (p *Policy) Totals() *Totals {
	if p == nil {
		return nil
	}
	return p.totals
}

// Limited reports whether anything is counted.
func (p *Policy) Limited() bool {
	if p == nil {
		return false
	}
	for i := range p.rules {
		if !p.rules[i].Limits.IsZero() {
			return true
		}
	}
	return p.totals != nil
}

func (c *compiler) checkLimits(l *Limits) {
	for _, r := range []Rate{l.Requests, l.Sent, l.Received, {l.Concurrent, Periods[0]}, {l.Body, Periods[0]}, {l.Head, Periods[0]}} {
		if r.N < 0 || r.N > 0 && !slices.Contains(Periods[:], r.Period) {
			c.fault("limits", "%d in %d seconds is no limit", r.N, r.Period)
		}
	}
}

// Captures reports whether a rule says to keep bodies, and names the first that
// does.
func (p *Policy) Captures() (rule string, ok bool) {
	if p == nil {
		return "", false
	}
	for i := range p.rules {
		if r := &p.rules[i]; r.Log.Bodies() {
			return r.ID, true
		}
	}
	return "", false
}
