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

// columns of records, by their names in the log, in the order of row.into and row.values.
var columns = []struct{ name, is string }{
	{"seq", "INTEGER PRIMARY KEY"},
	{"time", "INTEGER"}, // nanoseconds since 1970
	{"id", "TEXT"},
	{"kind", "TEXT"},
	{"ref", "TEXT"},
	{"cell", "TEXT"},
	{"run", "TEXT"},
	{"policy", "TEXT"},
	{"verdict", "TEXT"},
	{"reason", "TEXT"},
	{"rule", "TEXT"},
	{`"where"`, "TEXT"},
	{"scope", "TEXT"},
	{"credential", "TEXT"},
	{"listener", "TEXT"},
	{"client", "TEXT"},
	{"question", "TEXT"},
	{"proto", "TEXT"},
	{"host", "TEXT"},
	{"port", "INTEGER"},
	{"method", "TEXT"},
	{"path", "TEXT"},
	{"query_hash", "TEXT"},
	{"qtype", "TEXT"},
	{"answer", "TEXT"},
	{"addr", "TEXT"},
	{"status", "INTEGER"},
	{"sent", "INTEGER"},
	{"received", "INTEGER"},
	{"us", "INTEGER"},
	{"error", "TEXT"},
	{"cut", "TEXT"}, // names, with commas between
	{"data", "TEXT"},
}

func declarations() string {
	var parts []string
	for _, c := range columns {
		parts = append(parts, c.name+" "+c.is+" NOT NULL")
	}
	return strings.Join(parts, ", ")
}

// names lists the columns of a table that goes by the name of table.
func names(table string) string {
	var parts []string
	for _, c := range columns {
		parts = append(parts, table+"."+c.name)
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
		&r.Verdict, &r.Reason, &r.Rule, &r.Where, &r.Scope,
		&r.Credential, &r.Listener, &r.Client, &r.Question, &r.Proto,
		&r.Host, &r.Port, &r.Method, &r.Path, &r.Query,
		&r.QType, &r.Answer, &r.Addr, &r.Status, &r.Sent,
		&r.Received, &r.Micros, &r.Error, &r.cut, &r.data,
	}
}

func appendValues(dst []any, r *audit.Record) []any {
	return append(
		dst, int64(r.Seq), nanos(r.Time), r.ID, string(r.Kind), r.Ref, r.Cell, r.Run, r.Policy,
		r.Verdict, r.Reason, r.Rule, r.Where, r.Scope,
		r.Credential, r.Listener, r.Client, r.Question, r.Proto,
		r.Host, int64(r.Port), r.Method, r.Path, r.Query,
		r.QType, r.Answer, r.Addr, int64(r.Status), r.Sent,
		r.Received, r.Micros, r.Error, strings.Join(r.Cut, ","), string(r.Data),
	)
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
		rows, err := x.db.QueryContext(ctx, "SELECT "+names("r")+" FROM records r "+rest, args...) //nolint:gosec // rest is our own text; values are args
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
