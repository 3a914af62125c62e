package index

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"sallyport/audit"
)

// writer puts parts into the tables, each in a transaction.
type writer struct {
	conn *sql.Conn
	stmts
	segments, bytes int64 // that the table of segments holds
	states          map[int64]int64

	shapes map[shape]int64
	counts map[hourKey]*count
	args   []any
}

// stmts are prepared once for all parts.
type stmts struct {
	many, one, findShape, addShape, addCount, putState, sum *sql.Stmt
}

// perStatement is how many records one statement inserts.
const perStatement = 64

// maxShapes bounds how many shapes are remembered.
const maxShapes = 1 << 16

// insert adds n records; one whose number is there already is left out.
func insert(n int) string {
	row := "(?, ?, ?, ?" + strings.Repeat(", ifnull(?, '')", 7) + strings.Repeat(", ?", 4) + strings.Repeat(", ifnull(?, '')", 3) + ")"
	return "INSERT OR IGNORE INTO entries VALUES " + row + strings.Repeat(", "+row, n-1)
}

func (x *Index) writer(ctx context.Context, known []state) (*writer, error) {
	conn, err := x.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	w := &writer{conn: conn, states: map[int64]int64{}, shapes: map[shape]int64{}, counts: map[hourKey]*count{}}
	for _, k := range known {
		w.segments++
		w.bytes += k.bytes
		w.states[k.first] = k.bytes
	}
	for _, s := range []struct {
		into **sql.Stmt
		text string
	}{
		{&w.many, insert(perStatement)},
		{&w.one, insert(1)},
		{&w.findShape, "SELECT shape FROM shapes WHERE sum = ?"},
		{&w.addShape, "INSERT INTO shapes VALUES (NULL, ?, " + those(true, asked) + ")"},
		{&w.addCount, addCount},
		{&w.putState, "INSERT OR REPLACE INTO segments VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"},
		{&w.sum, "SELECT count(*), ifnull(sum(bytes), 0) FROM segments"},
	} {
		if *s.into, err = conn.PrepareContext(ctx, s.text); err != nil {
			w.close()
			return nil, err
		}
	}
	return w, nil
}

// close gives the connection back; statements end with it.
func (w *writer) close() {
	for _, s := range []*sql.Stmt{w.many, w.one, w.findShape, w.addShape, w.addCount, w.putState, w.sum} {
		if s != nil {
			_ = s.Close() // nothing was left undone
		}
	}
	_ = w.conn.Close() // gives it back to the pool
}

// store adds one part, or nothing of it.
func (w *writer) store(ctx context.Context, p part) error {
	if _, err := w.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err := w.fill(ctx, p)
	if err == nil {
		_, err = w.conn.ExecContext(ctx, "COMMIT")
	}
	if err != nil {
		_, undo := w.conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
		return errors.Join(err, undo)
	}
	return nil
}

func (w *writer) fill(ctx context.Context, p part) error {
	var segments, bytes int64
	if err := w.sum.QueryRowContext(ctx).Scan(&segments, &bytes); err != nil {
		return err
	}
	if segments != w.segments || bytes != w.bytes {
		return errOvertaken
	}
	for recs := p.records; len(recs) > 0; {
		n, st := perStatement, w.many
		if len(recs) < n {
			n, st = 1, w.one
		}
		if err := w.insert(ctx, st, recs[:n]); err != nil {
			return err
		}
		recs = recs[n:]
	}
	if err := w.storeCounts(ctx); err != nil {
		return err
	}
	s := &p.state
	numbers, err := json.Marshal(s.numbers)
	if err != nil {
		return err
	}
	if _, err := w.putState.ExecContext(ctx, s.first, s.bytes, s.lines, s.bad, s.odd, s.hash, s.rest, s.later.Seq, s.later.Schema, string(numbers), s.file); err != nil {
		return err
	}
	before, there := w.states[s.first]
	if !there {
		w.segments++
	}
	w.bytes += s.bytes - before
	w.states[s.first] = s.bytes
	return nil
}

func (w *writer) insert(ctx context.Context, st *sql.Stmt, recs []audit.Record) error {
	w.args = w.args[:0]
	for i := range recs {
		n, err := w.shape(ctx, shapeOf(&recs[i]))
		if err != nil {
			return err
		}
		w.args = appendEntry(w.args, n, &recs[i])
		w.count(n, &recs[i])
	}
	_, err := st.ExecContext(ctx, w.args...)
	return err
}

// shape returns the number of a shape, which it adds if it is new.
func (w *writer) shape(ctx context.Context, s shape) (int64, error) {
	if n, ok := w.shapes[s]; ok {
		return n, nil
	}
	values := s.values()
	h := sha256.New()
	for _, v := range values {
		text := fmt.Sprint(v)
		fmt.Fprintf(h, "%d:%s", len(text), text)
	}
	sum := h.Sum(nil)
	var n int64
	err := w.findShape.QueryRowContext(ctx, sum).Scan(&n)
	if errors.Is(err, sql.ErrNoRows) {
		var res sql.Result
		if res, err = w.addShape.ExecContext(ctx, append([]any{sum}, values...)...); err == nil {
			n, err = res.LastInsertId()
		}
	}
	if err != nil {
		return 0, err
	}
	if len(w.shapes) >= maxShapes {
		clear(w.shapes)
	}
	w.shapes[s.clone()] = n
	return n, nil
}

func (w *writer) count(shape int64, r *audit.Record) {
	at := nanos(r.Time)
	k := hourKey{HourOf(at), shape}
	c := w.counts[k]
	if c == nil {
		c = &count{first: at, last: at, seq: int64(r.Seq)}
		w.counts[k] = c
	}
	c.n++
	c.sent += r.Sent
	c.received += r.Received
	c.first, c.last = min(c.first, at), max(c.last, at)
}
