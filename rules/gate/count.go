package gate

import (
	"fmt"
	"iter"

	"sallyport/audit"
	"sallyport/rules"
	"sallyport/rules/limit"
)

// Recount counts again what records say was admitted and carried under the
// limits of the cells that are attached. What is admitted is recorded first,
// so nothing is lost over a restart, however the last process ended. It is for
// the beginning, before anything is admitted; an error means that the counts
// are not known.
func (g *Gate) Recount(recs iter.Seq2[audit.Record, error]) error {
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
		case audit.Done:
			g.counts.Recount(rec.Run, rec.Time, 0, rec.Sent, rec.Received, all...)
		default:
		}
	}
	return nil
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
