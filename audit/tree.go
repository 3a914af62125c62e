package audit

import (
	"math/bits"

	"golang.org/x/mod/sumdb/tlog"
)

// tree is the Merkle tree (RFC 6962) over the lines so far, as little of it as
// is needed to go on: the roots of the complete subtrees, largest first.
type tree struct {
	n    int64
	edge []tlog.Hash
	// stored are the hashes that leaves added since it was last taken, in
	// tlog's storage order.
	stored []byte
}

// add appends a leaf.
func (t *tree) add(leaf tlog.Hash) {
	t.stored = append(t.stored, leaf[:]...)
	h := leaf
	for range bits.TrailingZeros64(uint64(t.n) + 1) {
		last := len(t.edge) - 1
		h = tlog.NodeHash(t.edge[last], h)
		t.stored = append(t.stored, h[:]...)
		t.edge = t.edge[:last]
	}
	t.edge = append(t.edge, h)
	t.n++
}

// head returns size and root.
func (t *tree) head() tlog.Tree {
	if t.n == 0 {
		root, _ := tlog.TreeHash(0, nil) // the hash of nothing needs no reader
		return tlog.Tree{Hash: root}
	}
	h := t.edge[len(t.edge)-1]
	for i := len(t.edge) - 2; i >= 0; i-- {
		h = tlog.NodeHash(t.edge[i], h)
	}
	return tlog.Tree{N: t.n, Hash: h}
}

// edgeIndexes returns where the roots of the complete subtrees over n leaves
// are stored, largest first.
func edgeIndexes(n int64) []int64 {
	var at []int64
	for done, left := int64(0), n; left > 0; {
		level := bits.Len64(uint64(left)) - 1
		at = append(at, tlog.StoredHashIndex(level, done>>level))
		done, left = done+1<<level, left-1<<level
	}
	return at
}

// treeAt returns the tree of the first n leaves out of stored hashes.
func treeAt(n int64, r tlog.HashReader) (tree, error) {
	t := tree{n: n}
	at := edgeIndexes(n)
	if len(at) == 0 {
		return t, nil
	}
	edge, err := r.ReadHashes(at)
	t.edge = edge
	return t, err
}
