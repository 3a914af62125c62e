// Package query reads a log, and finds records in it.
//
// It works on the segments alone, offline or while they are written, in bounded
// memory. It tolerates fields that it does not know. It trusts no text: what it
// prints holds no control character, whatever stands in the file. Whether the
// log is complete and unchanged is not its question: see audit/verify. It tells
// what the numbers of records show to be missing.
package query

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"time"

	"sallyport/audit"
)

// LineError is about one line that is no record, or, if it wraps [ErrDamaged],
// about it and all that follow in its segment. Reading can go on after it.
type LineError struct {
	File string
	Line int64 // in File, from 1
	Err  error
}

// Error implements error.
func (e *LineError) Error() string {
	if errors.Is(e.Err, ErrDamaged) {
		return fmt.Sprintf("%s: from line %d on: %v", filepath.Base(e.File), e.Line, e.Err)
	}
	return fmt.Sprintf("%s:%d: not a record: %v", filepath.Base(e.File), e.Line, e.Err)
}

// Unwrap returns the cause.
func (e *LineError) Unwrap() error { return e.Err }

// Records returns the records of the log in dir that f matches, in their order.
// An error that is not a [*LineError] is the last of the sequence. Of a log
// that is being written it returns what is there when a segment is reached; a
// line that is not finished is left out.
func Records(dir string, f Filter) iter.Seq2[audit.Record, error] {
	return records(nil, dir, f, 0, nil)
}

// RecordsUntil is [Records] until ctx is done, whose error is then the last of the
// sequence: a filter that finds nothing reads a whole log before it yields.
func RecordsUntil(ctx context.Context, dir string, f Filter) iter.Seq2[audit.Record, error] {
	return RecordsFrom(ctx, dir, f, 0, nil)
}

// RecordsFrom is [RecordsUntil] without the records before a number. It calls tell, if that is not
// nil, with what of the segments that it reads shows that the log is not whole, and is not
// in the sequence: a [*HoleError], or the [*LineError] of a line that f would have passed over.
func RecordsFrom(ctx context.Context, dir string, f Filter, seq uint64, tell func(error)) iter.Seq2[audit.Record, error] {
	return func(yield func(audit.Record, error) bool) {
		for r, err := range records(ctx.Done(), dir, f, seq, tell) {
			if !yield(r, err) {
				return
			}
		}
		if err := ctx.Err(); err != nil {
			yield(audit.Record{}, fmt.Errorf("reading the log: %w", err))
		}
	}
}

func records(done <-chan struct{}, dir string, f Filter, seq uint64, tell func(error)) iter.Seq2[audit.Record, error] {
	return func(yield func(audit.Record, error) bool) {
		segs, err := Segments(dir)
		if err != nil {
			yield(audit.Record{}, err)
			return
		}
		s := scanner{filter: f, yield: from(seq, yield), done: done, tell: tell}
		defer s.tellHoles()
		begin, until := within(segs, f)
		if begin == 0 {
			s.between(segs[0]) // what is before the log's first record
		}
		begin = max(begin, holding(segs, seq))
		for i := begin; i < until; i++ {
			if i > begin {
				s.between(segs[i])
			}
			if !s.segment(segs[i]) {
				return
			}
		}
		if begin < until && until < len(segs) {
			s.between(segs[until])
		}
	}
}

// segment yields the records of one segment; false means to stop.
func (s *scanner) segment(seg Segment) bool {
	file, err := seg.Open()
	switch {
	case errors.Is(err, fs.ErrNotExist) && removed(filepath.Dir(seg.Path), seg):
		return true
	case errors.Is(err, ErrDamaged):
		s.open(seg, bytes.NewReader(nil))
		s.numbers.Damaged = true
		return s.yield(audit.Record{}, &LineError{seg.Path, 1, err})
	case err != nil:
		s.yield(audit.Record{}, err)
		return false
	}
	defer file.Close()
	s.open(seg, file)
	return s.lines()
}

// poll is how often Follow looks for more.
const poll = 200 * time.Millisecond

// Follow returns the records that f matches as they are written, from now on,
// until ctx is done.
func Follow(ctx context.Context, dir string, f Filter) iter.Seq2[audit.Record, error] {
	return func(yield func(audit.Record, error) bool) {
		if err := follow(ctx, dir, nil, scanner{filter: f, yield: yield}); err != nil {
			yield(audit.Record{}, err)
		}
	}
}

// FollowFrom returns the records from a number on, those that are there and
// then those that are written, until ctx is done and all that is there was read.
func FollowFrom(ctx context.Context, dir string, seq uint64) iter.Seq2[audit.Record, error] {
	return func(yield func(audit.Record, error) bool) {
		begin, err := segmentOf(dir, seq)
		if err == nil {
			err = follow(ctx, dir, begin, scanner{yield: from(seq, yield)})
		}
		if err != nil {
			yield(audit.Record{}, err)
		}
	}
}

// from leaves out the records before a number.
func from(seq uint64, yield func(audit.Record, error) bool) func(audit.Record, error) bool {
	return func(r audit.Record, err error) bool { return err == nil && r.Seq < seq || yield(r, err) }
}

// follow begins with a segment, or at the end of the last one if it is nil.
func follow(ctx context.Context, dir string, from *Segment, s scanner) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	var file io.ReadCloser
	defer func() {
		if file != nil {
			file.Close()
		}
	}()
	at, toEnd, ended := int64(-1), from == nil, false
	for {
		// A newer segment is begun only when this one is finished: what is read
		// after the newer one was seen is all of it.
		next, err := from, error(nil)
		if from == nil {
			next, err = nextSegment(dir, at)
		}
		if err != nil {
			return err
		}
		from = nil
		if file != nil && !s.lines() {
			return nil
		}
		if next != nil {
			if file != nil {
				file.Close()
			}
			file, err = s.turn(next, toEnd)
			at, toEnd = next.First, false
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // removed meanwhile: there is a newer one
				return err
			}
			continue
		}
		if ended {
			return nil
		}
		select {
		case <-ctx.Done():
			ended = true // what was written until now is read
		case <-tick.C:
		}
	}
}

// turn goes to the next segment, or to the end of the first one.
func (s *scanner) turn(seg *Segment, toEnd bool) (io.ReadCloser, error) {
	file, err := seg.Open()
	if err != nil {
		return nil, err
	}
	if seekable, ok := file.(*os.File); ok && toEnd {
		return file, s.openAtEnd(seg, seekable)
	}
	s.open(*seg, file)
	return file, nil
}

// openAtEnd passes over every line that has begun.
func (s *scanner) openAtEnd(seg *Segment, file *os.File) error {
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("reading the log: %w", err)
	}
	lines, err := countLines(io.NewSectionReader(file, 0, end))
	if err == nil && end > 0 {
		_, err = file.Seek(-1, io.SeekCurrent)
	}
	if err != nil {
		return fmt.Errorf("reading the log: %w", err)
	}
	s.open(*seg, file)
	s.line = lines
	if end > 0 {
		s.skip()
	}
	return nil
}

// countLines counts the lines that have begun.
func countLines(r io.Reader) (n int64, err error) {
	buf, last := make([]byte, 64<<10), byte('\n')
	for {
		k, err := r.Read(buf)
		if k > 0 {
			n += int64(bytes.Count(buf[:k], []byte{'\n'}))
			last = buf[k-1] //nolint:gosec // k is not 0
		}
		if errors.Is(err, io.EOF) {
			if last != '\n' {
				n++
			}
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// scanner turns lines into records.
type scanner struct {
	filter Filter
	yield  func(audit.Record, error) bool
	done   <-chan struct{} // ends it; nil never does

	path string // of the segment, "" before the first one
	line int64
	in   *bufio.Reader
	part []byte       // of a line that was not finished when it was read
	rec  audit.Record // of the last line

	tell    func(error) // what the numbers tell; nil if nobody wants to know
	numbers Numbers     // of the segment
}

func (s *scanner) open(seg Segment, r io.Reader) {
	s.tellHoles()
	s.path, s.line, s.part, s.numbers = seg.Path, 0, s.part[:0], Numbers{Next: uint64(seg.First)}
	if s.in == nil {
		s.in = bufio.NewReaderSize(r, 2*audit.MaxLine)
	} else {
		s.in.Reset(r)
	}
}

// lines yields the records up to the present end; false means to stop.
func (s *scanner) lines() bool {
	for {
		piece, err := s.in.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			if s.part = append(s.part, piece...); len(s.part) > 2*audit.MaxLine {
				s.part = s.part[:0] // no line: what follows will be told as a bad one
			}
			return s.ended(err)
		}
		line := piece
		if len(s.part) > 0 {
			line = append(s.part, piece...)
			s.part = line[:0]
		}
		if err != nil {
			// Longer than a line can be: leave out what it is made of.
			if s.line++; !s.bad(errors.New("the line is too long")) || !s.skip() {
				return false
			}
			continue
		}
		s.line++
		if s.line%stride == 0 && s.isDone() || !s.record(line[:len(line)-1]) {
			return false
		}
	}
}

// stride is after how many lines it is asked whether more are wanted.
const stride = 512

func (s *scanner) isDone() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// ended judges what a reader ended with: after damage the next segment can be read.
func (s *scanner) ended(err error) bool {
	switch {
	case errors.Is(err, ErrDamaged):
		s.in.Reset(bytes.NewReader(nil)) // it is told once
		s.part = s.part[:0]
		s.line++
		s.numbers.Damaged = true
		return s.bad(err)
	case !errors.Is(err, io.EOF):
		s.yield(audit.Record{}, fmt.Errorf("reading %s: %w", s.path, err))
		return false
	}
	return true
}

// skip reads to the end of a line.
func (s *scanner) skip() bool {
	s.part = s.part[:0]
	for {
		_, err := s.in.ReadSlice('\n')
		if !errors.Is(err, bufio.ErrBufferFull) {
			return true // its end, or the file's, or an error that comes again
		}
	}
}

func (s *scanner) bad(err error) bool {
	s.numbers.Bad++
	return s.yield(audit.Record{}, &LineError{s.path, s.line, err})
}

// errNoRecord is about a line that nobody looks at closely.
var errNoRecord = errors.New("it has no number and no kind")

func (s *scanner) record(line []byte) bool {
	for i := range s.filter.needles {
		if n := &s.filter.needles[i]; !n.in(line) && s.passOver(line, n.quiet) {
			return true
		}
	}
	if err := Decode(line, &s.rec); err != nil {
		return s.bad(err)
	}
	s.number(s.rec.Seq, s.rec.Kind != "")
	if !s.filter.Match(&s.rec) {
		return true
	}
	return s.yield(s.rec, nil)
}

// passOver looks at no more of a line that does not match than the numbers need. It is false
// if the line must be told in its place, since it may be no record.
func (s *scanner) passOver(line []byte, quiet bool) bool {
	if s.tell == nil && quiet {
		return true
	}
	seq, ok := numberOf(line)
	if !ok {
		if !quiet {
			return false
		}
		ok = Decode(line, &s.rec) == nil && s.rec.Kind != ""
		seq = s.rec.Seq
	}
	s.number(seq, ok)
	return true
}

// number takes what a line says that its number is, if it is a record's; one that is no
// record is told.
func (s *scanner) number(seq uint64, ok bool) {
	if ok {
		s.numbers.See(seq, s.path)
		return
	}
	s.numbers.Bad++
	if s.tell != nil {
		s.tell(&LineError{s.path, s.line, errNoRecord})
	}
}

// between tells of what is missing before a segment.
func (s *scanner) between(seg Segment) {
	if s.tell == nil {
		return
	}
	s.tellHoles()
	if h := s.numbers.Between(s.path, seg); h != nil {
		s.tell(&HoleError{*h})
	}
}

// tellHoles tells of what is missing in the segment.
func (s *scanner) tellHoles() {
	for _, h := range s.numbers.Holes {
		if s.tell != nil {
			s.tell(&HoleError{h})
		}
	}
	s.numbers.Holes = nil
}
