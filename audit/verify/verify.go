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
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	"sallyport/audit/checkpoint"
	"sallyport/audit/segment"
)

// Options are what else a log is checked against.
type Options struct {
	// Anchors are signed checkpoints that were kept where whoever can write the
	// log could not: only they show that an old copy was put in its place.
	Anchors [][]byte
	// Stop is asked while segments are read; true ends it with [ErrStopped]. nil never does.
	Stop func() bool
	// Find says which record has an id, for [Prove], and wraps [ErrNotFound] if none
	// has. It need not be trusted: what it says is checked. nil reads the log.
	Find func(id string) (int64, error)
	// Tell is called by [Prove] and [ProveRecords] with why all of the log is verified
	// and, when that was good, with what is wrong with its tree. nil tells nobody.
	Tell func(error)

	listed func() // called when the segments were listed, for tests
}

// ErrStopped is wrapped when [Options] ended it before anything was found.
var ErrStopped = errors.New("stopped before the end of the log")

// Verify reads the whole log in dir and checks it against the public key that
// signed it, in the form of golang.org/x/mod/sumdb/note. A log that is not good
// is a [*Problem]; any other error means that it could not be read.
//
// The key has to come from somewhere else than dir: who rewrites a log can put
// a key of their own beside it.
func Verify(dir, key string, opts Options) (Report, error) {
	verifier, err := verifier(key)
	if err != nil {
		return Report{}, err
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
			anchors: slices.Clone(anchors), sums: map[int64]string{}, told: map[int64]string{}, listed: opts.listed, stop: opts.Stop,
		}
		if len(anchors) > 0 {
			c.newest = &anchors[len(anchors)-1]
		}
		c.Report.Anchors = len(c.anchors)
		err = c.run()
		again := try < maxTries && (c.uncovered && c.signedSince() || err != nil && c.removedSince())
		c.close()
		if !again {
			return c.Report, err
		}
	}
}

// maxTries bounds how often a live log is read because what it is said not to
// cover was signed meanwhile, or what is missing was removed in order.
const maxTries = 5

// checker is one pass over a log. What is read first was written last, so that
// a log which grows meanwhile is never found to be behind itself: checkpoints,
// tree, segments.
type checker struct {
	Report
	stop    func() bool // asked while segments are read; nil never does
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
	note       []byte        // of what was removed; nil for none
	kept       checkpoint.Retention
	starts     []int64
	packed     map[int64]bool   // segments of which there is a packed file
	plain      map[int64]bool   // segments of which there is a plain file
	moved      map[int64]bool   // segments that were plain when they were listed, and packed when they were read
	sums       map[int64]string // SHA-256 of packed files, as they are
	told       map[int64]string // as records say
	listed     func()

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

// removedSince reports whether segments were removed, or were to be, since the
// note was read.
func (c *checker) removedSince() bool {
	now, err := readNote(c.dir)
	return err == nil && !bytes.Equal(now, c.note)
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
	if c.next != nil && len(c.starts) == 0 {
		was := c.newestSigned()
		return c.earlier(&Problem{
			Missing, segment.Name(n), 0, n, was.Tree.N - 1,
			fmt.Sprintf("no segment is there, and %d records were signed at %s", was.Tree.N, was.Time.Format(time.RFC3339)),
		})
	}
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
	if n == 0 && c.last == nil && (c.stored == nil || c.stored.size == 0) {
		return &Problem{Missing, segment.Name(0), 0, 0, 0, "there is no record, and none was signed: the log was emptied, or its first start failed"}
	}
	if c.Retained != nil && c.kept.Record >= n {
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
