package index

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"sallyport/audit"
	"sallyport/audit/query"
)

// Progress says how far an update is.
type Progress struct {
	Records     int64 // that were added by now
	Done, Total int64 // octets of segments
}

// Result is what an update did.
type Result struct {
	Added int64 `json:"added"` // records
	Bad   int64 `json:"bad"`   // lines in the whole log that are no record
	Anew  bool  `json:"anew"`  // what was there before was of another log, or more than the log now holds
}

// state is what was read of a segment.
type state struct {
	first, bytes, lines, bad int64
	head, tail               []byte
	size                     int64
}

// batchSize is how many records a transaction holds.
const batchSize = 20_000

// Update brings the index up to what the log holds now, and calls progress, if
// it is not nil, after every batch. If it is stopped, what was read stays. When
// the log has lost records (by retention), the index is made anew.
func (x *Index) Update(ctx context.Context, progress func(Progress)) (Result, error) {
	var out Result
	segs, err := query.Segments(x.dir)
	if err != nil {
		return out, err
	}
	known, err := x.states(ctx)
	switch {
	case damaged(err):
		out.Anew = true
	case err != nil:
		return out, fmt.Errorf("reading the index: %w", err)
	default:
		same, err := continues(segs, known)
		if err != nil {
			return out, err
		}
		out.Anew = !same
	}
	if out.Anew {
		known = nil
		if err := x.anew(ctx); err != nil {
			return out, fmt.Errorf("making the index anew: %w", err)
		}
	}
	u := &updater{x: x, progress: progress}
	for _, s := range segs {
		u.at.Total += s.Size
	}
	if err := u.all(ctx, segs, known); err != nil {
		return out, fmt.Errorf("bringing the index up to date: %w", err)
	}
	out.Added = u.at.Records
	err = x.db.QueryRowContext(ctx, "SELECT ifnull(sum(bad), 0) FROM segments").Scan(&out.Bad)
	return out, err
}

func (x *Index) states(ctx context.Context) ([]state, error) {
	rows, err := x.db.QueryContext(ctx, "SELECT first, bytes, lines, bad, head, tail, size FROM segments ORDER BY first")
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // it was only read
	var out []state
	for rows.Next() {
		var s state
		if err := rows.Scan(&s.first, &s.bytes, &s.lines, &s.bad, &s.head, &s.tail, &s.size); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, rows.Err()
}

// continues reports whether the segments are those that were read, or go on
// from them.
func continues(segs []query.Segment, known []state) (bool, error) {
	if len(segs) < len(known) {
		return false, nil
	}
	for i, k := range known {
		if segs[i].First != k.first {
			return false, nil
		}
		if len(k.head) == 0 {
			continue // nothing of it was read
		}
		if same, err := sameLine(segs[i], 0, k.head); err != nil || !same {
			return false, err
		}
		if last := i == len(known)-1; last {
			if same, err := sameLine(segs[i], k.bytes-k.size, k.tail); err != nil || !same {
				return false, err
			}
		}
	}
	return true, nil
}

// sameLine reports whether the line at an offset has a hash.
func sameLine(s query.Segment, at int64, sum []byte) (bool, error) {
	f, err := openAt(s, at)
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	line, err := bufio.NewReader(io.LimitReader(f, 2*audit.MaxLine)).ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("reading %s: %w", s.Path, err)
	}
	have := sha256.Sum256(line)
	return bytes.Equal(have[:], sum), nil
}

// openAt opens the lines of a segment at an offset.
func openAt(s query.Segment, at int64) (io.ReadCloser, error) {
	f, err := s.Open()
	if err != nil {
		return nil, err
	}
	if plain, ok := f.(*os.File); ok {
		_, err = plain.Seek(at, io.SeekStart)
	} else {
		_, err = io.CopyN(io.Discard, f, at)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// updater reads segments into the tables.
type updater struct {
	x        *Index
	progress func(Progress)
	at       Progress

	tx     *sql.Tx
	many   *sql.Stmt // inserts rows records
	args   []any
	held   int // records in args
	inTx   int
	counts map[hourKey]*count
}

func (u *updater) all(ctx context.Context, segs []query.Segment, known []state) error {
	for i, s := range segs {
		st := state{first: s.First}
		if i < len(known) {
			st = known[i]
		}
		if i < len(known)-1 || s.Size == 0 {
			u.at.Done += s.Size // finished before
			continue
		}
		if err := u.segment(ctx, s, &st); err != nil {
			return errors.Join(err, u.rollback())
		}
	}
	return nil
}

func (u *updater) segment(ctx context.Context, s query.Segment, st *state) error {
	f, err := openAt(s, st.bytes)
	if err != nil {
		return err
	}
	defer f.Close()
	base := u.at.Done
	in := bufio.NewReaderSize(f, 2*audit.MaxLine)
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			break // a line that is not finished is left for the next time
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("reading %s: %w", s.Path, err)
		}
		if err := u.line(ctx, line, st); err != nil {
			return err
		}
		if u.inTx >= batchSize {
			if !s.Packed {
				u.at.Done = base + st.bytes
			}
			if err := u.commit(ctx, st); err != nil {
				return err
			}
		}
	}
	u.at.Done = base + s.Size
	return u.commit(ctx, st)
}

// line adds one line, or a piece of one that is too long to be a record.
func (u *updater) line(ctx context.Context, line []byte, st *state) error {
	sum := sha256.Sum256(line)
	if st.bytes == 0 {
		st.head = sum[:]
	}
	st.tail, st.size = sum[:], int64(len(line))
	st.bytes += int64(len(line))
	st.lines++
	var r audit.Record
	if err := json.Unmarshal(line, &r); err != nil || r.Kind == "" {
		st.bad++
		u.inTx++
		return nil
	}
	return u.add(ctx, &r)
}

// rows is how many records one statement inserts.
const rows = 50

func (u *updater) add(ctx context.Context, r *audit.Record) error {
	if err := u.begin(ctx); err != nil {
		return err
	}
	u.args = appendValues(u.args, r)
	u.count(r)
	u.held++
	u.inTx++
	u.at.Records++
	if u.held < rows {
		return nil
	}
	_, err := u.many.ExecContext(ctx, u.args...)
	u.args, u.held = u.args[:0], 0
	return err
}

func (u *updater) begin(ctx context.Context) (err error) {
	if u.tx != nil {
		return nil
	}
	if u.tx, err = u.x.db.BeginTx(ctx, nil); err != nil {
		return err
	}
	u.many, err = u.tx.PrepareContext(ctx, insert(rows))
	u.counts = map[hourKey]*count{}
	return err
}

// insert adds n records; one whose number is there already is left out.
func insert(n int) string {
	one := "(" + strings.Repeat("?, ", len(columns)-1) + "?)"
	return "INSERT OR IGNORE INTO records VALUES " + strings.Repeat(one+", ", n-1) + one
}

// commit ends the transaction with what was read of a segment.
func (u *updater) commit(ctx context.Context, st *state) error {
	if u.inTx == 0 {
		return nil
	}
	if err := u.begin(ctx); err != nil {
		return err
	}
	if u.held > 0 {
		if _, err := u.tx.ExecContext(ctx, insert(u.held), u.args...); err != nil {
			return err
		}
	}
	if err := u.storeCounts(ctx); err != nil {
		return err
	}
	_, err := u.tx.ExecContext(ctx, "INSERT OR REPLACE INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)",
		st.first, st.bytes, st.lines, st.bad, st.head, st.tail, st.size)
	if err != nil {
		return err
	}
	if err := u.tx.Commit(); err != nil {
		return err
	}
	u.tx, u.many, u.counts, u.args, u.held, u.inTx = nil, nil, nil, u.args[:0], 0, 0
	if u.progress != nil {
		u.progress(u.at)
	}
	return nil
}

func (u *updater) rollback() error {
	if u.tx == nil {
		return nil
	}
	if err := u.tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}
