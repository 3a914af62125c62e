package index

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"sallyport/audit"
	"sallyport/audit/query"
)

// state is what was read of a segment.
type state struct {
	first, bytes, lines, bad, odd int64
	hash                          []byte // of all that was read, as a state of SHA-256 to go on from
	rest                          string // why what follows cannot be read, of a packed file that is damaged
	later                         Later  // the first of a later schema
	numbers                       query.Numbers
	file                          string // which file it was, and how it stood before it was read
}

func (x *Index) states(ctx context.Context) ([]state, error) {
	rows, err := x.db.QueryContext(ctx, "SELECT first, bytes, lines, bad, odd, hash, rest, later, schema, numbers, file FROM segments ORDER BY first")
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // it was only read
	var out []state
	for rows.Next() {
		var s state
		var numbers []byte
		if err := rows.Scan(&s.first, &s.bytes, &s.lines, &s.bad, &s.odd, &s.hash, &s.rest, &s.later.Seq, &s.later.Schema, &numbers, &s.file); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(numbers, &s.numbers); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, rows.Err()
}

// continues reports whether the segments are those that were read, or go on
// from them. Of a file that is another than it was, or that changed, it reads
// again as much as was read before.
func (x *Index) continues(ctx context.Context, segs []query.Segment, known []state) (bool, error) {
	again, ok := changed(segs, known)
	if !ok {
		return false, nil
	}
	for _, i := range again {
		k := &known[i]
		if k.rest != "" {
			return false, nil // it may be whole now
		}
		k.file = identity(segs[i])
		if same, err := sameLines(segs[i], *k); err != nil || !same {
			return false, err
		}
		if _, err := x.db.ExecContext(ctx, "UPDATE segments SET file = ? WHERE first = ? AND bytes = ?", k.file, k.first, k.bytes); err != nil {
			return false, fmt.Errorf("bringing the index up to date: %w", err)
		}
	}
	return true, nil
}

// changed returns which of the segments that were read are another file now, or have
// changed; ok is false if one is not there.
func changed(segs []query.Segment, known []state) (list []int, ok bool) {
	if len(segs) < len(known) {
		return nil, false
	}
	for i, k := range known {
		if segs[i].First != k.first {
			return nil, false
		}
		if file := identity(segs[i]); file == "" || file != k.file {
			list = append(list, i)
		}
	}
	return list, true
}

// identity says which file a segment is and how it stands: whoever writes to
// it, or puts another in its place, changes that. It is empty if the file has
// gone meanwhile.
func identity(s query.Segment) string {
	var st syscall.Stat_t
	if err := syscall.Lstat(s.Path, &st); err != nil {
		return ""
	}
	return fmt.Sprintf("%s %d:%d %d %d %d", filepath.Base(s.Path), st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
}

// sameLines reports whether a segment begins with what was read of it.
func sameLines(s query.Segment, k state) (bool, error) {
	f, err := openAt(s, 0)
	if errors.Is(err, query.ErrDamaged) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	h := sha256.New()
	if n, err := io.Copy(h, io.LimitReader(f, k.bytes)); errors.Is(err, query.ErrDamaged) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("reading %s: %w", s.Path, err)
	} else if n != k.bytes {
		return false, nil
	}
	was, err := resume(k.hash)
	return err == nil && bytes.Equal(h.Sum(nil), was.Sum(nil)), err
}

// resume returns a hash that goes on from a state.
func resume(state []byte) (hash.Hash, error) {
	h := sha256.New()
	if len(state) == 0 {
		return h, nil
	}
	u, ok := h.(encoding.BinaryUnmarshaler)
	if !ok {
		panic("index: SHA-256 cannot go on")
	}
	return h, u.UnmarshalBinary(state)
}

func stateOf(h hash.Hash) ([]byte, error) {
	m, ok := h.(encoding.BinaryMarshaler)
	if !ok {
		panic("index: SHA-256 cannot be kept")
	}
	return m.MarshalBinary()
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

// batchSize is how many lines a part, and so a transaction, holds at most.
const batchSize = 10_000

// part is what was read of a segment at once.
type part struct {
	records []audit.Record
	state   state // by its end
	done    int64 // octets of all segments by its end
}

// reader turns segments into parts.
type reader struct {
	parts chan part
	spare chan []audit.Record // to be filled again
	done  int64               // octets of the segments before
}

func newReader() *reader {
	return &reader{parts: make(chan part, 1), spare: make(chan []audit.Record, 4)}
}

// reuse takes back the records of a part that are not needed any more.
func (r *reader) reuse(p part) {
	select {
	case r.spare <- p.records[:0]:
	default:
	}
}

func (r *reader) records() []audit.Record {
	select {
	case recs := <-r.spare:
		return recs
	default:
		return nil
	}
}

// all sends what is not known yet, and closes parts.
func (r *reader) all(ctx context.Context, segs []query.Segment, known []state) error {
	defer close(r.parts)
	for i, s := range segs {
		st := state{first: s.First, numbers: query.Numbers{Next: uint64(s.First)}}
		if i < len(known) {
			st = known[i]
		}
		if i >= len(known)-1 && s.Size > 0 && st.rest == "" { // else it was finished before
			if err := r.segment(ctx, s, st); err != nil {
				return err
			}
		}
		r.done += s.Size
	}
	return nil
}

// segment reads what is new in one segment, as far as it can be read.
func (r *reader) segment(ctx context.Context, s query.Segment, st state) error {
	err := r.lines(ctx, s, &st)
	if !errors.Is(err, query.ErrDamaged) {
		return err
	}
	st.bad++
	st.numbers.Damaged = true
	st.rest = err.Error()
	if st.hash == nil { // nothing of it was read
		st.hash = []byte{}
	}
	return r.send(ctx, part{state: st, done: r.done + s.Size})
}

// lines sends the lines of a segment from st on: before an error of the file,
// all that it read by then.
func (r *reader) lines(ctx context.Context, s query.Segment, st *state) error {
	st.file = identity(s) // before it is read: what is changed meanwhile is seen the next time
	f, err := openAt(s, st.bytes)
	if err != nil {
		return err
	}
	defer f.Close()
	h, err := resume(st.hash)
	if err != nil {
		return err
	}
	in := bufio.NewReaderSize(f, 2*audit.MaxLine)
	recs, held := r.records(), 0
	for {
		line, fault := in.ReadSlice('\n')
		// A line that is not finished is left for the next time.
		end := fault != nil && !errors.Is(fault, bufio.ErrBufferFull)
		if held > 0 && (end || held == batchSize) {
			if st.hash, err = stateOf(h); err != nil {
				return err
			}
			by := *st
			by.numbers.Holes = slices.Clone(st.numbers.Holes) // the last one may become longer
			if err := r.send(ctx, part{recs, by, r.progress(s, by, end)}); err != nil {
				return err
			}
			recs, held = r.records(), 0
		}
		switch {
		case end && !errors.Is(fault, io.EOF):
			return fmt.Errorf("reading %s: %w", s.Path, fault)
		case end:
			return nil
		}
		recs = take(recs, line, s.Path, st)
		h.Write(line)
		held++
	}
}

// take adds one line of the file at path, or a piece of one that is too long to be a record.
func take(recs []audit.Record, line []byte, path string, st *state) []audit.Record {
	st.bytes += int64(len(line))
	st.lines++
	recs = append(recs, audit.Record{})
	r := &recs[len(recs)-1]
	if err := query.Decode(bytes.TrimSuffix(line, []byte("\n")), r); err != nil || r.Kind == "" {
		st.bad++
		st.numbers.Bad++
		return recs[:len(recs)-1]
	}
	st.numbers.See(r.Seq, path)
	if !told(r, st.first+st.lines-1) {
		st.odd++
	}
	if r.Schema > audit.Schema && st.later.Schema == 0 {
		st.later = Later{int64(r.Seq), r.Schema}
	}
	return recs
}

// told reports whether a row tells all that a record does, and whether the record
// is the one that its place in the log is for.
func told(r *audit.Record, seq int64) bool {
	return r.Schema == audit.Schema && r.Seq == uint64(seq) && r.Time.Location() == time.UTC && r.Time.Equal(time.Unix(0, nanos(r.Time))) &&
		!slices.ContainsFunc(r.Cut, func(name string) bool { return name == "" || strings.Contains(name, ",") })
}

// progress is how many octets of files were read. How far a packed one is, is
// not known before its end.
func (r *reader) progress(s query.Segment, st state, end bool) int64 {
	switch {
	case end:
		return r.done + s.Size
	case s.Packed:
		return r.done
	}
	return r.done + st.bytes
}

func (r *reader) send(ctx context.Context, p part) error {
	select {
	case r.parts <- p:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
