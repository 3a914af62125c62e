package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/index"
)

const readersPolicy = `apiVersion: sallyport/v1
kind: Policy
metadata: {name: readers, owner: team}
rules:
  - {id: api, reason: it is needed, allow: {host: api.example.com, methods: [GET]}}
`

// TestReadersAskTheIndex: what reads a whole log answers out of an index as it does without
// one, and does ask it.
func TestReadersAskTheIndex(t *testing.T) {
	base := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", filepath.Join(base, "cache"))
	dir, policy, older := filepath.Join(base, "audit"), filepath.Join(base, "p.yaml"), filepath.Join(base, "old.yaml")
	must(t, os.WriteFile(policy, []byte(readersPolicy), 0o600))
	must(t, os.WriteFile(older, []byte(strings.Replace(readersPolicy, "methods: [GET]", "methods: [POST]", 1)), 0o600))
	writeForReaders(t, dir, filepath.Join(base, "key"))

	ask := func(args ...string) string {
		var out, told bytes.Buffer
		if code := run(t.Context(), args, nil, &out, &told); code > exitFailed || strings.Contains(told.String(), "missing") { // a slow machine tells how far it is
			t.Fatalf("%q: %d, %s", args, code, &told)
		}
		return out.String()
	}
	commands := map[string][]string{
		"usage":          {"credential", "usage", "key", "--dir", dir, "-o", "json"},
		"suggest":        {"policy", "suggest", "--from", dir, "-o", "json"},
		"suggest, a run": {"policy", "suggest", "--from", dir, "--run", "01KG929BT0TE78HSNTG4WNE1CK", "-o", "json"},
		"replay":         {"policy", "diff", older, policy, "--replay", dir, "-o", "json"},
	}
	files := map[string]string{}
	for name, args := range commands {
		files[name] = ask(args...)
		if !strings.Contains(files[name], "api.example.com") {
			t.Errorf("%s: %s", name, files[name])
		}
	}
	path := strings.TrimSpace(ask("audit", "index", "--dir", dir, "-o", "json"))
	for name, args := range commands {
		if got := ask(args...); got != files[name] {
			t.Errorf("%s: out of the index %s, out of the files %s", name, got, files[name])
		}
	}
	// That it was asked shows when it tells something else.
	var made struct{ Path string }
	must(t, json.Unmarshal([]byte(path), &made))
	x, err := index.Open(t.Context(), index.Config{Dir: dir, Path: made.Path, Own: true})
	must(t, err)
	_, err = x.DB().ExecContext(t.Context(), "UPDATE shapes SET host = 'other.example.com' WHERE host = 'api.example.com'")
	must(t, err)
	must(t, x.Close())
	for name, args := range commands {
		if got := ask(args...); got == files[name] || strings.Contains(got, "api.example.com") {
			t.Errorf("%s did not ask the index: %s", name, got)
		}
	}
}

// writeForReaders writes a log of which few records are of interest.
func writeForReaders(t *testing.T, dir, key string) {
	t.Helper()
	at := time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)
	l, err := audit.Open(audit.Config{Dir: dir, KeyFile: key, Interval: time.Hour, Now: func() time.Time { return at }})
	must(t, err)
	const used, other = "01KG929BT0TE78HSNTG4WNE1CK", "01KG929BT0TE78HSNTG4WNE1CM"
	request := audit.Record{Run: used, Cell: "c", Question: "fetch", Proto: "h2", Host: "api.example.com", Port: 443, Method: "GET", Path: "/v1"}
	add := func(kind audit.Kind, change func(*audit.Record)) {
		r := request
		r.Kind = kind
		change(&r)
		must(t, l.Append(t.Context(), &r))
	}
	add(audit.RunStart, func(r *audit.Record) { r.Data = json.RawMessage(`{"asker":{"uid":1000,"user":"alice","gid":1000}}`) })
	add(audit.Admit, func(r *audit.Record) { r.Verdict, r.Reason, r.Credential, r.Event = "inspect", "allowed", "key", "use" })
	add(audit.Admit, func(r *audit.Record) { r.Verdict, r.Reason = "inspect", "allowed" })
	add(audit.Credential, func(r *audit.Record) { r.Credential, r.Event = "key", "mint" })
	add(audit.Credential, func(r *audit.Record) { r.Credential, r.Event = "another", "mint" })
	add(audit.Refuse, func(r *audit.Record) { r.Verdict, r.Reason, r.Method = "deny", "method_not_allowed", "PUT" })
	add(audit.DNS, func(r *audit.Record) {
		r.Question, r.QType, r.Verdict, r.Reason, r.Method, r.Path, r.Host = "resolve", "A", "deny", "host_not_allowed", "", "", "evil.example"
	})
	for range 1000 {
		add(audit.Done, func(r *audit.Record) {
			r.Run, r.Verdict, r.Reason, r.Host, r.Status = other, "inspect", "allowed", "busy.example.com", 200
		})
	}
	must(t, l.Close())
}
