package answer

import (
	"database/sql"
	"math"
	"time"
)

// A beacon asks one host at least beats times, at intervals of a second or
// more that differ by no more than a tenth.
const (
	beats     = 8
	regular   = 0.1
	leastBeat = time.Second
)

// rhythm is when a run asked for a host.
type rhythm struct {
	run, host   string
	shapes      string // of its requests, with commas between
	first, last int64
	n           int64
}

// mean is how far the requests are from each other.
func (r *rhythm) mean() float64 { return float64(r.last-r.first) / float64(r.n-1) }

// beacons finds who asks as regularly as a clock. How often and how long each run
// asked each host is counted by the hour, so that the mean interval is known before
// the requests are looked at: of most, a few are enough to see that they differ.
func (h *hunt) beacons() error {
	facts, args := h.span.facts()
	var often []rhythm
	var r rhythm
	err := h.each(`SELECT run, host, sum(n), min(first), max(last), group_concat(shape) FROM `+facts+` WHERE kind IN ('admit', 'refuse') AND host <> ''
		GROUP BY run, host HAVING sum(n) >= ? ORDER BY run, host`, append(args, beats),
		[]any{&r.run, &r.host, &r.n, &r.first, &r.last, &r.shapes}, func() error {
			if r.mean() >= float64(leastBeat) {
				often = append(often, r)
			}
			return nil
		})
	if err != nil {
		return err
	}
	ask, err := h.x.DB().PrepareContext(h.ctx, asking) // once: most are asked once
	if err != nil {
		return err
	}
	defer ask.Close() //nolint:errcheck // it was only read
	for i := range often {
		r := &often[i]
		seqs, ok, err := h.steady(ask, r)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		ids, err := h.ids(seqs)
		if err != nil {
			return err
		}
		h.add(Beacon, r.host, r.run, r.first, ids, "%s asked %s %d times, every %s almost to the second: "+
			"something calls home, or polls.", who(r.run, ""), r.host, r.n, time.Duration(r.mean()).Round(100*time.Millisecond))
	}
	return nil
}

// glance is how many requests are looked at first, and stride how many after that.
const (
	glance = 32
	stride = 4096
)

// steady reports whether requests are as regular as a clock's: the intervals' standard
// deviation is no more than a tenth of their mean. It stops as soon as the squares of
// what differs are more than that. seqs are the numbers of the first records.
func (h *hunt) steady(ask *sql.Stmt, r *rhythm) (seqs []int64, ok bool, err error) {
	most := math.Pow(regular*r.mean(), 2) * float64(r.n-1)
	sum, last := 0.0, int64(-1)
	at, seq := h.span.From.UnixNano(), int64(-1)
	for limit, more := glance, true; more; limit = stride {
		got := 0
		rows, err := ask.QueryContext(h.ctx, r.shapes, at, seq, h.span.Until.UnixNano(), limit)
		if err != nil {
			return nil, false, err
		}
		err = scan(rows, []any{&at, &seq}, func() error {
			if len(seqs) < maxIDs {
				seqs = append(seqs, seq)
			}
			if last >= 0 {
				sum += math.Pow(float64(at-last)-r.mean(), 2)
			}
			last = at
			got++
			return nil
		})
		if err != nil {
			return nil, false, err
		}
		more = got == limit && sum <= most
	}
	return seqs, sum <= most, nil
}

// asking selects requests of some shapes, from one on.
const asking = `SELECT time, seq FROM entries WHERE shape IN (SELECT value FROM json_each('[' || ?1 || ']'))
	AND time >= ?2 AND (time, seq) > (?2, ?3) AND time < ?4 ORDER BY time, seq LIMIT ?5`
