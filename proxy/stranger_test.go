package proxy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"

	"sallyport/audit"
)

// NW-22: whoever comes from an address that no cell has is refused before TLS, by
// either listener, with one record that says why; nobody is dialled. The twin is the cell.
func TestStrangers(t *testing.T) {
	const cell, stranger = 1, 9
	for _, tt := range []struct {
		name, method string
		to           string // redirected from; "" is the explicit listener
		say          string
		status       int // 0: a reset
	}{
		{"CONNECT", "CONNECT", "", "CONNECT ok.test:443 HTTP/1.1\r\nHost: ok.test:443\r\n\r\n", 403},
		{"absolute form", "GET", "", "GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n", 403},
		{"the gateway's own pages", "GET", "", "GET http://sallyport.internal/v1/policy HTTP/1.1\r\nHost: sallyport.internal\r\n\r\n", 403},
		{"redirected", "GET", "ok.test:80", "GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n", 0},
		{"redirected, TLS", "", "ok.test:443", "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			l.serveOrigin("ok.test", false, &witness{})
			at := l.explicitAddr
			if tt.to != "" {
				at = l.vip(tt.to)
			}
			ask := func(from byte) (status int) {
				c := l.flowFrom(t.Context(), from, at)
				defer c.Close()
				if tt.say == "" {
					if err := tls.Client(c, &tls.Config{RootCAs: l.roots, ServerName: "ok.test"}).HandshakeContext(t.Context()); err != nil {
						return 0
					}
					return 200
				}
				_, _ = io.WriteString(c, tt.say) // it may have been reset by now
				resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: tt.method})
				if err != nil {
					return 0
				}
				defer resp.Body.Close()
				return resp.StatusCode
			}
			if got := ask(stranger); got != tt.status {
				t.Errorf("the stranger got %d, want %d", got, tt.status)
			}
			records := l.log.await(t, 1)
			if len(records) != 1 || records[0].Kind != audit.Refuse || records[0].Reason != "unknown_cell" || records[0].Cell != "" {
				t.Errorf("records %+v, want one refusal as unknown_cell", records)
			}
			if to := l.dialled(); len(to) != 0 {
				t.Errorf("dialled %v", to)
			}
			if got := ask(cell); got != 200 && got != 404 { // the lab has no pages
				t.Errorf("the cell got %d, want to be served", got)
			}
		})
	}
}

// flowFrom is dialFrom, to whom a reset may come before the connection has been looked at.
func (l *lab) flowFrom(ctx context.Context, n byte, addr string) net.Conn {
	l.t.Helper()
	c, err := l.dialFrom(ctx, n, addr)
	if errors.Is(err, syscall.ECONNRESET) {
		return resetFlow(err)
	}
	must(l.t, err)
	return c
}
