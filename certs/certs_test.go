package certs_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/certs"
	"sallyport/rules/target"
)

func mustOpen(t testing.TB, dir string, opts certs.Options) *certs.CA {
	t.Helper()
	if opts.Now == nil {
		opts.Now = time.Now
	}
	ca, err := certs.Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func mustHost(t testing.TB, s string) target.Host {
	t.Helper()
	h, err := target.ParseHost(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func mustLeaf(t testing.TB, ca *certs.CA, host string) *x509.Certificate {
	t.Helper()
	c, err := ca.Leaf(t.Context(), mustHost(t, host))
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

func newDir(t testing.TB) string { return filepath.Join(t.TempDir(), "ca") }

// TestOpenRefuses covers what TL-12 and TL-13 ask of the files.
func TestOpenRefuses(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(t *testing.T, dir string)
		want  string
	}{
		{"directory open to others", func(t *testing.T, dir string) { must(t, os.Chmod(dir, 0o755)) }, "others can get at it"},
		{"key open to others", func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Join(dir, "ca.key"), 0o640)) }, "others can get at it"},
		{"key of somebody else", func(t *testing.T, dir string) { must(t, os.Chown(filepath.Join(dir, "ca.key"), 12345, 0)) }, "not owned by"},
		{"key is a link", func(t *testing.T, dir string) {
			must(t, os.Rename(filepath.Join(dir, "ca.key"), filepath.Join(dir, "x")))
			must(t, os.Symlink("x", filepath.Join(dir, "ca.key")))
		}, "symbolic link"},
		{"no key", func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "ca.key"))) }, "ca.crt is there without ca.key"},
		{"no certificate", func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "ca.crt"))) }, "ca.key is there without ca.crt"},
		{"empty key", func(t *testing.T, dir string) { must(t, os.WriteFile(filepath.Join(dir, "ca.key"), nil, 0o600)) }, "not one PEM block"},
		{"broken certificate", func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "ca.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), 0o600))
		}, "reading ca.crt"},
		{"certificate of another key", func(t *testing.T, dir string) {
			other := newDir(t)
			must(t, os.WriteFile(filepath.Join(dir, "ca.crt"), mustOpen(t, other, certs.Options{}).Certificate(), 0o600))
		}, "not the certificate of ca.key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := newDir(t)
			mustOpen(t, dir, certs.Options{})
			tt.spoil(t, dir)
			_, err := certs.Open(dir, certs.Options{Now: time.Now})
			if err == nil || !bytes.Contains([]byte(err.Error()), []byte(tt.want)) {
				t.Errorf("Open = %v, want an error with %q", err, tt.want)
			}
		})
	}
	if _, err := certs.Open(newDir(t), certs.Options{}); err == nil {
		t.Error("Open without a clock succeeded")
	}
	dir := newDir(t)
	mustOpen(t, dir, certs.Options{})
	if _, err := certs.Open(dir, certs.Options{Now: func() time.Time { return time.Now().AddDate(11, 0, 0) }}); err == nil {
		t.Error("Open of an expired CA succeeded")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestOpenAgain: TL-13, a restart keeps the root.
func TestOpenAgain(t *testing.T) {
	dir := newDir(t)
	first, second := mustOpen(t, dir, certs.Options{}), mustOpen(t, dir, certs.Options{})
	if !bytes.Equal(first.Certificate(), second.Certificate()) {
		t.Error("opening again made another root")
	}
	for file, want := range map[string]os.FileMode{"": 0o700, "ca.key": 0o600, "ca.crt": 0o644} {
		info, err := os.Stat(filepath.Join(dir, file))
		must(t, err)
		if got := info.Mode().Perm(); got != want {
			t.Errorf("mode of %q = %v, want %v", file, got, want)
		}
	}
	if bytes.Equal(first.Certificate(), mustOpen(t, newDir(t), certs.Options{}).Certificate()) {
		t.Error("two installations have one root")
	}
}

// TestLeaf covers TL-09: what is minted.
func TestLeaf(t *testing.T) {
	ca := mustOpen(t, newDir(t), certs.Options{})
	block, _ := pem.Decode(ca.Certificate())
	root, err := x509.ParseCertificate(block.Bytes)
	must(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(root)
	for _, host := range []string{"ok.test", "a_b.wild.test", "192.0.2.1", "2001:db8::1"} {
		leaf := mustLeaf(t, ca, host)
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
			t.Errorf("leaf of %s: %v", host, err)
		}
		var names []string
		names = append(names, leaf.DNSNames...)
		for _, ip := range leaf.IPAddresses {
			names = append(names, ip.String())
		}
		if diff := cmp.Diff([]string{host}, names); diff != "" {
			t.Errorf("names of the leaf of %s (-want +got):\n%s", host, diff)
		}
		if leaf.IsCA || !leaf.BasicConstraintsValid || leaf.NotAfter.Sub(leaf.NotBefore) > 72*time.Hour ||
			len(leaf.SubjectKeyId) == 0 || !bytes.Equal(leaf.AuthorityKeyId, root.SubjectKeyId) {
			t.Errorf("leaf of %s: IsCA %v, constraints %v, from %v to %v, ids %x %x", host, leaf.IsCA,
				leaf.BasicConstraintsValid, leaf.NotBefore, leaf.NotAfter, leaf.SubjectKeyId, leaf.AuthorityKeyId)
		}
		if k, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || k.Curve != elliptic.P256() {
			t.Errorf("leaf of %s has a %T", host, leaf.PublicKey)
		}
	}
	if a, b := mustLeaf(t, ca, "a.test"), mustLeaf(t, ca, "b.test"); a.SerialNumber.Cmp(b.SerialNumber) == 0 {
		t.Error("two leaves have one serial number")
	}
	if _, err := ca.Leaf(t.Context(), target.Host{}); err == nil {
		t.Error("a leaf for no host was made")
	}
}

// TestLeafKeyIsRandom is TL-10: the same root, two processes, two keys.
func TestLeafKeyIsRandom(t *testing.T) {
	dir := newDir(t)
	a, b := mustLeaf(t, mustOpen(t, dir, certs.Options{}), "ok.test"), mustLeaf(t, mustOpen(t, dir, certs.Options{}), "ok.test")
	if k, ok := a.PublicKey.(*ecdsa.PublicKey); !ok || k.Equal(b.PublicKey) {
		t.Error("two processes have one leaf key")
	}
}

// TestStrictVerifier holds a leaf against OpenSSL's strict mode, which
// Python 3.13 turns on for everybody.
func TestStrictVerifier(t *testing.T) {
	ca := mustOpen(t, newDir(t), certs.Options{})
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "root"), ca.Certificate(), 0o600))
	for host, opt := range map[string]string{"ok.test": "-verify_hostname", "192.0.2.1": "-verify_ip"} {
		leaf := mustLeaf(t, ca, host)
		must(t, os.WriteFile(filepath.Join(dir, "leaf"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}), 0o600))
		out, err := exec.CommandContext(t.Context(), "openssl", "verify", "-x509_strict", "-purpose", "sslserver", opt, host,
			"-CAfile", filepath.Join(dir, "root"), filepath.Join(dir, "leaf")).CombinedOutput()
		if err != nil {
			t.Errorf("openssl verify, %s: %v\n%s", host, err, out)
		}
		if out, err := exec.CommandContext(t.Context(), "openssl", "verify", "-x509_strict", opt, "other.test",
			"-CAfile", filepath.Join(dir, "root"), filepath.Join(dir, "leaf")).CombinedOutput(); err == nil {
			t.Errorf("openssl verify of another name succeeded:\n%s", out)
		}
	}
}

// TestLeafOnce is TL-09 and DS-14: a hundred at once get one certificate.
func TestLeafOnce(t *testing.T) {
	ca := mustOpen(t, newDir(t), certs.Options{})
	host := mustHost(t, "api.test")
	var wg sync.WaitGroup
	got := make([]*tls.Certificate, 100)
	for i := range got {
		wg.Go(func() { got[i], _ = ca.Leaf(t.Context(), host) })
	}
	wg.Wait()
	for i, c := range got {
		if c == nil || c != got[0] {
			t.Fatalf("call %d got another certificate", i)
		}
	}
}

func TestLeafRenewed(t *testing.T) {
	now := time.Now()
	ca := mustOpen(t, newDir(t), certs.Options{Now: func() time.Time { return now }})
	first := mustLeaf(t, ca, "ok.test")
	now = now.Add(24 * time.Hour)
	if again := mustLeaf(t, ca, "ok.test"); !again.Equal(first) {
		t.Error("a leaf was replaced half-way through its life")
	}
	now = now.Add(12 * time.Hour)
	if again := mustLeaf(t, ca, "ok.test"); again.Equal(first) {
		t.Error("a leaf was handed out close to its end")
	}
}

// TestLeafCacheBound is DS-02: the least recently used leaves go.
func TestLeafCacheBound(t *testing.T) {
	ca := mustOpen(t, newDir(t), certs.Options{Leaves: 2})
	a, b := mustLeaf(t, ca, "a.test"), mustLeaf(t, ca, "b.test")
	mustLeaf(t, ca, "a.test")
	mustLeaf(t, ca, "c.test") // b goes
	if !mustLeaf(t, ca, "a.test").Equal(a) {
		t.Error("the most recently used leaf is gone")
	}
	if mustLeaf(t, ca, "b.test").Equal(b) {
		t.Error("the cache holds more than its bound")
	}
}

func TestLeafWaitEnds(t *testing.T) {
	ca := mustOpen(t, newDir(t), certs.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// A call that has to wait must not; one that signs itself may succeed.
	if _, err := ca.Leaf(ctx, mustHost(t, "ok.test")); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Leaf = %v, want success or %v", err, context.Canceled)
	}
}

func BenchmarkLeafCold(b *testing.B) {
	ca := mustOpen(b, newDir(b), certs.Options{})
	for i := 0; b.Loop(); i++ {
		h := target.HostOfAddr(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
		if _, err := ca.Leaf(b.Context(), h); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLeafWarm(b *testing.B) {
	ca := mustOpen(b, newDir(b), certs.Options{})
	h := mustHost(b, "ok.test")
	for b.Loop() {
		if _, err := ca.Leaf(b.Context(), h); err != nil {
			b.Fatal(err)
		}
	}
}
