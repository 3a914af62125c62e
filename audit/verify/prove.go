package verify

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/checkpoint"
)

// Proof shows that one record is in a log, to somebody who has the verifier key
// and nothing else of it.
type Proof struct {
	Record     []byte // the line, without its newline
	Index      int64  // its number
	Path       tlog.RecordProof
	Checkpoint []byte // a signed note over more records than Index
}

// ErrNotFound means that no record has the id that was asked for.
var ErrNotFound = errors.New("no such record")

// ErrNotCovered means that the record is younger than the last checkpoint.
var ErrNotCovered = errors.New("the record is not yet covered by a checkpoint")

// Prove returns a proof for the record with the given number, or id. It reads and
// checks what [ProveRecords] does. Where a record with an id is it asks
// opts.Find; nil reads the log until it is found.
func Prove(dir, key, id string, opts Options) (*Proof, error) {
	seq, isNumber := numberOf(id)
	var err error
	if !isNumber {
		if seq, err = numberWith(dir, key, id, opts); err != nil {
			return nil, err
		}
	}
	p, err := proveOne(dir, key, seq, opts)
	if isNumber || opts.Find == nil || err != nil && !errors.Is(err, ErrNotFound) || err == nil && hasID(p.Record, id) {
		return p, err
	}
	opts.Find = nil // it was wrong
	return Prove(dir, key, id, opts)
}

func proveOne(dir, key string, seq int64, opts Options) (*Proof, error) {
	p, err := ProveRecords(dir, key, []int64{seq}, opts)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if p.Covered() == 0 {
		return nil, p.beyond(seq)
	}
	var out *Proof
	err = p.Each(func(proof *Proof) error { out = proof; return nil })
	return out, err
}

func numberOf(id string) (int64, bool) {
	n, err := strconv.ParseInt(id, 10, 64)
	return n, err == nil && n >= 0 && strconv.FormatInt(n, 10) == id
}

// numberWith returns that of the record with an id.
func numberWith(dir, key, id string, opts Options) (int64, error) {
	if opts.Find != nil {
		return opts.Find(id)
	}
	v, err := verifier(key)
	if err != nil {
		return 0, err
	}
	c := &checker{dir: dir, key: v, sums: map[int64]string{}, stop: opts.Stop}
	defer c.close()
	if err := errors.Join(c.openNote(), c.list()); err != nil {
		return 0, err
	}
	found := int64(-1)
	err = c.each(func(n int64, line []byte) bool {
		if hasID(line, id) {
			found = n
		}
		return found < 0
	})
	if err == nil && found < 0 {
		err = fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	return found, err
}

func hasID(line []byte, id string) bool {
	var r struct{ ID string }
	return bytes.Contains(line, []byte(id)) && json.Unmarshal(line, &r) == nil && r.ID == id
}

func verifier(key string) (note.Verifier, error) {
	v, err := note.NewVerifier(strings.TrimSpace(key))
	if err != nil {
		return nil, fmt.Errorf("reading the verifier key: %w", err)
	}
	return v, nil
}

// Check reports whether p proves its record to be in the log of key.
func (p *Proof) Check(key string) error {
	v, err := verifier(key)
	if err != nil {
		return err
	}
	cp, err := checkpoint.Open(p.Checkpoint, v)
	if err != nil {
		return err
	}
	_, seq, ok := head(p.Record)
	if !ok || seq != p.Index {
		return fmt.Errorf("the record is not number %d", p.Index)
	}
	if err := tlog.CheckRecord(p.Path, cp.Tree.N, cp.Tree.Hash, p.Index, tlog.RecordHash(p.Record)); err != nil {
		return fmt.Errorf("record %d is not in the log of %s: %w", p.Index, cp.Origin, err)
	}
	return nil
}

const proofHeader = "c2sp.org/tlog-proof@v1"

// Marshal returns the record's line and after it the proof, in the form of
// C2SP's tlog-proof.
func (p *Proof) Marshal() []byte {
	out := append(bytes.Clone(p.Record), '\n')
	out = fmt.Appendf(out, "%s\nindex %d\n", proofHeader, p.Index)
	out = append(appendPath(out, p.Path), '\n')
	return append(out, p.Checkpoint...)
}

// appendPath writes the hashes of a proof, one a line.
func appendPath(out []byte, path []tlog.Hash) []byte {
	for _, h := range path {
		out = fmt.Appendf(out, "%s\n", h)
	}
	return out
}

// parsePath reads the lines that appendPath wrote.
func parsePath(lines []string) (path []tlog.Hash, err error) {
	for _, l := range lines {
		raw, err := base64.StdEncoding.Strict().DecodeString(l)
		if err != nil || len(raw) != tlog.HashSize {
			return nil, errors.New("malformed hash")
		}
		path = append(path, tlog.Hash(raw))
	}
	return path, nil
}

// ParseProof reads what Marshal wrote. It proves nothing until it is checked.
func ParseProof(data []byte) (*Proof, error) {
	record, rest, _ := bytes.Cut(data, []byte("\n"))
	text, msg, ok := bytes.Cut(rest, []byte("\n\n"))
	lines := strings.Split(string(text), "\n")
	if !ok || len(lines) < 2 || lines[0] != proofHeader {
		return nil, errors.New("reading a proof: this is none")
	}
	digits, ok := strings.CutPrefix(lines[1], "index ")
	index, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || strconv.FormatInt(index, 10) != digits {
		return nil, errors.New("reading a proof: no index")
	}
	path, err := parsePath(lines[2:])
	if err != nil {
		return nil, fmt.Errorf("reading a proof: %w", err)
	}
	p := &Proof{Record: record, Index: index, Checkpoint: msg, Path: path}
	if !bytes.Equal(p.Marshal(), data) {
		return nil, errors.New("reading a proof: not in its one spelling")
	}
	return p, nil
}
