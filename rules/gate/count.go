package gate

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"sallyport/audit"
	"sallyport/rules"
	"sallyport/rules/limit"
)

// Recount counts again what records say was admitted and carried under the
// limits of the cells that are attached. What is admitted is recorded first,
// so nothing is lost over a restart, however the last process ended. What has no
// record of its end counts as the ledger has it, and what that does not know of as all
// that its limits of octets let through (ADR-0041). It is called once, at the beginning,
// before anything is admitted; an error means that the counts are not known.
func (g *Gate) Recount(recs iter.Seq2[audit.Record, error]) error {
	open := map[string]admitted{} // by id, what has limits of octets
	for rec, err := range recs {
		if err != nil {
			return fmt.Errorf("counting what was admitted: %w", err)
		}
		id, ok := g.cfg.Identity(rec.Cell)
		if !ok || id.Run != rec.Run || rec.Scope == builtIn {
			continue
		}
		all := claims(rec.Rule, id.Policy.LimitsOf(rec.Rule), id.Policy.Totals())
		switch rec.Kind {
		case audit.Admit:
			g.counts.Recount(rec.Run, rec.Time, 1, 0, 0, all...)
			if boundsOctets(all) {
				open[rec.ID] = admitted{rec.Run, all}
			}
		case audit.Done:
			g.counts.Recount(rec.Run, rec.Time, 0, rec.Sent, rec.Received, all...)
			delete(open, rec.Ref)
		default:
		}
	}
	for id, a := range open {
		g.recountOpen(id, a)
	}
	if g.cfg.Ledger != nil {
		g.cfg.Ledger.Settle()
	}
	return nil
}

// recountOpen counts what a process that was killed had set aside for something that
// was open.
func (g *Gate) recountOpen(id string, a admitted) {
	amounts := [2]int64{limit.Unknown, limit.Unknown}
	var at [2]time.Time
	if g.cfg.Ledger != nil {
		if left, ok := g.cfg.Ledger.Left(id); ok {
			amounts, at = left.Amounts, left.At
		}
	}
	for d := range amounts {
		if amounts[d] < 0 {
			amounts[d], at[d] = limit.Unknown, g.cfg.Now()
		}
	}
	g.counts.Recount(a.run, at[limit.Sent], 0, amounts[limit.Sent], 0, a.claims...)
	g.counts.Recount(a.run, at[limit.Received], 0, 0, amounts[limit.Received], a.claims...)
}

// admitted is what a record says was admitted.
type admitted struct {
	run    string
	claims []limit.Claim
}

func boundsOctets(all []limit.Claim) bool {
	return slices.ContainsFunc(all, func(c limit.Claim) bool {
		return c.Limits != nil && (c.Limits.Sent.N > 0 || c.Limits.Received.N > 0)
	})
}

// count counts what is about to be admitted.
func (p *pass) count() (*limit.Hold, error) {
	declared := int64(0)
	if p.req.Question == rules.Fetch {
		declared = p.req.Length
	}
	d := &p.decision
	return p.gate.counts.Take(p.identity.Run, p.began, declared, claims(d.Rule, d.Limits, d.Totals)...)
}

// enter writes down, before p is recorded, what was set aside for it, where limits of
// octets have the rest follow.
func (p *pass) enter() (err error) {
	sends, receives := p.hold.Limits()
	if p.gate.cfg.Ledger == nil || !sends && !receives {
		return nil
	}
	if p.entry, err = p.gate.cfg.Ledger.Enter(p.id, p.began, p.hold.Aside()); err != nil {
		return err
	}
	p.hold.Keep(p.entry)
	return nil
}

// leave ends what enter began, once the end of p is certain to be in the log before
// whatever comes after it.
func (p *pass) leave() {
	if p.entry != nil {
		p.entry.Free()
	}
}

// spoke returns a decision as of whoever set the limit that was reached.
func spoke(d rules.Decision, err error) rules.Decision {
	if reached, ok := errors.AsType[*limit.ReachedError](err); ok && reached.Scope != "" {
		d.Scope, d.Rule, d.Where = reached.Scope, "", "" // no rule spoke
	}
	return d
}

// waitOf returns after how long the cause of a refusal may be over, 0 if nobody knows.
func waitOf(err error) time.Duration {
	if reached, ok := errors.AsType[*limit.ReachedError](err); ok {
		return reached.Wait
	}
	return 0
}

// Bounds reports whether limits bound the octets that p carries, sent and received.
// Those that are bounded cross only as [Pass.Send] and [Pass.Receive] say.
func (p Pass) Bounds() (sends, receives bool) {
	if p.p == nil {
		return false, false
	}
	return p.p.hold.Limits()
}

// Send counts n octets that are about to go upstream, and returns how many of them
// may. If those are not all, a limit was reached in the midst of it, or it could not be
// noted how many there are: the error is a [*DeniedError], which is not recorded by
// itself: [Pass.Done] tells it.
func (p Pass) Send(n int) (int, error) {
	if p.p == nil {
		return 0, denied("", rules.Decision{}, rules.NoPolicy, errors.New("no pass to send with"))
	}
	k, err := p.p.hold.Send(p.p.gate.cfg.Now(), n)
	return k, p.p.over(err)
}

// Receive is Send for octets that are about to go to the sandbox.
func (p Pass) Receive(n int) (int, error) {
	if p.p == nil {
		return 0, denied("", rules.Decision{}, rules.NoPolicy, errors.New("no pass to receive with"))
	}
	k, err := p.p.hold.Receive(p.p.gate.cfg.Now(), n)
	return k, p.p.over(err)
}

// Expect sets aside the n octets that an answer declares, so that it is refused as a
// whole, and not cut off, where a limit has no room for it. The error is as of Send.
func (p Pass) Expect(n int64) error {
	if p.p == nil {
		return denied("", rules.Decision{}, rules.NoPolicy, errors.New("no pass to receive with"))
	}
	return p.p.over(p.p.hold.Expect(p.p.gate.cfg.Now(), n))
}

// over is the refusal of what is over a limit, nil for what is not.
func (p *pass) over(err error) error {
	if err == nil {
		return nil
	}
	reason := rules.AuditUnavailable
	if _, reached := errors.AsType[*limit.ReachedError](err); reached {
		reason = rules.Limit
	}
	e := denied(p.id, spoke(p.decision, err), reason, err)
	e.Wait = waitOf(err)
	return e
}

// builtIn is the scope of what the gateway answers itself, which is not counted.
const builtIn = "builtin"

// claims are what one admission is counted under: its rule, and the limits that
// scopes set for all of a run. Ids of rules have no blank in them.
func claims(rule string, l *rules.Limits, totals *rules.Totals) []limit.Claim {
	if l == nil && totals == nil {
		return nil
	}
	list := append(make([]limit.Claim, 0, 4), limit.Claim{Key: rule, Limits: l})
	if totals != nil {
		for _, t := range totals.All() {
			list = append(list, limit.Claim{Key: "all of " + t.Scope.String(), Limits: t.Limits, Scope: t.Scope.String()})
		}
	}
	return list
}

// Forget drops the counts of a run that has ended.
func (g *Gate) Forget(run string) { g.counts.Forget(run) }
