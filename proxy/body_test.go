package proxy_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/audit"
)

const boundPolicy = `apiVersion: sallyport/v1
kind: Policy
metadata: {name: lab}
rules:
  - id: small
    reason: x
    allow: {host: small.test, ports: [80], access: write}
    limits: {request_body: 1KiB}
  - id: tagged
    reason: x
    allow: {host: tagged.test, ports: [80], headers: [{name: X-Mode, equals: safe}], query: [{name: debug, present: false}]}
`

// TestRequestBodyLimit: what declares too much is refused before anything is
// dialled, what sends too much is cut off at the limit, and what does neither passes.
func TestRequestBodyLimit(t *testing.T) {
	var got atomic.Int64
	l := newLab(t)
	l.setPolicy(boundPolicy)
	l.serveOrigin("small.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		buf := make([]byte, 512)
		for {
			n, err := r.Body.Read(buf)
			got.Add(int64(n))
			if err != nil {
				return
			}
		}
	}))
	body := func(n int) string { return strings.Repeat("x", n) }
	chunked := func(n int) string {
		var b strings.Builder
		for ; n > 0; n -= 256 {
			fmt.Fprintf(&b, "100\r\n%s\r\n", body(256))
		}
		return b.String() + "0\r\n\r\n"
	}
	tests := []struct {
		name, request string
		status        int
		sent          int64
	}{
		{"at the limit", "POST / HTTP/1.1\r\nHost: small.test\r\nContent-Length: 1024\r\n\r\n" + body(1024), 200, 1024},
		{"declared over it", "POST / HTTP/1.1\r\nHost: small.test\r\nContent-Length: 1025\r\n\r\n" + body(1025), 413, 0},
		{"streamed up to it", "POST / HTTP/1.1\r\nHost: small.test\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(1024), 200, 1024},
		{"streamed over it", "POST / HTTP/1.1\r\nHost: small.test\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(2048), 413, 1024},
	}
	for _, tt := range tests {
		got.Store(0)
		l.log.take()
		resp := l.ask(t, "small.test:80", tt.request)
		if resp.StatusCode != tt.status {
			t.Errorf("%s: %s", tt.name, resp.Status)
		}
		if n := got.Load(); n > tt.sent || tt.status == 200 && n != tt.sent {
			t.Errorf("%s: %d octets reached the origin", tt.name, n)
		}
		if tt.status == 200 {
			l.log.await(t, 2) // or the next would take them for its own
			continue
		}
		if r := resp.Header.Get("Sallyport-Reason"); r != "body_too_large" {
			t.Errorf("%s: reason %q", tt.name, r)
		}
		last := l.closing(t)
		if last.Reason != "body_too_large" || last.Verdict != "deny" || last.Rule != "small" || last.Sent > tt.sent {
			t.Errorf("%s: %+v", tt.name, last)
		}
	}
}

// TestConditionsOfARequest are judged on what is sent upstream.
func TestConditionsOfARequest(t *testing.T) {
	l := newLab(t)
	l.setPolicy(boundPolicy)
	l.serveOrigin("tagged.test", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("X-Mode"), r.URL.RawQuery)
	}))
	for _, tt := range []struct{ target, header, reason string }{
		{"/?x=1", "X-Mode: safe\r\n", ""},
		{"/?x=1", "x-mode:safe \r\n", ""},
		{"/?x=1", "", "header_not_allowed"},
		{"/?x=1", "X-Mode: safe\r\nX-Mode: wild\r\n", "header_not_allowed"},
		{"/?x=1", "Connection: x-mode\r\nX-Mode: safe\r\n", "header_not_allowed"}, // it would not be passed on
		{"/?debug=1", "X-Mode: safe\r\n", "query_not_allowed"},
		{"/?%64ebug", "X-Mode: safe\r\n", "query_not_allowed"},
		{"/?a=1;debug=1", "X-Mode: safe\r\n", "query_ambiguous"},
	} {
		l.log.take()
		resp := l.ask(t, "tagged.test:80", "GET "+tt.target+" HTTP/1.1\r\nHost: tagged.test\r\n"+tt.header+"\r\n")
		if got := resp.Header.Get("Sallyport-Reason"); got != tt.reason || (tt.reason == "") != (resp.StatusCode == 200) {
			t.Errorf("%s %q: %s, %s", tt.target, tt.header, resp.Status, got)
		}
		for _, r := range l.log.take() {
			if line := fmt.Sprintf("%+v", r); strings.Contains(line, "safe") || strings.Contains(line, "wild") {
				t.Errorf("a header's value is recorded: %s", line)
			}
		}
	}
}

// ask sends bytes on a flow of their own and returns the answer's head.
func (l *lab) ask(t *testing.T, to, request string) *http.Response {
	t.Helper()
	c, err := l.flow(t.Context(), to)
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	go func(c net.Conn) { _, _ = c.Write([]byte(request)) }(c) // it may be refused before its end
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	must(t, err)
	must(t, resp.Body.Close())
	return resp
}

// closing waits for the record that closes a request, or refuses it.
func (l *lab) closing(t *testing.T) audit.Record {
	t.Helper()
	var all []audit.Record
	for {
		next := l.log.await(t, 1)
		if len(next) == 0 {
			break // it has waited for long enough
		}
		all = append(all, next...)
		for _, r := range all {
			if r.Kind == audit.Done || r.Kind == audit.Refuse {
				return r
			}
		}
	}
	t.Fatalf("no closing record in %+v", all)
	return audit.Record{}
}
