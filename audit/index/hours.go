package index

import "context"

const nanosPerHour = 3600 * 1_000_000_000

// hourKey is what records are counted by.
type hourKey struct{ hour, shape int64 }

type count struct {
	n, sent, received, first, last, seq int64
}

// HourOf returns the hour of a time in nanoseconds.
func HourOf(at int64) int64 {
	hour := at / nanosPerHour
	if at%nanosPerHour < 0 {
		hour--
	}
	return hour
}

func (w *writer) storeCounts(ctx context.Context) error {
	for k, c := range w.counts {
		if _, err := w.addCount.ExecContext(ctx, k.hour, k.shape, c.n, c.sent, c.received, c.first, c.last, c.seq); err != nil {
			return err
		}
	}
	clear(w.counts)
	return nil
}

const addCount = `INSERT INTO counts VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET n = n + excluded.n, sent = sent + excluded.sent, received = received + excluded.received,
	first = min(first, excluded.first), last = max(last, excluded.last), seq = min(seq, excluded.seq)`

// Facts is a table expression, with its arguments, of the records from a time
// up to another, both in nanoseconds, as rows of hours with their shape: whole hours are taken
// from there, what is left of the first and the last out of the records.
func Facts(from, until int64) (expr string, args []any) {
	// hours [lo, hi) lie wholly within.
	lo, hi := HourOf(from+nanosPerHour-1), HourOf(until)
	const (
		counted = `SELECT hour, counts.shape, kind, run, host, method, rule, credential, verdict, reason, qtype, n, sent, received, first, last, seq
	FROM counts CROSS JOIN shapes ON shapes.shape = counts.shape WHERE hour >= ? AND hour < ?`
		single = `SELECT time / 3600000000000 AS hour, entries.shape, kind, run, host, method, rule, credential, verdict, reason, qtype,
	1 AS n, sent, received, time AS first, time AS last, seq
	FROM entries CROSS JOIN shapes ON shapes.shape = entries.shape WHERE time >= ? AND time < ?`
	)
	if lo >= hi {
		return "(" + single + ")", []any{from, until}
	}
	return "(" + counted + " UNION ALL " + single + " UNION ALL " + single + ")",
		[]any{lo, hi, from, lo * nanosPerHour, hi * nanosPerHour, until}
}
