package e2e_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sallyport/test/lab"
)

// Each case runs on both isolations: what a sandbox may and may not do is the
// gateway's business, not the engine's.
var isolations = []string{"container", "hardened"}

func TestAgentUsesTheAPIWithAPlaceholder(t *testing.T) {
	for _, iso := range isolations {
		t.Run(iso, func(t *testing.T) {
			w.lab.API.Reset()
			r := sandboxWith(t, "policy.yaml", []string{"--isolation", iso}, "sh", "-c",
				`echo "$API_TOKEN"; curl -sS -o /dev/null -w '%{http_code}\n' -H "Authorization: Bearer $API_TOKEN" https://`+lab.APIName+`/v1/whoami`)
			lines := strings.Fields(r.stdout)
			if r.code != 0 || len(lines) != 2 || lines[1] != "200" {
				t.Fatalf("exit %d, output %q, errors %q", r.code, r.stdout, r.stderr)
			}
			if lines[0] == w.lab.Token || lines[0] == "" {
				t.Errorf("the sandbox holds %q", lines[0])
			}
			seen := w.lab.API.Seen()
			if len(seen) != 1 || seen[0].Header.Get("Authorization") != "Bearer "+w.lab.Token {
				t.Errorf("the API saw %d requests, the first %v", len(seen), seen)
			}
			if r.Denied != 0 || !r.Destroyed {
				t.Errorf("result %+v", r)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	tests := []struct {
		name, command, reason string
		untouched             *lab.Site
	}{
		{"host", "curl -sS https://" + lab.ForbiddenName + "/", "host_not_allowed", w.lab.Forbidden},
		{"host, not by the proxy", "curl -sS --noproxy '*' https://" + lab.ForbiddenName + "/", "host_not_allowed", w.lab.Forbidden},
		{"method", "curl -sS -X DELETE https://" + lab.APIName + "/v1/x", "method_not_allowed", nil},
		{"path", "curl -sS https://" + lab.APIName + "/v2/x", "path_not_allowed", nil},
		{"port", "curl -sS http://" + lab.APIName + "/v1/x", "port_not_allowed", nil},
		{"metadata", "curl -sS --noproxy '*' http://169.254.169.254/latest/", "address_not_allowed", w.lab.Metadata},
		{"DN-15 address of an allowed host", "curl -sSk --noproxy '*' --resolve " + lab.ForbiddenName + ":443:" + lab.FilesAddr.String() + " https://" + lab.ForbiddenName + "/", "address_not_allowed", w.lab.Forbidden},
		{"raw address", "curl -sSk --noproxy '*' https://" + lab.ForbiddenAddr.String() + "/", "address_not_allowed", w.lab.Forbidden},
		{"leak", `curl -sS -H "X-Note: $API_TOKEN" https://` + lab.FilesName + lab.HelloPath, "placeholder_leak", nil},
		{"leak in the path", "curl -sS https://" + lab.FilesName + "/$API_TOKEN", "placeholder_leak", nil},
		{"own key", `curl -sS -H "Authorization: Bearer somebody-elses-key" https://` + lab.APIName + "/v1/x", "foreign_credential", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w.lab.API.Reset()
			w.lab.Files.Reset()
			if tt.untouched != nil {
				tt.untouched.Reset()
			}
			r := sandbox(t, "sh", "-c", tt.command)
			if len(r.Denials) != 1 || r.Denials[0].Reason != tt.reason {
				t.Fatalf("denials %+v, want one of %s; output %q %q", r.Denials, tt.reason, r.stdout, r.stderr)
			}
			if !strings.Contains(r.stdout, "Blocked by sandbox egress policy") || !strings.Contains(r.stdout, tt.reason) {
				t.Errorf("the client saw %q", r.stdout)
			}
			if n := len(w.lab.API.Seen()) + len(w.lab.Files.Seen()); n != 0 {
				t.Errorf("the allowed sites saw %d requests", n)
			}
			if tt.untouched != nil {
				if err := tt.untouched.Untouched(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	// The positive twin on the same paths.
	r := sandbox(t, "sh", "-c", "curl -sS https://"+lab.FilesName+lab.HelloPath+" && curl -sS --noproxy '*' https://"+lab.FilesName+lab.HelloPath+
		" && curl -sS --noproxy '*' http://"+lab.FilesName+lab.HelloPath)
	if want := strings.Repeat(lab.HelloText, 3); r.stdout != want {
		t.Errorf("allowed downloads gave %q, want %q; %s", r.stdout, want, r.stderr)
	}
}

// TestRedirects is RD-02 and RD-07 with a client that follows: what it asks for
// then is judged by itself, and the credential stays where it belongs.
func TestRedirects(t *testing.T) {
	away := func(to string) string { return "'https://" + lab.APIName + "/v1/redirect?code=307&to=" + to + "'" }
	const auth = ` -H "Authorization: Bearer $API_TOKEN" `
	tests := []struct {
		name, command, reason string
		untouched             *lab.Site
	}{
		{"RD-02 to a host that is denied", "curl -sSL" + auth + away("https://"+lab.ForbiddenName+"/"), "host_not_allowed", w.lab.Forbidden},
		{"RD-02 to another host, placeholder and all", "curl -sSL --location-trusted" + auth + away("https://"+lab.FilesName+lab.HelloPath), "placeholder_leak", w.lab.Files},
		{"RD-02 to plain HTTP", "curl -sSL" + auth + away("http://"+lab.APIName+"/v1/x"), "port_not_allowed", nil},
		{"RD-07 metadata", "curl -sSL --noproxy 169.254.169.254" + auth + away("http://169.254.169.254/latest/"), "address_not_allowed", w.lab.Metadata},
		{"RD-07 metadata, by the proxy", "curl -sSL" + auth + away("http://169.254.169.254/latest/"), "address_not_allowed", w.lab.Metadata},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w.lab.API.Reset()
			if tt.untouched != nil {
				tt.untouched.Reset()
			}
			r := sandbox(t, "sh", "-c", tt.command)
			if len(r.Denials) != 1 || r.Denials[0].Reason != tt.reason || !strings.Contains(r.stdout, tt.reason) {
				t.Fatalf("denials %+v, want one of %s; output %q %q", r.Denials, tt.reason, r.stdout, r.stderr)
			}
			if n := len(w.lab.API.Seen()); n != 1 {
				t.Errorf("the site that redirects saw %d requests", n)
			}
			if tt.untouched != nil {
				if err := tt.untouched.Untouched(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	w.lab.Files.Reset()
	r := sandbox(t, "sh", "-c", "curl -sSL"+auth+away("https://"+lab.FilesName+lab.HelloPath))
	seen := w.lab.Files.Seen()
	if r.stdout != lab.HelloText || len(seen) != 1 || seen[0].Header.Get("Authorization") != "" {
		t.Errorf("to an allowed host: %q %q, which saw %+v", r.stdout, r.stderr, seen)
	}
}

func TestBadInputIsRefusedWithTheNextStep(t *testing.T) {
	policy := filepath.Join(w.dir, "policy.yaml")
	empty := filepath.Join(t.TempDir(), "empty.yaml")
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	for path, text := range map[string]string{empty: "", bad: "apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: x, owner: y}\nrulez: []\n"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"no policy named", []string{"run", image, "true"}, 2, []string{"no policy is named", "hint: sallyport --instance sp-e2e run -p policy.yaml"}},
		{"policy missing", []string{"run", "-p", "/nowhere.yaml", image, "true"}, 2, []string{"/nowhere.yaml", "no such file"}},
		{"policy empty", []string{"run", "-p", empty, image, "true"}, 2, []string{"empty.yaml"}},
		{"policy invalid", []string{"run", "-p", bad, image, "true"}, 2, []string{"bad.yaml:4:1", "rulez", "rules"}},
		{"image missing", []string{"run", "-p", policy, "no/such:image", "true"}, 125, []string{"no/such:image", "sallyport --instance sp-e2e image load"}},
		{"isolation unknown", []string{"run", "-p", policy, "--isolation", "none", image, "true"}, 2, []string{"isolation"}},
		{"protected variable", []string{"run", "-p", policy, "-e", "HTTPS_PROXY=http://x", image, "true"}, 2, []string{"HTTPS_PROXY"}},
		{"secret in the environment", []string{"run", "-p", policy, "-e", "K=ghp_0123456789012345678901234567890123456789", image, "true"}, 2, []string{"K", "credential"}},
		{"unknown flag", []string{"run", "--privileged", image}, 2, []string{"privileged", "--help"}},
		{"up twice", []string{"up"}, 1, []string{"is up already", "sallyport --instance sp-e2e status"}},
		{"other instance is not up", []string{"--instance", "sp-none", "run", "-p", policy, image, "true"}, 125, []string{"not up", "sallyport --instance sp-none up"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cmd := command(tt.args...)
			out, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != tt.code {
				t.Errorf("exit code %d, want %d", got, tt.code)
			}
			for _, want := range tt.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("it said %q, want %q in it", out, want)
				}
			}
			if strings.Contains(string(out), "ghp_0123") {
				t.Error("it repeats the secret")
			}
		})
	}
	var cells []any
	out, err := command("ps", "-o", "json").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &cells); err != nil || len(cells) != 0 {
		t.Errorf("ps: %s (%v), want nothing left", out, err)
	}
}

func TestWithoutRootItSaysSo(t *testing.T) {
	bin := filepath.Join(w.dir, "everybodys")
	if err := os.Link(w.bin, bin); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"up"}, {"run", "-p", "x", "y"}, {"ps"}, {"reconcile"}, {"demo"}} {
		cmd := exec.Command(bin, args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "needs root") || !strings.Contains(string(out), "hint: sudo sallyport") {
			t.Errorf("%v as nobody: exit %d, %q", args, cmd.ProcessState.ExitCode(), out)
		}
	}
}

func TestFilesGoInAndOut(t *testing.T) {
	in, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(filepath.Join(in, "a.txt"), []byte("in"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := sandboxWith(t, "nothing.yaml", []string{"--workspace", in, "--export", out}, "sh", "-c", "cat a.txt; echo out > b.txt; echo err >&2; exit 7")
	if r.code != 7 || r.Exit != 7 || r.stdout != "in" || !strings.Contains(r.stderr, "err") {
		t.Errorf("exit %d, output %q, errors %q", r.code, r.stdout, r.stderr)
	}
	got, err := os.ReadFile(filepath.Join(out, "b.txt"))
	if err != nil || string(got) != "out\n" {
		t.Errorf("exported %q, %v", got, err)
	}
	if now, _ := os.ReadFile(filepath.Join(in, "a.txt")); string(now) != "in" {
		t.Errorf("the source was changed to %q", now)
	}
}

func TestAuditOfARun(t *testing.T) {
	r := sandbox(t, "sh", "-c", "curl -sS https://"+lab.FilesName+lab.HelloPath+"; curl -sS https://"+lab.ForbiddenName+"/; getent hosts "+lab.FilesName)
	out, err := command("audit", "query", "--run", r.Run, "-o", "json").Output()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for line := range strings.SplitSeq(strings.TrimSpace(string(out)), "\n") {
		var rec struct{ Kind, Run, Policy string }
		if err := json.Unmarshal([]byte(line), &rec); err != nil {
			t.Fatal(err)
		}
		kinds[rec.Kind]++
		if rec.Run != r.Run {
			t.Errorf("a record of run %q", rec.Run)
		}
	}
	for kind, want := range map[string]int{"run.start": 1, "run.end": 1, "admit": 1, "done": 1, "refuse": 1} {
		if kinds[kind] != want {
			t.Errorf("%d records of kind %s, want %d: %v", kinds[kind], kind, want, kinds)
		}
	}
	if kinds["dns"] == 0 {
		t.Errorf("no DNS record: %v", kinds)
	}
	verify, err := command("audit", "verify").CombinedOutput()
	if err != nil || !strings.Contains(string(verify), "audit verify: ok") {
		t.Errorf("verify: %v: %s", err, verify)
	}
	if strings.Contains(string(out), w.lab.Token) {
		t.Error("the log holds the secret")
	}
	leak := sandbox(t, "sh", "-c", `echo "$API_TOKEN"; curl -sS -o /dev/null "https://`+lab.FilesName+`/$API_TOKEN"`)
	if out, err = command("audit", "query", "--run", leak.Run, "-o", "json").Output(); err != nil {
		t.Fatal(err)
	}
	if p := strings.TrimSpace(leak.stdout); len(p) < 8 || strings.Contains(string(out), p) || !strings.Contains(string(out), "placeholder_leak") {
		t.Errorf("the log holds the placeholder %q, or not its leak: %s", p, out)
	}
}

// TestProgramIsForAll: a program that the daemons' accounts may not run is refused by name,
// before anything is made. The instance of these tests runs from a directory that only
// root may look into.
func TestProgramIsForAll(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "sallyport")
	data, err := os.ReadFile(w.bin)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bin, data, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--instance", other, "up"}, {"doctor"}} {
		out, _ := exec.Command(bin, args...).CombinedOutput()
		if !strings.Contains(string(out), "chmod 0755 "+bin) {
			t.Errorf("%v said %q", args, out)
		}
	}
	if err := os.Chmod(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(bin, "doctor").CombinedOutput(); err != nil || !strings.Contains(string(out), "-rwxr-xr-x") {
		t.Errorf("doctor: %v, %q", err, out)
	}
}
