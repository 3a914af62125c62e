package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

func middle(list []float64) float64 {
	s := slices.Sorted(slices.Values(list))
	if len(s) == 0 {
		return 0
	}
	return s[len(s)/2]
}

// verdict says which of the bounds a ratio keeps.
func (r *row) verdict(ratio float64) string {
	keeps := func(b float64) bool { return b > 0 && (r.less && ratio <= b || !r.less && ratio >= b) }
	switch {
	case keeps(r.aim):
		return "aim"
	case keeps(r.floor):
		return "floor"
	case r.floor == 0:
		return "-"
	default:
		return "BELOW"
	}
}

// bound writes a floor or an aim, 0 for none.
func bound(b float64) string {
	if b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", b)
}

func report(w io.Writer, rows []*row, rounds int, d time.Duration) error {
	fmt.Fprintf(w, "%d rounds of %v, each with both sides in turn; policy of 100 rules and more, log on, credential on (TLS inspected).\n", rounds, d)
	fmt.Fprintln(w, "ratio is ours / ref, the median of the rounds [least, most]; CPU in us for each operation or MB, broker included.")
	fmt.Fprintf(w, "\n%-28s %-6s %-6s %8s %8s %6s %-13s %5s %5s %-6s %s\n",
		"", "ref", "unit", "ours", "ref", "ratio", "[over rounds]", "floor", "aim", "keeps", "CPU ours/ref")
	var failed int64
	for _, r := range rows {
		ratio := middle(r.ratio)
		share := ""
		if r.broker > 0 {
			share = fmt.Sprintf(" (broker %.0f)", float64(r.broker.Microseconds())/float64(max(r.ops[ours], 1)))
		}
		fmt.Fprintf(w, "%-28s %-6s %-6s %8.0f %8.0f %6.2f [%.2f, %.2f]  %5s %5s %-6s %.0f/%.0f%s\n",
			r.name, r.metric.ref, r.unit, middle(r.ours), middle(r.ref), ratio, slices.Min(r.ratio), slices.Max(r.ratio),
			bound(r.floor), bound(r.aim), r.verdict(ratio), r.cost(ours), r.cost(r.metric.ref), share)
		if r.errs > 0 {
			fmt.Fprintf(w, "  %d operations failed: %v\n", r.errs, r.err)
		}
		failed += r.errs
	}
	if failed > 0 {
		return fmt.Errorf("%d operations failed", failed)
	}
	return nil
}
