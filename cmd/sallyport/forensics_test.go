package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	"github.com/oklog/ulid/v2"

	"sallyport/audit"
	"sallyport/audit/capture"
	"sallyport/broker/scrub"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
)

const forensicsPage = "../../docs/forensics.md"

const forensicsPolicy = `apiVersion: sallyport/v1
kind: Policy
metadata: {name: charges, owner: team-payments}
rules:
  - id: charges
    reason: reports about charges
    allow: {host: api.example.com, methods: [GET, POST], paths: [/v1/charges]}
    credential: example-key
    log: request
`

const forensicsCredential = `apiVersion: sallyport/v1
kind: Credential
metadata: {name: example-key}
type: bearer
endpoints: [{host: api.example.com, methods: [GET, POST]}]
source: {file: /etc/sallyport/secrets/example-key}
placeholder: {env: EXAMPLE_API_KEY}
`

// story writes the log of the page. Every time, and every id that the page
// shows, is made of what is told.
type story struct {
	t      *testing.T
	log    *audit.Log
	policy string
	bodies *capture.Store
	now    *time.Time
	run    audit.Record // what records of the run have in common
	began  time.Time
}

func storyID(at time.Time, salt string) string {
	sum := sha256.Sum256([]byte(at.Format(time.RFC3339Nano) + salt))
	id := ulid.ULID{}
	if err := errors.Join(id.SetTime(ulid.Timestamp(at)), id.SetEntropy(sum[:10])); err != nil {
		panic(err)
	}
	return id.String()
}

// tell appends a record of the run, after a time since it began.
func (s *story) tell(after time.Duration, kind audit.Kind, r audit.Record) audit.Record {
	s.t.Helper()
	r.Kind, r.Time, r.Run, r.Cell, r.Policy = kind, s.began.Add(after), s.run.Run, s.run.Cell, s.policy
	r.ID = storyID(r.Time, string(kind))
	*s.now = r.Time
	must(s.t, s.log.Append(context.Background(), &r))
	return r
}

// start begins a run.
func (s *story) start(at time.Time, digest string) {
	s.began = at
	id := storyID(at, "run")
	s.run = audit.Record{Run: id, Cell: "cell-" + strings.ToLower(id[len(id)-6:])}
	data, err := json.Marshal(map[string]any{
		"image": "sallyport/sandbox:latest", "image_digest": "sha256:" + strings.Repeat(digest, 32), "policy_name": "charges", "user": "1000:1000", "asker": map[string]any{"user": "alice", "uid": 1000},
	})
	must(s.t, err)
	s.tell(0, audit.RunStart, audit.Record{Data: data})
}

func (s *story) end(after time.Duration, exit, denied int) {
	data, err := json.Marshal(map[string]any{"exit": exit, "cause": "exited", "denied": denied})
	must(s.t, err)
	s.tell(after, audit.RunEnd, audit.Record{Data: data})
}

func (s *story) lookup(after time.Duration, r audit.Record, host, answer string) {
	r.Listener, r.Question, r.Host, r.QType, r.Answer = "dns", "resolve", host, "A", answer
	s.tell(after, audit.DNS, r)
}

// fetched is a request to the API that was let through, with its outcome.
func (s *story) fetched(after time.Duration, method, query string, sent int64) {
	r := allowed
	r.Listener, r.Client, r.Question, r.Proto = "transparent", "10.213.0.2:41008", "fetch", "h2"
	r.Host, r.Port, r.Method, r.Path, r.Credential = "api.example.com", 443, method, "/v1/charges", "example-key"
	if query != "" {
		r.Query = s.log.Hash(query)
		r.Values, _ = gate.HashValues(query, s.log.Hash)
	}
	r.Event = "use"
	admit := s.tell(after, audit.Admit, r)
	r.Values, r.Event = "", ""
	r.Ref, r.Addr, r.Status, r.Sent, r.Received, r.Micros = admit.ID, "203.0.113.5:443", 200, sent, 3400, 183_000
	r.Data = s.kept(method, query, sent)
	s.tell(after+183*time.Millisecond, audit.Done, r)
}

// kept keeps the body of a request: a table of customers, as far as it was sent.
func (s *story) kept(method, query string, sent int64) json.RawMessage {
	s.t.Helper()
	head := http.Header{"Authorization": {"Bearer placeholder"}, "Content-Type": {"text/csv"}, "User-Agent": {"curl/7.88.1"}}
	m := s.bodies.Message(s.run.Cell, method+" /v1/charges"+strings.TrimSuffix("?"+query, "?")+" HTTP/2.0", head)
	text := []byte("customer,card,amount\n")
	for i := 0; int64(len(text)) < sent; i++ {
		text = fmt.Appendf(text, "%d,4000-0000-0000-%04d,%d.00\n", 4711+i, i%10_000, 10+i%90)
	}
	_, err := m.Write(text[:sent])
	must(s.t, err)
	request := m.Finish()
	data, err := json.Marshal(keptData{Request: &request})
	must(s.t, err)
	return data
}

// refused is a request elsewhere.
func (s *story) refused(after time.Duration, reason, credential string) {
	r := audit.Record{
		Listener: "transparent", Client: "10.213.0.2:41010", Question: "fetch", Proto: "h2", Verdict: "deny", Reason: reason,
		Host: "paste.example.net", Port: 443, Method: "POST", Path: "/api/new", Status: 403, Credential: credential,
	}
	if credential != "" {
		r.Path = gate.HashPath(r.Path, s.log.Hash)
	}
	no := s.tell(after, audit.Refuse, r)
	if credential != "" {
		r.Verdict, r.Ref, r.Status, r.Event = "", no.ID, 0, "leak"
		s.tell(after+time.Millisecond, audit.Credential, r)
	}
}

var allowed = audit.Record{Verdict: "inspect", Reason: "allowed", Rule: "charges", Where: "policy.yaml:5", Scope: "policy"}

// writeForensics makes log, key, audit.pub, policies, bodies and credentials in dir: four
// days of runs like each other, and one in the night that is not.
func writeForensics(t *testing.T, dir string) {
	t.Helper()
	for _, d := range []string{"key", "policies", "credentials"} {
		must(t, os.Mkdir(filepath.Join(dir, d), 0o700))
	}
	must(t, os.WriteFile(filepath.Join(dir, "key", "key.hmac"), []byte(strings.Repeat("0123456789ABCDEF", 4)+"\n"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "credentials", "example-key.yaml"), []byte(forensicsCredential), 0o600))
	creds, err := loadCredentials(filepath.Join(dir, "credentials"))
	must(t, err)
	p, err := policyfile.ReadPolicy(policyfile.Input{Name: "policy.yaml", Data: []byte(forensicsPolicy)}, creds)
	must(t, err)
	digest := p.Policy.Digest()
	must(t, keepPolicy(filepath.Join(dir, "policies"), &policy{digest: digest, text: p.Effective}))
	first := time.Date(2026, 1, 28, 9, 0, 0, 0, time.UTC)
	now := first
	l, err := audit.Open(audit.Config{
		Dir: filepath.Join(dir, "log"), KeyFile: filepath.Join(dir, "key", "key"), Origin: "example.com/log", Version: "test",
		Now: func() time.Time { return now }, Interval: time.Hour,
	})
	must(t, err)
	who, err := age.GenerateX25519Identity()
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "reviewer.key"), []byte(who.String()+"\n"), 0o600))
	bodies, err := capture.New(capture.Config{
		Dir: filepath.Join(dir, "bodies"), Recipient: who.Recipient().String(), Decode: scrub.Decode,
		Hider: func(string) func(string) string { return func(text string) string { return text } },
	})
	must(t, err)
	s := &story{t: t, log: l, now: &now, policy: digest, began: first, bodies: bodies}
	s.tell(0, audit.PolicyLoad, audit.Record{})
	for i := range 6 {
		s.start(first.Add(time.Duration(i*i+i*7+1)*time.Hour+time.Duration(i*i)*time.Minute), "77")
		s.lookup(time.Second, allowed, "api.example.com", "198.18.0.1")
		s.fetched(2*time.Second, "GET", "", 0)
		s.fetched(3*time.Second, "POST", "", 1200)
		s.end(5*time.Second, 0, 0)
	}
	s.start(time.Date(2026, 1, 31, 3, 42, 0, 0, time.UTC), "5e")
	s.lookup(time.Second, allowed, "api.example.com", "198.18.0.1")
	s.fetched(2*time.Second, "GET", "", 0)
	s.fetched(3*time.Second, "POST", "customer=4711", 3<<20)
	s.lookup(6*time.Second, audit.Record{Verdict: "deny", Reason: "host_not_allowed"}, "paste.example.net", "198.18.0.2")
	s.refused(6100*time.Millisecond, "host_not_allowed", "")
	s.refused(7*time.Second, "placeholder_leak", "example-key")
	s.end(9*time.Second, 1, 3)
	must(t, l.Close())
	public, err := os.ReadFile(filepath.Join(dir, "log", "log.pub"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "audit.pub"), public, 0o600))
}

// TestForensicsIsWhatIsPrinted runs the commands of docs/forensics.md and holds
// what they print against the page. -update writes it anew.
func TestForensicsIsWhatIsPrinted(t *testing.T) {
	page, err := filepath.Abs(forensicsPage)
	must(t, err)
	text, err := os.ReadFile(page)
	must(t, err)
	dir := t.TempDir()
	writeForensics(t, dir)
	seen := map[string]bool{}
	got := consoleBlock.ReplaceAllStringFunc(string(text), func(block string) string {
		var out strings.Builder
		out.WriteString("```console\n")
		for line := range strings.Lines(block) {
			command, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "$ ")
			if !ok {
				continue
			}
			for _, what := range []string{"query", "show", "why", "timeline", "top", "new", "diff", "hash", "body", "prove", "verify", "export", "anomalies"} {
				seen[what] = seen[what] || strings.Contains(command, "audit "+what+" ")
			}
			fmt.Fprintf(&out, "$ %s\n%s", command, typed(t, dir, command))
		}
		out.WriteString("```")
		return out.String()
	})
	if len(seen) != 13 {
		t.Fatalf("the page has no commands")
	}
	for what, is := range seen {
		if !is {
			t.Errorf("the page does not show audit %s", what)
		}
	}
	if *update {
		must(t, os.WriteFile(page, []byte(got), 0o644))
		return
	}
	if diff := cmp.Diff(string(text), got); diff != "" {
		t.Errorf("docs/forensics.md does not show what is printed: make golden (-page +printed)\n%s", diff)
	}
}

// typed is what a shell prints for a command line, which has to succeed.
func typed(t *testing.T, dir, command string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command) // testscript.Main put sallyport on the path
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%s: %v\n%s", command, err, &errs)
	}
	for line := range strings.Lines(string(out)) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 100 && !strings.Contains(command, "json") {
			t.Errorf("%s: a line of %d columns: %s", command, n, line)
		}
	}
	return string(out)
}
