package verify

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/checkpoint"
)

// AnchorProof shows that the records of an anchor, a checkpoint that was kept
// elsewhere, are the beginning of those of a later checkpoint: nothing that the
// anchor covers was rewritten, also not by who has the key.
type AnchorProof struct {
	Anchor []byte // the signed note
	Path   tlog.TreeProof
}

const anchorHeader = "sallyport/anchor-proof@v1"

// Marshal returns a header, the hashes of a consistency proof (RFC 6962, section
// 2.1.2) in base64, an empty line, and the anchor.
func (p *AnchorProof) Marshal() []byte {
	out := []byte(anchorHeader + "\n")
	out = append(appendPath(out, p.Path), '\n')
	return append(out, p.Anchor...)
}

// ParseAnchorProof reads what Marshal wrote. It proves nothing until it is checked.
func ParseAnchorProof(data []byte) (*AnchorProof, error) {
	text, msg, ok := bytes.Cut(data, []byte("\n\n"))
	lines := strings.Split(string(text), "\n")
	if !ok || lines[0] != anchorHeader {
		return nil, errors.New("reading the proof of an anchor: this is none")
	}
	path, err := parsePath(lines[1:])
	if err != nil {
		return nil, fmt.Errorf("reading the proof of an anchor: %w", err)
	}
	p := &AnchorProof{Anchor: msg, Path: path}
	if !bytes.Equal(p.Marshal(), data) {
		return nil, errors.New("reading the proof of an anchor: not in its one spelling")
	}
	return p, nil
}

// Check reports whether what the anchor covers is the beginning of what a later
// checkpoint of the same key covers.
func (p *AnchorProof) Check(key string, later []byte) error {
	a, l, err := openBoth(key, p.Anchor, later)
	switch {
	case err != nil:
		return err
	case a.Tree.N == 0: // of nothing
		return nil
	case a.Tree.N > l.Tree.N:
		return fmt.Errorf("the anchor is over %d records, and the checkpoint over %d", a.Tree.N, l.Tree.N)
	}
	if err := tlog.CheckTree(p.Path, l.Tree.N, l.Tree.Hash, a.Tree.N, a.Tree.Hash); err != nil {
		return fmt.Errorf("the records that the anchor of %d records covers were rewritten: %w", a.Tree.N, err)
	}
	return nil
}

func openBoth(key string, one, other []byte) (a, b checkpoint.Checkpoint, err error) {
	v, err := verifier(key)
	if err != nil {
		return a, b, err
	}
	if a, err = checkpoint.Open(one, v); err != nil {
		return a, b, fmt.Errorf("the anchor: %w", err)
	}
	b, err = checkpoint.Open(other, v)
	return a, b, err
}

// proveAnchors proves each anchor to be of the beginning of a checkpoint's tree.
func proveAnchors(key string, anchors [][]byte, later []byte, hashes tlog.HashReader) ([]*AnchorProof, error) {
	var out []*AnchorProof
	for _, msg := range anchors {
		a, l, err := openBoth(key, msg, later)
		if err != nil {
			return nil, err
		}
		p := &AnchorProof{Anchor: msg}
		if a.Tree.N > 0 {
			if p.Path, err = tlog.ProveTree(l.Tree.N, a.Tree.N, hashes); err != nil {
				return nil, fmt.Errorf("proving the anchor of %d records: %w", a.Tree.N, err)
			}
		}
		if err := p.Check(key, later); err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}
