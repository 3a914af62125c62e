package verify

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/checkpoint"
	"sallyport/audit/segment"
)

// edge is a Merkle tree (RFC 6962) that only grows: the roots of its complete
// subtrees, largest first.
type edge struct {
	n     int64
	roots []tlog.Hash
	added []tlog.Hash // scratch
}

// add appends a leaf and returns the hashes that are new with it, in tlog's
// storage order. They are good until the next add.
func (e *edge) add(leaf tlog.Hash) []tlog.Hash {
	e.added = append(e.added[:0], leaf)
	for range bits.TrailingZeros64(uint64(e.n) + 1) {
		last := len(e.roots) - 1
		leaf = tlog.NodeHash(e.roots[last], leaf)
		e.added = append(e.added, leaf)
		e.roots = e.roots[:last]
	}
	e.roots = append(e.roots, leaf)
	e.n++
	return e.added
}

func (e *edge) root() tlog.Hash {
	if e.n == 0 {
		h, _ := tlog.TreeHash(0, nil) // needs no reader
		return h
	}
	h := e.roots[len(e.roots)-1]
	for _, left := range slices.Backward(e.roots[:len(e.roots)-1]) {
		h = tlog.NodeHash(left, h)
	}
	return h
}

func (e *edge) clone() edge {
	return edge{n: e.n, roots: slices.Clone(e.roots)}
}

// stored reads the hash file beside the records. It proves nothing, but where
// it agrees with a signature it tells which of the records below is not the
// one that was signed.
type stored struct {
	f    *os.File
	size int64
	in   *bufio.Reader
	buf  [64 * tlog.HashSize]byte
	ends int64 // the first record whose hashes it does not hold, -1 if none so far
	diff *Problem
	old  *Problem // about the hashes of records that were removed
}

// newStored begins with the hashes of record first.
func newStored(f *os.File, size, first int64) *stored {
	at := min(size, tlog.StoredHashCount(first)*tlog.HashSize)
	return &stored{f: f, size: size, in: bufio.NewReaderSize(io.NewSectionReader(f, at, size-at), 64<<10), ends: -1}
}

// removed checks the hashes of records that were removed. The file has them all,
// or, if it was made anew since a removal, of those that were removed by then
// the roots of their subtrees and nothing else.
func (s *stored) removed(first int64, roots []tlog.Hash) error {
	blank := int64(0) // leaves that are not there
	for ; blank < first; blank++ {
		leaf, err := s.ReadHashes([]int64{tlog.StoredHashIndex(0, blank)})
		if err != nil || leaf[0] != (tlog.Hash{}) {
			break // what is cut is found below
		}
	}
	// A root of one leaf stands where its leaf does.
	for _, from := range []int64{blank, blank + 1 - blank%2} {
		if from > first || blank == 0 && from > 0 {
			continue
		}
		ok, err := s.leadsTo(from, first, roots)
		if ok || err != nil {
			return err
		}
	}
	s.old = &Problem{BadTree, "tree", 0, -1, -1, "the hashes of records that were removed are not those that were signed"}
	return nil
}

// leadsTo reports whether the hashes before record first make up roots, if
// nothing but roots is known of the records before from.
func (s *stored) leadsTo(from, first int64, roots []tlog.Hash) (bool, error) {
	at := rootIndexes(from)
	known, err := s.ReadHashes(at)
	if err != nil {
		return false, nil //nolint:nilerr // it is cut
	}
	e := edge{n: from, roots: known}
	in := bufio.NewReaderSize(io.NewSectionReader(s.f, 0, tlog.StoredHashCount(first)*tlog.HashSize), 64<<10)
	same := func(want tlog.Hash) bool {
		var have tlog.Hash
		if _, e := io.ReadFull(in, have[:]); e != nil {
			err = e
		}
		return err == nil && have == want
	}
	for i := range tlog.StoredHashCount(from) {
		want := tlog.Hash{}
		if k := slices.Index(at, i); k >= 0 {
			want = known[k]
		}
		if !same(want) {
			return false, readError(err)
		}
	}
	for e.n < first {
		var leaf tlog.Hash
		if _, err = io.ReadFull(in, leaf[:]); err != nil {
			return false, readError(err)
		}
		for _, h := range e.add(leaf)[1:] {
			if !same(h) {
				return false, readError(err)
			}
		}
	}
	return slices.Equal(e.roots, roots), nil
}

// readError is nil for a file that ends too early: that is not good, but was read.
func readError(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return fmt.Errorf("reading the tree: %w", err)
}

// rootIndexes returns where the roots of the complete subtrees over the first n
// records are stored, largest first.
func rootIndexes(n int64) []int64 {
	var out []int64
	for at, left := int64(0), n; left > 0; {
		level := bits.Len64(uint64(left)) - 1
		out = append(out, tlog.StoredHashIndex(level, at>>level))
		at, left = at+1<<level, left-1<<level
	}
	return out
}

// compare remembers the first record whose hashes are not the ones stored.
func (s *stored) compare(n int64, file string, line int64, hashes []tlog.Hash) error {
	if s.ends >= 0 || s.diff != nil {
		return nil
	}
	buf := s.buf[:len(hashes)*tlog.HashSize]
	switch _, err := io.ReadFull(s.in, buf); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		s.ends = n
		return nil
	case err != nil:
		return fmt.Errorf("reading the tree: %w", err)
	}
	for i, h := range hashes {
		if tlog.Hash(buf[i*tlog.HashSize:]) != h {
			s.diff = &Problem{Changed, file, line, n, n, "it is not the record that was signed"}
			return nil
		}
	}
	return nil
}

// verdict is about the file itself, after the records up to e were found good.
func (c *checker) verdict(e edge, signed int64) error {
	s := c.stored
	const advice = "; the records are good, and it is made anew if you delete it before the log is opened"
	if s.old != nil {
		s.old.Text += advice
		return s.old
	}
	if s.diff != nil {
		return &Problem{BadTree, "tree", 0, s.diff.Seq, s.diff.Seq, "a hash is wrong" + advice}
	}
	if s.ends >= 0 && s.ends < signed { // it is written before a checkpoint is
		return &Problem{BadTree, "tree", 0, s.ends, signed - 1, "it is cut" + advice}
	}
	if s.size <= tlog.StoredHashCount(e.n)*tlog.HashSize {
		return nil
	}
	had, whole, err := s.reach(e.clone())
	switch {
	case err != nil:
		return err
	case !whole:
		return &Problem{
			BadTree, "tree", 0, -1, -1,
			"it goes on after the records, with what are no hashes of records: keep a copy before it is made anew",
		}
	}
	return &Problem{
		Cut, segment.Name(c.lastStart()), 0, e.n, had - 1,
		fmt.Sprintf("the hash file is of %d records, and %d are left; keep it: it tells which were there", had, e.n),
	}
}

// reach goes on from e with the hashes that follow, and returns of how many
// records they are. It reports false if what follows is not that to the end.
func (s *stored) reach(e edge) (int64, bool, error) {
	for {
		had := e.n
		var h tlog.Hash
		if _, err := io.ReadFull(s.in, h[:]); err != nil {
			return had, errors.Is(err, io.EOF), readError(err)
		}
		for _, want := range e.add(h)[1:] {
			if _, err := io.ReadFull(s.in, h[:]); err != nil || h != want {
				return had, false, readError(err)
			}
		}
	}
}

// ReadHashes implements [tlog.HashReader].
func (s *stored) ReadHashes(at []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(at))
	for i, x := range at {
		if _, err := s.f.ReadAt(out[i][:], x*tlog.HashSize); err != nil {
			return nil, fmt.Errorf("reading the tree: %w", err)
		}
	}
	return out, nil
}

// leavesAgree reports whether the stored leaves from e on make up the tree that
// cp signs: then they are the leaves that were signed.
func (s *stored) leavesAgree(e edge, cp checkpoint.Checkpoint) bool {
	for e.n < cp.Tree.N {
		leaf, err := s.ReadHashes([]int64{tlog.StoredHashIndex(0, e.n)})
		if err != nil {
			return false
		}
		e.add(leaf[0])
	}
	return e.root() == cp.Tree.Hash
}

// locate names the record, or the records among which it is, that made the
// root differ from cp.
func (c *checker) locate(cp checkpoint.Checkpoint) error {
	if p := c.known(cp); p != nil {
		return p
	}
	return &Problem{
		Changed, c.file, 0, c.signed.n, cp.Tree.N - 1,
		fmt.Sprintf("one of them at least is not what checkpoint %d was signed over, and the hash file does not tell which", cp.Number),
	}
}

// known returns the first record that is not the one cp was signed over, if the
// hash file tells.
func (c *checker) known(cp checkpoint.Checkpoint) *Problem {
	if c.stored == nil || c.stored.diff == nil || c.stored.diff.Seq < c.signed.n || cp.Tree.N <= c.stored.diff.Seq {
		return nil
	}
	if !c.stored.leavesAgree(c.signed.clone(), cp) {
		return nil
	}
	return c.stored.diff
}

// earlier returns p, or what is known about a record before it.
func (c *checker) earlier(p *Problem) error {
	if c.next == nil {
		return p
	}
	if k := c.known(*c.next); k != nil && (p.Seq < 0 || k.Seq < p.Seq) {
		return k
	}
	return p
}
