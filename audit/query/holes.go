package query

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"path/filepath"

	"sallyport/audit/checkpoint"
	"sallyport/control/regular"
)

// Hole is a place where the numbers of records do not go up by one: the log is not
// whole there, and an answer out of it may lack something. That there is none proves
// nothing: see audit/verify.
type Hole struct {
	From uint64 `json:"from"` // number of the first record that is missing
	To   uint64 `json:"to"`   // of the last one
	// Misplaced tells that the records are there, but twice or out of their order.
	Misplaced bool `json:"misplaced,omitempty"`
	// After and Before name the segments around it, which are one if it is within that.
	After  string `json:"after,omitempty"` // "" if it is at the beginning of the log
	Before string `json:"before"`
	// More is how many others of this segment are not told one by one.
	More int `json:"more,omitempty"`
}

// HoleError tells of a [Hole].
type HoleError struct{ Hole }

// Error implements error.
func (e *HoleError) Error() string { return e.String() }

// String is what people read.
func (h Hole) String() string {
	which, are := fmt.Sprintf("record %d", h.From), "is"
	if h.To > h.From {
		which, are = fmt.Sprintf("records %d to %d", h.From, h.To), "are"
	}
	where := fmt.Sprintf("between %s and %s", h.After, h.Before)
	switch h.After {
	case "":
		where = fmt.Sprintf("before %s, and no note tells of a removal", h.Before)
	case h.Before:
		where = "in " + h.Before
	}
	if h.More > 0 {
		where += fmt.Sprintf(", as %d other places there", h.More)
	}
	if h.Misplaced {
		return fmt.Sprintf("%s %s there twice, or not in place, %s", which, are, where)
	}
	return fmt.Sprintf("%s %s missing %s", which, are, where)
}

// Numbers follows the numbers of the records of one segment.
type Numbers struct {
	Next uint64 `json:"next"` // that the next record has
	// Bad is how many lines since the last record are none: as many records may be missing.
	Bad     uint64 `json:"bad,omitempty"`
	Damaged bool   `json:"damaged,omitempty"` // what follows cannot be read
	Holes   []Hole `json:"holes,omitempty"`   // at most maxHoles
}

// maxHoles bounds how many holes of one segment are told one by one.
const maxHoles = 8

// See takes the number of the record that a segment, the file at path, holds next.
func (n *Numbers) See(seq uint64, path string) {
	switch {
	case seq == math.MaxUint64 || seq < n.Next:
		n.misplaced(seq, filepath.Base(path))
		return
	case seq > n.Next+n.Bad:
		file := filepath.Base(path)
		n.add(Hole{From: n.Next + n.Bad, To: seq - 1, After: file, Before: file})
	}
	n.Next, n.Bad = seq+1, 0
}

// misplaced adds a record to those before it, if it goes on from them.
func (n *Numbers) misplaced(seq uint64, file string) {
	if i := len(n.Holes) - 1; i >= 0 && n.Holes[i].More == 0 && n.Holes[i].Misplaced && n.Holes[i].To+1 == seq {
		n.Holes[i].To = seq
		return
	}
	n.add(Hole{From: seq, To: seq, Misplaced: true, After: file, Before: file})
}

func (n *Numbers) add(h Hole) {
	if len(n.Holes) == maxHoles {
		n.Holes[maxHoles-1].More++
		return
	}
	n.Holes = append(n.Holes, h)
}

// Between returns the hole between a segment that was read to its end, the file at path, or
// the beginning of the log if that is "", and the next one; nil if there is none, or if
// retention removed what would be in it.
func (n *Numbers) Between(path string, next Segment) *Hole {
	first := uint64(next.First)
	h := Hole{From: n.Next + n.Bad, To: first - 1, Before: filepath.Base(next.Path)}
	if path != "" {
		h.After = filepath.Base(path)
	}
	switch {
	case n.Damaged:
		return nil
	case first < n.Next:
		h.From, h.To, h.Misplaced = first, n.Next-1, true
		return &h
	case first <= h.From:
		return nil
	}
	h.From = max(h.From, kept(filepath.Dir(next.Path)))
	if h.From >= first {
		return nil
	}
	return &h
}

// kept is the number of the first record that retention kept, as the log's note says. Whether
// that is signed is for audit/verify.
func kept(dir string) uint64 {
	f, _, err := regular.Open(filepath.Join(dir, checkpoint.RetentionFile))
	if err != nil {
		return 0
	}
	defer f.Close()
	msg, err := io.ReadAll(io.LimitReader(f, 2*checkpoint.MaxSize))
	if err != nil {
		return 0
	}
	return uint64(checkpoint.Kept(msg))
}

// numberOf reads the number of a record out of the beginning of its line, without the
// rest of it; ok is false if the line is not as [audit.Log] writes them.
func numberOf(line []byte) (seq uint64, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(`{"v":`))
	if !ok || line[len(line)-1] != '}' {
		return 0, false
	}
	if _, rest, ok = digits(rest); !ok {
		return 0, false
	}
	if rest, ok = bytes.CutPrefix(rest, []byte(`,"seq":`)); !ok {
		return 0, false
	}
	seq, rest, ok = digits(rest)
	return seq, ok && len(rest) > 0 && rest[0] == ','
}

// digits reads a number of at most 18 digits.
func digits(b []byte) (n uint64, rest []byte, ok bool) {
	i := 0
	for i < len(b) && i < 18 && b[i] >= '0' && b[i] <= '9' {
		n = n*10 + uint64(b[i]-'0')
		i++
	}
	return n, b[i:], i > 0
}
