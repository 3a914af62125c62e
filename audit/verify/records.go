package verify

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/checkpoint"
)

const maxLine = 64 << 10

// segment reads the i-th segment. Only the last may end in a torn line.
func (c *checker) segment(i int) error {
	c.file = c.nameOf(c.starts[i])
	c.line = 0
	f, err := c.lines(c.starts[i])
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	c.in.Reset(f)
	var last []byte
	for {
		line, err := c.in.ReadSlice('\n')
		c.line++
		switch {
		case errors.Is(err, ErrStopped):
			return err
		case errors.Is(err, io.EOF):
			f.end(c)
			return c.endSegment(i, last, line)
		case f.packed && err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return c.problem(Malformed, "it cannot be unpacked: %v", err)
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("reading %s: %w", c.file, err)
		case err != nil || len(line) > maxLine+1:
			return c.problem(Malformed, "the line is longer than %d bytes", maxLine)
		}
		line = line[:len(line)-1]
		if err := c.record(line); err != nil {
			return err
		}
		c.Bytes += int64(len(line)) + 1
		if c.First.IsZero() {
			c.First = timeOf(line)
		}
		last = append(last[:0], line...) // line itself is gone with the next read
	}
}

func (c *checker) endSegment(i int, last, torn []byte) error {
	if len(last) > 0 {
		c.Last = timeOf(last)
		c.Closed = kindOf(last) == "log.close"
	}
	if len(torn) == 0 {
		return nil
	}
	if i != len(c.starts)-1 {
		return c.problem(Malformed, "the segment ends within a line")
	}
	c.Torn += int64(len(torn))
	return nil
}

// problem is about the line that was just read, which should be record edge.n.
func (c *checker) problem(f Fault, format string, args ...any) error {
	return c.earlier(&Problem{f, c.file, c.line, c.edge.n, c.edge.n, fmt.Sprintf(format, args...)})
}

// record adds a line, and compares whatever is known about it.
func (c *checker) record(line []byte) error {
	version, seq, ok := head(line)
	switch {
	case !ok:
		return c.problem(Malformed, "the line does not begin like a record")
	case version != 1:
		return c.problem(Malformed, "schema version %d is not known: check it with a newer sallyport", version)
	case seq != c.edge.n:
		return c.problem(OutOfPlace, "this is record %d", seq)
	}
	if c.next == nil {
		if err := c.beyond(line); err != nil {
			return err
		}
	}
	// The kind follows the id, which is a ULID in the log's own records.
	if bytes.Contains(line[:min(len(line), 256)], []byte(`"kind":"log.`)) {
		if err := c.opened(line); err != nil {
			return err
		}
		c.toldPacked(line)
	}
	if c.edge.n == c.kept.Record && c.Retained != nil {
		if err := c.tells(line); err != nil {
			return err
		}
	}
	hashes := c.edge.add(tlog.RecordHash(line))
	if c.stored != nil {
		if err := c.stored.compare(c.edge.n-1, c.file, c.line, hashes); err != nil {
			return err
		}
	}
	c.Records++
	return c.meet()
}

// beyond takes a record that no checkpoint covers.
func (c *checker) beyond(line []byte) error {
	if !c.beyondLast {
		c.beyondLast = true
		c.tail = checkpoint.Tail{First: c.edge.n, Signed: c.last != nil, Closed: c.lastClose >= 0 && c.lastClose == c.edge.n-1}
	}
	if err := c.tail.Add(line); err != nil {
		return c.problem(Malformed, "%v", err)
	}
	return nil
}

// opened checks that a log.open names the key.
func (c *checker) opened(line []byte) error {
	var r struct {
		Kind string
		Data struct{ Verifier string }
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return c.problem(Malformed, "the line is not JSON")
	}
	if r.Kind == "log.open" && r.Data.Verifier != c.keyText {
		return c.problem(WrongKey, "the log was opened with the key %q", r.Data.Verifier)
	}
	if r.Kind == "log.close" {
		c.lastClose = c.edge.n
	}
	return nil
}

// meet compares the root with every checkpoint and anchor that is due.
func (c *checker) meet() error {
	for c.next != nil && c.next.Tree.N == c.edge.n {
		if root := c.edge.root(); root != c.next.Tree.Hash {
			return c.locate(*c.next)
		}
		c.signed = c.edge.clone()
		c.Covered, c.Signed, c.SignedAt = c.next.Tree.N, c.next.Tree, c.next.Time
		if err := c.advance(); err != nil {
			return err
		}
	}
	for len(c.anchors) > 0 && c.anchors[0].Tree.N == c.edge.n {
		a := c.anchors[0]
		if c.edge.root() != a.Tree.Hash {
			return &Problem{
				Rewritten, c.file, 0, 0, a.Tree.N - 1,
				fmt.Sprintf("the anchor of %s was signed over other records", a.Time.Format(time.RFC3339)),
			}
		}
		if a.Tree.N > c.Covered {
			c.Covered, c.Signed, c.SignedAt = a.Tree.N, a.Tree, a.Time
		}
		c.anchors = c.anchors[1:]
	}
	return nil
}

// advance reads the next checkpoint. Their numbers have no hole, and each
// covers more than the one before.
func (c *checker) advance() error {
	msg, err := c.history.read()
	if err != nil {
		return err
	}
	if msg == nil {
		c.next = nil
		return nil
	}
	cp, err := checkpoint.Open(msg, c.key)
	p := &Problem{BadHistory, "checkpoints", c.history.began, -1, -1, ""}
	switch {
	case err != nil:
		p.Text = err.Error()
	case cp.Number != c.Checkpoints:
		p.Text = fmt.Sprintf("checkpoint %d should stand here, and it is %d", c.Checkpoints, cp.Number)
	case c.Checkpoints > 0 && cp.Tree.N <= c.Signed.N:
		p.Text = fmt.Sprintf("it covers %d records, no more than the one before", cp.Tree.N)
	default:
		c.Checkpoints++
		c.next, c.last = &cp, &cp
		return nil
	}
	return c.earlier(p)
}

// head reads version and number off a line, which begins with them.
func head(line []byte) (version, seq int64, ok bool) {
	rest, ok1 := bytes.CutPrefix(line, []byte(`{"v":`))
	v, rest, ok2 := bytes.Cut(rest, []byte(`,"seq":`))
	s, _, ok3 := bytes.Cut(rest, []byte(","))
	if !ok1 || !ok2 || !ok3 || len(v) > 9 || len(s) > 19 {
		return 0, 0, false
	}
	version, err1 := strconv.ParseInt(string(v), 10, 64)
	seq, err2 := strconv.ParseInt(string(s), 10, 64)
	return version, seq, err1 == nil && err2 == nil
}

func timeOf(line []byte) time.Time {
	var r struct{ Time time.Time }
	if json.Unmarshal(line, &r) != nil {
		return time.Time{}
	}
	return r.Time
}

func kindOf(line []byte) string {
	var r struct{ Kind string }
	if json.Unmarshal(line, &r) != nil {
		return ""
	}
	return r.Kind
}
