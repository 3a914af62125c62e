package answer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sallyport/audit/index"
)

// Total is what the log tells of one host, rule, run or credential.
type Total struct {
	Key      string    `json:"key"`
	Requests int64     `json:"requests"` // admitted or refused
	Denied   int64     `json:"denied"`   // refusals of requests and names, and what failed after it was admitted; none by habit
	Lookups  int64     `json:"lookups"`  // DNS
	Sent     int64     `json:"sent"`
	Received int64     `json:"received"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
}

// orders are what Top can count by: a column, and what makes a row high.
var orders = map[string]struct{ column, order string }{
	"host":       {"host", "requests"},
	"rule":       {"rule", "requests"},
	"run":        {"run", "requests"},
	"credential": {"credential", "requests"},
	"reason":     {"reason", "requests"},
	"bytes":      {"host", "sent + received"},
	"sent":       {"host", "sent"},
	"denied":     {"host", "denied"},
}

// Orders returns what Top can count by, sorted.
func Orders() []string { return slices.Sorted(maps.Keys(orders)) }

// ErrOrder is wrapped by Top's error when it cannot count by what was asked.
var ErrOrder = errors.New("no such order")

// Top returns the n highest of a kind, and over how many it was taken.
func Top(ctx context.Context, x *index.Index, span Span, by string, n int) (list []Total, of int, err error) {
	o, ok := orders[by]
	if !ok {
		return nil, 0, fmt.Errorf("%w %q: there are %s", ErrOrder, by, strings.Join(Orders(), ", "))
	}
	facts, args := span.facts()
	rows, err := x.DB().QueryContext(ctx, `SELECT *, count(*) OVER () FROM (SELECT `+o.column+` AS key,
		sum(iif(kind IN ('admit', 'refuse'), n, 0)) AS requests, sum(iif(`+isDenied+` AND NOT `+byHabit+`, n, 0)) AS denied,
		sum(iif(kind = 'dns', n, 0)) AS lookups, sum(sent) AS sent, sum(received) AS received, min(first), max(last)
		FROM `+facts+` WHERE `+o.column+` <> '' GROUP BY 1)
		ORDER BY `+o.order+` DESC, key LIMIT ?`, append(args, n)...)
	if err != nil {
		return nil, 0, fmt.Errorf("asking the index: %w", err)
	}
	defer rows.Close() //nolint:errcheck // it was only read
	for rows.Next() {
		var t Total
		var first, last int64
		if err := rows.Scan(&t.Key, &t.Requests, &t.Denied, &t.Lookups, &t.Sent, &t.Received, &first, &last, &of); err != nil {
			return nil, 0, fmt.Errorf("asking the index: %w", err)
		}
		t.First, t.Last = time.Unix(0, first).UTC(), time.Unix(0, last).UTC()
		list = append(list, t)
	}
	return list, of, rows.Err()
}

// First is a host, or a method at a host, that was not seen before.
type First struct {
	Host    string    `json:"host"`
	Method  string    `json:"method,omitempty"` // empty if the host itself is new
	Time    time.Time `json:"time"`
	ID      string    `json:"id"` // of the first record
	Run     string    `json:"run,omitempty"`
	Verdict string    `json:"verdict,omitempty"` // of the first record
	// Admitted and Refused count requests and names together. What was refused after
	// it was admitted, at its address say, was refused. What is asked for by habit counts
	// where nothing else was.
	Admitted int64 `json:"admitted"`
	Refused  int64 `json:"refused"`
}

// New returns the hosts that the span knows and the baseline does not, and the
// methods that are new at a host which the baseline knows, by time.
func New(ctx context.Context, x *index.Index, span, baseline Span) ([]First, error) {
	now, args := span.facts()
	old, oldArgs := baseline.facts()
	rows, err := x.DB().QueryContext(ctx, `
		WITH old AS MATERIALIZED (SELECT DISTINCT host, method FROM `+old+` WHERE host <> ''),
		fresh AS (SELECT host, method, min(iif(kind <> 'done', first, NULL)) AS first, min(iif(kind <> 'done', seq, NULL)) AS seq,
			sum(iif(kind <> 'done', n, 0)) AS n, sum(iif(`+byHabit+`, n, 0)) AS habit, sum(iif(`+isDenied+` AND NOT `+byHabit+`, n, 0)) AS no FROM `+now+`
			WHERE host <> '' AND kind IN ('admit', 'refuse', 'dns', 'done') GROUP BY host, method HAVING seq IS NOT NULL),
		found AS (
			SELECT host, '' AS method, min(first) AS first, min(seq) AS seq, sum(n) AS n, sum(habit) AS habit, sum(no) AS no FROM fresh
				WHERE host NOT IN (SELECT host FROM old) GROUP BY host
			UNION ALL SELECT host, method, first, seq, n, habit, no FROM fresh WHERE method <> ''
				AND host IN (SELECT host FROM old) AND (host, method) NOT IN (SELECT host, method FROM old))
		SELECT f.host, f.method, f.first, r.id, r.run, r.verdict, max(f.n - f.habit - f.no, 0), iif(f.n > f.habit, f.no, f.habit)
			FROM found f JOIN records r ON r.seq = f.seq ORDER BY f.first, f.host, f.method`,
		append(oldArgs, args...)...)
	if err != nil {
		return nil, fmt.Errorf("asking the index: %w", err)
	}
	defer rows.Close() //nolint:errcheck // it was only read
	var out []First
	for rows.Next() {
		var f First
		var at int64
		if err := rows.Scan(&f.Host, &f.Method, &at, &f.ID, &f.Run, &f.Verdict, &f.Admitted, &f.Refused); err != nil {
			return nil, fmt.Errorf("asking the index: %w", err)
		}
		f.Time = time.Unix(0, at).UTC()
		out = append(out, f)
	}
	return out, rows.Err()
}
