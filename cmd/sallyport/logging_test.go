package main

import (
	"context"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/verify"
	"sallyport/proxy/dial"
	"sallyport/rules/target"
)

// anchored writes a small log with an anchor, and checks it with what the anchor
// kept.
func anchored(t *testing.T, to audit.AnchorTo, kept func() []byte) {
	t.Helper()
	base := t.TempDir()
	l, err := audit.Open(audit.Config{
		Dir: filepath.Join(base, "log"), KeyFile: filepath.Join(base, "key"), Now: time.Now, Anchors: []audit.AnchorTo{to},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append(t.Context(), &audit.Record{Kind: audit.Admit, Host: "a.test"}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := verify.Verify(filepath.Join(base, "log"), l.Verifier(), verify.Options{Anchors: [][]byte{kept()}})
	if err != nil || !r.Whole() || r.Anchors != 1 {
		t.Errorf("Verify against what was kept = %v, %v", r, err)
	}
}

func TestAnchorCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kept; $(touch x)")
	to := anchorCommand([]string{"/bin/dd", "of=" + file, "status=none"})
	anchored(t, to, func() []byte {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return b
	})
	err := anchorCommand([]string{"/bin/sh", "-c", "echo no room >&2; exit 3"}).Keep(t.Context(), []byte("x"))
	if err == nil || !strings.Contains(err.Error(), "exit status 3: no room") {
		t.Errorf("a command that fails: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := anchorCommand([]string{"/bin/sleep", "60"}).Keep(ctx, nil); err == nil {
		t.Error("a command that hangs was waited for")
	}
}

func TestAnchorURL(t *testing.T) {
	var last atomic.Pointer[[]byte]
	var status atomic.Int64
	status.Store(http.StatusNoContent)
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/keep" {
			t.Errorf("the anchor was asked %s %s%s", r.Method, r.Host, r.URL)
		}
		last.Store(&b)
		w.WriteHeader(int(status.Load()))
	}))
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	name, err := target.ParseName("example.com")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		cfg  dial.Config
		say  int
		want string
	}{
		{"this machine's own address, unless the operator names it", dial.Config{Roots: roots}, 204, "private_ip"},
		{"an unknown authority", dial.Config{Roots: x509.NewCertPool(), Hosts: own(name)}, 204, "certificate"},
		{"it is full", dial.Config{Roots: roots, Hosts: own(name)}, 507, "it answered 507"},
		{"it leads on", dial.Config{Roots: roots, Hosts: own(name)}, 307, "it answered 307"},
	} {
		last.Store(nil)
		status.Store(int64(tt.say))
		tt.cfg.Now = time.Now
		to, err := anchorURL(s.URL+"/keep", tt.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := to.Keep(t.Context(), []byte("x")); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
		if tt.say == 204 && last.Load() != nil {
			t.Errorf("%s: it was sent all the same", tt.name)
		}
	}
	status.Store(204)
	to, err := anchorURL(s.URL+"/keep", dial.Config{Roots: roots, Hosts: own(name), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	anchored(t, to, func() []byte { return *last.Load() })
}
