package certs_test

import (
	"bytes"
	"crypto/x509"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/certs"
)

// trusting is a client that was given roots in PEM.
func trusting(t *testing.T, roots []byte) func(*x509.Certificate) error {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(roots) {
		t.Fatal("no roots in PEM")
	}
	return func(leaf *x509.Certificate) error {
		_, err := leaf.Verify(x509.VerifyOptions{Roots: pool})
		return err
	}
}

// TestRotate walks through a rotation with three clients: one from before, one
// from in between, one from after.
func TestRotate(t *testing.T) {
	dir := newDir(t)
	ca := mustOpen(t, dir, certs.Options{})
	if err := ca.Switch(); !errors.Is(err, certs.ErrNoNext) {
		t.Fatalf("Switch before Prepare: %v, want %v", err, certs.ErrNoNext)
	}
	before := trusting(t, ca.Certificate())
	must(t, ca.Prepare())
	prepared := ca.Certificate()
	must(t, ca.Prepare())
	if !bytes.Equal(prepared, ca.Certificate()) {
		t.Error("preparing twice made another root")
	}
	between := trusting(t, prepared)
	old := mustLeaf(t, ca, "a.test")
	if err := errors.Join(before(old), between(old)); err != nil {
		t.Errorf("a leaf before the switch: %v", err)
	}

	// A restart in between changes nothing.
	ca = mustOpen(t, dir, certs.Options{})
	if !bytes.Equal(prepared, ca.Certificate()) {
		t.Error("opening again lost the next root")
	}
	must(t, before(mustLeaf(t, ca, "a.test")))
	must(t, ca.Switch())
	after := trusting(t, ca.Certificate())
	switched := mustLeaf(t, ca, "a.test") // not the one from the cache
	if err := errors.Join(between(switched), after(switched)); err != nil {
		t.Errorf("a leaf after the switch: %v", err)
	}
	if before(switched) == nil {
		t.Error("a client from before trusts what signs after the switch")
	}
	if after(old) == nil {
		t.Error("a client from after trusts what signed before the switch")
	}
	if len(ca.Roots()) != 1 {
		t.Errorf("%d roots after the switch, want 1", len(ca.Roots()))
	}
	must(t, after(mustLeaf(t, mustOpen(t, dir, certs.Options{}), "a.test")))
}

// TestRotateCrash: whatever a crash leaves, the next start goes on with one root
// that signs, and a root that was shown is never lost.
func TestRotateCrash(t *testing.T) {
	in := func(dir, name string) string { return filepath.Join(dir, name) }
	tests := []struct {
		name  string
		crash func(dir string) error
		roots int
		next  bool // the next root signs
	}{
		{"making the next: its key alone", func(dir string) error { return os.Remove(in(dir, "next.crt")) }, 1, false},
		{"switching: the key renamed, the certificate not", func(dir string) error {
			return os.Rename(in(dir, "next.key"), in(dir, "ca.key"))
		}, 1, true},
		{"no crash", func(string) error { return nil }, 2, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := newDir(t)
			ca := mustOpen(t, dir, certs.Options{})
			must(t, ca.Prepare())
			roots := ca.Roots()
			must(t, tt.crash(dir))
			again := mustOpen(t, dir, certs.Options{}).Roots()
			want := roots[0]
			if tt.next {
				want = roots[1]
			}
			if len(again) != tt.roots || !again[0].Equal(want) {
				t.Errorf("after the crash: %d roots, %v signs; want %d, %v", len(again), again[0].Subject, tt.roots, want.Subject)
			}
		})
	}
}

// TestOpenRefusesNext: the next root is held to what the first is.
func TestOpenRefusesNext(t *testing.T) {
	dir := newDir(t)
	must(t, mustOpen(t, dir, certs.Options{}).Prepare())
	must(t, os.Chmod(filepath.Join(dir, "next.key"), 0o644))
	if _, err := certs.Open(dir, certs.Options{Now: time.Now}); err == nil {
		t.Error("a next key that others can read was opened")
	}
	must(t, os.Chmod(filepath.Join(dir, "next.key"), 0o600))
	mustOpen(t, dir, certs.Options{})
}

// TestFingerprint: as OpenSSL prints it, but for case and colons.
func TestFingerprint(t *testing.T) {
	dir := newDir(t)
	ca := mustOpen(t, dir, certs.Options{})
	out, err := exec.CommandContext(t.Context(), "openssl", "x509", "-in", filepath.Join(dir, "ca.crt"),
		"-noout", "-fingerprint", "-sha256").Output()
	must(t, err)
	_, printed, _ := strings.Cut(strings.TrimSpace(string(out)), "=")
	want := "sha256:" + strings.ToLower(strings.ReplaceAll(printed, ":", ""))
	if got := certs.Fingerprint(ca.Roots()[0].Raw); got != want {
		t.Errorf("fingerprint %q, want %q", got, want)
	}
}
