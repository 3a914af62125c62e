package index

import (
	"context"

	"sallyport/audit"
)

const nanosPerHour = 3600 * 1_000_000_000

// hourKey is what records are counted by.
type hourKey struct {
	hour                                                       int64
	kind, run, host, method, rule, credential, verdict, reason string
}

type count struct {
	n, sent, received, first, last, seq int64
}

func (u *updater) count(r *audit.Record) {
	at := nanos(r.Time)
	k := hourKey{HourOf(at), string(r.Kind), r.Run, r.Host, r.Method, r.Rule, r.Credential, r.Verdict, r.Reason}
	c := u.counts[k]
	if c == nil {
		c = &count{first: at, last: at, seq: int64(r.Seq)}
		u.counts[k] = c
	}
	c.n++
	c.sent += r.Sent
	c.received += r.Received
	c.first, c.last = min(c.first, at), max(c.last, at)
}

// HourOf returns the hour of a time in nanoseconds.
func HourOf(at int64) int64 {
	hour := at / nanosPerHour
	if at%nanosPerHour < 0 {
		hour--
	}
	return hour
}

func (u *updater) storeCounts(ctx context.Context) error {
	st, err := u.tx.PrepareContext(ctx, `INSERT INTO hours VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET n = n + excluded.n, sent = sent + excluded.sent, received = received + excluded.received,
	first = min(first, excluded.first), last = max(last, excluded.last), seq = min(seq, excluded.seq)`)
	if err != nil {
		return err
	}
	defer st.Close() //nolint:errcheck // the transaction tells
	for k, c := range u.counts {
		_, err := st.ExecContext(ctx, k.hour, k.kind, k.run, k.host, k.method, k.rule, k.credential, k.verdict, k.reason,
			c.n, c.sent, c.received, c.first, c.last, c.seq)
		if err != nil {
			return err
		}
	}
	return nil
}

// Facts is a table expression, with its arguments, of the records from a time
// up to another, both in nanoseconds, as rows of hours: whole hours are taken
// from there, what is left of the first and the last out of the records.
func Facts(from, until int64) (expr string, args []any) {
	// hours [lo, hi) lie wholly within.
	lo, hi := HourOf(from+nanosPerHour-1), HourOf(until)
	const single = `SELECT time / 3600000000000 AS hour, kind, run, host, method, rule, credential, verdict, reason,
	1 AS n, sent, received, time AS first, time AS last, seq FROM records WHERE time >= ? AND time < ?`
	if lo >= hi {
		return "(" + single + ")", []any{from, until}
	}
	return "(SELECT * FROM hours WHERE hour >= ? AND hour < ? UNION ALL " + single + " UNION ALL " + single + ")",
		[]any{lo, hi, from, lo * nanosPerHour, hi * nanosPerHour, until}
}
