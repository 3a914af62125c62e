package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sallyport/control/durable"
)

// root is a CA certificate and its key.
type root struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// pair names the files of a root.
type pair struct{ cert, key string }

// The root that signs, and the one that is to follow it.
var (
	current = pair{"ca.crt", "ca.key"}
	next    = pair{"next.crt", "next.key"}
)

// ErrNoNext says that no root was prepared.
var ErrNoNext = errors.New("certs: no next root was prepared")

// Prepare makes the root that is to follow, unless there is one. From then on
// [CA.Certificate] has both, and the old one goes on signing: sandboxes that
// are made now will trust what signs after [CA.Switch].
func (c *CA) Prepare() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next != nil {
		return nil
	}
	if err := create(c.dir, next, c.now()); err != nil {
		return fmt.Errorf("making the next root in %q: %w", c.dir, err)
	}
	r, err := load(c.dir, next, c.now())
	if err != nil {
		return fmt.Errorf("making the next root in %q: %w", c.dir, err)
	}
	c.next = r
	return nil
}

// Switch makes the next root the one that signs and forgets the old one with
// its leaves. Streams that are open go on. It returns [ErrNoNext] without one.
func (c *CA) Switch() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		return ErrNoNext
	}
	if err := promote(c.dir); err != nil {
		return fmt.Errorf("switching to the next root in %q: %w", c.dir, err)
	}
	c.signer.Store(c.next)
	c.next = nil
	clear(c.leaves)
	c.order.Init()
	return nil
}

// promote gives the next root the names of the current one, the key first; see
// [settle] for a crash in between.
func promote(dir string) error {
	for _, n := range [][2]string{{next.key, current.key}, {next.cert, current.cert}} {
		if err := os.Rename(filepath.Join(dir, n[0]), filepath.Join(dir, n[1])); err != nil {
			return err
		}
	}
	return durable.SyncDir(dir)
}

// settle ends what a crash cut short. A next certificate without its key: the
// key has its new name already, so the switch is carried through. A next key
// without its certificate was never shown to anybody, and goes.
func settle(dir string) error {
	haveCert, err := exists(filepath.Join(dir, next.cert))
	if err != nil {
		return err
	}
	haveKey, err := exists(filepath.Join(dir, next.key))
	switch {
	case err != nil || haveCert == haveKey:
		return err
	case haveCert:
		return os.Rename(filepath.Join(dir, next.cert), filepath.Join(dir, current.cert))
	default:
		return os.Remove(filepath.Join(dir, next.key))
	}
}

// Roots returns the root that signs and, while one is prepared, the next.
func (c *CA) Roots() []*x509.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	roots := []*x509.Certificate{c.signer.Load().cert}
	if c.next != nil {
		roots = append(roots, c.next.cert)
	}
	return roots
}

// Certificate returns the roots in PEM: what a client has to trust.
func (c *CA) Certificate() []byte {
	var out bytes.Buffer
	for _, r := range c.Roots() {
		_ = pem.Encode(&out, &pem.Block{Type: pemCertificate, Bytes: r.Raw}) // into memory
	}
	return out.Bytes()
}

// Fingerprint names a certificate in DER: "sha256:…".
func Fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return "sha256:" + hex.EncodeToString(sum[:])
}
