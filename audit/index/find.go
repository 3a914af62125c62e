package index

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"iter"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"sallyport/audit"
	"sallyport/audit/query"
)

// Records returns what [query.RecordsUntil] does. Where there is an index of the log
// at cfg.Path, it is asked for the records that it holds, if few of them match: none is
// made for that, or brought up to date, and nobody waited for. What it does not hold, or
// does not tell as the files do, is read out of them.
func Records(ctx context.Context, cfg Config, f query.Filter) iter.Seq2[audit.Record, error] {
	return func(yield func(audit.Record, error) bool) {
		next, goOn := found(ctx, cfg, f, share, yield)
		if !goOn {
			return
		}
		for r, err := range query.RecordsFrom(ctx, cfg.Dir, f, next, cfg.Tell) {
			if !yield(r, err) {
				return
			}
		}
	}
}

// share is how many times more records must be in the time that is asked for than
// match: to read a line costs less than to fetch a row.
const share = 32

// found yields what the index has, and returns from which record on the files are
// to be read. An index that fails has had its say: what follows is in the files.
func found(ctx context.Context, cfg Config, f query.Filter, share int64, yield func(audit.Record, error) bool) (next uint64, goOn bool) {
	x, err := look(ctx, cfg)
	if err != nil {
		return 0, true
	}
	defer x.Close() //nolint:errcheck // it was only read
	seqs, end, err := x.numbers(ctx, f, share)
	if err != nil {
		return 0, true
	}
	for part := range slices.Chunk(seqs, 500) {
		var recs []audit.Record // all at once: whoever prints them may wait, and an update must not
		for r, err := range x.Records(ctx, "WHERE r.seq IN ("+join(part)+") ORDER BY r.seq") {
			if err != nil {
				return next, true
			}
			recs = append(recs, r)
		}
		for _, r := range recs {
			if f.Match(&r) && !yield(r, nil) {
				return 0, false
			}
			next = r.Seq + 1
		}
	}
	return uint64(end), true
}

func join(seqs []int64) string {
	var b []byte
	for i, s := range seqs {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, s, 10)
	}
	return string(b)
}

// look opens an index to read what it holds.
func look(ctx context.Context, cfg Config) (*Index, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if cfg.Own {
		if err := private(filepath.Dir(cfg.Path)); err != nil {
			return nil, err
		}
	}
	db, err := sql.Open("sqlite", dsn(cfg.Path, "ro", "query_only(1)", "busy_timeout(1000)", "cache_size(-65536)"))
	if err != nil {
		return nil, err
	}
	x := &Index{dir: dir, path: cfg.Path, db: db}
	if ok, err := x.fits(ctx); err != nil || !ok {
		return nil, errors.Join(errUseless, err, x.Close())
	}
	return x, nil
}

// errUseless means that to read the files is better.
var errUseless = errors.New("not to be answered out of the index")

// numbers returns the numbers of the records before end that f may match. They are
// no more than one in share of those of its time.
func (x *Index) numbers(ctx context.Context, f query.Filter, share int64) (seqs []int64, end int64, err error) {
	w := wantedBy(f)
	known, segs, err := x.reliable(ctx)
	if err != nil || w == nil {
		return nil, 0, cmp.Or(err, errUseless)
	}
	of, alike, err := x.extent(ctx, w)
	limit := of / share
	if err != nil || len(w.own.terms) == 0 && alike > limit {
		return nil, 0, cmp.Or(err, errUseless)
	}
	if err := unchanged(segs, known); err != nil {
		return nil, 0, err
	}
	last := known[len(known)-1]
	end = last.first + last.lines
	if alike > 0 {
		seqs, err = x.matching(ctx, w, alike <= limit, limit+1)
	}
	if err != nil || int64(len(seqs)) > limit {
		return nil, 0, cmp.Or(err, errUseless)
	}
	slices.Sort(seqs)
	// What was added meanwhile, and what is gone from the log, is not of the files as they were looked at.
	return slices.DeleteFunc(seqs, func(s int64) bool { return s < segs[0].First || s >= end }), end, nil
}

// reliable returns the log's segments and what was read of them, if the index tells
// all of that as the files do.
func (x *Index) reliable(ctx context.Context) ([]state, []query.Segment, error) {
	known, err := x.states(ctx)
	if err != nil {
		return nil, nil, err
	}
	segs, err := query.Segments(x.dir)
	if err != nil {
		return nil, nil, err
	}
	known = slices.DeleteFunc(known, func(k state) bool { return k.first < segs[0].First })
	for i, k := range known {
		follows := i == 0 || k.first == known[i-1].first+known[i-1].lines
		if k.bad > 0 || k.odd > 0 || k.rest != "" || !follows {
			return nil, nil, errUseless
		}
	}
	if len(known) == 0 {
		return nil, nil, errUseless
	}
	return known, segs, nil
}

// unchanged checks that the segments are those that were read, or go on from them. One has
// been written to, and one been packed: if more are others than they were, to
// compare them would take as long as to search them.
func unchanged(segs []query.Segment, known []state) error {
	again, ok := changed(segs, known)
	if !ok || len(again) > 2 {
		return errUseless
	}
	for _, i := range again {
		if same, err := sameLines(segs[i], known[i]); err != nil || !same {
			return cmp.Or(err, errUseless)
		}
	}
	return nil
}

// wanted is a filter in SQLite's language.
type wanted struct {
	from, until int64  // nanoseconds, both included
	always      bool   // neither is given
	shared, own clause // of columns that are shared, and of others
}

// clause is a row of terms that must all hold.
type clause struct {
	terms []string
	args  []any
}

func (c *clause) add(term string, args []any) {
	c.terms, c.args = append(c.terms, term), append(c.args, args...)
}

// String is the condition. That of no terms is true.
func (c *clause) String() string {
	if len(c.terms) == 0 {
		return "true"
	}
	return strings.Join(c.terms, " AND ")
}

// shapes is the condition that a shape is one for which c holds.
func (c *clause) shapes() string {
	if len(c.terms) == 0 {
		return "true"
	}
	return "shape IN (SELECT shape FROM shapes WHERE " + c.String() + ")"
}

// wantedBy translates f, nil if it asks for what no text of the index can be compared with.
func wantedBy(f query.Filter) *wanted {
	w := &wanted{from: math.MinInt64, until: math.MaxInt64, always: f.Since.IsZero() && f.Until.IsZero()}
	if !f.Since.IsZero() {
		w.from = nanos(f.Since)
	}
	if !f.Until.IsZero() {
		w.until = nanos(f.Until)
	}
	if !w.add(f.Terms()) {
		return nil
	}
	return w
}

// add translates terms; it is false if one cannot be.
func (w *wanted) add(terms []query.Term) bool {
	for _, t := range terms {
		i := slices.IndexFunc(columns, func(c column) bool { return strings.Trim(c.name, `"`) == t.Field })
		switch {
		case slices.ContainsFunc(t.Values, func(v string) bool { return !utf8.ValidString(v) }):
			return false
		case t.Op == "word":
			w.own.add(word(t.Values))
		case t.Op == "any":
			term, args, ok := anyOf(t.Of)
			if !ok {
				return false
			}
			w.shared.add(term, args)
		case i < 0:
			return false
		case columns[i].shared:
			w.shared.add(compare(columns[i], t.Op, t.Values))
		default:
			w.own.add(compare(columns[i], t.Op, t.Values))
		}
	}
	return true
}

// anyOf is the condition that one of the filters matches; ok is false if one asks for
// more than what is shared.
func anyOf(of []query.Filter) (term string, args []any, ok bool) {
	var parts []string
	for _, f := range of {
		var one wanted
		if !one.add(f.Terms()) || len(one.own.terms) > 0 {
			return "", nil, false
		}
		parts, args = append(parts, "("+one.shared.String()+")"), append(args, one.shared.args...)
	}
	return "(" + strings.Join(parts, " OR ") + ")", args, len(parts) > 0
}

// compare is the condition that a term holds for a column.
func compare(c column, op string, values []string) (string, []any) {
	var parts []string
	var args []any
	op, not := strings.CutPrefix(op, "!")
	for _, v := range values {
		switch {
		case op == "~":
			parts, args = append(parts, "instr(lower("+c.name+"), lower(?)) > 0"), append(args, v)
		case strings.HasPrefix(c.is, "INTEGER"):
			parts = append(parts, c.name+" "+op+" "+v)
		case v == "":
			parts = append(parts, c.name+" = ''")
		default: // the second part is what some indexes are of
			parts, args = append(parts, c.name+" = ? AND "+c.name+" <> ''"), append(args, v)
		}
	}
	term := "(" + strings.Join(parts, " OR ") + ")"
	if not {
		term = "NOT " + term
	}
	return term, args
}

// word is the condition that one of the values is a part of what words are looked for in.
func word(values []string) (string, []any) {
	var all [2]clause
	for _, c := range columns {
		switch c.name {
		case "path", "error":
			term, args := compare(c, "~", values)
			all[0].add("("+c.name+" <> '' AND "+term+")", args)
		case "host", "rule", "reason":
			all[1].add(compare(c, "~", values))
		}
	}
	return "(" + strings.Join(all[0].terms, " OR ") + " OR shape IN (SELECT shape FROM shapes WHERE " + strings.Join(all[1].terms, " OR ") + "))",
		append(all[0].args, all[1].args...)
}

// extent counts the records of the hours that are asked for, and those of
// them whose shapes match.
func (x *Index) extent(ctx context.Context, w *wanted) (of, alike int64, err error) {
	err = x.db.QueryRowContext(ctx, "SELECT ifnull(sum(n), 0), ifnull(sum(iif("+w.shared.shapes()+", n, 0)), 0) FROM counts WHERE hour BETWEEN ? AND ?",
		append(slices.Clone(w.shared.args), HourOf(w.from), HourOf(w.until))...).Scan(&of, &alike)
	return of, alike, err
}

// matching returns the numbers of the records that may match. If few have a shape that does, they
// are found by that.
func (x *Index) matching(ctx context.Context, w *wanted, few bool, limit int64) (seqs []int64, err error) {
	question := "SELECT seq FROM entries WHERE " + w.own.String()
	args := slices.Clone(w.own.args)
	few = few && len(w.shared.terms) > 0
	if few {
		question = "SELECT seq FROM entries INDEXED BY entries_shape WHERE " + w.own.String() + " AND " + w.shared.shapes()
	} else {
		question += " AND +" + w.shared.shapes()
	}
	args = append(args, w.shared.args...)
	if few || !w.always {
		question += " AND time BETWEEN ? AND ?"
		args = append(args, w.from, w.until)
	}
	rows, err := x.db.QueryContext(ctx, question+" LIMIT ?", append(args, limit)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // it was only read
	for rows.Next() {
		var s int64
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		seqs = append(seqs, s)
	}
	return seqs, rows.Err()
}
