package dial_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sallyport/proxy/dial"
	"sallyport/rules"
	"sallyport/test/lab"
)

// TestUpstreamCertificates: TL-07 and TL-08. The origin's application sees
// nothing of a request whose certificate is not good for the admitted name.
func TestUpstreamCertificates(t *testing.T) {
	other, err := lab.NewCA("nobody trusts it")
	if err != nil {
		t.Fatal(err)
	}
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	tests := []struct {
		name   string
		host   string
		ca     *lab.CA
		change func(*x509.Certificate)
		want   string
	}{
		{"TL-07 expired", "ok.test", nil, func(c *x509.Certificate) { c.NotBefore, c.NotAfter = ago(48*time.Hour), ago(time.Hour) }, "tls_certificate_error"},
		{"TL-07 not yet valid", "ok.test", nil, func(c *x509.Certificate) { c.NotBefore = ago(-time.Hour) }, "tls_certificate_error"},
		{"TL-07 untrusted authority", "ok.test", other, nil, "tls_certificate_error"},
		{"TL-07 wrong name", "evil.test", nil, nil, "tls_certificate_error"},
		{"TL-07 name in CN alone", "", nil, func(c *x509.Certificate) { c.DNSNames = nil; c.Subject = pkix.Name{CommonName: "ok.test"} }, "tls_certificate_error"},
		{"TL-07 for clients", "ok.test", nil, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, "tls_certificate_error"},
		{"TL-08 below the name", "www.ok.test", nil, nil, "tls_certificate_error"},
		{"good", "ok.test", nil, nil, ""},
		{"good wildcard", "*.test", nil, nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, ok, nil)
			w.resolver.Set("ok.test", "A 11.7.7.7")
			ca := tt.ca
			if ca == nil {
				ca = w.ca
			}
			leaf, err := ca.Leaf(tt.change, tt.host)
			if err != nil {
				t.Fatal(err)
			}
			s := lab.NewSite("ok.test", okAddr)
			t.Cleanup(func() { _ = s.Close() })
			if err := s.Serve(443, &http.Server{
				Handler:   http.NotFoundHandler(),
				TLSConfig: &tls.Config{Certificates: []tls.Certificate{leaf}},
			}); err != nil {
				t.Fatal(err)
			}
			_, err = w.do("GET", "https://ok.test/", func(r *http.Request) { r.Header.Set("Authorization", "Bearer REAL") })
			if status(err) != tt.want || (err == nil) != (tt.want == "") {
				t.Errorf("error %v, status %q, want %q", err, status(err), tt.want)
			}
			if n := len(s.Seen()); (n == 0) != (tt.want != "") {
				t.Errorf("site saw %d requests", n)
			}
		})
	}
}

// TestAddressesAreVerifiedToo: an address is good only for its own certificate.
func TestAddressesAreVerifiedToo(t *testing.T) {
	w := newWorld(t, []rules.Rule{allow("addr", nil, "11.7.7.7", "11.7.7.8")}, nil)
	s := w.site("ok.test", okAddr, nil)
	if _, err := w.get("https://11.7.7.7/"); err != nil {
		t.Errorf("its own: %v", err)
	}
	if v := s.Seen(); len(v) != 1 || v[0].Host != "11.7.7.7" {
		t.Errorf("site saw %v", v)
	}
	leaf, err := w.ca.Leaf(nil, "11.7.7.7", "ok.test")
	if err != nil {
		t.Fatal(err)
	}
	wrong := lab.NewSite("wrong", netip.MustParseAddr("11.7.7.8"))
	t.Cleanup(func() { _ = wrong.Close() })
	if err := wrong.Serve(443, &http.Server{
		Handler:   http.NotFoundHandler(),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{leaf}},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.get("https://11.7.7.8/"); status(err) != "tls_certificate_error" {
		t.Errorf("another's: %v", err)
	}
}

// TestOldTLSRefused: TL-17, upstream.
func TestOldTLSRefused(t *testing.T) {
	w := newWorld(t, ok, nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	leaf, err := w.ca.Leaf(nil, "ok.test")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		version uint16
		ok      bool
	}{{tls.VersionTLS10, false}, {tls.VersionTLS11, false}, {tls.VersionTLS12, true}} {
		s := lab.NewSite("ok.test", okAddr)
		if err := s.Serve(443, &http.Server{Handler: http.NotFoundHandler(), TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{leaf}, MinVersion: tt.version, MaxVersion: tt.version,
		}}); err != nil {
			t.Fatal(err)
		}
		_, err := w.get("https://ok.test/")
		if (err == nil) != tt.ok {
			t.Errorf("version %x: %v", tt.version, err)
		}
		if err != nil && !strings.HasPrefix(status(err), "tls_") {
			t.Errorf("version %x: %v, status %q", tt.version, err, status(err))
		}
		_ = s.Close()
	}
}

// TestUpstreamFaults says whose fault it was, and gives no credit to half an
// answer (DS-04 DS-09 HW-09).
func TestUpstreamFaults(t *testing.T) {
	tests := []struct {
		name, url string
		serve     func(context.Context, net.Conn)
		want      string
	}{
		{"accepts, no TLS", "https://ok.test/", func(ctx context.Context, _ net.Conn) { <-ctx.Done() }, "connection_timeout"},
		{"plain HTTP for TLS", "https://ok.test/", say("HTTP/1.1 400 Bad Request\r\n\r\n"), "tls_protocol_error"},
		{"TLS alert", "https://ok.test/", say("\x15\x03\x03\x00\x02\x02\x28"), "tls_alert_received"},
		{"no answer", "http://ok.test/", func(ctx context.Context, c net.Conn) { head(c); <-ctx.Done() }, "http_response_timeout"},
		{"hangs up", "http://ok.test/", say(""), "connection_terminated"},
		{"resets", "http://ok.test/", func(_ context.Context, c net.Conn) {
			head(c)
			_ = c.(interface{ SetLinger(int) error }).SetLinger(0)
		}, "connection_terminated"},
		{"half a header", "http://ok.test/", say("HTTP/1.1 200 OK\r\nX-Half: "), "connection_terminated"},
		{"another protocol", "http://ok.test/", say("SSH-2.0-OpenSSH_9.2\r\n"), "http_protocol_error"},
		{"header bomb", "http://ok.test/", say("HTTP/1.1 200 OK\r\nX-Big: " + strings.Repeat("x", 1<<20) + "\r\n\r\n"), "http_response_header_section_size"},
		{"101 unasked", "http://ok.test/", say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"), "http_protocol_error"},
		{"good", "http://ok.test/", say("HTTP/1.1 204 No Content\r\n\r\n"), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, ok, func(c *dial.Config) {
				if strings.Contains(tt.want, "timeout") {
					c.Timeouts = dial.Timeouts{TLS: 200 * time.Millisecond, Response: 200 * time.Millisecond}
				}
			})
			w.resolver.Set("ok.test", "A 11.7.7.7")
			s := lab.NewSite("ok.test", okAddr)
			defer s.Close()
			if err := errors.Join(s.ServeConn(80, tt.serve), s.ServeConn(443, tt.serve)); err != nil {
				t.Fatal(err)
			}
			_, err := w.get(tt.url)
			if status(err) != tt.want || (err == nil) != (tt.want == "") {
				t.Errorf("error %v, status %q, want %q", err, status(err), tt.want)
			}
		})
	}
}

// head reads a request's header.
func head(c net.Conn) {
	_, _ = http.ReadRequest(bufio.NewReader(c))
}

func say(text string) func(context.Context, net.Conn) {
	return func(_ context.Context, c net.Conn) {
		if strings.HasPrefix(text, "HTTP/1.1 4") || strings.HasPrefix(text, "\x15") {
			_, _ = c.Read(make([]byte, 4096)) // the ClientHello
		} else {
			head(c)
		}
		_, _ = c.Write([]byte(text))
	}
}
