package verify

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/checkpoint"
	"sallyport/audit/segment"
)

// Prover has proved records of a log. It keeps a hash of each, and no line.
type Prover struct {
	c       *checker // what is there: segments, and what was removed
	key     string
	msg     []byte // the checkpoint that all proofs lead to, nil for none
	tree    tlog.Tree
	hashes  tlog.HashReader
	seqs    []int64 // that it covers
	leaves  []tlog.Hash
	anchors []*AnchorProof
}

// ProveRecords proves the records with the given numbers, which ascend, as far as the
// newest checkpoint covers them, and that the anchors in opts are over the beginning
// of the same tree.
//
// It reads no more of the log than that takes: the lines of the records, the hashes
// that the tree file has of the rest, and that checkpoint. None of it is trusted, and
// nothing is said of the records that are not asked for. Only where all of that
// does not make a proof which the key confirms, the whole log is verified, which
// names what is wrong as [Verify] does; if it is only the tree file, or that is not
// there, the hashes are computed out of all records.
func ProveRecords(dir, key string, seqs []int64, opts Options) (*Prover, error) {
	v, err := verifier(key)
	if err != nil {
		return nil, err
	}
	open := func() *Prover {
		return &Prover{key: key, c: &checker{dir: dir, key: v, sums: map[int64]string{}, stop: opts.Stop, listed: opts.listed}}
	}
	p := open()
	err = p.quickly(seqs, opts.Anchors)
	if err == nil {
		return p, nil
	}
	p.Close()
	if errors.Is(err, ErrStopped) || errors.Is(err, ErrNotFound) {
		return nil, err
	}
	tell := func(err error) {
		if opts.Tell != nil {
			opts.Tell(err)
		}
	}
	tell(err)
	report, err := Verify(dir, key, opts)
	if bad, ok := errors.AsType[*Problem](err); ok && bad.Fault == BadTree { // all else was found good
		tell(bad)
		err = nil
	}
	if err != nil {
		return nil, err
	}
	p = open()
	if err := p.slowly(report.Signed, seqs, opts.Anchors); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Close closes what p reads.
func (p *Prover) Close() { p.c.close() }

// Covered returns how many of the records are proved: the first ones.
func (p *Prover) Covered() int { return len(p.seqs) }

// Anchors returns a proof of each anchor, nil if no record is proved.
func (p *Prover) Anchors() []*AnchorProof { return p.anchors }

// quickly proves out of what is stored.
func (p *Prover) quickly(seqs []int64, anchors [][]byte) error {
	f, size, err := openRegular(filepath.Join(p.c.dir, "checkpoints"))
	if err != nil {
		return err
	}
	p.c.history = newHistory(f, size)
	if p.msg, err = newest(f, size); err != nil {
		return err
	}
	if p.msg != nil {
		cp, err := checkpoint.Open(p.msg, p.c.key)
		if err != nil {
			return err
		}
		p.tree = cp.Tree
	}
	if err := p.open(); err != nil {
		return err
	}
	p.hashes = (*storedHashes)(p.c)
	return p.prove(seqs, anchors)
}

// slowly proves out of all records, which were found good up to the given tree.
func (p *Prover) slowly(tree tlog.Tree, seqs []int64, anchors [][]byte) error {
	f, size, err := openRegular(filepath.Join(p.c.dir, "checkpoints"))
	if err != nil {
		return err
	}
	p.c.history = newHistory(f, size)
	p.tree = tree
	if tree.N > 0 {
		if p.msg, _, err = covering(f, size, 0, tree.N-1); err != nil {
			return err
		}
		if cp, err := checkpoint.Open(p.msg, p.c.key); err != nil || cp.Tree != tree {
			return errors.Join(errors.New("the checkpoint has gone"), err)
		}
	}
	if err := p.open(); err != nil {
		return err
	}
	w := wanted{}
	p.hashes = w
	if err := w.all(p, seqs, anchors); err != nil {
		return err
	}
	if err := w.find(p.c, tree.N); err != nil {
		return err
	}
	return p.prove(seqs, anchors)
}

// open finds the note of what was removed, the tree and the segments.
func (p *Prover) open() error {
	if err := p.c.openNote(); err != nil {
		return err
	}
	f, size, err := openRegular(filepath.Join(p.c.dir, "tree"))
	switch {
	case errors.Is(err, fs.ErrNotExist): // nobody trusts it
	case err != nil:
		return err
	default:
		p.c.stored = newStored(f, size, p.c.kept.First)
	}
	err = p.c.list()
	if p.c.listed != nil {
		p.c.listed()
	}
	return err
}

// prove reads the records, and checks that hashes lead from each to the tree.
func (p *Prover) prove(seqs []int64, anchors [][]byte) error {
	if len(seqs) > 0 && seqs[0] < p.c.kept.First {
		return fmt.Errorf("%w: %d, which was removed in order", ErrNotFound, seqs[0])
	}
	n, _ := slices.BinarySearch(seqs, p.tree.N)
	p.seqs, p.leaves = seqs[:n], make([]tlog.Hash, n)
	err := p.c.read(p.seqs, func(i int, line []byte) error {
		p.leaves[i] = tlog.RecordHash(line)
		return nil
	})
	if err != nil || n == 0 {
		return err
	}
	for i, seq := range p.seqs {
		path, err := tlog.ProveRecord(p.tree.N, seq, p.hashes)
		if err == nil {
			err = tlog.CheckRecord(path, p.tree.N, p.tree.Hash, seq, p.leaves[i])
		}
		if err != nil {
			return fmt.Errorf("proving record %d: %w", seq, err)
		}
	}
	p.anchors, err = proveAnchors(p.key, anchors, p.msg, p.hashes)
	return err
}

// Checkpoints returns, of the checkpoints of the log, the first that covers each record
// that is proved, and the one that the proofs lead to.
func (p *Prover) Checkpoints() (first [][]byte, err error) {
	var at, covered int64
	for _, seq := range p.seqs {
		if seq < covered {
			continue
		}
		var msg []byte
		if msg, at, err = covering(p.c.history.f, p.c.history.size, at, seq); err != nil {
			return nil, err
		}
		cp, err := checkpoint.Open(msg, p.c.key)
		if err != nil {
			return nil, err
		}
		covered = cp.Tree.N
		first = append(first, msg)
	}
	if n := len(first); n > 0 && !bytes.Equal(first[n-1], p.msg) {
		first = append(first, p.msg)
	}
	return first, nil
}

// beyond says why a record has no proof.
func (p *Prover) beyond(seq int64) error {
	err := p.c.read([]int64{seq}, func(int, []byte) error { return ErrNotCovered })
	if errors.Is(err, errNotThere) {
		return fmt.Errorf("%w: %d", ErrNotFound, seq)
	}
	return err
}

// Lines calls use with the line of each record that is proved.
func (p *Prover) Lines(use func(line []byte) error) error {
	return p.c.read(p.seqs, func(i int, line []byte) error {
		if tlog.RecordHash(line) != p.leaves[i] {
			return fmt.Errorf("record %d was changed while it was read", p.seqs[i])
		}
		return use(line)
	})
}

// Each calls use with the proof of each, after [Proof.Check].
func (p *Prover) Each(use func(*Proof) error) error {
	i := 0
	return p.Lines(func(line []byte) error {
		proof := &Proof{Record: bytes.Clone(line), Index: p.seqs[i], Checkpoint: p.msg}
		i++
		var err error
		if proof.Path, err = tlog.ProveRecord(p.tree.N, proof.Index, p.hashes); err != nil {
			return fmt.Errorf("proving record %d: %w", proof.Index, err)
		}
		if err := proof.Check(p.key); err != nil {
			return err
		}
		return use(proof)
	})
}

// errNotThere means that a record is not in the file that should hold it.
var errNotThere = errors.New("is not in its place")

// read calls use with the lines of records, by their numbers, which ascend.
func (c *checker) read(seqs []int64, use func(i int, line []byte) error) error {
	for i := 0; i < len(seqs); {
		at, found := slices.BinarySearch(c.starts, seqs[i])
		if !found {
			at--
		}
		if at < 0 {
			return fmt.Errorf("record %d %w", seqs[i], errNotThere)
		}
		next := len(seqs)
		if at+1 < len(c.starts) {
			n, _ := slices.BinarySearch(seqs, c.starts[at+1])
			next = n
		}
		var fault error
		err := c.scan(c.starts[at], func(n int64, line []byte) bool {
			if n != seqs[i] {
				return true
			}
			if _, seq, ok := head(line); !ok || seq != n {
				return false
			}
			fault = use(i, line)
			i++
			return fault == nil && i < next
		})
		switch {
		case err != nil || fault != nil:
			return errors.Join(fault, err)
		case i < next:
			return fmt.Errorf("record %d %w, in %s", seqs[i], errNotThere, c.nameOf(c.starts[at]))
		}
	}
	return nil
}

// each calls use with every line that there is, until it returns false.
func (c *checker) each(use func(n int64, line []byte) bool) error {
	for _, first := range c.starts {
		goOn := true
		err := c.scan(first, func(n int64, line []byte) bool {
			goOn = use(n, line)
			return goOn
		})
		if err != nil || !goOn {
			return err
		}
	}
	return nil
}

// scan calls use with the lines of a segment, until it returns false.
func (c *checker) scan(first int64, use func(n int64, line []byte) bool) error {
	f, err := c.lines(first)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	in := bufio.NewReaderSize(f, 2*maxLine)
	for n := first; ; n++ {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			return nil // what is left is no whole line
		case err != nil:
			return fmt.Errorf("reading %s: %w", c.nameOf(first), err)
		case !use(n, line[:len(line)-1]):
			return nil
		}
	}
}

// storedHashes are those of the tree file and, of what was removed, those that the
// note of it has.
type storedHashes checker

// ReadHashes implements [tlog.HashReader].
func (c *storedHashes) ReadHashes(at []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(at))
	roots := rootIndexes(c.kept.First)
	for i, x := range at {
		if k := slices.Index(roots, x); k >= 0 {
			out[i] = c.kept.Edge[k]
			continue
		}
		if c.stored == nil {
			return nil, errors.New("the log has no tree file")
		}
		h, err := c.stored.ReadHashes([]int64{x})
		if err != nil {
			return nil, err
		}
		out[i] = h[0]
	}
	return out, nil
}

// wanted are the hashes that proofs take, by where they are stored.
type wanted map[int64]tlog.Hash

// ReadHashes implements [tlog.HashReader]. What is not there yet is wanted.
func (w wanted) ReadHashes(at []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(at))
	for i, x := range at {
		out[i] = w[x]
		w[x] = out[i]
	}
	return out, nil
}

// all wants what it takes to prove the records and anchors.
func (w wanted) all(p *Prover, seqs []int64, anchors [][]byte) error {
	for _, seq := range seqs {
		if seq >= p.tree.N {
			break
		}
		if _, err := tlog.ProveRecord(p.tree.N, seq, w); err != nil {
			return fmt.Errorf("proving record %d: %w", seq, err)
		}
	}
	for _, msg := range anchors {
		a, err := checkpoint.Open(msg, p.c.key)
		if err != nil {
			return fmt.Errorf("the anchor: %w", err)
		}
		if a.Tree.N == 0 || a.Tree.N > p.tree.N {
			continue
		}
		if _, err := tlog.ProveTree(p.tree.N, a.Tree.N, w); err != nil {
			return fmt.Errorf("proving the anchor of %d records: %w", a.Tree.N, err)
		}
	}
	return nil
}

// find computes them out of the first n records. Of those that were removed it takes
// what is stored: whether that is true shows when a proof is checked.
func (w wanted) find(c *checker, n int64) error {
	at := tlog.StoredHashCount(c.kept.First)
	for x := range w {
		if x >= at {
			continue
		}
		if h, err := (*storedHashes)(c).ReadHashes([]int64{x}); err == nil {
			w[x] = h[0]
		}
	}
	e := edge{n: c.kept.First, roots: slices.Clone(c.kept.Edge)}
	err := c.each(func(_ int64, line []byte) bool {
		if e.n == n {
			return false
		}
		for _, h := range e.add(tlog.RecordHash(line)) {
			if _, ok := w[at]; ok {
				w[at] = h
			}
			at++
		}
		return true
	})
	if err == nil && e.n != n {
		err = fmt.Errorf("%s: the log has become shorter", segment.Name(c.lastStart()))
	}
	return err
}
