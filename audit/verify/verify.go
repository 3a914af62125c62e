// Package verify checks a log without the code that wrote it.
//
// It shares with package audit the form of a checkpoint and nothing else. It
// trusts the verifier key and the anchors that it is given, and no file of the
// log; it reads, and never writes, repairs or locks, so a live log can be
// checked too.
package verify

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/checkpoint"
	"sallyport/audit/segment"
)

// Fault is what is wrong: a closed set.
type Fault string

// The faults.
const (
	Changed    Fault = "changed"    // a record is not the one that was signed
	OutOfPlace Fault = "sequence"   // a record was inserted, left out, doubled or moved
	Malformed  Fault = "malformed"  // a line is no record
	Missing    Fault = "missing"    // a segment, or the beginning, is not there
	Cut        Fault = "cut"        // there were more records when the log was signed
	RolledBack Fault = "rollback"   // an anchor knows of more records than the log does
	Rewritten  Fault = "rewritten"  // the records are not the ones that an anchor knows
	BadHistory Fault = "checkpoint" // a checkpoint is forged, damaged, doubled or missing
	WrongKey   Fault = "key"        // the log names another key
	BadTree    Fault = "tree"       // the hash file is damaged; the records may be good
	BadPack    Fault = "packed"     // a packed segment is not the file that was written; its records may be good
	BadNote    Fault = "retained"   // the note of what was removed is forged, damaged, or not of this log
)

// Problem is the first thing that is wrong with a log. It is the error that
// [Verify] returns for a log that was read and is not good.
type Problem struct { //nolint:errname // it is what was found, not what failed
	Fault Fault  `json:"fault"`
	File  string `json:"file"`
	Line  int64  `json:"line,omitempty"` // in File, from 1; 0 where it is about no line
	Seq   int64  `json:"seq"`            // of the first bad record, or the first missing one; -1 where it is about none
	Last  int64  `json:"last"`           // of the last record that may be the bad one; Seq if it is known for sure
	Text  string `json:"text"`
}

// Error implements error.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(filepath.Base(p.File))
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if p.Seq >= 0 {
		fmt.Fprintf(&b, ": record %d", p.Seq)
		if p.Last > p.Seq {
			fmt.Fprintf(&b, " to %d", p.Last)
		}
	}
	fmt.Fprintf(&b, ": %s: %s", p.Fault, p.Text)
	return b.String()
}

// Options are what else a log is checked against.
type Options struct {
	// Anchors are signed checkpoints that were kept where whoever can write the
	// log could not: only they show that an old copy was put in its place.
	Anchors [][]byte
}

// Report is what was found.
type Report struct {
	Segments    int   `json:"segments"`
	Records     int64 `json:"records"`
	Bytes       int64 `json:"bytes"` // of records
	Checkpoints int64 `json:"checkpoints"`
	Anchors     int   `json:"anchors"` // that the log was checked against

	// Covered records stand under a good checkpoint, with those that were
	// removed in order. Those after them are the youngest of a log that is being written, or was
	// when it crashed: nothing is known against them, and nothing for them.
	Covered int64     `json:"covered"`
	Signed  tlog.Tree `json:"signed"` // the newest good checkpoint
	// UncoveredSince is the time of the first record that is not covered; zero if all are.
	UncoveredSince time.Time `json:"uncovered_since,omitzero"`
	SignedAt       time.Time `json:"signed_at"`
	// Torn are bytes at the end of the segments or the checkpoints that are no
	// whole line or checkpoint.
	Torn int64 `json:"torn"`
	// Closed tells that the last record is log.close.
	Closed bool `json:"closed"`

	// Retained tells what was removed in order; nil for nothing.
	Retained *Retained `json:"retained,omitempty"`
	// Leftover are segments that were to be removed and are still there: the
	// next start of the writer removes them. Their records are not looked at.
	Leftover []string `json:"leftover,omitempty"`

	First   time.Time `json:"first"`             // of the first record
	Last    time.Time `json:"last"`              // of the last
	Absent  []string  `json:"absent,omitempty"`  // files that a log has, and that can be made anew
	Unknown []string  `json:"unknown,omitempty"` // files that are none of a log's
}

// Retained is what the signed note says about the records that were removed.
type Retained struct {
	Records int64     `json:"records"` // that were removed: 0 to Records-1
	From    time.Time `json:"from"`    // of the first of them
	Until   time.Time `json:"until"`   // of the first that is kept
	At      time.Time `json:"at"`      // when the last of them were removed
	Record  int64     `json:"record"`  // that tells of it
}

// Whole reports that every byte of a closed log is covered.
func (r Report) Whole() bool {
	return r.Closed && r.Covered == r.next() && r.Torn == 0
}

// next is the number of the record that would come next.
func (r Report) next() int64 {
	if r.Retained != nil {
		return r.Retained.Records + r.Records
	}
	return r.Records
}

// String returns one sentence for a log that is good.
func (r Report) String() string {
	s := fmt.Sprintf("%s in %s, %s", count(r.Records, "record"), count(int64(r.Segments), "segment"), count(r.Checkpoints, "checkpoint"))
	if r.Anchors > 0 {
		s += ", " + count(int64(r.Anchors), "anchor")
	}
	if r.Covered > 0 {
		s += fmt.Sprintf("; %d covered by the checkpoint of %s", r.Covered, r.SignedAt.UTC().Format(time.RFC3339))
	}
	if x := r.Retained; x != nil {
		s += fmt.Sprintf("; records 0 to %d (%s to %s) were removed in order on %s, see record %d", x.Records-1,
			x.From.UTC().Format(time.DateOnly), x.Until.UTC().Format(time.DateOnly), x.At.UTC().Format(time.RFC3339), x.Record)
	}
	if n := r.next() - r.Covered; n > 0 {
		s += fmt.Sprintf("; the last %s covered by no checkpoint", uncoveredWords(n, r.UncoveredSince))
	}
	if r.Torn > 0 {
		s += fmt.Sprintf("; %s of an unfinished line or checkpoint", count(r.Torn, "byte"))
	}
	if !r.Closed {
		s += "; not closed (live, or it crashed)"
	}
	if len(r.Leftover) > 0 {
		s += "; still there, and not looked at: " + strings.Join(r.Leftover, " ")
	}
	if len(r.Unknown) > 0 {
		s += "; no files of a log: " + strings.Join(r.Unknown, " ")
	}
	return s
}

// count says how many there are of what a word names.
func count(n int64, word string) string {
	if n != 1 {
		word += "s"
	}
	return fmt.Sprintf("%d %s", n, word)
}

func uncoveredWords(n int64, since time.Time) string {
	noun := fmt.Sprintf("%d records", n)
	if n == 1 {
		noun = "record"
	}
	verb := map[bool]string{true: "is", false: "are"}[n == 1]
	return fmt.Sprintf("%s, since %s, %s", noun, since.UTC().Format(time.RFC3339), verb)
}

// Verify reads the whole log in dir and checks it against the public key that
// signed it, in the form of golang.org/x/mod/sumdb/note. A log that is not good
// is a [*Problem]; any other error means that it could not be read.
//
// The key has to come from somewhere else than dir: who rewrites a log can put
// a key of their own beside it.
func Verify(dir, key string, opts Options) (Report, error) {
	verifier, err := note.NewVerifier(strings.TrimSpace(key))
	if err != nil {
		return Report{}, fmt.Errorf("reading the verifier key: %w", err)
	}
	var anchors []checkpoint.Checkpoint
	for i, msg := range opts.Anchors {
		cp, err := checkpoint.Open(msg, verifier)
		if err != nil {
			return Report{}, fmt.Errorf("reading anchor %d: %w", i+1, err)
		}
		anchors = append(anchors, cp)
	}
	slices.SortStableFunc(anchors, func(a, b checkpoint.Checkpoint) int {
		return int(a.Tree.N - b.Tree.N)
	})
	for try := 1; ; try++ {
		c := &checker{
			dir: dir, key: verifier, keyText: strings.TrimSpace(key), in: bufio.NewReaderSize(nil, 2*maxLine),
			anchors: slices.Clone(anchors), sums: map[int64]string{}, told: map[int64]string{},
		}
		if len(anchors) > 0 {
			c.newest = &anchors[len(anchors)-1]
		}
		c.Report.Anchors = len(c.anchors)
		err = c.run()
		again := c.uncovered && c.signedSince() && try < maxTries
		c.close()
		if !again {
			return c.Report, err
		}
	}
}

// maxTries bounds how often a live log is read because what it is said not to
// cover was signed meanwhile.
const maxTries = 5

// checker is one pass over a log. What is read first was written last, so that
// a log which grows meanwhile is never found to be behind itself: checkpoints,
// tree, segments.
type checker struct {
	Report
	dir     string
	key     note.Verifier
	keyText string
	anchors []checkpoint.Checkpoint // that are still to be met

	newest *checkpoint.Checkpoint // of all anchors; nil for none

	history *history
	next    *checkpoint.Checkpoint // the next of history, nil at its end
	last    *checkpoint.Checkpoint // that was read of it; nil for none

	tail       checkpoint.Tail // records beyond last
	beyondLast bool            // there are any
	lastClose  int64           // the last log.close, -1 for none
	uncovered  bool            // the problem is about tail
	live       *os.File        // the last segment, as long as it was when it was listed; nil if it was not found
	liveSize   int64
	stored     *stored // nil if there is none
	edge       edge
	in         *bufio.Reader // of segments
	signed     edge          // at the last good checkpoint
	kept       checkpoint.Retention
	starts     []int64
	packed     map[int64]bool   // segments of which there is a packed file
	plain      map[int64]bool   // segments of which there is a plain file
	sums       map[int64]string // SHA-256 of packed files, as they are
	told       map[int64]string // as records say

	file string // being read
	line int64
}

func (c *checker) close() {
	if c.history != nil {
		c.history.f.Close()
	}
	if c.stored != nil {
		c.stored.f.Close()
	}
	if c.live != nil {
		c.live.Close()
	}
}

// signedSince reports whether there are more checkpoints than were read.
func (c *checker) signedSince() bool {
	st, err := c.history.f.Stat() // it was read, since records were
	return err == nil && st.Size() > c.history.size
}

func (c *checker) run() error {
	if err := c.open(); err != nil {
		return err
	}
	c.lastClose = -1
	if err := c.advance(); err != nil {
		return err
	}
	if err := c.removed(); err != nil {
		return err
	}
	if err := c.meet(); err != nil { // a checkpoint of nothing, or of what was removed
		return err
	}
	for i, first := range c.starts {
		if first != c.edge.n {
			return c.missing(first)
		}
		if err := c.segment(i); err != nil {
			return err
		}
	}
	return c.finish()
}

// missing tells of a segment that does not begin where the last one ended.
func (c *checker) missing(first int64) error {
	name := segment.Name(c.edge.n)
	if first < c.edge.n {
		return c.earlier(&Problem{
			OutOfPlace, segment.Name(first), 1, first, first,
			fmt.Sprintf("the segment before it goes on to record %d", c.edge.n-1),
		})
	}
	return c.earlier(&Problem{Missing, name, 0, c.edge.n, first - 1, "these records are not there"})
}

// finish checks what is left when the records have been read.
func (c *checker) finish() error {
	n := c.edge.n
	if c.next != nil {
		was := c.newestSigned()
		return c.earlier(&Problem{
			Cut, segment.Name(c.lastStart()), 0, n, was.Tree.N - 1,
			fmt.Sprintf("%d records were signed at %s, and %d are left",
				was.Tree.N, was.Time.Format(time.RFC3339), n),
		})
	}
	if len(c.anchors) > 0 {
		a := c.anchors[len(c.anchors)-1]
		return &Problem{
			RolledBack, "checkpoints", 0, n, a.Tree.N - 1,
			fmt.Sprintf("an anchor was signed over %d records at %s, and the log holds %d",
				a.Tree.N, a.Time.Format(time.RFC3339), n),
		}
	}
	if c.kept.Record >= n {
		return &Problem{
			Cut, segment.Name(c.lastStart()), 0, n, c.kept.Record,
			fmt.Sprintf("the note of what was removed was signed when there was a record %d", c.kept.Record),
		}
	}
	if err := c.coverage(); err != nil {
		return err
	}
	if err := c.packs(); err != nil {
		return err
	}
	c.Torn += c.history.torn
	if c.stored == nil {
		c.Absent = append(c.Absent, "tree")
		return nil
	}
	return c.verdict(c.edge, c.signed.n)
}

// newestSigned reads the checkpoints that are left and returns the last of them,
// or the last before one that is not good.
func (c *checker) newestSigned() checkpoint.Checkpoint {
	first, newest := c.next, *c.next
	for c.advance() == nil && c.next != nil && c.next.Tree.N > newest.Tree.N {
		newest = *c.next
	}
	c.next = first
	return newest
}

// coverage checks that what no checkpoint covers is what a log may end with,
// and that no anchor knows of a later checkpoint.
func (c *checker) coverage() error {
	n := c.edge.n
	c.UncoveredSince = c.tail.Since()
	if a := c.newest; a != nil && a.After(c.last) {
		had := "has none"
		if c.last != nil {
			had = fmt.Sprintf("ends with checkpoint %d over %d records", c.last.Number, c.last.Tree.N)
		}
		return &Problem{
			BadHistory, "checkpoints", 0, -1, -1,
			fmt.Sprintf("the checkpoints were cut: an anchor is checkpoint %d over %d records, and the log %s", a.Number, a.Tree.N, had),
		}
	}
	anchored := c.newest != nil && c.last != nil && c.newest.Tree.N == c.last.Tree.N
	if err := c.tail.End(anchored); err != nil {
		c.uncovered = true
		return &Problem{BadHistory, "checkpoints", 0, c.tail.First, n - 1, err.Error()}
	}
	return nil
}

func (c *checker) lastStart() int64 {
	if len(c.starts) == 0 {
		return c.kept.First
	}
	return c.starts[len(c.starts)-1]
}

// open finds the files.
func (c *checker) open() error {
	f, size, err := openRegular(filepath.Join(c.dir, "checkpoints"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if c.newest != nil {
			return c.gone()
		}
		if _, err := os.Stat(c.dir); err != nil {
			return fmt.Errorf("reading the log: %w", err)
		}
		return &Problem{BadHistory, "checkpoints", 0, -1, -1, "the file is missing"}
	case err != nil:
		return err
	}
	c.history = newHistory(f, size)
	if err := c.openNote(); err != nil {
		return err
	}
	f, size, err = openRegular(filepath.Join(c.dir, "tree"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		c.stored = newStored(f, size, c.kept.First)
	}
	public, err := os.ReadFile(filepath.Join(c.dir, "log.pub"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading the log: %w", err)
	}
	if err != nil {
		c.Absent = append(c.Absent, "log.pub")
	} else if !bytes.Equal(public, []byte(c.keyText+"\n")) {
		return &Problem{WrongKey, "log.pub", 0, -1, -1, "this is not the key that the log is checked with"}
	}
	return c.list()
}

// gone tells of a log of which an anchor knows and that has no checkpoints, or
// is not there at all.
func (c *checker) gone() error {
	a := c.newest
	return &Problem{
		RolledBack, "checkpoints", 0, 0, a.Tree.N - 1,
		fmt.Sprintf("an anchor was signed over %d records at %s, and the log is gone, or its checkpoints are: this is a rollback to nothing",
			a.Tree.N, a.Time.Format(time.RFC3339)),
	}
}

func (c *checker) list() error {
	names, err := os.ReadDir(c.dir)
	if err != nil {
		return fmt.Errorf("reading the log: %w", err)
	}
	c.packed, c.plain = map[int64]bool{}, map[int64]bool{}
	for _, d := range names {
		name := d.Name()
		first, packed, ok := segment.Parse(name)
		switch {
		case ok && packed:
			c.packed[first] = true
		case ok:
			c.plain[first] = true
		case name != "checkpoints" && name != "tree" && name != "log.pub" && name != "retained":
			c.Unknown = append(c.Unknown, name)
		}
		if ok {
			c.starts = append(c.starts, first)
		}
	}
	slices.Sort(c.starts)
	c.starts = slices.Compact(c.starts)
	n, _ := slices.BinarySearch(c.starts, c.kept.First)
	for _, first := range c.starts[:n] {
		c.Leftover = append(c.Leftover, c.nameOf(first))
	}
	c.starts = c.starts[n:]
	c.Segments = len(c.starts)
	return c.openLive()
}

// openLive opens the last segment, to be read no further than it goes now: what
// is written while the rest is read is newer than the checkpoints that were
// read, and no checkpoint would cover it.
func (c *checker) openLive() error {
	if len(c.starts) == 0 || !c.plain[c.starts[len(c.starts)-1]] {
		return nil
	}
	f, size, err := openRegular(filepath.Join(c.dir, segment.Name(c.starts[len(c.starts)-1])))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // packed meanwhile
	}
	if err != nil {
		return err
	}
	c.live, c.liveSize = f, size
	return nil
}

// nameOf returns the file that a segment is read from.
func (c *checker) nameOf(first int64) string {
	if c.plain[first] {
		return segment.Name(first)
	}
	return segment.PackedName(first)
}

// openRegular refuses what could be a link to somewhere else.
func openRegular(path string) (*os.File, int64, error) {
	st, err := os.Lstat(path)
	if err != nil {
		return nil, 0, fmt.Errorf("reading the log: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, 0, &Problem{Malformed, path, 0, -1, -1, "it is not a regular file"}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, fmt.Errorf("reading the log: %w", err)
	}
	return f, st.Size(), nil
}
