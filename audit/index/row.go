package index

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"sallyport/audit"
)

// column is a field of a record, by its name in the log.
type column struct {
	name, is string
	shared   bool // kept once for all records that are alike in such columns
}

// columns are in the order of row.into.
var columns = []column{
	{"seq", "INTEGER PRIMARY KEY", false},
	{"time", "INTEGER", false}, // nanoseconds since 1970
	{"id", "TEXT", false},
	{"kind", "TEXT", true},
	{"ref", "TEXT", false},
	{"cell", "TEXT", true},
	{"run", "TEXT", true},
	{"policy", "TEXT", true},
	{"verdict", "TEXT", true},
	{"reason", "TEXT", true},
	{"would_deny", "TEXT", true},
	{"rule", "TEXT", true},
	{`"where"`, "TEXT", true},
	{"scope", "TEXT", true},
	{"credential", "TEXT", true},
	{"event", "TEXT", true},
	{"listener", "TEXT", true},
	{"client", "TEXT", false},
	{"question", "TEXT", true},
	{"proto", "TEXT", true},
	{"host", "TEXT", true},
	{"port", "INTEGER", true},
	{"method", "TEXT", true},
	{"path", "TEXT", false},
	{"query_hash", "TEXT", false},
	{"query_values", "TEXT", false},
	{"qtype", "TEXT", true},
	{"answer", "TEXT", false},
	{"addr", "TEXT", false},
	{"status", "INTEGER", false},
	{"sent", "INTEGER", false},
	{"received", "INTEGER", false},
	{"us", "INTEGER", false},
	{"error", "TEXT", false},
	{"cut", "TEXT", false}, // names, with commas between
	{"data", "TEXT", false},
}

// those calls use with the columns that are shared, or that are not.
func those(shared bool, use func(column) string) string {
	var parts []string
	for _, c := range columns {
		if c.shared == shared {
			parts = append(parts, use(c))
		}
	}
	return strings.Join(parts, ", ")
}

func declared(c column) string { return c.name + " " + c.is + " NOT NULL" }
func asked(column) string      { return "?" }

// names lists all columns, each with something before it.
func names(prefix string) string {
	var parts []string
	for _, c := range columns {
		parts = append(parts, prefix+c.name)
	}
	return strings.Join(parts, ", ")
}

// row is a record as the table holds it.
type row struct {
	audit.Record
	ns        int64
	cut, data string
}

func (r *row) into() []any {
	return []any{
		&r.Seq, &r.ns, &r.ID, (*string)(&r.Kind), &r.Ref, &r.Cell, &r.Run, &r.Policy,
		&r.Verdict, &r.Reason, &r.WouldDeny, &r.Rule, &r.Where, &r.Scope,
		&r.Credential, &r.Event, &r.Listener, &r.Client, &r.Question, &r.Proto,
		&r.Host, &r.Port, &r.Method, &r.Path, &r.Query, &r.Values,
		&r.QType, &r.Answer, &r.Addr, &r.Status, &r.Sent,
		&r.Received, &r.Micros, &r.Error, &r.cut, &r.data,
	}
}

// shape is what a record has in common with others: its shared columns.
type shape struct {
	kind, cell, run, policy, verdict, reason, wouldDeny, rule, where, scope, credential, event, listener, question, proto, host string
	port                                                                                                                        uint16
	method, qtype                                                                                                               string
}

func shapeOf(r *audit.Record) shape {
	return shape{
		string(r.Kind), r.Cell, r.Run, r.Policy, r.Verdict, r.Reason, r.WouldDeny, r.Rule, r.Where, r.Scope, r.Credential, r.Event,
		r.Listener, r.Question, r.Proto, r.Host, r.Port, r.Method, r.QType,
	}
}

// values are those of the shared columns, in their order.
func (s *shape) values() []any {
	return []any{
		s.kind, s.cell, s.run, s.policy, s.verdict, s.reason, s.wouldDeny, s.rule, s.where, s.scope, s.credential, s.event,
		s.listener, s.question, s.proto, s.host, int64(s.port), s.method, s.qtype,
	}
}

// clone is s without the lines that its texts are parts of.
func (s shape) clone() shape {
	for _, t := range []*string{
		&s.kind, &s.cell, &s.run, &s.policy, &s.verdict, &s.reason, &s.wouldDeny, &s.rule, &s.where, &s.scope, &s.credential, &s.event,
		&s.listener, &s.question, &s.proto, &s.host, &s.method, &s.qtype,
	} {
		*t = strings.Clone(*t)
	}
	return s
}

// appendEntry appends the number of a record's shape and the values of the
// columns that are not shared, in their order.
func appendEntry(dst []any, shape int64, r *audit.Record) []any {
	return append(
		dst, shape, int64(r.Seq), nanos(r.Time), r.ID, text(r.Ref), text(r.Client), text(r.Path), text(r.Query), text(r.Values), text(r.Answer), text(r.Addr),
		int64(r.Status), r.Sent, r.Received, r.Micros, text(r.Error), text(strings.Join(r.Cut, ",")), text(string(r.Data)),
	)
}

// text is nil for no text, which the insertion turns into "": binding an empty
// text costs as much as another.
func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// record is the row as the log tells it.
func (r *row) record() audit.Record {
	rec := r.Record
	rec.Schema, rec.Time = audit.Schema, time.Unix(0, r.ns).UTC()
	if r.cut != "" {
		rec.Cut = strings.Split(r.cut, ",")
	}
	if r.data != "" {
		rec.Data = json.RawMessage(r.data)
	}
	return rec
}

// nanos is a time as the table holds it; what an int64 cannot is its nearest.
func nanos(t time.Time) int64 {
	switch y := t.Year(); {
	case y < 1678:
		return time.Date(1678, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
	case y > 2261:
		return time.Date(2261, 12, 31, 0, 0, 0, 0, time.UTC).UnixNano()
	}
	return t.UnixNano()
}

// Records returns the records r for which the rest of a SELECT holds, such as
// "WHERE r.run = ? ORDER BY r.seq".
func (x *Index) Records(ctx context.Context, rest string, args ...any) iter.Seq2[audit.Record, error] {
	return func(yield func(audit.Record, error) bool) {
		rows, err := x.db.QueryContext(ctx, "SELECT "+names("r.")+" FROM records r "+rest, args...) //nolint:gosec // rest is our own text; values are args
		if err != nil {
			yield(audit.Record{}, fmt.Errorf("asking the index: %w", err))
			return
		}
		defer rows.Close() //nolint:errcheck // it was only read
		var r row
		into := r.into()
		for rows.Next() {
			if err := rows.Scan(into...); err != nil {
				yield(audit.Record{}, fmt.Errorf("asking the index: %w", err))
				return
			}
			if !yield(r.record(), nil) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(audit.Record{}, fmt.Errorf("asking the index: %w", err))
		}
	}
}

// ErrNone means that the log holds nothing of the kind.
var ErrNone = errors.New("no such record")

// One returns the first of [Index.Records]; [ErrNone] if there is none.
func (x *Index) One(ctx context.Context, rest string, args ...any) (audit.Record, error) {
	for r, err := range x.Records(ctx, rest+" LIMIT 1", args...) {
		return r, err
	}
	return audit.Record{}, ErrNone
}
