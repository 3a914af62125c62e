package proxy_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestWhatAGetCarries is EX-04: GET is not read-only for whoever reads the other end's
// log. Rules take paths, named parameters and numbers away; bounds, the length. What is
// left goes through, and docs/policy.md ("What a GET carries") says so: this holds both.
func TestWhatAGetCarries(t *testing.T) {
	const canary = "mfzwizltoq2gk3tbn5xgk43umfzwizlt"
	const policy = `apiVersion: sallyport/v1
kind: Policy
metadata: {name: lab}
rules:
  - {id: narrow, reason: x, allow: {host: ok.test, ports: [80, 443], paths: [/status], query: [{name: q, present: false}]}}
  - {id: few, reason: x, allow: {host: any.test, ports: [80, 443]}, limits: {requests: 2/day}}
  - {id: short, reason: x, allow: {host: short.test, ports: [80, 443]}, limits: {request_head: 1KiB}}
`
	long := strings.Repeat(canary, 512+1) // 16 KiB and 32 octets
	kib := strings.Repeat(canary, 32)
	tests := []struct {
		name, host, target, header, value string
		status                            int
		reason                            string // "" is what goes through
	}{
		{"path", "ok.test", "/status/" + canary, "", "", 403, "path_not_allowed"},
		{"path, before", "ok.test", "/" + canary + "/status", "", "", 403, "path_not_allowed"},
		{"query", "ok.test", "/status?q=" + canary, "", "", 403, "query_not_allowed"},
		{"long path", "any.test", "/" + long, "", "", 400, "bad_request"},
		{"long query", "any.test", "/?" + strings.Repeat(long, 4), "", "", 431, "limit"},
		{"long field", "any.test", "/", "X-Note", strings.Repeat(long, 4), 431, "limit"},
		{"path over the rule's request_head", "short.test", "/" + kib, "", "", 431, "head_too_large"},
		{"query over it", "short.test", "/?" + kib, "", "", 431, "head_too_large"},
		{"field over it", "short.test", "/", "X-Note", kib, 431, "head_too_large"},
		{"Cookie over it", "short.test", "/", "Cookie", "a=" + kib, 431, "head_too_large"},
		{"under it", "short.test", "/" + kib[:512], "X-Note", canary, 200, ""},
		{"first", "any.test", "/" + canary, "", "", 200, ""},
		{"second", "any.test", "/" + canary, "", "", 200, ""},
		{"one more", "any.test", "/" + canary, "", "", 429, "limit"},
		{"residue: another parameter", "ok.test", "/status?p=" + canary, "", "", 200, ""},
		{"residue: name of a parameter", "ok.test", "/status?" + canary, "", "", 200, ""},
		{"residue: field", "ok.test", "/status", "X-Note", canary, 200, ""},
		{"residue: name of a field", "ok.test", "/status", "X-" + canary, "1", 200, ""},
		{"residue: User-Agent", "ok.test", "/status", "User-Agent", canary, 200, ""},
		{"residue: Cookie", "ok.test", "/status", "Cookie", "a=" + canary, 200, ""},
		{"residue: If-None-Match", "ok.test", "/status", "If-None-Match", `"` + canary + `"`, 200, ""},
		{"residue: If-Range", "ok.test", "/status", "If-Range", `"` + canary + `"`, 200, ""},
		{"residue: Range", "ok.test", "/status", "Range", "bytes=7266-8371", 200, ""},
	}
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			l.setPolicy(policy)
			o := &witness{}
			for _, h := range []string{"ok.test", "any.test", "short.test"} {
				l.serveOrigin(h, w.h2, o)
			}
			client := w.client(l)
			for _, tt := range tests {
				req, err := http.NewRequestWithContext(t.Context(), "GET", w.url(tt.host, tt.target), nil)
				must(t, err)
				if tt.header != "" {
					req.Header.Set(tt.header, tt.value)
				}
				resp, err := client.Do(req)
				must(t, err)
				must(t, resp.Body.Close())
				if got := resp.Header.Get("Sallyport-Reason"); resp.StatusCode != tt.status || got != tt.reason {
					t.Errorf("%s: %d %s, want %d %s", tt.name, resp.StatusCode, got, tt.status, tt.reason)
				}
				n := 1
				if tt.reason == "" {
					n = 2
				}
				records := l.log.await(t, n)
				for _, r := range records {
					_, query, _ := strings.Cut(tt.target, "?")
					if query != "" && strings.Contains(fmt.Sprint(r), canary) {
						t.Errorf("%s: a query is in the log: %+v", tt.name, r)
					}
					if tt.reason == "path_not_allowed" && !strings.Contains(r.Path, canary) {
						t.Errorf("%s: the log has the path %q", tt.name, r.Path)
					}
				}
				saw := o.take()
				if tt.reason != "" {
					if len(saw) != 0 {
						t.Errorf("%s: the origin saw %v", tt.name, saw)
					}
					continue
				}
				carried := canary
				if tt.header == "Range" {
					carried = tt.value
				}
				if len(saw) != 1 || !strings.Contains(strings.ToLower(fmt.Sprint(saw)), carried) {
					t.Errorf("%s: the origin saw %v, and the documentation says that this gets through", tt.name, saw)
				}
			}
		})
	}
}
