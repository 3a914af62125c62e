package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/test/lab"
)

// status is what tests read of sallyport status.
type status struct {
	Supervisor int `json:"supervisor_pid"`
	Gateway    struct {
		PID int `json:"pid"`
	} `json:"gateway"`
}

func statusOf(t *testing.T) status {
	t.Helper()
	out, err := command("status", "-o", "json").Output()
	if err != nil {
		t.Fatalf("status: %v\n%s", err, w.up.said())
	}
	var s status
	if err := json.Unmarshal(out, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// prober is a sandbox that tries, over and over: a line "out" for each time
// that it reached the API, "shut" for each time that it did not.
type prober struct {
	*process
	t *testing.T
}

const probeLoop = `
import os, sys, time, requests, socket
h = {"Authorization": "Bearer " + os.environ["API_TOKEN"]}
direct = {"http": None, "https": None}
n = 0
while True:
    n += 1
    try:
        r = requests.get("https://%s/v1/n/%%d" %% n, headers=h, timeout=2, proxies=direct if n %% 2 else None)
        print("out" if r.status_code == 200 else "odd %%d" %% r.status_code, flush=True)
    except requests.RequestException as e:
        print("shut", flush=True)
        time.sleep(0.05)
`

func startProber(t *testing.T) *prober {
	t.Helper()
	return startProberIn(t, instance)
}

func startProberIn(t *testing.T, instance string) *prober {
	t.Helper()
	code := filepath.Join(t.TempDir(), "probe.py")
	if err := os.WriteFile(code, []byte(fmt.Sprintf(probeLoop, lab.APIName)), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := startProcess(commandOf(instance, "run", "-p", filepath.Join(w.dir, "policy.yaml"), "--timeout", "10m", "--code", code, image))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-p.ended:
		default:
			_ = p.stop() // it is ended by a signal: that is its exit code
		}
	})
	pr := &prober{p, t}
	pr.expect("out")
	return pr
}

// expect waits for a line; the ones before it do not count.
func (p *prober) expect(line string) {
	p.t.Helper()
	if err := p.waitLine(line, time.Minute); err != nil {
		p.t.Fatalf("%v\nup: %s", err, w.up.said())
	}
}

// drain forgets the lines that came so far.
func (p *prober) drain() {
	for {
		select {
		case <-p.seen:
		default:
			return
		}
	}
}

// never fails if the sandbox gets out while it tries n times.
func (p *prober) never(n int) {
	p.t.Helper()
	for range n {
		select {
		case line := <-p.seen:
			if line != "shut" {
				p.t.Fatalf("the sandbox got out: %q", line)
			}
		case <-time.After(time.Minute):
			p.t.Fatal("the sandbox stopped trying")
		}
	}
}

func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if pid < 2 {
		t.Fatalf("pid %d is not one to signal", pid)
	}
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// The supervisor is stopped, so that it cannot bring the gateway back: what is
// left is a sandbox and a namespace that leads nowhere.
func TestWithoutGatewayNothingIsReached(t *testing.T) {
	p := startProber(t)
	s := statusOf(t)
	kill(t, s.Supervisor, syscall.SIGSTOP)
	resumed := false
	resume := func() {
		if !resumed {
			kill(t, s.Supervisor, syscall.SIGCONT)
			resumed = true
		}
	}
	t.Cleanup(resume)
	kill(t, s.Gateway.PID, syscall.SIGKILL)
	p.expect("shut")
	p.drain()
	before := len(w.lab.API.Seen())
	p.never(4)
	if after := len(w.lab.API.Seen()); after != before {
		t.Errorf("the API saw %d requests while there was no gateway", after-before)
	}
	// The positive twin, on the very same sandbox: it works again without
	// having been started again.
	resume()
	p.expect("out")
	if now := statusOf(t); now.Gateway.PID == s.Gateway.PID {
		t.Error("the gateway is the process that was killed")
	}
}

func TestGatewayRestartsUnderARunningSandbox(t *testing.T) {
	p := startProber(t)
	for range 3 {
		kill(t, statusOf(t).Gateway.PID, syscall.SIGKILL)
		p.drain()
		p.expect("out")
	}
}

func TestBrokerRestartsUnderARunningSandbox(t *testing.T) {
	p := startProber(t)
	out, err := exec.Command("pgrep", "-f", "--", w.bin+" broker --instance "+instance).Output()
	if err != nil {
		t.Fatalf("finding the broker: %v", err)
	}
	var pid int
	if _, err := fmt.Sscan(string(out), &pid); err != nil {
		t.Fatal(err)
	}
	kill(t, pid, syscall.SIGKILL)
	p.drain()
	p.expect("out")
	p.drain()
	p.expect("out")
}

// Nothing in the host's tables holds a sandbox in: they can be flushed.
func TestHostTablesDoNotMatter(t *testing.T) {
	p := startProber(t)
	for _, table := range []string{"filter", "nat", "mangle"} {
		for _, args := range [][]string{{"-F"}, {"-X"}} {
			if out, err := exec.Command("iptables", append([]string{"-t", table}, args...)...).CombinedOutput(); err != nil {
				t.Fatalf("iptables: %v: %s", err, out)
			}
		}
	}
	w.lab.Forbidden.Reset()
	r := sandbox(t, "sh", "-c", "curl -sS https://"+lab.ForbiddenName+"/; curl -sS --noproxy '*' -m 5 http://"+lab.ForbiddenAddr.String()+"/")
	if strings.Count(r.stdout, "Blocked by sandbox egress policy") != 2 {
		t.Errorf("curl saw %q", r.stdout)
	}
	if err := w.lab.Forbidden.Untouched(); err != nil {
		t.Error(err)
	}
	p.drain()
	p.expect("out")
}

// Even the cells' own rules only steer: without them there is no way at all.
func TestFlushedRulesLeaveNoWayOut(t *testing.T) {
	p := startProber(t)
	inside := func(args ...string) {
		t.Helper()
		out, err := exec.Command("nsenter", append([]string{"--net=/run/netns/" + instance, "iptables"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("iptables %v: %v: %s", args, err, out)
		}
	}
	for _, table := range []string{"nat", "mangle", "raw", "filter"} {
		inside("-t", table, "-F")
	}
	for _, chain := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		inside("-P", chain, "ACCEPT")
	}
	w.lab.Forbidden.Reset()
	w.lab.Metadata.Reset()
	// The explicit proxy still answers: it is a listener, not a rule. Directly
	// there is nothing.
	p.drain()
	p.expect("shut")
	for _, s := range []*lab.Site{w.lab.Forbidden, w.lab.Metadata, w.lab.Internal} {
		if err := s.Untouched(); err != nil {
			t.Error(err)
		}
	}
	// The next cell that is made puts the rules right, for everybody.
	if r := sandbox(t, "true"); r.code != 0 {
		t.Fatalf("run: %d: %s", r.code, r.stderr)
	}
	p.drain()
	p.expect("out")
	p.expect("out")
}

// TestGatewayTakesItsTime: every thread of the gateway has the timer slack of ADR-0058.
func TestGatewayTakesItsTime(t *testing.T) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pidOf(t, "gateway")))
	if err != nil || len(threads) < 2 {
		t.Fatalf("threads %q: %v", threads, err)
	}
	seen := 0
	for _, th := range threads {
		got, err := os.ReadFile(filepath.Join("/proc", filepath.Base(th), "timerslack_ns"))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) { // has ended meanwhile
			continue
		}
		if seen++; err != nil || strings.TrimSpace(string(got)) != "1000000" {
			t.Errorf("%s has a slack of %q ns: %v", th, got, err)
		}
	}
	if seen < 2 {
		t.Errorf("%d threads were looked at", seen)
	}
}
