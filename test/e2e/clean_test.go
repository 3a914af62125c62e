package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/test/lab"
)

// snapshot lists whatever an instance could leave on this machine.
func snapshot(t *testing.T, instance string) []string {
	t.Helper()
	var all []string
	add := func(kind, line string) {
		if strings.Contains(line, instance) {
			all = append(all, kind+" "+line)
		}
	}
	for line := range strings.Lines(read(t, "/proc/self/mountinfo")) {
		add("mount", line)
	}
	for _, dir := range []string{"/run/netns", "/run", "/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpu"} {
		entries, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, e := range entries {
			add(dir, e.Name())
		}
	}
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		if line, err := os.ReadFile(p); err == nil { // it may be gone by now
			add("process", strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	rules, err := exec.Command("iptables-save").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(rules)) {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ":") {
			all = append(all, "rule "+line)
		}
	}
	slices.Sort(all)
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// An instance is taken up, its log's disk filled, its launcher and then its
// supervisor killed; in the end nothing of it is left but its state.
func TestKilledAndCleared(t *testing.T) {
	state := filepath.Join("/var/lib", other)
	logDir := filepath.Join(state, "audit")
	if err := os.MkdirAll(logDir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", logDir, "tmpfs", 0, "size=16m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(logDir, 0); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(state); err != nil {
			t.Error(err)
		}
	})
	before := snapshot(t, other)
	up, err := startUp(other)
	if err != nil {
		t.Fatal(err)
	}
	if err := loadImage(other); err != nil {
		t.Fatal(err)
	}
	t.Run("the log's disk is full", func(t *testing.T) { logFull(t, logDir) })
	t.Run("the launcher is killed", func(t *testing.T) {
		p := startProberIn(t, other)
		kill(t, p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.ended
		// Nobody has to ask: a sandbox without its launcher is ended.
		for deadline := time.Now().Add(time.Minute); ; {
			out, err := commandOf(other, "ps", "-o", "json").Output()
			if err != nil {
				t.Fatalf("ps: %v: %s", err, out)
			}
			if strings.TrimSpace(string(out)) == "[]" {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("still there: %s", out)
			}
		}
		reconcile(t, "")
		w.lab.API.Reset()
		reconcile(t, "nothing was left")
		if seen := w.lab.API.Seen(); len(seen) > 0 {
			t.Errorf("the API was called %d times by a sandbox that is gone", len(seen))
		}
	})
	t.Run("the supervisor is killed", func(t *testing.T) {
		p := startProberIn(t, other)
		kill(t, up.cmd.Process.Pid, syscall.SIGKILL)
		<-up.ended
		n := len(w.lab.API.Seen())
		// Its containerd is gone with it, so the run is lost, and says so.
		<-p.ended
		if now := len(w.lab.API.Seen()); now != n {
			t.Errorf("the API saw %d requests without a gateway", now-n)
		}
		if !strings.Contains(p.said(), "sallyport: ") {
			t.Errorf("the run said %q", p.said())
		}
		reconcile(t, "removed")
	})
	lock := filepath.Join("/run", other, "supervisor.lock")
	if _, err := os.Stat(lock); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(filepath.Join("/run", other)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, snapshot(t, other)); diff != "" {
		t.Errorf("something is left (- before, + after):\n%s", diff)
	}
	out, err := commandOf(other, "audit", "query", "kind=run.end", "-o", "json").Output()
	if err != nil || strings.Count(string(out), "\n") < 3 {
		t.Errorf("the end of a run is missing in the log: %v\n%s", err, out)
	}
	if out, err := commandOf(other, "audit", "verify").CombinedOutput(); err != nil {
		t.Errorf("verify: %v: %s", err, out)
	}
}

func reconcile(t *testing.T, want string) {
	t.Helper()
	out, err := commandOf(other, "reconcile").CombinedOutput()
	if err != nil || !strings.Contains(string(out), want) {
		t.Fatalf("reconcile: %v: %s", err, out)
	}
}

// logFull fills the disk under a running sandbox: what cannot be recorded is
// not done, and it goes on by itself when there is room.
func logFull(t *testing.T, dir string) {
	p := startProberIn(t, other)
	filler, err := os.Create(filepath.Join(filepath.Dir(dir), "audit", "filler"))
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 1<<16)
	for len(block) > 0 {
		if _, err := filler.Write(block); err != nil {
			block = block[:len(block)/2] // smaller, until nothing fits
		}
	}
	p.expect("odd 503")
	p.drain()
	n := len(w.lab.API.Seen())
	p.expect("odd 503")
	p.expect("odd 503")
	if now := len(w.lab.API.Seen()); now != n {
		t.Errorf("the API saw %d requests that could not be recorded", now-n)
	}
	out, _ := commandOf(other, "run", "-p", filepath.Join(w.dir, "nothing.yaml"), image, "true").CombinedOutput()
	if !strings.Contains(string(out), "cannot write its log") || !strings.Contains(string(out), "hint: df -h") {
		t.Errorf("run with a full disk said %q", out)
	}
	if err := filler.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filler.Name()); err != nil {
		t.Fatal(err)
	}
	p.drain()
	p.expect("out")
	gaps, err := commandOf(other, "audit", "query", "kind=gap", "-o", "json").Output()
	if err != nil || len(gaps) == 0 {
		t.Errorf("no gap is recorded: %v", err)
	}
}

// A secret whose file others can read is not used; the run does not start.
func TestSecretFileModeIsChecked(t *testing.T) {
	path := filepath.Join(w.dir, "token")
	t.Cleanup(func() {
		if err := os.Chmod(path, 0o400); err != nil {
			t.Error(err)
		}
	})
	for _, mode := range []os.FileMode{0o444, 0o440} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		cmd := command("run", "-p", filepath.Join(w.dir, "policy.yaml"), image, "true")
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 125 || !strings.Contains(string(out), "chmod") || !strings.Contains(string(out), "lab-api") {
			t.Errorf("mode %v: exit %d, %q", mode, code, out)
		}
	}
	if err := os.Chmod(path, 0o400); err != nil {
		t.Fatal(err)
	}
	if r := sandbox(t, "true"); r.code != 0 {
		t.Errorf("mode 0400: exit %d, %s", r.code, r.stderr)
	}
}

func TestUpstreamFaultsAreNotDenials(t *testing.T) {
	r := sandbox(t, "curl", "-sS", "-i", "https://"+downName+"/")
	for _, want := range []string{" 502", "connection_refused"} {
		if !strings.Contains(strings.ToLower(r.stdout), want) {
			t.Errorf("a site that is down gave %q, want %q in it", r.stdout, want)
		}
	}
	if strings.Contains(r.stdout, "Blocked by sandbox") || r.Denied != 0 {
		t.Errorf("it looks like a denial: %q, %+v", r.stdout, r.Denials)
	}
	// The twin: upstream's own 500 is handed on.
	r = sandbox(t, "sh", "-c", `curl -sS -i -H "Authorization: Bearer $API_TOKEN" "https://`+lab.APIName+`/v1/status?code=500"`)
	if !strings.Contains(r.stdout, " 500") || r.Denied != 0 {
		t.Errorf("upstream's own fault gave %q, %+v", r.stdout, r.Denials)
	}
}

// Whatever reads the output, or does not, a run ends in time and leaves nothing.
func TestOutputThatNobodyReads(t *testing.T) {
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := command("run", "-p", filepath.Join(w.dir, "nothing.yaml"), "--timeout", "3s", image, "sh", "-c", "yes | head -c 4000000; sleep 60")
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = out.Close()
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		kill(t, cmd.Process.Pid, syscall.SIGKILL)
		t.Fatal("the run did not end")
	}
	if code := cmd.ProcessState.ExitCode(); code != 124 {
		t.Errorf("exit code %d, want 124", code)
	}
	if ps, err := command("ps", "-o", "json").Output(); err != nil || strings.TrimSpace(string(ps)) != "[]" {
		t.Errorf("ps: %v: %s", err, ps)
	}
}

// A FIFO in place of a file must not hang anything.
func TestFIFOIsNoFile(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "p.yaml")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"policy", "lint", fifo}, {"run", "-p", fifo, image, "true"}} {
		cmd := command(args...)
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "not a regular file") {
			t.Errorf("%v: exit %d, %s", args, cmd.ProcessState.ExitCode(), out)
		}
	}
}
