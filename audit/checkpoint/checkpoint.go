// Package checkpoint is the form of the log's signed checkpoints: a C2SP
// tlog-checkpoint in a signed note, with one extension line that numbers and
// dates it.
//
// It is the one piece that the writer and the verifier of a log share. It
// accepts a single spelling of every checkpoint, so that no byte of a history
// can change unseen; it trusts a note only after the signature.
package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Checkpoint says: at Time the log Origin held Tree.N records, and their
// Merkle root was Tree.Hash.
type Checkpoint struct {
	Origin string
	Tree   tlog.Tree
	Number int64 // 0, 1, 2 … in the history of one log
	Time   time.Time
}

// MaxSize bounds one signed checkpoint.
const MaxSize = 4 << 10

// ErrForm is wrapped by every error about what a checkpoint looks like, as
// against who signed it.
var ErrForm = errors.New("malformed checkpoint")

// Sign returns c as a signed note.
func (c Checkpoint) Sign(s note.Signer) ([]byte, error) {
	msg, err := note.Sign(&note.Note{Text: c.text()}, s)
	if err != nil {
		return nil, fmt.Errorf("signing a checkpoint: %w", err)
	}
	return msg, nil
}

const extension = "checkpoint "

func (c Checkpoint) text() string {
	return fmt.Sprintf("%s\n%d\n%s\n%s%d %s\n", c.Origin, c.Tree.N, c.Tree.Hash,
		extension, c.Number, c.Time.UTC().Format(time.RFC3339Nano))
}

// Open checks the signature of a note by v, and returns what it says. It
// refuses a note that Sign would have spelled otherwise.
func Open(msg []byte, v note.Verifier) (Checkpoint, error) {
	if len(msg) > MaxSize {
		return Checkpoint{}, fmt.Errorf("%w: %d bytes", ErrForm, len(msg))
	}
	n, err := note.Open(msg, note.VerifierList(v))
	if err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint is not signed by %s: %w", v.Name(), err)
	}
	c, err := parse(n.Text)
	if err != nil {
		return Checkpoint{}, err
	}
	if c.Origin != v.Name() {
		return Checkpoint{}, fmt.Errorf("%w: origin %q is not the key's name %q", ErrForm, c.Origin, v.Name())
	}
	if n.Text != c.text() || !oneSpelling(msg, n) { // a history must not have room for another
		return Checkpoint{}, fmt.Errorf("%w: not in its one spelling", ErrForm)
	}
	return c, nil
}

func parse(text string) (Checkpoint, error) {
	lines := strings.Split(text, "\n")
	if len(lines) != 5 || lines[4] != "" {
		return Checkpoint{}, fmt.Errorf("%w: want four lines", ErrForm)
	}
	ext, ok := strings.CutPrefix(lines[3], extension)
	number, stamp, ok2 := strings.Cut(ext, " ")
	if !ok || !ok2 {
		return Checkpoint{}, fmt.Errorf("%w: no number and time", ErrForm)
	}
	var c Checkpoint
	var errs [4]error
	c.Origin = lines[0]
	c.Tree.N, errs[0] = strconv.ParseInt(lines[1], 10, 64)
	c.Tree.Hash, errs[1] = tlog.ParseHash(lines[2])
	c.Number, errs[2] = strconv.ParseInt(number, 10, 64)
	c.Time, errs[3] = time.Parse(time.RFC3339Nano, stamp)
	if err := errors.Join(errs[:]...); err != nil {
		return Checkpoint{}, fmt.Errorf("%w: %w", ErrForm, err)
	}
	if c.Tree.N < 0 || c.Number < 0 {
		return Checkpoint{}, fmt.Errorf("%w: negative", ErrForm)
	}
	return c, nil
}

// Append adds a signed note to a history, which is a file of signed notes, each
// followed by an empty line.
func Append(history, msg []byte) []byte {
	return append(append(history, msg...), '\n')
}

var blank = []byte("\n\n") // ends a text, and a note

// Last returns the last whole note of a history, or of the end of one, and how
// many bytes of an unfinished note follow it.
func Last(history []byte) (msg []byte, torn int) {
	end := bytes.LastIndex(history, blank)
	for end >= 0 {
		sigs := bytes.LastIndex(history[:end], blank)
		// A signature's line begins with a dash; a text's does not.
		if sigs >= 0 && bytes.HasPrefix(history[sigs+2:], []byte("— ")) {
			start := bytes.LastIndex(history[:sigs], blank)
			if start < 0 {
				start = -2
			}
			return history[start+2 : end+1], len(history) - end - 2
		}
		end = sigs
	}
	return nil, len(history)
}
