package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/test/lab"
)

// session is a sandbox whose shell does what it is told.
type session struct {
	*process
	t  *testing.T
	in io.Writer
}

func startSession(t *testing.T, instance string, flags ...string) *session {
	t.Helper()
	args := append(append([]string{"run", "--stdin", "--timeout", "10m"}, flags...), image, "sh", "-c", `while read -r line; do eval "$line"; done`)
	cmd := commandOf(instance, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := startProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // the shell ends with it
		<-p.ended
	})
	return &session{p, t, in}
}

// tell has the shell do something, and waits for a line of its output.
func (s *session) tell(line, want string) {
	s.t.Helper()
	if _, err := fmt.Fprintln(s.in, line); err != nil {
		s.t.Fatalf("%v\n%s", err, s.said())
	}
	if err := s.waitLine(want, time.Minute); err != nil {
		s.t.Fatalf("%s: %v\nup: %s", line, err, w.up.said())
	}
}

// curl asks for a URL and waits for the status that it gets.
func (s *session) curl(what, status string) {
	s.t.Helper()
	s.tell(`curl -sS -o /tmp/body -D /tmp/head -w "got %{http_code} for `+what+`\n" `+what, "got "+status+" for "+what)
}

// ask asks for what the last curl was refused, and waits for the status.
func (s *session) ask(status string) {
	s.t.Helper()
	s.tell(`id=$(grep -i '^sallyport-request:' /tmp/head | tr -d '\r' | cut -d' ' -f2); `+
		`curl -sS -o /tmp/asked -w "asked %{http_code}\n" -d "{\"request\":\"$id\",\"reason\":\"for the test\"}" http://sallyport.internal/v1/requests`, "asked "+status)
}

const (
	scopeFloor = `apiVersion: sallyport/v1
kind: Policy
metadata: {name: org}
rules:
  - {id: org-no, reason: the organisation says so, deny: {host: %[1]s, ports: [80, 443], paths: ["/floor/**"]}}
never:
  - {host: %[2]s, paths: ["/never/**"]}
`
	scopePolicy = `apiVersion: sallyport/v1
kind: Policy
metadata: {name: team}
rules:
  - {id: files, reason: the team says so, allow: {host: %[1]s, access: write}}
  - {id: team-no, reason: the team says so, deny: {host: %[1]s, paths: ["/policy/**"]}}
`
	scopeRun = `apiVersion: sallyport/v1
kind: Policy
metadata: {name: one-run}
rules:
  - {id: run-reads, reason: this run looks, allow: {host: %[1]s, access: read}}
  - {id: run-no, reason: this run says so, deny: {host: %[1]s, paths: ["/run/**"]}}
`
)

// TestScopesFromInside: what floor, policy, run and approval each admit and refuse,
// as a sandbox sees it with curl, and as the log has it.
func TestScopesFromInside(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(fmt.Sprintf(text, lab.FilesName, lab.ForbiddenName)), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	up, err := startUpWith(other, filepath.Join(w.dir, "config.yaml"), "--floor", file("floor.yaml", scopeFloor))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.lab.Forbidden.Reset()
		if err := up.stop(); err != nil {
			t.Errorf("up: %v\n%s", err, up.said())
		}
	})
	if err := loadImage(other); err != nil {
		t.Fatal(err)
	}
	s := startSession(t, other, "-p", file("team.yaml", scopePolicy), "--narrow", file("run.yaml", scopeRun))
	files, forbidden := "https://"+lab.FilesName, "https://"+lab.ForbiddenName
	s.curl(files+lab.HelloPath, "200")
	for _, path := range []string{"/floor/x", "/policy/x", "/run/x"} {
		s.curl(files+path, "403")
		s.ask("403") // no approval beats a deny rule
	}
	s.curl("-X POST "+files+lab.HelloPath, "403")
	s.curl(forbidden+"/", "403")
	s.ask("202")
	id := waiting(t)
	if out, err := commandOf(other, "access", "approve", id, "--path", "/**").CombinedOutput(); err == nil || !strings.Contains(string(out), "would break: never") {
		t.Errorf("approved against the floor: %v, %s", err, out)
	}
	if out, err := commandOf(other, "access", "approve", id, "--for", "1h").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w.lab.Forbidden.Reset()
	s.curl(forbidden+"/", "200")
	s.curl(forbidden+"/never/x", "403")
	s.curl("-X POST "+forbidden+"/", "403")
	if out, err := commandOf(other, "access", "deny", id).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.curl(forbidden+"/", "403")
	if n := len(w.lab.Forbidden.Seen()); n != 1 {
		t.Errorf("the site that was approved once saw %d requests", n)
	}
	checkScopeRecords(t)
}

// waiting returns the id of the one request for access that waits.
func waiting(t *testing.T) string {
	t.Helper()
	out, err := commandOf(other, "access", "ls", "-o", "json").Output()
	var list []struct{ ID string }
	if err != nil || json.Unmarshal(out, &list) != nil || len(list) != 1 {
		t.Fatalf("access ls: %v, %s", err, out)
	}
	return list[0].ID
}

func checkScopeRecords(t *testing.T) {
	t.Helper()
	out, err := commandOf(other, "audit", "query", "kind=admit,refuse,access.asked,access.decided", "-o", "json").Output()
	if err != nil {
		t.Fatalf("audit query: %v, %s", err, out)
	}
	had := map[string]bool{}
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var r struct{ Kind, Scope, Reason, Rule, Path string }
		if err := d.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(r.Rule, "access-") {
			r.Rule = "access-…"
		}
		had[strings.Join([]string{r.Kind, r.Scope, r.Reason, r.Rule, r.Path}, " ")] = true
	}
	for _, want := range []string{
		"admit policy allowed files " + lab.HelloPath,
		"refuse floor denied_by_rule org-no /floor/x",
		"refuse policy denied_by_rule team-no /policy/x",
		"refuse run denied_by_rule run-no /run/x",
		"refuse run method_not_allowed  " + lab.HelloPath,
		"access.asked  host_not_allowed  /",
		"access.decided approval  access-… /",
		"admit approval allowed access-… /",
		"refuse policy host_not_allowed  /",
	} {
		if !had[want] {
			t.Errorf("no record of %q in\n%s", want, strings.Join(keys(had), "\n"))
		}
	}
	if out, err := commandOf(other, "audit", "verify").CombinedOutput(); err != nil {
		t.Errorf("audit verify: %v, %s", err, out)
	}
}

func keys(m map[string]bool) (list []string) {
	for k := range m {
		list = append(list, k)
	}
	return list
}
