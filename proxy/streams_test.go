package proxy_test

import (
	"bufio"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/audit"
	"sallyport/proxy"
)

// opens are the two ways to a stream.
func opens() map[string]func(*lab, context.Context, string) (net.Conn, error) {
	return map[string]func(*lab, context.Context, string) (net.Conn, error){"transparent": (*lab).flow, "connect": (*lab).connect, "connect over h2": (*lab).connect2}
}

// wantRefusal expects one record, a refusal.
func wantRefusal(t *testing.T, l *lab, reason string) audit.Record {
	t.Helper()
	records := l.log.await(t, 1)
	if len(records) != 1 || records[0].Kind != audit.Refuse || records[0].Reason != reason {
		t.Fatalf("records %+v, want one refusal with reason %s: %q", linesOf(records), reason, errorsOf(records))
	}
	return records[0]
}

func wantNothingDialled(t *testing.T, l *lab) {
	t.Helper()
	if d := l.dialled(); len(d) > 0 {
		t.Errorf("dialled %v", d)
	}
}

// readAll reads to the end, and takes a reset for one.
func readAll(t *testing.T, c net.Conn) string {
	t.Helper()
	must(t, c.SetReadDeadline(time.Now().Add(patience)))
	b, err := io.ReadAll(c)
	if err != nil && !isReset(err) {
		t.Fatalf("reading to the end: %v", err)
	}
	return string(b)
}

// TestOpaqueBytes is CN-02 and HW-01: what is no TLS and no HTTP goes nowhere
// without a rule that carries any bytes.
func TestOpaqueBytes(t *testing.T) {
	const line, octets = "a line of text that is no request of HTTP", "octets of no protocol that is known here"
	tests := []struct{ name, to, send, reason, says string }{
		{"CN-02 ssh", "ok.test:443", "SSH-2.0-x\r\n", "protocol_not_allowed", line},
		{"CN-02 ssh, port 80", "ok.test:80", "SSH-2.0-x y\r\n", "protocol_not_allowed", line},
		{"CN-02 smtp", "ok.test:443", "EHLO x\r\n", "protocol_not_allowed", line},
		{"CN-02 socks", "ok.test:443", "\x05\x01\x00", "protocol_not_allowed", octets},
		{"CN-02 socks, port 80", "ok.test:80", "\x05\x01\x00", "protocol_not_allowed", octets},
		{"CN-02 TLS and then junk", "ok.test:443", "\x16\x03\x01\x00\x10junkjunkjunkjunk", "protocol_not_allowed", "TLS whose ClientHello cannot be read"},
		{"HW-01 h2c", "ok.test:80", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", "protocol_not_allowed", "HTTP/2 in the clear"},
		{"denied place", "evil.test:443", "SSH-2.0-x\r\n", "host_not_allowed", line},
		{"passthrough", "pass.test:443", "SSH-2.0-x\r\n", "protocol_not_allowed", line},
	}
	for name, open := range opens() {
		for _, tt := range tests {
			t.Run(name+" "+tt.name, func(t *testing.T) {
				l := newLab(t)
				c, err := open(l, t.Context(), tt.to)
				must(t, err)
				defer c.Close()
				_, err = io.WriteString(c, tt.send)
				must(t, err)
				if got := readAll(t, c); got != "" {
					t.Errorf("got %q", got)
				}
				if r := wantRefusal(t, l, tt.reason); !strings.Contains(r.Error, tt.says) {
					t.Errorf("the record says %q, want %q", r.Error, tt.says)
				}
				wantNothingDialled(t, l)
			})
		}
	}
}

// TestConnectRefused: finding 3 of the sandbox's view, the reason phrase
// carries the sentence where the client would wait for a banner.
func TestConnectRefused(t *testing.T) {
	l := newLab(t)
	for _, to := range []string{"evil.test:22", "192.0.2.1:5432"} {
		_, err := l.connect(t.Context(), to)
		if err == nil || !strings.Contains(err.Error(), "403 Blocked by sandbox egress policy") || !strings.Contains(err.Error(), to) {
			t.Errorf("CONNECT %s = %v", to, err)
		}
		records := l.log.await(t, 1)
		if len(records) != 1 || !strings.Contains(err.Error(), records[0].ID) {
			t.Errorf("records %+v", linesOf(records))
		}
	}
	wantNothingDialled(t, l)
	// The same place without a CONNECT: an end at once, though nothing was said.
	if c, err := l.flow(t.Context(), "evil.test:22"); !isReset(err) {
		must(t, err)
		readAll(t, c)
		c.Close()
	}
	wantRefusal(t, l, "host_not_allowed")
}

// handshake makes TLS over c for a name.
func handshake(t *testing.T, l *lab, c net.Conn, cfg *tls.Config) (*tls.Conn, error) {
	t.Helper()
	if cfg.RootCAs == nil {
		cfg.RootCAs = l.roots
	}
	must(t, c.SetDeadline(time.Now().Add(patience)))
	tc := tls.Client(c, cfg)
	return tc, tc.HandshakeContext(t.Context())
}

const get = "GET /public/a HTTP/1.1\r\nHost: ok.test\r\n\r\n"

// TestServerNames is CN-05, CN-06, CN-18, DN-15, TL-02 and NM-01: the name in TLS
// and the place of the stream.
func TestServerNames(t *testing.T) {
	tests := []struct {
		name, to, sni string
		host          string // in the request inside
		status        int    // 0: no TLS
		reason        string
	}{
		{"CN-05 address with an allowed name", "192.0.2.1:443", "ok.test", "ok.test", 403, "address_not_allowed"},
		{"DN-15 address that an allowed host has too, with the name that is denied", "192.0.2.1:443", "evil.test", "evil.test", 403, "address_not_allowed"},
		{"CN-06 other name", "ok.test:443", "evil.test", "evil.test", 421, "authority_mismatch"},
		{"CN-06 other name, allowed too", "ok.test:443", "any.test", "any.test", 421, "authority_mismatch"},
		{"CN-06 other name, the right Host", "ok.test:443", "evil.test", "ok.test", 421, "authority_mismatch"},
		{"CN-06 passthrough", "pass.test:443", "evil.test", "evil.test", 421, "authority_mismatch"},
		{"HW-11 Host of another allowed place", "ok.test:443", "ok.test", "any.test", 421, "authority_mismatch"},
		{"denied name", "evil.test:443", "evil.test", "evil.test", 403, "host_not_allowed"},
		{"denied name, another in TLS", "evil.test:443", "ok.test", "ok.test", 403, "host_not_allowed"},
		{"TL-02 no name", "ok.test:443", "", "ok.test", 200, "allowed"},
		{"NM-03 case", "ok.test:443", "OK.test", "Ok.TEST", 200, "allowed"},
		{"the name", "ok.test:443", "ok.test", "ok.test", 200, "allowed"},
	}
	for name, open := range opens() {
		l := newLab(t)
		o := &witness{}
		for _, h := range []string{"ok.test", "evil.test", "192.0.2.1"} {
			l.serveOrigin(h, false, o)
		}
		for _, tt := range tests {
			t.Run(name+" "+tt.name, func(t *testing.T) {
				c, err := open(l, t.Context(), tt.to)
				must(t, err)
				defer c.Close()
				cfg := &tls.Config{ServerName: tt.sni}
				if tt.sni == "" {
					cfg.InsecureSkipVerify = true // Go checks nothing else without a name
				}
				tc, err := handshake(t, l, c, cfg)
				must(t, err)
				status, _, body := exchangeRaw(t, tc, strings.Replace(get, "ok.test", tt.host, 1))
				tc.Close()
				if status != tt.status {
					t.Errorf("status %d, want %d: %s", status, tt.status, body)
				}
				n := 1
				if tt.status == 200 {
					n = 2
				}
				records := l.log.await(t, n)
				if len(records) != n || records[0].Reason != tt.reason {
					t.Errorf("records %+v, want %d with reason %s", linesOf(records), n, tt.reason)
				}
				if saw := o.take(); tt.status != 200 && len(saw)+len(l.dialled()) > 0 {
					t.Errorf("an origin was reached: %+v", saw)
				}
				l.dialled()
			})
		}
	}
}

// TestStreamWithoutRequest: a stream that is terminated and asks for nothing
// has one record, with the reason that it would have met.
func TestStreamWithoutRequest(t *testing.T) {
	tests := []struct{ name, to, sni, reason string }{
		{"allowed", "ok.test:443", "ok.test", "no_request"},
		{"denied", "evil.test:443", "evil.test", "host_not_allowed"},
		{"CN-06 other name", "ok.test:443", "evil.test", "authority_mismatch"},
	}
	for name, open := range opens() {
		for _, tt := range tests {
			t.Run(name+" "+tt.name, func(t *testing.T) {
				l := newLab(t)
				c, err := open(l, t.Context(), tt.to)
				must(t, err)
				tc, err := handshake(t, l, c, &tls.Config{ServerName: tt.sni})
				must(t, err)
				must(t, tc.Close())
				wantRefusal(t, l, tt.reason)
				wantNothingDialled(t, l)
			})
		}
		t.Run(name+" nothing at all", func(t *testing.T) {
			l := newLab(t)
			c, err := open(l, t.Context(), "ok.test:443")
			must(t, err)
			must(t, c.Close())
			wantRefusal(t, l, "no_request")
		})
	}
}

// TestBadServerName is NM-08: a name that is none ends the stream.
func TestBadServerName(t *testing.T) {
	for name, open := range opens() {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			c, err := open(l, t.Context(), "ok.test:443")
			must(t, err)
			defer c.Close()
			if _, err := handshake(t, l, editing{c, "ok.test", "o\x00.test"}, &tls.Config{ServerName: "ok.test"}); err == nil {
				t.Error("the handshake succeeded")
			}
			wantRefusal(t, l, "bad_request")
		})
	}
}

// editing replaces text in what is written.
type editing struct {
	net.Conn
	old, new string
}

func (e editing) Write(b []byte) (int, error) {
	if _, err := e.Conn.Write([]byte(strings.Replace(string(b), e.old, e.new, 1))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// dribble sends one octet at a time.
type dribble struct{ net.Conn }

func (d dribble) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := d.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}

// records puts every handshake record into records of a few octets.
type records struct{ net.Conn }

func (r records) Write(b []byte) (int, error) {
	if len(b) < 5 || b[0] != 0x16 || b[5] != 1 {
		return r.Conn.Write(b)
	}
	for body := b[5:]; len(body) > 0; {
		k := min(40, len(body))
		if _, err := r.Conn.Write(append([]byte{b[0], b[1], b[2], 0, byte(k)}, body[:k]...)); err != nil {
			return 0, err
		}
		body = body[k:]
	}
	return len(b), nil
}

// TestFragmentedHello is TL-05 and CN-16.
func TestFragmentedHello(t *testing.T) {
	for name, open := range opens() {
		for how, wrap := range map[string]func(net.Conn) net.Conn{
			"octets":  func(c net.Conn) net.Conn { return dribble{c} },
			"records": func(c net.Conn) net.Conn { return records{c} },
		} {
			for _, sni := range []string{"ok.test", "evil.test"} {
				t.Run(name+" "+how+" "+sni, func(t *testing.T) {
					l := newLab(t)
					l.serveOrigin("ok.test", false, &witness{})
					c, err := open(l, t.Context(), "ok.test:443")
					must(t, err)
					defer c.Close()
					tc, err := handshake(t, l, wrap(c), &tls.Config{ServerName: sni})
					must(t, err)
					status, _, _ := exchangeRaw(t, tc, get)
					if want := map[string]int{"ok.test": 200, "evil.test": 421}[sni]; status != want {
						t.Errorf("status %d, want %d", status, want)
					}
				})
			}
		}
	}
}

// TestHelloWithConnect is CN-16: both in one segment.
func TestHelloWithConnect(t *testing.T) {
	l := newLab(t)
	l.serveOrigin("ok.test", false, &witness{})
	c, err := l.sandboxDial(t.Context(), l.explicitAddr)
	must(t, err)
	defer c.Close()
	p := &prefixing{Conn: c, prefix: "CONNECT ok.test:443 HTTP/1.1\r\nHost: ok.test:443\r\n\r\n"}
	tc, err := handshake(t, l, p, &tls.Config{ServerName: "ok.test"})
	must(t, err)
	if status, _, body := exchangeRaw(t, tc, get); status != 200 {
		t.Errorf("status %d: %s", status, body)
	}
	// The same for a request in the clear.
	c, err = l.sandboxDial(t.Context(), l.explicitAddr)
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	fmt.Fprint(c, "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\n\r\n"+get)
	br := bufio.NewReader(c)
	readAnswer(t, br, "CONNECT")
	if status, _, body := readAnswer(t, br, "GET"); status != 200 {
		t.Errorf("status %d: %s", status, body)
	}
}

// prefixing sends a text together with the first write, and takes the answer
// to it away.
type prefixing struct {
	net.Conn
	prefix   string
	answered bool
}

func (p *prefixing) Write(b []byte) (int, error) {
	_, err := p.Conn.Write(append([]byte(p.prefix), b...))
	p.prefix = ""
	return len(b), err
}

func (p *prefixing) Read(b []byte) (int, error) {
	if !p.answered {
		p.answered = true
		one, last := make([]byte, 1), ""
		for !strings.HasSuffix(last, "\r\n\r\n") {
			if _, err := p.Conn.Read(one); err != nil {
				return 0, err
			}
			last += string(one)
		}
		if !strings.HasPrefix(last, "HTTP/1.1 200 ") {
			return 0, errors.New(last)
		}
	}
	return p.Conn.Read(b)
}

// TestPassthrough: TLS that is not terminated, tunnelled for its own name.
func TestPassthrough(t *testing.T) {
	for name, open := range opens() {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			o := &witness{}
			l.serveOrigin("pass.test", true, o)
			c, err := open(l, t.Context(), "pass.test:443")
			must(t, err)
			defer c.Close()
			tc, err := handshake(t, l, c, &tls.Config{ServerName: "pass.test", RootCAs: l.origin.pool})
			must(t, err)
			if status, _, _ := exchangeRaw(t, tc, strings.Replace(get, "ok.test", "pass.test", 1)); status != 200 {
				t.Errorf("status %d", status)
			}
			tc.Close()
			got := l.log.await(t, 2)
			if len(got) != 2 || got[0].Kind != audit.Admit || got[0].Verdict != "tunnel" || got[1].Kind != audit.Done ||
				got[1].Sent < 300 || got[1].Received < 500 || got[1].Addr == "" {
				t.Errorf("records %+v", got)
			}
			if c, err = open(l, t.Context(), "pass.test:443"); err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			l.dialled()
			if _, err := handshake(t, l, c, &tls.Config{InsecureSkipVerify: true}); err == nil {
				t.Error("TL-02: passed through without a name")
			}
			got = l.log.await(t, 2)
			if len(got) != 2 || got[1].Reason != "authority_mismatch" {
				t.Errorf("TL-02: records %+v", linesOf(got))
			}
			wantNothingDialled(t, l)
		})
	}
}

// TestRawTunnel carries any bytes, client-first and server-first, with both
// half-closes, and counts them.
func TestRawTunnel(t *testing.T) {
	for name, open := range opens() {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.serveRaw(func(c net.Conn) {
				fmt.Fprint(c, "banner\n")
				b, _ := io.ReadAll(c) // until the client's half-close
				fmt.Fprintf(c, "%d octets", len(b))
			})
			c, err := open(l, t.Context(), "raw.test:5432")
			must(t, err)
			defer c.Close()
			br := bufio.NewReader(c)
			must(t, c.SetDeadline(time.Now().Add(patience)))
			if s, err := br.ReadString('\n'); s != "banner\n" {
				t.Fatalf("banner %q, %v", s, err)
			}
			big := strings.Repeat("x", 3<<20)
			_, err = io.WriteString(c, big)
			must(t, err)
			must(t, c.(interface{ CloseWrite() error }).CloseWrite())
			rest, err := io.ReadAll(br)
			must(t, err)
			if string(rest) != "3145728 octets" {
				t.Errorf("got %q", rest)
			}
			got := l.log.await(t, 2)
			if len(got) != 2 || got[1].Kind != audit.Done || got[1].Sent != 3<<20 || got[1].Received != int64(len("banner\n3145728 octets")) || got[1].Error != "" {
				t.Errorf("records %+v", got)
			}
		})
	}
}

// TestUpstreamDown: a fault of upstream is never a 403.
func TestUpstreamDown(t *testing.T) {
	l := newLab(t)
	_, err := l.connect(t.Context(), "raw.test:5432")
	if err == nil || !strings.Contains(err.Error(), "502 Upstream fault") || !strings.Contains(err.Error(), "has no address") {
		t.Errorf("CONNECT = %v", err)
	}
	if got := l.log.await(t, 2); len(got) != 2 || got[1].Kind != audit.Done || got[1].Error == "" {
		t.Errorf("records %+v", got)
	}
	for _, w := range ways() {
		resp, err := w.client(l).Get(w.url("ok.test", "/"))
		must(t, err)
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 502 || !strings.Contains(resp.Header.Get("Proxy-Status"), "error=dns_error") || !strings.Contains(string(body), "Upstream fault") {
			t.Errorf("%s: %d %v %s", w.name, resp.StatusCode, resp.Header, body)
		}
		if got := l.log.await(t, 2); len(got) != 2 || got[1].Status != 502 || got[1].Verdict != "inspect" {
			t.Errorf("%s: records %+v", w.name, got)
		}
	}
}

// TestClientRejectsCA is the finding under the clients' table: what a client
// that does not trust us looks like.
func TestClientRejectsCA(t *testing.T) {
	for name, open := range opens() {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			l := newLab(t)
			c, err := open(l, t.Context(), "ok.test:443")
			must(t, err)
			if _, err := handshake(t, l, c, &tls.Config{ServerName: "ok.test", RootCAs: x509.NewCertPool(), MaxVersion: version}); err == nil {
				t.Errorf("%s: the handshake succeeded", name)
			}
			c.Close()
			r := wantRefusal(t, l, "client_rejected_ca")
			if c, err = open(l, t.Context(), "evil.test:443"); err != nil {
				t.Fatal(err)
			}
			_, _ = handshake(t, l, c, &tls.Config{ServerName: "evil.test", RootCAs: x509.NewCertPool(), MaxVersion: version})
			c.Close()
			wantRefusal(t, l, "host_not_allowed")
			if !strings.Contains(r.Error, "does not trust the CA: see") {
				t.Errorf("error %q", r.Error)
			}
		}
		// Who goes without a word, as ^C has a client go, looks like some that do not trust it.
		l := newLab(t)
		c, err := open(l, t.Context(), "ok.test:443")
		must(t, err)
		_, _ = handshake(t, l, c, &tls.Config{ServerName: "ok.test", InsecureSkipVerify: true, VerifyConnection: func(tls.ConnectionState) error { return c.Close() }})
		if r := wantRefusal(t, l, "client_rejected_ca"); !strings.Contains(r.Error, "does not trust the CA, or was ended: see docs/protocols.md") {
			t.Errorf("%s: error %q", name, r.Error)
		}
	}
}

// TestRejectsCANames holds the six names against the errors that carry them.
func TestRejectsCANames(t *testing.T) {
	alert := func(op, text string) error { return &net.OpError{Op: op, Err: errors.New(text)} }
	for _, err := range []error{
		io.EOF, &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)},
		alert("local error", "tls: bad record MAC"), alert("remote error", "tls: bad certificate"),
		alert("remote error", "tls: unknown certificate"), alert("remote error", "tls: unknown certificate authority"),
	} {
		if !proxy.RejectsCA(fmt.Errorf("handshake: %w", err)) {
			t.Errorf("%v is not taken for a client that rejects the CA", err)
		}
	}
	for _, err := range []error{
		errors.New("tls: no application protocol"), alert("remote error", "tls: handshake failure"),
		alert("remote error", "tls: protocol version not supported"), os.ErrDeadlineExceeded,
	} {
		if proxy.RejectsCA(err) {
			t.Errorf("%v is taken for a client that rejects the CA", err)
		}
	}
}

// TestECH is TL-01: an encrypted hello that we cannot read is served for its
// outer name, and nothing is dialled for the inner one.
func TestECH(t *testing.T) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	must(t, err)
	pub, name := key.PublicKey().Bytes(), "ok.test"
	c := []byte{1, 0, 0x20, 0, byte(len(pub))} // id, KEM X25519, key
	c = append(append(c, pub...), 0, 4, 0, 1, 0, 1, 0, byte(len(name)))
	c = append(append(c, name...), 0, 0)
	config := append([]byte{0, byte(len(c) + 4), 0xfe, 0x0d, 0, byte(len(c))}, c...)
	for how, open := range opens() {
		l := newLab(t)
		c, err := open(l, t.Context(), "ok.test:443")
		must(t, err)
		defer c.Close()
		_, err = handshake(t, l, c, &tls.Config{ServerName: "evil.test", EncryptedClientHelloConfigList: config, MinVersion: tls.VersionTLS13})
		if _, ok := errors.AsType[*tls.ECHRejectionError](err); !ok {
			t.Errorf("%s: the client saw %v", how, err)
		}
		c.Close()
		l.log.await(t, 1)
		wantNothingDialled(t, l)
	}
}

// TestPrefaceInsideTLS is HW-01 (b): HTTP/2 after another protocol was agreed.
func TestPrefaceInsideTLS(t *testing.T) {
	l := newLab(t)
	o := &witness{}
	l.serveOrigin("ok.test", true, o)
	c, err := l.flow(t.Context(), "ok.test:443")
	must(t, err)
	defer c.Close()
	tc, err := handshake(t, l, c, &tls.Config{ServerName: "ok.test", NextProtos: []string{"http/1.1"}})
	must(t, err)
	if status, _, _ := exchangeRaw(t, tc, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); status != 400 {
		t.Errorf("status %d", status)
	}
	if rest := readAll(t, tc); rest != "" {
		t.Errorf("and then %q", rest)
	}
	wantRefusal(t, l, "bad_request")
	wantNothingDialled(t, l)
}

// TestNothingIsLeft is DS-10: descriptors and streams are given back, however
// a stream ends.
func TestNothingIsLeft(t *testing.T) {
	l := newLab(t)
	// Hidden behind a plain writer, or io.Copy splices through pipes, which
	// package net keeps until they are garbage.
	l.serveRaw(func(c net.Conn) { _, _ = io.Copy(struct{ io.Writer }{c}, c) })
	l.serveOrigin("ok.test", false, &witness{})
	open := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(names)
	}
	before := open()
	for i := range 40 {
		for _, way := range opens() {
			for _, to := range []string{"raw.test:5432", "ok.test:443", "evil.test:443", "ok.test:80"} {
				c, err := way(l, t.Context(), to)
				must(t, err)
				switch i % 4 {
				case 0:
				case 1:
					_, _ = io.WriteString(c, "\x16\x03\x01")
				case 2:
					_, _ = io.WriteString(c, get)
				case 3:
					if half, ok := c.(interface{ CloseWrite() error }); ok {
						_ = half.CloseWrite()
					}
					readAll(t, c)
				}
				c.Close()
			}
		}
	}
	deadline := time.Now().Add(patience)
	for {
		l.upstream.CloseIdleConnections() // those in the pool are to stay, and streams that end put more there
		l.door.CloseIdleConnections()
		after := open()
		if after <= before {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors, %d before", after, before)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestOldTLS is TL-17.
func TestOldTLS(t *testing.T) {
	l := newLab(t)
	c, err := l.flow(t.Context(), "ok.test:443")
	must(t, err)
	defer c.Close()
	if _, err := handshake(t, l, c, &tls.Config{ServerName: "ok.test", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 was accepted")
	}
	wantRefusal(t, l, "no_request")
}

// TestALPN is TL-17 and finding 7 of the sandbox's view.
func TestALPN(t *testing.T) {
	l := newLab(t)
	l.serveOrigin("ok.test", true, &witness{})
	for _, offer := range []string{"h2", "http/1.1", "http/1.0", ""} {
		c, err := l.flow(t.Context(), "ok.test:443")
		must(t, err)
		defer c.Close()
		cfg := &tls.Config{ServerName: "ok.test"}
		if offer != "" {
			cfg.NextProtos = []string{offer}
		}
		tc, err := handshake(t, l, c, cfg)
		must(t, err)
		if got := tc.ConnectionState().NegotiatedProtocol; got != offer {
			t.Errorf("offered %q, got %q", offer, got)
		}
		if offer == "http/1.0" {
			if status, _, _ := exchangeRaw(t, tc, "GET / HTTP/1.0\r\nHost: ok.test\r\n\r\n"); status != 200 {
				t.Errorf("status %d", status)
			}
		}
	}
}

// TestNotRedirected: who connects to the transparent listener itself is
// refused, and so is a cell that is not attached.
func TestNotRedirected(t *testing.T) {
	l := newLab(t)
	gone := func(to string) {
		t.Helper()
		c, err := l.sandboxDial(t.Context(), to)
		if isReset(err) {
			return // before connect even returned
		}
		must(t, err)
		defer c.Close()
		readAll(t, c)
	}
	gone(fmt.Sprintf("127.0.0.1:%d", l.transparentPort))
	wantRefusal(t, l, "bad_request")
	l.table.Detach(cellID)
	gone(l.vip("ok.test:443"))
	wantRefusal(t, l, "unknown_cell")
	_, err := l.connect(t.Context(), "ok.test:443")
	if err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("CONNECT = %v", err)
	}
	wantRefusal(t, l, "unknown_cell")
}

// TestSlowClients is DS-03: deadlines hold outside and inside a stream.
func TestSlowClients(t *testing.T) { synctest.Test(t, testSlowClients) }

func testSlowClients(t *testing.T) {
	l := newPipeLab(t, func(c *proxy.Config) {
		c.Timeouts = proxy.Timeouts{Peek: 300 * time.Millisecond, Header: 300 * time.Millisecond, KeepAlive: 300 * time.Millisecond, Drain: time.Second}
	})
	l.serveOrigin("ok.test", false, &witness{})
	for name, open := range opens() {
		for what, tt := range map[string]struct{ send, reason, says string }{
			"nothing":       {"", "no_request", "the client said nothing in 300ms"},
			"half a method": {"GE", "limit", "half a line, after 300ms"},
			"half a hello":  {"\x16\x03\x01\x02", "limit", "half a ClientHello, after 300ms"},
			"half a head":   {"GET / HTTP/1.1\r\n", "limit", "it was not whole after 300ms"},
		} {
			c, err := open(l, t.Context(), "ok.test:80")
			must(t, err)
			_, err = io.WriteString(c, tt.send)
			must(t, err)
			readAll(t, c)
			c.Close()
			if r := wantRefusal(t, l, tt.reason); !strings.Contains(r.Error, tt.says) {
				t.Errorf("%s, %s: the record says %q, want %q", name, what, r.Error, tt.says)
			}
		}
		c, err := open(l, t.Context(), "ok.test:443")
		must(t, err)
		tc, err := handshake(t, l, c, &tls.Config{ServerName: "ok.test"})
		must(t, err)
		if status, _, _ := exchangeRaw(t, tc, get); status != 200 {
			t.Errorf("status %d", status)
		}
		readAll(t, tc) // idle between requests
		c.Close()
		l.log.await(t, 2)
	}
}

// TestQuietTunnelEnds: a tunnel on which nothing passes is not kept for ever.
func TestQuietTunnelEnds(t *testing.T) {
	l := newLab(t, func(c *proxy.Config) {
		c.Timeouts = proxy.Timeouts{Quiet: 200 * time.Millisecond, Drain: time.Second}
	})
	l.serveRaw(func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	c, err := l.flow(t.Context(), "raw.test:5432")
	must(t, err)
	defer c.Close()
	readAll(t, c)
	if got := l.log.await(t, 2); len(got) != 2 || !strings.Contains(got[1].Error, "nothing was sent") {
		t.Errorf("records %+v", got)
	}
}

// TestLimits is DS-05: one cell's connections are bounded, and it is told.
func TestLimits(t *testing.T) {
	l := newLab(t, func(c *proxy.Config) { c.Limits.ConnsPerCell = 2 })
	l.serveRaw(func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	var held []net.Conn
	for range 2 {
		c, err := l.connect(t.Context(), "raw.test:5432")
		must(t, err)
		held = append(held, c)
	}
	l.log.await(t, 2)
	_, err := l.connect(t.Context(), "raw.test:5432")
	if err == nil || !strings.Contains(err.Error(), "429") {
		t.Errorf("CONNECT over the limit = %v", err)
	}
	wantRefusal(t, l, "limit")
	resp, err := absoluteClient(l).Get("http://ok.test/")
	must(t, err)
	resp.Body.Close()
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("over the limit: %d %v", resp.StatusCode, resp.Header)
	}
	if c, err := l.flow(t.Context(), "raw.test:5432"); !isReset(err) {
		must(t, err)
		readAll(t, c)
		c.Close()
	}
	for _, c := range held {
		c.Close()
	}
	for _, r := range l.log.await(t, 4) {
		if r.Kind == audit.Refuse && r.Reason != "limit" {
			t.Errorf("record %+v", r)
		}
	}
	c, err := l.connect(t.Context(), "raw.test:5432")
	must(t, err)
	c.Close()
}

// TestPolicyChange is NW-14 and CF-06: what is open is judged again.
func TestPolicyChange(t *testing.T) {
	without := func(id string) string {
		return strings.Replace(labPolicy, "- id: "+id+"\n", "- id: "+id+"\n    expires: 2020-01-01\n", 1)
	}
	for name, open := range opens() {
		for _, how := range []string{"policy", "detach"} {
			t.Run(name+" "+how, func(t *testing.T) {
				l := newLab(t)
				l.serveRaw(func(c net.Conn) { _, _ = io.Copy(c, c) })
				c, err := open(l, t.Context(), "raw.test:5432")
				must(t, err)
				defer c.Close()
				echo(t, c, "one")
				l.setPolicy(strings.ReplaceAll(labPolicy, "any.test", "other.test"))
				echo(t, c, "still there")
				if how == "policy" {
					l.setPolicy(without("raw"))
				} else {
					l.detach()
				}
				readAll(t, c)
				got := l.log.await(t, 2)
				if len(got) != 2 || !strings.Contains(got[1].Error, "change of policy") {
					t.Errorf("records %+v", got)
				}
			})
		}
	}
	t.Run("download", func(t *testing.T) {
		l := newLab(t)
		l.serveOrigin("any.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(200)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}))
		resp, err := ways()[1].client(l).Get("https://any.test/")
		must(t, err)
		l.setPolicy(without("any"))
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Error("the download ended as if it were whole")
		}
		resp.Body.Close()
		l.log.await(t, 2)
	})
}

func echo(t *testing.T, c net.Conn, s string) {
	t.Helper()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	_, err := io.WriteString(c, s)
	must(t, err)
	b := make([]byte, len(s))
	_, err = io.ReadFull(c, b)
	must(t, err)
	if string(b) != s {
		t.Fatalf("echo %q, want %q", b, s)
	}
}

// TestNotRecordedNotDone: what cannot be written to the log does not happen.
func TestNotRecordedNotDone(t *testing.T) {
	for _, w := range ways() {
		l := newLab(t)
		o := &witness{}
		l.serveOrigin("ok.test", false, o)
		l.log.failWith(errors.New("disk full"))
		resp, err := w.client(l).Get(w.url("ok.test", "/"))
		must(t, err)
		resp.Body.Close()
		if resp.StatusCode != 503 || resp.Header.Get("Sallyport-Reason") != "audit_unavailable" {
			t.Errorf("%s: %d %v", w.name, resp.StatusCode, resp.Header)
		}
		if len(o.take())+len(l.dialled()) > 0 {
			t.Errorf("%s: an origin was reached", w.name)
		}
		l.log.failWith(nil)
		_ = l.stop()
	}
}

// TestDoorHasNoDefaults is CN-03, TL-11: nothing that goproxy would do by
// itself happens. Its default transport and dialler read the environment.
func TestDoorHasNoDefaults(t *testing.T) {
	var mu sync.Mutex
	var trapped []string
	trap, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := trap.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			trapped = append(trapped, c.RemoteAddr().String())
			mu.Unlock()
			c.Close()
		}
	})
	defer wg.Wait()
	defer trap.Close()
	for _, v := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		t.Setenv(v, "http://"+trap.Addr().String())
	}
	l := newLab(t)
	for _, line := range []string{
		"CONNECT evil.test:443", "CONNECT evil.test:9999", "CONNECT " + trap.Addr().String(), "GET http://evil.test/",
		"GET http://" + trap.Addr().String() + "/", "GET /", "GET http:///", "POST http://evil.test/",
	} {
		c, err := l.sandboxDial(t.Context(), l.explicitAddr)
		must(t, err)
		status, h, body := exchangeRaw(t, c, line+" HTTP/1.1\r\nHost: evil.test\r\n\r\n")
		if strings.Contains(body+h.Get("Server"), "goproxy") || status == 500 {
			t.Errorf("%s was answered by goproxy: %d %s", line, status, body)
		}
		if status == 200 {
			_, _ = io.WriteString(c, "\x00\x01")
			readAll(t, c)
		}
		c.Close()
	}
	c, err := l.connect(t.Context(), "evil.test:443")
	must(t, err)
	defer c.Close()
	tc, err := handshake(t, l, c, &tls.Config{ServerName: "evil.test"})
	must(t, err)
	if issuer := tc.ConnectionState().PeerCertificates[0].Issuer.String(); !strings.Contains(issuer, "Sallyport CA") {
		t.Errorf("issuer %s", issuer)
	}
	tc.Close()
	mu.Lock()
	defer mu.Unlock()
	if len(trapped)+len(l.dialled()) > 0 {
		t.Errorf("goproxy connected by itself: %v", trapped)
	}
}

// TestStreamsOutliveTheirFirstBytes: the deadline for being understood is over
// once a stream is, for writing too.
func TestStreamsOutliveTheirFirstBytes(t *testing.T) {
	const peek = 200 * time.Millisecond
	for name, open := range opens() {
		for _, to := range []string{"ok.test:80", "ok.test:443"} {
			t.Run(name+" "+to, bubble(func(t *testing.T) {
				l := newPipeLab(t, func(c *proxy.Config) { c.Timeouts = proxy.Timeouts{Peek: peek, Handshake: peek, Drain: time.Second} })
				l.serveOrigin("ok.test", false, &witness{})
				c, err := open(l, t.Context(), to)
				must(t, err)
				defer c.Close()
				if strings.HasSuffix(to, "443") {
					c, err = handshake(t, l, c, &tls.Config{ServerName: "ok.test"})
					must(t, err)
				}
				for began := time.Now(); time.Since(began) < 2*peek; {
					if status, _, body := exchangeRaw(t, c, get); status != 200 {
						t.Fatalf("after %v: status %d: %s", time.Since(began), status, body)
					}
					time.Sleep(peek / 4)
				}
			}))
		}
	}
}

// TestBulkTunnel: what is spliced arrives as it was sent, is counted, and leaves
// no pipe behind in a tunnel that has become quiet.
func TestBulkTunnel(t *testing.T) {
	const size = 24 << 20
	for name, open := range opens() {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			sums := make(chan [32]byte, 1)
			noise := func(seed byte) io.Reader { return io.LimitReader(mathrand.NewChaCha8([32]byte{seed}), size) }
			l.serveRaw(func(c net.Conn) {
				h := sha256.New()
				// Hidden behind plain readers and writers, so that only the gateway splices.
				_, _ = io.CopyN(h, struct{ io.Reader }{c}, size)
				sums <- [32]byte(h.Sum(nil))
				_, _ = io.Copy(struct{ io.Writer }{c}, noise(2))
				_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) // an echo until the end
			})
			c, err := open(l, t.Context(), "raw.test:5432")
			must(t, err)
			defer c.Close()
			must(t, c.SetDeadline(time.Now().Add(patience)))
			_, err = io.Copy(struct{ io.Writer }{c}, noise(1))
			must(t, err)
			if got := <-sums; got != sumOf(t, noise(1)) {
				t.Error("the origin got something else")
			}
			h := sha256.New()
			_, err = io.CopyN(h, struct{ io.Reader }{c}, size)
			must(t, err)
			if [32]byte(h.Sum(nil)) != sumOf(t, noise(2)) {
				t.Error("the client got something else")
			}
			echo(t, c, "and then little")
			must(t, c.(interface{ CloseWrite() error }).CloseWrite())
			if rest := readAll(t, c); rest != "" {
				t.Errorf("at the end %d octets more", len(rest))
			}
			little := int64(len("and then little"))
			got := l.log.await(t, 2)
			if len(got) != 2 || got[1].Sent != size+little || got[1].Received != size+little || got[1].Error != "" {
				t.Errorf("records %+v", got)
			}
		})
	}
}

func sumOf(t *testing.T, r io.Reader) [32]byte {
	t.Helper()
	h := sha256.New()
	_, err := io.Copy(h, r)
	must(t, err)
	return [32]byte(h.Sum(nil))
}

func errorsOf(records []audit.Record) (out []string) {
	for _, r := range records {
		out = append(out, r.Error)
	}
	return out
}
