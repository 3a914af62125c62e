package dial_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"testing"

	"sallyport/proxy/dial"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/test/lab"
)

// TestCertificates: a connection that shows a client's certificate carries the
// requests of its credential and no others.
func TestCertificates(t *testing.T) {
	clients, err := lab.NewCA("clients")
	if err != nil {
		t.Fatal(err)
	}
	cert, err := clients.Leaf(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, "agent.test")
	if err != nil {
		t.Fatal(err)
	}
	var fail error
	asked := 0
	w := newWorld(t, []rules.Rule{allow("ok", func(r *rules.Rule) { r.Credential = "cert" }, "ok.test")}, func(c *dial.Config) {
		c.Certified = func(p gate.Pass) bool { return p.Request().Path.String() == "/with" }
		c.Certificate = func(_ context.Context, p gate.Pass) (*tls.Certificate, error) {
			asked++
			if p.Request().Path.String() != "/with" {
				t.Errorf("asked for %v", p.Request().Path)
			}
			if fail != nil {
				return nil, &gate.DeniedError{Reason: rules.CredentialUnavail, Err: fail}
			}
			return &cert, nil
		}
	})
	w.resolver.Set("ok.test", "A 11.7.7.7")
	leaf, err := w.ca.Leaf(nil, "ok.test")
	if err != nil {
		t.Fatal(err)
	}
	s := lab.NewSite("ok.test", okAddr)
	t.Cleanup(func() { _ = s.Close() })
	who := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := "nobody"
		if len(r.TLS.PeerCertificates) > 0 {
			name = r.TLS.PeerCertificates[0].DNSNames[0]
		}
		_, _ = io.WriteString(w, name)
	})
	if err := s.Serve(443, &http.Server{Handler: who, TLSConfig: &tls.Config{
		Certificates: []tls.Certificate{leaf}, MinVersion: tls.VersionTLS12, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: clients.Pool(),
	}}); err != nil {
		t.Fatal(err)
	}
	get := func(path, want string) {
		t.Helper()
		resp, err := w.forward(w.fetch("GET", "https://ok.test"+path), nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if got := body(t, resp); got != want {
			t.Errorf("%s: the server saw %q, want %q", path, got, want)
		}
	}
	get("/with", "agent.test")
	get("/without", "nobody")
	get("/with", "agent.test")
	get("/without", "nobody")
	if s.Connections() != 2 || asked != 1 {
		t.Errorf("%d connections, want 2; asked for a certificate %d times, want once", s.Connections(), asked)
	}
	w.Forget("c1")
	fail = errors.New("no key")
	if _, err := w.forward(w.fetch("GET", "https://ok.test/with"), nil); reason(err) != rules.CredentialUnavail {
		t.Errorf("without its key: %v", err)
	}
	get("/without", "nobody")
}

// TestCertificatesNeedBoth: half a configuration is refused.
func TestCertificatesNeedBoth(t *testing.T) {
	w := newWorld(t, ok, nil)
	cfg := w.cfg
	cfg.Certified = func(gate.Pass) bool { return true }
	if _, err := dial.New(cfg); err == nil {
		t.Error("taken")
	}
}
