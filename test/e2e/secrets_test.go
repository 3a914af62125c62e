package e2e_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sallyport/broker/needle"
	"sallyport/test/lab"
)

// shown finds secrets in what the product says and leaves behind.
type shown struct {
	t    *testing.T
	set  *needle.Set
	seen int // texts that were searched
}

func newShown(t *testing.T, secrets ...string) *shown {
	t.Helper()
	var all []needle.Needle
	for i, s := range secrets {
		// Half of a secret is one too many.
		for _, part := range []string{s, s[len(s)/4 : len(s)/4+len(s)/2]} {
			all = append(all, needle.Spellings([]byte(part), nil, i)...)
		}
	}
	return &shown{t: t, set: needle.NewSet(all)}
}

// in reports whether a text shows a secret.
func (s *shown) in(text []byte) bool {
	s.seen++
	_, ok := needle.Next(s.set, text, 0)
	return ok
}

// not fails if a text shows a secret.
func (s *shown) not(where string, text []byte) {
	s.t.Helper()
	if s.in(text) {
		s.t.Errorf("%s shows a secret", where)
	}
}

// files returns the files below a directory that show a secret.
func (s *shown) files(dir string) (bad []string) {
	s.t.Helper()
	gone := func(err error) error { // a run's own files go with it, and each checkpoint's with the next
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return gone(err)
		}
		text, err := os.ReadFile(path)
		if err == nil && s.in(text) {
			bad = append(bad, path)
		}
		return gone(err)
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return bad
}

// daemons returns the processes of the instance.
func daemons(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("pgrep", "-f", "--", w.bin+" .*--instance "+instance).Output()
	if err != nil {
		t.Fatalf("finding the daemons: %v", err)
	}
	return strings.Fields(string(out))
}

// pidOf returns the process of one daemon.
func pidOf(t *testing.T, daemon string) (pid int) {
	t.Helper()
	out, err := exec.Command("pgrep", "-f", "--", w.bin+" "+daemon+" --instance "+instance).Output()
	if err != nil {
		t.Fatalf("finding the %s: %v", daemon, err)
	}
	if _, err := fmt.Sscan(string(out), &pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

const secretsScript = `
A="Authorization: Bearer $API_TOKEN"; U=https://%[1]s/v1
curl -sS -i -H "$A" $U/reflect
curl -sS -i --http1.1 -H "$A" $U/reflect
curl -sS -i --noproxy '*' -H "$A" --compressed $U/reflect
curl -sS -i -H "$A" -d "text=hello" $U/echo
curl -sS -i -H "$A" $U/trailers
curl -sS -i -H "X-Note: $API_TOKEN" https://%[2]s/
curl -sS -i -H "$A" -d "text=$API_TOKEN" $U/echo
curl -sS -i -H "Authorization: Bearer somebody-elses-key-0001" $U/x
curl -sS -i -H "$A" -X DELETE $U/x
true
`

// TestNoSecretIsLeftAnywhere: CR-30, LG-04. A run that has an API give the secret
// away, leaks, is refused and crashes both daemons shows it in no output, record,
// captured body, metric, core or trace.
func TestNoSecretIsLeftAnywhere(t *testing.T) {
	s := newShown(t, w.lab.Token)
	policy, err := os.ReadFile(filepath.Join(w.dir, "policy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(policy), "    credential: lab-api\n", "    credential: lab-api\n    log: request_response\n", 1)
	if err := os.WriteFile(filepath.Join(w.dir, "captured.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	w.lab.API.Reset()
	r := sandboxWith(t, "captured.yaml", nil, "sh", "-c", fmt.Sprintf(secretsScript, lab.APIName, lab.FilesName))
	if seen := w.lab.API.Seen(); len(seen) < 5 || seen[0].Header.Get("Authorization") != "Bearer "+w.lab.Token {
		t.Fatalf("twin: the API saw %d requests\n%s\n%s", len(seen), r.stdout, r.stderr)
	}
	if strings.Count(strings.ToLower(r.stdout), "x-reflected: bearer ") != 3 || r.Denied < 3 {
		t.Errorf("nothing was given away: %d refusals\n%s\n%s", r.Denied, r.stdout, r.stderr)
	}
	s.not("the run's output", []byte(r.stdout))
	s.not("the run's errors", []byte(r.stderr))
	s.commands(r.Run)
	s.messages(r.Run)
	metrics, err := exec.Command("curl", "-sS", "http://"+metricsAddr+"/metrics").Output()
	if err != nil || !bytes.Contains(metrics, []byte("placeholder_leak")) {
		t.Errorf("metrics: %v\n%s", err, metrics)
	}
	s.not("the metrics", metrics)
	for _, pid := range daemons(t) {
		for _, name := range []string{"environ", "cmdline"} {
			b, err := os.ReadFile(filepath.Join("/proc", pid, name))
			if err != nil {
				t.Fatal(err)
			}
			s.not("/proc/"+pid+"/"+name, b)
		}
	}
	crashed(t)
	if r := sandbox(t, "sh", "-c", fmt.Sprintf(secretsScript, lab.APIName, lab.FilesName)); r.code != 0 {
		t.Errorf("after the crashes: exit %d, %s", r.code, r.stderr)
	}
	said := w.up.said()
	if strings.Count(said, "SIGABRT") < 2 || !strings.Contains(said, "goroutine ") {
		t.Errorf("the daemons printed no trace:\n%s", said)
	}
	s.not("what up and the daemons said", []byte(said))
	for _, dir := range []string{"/var/lib/" + instance, "/run/" + instance} {
		planted := filepath.Join(dir, "planted")
		if err := os.WriteFile(planted, []byte(`{"auth":"`+base64.StdEncoding.EncodeToString([]byte("x:"+w.lab.Token))+`"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		bad := s.files(dir)
		if err := os.Remove(planted); err != nil {
			t.Fatal(err)
		}
		if len(bad) != 1 || bad[0] != planted {
			t.Errorf("below %s a secret is in %v, want just what was planted", dir, bad)
		}
	}
	for _, pattern := range []string{"/core*", "/tmp/core*", "/var/lib/systemd/coredump/*sallyport*", filepath.Join(w.dir, "core*"), "core*"} {
		if cores, err := filepath.Glob(pattern); err != nil || len(cores) > 0 {
			t.Errorf("cores: %v, %v", cores, err)
		}
	}
	t.Logf("%d texts were searched", s.seen)
}

// commands searches what the commands print, errors included.
func (s *shown) commands(run string) {
	s.t.Helper()
	tests := []struct {
		args []string
		want string // in the output, so that it is one
	}{
		{[]string{"credential", "ls"}, "lab-api"},
		{[]string{"credential", "ls", "-o", "json"}, `"lab-api"`},
		{[]string{"credential", "show", "lab-api"}, filepath.Join(w.dir, "credentials", "lab-api.yaml")},
		{[]string{"credential", "show", "lab-api", "-o", "json"}, `"digest"`},
		{[]string{"credential", "show", "nobody", "-o", "json"}, "no credential"},
		{[]string{"credential", "test", "lab-api"}, "Authorization"},
		{[]string{"credential", "test", "lab-api", "--live", "--path", "/v1/reflect"}, "answered"},
		{[]string{"credential", "test", "lab-api", "--live", "--path", "/v2/x", "-o", "json"}, "path_not_allowed"},
		{[]string{"credential", "usage", "lab-api"}, "lab-api"},
		{[]string{"status"}, "lab-api"},
		{[]string{"status", "-o", "json"}, `"gateway"`},
		{[]string{"audit", "query", "--run", run, "-o", "json"}, "placeholder_leak"},
		{[]string{"audit", "timeline", run}, "lab-api"},
		{[]string{"audit", "query", "--run", run}, "foreign_credential"},
	}
	for _, tt := range tests {
		out, _ := command(tt.args...).CombinedOutput() // refusals are among them
		if !bytes.Contains(out, []byte(tt.want)) {
			s.t.Errorf("sallyport %s says\n%s\nwithout %q", strings.Join(tt.args, " "), out, tt.want)
		}
		s.not("sallyport "+strings.Join(tt.args, " "), out)
	}
}

// messages searches what was kept of a run's requests and answers.
func (s *shown) messages(run string) {
	s.t.Helper()
	identity := filepath.Join(s.t.TempDir(), "reader.key")
	if err := os.WriteFile(identity, []byte(w.reader.String()+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	list, err := command("audit", "query", "--run", run, "-o", "json").Output()
	if err != nil {
		s.t.Fatal(err)
	}
	reflected := 0
	for line := range bytes.Lines(list) {
		var rec struct{ Kind, ID string }
		if err := json.Unmarshal(line, &rec); err != nil {
			s.t.Fatal(err)
		}
		if rec.Kind != "admit" {
			continue
		}
		for _, side := range [][]string{nil, {"--response"}} {
			out, err := command(append([]string{"audit", "body", rec.ID, "--identity", identity}, side...)...).CombinedOutput()
			s.not("what was kept of "+rec.ID, out)
			if err == nil && bytes.Contains(out, []byte(`"authorization"`)) {
				reflected++
			}
		}
	}
	if reflected != 3 {
		s.t.Errorf("twin: %d of the answers that give the secret away were kept, want 3", reflected)
	}
}

// crashed has both daemons print where they are, and come back.
func crashed(t *testing.T) {
	t.Helper()
	for _, daemon := range []string{"broker", "gateway"} {
		old := pidOf(t, daemon)
		kill(t, old, syscall.SIGABRT)
		p := startProber(t) // waits until something answers
		if now := pidOf(t, daemon); now == old {
			t.Errorf("the %s is still process %d", daemon, old)
		}
		if err := p.stop(); err == nil {
			t.Error("the prober ended by itself")
		}
	}
}
