package sniff_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/proxy/sniff"
)

// hello returns the first flight of Go's own client.
func hello(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	c := &capture{}
	cfg.InsecureSkipVerify = true
	if err := tls.Client(c, cfg).HandshakeContext(t.Context()); err == nil {
		t.Fatal("a handshake with nobody succeeded")
	}
	return c.sent.Bytes()
}

// capture is a connection that keeps what is written and has been fed in.
type capture struct {
	in   io.Reader
	sent bytes.Buffer
}

func (c *capture) Read(b []byte) (int, error) {
	if c.in == nil {
		return 0, io.EOF
	}
	return c.in.Read(b)
}
func (c *capture) Write(b []byte) (int, error)      { return c.sent.Write(b) }
func (c *capture) Close() error                     { return nil }
func (c *capture) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *capture) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *capture) SetDeadline(time.Time) error      { return nil }
func (c *capture) SetReadDeadline(time.Time) error  { return nil }
func (c *capture) SetWriteDeadline(time.Time) error { return nil }

// fragment puts the content of one record into records of n octets.
func fragment(record []byte, n int) []byte {
	var out []byte
	for body := record[5:]; len(body) > 0; {
		k := min(n, len(body))
		out = append(out, record[0], record[1], record[2], byte(k>>8), byte(k))
		out, body = append(out, body[:k]...), body[k:]
	}
	return out
}

func edit(b []byte, old, repl string) []byte {
	if len(old) != len(repl) {
		panic("edit: lengths differ")
	}
	return bytes.Replace(b, []byte(old), []byte(repl), 1)
}

// TestAttempt tells lines that mean to be HTTP from those of other protocols, also
// while they come.
func TestAttempt(t *testing.T) {
	long := strings.Repeat("A", 5000)
	tests := []struct {
		in   string
		want sniff.Kind
	}{
		{"\r\nGET / HTTP/1.1\r\n", sniff.HTTP1},
		{"GE:T / HTTP/1.1\r\n", sniff.HTTP1},
		{"GET  / HTTP/1.1\n", sniff.HTTP1},
		{"GET\t/ HTTP/1.1\r\n", sniff.HTTP1},
		{"CONNECT ok.test:443 HTTP/1.1\r\n", sniff.HTTP1},
		{long + " / HTTP/1.1\r\n", sniff.HTTP1},
		{"GE:T / HTT", sniff.Undecided},
		{long, sniff.Undecided},
		{long + long, sniff.Opaque},
		{"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\nHTTP/1.1", sniff.Opaque},
		{"EHLO mail.test\r\n", sniff.Opaque},
		{"\x05\x01\x00 HTTP/1.1\r\n", sniff.Opaque},
		{"GE\x00T / HTTP/1.1\r\n", sniff.Opaque},
	}
	for _, tt := range tests {
		if got := sniff.Attempt([]byte(tt.in)); got != tt.want {
			t.Errorf("Attempt(%.40q) = %v, want %v", tt.in, got, tt.want)
		}
	}
}

func TestBytes(t *testing.T) {
	plain := hello(t, &tls.Config{ServerName: "ok.test", NextProtos: []string{"h2", "http/1.1"}})
	big := hello(t, &tls.Config{ServerName: "ok.test", NextProtos: manyProtos(60)})
	huge := hello(t, &tls.Config{ServerName: "ok.test", NextProtos: manyProtos(200)})
	okTLS := sniff.Result{Kind: sniff.TLS, ServerName: "ok.test", ALPN: []string{"h2", "http/1.1"}}
	opaque := sniff.Result{Kind: sniff.Opaque}
	tests := []struct {
		name string
		in   []byte
		want sniff.Result
	}{
		{"CN-02 ssh", []byte("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"), opaque},
		{"CN-02 smtp", []byte("EHLO mail.test\r\n"), opaque},
		{"CN-02 socks5", []byte{5, 1, 0}, opaque},
		{"CN-20 socks4", []byte{4, 1, 0, 80}, opaque},
		{"CN-02 tls then junk", []byte("\x16\x03\x01\x00\x10junkjunkjunkjunk"), opaque},
		{"CN-20 PROXY protocol", []byte("PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n"), opaque},
		{"CN-20 zeroes", make([]byte, 1024), opaque},
		{"TL-17 SSLv2 hello", []byte{0x80, 0x2e, 1, 0, 2}, opaque},
		{"not a client hello", []byte("\x16\x03\x01\x00\x04\x02\x00\x00\x00"), opaque},
		{"empty record", []byte("\x16\x03\x01\x00\x00"), opaque},
		{"record longer than allowed", []byte("\x16\x03\x01\x40\x01\x01"), opaque},
		{"alert", []byte("\x15\x03\x01\x00\x02\x02\x28"), opaque},
		{"TL-06 bigger than the limit", huge, opaque},
		{"NM-01 trailing dot in the name", edit(plain, "ok.test", "ok.tes."), opaque},
		{"NM-19 authority as target", []byte("GET evil.test:80 HTTP/1.1\r\n"), opaque},
		{"HW-01 h2 preface", []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00"), sniff.Result{Kind: sniff.HTTP2}},
		{"h2 preface, not yet", []byte("PRI * HTTP"), sniff.Result{}},
		{"nothing", nil, sniff.Result{}},
		{"method, not yet", []byte("GET"), sniff.Result{}},
		{"method too long", bytes.Repeat([]byte("A"), 64), opaque},
		{"origin form", []byte("GET /"), sniff.Result{Kind: sniff.HTTP1}},
		{"absolute form", []byte("GET HtTp://x"), sniff.Result{Kind: sniff.HTTP1}},
		{"absolute form, not yet", []byte("GET ht"), sniff.Result{}},
		{"asterisk", []byte("OPTIONS * HTTP/1.1\r\n"), sniff.Result{Kind: sniff.HTTP1}},
		{"HT-16 lower case method", []byte("get / HTTP/1.1\r\n"), sniff.Result{Kind: sniff.HTTP1}},
		{"POST begins as the preface does", []byte("POST /x"), sniff.Result{Kind: sniff.HTTP1}},
		{"hello", plain, okTLS},
		{"hello and more", append(slices.Clip(plain), "more"...), okTLS},
		{"hello, not yet", plain[:len(plain)-1], sniff.Result{}},
		{"TL-05 records of 7 octets", fragment(plain, 7), okTLS},
		{"TL-05 record header split", fragment(plain, 7)[:14], sniff.Result{}},
		{"TL-02 no name", hello(t, &tls.Config{}), sniff.Result{Kind: sniff.TLS}},
		{"NM-08 NUL in the name", edit(plain, "ok.test", "o\x00.test"), sniff.Result{Kind: sniff.TLS, ServerName: "o\x00.test", ALPN: okTLS.ALPN}},
		{"TL-06 4 KiB and more", big, sniff.Result{Kind: sniff.TLS, ServerName: "ok.test", ALPN: manyProtos(60)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, sniff.Bytes(tt.in)); diff != "" {
				t.Errorf("Bytes(%.40q) (-want +got):\n%s", tt.in, diff)
			}
		})
	}
}

func manyProtos(n int) (out []string) {
	for range n {
		out = append(out, strings.Repeat("p", 120))
	}
	return out
}

// TestPrefixes feeds each input octet by octet: an answer, once given, holds.
func TestPrefixes(t *testing.T) {
	plain := hello(t, &tls.Config{ServerName: "ok.test"})
	for _, in := range [][]byte{plain, fragment(plain, 1), []byte("GET / HTTP/1.1\r\n"), []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), []byte("SSH-2.0-x y\r\n")} {
		want := sniff.Bytes(in)
		for i := range in {
			if got := sniff.Bytes(in[:i]); got.Kind != sniff.Undecided {
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("after %d octets of %.20q (-whole +part):\n%s", i, in, diff)
				}
				break
			}
		}
	}
}

var errSeen = errors.New("seen")

// seenByCryptoTLS returns the name that a crypto/tls server reads; ok is false
// if it refuses the hello, or waits for more of it.
func seenByCryptoTLS(t testing.TB, b []byte) (name string, ok bool) {
	cfg := &tls.Config{GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
		name, ok = i.ServerName, true
		return nil, errSeen
	}}
	_ = tls.Server(&capture{in: bytes.NewReader(b)}, cfg).HandshakeContext(t.Context())
	return name, ok
}

// FuzzClientHello compares with crypto/tls: whatever both understand, they
// must read alike. What only Bytes takes for TLS fails in the handshake.
func FuzzClientHello(f *testing.F) {
	plain := hello(f, &tls.Config{ServerName: "ok.test", NextProtos: []string{"h2"}})
	f.Add(plain)
	f.Add(fragment(plain, 50))
	f.Add(hello(f, &tls.Config{MaxVersion: tls.VersionTLS12}))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got := sniff.Bytes(b)
		name, ok := seenByCryptoTLS(t, b)
		if ok && got.Kind == sniff.TLS && got.ServerName != name {
			t.Fatalf("Bytes reads the name %q, crypto/tls %q", got.ServerName, name)
		}
		if ok && (got.Kind == sniff.HTTP1 || got.Kind == sniff.HTTP2) {
			t.Fatalf("Bytes says %v, crypto/tls takes it for a hello", got.Kind)
		}
	})
}
