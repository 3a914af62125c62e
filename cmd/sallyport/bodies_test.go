package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"sallyport/audit"
	"sallyport/audit/capture"
	"sallyport/broker/scrub"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

const bodiesPolicy = `apiVersion: sallyport/v1
kind: Policy
metadata: {name: bodies}
rules:
  - {id: both, reason: x, log: request_response, allow: {host: both.test, methods: [POST]}}
  - {id: one, reason: x, log: request, allow: {host: one.test, methods: [POST]}}
  - {id: none, reason: x, allow: {host: none.test, methods: [POST]}}
`

// TestBodies carries what is kept of an exchange from the gateway's hands to the
// reviewer's screen.
func TestBodies(t *testing.T) {
	base := t.TempDir()
	who, err := age.GenerateX25519Identity()
	must(t, err)
	identity := filepath.Join(base, "reviewer.key")
	must(t, os.WriteFile(identity, []byte(who.String()+"\n"), 0o600))
	p, err := policyfile.ParsePolicy("p.yaml", []byte(bodiesPolicy), nil)
	must(t, err)
	log, err := audit.Open(audit.Config{Dir: filepath.Join(base, "log"), KeyFile: filepath.Join(base, "key"), Now: time.Now})
	must(t, err)
	g := &gateway{records: log}
	if err := g.mayCapture(p); err == nil || !strings.Contains(err.Error(), `rule "both" says to log bodies`) || !strings.Contains(err.Error(), "--capture-recipient") {
		t.Errorf("a policy that asks for bodies, without a recipient: %v", err)
	}
	g.gate, err = gate.New(gate.Config{
		Identity: func(cell string) (gate.Identity, bool) { return gate.Identity{Cell: cell, Run: "run", Policy: p}, true },
		Recorder: log, Now: time.Now, Hash: log.Hash,
	})
	must(t, err)
	g.bodies, err = capture.New(capture.Config{
		Dir: filepath.Join(base, "bodies"), Recipient: who.Recipient().String(), Decode: scrub.Decode,
		Hider: func(string) func(string) string { return func(s string) string { return s } },
	})
	must(t, err)
	must(t, g.mayCapture(p))
	ids := map[string]string{}
	for _, host := range []string{"both.test", "one.test", "none.test"} {
		ids[host] = keepOne(t, g, host)
	}
	must(t, log.Close())
	body := func(id string, more ...string) (code int, out, errs string) {
		var stdout, stderr bytes.Buffer
		args := append([]string{"audit", "body", id, "--dir", filepath.Join(base, "log"), "--bodies", filepath.Join(base, "bodies")}, more...)
		code = run(context.Background(), args, strings.NewReader(""), &stdout, &stderr)
		return code, stdout.String(), stderr.String()
	}
	for _, tt := range []struct {
		name, host string
		args       []string
		code       int
		want       string // in the output, or what is said
	}{
		{"request", "both.test", []string{"--identity", identity}, 0, "POST /v1/x HTTP/1.1\r\nAuthorization: [left out]\r\n\r\n{\"password\": \"[left out]\", \"a\": 1}"},
		{"answer", "both.test", []string{"--identity", identity, "--response"}, 0, "HTTP 200 OK\r\n\r\nfine"},
		{"request alone", "one.test", []string{"--identity", identity}, 0, "POST /v1/x"},
		{"no answer was kept", "one.test", []string{"--identity", identity, "--response"}, exitUsage, "nothing was kept of the answer"},
		{"nothing was kept", "none.test", []string{"--identity", identity}, exitUsage, "nothing was kept of request"},
		{"no identity", "both.test", nil, exitUsage, "--identity is required"},
		{"digests", "both.test", []string{"-o", "json"}, 0, `"sha256": "`},
	} {
		code, out, errs := body(ids[tt.host], tt.args...)
		if code != tt.code || !strings.Contains(out+errs, tt.want) || code == 0 && strings.Contains(out, "canary") {
			t.Errorf("%s: exit code %d, %q, %q", tt.name, code, out, errs)
		}
	}
	if code, _, errs := body("01JJX0000000000000000000F0"); code != exitUsage || !strings.Contains(errs, "no request") {
		t.Errorf("an id that is none: %d, %q", code, errs)
	}
}

// keepOne carries one request to host, and returns its id.
func keepOne(t *testing.T, g *gateway, host string) string {
	t.Helper()
	e, err := target.ParseAuthority(host, 443)
	must(t, err)
	path, err := target.ParsePath("/v1/x")
	must(t, err)
	p, err := g.gate.Admit(t.Context(), rules.Request{
		Question: rules.Fetch, Cell: "cell", Endpoint: e, Secure: true, Protocol: rules.HTTP, Method: "POST", Path: path,
	})
	must(t, err)
	out := gate.Outcome{Status: 200}
	if p.Decision().Log > rules.LogMetadata { // as the proxy asks
		r, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+"/v1/x", nil)
		must(t, err)
		r.Header.Set("Authorization", "Bearer canary-1")
		k := g.keepBodies(p, r)
		k.Request([]byte(`{"password": "canary-2", "a": 1}`))
		k.Answer(200, http.Header{})
		k.Body([]byte("fine"))
		out.Data = k.Done()
	}
	must(t, p.Done(t.Context(), out))
	return p.ID()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
