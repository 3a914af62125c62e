package index

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"sallyport/audit/query"
)

// Progress says how far an update is.
type Progress struct {
	Records     int64 // that were added by now
	Done, Total int64 // octets of segments
	Sorting     bool  // all is read; what records are looked up by is being sorted
}

// Result is what an update did.
type Result struct {
	Added int64 `json:"added"` // records
	Bad   int64 `json:"bad"`   // lines in the whole log that are no record
	// Damaged are the packed segments of which the rest cannot be read.
	Damaged []Damage `json:"damaged,omitempty"`
	// Later is the first record of a schema that this program does not know, nil if there is none.
	Later *Later `json:"later,omitempty"`
	// Holes are where records are missing, or not in their place.
	Holes []query.Hole `json:"holes,omitempty"`
	Anew  bool         `json:"anew"` // what was there before was of another log, or more than the log now holds
}

// Later is a record of a later schema: it may say more than an index holds.
type Later struct {
	Seq    int64 `json:"seq"`
	Schema int   `json:"schema"`
}

// Damage tells from which line on a segment cannot be read.
type Damage struct {
	File string `json:"file"` // its name
	Line int64  `json:"line"` // from 1
	Seq  int64  `json:"seq"`  // of the first record that is left out
	Text string `json:"text"`
}

// errOvertaken means that another process has added the same lines meanwhile.
var errOvertaken = errors.New("the index was changed meanwhile")

// maxTries bounds how often it is begun again because retention removes segments.
const maxTries = 5

// Update brings the index up to what the log holds now, and calls progress, if
// it is not nil, after every batch. If it is stopped, also by a crash, what was
// read stays. Records of segments that are gone from the beginning of the log
// (retention) are dropped; when the log has lost others, or was replaced, the
// index is made anew.
func (x *Index) Update(ctx context.Context, progress func(Progress)) (Result, error) {
	if progress == nil {
		progress = func(Progress) {}
	}
	unlock, err := x.lock(ctx)
	if err != nil {
		return Result{}, err
	}
	defer unlock()
	for try := 1; ; try++ {
		out, err := x.update(ctx, progress)
		removed := errors.Is(err, fs.ErrNotExist) && try < maxTries // a segment, in order, since it was listed
		if !errors.Is(err, errOvertaken) && !removed {
			return out, err
		}
	}
}

func (x *Index) update(ctx context.Context, progress func(Progress)) (Result, error) {
	var out Result
	segs, err := query.Segments(x.dir)
	if err != nil {
		return out, err
	}
	known, err := x.states(ctx)
	if err == nil {
		known, err = x.trim(ctx, segs, known)
	}
	switch {
	case damaged(err):
		out.Anew = true
	case err != nil:
		return out, fmt.Errorf("reading the index: %w", err)
	default:
		same, err := x.continues(ctx, segs, known)
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
	at, err := x.add(ctx, segs, known, progress)
	if err != nil {
		return out, fmt.Errorf("bringing the index up to date: %w", err)
	}
	at.Sorting = true
	if err := x.sort(ctx, func() { progress(at) }); err != nil {
		return out, fmt.Errorf("bringing the index up to date: %w", err)
	}
	out.Added = at.Records
	err = x.db.QueryRowContext(ctx, "SELECT ifnull(sum(bad), 0) FROM segments").Scan(&out.Bad)
	if err == nil {
		err = x.oddities(ctx, segs, &out)
	}
	x.holes = out.Holes
	return out, err
}

// oddities tells what is known of segments that are damaged, of a later schema, or lack records.
func (x *Index) oddities(ctx context.Context, segs []query.Segment, out *Result) error {
	known, err := x.states(ctx)
	out.Holes = holes(segs, known)
	for _, k := range known {
		if k.later.Schema > 0 && out.Later == nil {
			out.Later = &k.later
		}
		i := slices.IndexFunc(segs, func(s query.Segment) bool { return s.First == k.first })
		if k.rest != "" && i >= 0 {
			out.Damaged = append(out.Damaged, Damage{filepath.Base(segs[i].Path), k.lines + 1, k.first + k.lines, k.rest})
		}
	}
	return err
}

// holes returns those within the segments, and between them.
func holes(segs []query.Segment, known []state) (list []query.Hole) {
	read := map[int64]query.Numbers{}
	for _, k := range known {
		read[k.first] = k.numbers
	}
	var before query.Numbers
	path := ""
	for _, s := range segs {
		if h := before.Between(path, s); h != nil {
			list = append(list, *h)
		}
		n, ok := read[s.First]
		if !ok { // it is empty
			n.Next = uint64(s.First)
		}
		list = append(list, n.Holes...)
		before, path = n, s.Path
	}
	return list
}

// add reads on one goroutine and writes on another.
func (x *Index) add(ctx context.Context, segs []query.Segment, known []state, progress func(Progress)) (Progress, error) {
	at := Progress{}
	for _, s := range segs {
		at.Total += s.Size
	}
	w, err := x.writer(ctx, known)
	if err != nil {
		return at, err
	}
	defer w.close()
	r := newReader()
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return r.all(ctx, segs, known) })
	both.Go(func() error {
		for part := range r.parts {
			if err := w.store(ctx, part); err != nil {
				return err
			}
			at.Records += int64(len(part.records))
			at.Done = part.done
			r.reuse(part)
			progress(at)
		}
		return nil
	})
	err = both.Wait()
	return at, err
}

// sort makes the lookups that are not there, and tells before each.
func (x *Index) sort(ctx context.Context, tell func()) error {
	for _, l := range lookups {
		tell()
		if _, err := x.db.ExecContext(ctx, "CREATE INDEX IF NOT EXISTS "+l); err != nil {
			return err
		}
	}
	return nil
}

// trim drops what is known of segments before the first one that there is.
func (x *Index) trim(ctx context.Context, segs []query.Segment, known []state) ([]state, error) {
	gone := 0
	for gone < len(known) && known[gone].first < segs[0].First {
		gone++
	}
	if gone == 0 || gone == len(known) {
		return known, nil // nothing is gone, or all is: then it is made anew
	}
	tx, err := x.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback() //nolint:errcheck // nothing to undo once it is committed
	first := segs[0].First
	var lo, hi int64 // the hours whose counts change
	err = tx.QueryRowContext(ctx, "SELECT ifnull(min(time), 0), ifnull(max(time), 0) FROM entries WHERE seq < ?", first).Scan(&lo, &hi)
	if err != nil {
		return nil, err
	}
	lo, hi = HourOf(lo), HourOf(hi)
	for _, do := range []struct {
		what string
		args []any
	}{
		{"DELETE FROM entries WHERE seq < ?", []any{first}},
		{"DELETE FROM counts WHERE hour BETWEEN ? AND ?", []any{lo, hi}},
		{`INSERT INTO counts SELECT time / 3600000000000, shape, count(*), sum(sent), sum(received), min(time), max(time), min(seq)
			FROM entries WHERE time >= ? AND time < ? GROUP BY 1, 2`, []any{lo * nanosPerHour, (hi + 1) * nanosPerHour}},
		{"DELETE FROM shapes WHERE shape NOT IN (SELECT shape FROM counts)", nil},
		{"DELETE FROM segments WHERE first < ?", []any{first}},
	} {
		if _, err := tx.ExecContext(ctx, do.what, do.args...); err != nil {
			return nil, err
		}
	}
	return known[gone:], tx.Commit()
}
