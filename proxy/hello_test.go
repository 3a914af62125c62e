package proxy_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// earlyConn puts application data behind the first record, as a client does that
// sends it with its hello.
type earlyConn struct {
	net.Conn
	sent *bool
}

func (c earlyConn) Write(b []byte) (int, error) {
	if *c.sent {
		return c.Conn.Write(b)
	}
	*c.sent = true
	early := append([]byte{23, 3, 3, 0, byte(len(get))}, get...)
	if _, err := c.Conn.Write(append(slices.Clip(b), early...)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// TestOddHellos is TL-17, TL-05 and NM-01: what a client offers that we do not take
// ends the handshake, with one record that says what it was, and nobody is dialled.
// What it sent with its hello, which could have been heard and sent before by another,
// is not carried out.
func TestOddHellos(t *testing.T) {
	extendedMaster, earlyData := "\x00\x17\x00\x00", "\x00\x2a\x00\x00" // extensions without content
	tests := []struct {
		name, old, new string // in the hello
		early          bool
		alpn           []string
		reason, says   string // "": the twin
	}{
		{"early data", extendedMaster, earlyData, true, nil, "no_request", "early data"},
		{"early data that is offered and not sent", extendedMaster, earlyData, false, nil, "no_request", "early data"},
		{"a dot behind the server name", "ok.test", "ok.tes.", false, nil, "protocol_not_allowed", "ClientHello cannot be read"},
		{"protocols that nobody speaks", "", "", false, []string{"spdy/3", "h3"}, "no_request", "application protocol"},
		{"h2c, which is none inside TLS", "", "", false, []string{"h2c"}, "no_request", "application protocol"},
		{"nothing odd", "", "", false, nil, "", ""},
		{"one that is spoken among those that are not", "", "", false, []string{"spdy/3", "http/1.1"}, "", ""},
	}
	for name, open := range opens() {
		l := newLab(t)
		o := &witness{}
		l.serveOrigin("ok.test", false, o)
		for _, tt := range tests {
			t.Run(name+" "+tt.name, func(t *testing.T) {
				c, err := open(l, t.Context(), "ok.test:443")
				must(t, err)
				defer c.Close()
				if tt.early {
					c = earlyConn{c, new(bool)}
				}
				if tt.old != "" {
					c = editing{c, tt.old, tt.new}
				}
				tc, err := handshake(t, l, c, &tls.Config{ServerName: "ok.test", NextProtos: tt.alpn})
				if tt.reason == "" {
					must(t, err)
					if status, _, body := exchangeRaw(t, tc, get); status != http.StatusOK {
						t.Errorf("%d %s", status, body)
					}
					if records, saw := l.log.await(t, 2), o.take(); len(records) != 2 || len(saw) != 1 {
						t.Errorf("records %+v, the origin saw %+v", linesOf(records), saw)
					}
					l.dialled()
					return
				}
				if err == nil {
					t.Error("the handshake succeeded")
				}
				if r := wantRefusal(t, l, tt.reason); !strings.Contains(r.Error, tt.says) {
					t.Errorf("the record says %q, want %q", r.Error, tt.says)
				}
				wantNothingDialled(t, l)
				if saw := o.take(); len(saw) > 0 {
					t.Errorf("the origin saw %+v", saw)
				}
			})
		}
	}
}

// TestOtherProtocolThanAgreed is TL-17 and HW-01: who agrees on one version of HTTP and
// speaks the other is refused, and what it says is not taken for a request.
func TestOtherProtocolThanAgreed(t *testing.T) {
	for name, open := range opens() {
		for _, tt := range []struct{ agreed, says, reason string }{
			{"h2", get, "no_request"},
			{"http/1.1", http2.ClientPreface, "bad_request"},
		} {
			t.Run(name+" "+tt.agreed, func(t *testing.T) {
				l := newLab(t)
				l.serveOrigin("ok.test", true, &witness{})
				c, err := open(l, t.Context(), "ok.test:443")
				must(t, err)
				defer c.Close()
				tc, err := handshake(t, l, c, &tls.Config{ServerName: "ok.test", NextProtos: []string{tt.agreed}})
				must(t, err)
				if got := tc.ConnectionState().NegotiatedProtocol; got != tt.agreed {
					t.Fatalf("agreed on %q", got)
				}
				_, err = io.WriteString(tc, tt.says)
				must(t, err)
				if got, _ := io.ReadAll(tc); strings.Contains(string(got), "hello") {
					t.Errorf("answered with %q", got)
				}
				_ = tc.Close()
				wantRefusal(t, l, tt.reason)
				wantNothingDialled(t, l)
			})
		}
	}
}
