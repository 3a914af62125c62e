package proxy_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sallyport/rules/gate"
	"sallyport/rules/live"
	"sallyport/rules/policyfile"
)

// TestRefusalsTellTheirScope: who refused is said in the sentence, in the header
// and in a body for programs, if it was not the policy itself.
func TestRefusalsTellTheirScope(t *testing.T) {
	const head = "apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: p}\n"
	l := newLab(t)
	floor := policyfile.Input{Name: "floor.yaml", Data: []byte(head + `rules: [{id: no-delete, reason: x, deny: {host: any.test, methods: [DELETE]}}]
`)}
	run := policyfile.Input{Name: "run.yaml", Data: []byte(head + `rules: [{id: only-any, reason: x, allow: {host: any.test, ports: [80], access: write}}]
`)}
	p, err := policyfile.ReadPolicy(policyfile.Input{Name: "lab.yaml", Data: []byte(labPolicy), Floor: &floor, Run: &run}, nil)
	must(t, err)
	l.table.Attach(live.Cell{Identity: gate.Identity{Cell: cellID, Run: "run1", Policy: p.Policy}, Addr: netip.MustParseAddr("127.0.0.1")})
	l.changed <- struct{}{}
	l.serveOrigin("any.test", false, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	tests := []struct {
		method, host, scope, words, rule string
		status                           int
	}{
		{"DELETE", "any.test", "floor", `for "cell0001", by the floor of the organisation [denied_by_rule, `, "no-delete", 403},
		{"GET", "ok.test", "run", `for "cell0001", by what narrows this run [host_not_allowed, `, "none", 403},
		{"GET", "evil.test", "", `for "cell0001" [host_not_allowed, `, "none", 403},
		{"GET", "any.test", "", "", "", 200},
	}
	for _, tt := range tests {
		c, err := l.flow(t.Context(), tt.host+":80")
		must(t, err)
		must(t, c.SetDeadline(time.Now().Add(patience)))
		fmt.Fprintf(c, "%s / HTTP/1.1\r\nHost: %s\r\nAccept: application/json\r\nConnection: close\r\n\r\n", tt.method, tt.host)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		must(t, err)
		text, err := io.ReadAll(resp.Body)
		must(t, err)
		must(t, errors.Join(resp.Body.Close(), c.Close()))
		body := strings.ReplaceAll(string(text), `\"`, `"`)
		if resp.StatusCode != tt.status || tt.status != 200 && !strings.Contains(body, tt.words) {
			t.Errorf("%s %s: %d %s, want %q", tt.method, tt.host, resp.StatusCode, body, tt.words)
		}
		said := resp.Header.Get("Proxy-Status")
		if strings.Contains(body, `"scope":"`+tt.scope+`"`) != (tt.scope != "") || strings.Contains(said, "scope=") != (tt.scope != "") || !strings.Contains(said, "scope="+tt.scope) && tt.scope != "" {
			t.Errorf("%s %s: header %q, body %s", tt.method, tt.host, said, body)
		}
		if tt.rule != "" && !strings.Contains(said, "rule="+tt.rule) {
			t.Errorf("%s %s: header %q, want rule %s", tt.method, tt.host, said, tt.rule)
		}
	}
}
