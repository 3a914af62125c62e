package proxy_test

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"sallyport/audit"
)

// TestConnectOverH2: what is said of a stream to a client that asks over HTTP/2,
// each with one record; one connection carries on through all of it.
func TestConnectOverH2(t *testing.T) {
	l := newLab(t)
	o := &witness{}
	l.serveOrigin("any.test", false, o)
	tests := []struct {
		name, method, authority, path string
		status                        int
		reason                        string
	}{
		{"CN-17 an address", "CONNECT", "127.0.0.1:22", "", 403, "address_not_allowed"},
		{"CN-03 unknown place with a server that speaks first", "CONNECT", "evil.test:5432", "", 403, "host_not_allowed"},
		{"CN-01 a port that no rule has", "CONNECT", "any.test:22", "", 403, "port_not_allowed"},
		{"no port", "CONNECT", "any.test", "", 400, "bad_request"},
		{"HT-22 no name", "CONNECT", "[any.test]:443", "", 400, "bad_request"},
		{"CN-12 a request that is no CONNECT", "GET", "any.test", "/", 400, "bad_request"},
		{"CN-12 one to the listener itself", "GET", l.explicitAddr, "/", 400, "bad_request"},
		{"upstream down", "CONNECT", "raw.test:5432", "", 502, "allowed"},
		{"good", "CONNECT", "any.test:443", "", 200, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _ = l.connect2(t.Context(), "127.0.0.1:22") // makes the door; refused at once, since ssh waits for the server
			l.log.await(t, 1)
			req := (&http.Request{
				Method: tt.method, URL: &url.URL{Scheme: "http", Host: l.explicitAddr, Path: tt.path}, Host: tt.authority, Header: http.Header{},
			}).WithContext(t.Context())
			resp, err := l.door.RoundTrip(req)
			must(t, err)
			if resp.StatusCode != tt.status {
				t.Errorf("status %d, want %d", resp.StatusCode, tt.status)
			}
			if tt.status != http.StatusOK {
				body, err := io.ReadAll(resp.Body)
				must(t, err)
				if len(body) == 0 || tt.status == http.StatusForbidden && !strings.Contains(resp.Header.Get("Sallyport-Reason"), tt.reason) {
					t.Errorf("body %q, header %v", body, resp.Header)
				}
			}
			must(t, resp.Body.Close())
			if tt.reason == "" {
				return
			}
			got := l.log.await(t, 1)
			if got[0].Reason != tt.reason || got[0].Listener != "explicit" {
				t.Errorf("records %+v", linesOf(got))
			}
			if tt.status == http.StatusBadGateway {
				l.log.await(t, 2-len(got))
			} else if len(got) != 1 || got[0].Kind != audit.Refuse {
				t.Errorf("records %+v, want one refusal", linesOf(got))
			}
		})
	}
}
