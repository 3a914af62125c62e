package gate

import (
	"fmt"
	"iter"

	"sallyport/audit"
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
		if !ok || id.Run != rec.Run || rec.Rule == "" {
			continue
		}
		l := id.Policy.LimitsOf(rec.Rule)
		switch rec.Kind {
		case audit.Admit:
			g.counts.Recount(rec.Run, rec.Rule, l, rec.Time, 1, 0, 0)
		case audit.Done:
			g.counts.Recount(rec.Run, rec.Rule, l, rec.Time, 0, rec.Sent, rec.Received)
		default:
		}
	}
	return nil
}

// Forget drops the counts of a run that has ended.
func (g *Gate) Forget(run string) { g.counts.Forget(run) }
