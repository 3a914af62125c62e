package export

import (
	"bytes"
	"errors"
	"fmt"

	"sallyport/audit/verify"
)

// anchored takes the anchors with their proofs.
func (b *opened) anchored() error {
	for i := range b.Anchors {
		name := fmt.Sprintf("%s%03d.proof", bundleAnchor, i)
		if b.files[name] == nil {
			return fmt.Errorf("%q is missing", name)
		}
		data, err := b.read(name)
		if err != nil {
			return err
		}
		p, err := verify.ParseAnchorProof(data)
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		b.kept = append(b.kept, p)
	}
	if len(b.kept) > 0 && len(b.proofs) == 0 {
		return fmt.Errorf("%s holds anchors, and there is no record", bundleAnchor)
	}
	return nil
}

// ancestry checks that the checkpoint of a proof goes on from every anchor.
func (b *opened) ancestry(msg []byte) error {
	if b.compared -= len(b.kept); b.compared < 0 {
		return errors.New("the proofs are of too many checkpoints to compare each with every anchor")
	}
	for _, p := range b.kept {
		if err := p.Check(b.key, msg); err != nil {
			return fmt.Errorf("%s: %w", bundleAnchor, err)
		}
	}
	return nil
}

// ErrNotAnchored means that a bundle was made without an anchor that it was to be
// checked against.
var ErrNotAnchored = errors.New("the bundle was not made with this anchor, and holds no proof of it")

// madeWith checks that the bundle was made with each anchor.
func (b *opened) madeWith(anchors [][]byte) error {
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
