package proxy_test

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/proxy"
	"sallyport/rules"
)

// TestBoundsAreDocumented holds the table of docs/protocols.md against the code: which
// bounds there are, what they are, and that the reasons are ones that records have.
func TestBoundsAreDocumented(t *testing.T) {
	l, d, err := proxy.Defaults()
	must(t, err)
	kib := func(n int) string {
		if n >= 1<<20 {
			return fmt.Sprintf("%d MiB", n>>20)
		}
		return fmt.Sprintf("%d KiB", n>>10)
	}
	want := []struct{ what, value, reason string }{
		{"open connections, one cell / all", fmt.Sprint(l.ConnsPerCell, " / ", l.Conns), "limit"},
		{"handshakes under way, one cell / all", fmt.Sprint(l.HandshakesPerCell, " / ", l.Handshakes), "limit"},
		{"requests under way, one cell / all", fmt.Sprint(l.RequestsPerCell, " / ", l.Requests), "limit"},
		{"requests and streams that begin in a second, one cell, for each processor", fmt.Sprint(l.RequestRate / runtime.GOMAXPROCS(0)), "limit"},
		{"HTTP/2 connections, one cell / all", fmt.Sprint(l.H2ConnsPerCell, " / ", l.H2Conns), "limit"},
		{"requests at once on an HTTP/2 connection", fmt.Sprint(l.H2Streams), "limit"},
		{"octets of a client on an HTTP/2 connection / stream that nobody has read", kib(proxy.H2ConnBuffer) + " / " + kib(proxy.H2StreamBuffer), ""},
		{"header of one request, CONNECT too", fmt.Sprintf("%s, %d lines", kib(l.HeaderBytes), l.HeaderLines), "limit"},
		{"header of one request over HTTP/2, compressed", kib(proxy.H2Excess * l.HeaderBytes), "limit"},
		{"frame of HTTP/2", kib(proxy.H2FrameBytes), "bad_request"},
		{"first bytes / handshake / header", fmt.Sprint(d.Peek, " / ", d.Handshake, " / ", d.Header), "limit"},
		{"a client that says nothing, or no request, at all", fmt.Sprint(d.Header), "no_request"},
		{"idle between requests", fmt.Sprint(d.KeepAlive), ""},
		{"nothing sent either way (tunnel, WebSocket, stalled body)", fmt.Sprint(d.Quiet), "limit"},
		{"age of a connection", fmt.Sprint(d.Lifetime), "limit"},
		{"drain at shutdown / for a client that has said nothing", fmt.Sprint(d.Drain, " / ", d.Fresh), ""},
	}
	if n := reflect.TypeFor[proxy.Limits]().NumField(); n != 12 {
		t.Errorf("there are %d limits, the table was written for 12", n)
	}
	if n := reflect.TypeFor[proxy.Timeouts]().NumField(); n != 8 {
		t.Errorf("there are %d timeouts, the table was written for 8", n)
	}
	text, err := os.ReadFile("../docs/protocols.md")
	must(t, err)
	_, table, _ := strings.Cut(string(text), "## Bounds\n\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")[2:]
	var got, expected []string
	for _, row := range rows {
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		if len(cells) != 4 {
			t.Fatalf("a row of %d cells: %s", len(cells), row)
		}
		got = append(got, cells[0]+": "+cells[1]+": "+cells[3])
	}
	for _, w := range want {
		reason := "–"
		if w.reason != "" {
			reason = "`" + w.reason + "`"
			if !slices.Contains(rules.Reasons(), rules.Reason(w.reason)) {
				t.Errorf("no reason is called %q", w.reason)
			}
		}
		expected = append(expected, w.what+": "+w.value+": "+reason)
	}
	if diff := cmp.Diff(expected, got); diff != "" {
		t.Errorf("docs/protocols.md (-code +page):\n%s", diff)
	}
}
