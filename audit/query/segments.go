package query

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sallyport/audit"
	"sallyport/audit/segment"
	"sallyport/control/regular"
)

// Segment is one file of a log.
type Segment struct {
	First  int64 // the number of its first record
	Path   string
	Packed bool  // compressed with zstd
	Size   int64 // of the file
}

// Segments returns the segments of the log in dir, in their order. Of one that
// is there both packed and plain it returns the plain one.
func Segments(dir string) ([]Segment, error) {
	names, err := list(dir)
	if err != nil {
		return nil, fmt.Errorf("reading the log: %w", err)
	}
	var out []Segment
	for _, n := range names {
		s, ok, err := segmentFile(dir, n)
		if err != nil {
			return nil, fmt.Errorf("reading the log: %w", err)
		}
		if ok {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("reading the log: %s holds no segment: %w", dir, fs.ErrNotExist)
	}
	slices.SortFunc(out, func(a, b Segment) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(len(a.Path), len(b.Path)))
	})
	return slices.CompactFunc(out, func(a, b Segment) bool { return a.First == b.First }), nil
}

// oneRead is how many entries of a directory are surely read at once.
const oneRead = 64

// list reads a directory. One that is too long to be read at once is read until it is the same
// twice: a segment that is packed meanwhile might be seen neither plain nor packed.
func list(dir string) ([]fs.DirEntry, error) {
	for before := []fs.DirEntry(nil); ; {
		now, err := os.ReadDir(dir)
		same := slices.EqualFunc(before, now, func(a, b fs.DirEntry) bool { return a.Name() == b.Name() })
		if err != nil || len(now) <= oneRead || same {
			return now, err
		}
		before = now
	}
}

// segmentFile returns the segment that a file is. It is an error if it has a segment's
// name and cannot be one: to leave it out would be to say that nothing stands in it.
func segmentFile(dir string, n fs.DirEntry) (Segment, bool, error) {
	first, packed, ok := segment.Parse(n.Name())
	if !ok {
		return Segment{}, false, nil
	}
	s := Segment{First: first, Path: filepath.Join(dir, n.Name()), Packed: packed}
	st, err := n.Info()
	if errors.Is(err, fs.ErrNotExist) && !packed { // it was packed meanwhile
		s.Path, s.Packed = s.Path+segment.PackedSuffix, true
		st, err = os.Lstat(s.Path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist): // it was removed meanwhile
		return Segment{}, false, nil
	case err != nil:
		return Segment{}, false, err
	case !st.Mode().IsRegular():
		return Segment{}, false, &fs.PathError{Op: "read", Path: s.Path, Err: regular.ErrNot}
	}
	s.Size = st.Size()
	return s, true, nil
}

// Open returns the lines of s. A segment that was packed since it was listed is
// found all the same.
func (s Segment) Open() (io.ReadCloser, error) {
	f, _, err := regular.Open(s.Path)
	if errors.Is(err, fs.ErrNotExist) && !s.Packed {
		s.Packed = true
		f, _, err = regular.Open(s.Path + segment.PackedSuffix)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the log: %w", err)
	}
	if !s.Packed {
		return f, nil
	}
	lines, err := segment.Unpack(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reading %s: %w", s.Path, damage(err)), f.Close())
	}
	return &packed{lines, f}, nil
}

// ErrDamaged is wrapped by the error of a packed segment that is cut or was
// changed: what stands after that cannot be unpacked. Others can be read.
var ErrDamaged = errors.New("it is damaged, and the rest of it cannot be read")

// damage tells damage from a failure of the disk.
func damage(err error) error {
	if _, disk := errors.AsType[*fs.PathError](err); disk || err == nil || err == io.EOF { //nolint:errorlint // the plain end of a reader
		return err
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

type packed struct {
	io.ReadCloser
	f *os.File
}

// Read implements [io.Reader].
func (p *packed) Read(b []byte) (int, error) {
	n, err := p.ReadCloser.Read(b)
	return n, damage(err)
}

// Close implements [io.Closer].
func (p *packed) Close() error { return errors.Join(p.ReadCloser.Close(), p.f.Close()) }

// clockMargin is how far the clock may have been set back while the log was
// written.
const clockMargin = 24 * time.Hour

// within returns which of the segments hold what f wants, from one on and before another:
// not those that were finished well before, or begun well after it.
func within(segs []Segment, f Filter) (from, until int) {
	until = len(segs)
	for until > 1 && !f.Until.IsZero() && began(segs[until-1]).Add(-clockMargin).After(f.Until) {
		until--
	}
	for i := until - 1; i > 0 && !f.Since.IsZero(); i-- {
		if at := began(segs[i]); !at.IsZero() && at.Add(clockMargin).Before(f.Since) {
			return i, until
		}
	}
	return 0, until
}

// nextSegment returns the segment after the one that begins with first, the
// last one if first is negative, or nil if there is none.
func nextSegment(dir string, first int64) (*Segment, error) {
	segs, err := Segments(dir)
	if err != nil {
		return nil, err
	}
	if first < 0 {
		return &segs[len(segs)-1], nil
	}
	for i := range segs {
		if segs[i].First > first {
			return &segs[i], nil
		}
	}
	return nil, nil
}

// removed reports whether a segment was removed in order since it was listed: the log
// begins after it now.
func removed(dir string, s Segment) bool {
	segs, err := Segments(dir)
	return err == nil && segs[0].First > s.First
}

// segmentOf returns the segment that holds a record, or the first one if that
// begins after it.
func segmentOf(dir string, seq uint64) (*Segment, error) {
	segs, err := Segments(dir)
	if err != nil {
		return nil, err
	}
	return &segs[holding(segs, seq)], nil
}

// holding returns which segment holds a record, or the first one if that begins
// after it.
func holding(segs []Segment, seq uint64) int {
	at := 0
	for at+1 < len(segs) && uint64(segs[at+1].First) <= seq {
		at++
	}
	return at
}

// began returns the time of a segment's first record, zero if it has none.
func began(s Segment) time.Time {
	f, err := s.Open()
	if err != nil {
		return time.Time{} // whoever reads it will tell
	}
	defer f.Close()
	line, err := bufio.NewReader(io.LimitReader(f, audit.MaxLine+1)).ReadBytes('\n')
	var r struct{ Time time.Time }
	if err != nil || json.Unmarshal(line, &r) != nil {
		return time.Time{}
	}
	return r.Time
}
