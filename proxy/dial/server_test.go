package dial_test

import (
	"crypto/tls"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"sallyport/proxy/dial"
	"sallyport/test/lab"
)

// overTLS has the world's resolver serve TLS as well, with a certificate of ca
// for name.
func overTLS(t *testing.T, w *world, ca *lab.CA, name string) netip.AddrPort {
	t.Helper()
	leaf, err := ca.Leaf(nil, name)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", net.JoinHostPort(lab.ResolverAddr.String(), "853"),
		&tls.Config{Certificates: []tls.Certificate{leaf}, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan struct{})
	s := &dns.Server{Listener: l, Handler: w.resolver, NotifyStartedFunc: func() { close(ready) }}
	go func() { defer close(done); _ = s.ActivateAndServe() }()
	<-ready
	t.Cleanup(func() { _ = s.Shutdown(); <-done })
	return netip.MustParseAddrPort(l.Addr().String())
}

// TestResolverOverTLS: a server that cannot prove its name is not believed, and
// not asked in the clear instead.
func TestResolverOverTLS(t *testing.T) {
	other, err := lab.NewCA("nobody trusts it")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name  string
		ca    *lab.CA // nil: one that is trusted
		shows string
		want  string // status of the error
	}{
		{"its own certificate", nil, "dns.test", ""},
		{"another name's certificate", nil, "evil.test", "dns_error"},
		{"a certificate of nobody's", other, "dns.test", "dns_error"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, okRaw, nil)
			ca := tt.ca
			if ca == nil {
				ca = w.ca
			}
			at := overTLS(t, w, ca, tt.shows)
			w.again(func(c *dial.Config) { c.Resolvers = []dial.Resolver{{Addr: at, TLSName: "dns.test"}} })
			w.resolver.Set("ok.test", "A 11.7.7.7")
			greeter(t, "ok.test", okAddr)
			c, err := w.Dial(t.Context(), w.tunnel("ok.test:5432"))
			if status(err) != tt.want {
				t.Errorf("Dial: %v, status %q, want %q", err, status(err), tt.want)
			}
			if c != nil {
				_ = c.Close()
			}
			if asked := len(w.resolver.Queries()) > 0; asked != (tt.want == "") {
				t.Errorf("asked %v", w.resolver.Queries())
			}
			if slices.ContainsFunc(w.resolver.Queries(), func(q lab.Query) bool { return !q.TCP }) {
				t.Error("asked in the clear")
			}
		})
	}
}
