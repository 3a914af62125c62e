package export

import (
	"bytes"
	"errors"
	"fmt"

	"sallyport/audit/verify"
)

// anchor takes one anchor with its proof.
func (b *opened) anchor(name string, data []byte) error {
	if name != fmt.Sprintf("%s%03d.proof", bundleAnchor, len(b.kept)) {
		return fmt.Errorf("%q is no file of a bundle", name)
	}
	p, err := verify.ParseAnchorProof(data)
	if err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	b.kept = append(b.kept, p)
	b.Anchors++
	return nil
}

// ancestry checks that every checkpoint of a proof goes on from every anchor.
func (b *opened) ancestry() error {
	if len(b.kept) > 0 && len(b.signed) == 0 {
		return fmt.Errorf("%s holds anchors, and there is no record", bundleAnchor)
	}
	var last []byte
	for _, msg := range b.signed {
		if bytes.Equal(msg, last) {
			continue // all proofs of a bundle are of one, as a rule
		}
		last = msg
		for _, p := range b.kept {
			if err := p.Check(b.key, msg); err != nil {
				return fmt.Errorf("%s: %w", bundleAnchor, err)
			}
		}
	}
	return nil
}

// ErrNotAnchored means that a bundle was made without an anchor that it was to be
// checked against.
var ErrNotAnchored = errors.New("the bundle was not made with this anchor, and holds no proof of it")

// anchored checks that the bundle was made with each anchor.
func (b *opened) anchored(anchors [][]byte) error {
	for _, msg := range anchors {
		there := false
		for _, p := range b.kept {
			there = there || bytes.Equal(p.Anchor, msg)
		}
		if !there {
			return ErrNotAnchored
		}
	}
	return nil
}
