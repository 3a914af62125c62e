package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/rules"
)

// appendFunc is a log that a test plays.
type appendFunc func(*audit.Record) error

func (f appendFunc) Append(_ context.Context, rec *audit.Record) error { return f(rec) }

// TestMetrics: what is counted is what was written, under labels from closed sets.
func TestMetrics(t *testing.T) {
	var logErr error
	ready := func() error { return logErr }
	m := newMetrics(func() int { return 3 }, ready)
	r := newRecorder(appendFunc(func(*audit.Record) error { return logErr }), m)
	h := healthHandler(m, ready)
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}

	inspect := rules.Inspect.String()
	for _, rec := range []audit.Record{
		{Kind: audit.Admit, Verdict: inspect},
		{Kind: audit.Done, Verdict: inspect, Sent: 10, Received: 32, Micros: 2_500},
		{Kind: audit.Refuse, Verdict: rules.Deny.String(), Reason: string(rules.HostNotAllowed), Host: "evil.test"},
		{Kind: audit.Refuse, Verdict: rules.Deny.String(), Reason: "made up"},
	} {
		if err := r.Append(t.Context(), &rec); err != nil {
			t.Fatal(err)
		}
	}
	if code, body := get("/readyz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("ready: %d %q", code, body)
	}

	logErr = errors.New("no space left on device")
	if err := r.Append(t.Context(), &audit.Record{Kind: audit.Admit, Verdict: inspect}); err == nil {
		t.Fatal("a record that was not written was taken")
	}
	if code, body := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "no space left") {
		t.Errorf("a log that cannot be written: %d %q", code, body)
	}
	if code, _ := get("/livez"); code != http.StatusOK {
		t.Errorf("live: %d", code)
	}

	code, body := get("/metrics")
	if code != http.StatusOK {
		t.Fatalf("metrics: %d %s", code, body)
	}
	for _, want := range []string{
		`sallyport_records_total{kind="admit",verdict="inspect"} 1`,
		`sallyport_records_total{kind="refuse",verdict="deny"} 2`,
		`sallyport_refusals_total{reason="host_not_allowed"} 1`,
		`sallyport_refusals_total{reason="other"} 1`,
		`sallyport_octets_total{direction="received"} 32`,
		`sallyport_octets_total{direction="sent"} 10`,
		`sallyport_request_seconds_bucket{verdict="inspect",le="0.004"} 1`,
		`sallyport_request_seconds_bucket{verdict="inspect",le="0.001"} 0`,
		"sallyport_cells 3",
		"sallyport_log_writable 0",
	} {
		if !strings.Contains(body, "\n"+want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	if strings.Contains(body, "evil.test") || strings.Contains(body, "made up") {
		t.Error("a label holds what a sandbox chose")
	}
}

// TestHealthListenerTaken: the error names the key to change.
func TestHealthListenerTaken(t *testing.T) {
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := netip.MustParseAddrPort(l.Addr().String())
	if _, err := listenHealth(t.Context(), at); err == nil || !strings.Contains(err.Error(), "listening for metrics") {
		t.Errorf("a port that is taken: %v", err)
	}
	if l, err := listenHealth(t.Context(), netip.AddrPort{}); l != nil || err != nil {
		t.Errorf("no address: %v, %v", l, err)
	}
}
