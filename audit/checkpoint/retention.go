package checkpoint

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Retention says: the records of the log Origin before First were removed on
// purpose. It is what a log begins with in their place.
type Retention struct {
	Origin string
	First  int64     // the first record that is kept
	Record int64     // the number of the record that tells of the removal
	Time   time.Time // of the removal
	From   time.Time // of the first record that was ever removed
	Until  time.Time // of the first record that is kept
	// Edge are the roots of the complete subtrees over the removed records,
	// largest first: what it takes to go on with the tree.
	Edge []tlog.Hash
}

const (
	retentionTitle = "sallyport/audit/retention/v1" // no checkpoint: those begin with their origin
	retentionLines = 6
)

// Root returns the root over the removed records, which a checkpoint signed
// when they were there.
func (r Retention) Root() tlog.Hash {
	if len(r.Edge) == 0 {
		h, _ := tlog.TreeHash(0, nil) // needs no reader
		return h
	}
	h := r.Edge[len(r.Edge)-1]
	for _, left := range slices.Backward(r.Edge[:len(r.Edge)-1]) {
		h = tlog.NodeHash(left, h)
	}
	return h
}

// RetentionFile is the file of a log that holds the note.
const RetentionFile = "retained"

// Kept returns First of a note whose signature nobody checked; 0 if it is none.
func Kept(msg []byte) int64 {
	text, _, _ := strings.Cut(string(msg), "\n\n")
	r, err := parseRetention(text + "\n")
	if err != nil {
		return 0
	}
	return max(r.First, 0)
}

func (r Retention) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\nfirst %d\nrecord %d\ntime %s\nremoved %s %s\n", retentionTitle, r.Origin, r.First, r.Record,
		r.Time.UTC().Format(time.RFC3339Nano), r.From.UTC().Format(time.RFC3339Nano), r.Until.UTC().Format(time.RFC3339Nano))
	for _, h := range r.Edge {
		b.WriteString(h.String() + "\n")
	}
	return b.String()
}

// Sign returns r as a signed note.
func (r Retention) Sign(s note.Signer) ([]byte, error) {
	msg, err := note.Sign(&note.Note{Text: r.text()}, s)
	if err != nil {
		return nil, fmt.Errorf("signing a note of retention: %w", err)
	}
	return msg, nil
}

// OpenRetention checks the signature of a note by v, and returns what it says.
// It refuses a note that Sign would have spelled otherwise.
func OpenRetention(msg []byte, v note.Verifier) (Retention, error) {
	if len(msg) > 2*MaxSize {
		return Retention{}, fmt.Errorf("%w: %d bytes", ErrForm, len(msg))
	}
	n, err := note.Open(msg, note.VerifierList(v))
	if err != nil {
		return Retention{}, fmt.Errorf("note of retention is not signed by %s: %w", v.Name(), err)
	}
	r, err := parseRetention(n.Text)
	switch {
	case err != nil:
		return Retention{}, err
	case r.Origin != v.Name():
		return Retention{}, fmt.Errorf("%w: origin %q is not the key's name %q", ErrForm, r.Origin, v.Name())
	case len(r.Edge) != bits.OnesCount64(uint64(r.First)) || r.First <= 0 || r.Record < r.First:
		return Retention{}, fmt.Errorf("%w: %d hashes for %d records", ErrForm, len(r.Edge), r.First)
	case r.text() != n.Text || !oneSpelling(msg, n):
		return Retention{}, fmt.Errorf("%w: not in its one spelling", ErrForm)
	}
	return r, nil
}

func parseRetention(text string) (Retention, error) {
	lines := strings.Split(text, "\n")
	if len(lines) < retentionLines+1 || lines[0] != retentionTitle {
		return Retention{}, fmt.Errorf("%w: no note of retention", ErrForm)
	}
	var r Retention
	var errs [5]error
	number := func(line, name string) (int64, error) {
		digits, ok := strings.CutPrefix(line, name+" ")
		if !ok {
			return 0, fmt.Errorf("no %s", name)
		}
		return strconv.ParseInt(digits, 10, 64)
	}
	r.Origin = lines[1]
	r.First, errs[0] = number(lines[2], "first")
	r.Record, errs[1] = number(lines[3], "record")
	at, _ := strings.CutPrefix(lines[4], "time ")
	from, until, _ := strings.Cut(strings.TrimPrefix(lines[5], "removed "), " ")
	r.Time, errs[2] = time.Parse(time.RFC3339Nano, at)
	r.From, errs[3] = time.Parse(time.RFC3339Nano, from)
	r.Until, errs[4] = time.Parse(time.RFC3339Nano, until)
	if err := errors.Join(errs[:]...); err != nil {
		return Retention{}, fmt.Errorf("%w: %w", ErrForm, err)
	}
	for _, l := range lines[retentionLines : len(lines)-1] {
		h, err := tlog.ParseHash(l)
		if err != nil {
			return Retention{}, fmt.Errorf("%w: %w", ErrForm, err)
		}
		r.Edge = append(r.Edge, h)
	}
	return r, nil
}

// oneSpelling reports whether a note that was opened is the only spelling of
// itself: note.Open ignores what it does not know, and base64 has bits that do
// not count.
func oneSpelling(msg []byte, n *note.Note) bool {
	again, err := note.Sign(&note.Note{Text: n.Text, Sigs: n.Sigs})
	raw, err64 := base64.StdEncoding.Strict().DecodeString(n.Sigs[0].Base64)
	return err == nil && err64 == nil && base64.StdEncoding.EncodeToString(raw) == n.Sigs[0].Base64 && bytes.Equal(again, msg)
}
