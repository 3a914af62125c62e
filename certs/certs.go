// Package certs is the private CA of one installation: its root, and
// short-lived leaves for the names that the gateway terminates.
//
// A root can be replaced without a break: the next one is made and shown
// beside the old, and signs once nobody is left who has seen the old one only.
//
// The root's key is made here, from crypto/rand, and stays in a file that only
// its owner reads. Names come as [target.Host], which has one spelling, so one
// name has one leaf. It trusts its caller to ask only for streams that are to
// be terminated. It never signs anything but a leaf for one host, and never
// opens a connection.
package certs

import (
	"container/list"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/rules/target"
)

const (
	rootLife = 10 * 365 * 24 * time.Hour
	leafLife = 48 * time.Hour
	// backdate allows for a sandbox's clock that is behind.
	backdate = time.Hour
	// renewBefore is how long before its end a leaf is replaced: no connection
	// begins with one that is about to end.
	renewBefore = leafLife / 3

	defaultLeaves = 4096
)

// Options are the settings of a [CA].
type Options struct {
	Now    func() time.Time // required
	Leaves int              // how many leaves are kept; 4096 if zero
}

// CA is safe for use by many goroutines.
type CA struct {
	dir    string
	signer atomic.Pointer[root] // changed under mu
	// leafKey is one for all leaves of this process: a leaf's key is no
	// secret between the cells, which never see it, and making one for each
	// name would give a sandbox a way to burn CPU (DS-01).
	leafKey *ecdsa.PrivateKey
	leafID  []byte
	now     func() time.Time
	max     int

	mu      sync.Mutex // guards the four below
	next    *root      // prepared, or nil
	order   *list.List // of *leaf, the most recently used first
	leaves  map[target.Host]*list.Element
	pending map[target.Host]*mint
}

type leaf struct {
	host  target.Host
	cert  *tls.Certificate
	renew time.Time
}

// mint is a leaf that is being made; done is closed when the rest is set.
type mint struct {
	done chan struct{}
	cert *tls.Certificate
	err  error
}

func newCA(dir string, signer *root, opts Options) (*CA, error) {
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of the leaves: %w", err)
	}
	id, err := keyID(&leafKey.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("making the key of the leaves: %w", err)
	}
	if opts.Leaves <= 0 {
		opts.Leaves = defaultLeaves
	}
	c := &CA{
		dir: dir, leafKey: leafKey, leafID: id, now: opts.Now, max: opts.Leaves,
		order:   list.New(),
		leaves:  make(map[target.Host]*list.Element),
		pending: make(map[target.Host]*mint),
	}
	c.signer.Store(signer)
	return c, nil
}

// Leaf returns a certificate for host, from the cache or new. Concurrent calls
// for one host wait for one signature; a call whose ctx ends stops waiting.
func (c *CA) Leaf(ctx context.Context, host target.Host) (*tls.Certificate, error) {
	if host.IsZero() {
		return nil, errors.New("certs: no host to make a leaf for")
	}
	c.mu.Lock()
	if e, ok := c.leaves[host]; ok {
		if l, _ := e.Value.(*leaf); c.now().Before(l.renew) {
			c.order.MoveToFront(e)
			c.mu.Unlock()
			return l.cert, nil
		}
	}
	if m, ok := c.pending[host]; ok {
		c.mu.Unlock()
		select {
		case <-m.done:
			return m.cert, m.err
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the leaf of %v: %w", host, context.Cause(ctx))
		}
	}
	m := &mint{done: make(chan struct{}), err: errors.New("certs: signing did not end")}
	c.pending[host] = m
	c.mu.Unlock()

	defer func() { // also if signing panics: nobody waits for ever
		c.mu.Lock()
		delete(c.pending, host)
		c.mu.Unlock()
		close(m.done)
	}()
	m.cert, m.err = c.sign(host)
	return m.cert, m.err
}

// sign makes a leaf and keeps it.
func (c *CA) sign(host target.Host) (*tls.Certificate, error) {
	now, by := c.now(), c.signer.Load()
	serial, err := newSerial()
	if err != nil {
		return nil, fmt.Errorf("signing a leaf for %v: %w", host, err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial,
		// No common name: a host has up to 253 octets, the field 64, and no
		// client has read it for years.
		Subject:               pkix.Name{Organization: []string{organization}},
		NotBefore:             now.Add(-backdate),
		NotAfter:              earlier(now.Add(leafLife), by.cert.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		SubjectKeyId:          c.leafID,
	}
	if a, ok := host.Addr(); ok {
		tmpl.IPAddresses = []net.IP{a.AsSlice()}
	} else {
		tmpl.DNSNames = []string{host.String()}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, by.cert, &c.leafKey.PublicKey, by.key)
	if err != nil {
		return nil, fmt.Errorf("signing a leaf for %v: %w", host, err)
	}
	cert := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: c.leafKey}
	c.keep(&leaf{host, cert, tmpl.NotAfter.Add(-renewBefore)}, by)
	return cert, nil
}

// keep puts a leaf into the cache and the least recently used one out. A leaf
// of a root that has been replaced meanwhile is not kept.
func (c *CA) keep(l *leaf, by *root) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if by != c.signer.Load() {
		return
	}
	if e, ok := c.leaves[l.host]; ok {
		e.Value = l
		c.order.MoveToFront(e)
		return
	}
	c.leaves[l.host] = c.order.PushFront(l)
	for len(c.leaves) > c.max {
		if old, ok := c.order.Remove(c.order.Back()).(*leaf); ok {
			delete(c.leaves, old.host)
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// newSerial returns 127 random bits (RFC 5280 section 4.1.2.2: positive, at most 20 octets).
func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	return n.Add(n, big.NewInt(1)), nil
}

// keyID makes a key identifier (RFC 7093 section 2, method 1).
func keyID(pub *ecdsa.PublicKey) ([]byte, error) {
	point, err := pub.Bytes()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(point)
	return sum[:20], nil
}
