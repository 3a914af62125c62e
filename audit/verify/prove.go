package verify

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
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

// Prove checks the whole log in dir as [Verify] does, and returns a proof for
// the record with the given id, or number.
func Prove(dir, key, id string, opts Options) (*Proof, error) {
	found := false
	proofs, _, err := ProveAll(dir, key, opts, func(line []byte) bool {
		_, n, _ := head(line)
		hit := !found && (strconv.FormatInt(n, 10) == id || hasID(line, id))
		found = found || hit
		return hit
	})
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, fmt.Errorf("%w: %s", ErrNotFound, id)
	case len(proofs) == 0:
		return nil, ErrNotCovered
	}
	return proofs[0], nil
}

// ProveAll checks the whole log in dir, asks want about each line, in order,
// and returns a proof for each that is wanted and covered by a checkpoint, and
// of each anchor that what it was signed over is the beginning of the log that
// the proofs are of. It keeps 64 bytes a record of the log in memory.
func ProveAll(dir, key string, opts Options, want func(line []byte) bool) ([]*Proof, []*AnchorProof, error) {
	report, err := Verify(dir, key, opts)
	if err != nil {
		return nil, nil, err
	}
	proofs, hashes, err := seek(dir, key, report.Signed.N, opts.Stop, want)
	if err != nil || len(proofs) == 0 {
		return nil, nil, err
	}
	msg, err := find(dir, key, report.Signed)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range proofs {
		p.Checkpoint = msg
		if p.Path, err = tlog.ProveRecord(report.Signed.N, p.Index, hashes); err != nil {
			return nil, nil, fmt.Errorf("proving record %d: %w", p.Index, err)
		}
		if err := p.Check(key); err != nil {
			return nil, nil, err
		}
	}
	anchors, err := proveAnchors(key, opts.Anchors, msg, hashes)
	return proofs, anchors, err
}

// seek finds the records that are wanted, and returns those of the first
// signed with all of their hashes.
func seek(dir, key string, signed int64, stop func() bool, want func([]byte) bool) ([]*Proof, *stack, error) {
	v, err := note.NewVerifier(strings.TrimSpace(key))
	if err != nil {
		return nil, nil, fmt.Errorf("reading the verifier key: %w", err)
	}
	c := &checker{dir: dir, key: v, sums: map[int64]string{}, stop: stop}
	defer c.close()
	if err := errors.Join(c.openNote(), c.list()); err != nil {
		return nil, nil, err
	}
	s := newStack(c.kept)
	var proofs []*Proof
	for _, first := range c.starts {
		f, err := c.lines(first)
		if err != nil {
			return nil, nil, err
		}
		found, err := s.lines(f, signed, want)
		_ = f.Close() // it was only read
		if err != nil {
			return nil, nil, fmt.Errorf("reading %s: %w", c.nameOf(first), err)
		}
		proofs = append(proofs, found...)
	}
	return proofs, s, nil
}

// lines adds those of a segment, and returns the records that are wanted.
func (s *stack) lines(r io.Reader, signed int64, want func([]byte) bool) ([]*Proof, error) {
	var proofs []*Proof
	in := bufio.NewReaderSize(r, maxLine+2)
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return proofs, nil // what is left is no whole line
		}
		if err != nil {
			return nil, err
		}
		line = line[:len(line)-1]
		if want(line) && s.edge.n < signed {
			proofs = append(proofs, &Proof{Record: bytes.Clone(line), Index: s.edge.n})
		}
		s.add(line)
	}
}

func hasID(line []byte, id string) bool {
	var r struct{ ID string }
	return bytes.Contains(line, []byte(id)) && json.Unmarshal(line, &r) == nil && r.ID == id
}

// stack keeps every hash of a tree in memory, 64 bytes a record. Of records
// that were removed it has the roots of their subtrees, which are all that a
// proof of a later one needs.
type stack struct {
	edge   edge
	base   map[int64]tlog.Hash // by where they are stored
	from   int64               // where hashes begins
	hashes []tlog.Hash
}

func newStack(kept checkpoint.Retention) *stack {
	s := &stack{
		edge: edge{n: kept.First, roots: slices.Clone(kept.Edge)}, base: map[int64]tlog.Hash{},
		from: tlog.StoredHashCount(kept.First),
	}
	for i, at := range rootIndexes(kept.First) {
		s.base[at] = kept.Edge[i]
	}
	return s
}

func (s *stack) add(line []byte) {
	s.hashes = append(s.hashes, s.edge.add(tlog.RecordHash(line))...)
}

// ReadHashes implements [tlog.HashReader].
func (s *stack) ReadHashes(at []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(at))
	for i, x := range at {
		switch h, ok := s.base[x]; {
		case ok:
			out[i] = h
		case x < s.from || x-s.from >= int64(len(s.hashes)):
			return nil, errors.New("the log has become shorter")
		default:
			out[i] = s.hashes[x-s.from]
		}
	}
	return out, nil
}

// find returns the note of a tree.
func find(dir, key string, tree tlog.Tree) ([]byte, error) {
	v, err := note.NewVerifier(strings.TrimSpace(key))
	if err != nil {
		return nil, fmt.Errorf("reading the verifier key: %w", err)
	}
	f, size, err := openRegular(filepath.Join(dir, "checkpoints"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := newHistory(f, size)
	for {
		msg, err := h.read()
		if err != nil {
			return nil, err
		}
		if msg == nil {
			return nil, errors.New("the checkpoint has gone")
		}
		if cp, err := checkpoint.Open(msg, v); err == nil && cp.Tree == tree {
			return msg, nil
		}
	}
}

// Check reports whether p proves its record to be in the log of key.
func (p *Proof) Check(key string) error {
	v, err := note.NewVerifier(strings.TrimSpace(key))
	if err != nil {
		return fmt.Errorf("reading the verifier key: %w", err)
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
