package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// authority signs certificates with P-256; every leaf has the same key.
type authority struct {
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
	leafKey *ecdsa.PrivateKey

	mu     sync.Mutex // guards leaves and serial
	leaves map[string]*tls.Certificate
	serial int64
}

func newAuthority() (*authority, error) {
	a := &authority{leaves: map[string]*tls.Certificate{}, serial: 1}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	if a.leafKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &a.key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	a.cert, err = x509.ParseCertificate(der)
	return a, err
}

// leaf returns a certificate for names, the same for the same first name.
func (a *authority) leaf(names ...string) (*tls.Certificate, error) {
	a.mu.Lock()
	c := a.leaves[names[0]]
	a.serial++
	serial := a.serial
	a.mu.Unlock()
	if c != nil {
		return c, nil
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(serial), DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &a.leafKey.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	c = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leafKey}
	a.mu.Lock()
	a.leaves[names[0]] = c
	a.mu.Unlock()
	return c, nil
}

// write puts certificate and key where load reads them.
func (a *authority) write(dir, name string) error {
	key, err := x509.MarshalECPrivateKey(a.key)
	if err != nil {
		return err
	}
	crt := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	if err := os.WriteFile(filepath.Join(dir, name+".crt"), crt, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: key}), 0o600)
}

// loadAuthority reads what write wrote.
func loadAuthority(dir, name string) (*authority, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
	if err != nil {
		return nil, err
	}
	a, err := newAuthority()
	if err != nil {
		return nil, err
	}
	a.cert = pair.Leaf
	a.key, _ = pair.PrivateKey.(*ecdsa.PrivateKey)
	return a, nil
}

// runPKI makes the authorities of the origin and of the references.
func runPKI(_ context.Context, args []string) error {
	fs := flag.NewFlagSet("pki", flag.ContinueOnError)
	dir := fs.String("dir", "", "where to put them")
	if err := fs.Parse(args); err != nil {
		return err
	}
	return makePKI(*dir)
}

func makePKI(dir string) error {
	for _, name := range []string{"origin-ca", "ref-ca"} {
		a, err := newAuthority()
		if err != nil {
			return err
		}
		if err := a.write(dir, name); err != nil {
			return err
		}
	}
	return nil
}

// poolOf reads the certificates of authorities.
func poolOf(files ...string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		pool.AppendCertsFromPEM(b)
	}
	return pool, nil
}
