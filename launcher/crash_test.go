package launcher_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/audit"
	"sallyport/launcher"
)

const childArg = "launcher-child"

// order is what a launcher in another process is to do.
type order struct {
	Lab       lab
	CA        []byte
	Isolation launcher.Isolation
	Step      string        // at which it kills itself
	After     time.Duration // from the step
	Ready     bool          // not before the work has written something
	Export    string
}

// childMain is a launcher that kills itself.
func childMain() {
	var o order
	if err := json.Unmarshal([]byte(os.Args[2]), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, "not killed:", o.run(context.Background()))
	os.Exit(1)
}

func die() {
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	select {} // until it arrives
}

func (o *order) run(ctx context.Context) error {
	caPEM, instance = o.CA, o.Lab.Instance
	if err := o.Lab.open(ctx); err != nil {
		return err
	}
	l, err := o.Lab.launcher(func(step string) {
		switch {
		case step != o.Step || o.Ready:
		case o.After == 0:
			die()
		default:
			time.AfterFunc(o.After, die)
		}
	})
	if err != nil {
		return err
	}
	s := spec("sh", "-c", "echo ready; trap '' TERM HUP; sleep 600 & sleep 600")
	if o.Step == launcher.StepExport {
		s = spec("sh", "-c", "echo x > /workspace/x")
	}
	s.Isolation, s.Credentials, s.Export = o.Isolation, []string{"key"}, o.Export
	if o.Ready {
		s.Stdout = writer(func([]byte) { die() })
	}
	_, err = l.Run(ctx, s)
	return err
}

// CT-02: a launcher that is killed at any step leaves nothing after one reconcile.
func TestKilledLauncher(t *testing.T) {
	type point struct {
		name string
		order
	}
	var points []point
	for _, step := range launcher.Steps() {
		points = append(points, point{step, order{Step: step}})
	}
	for _, ms := range []int{20, 80, 150, 250, 400, 700} {
		d := time.Duration(ms) * time.Millisecond
		points = append(points, point{fmt.Sprintf("%s and %v", launcher.StepSandbox, d), order{Step: launcher.StepSandbox, After: d}})
	}
	points = append(points, point{"working", order{Ready: true}})
	for _, p := range points {
		t.Run(p.name, func(t *testing.T) { testKilled(t, p.order, launcher.Container) })
	}
	for _, p := range []point{{"sandbox and 300ms", order{Step: launcher.StepSandbox, After: 300 * time.Millisecond}}, {"working", order{Ready: true}}} {
		t.Run("hardened/"+p.name, func(t *testing.T) { testKilled(t, p.order, launcher.Hardened) })
	}
}

func testKilled(t *testing.T, o order, isolation launcher.Isolation) {
	shared.gateway.reset()
	before := snapshot(t)
	l, err := shared.launcher(nil)
	if err != nil {
		t.Fatal(err)
	}
	o.Lab, o.CA, o.Isolation = *shared, caPEM, isolation
	parent := t.TempDir()
	o.Export = filepath.Join(parent, "out")
	runChild(t, o)
	ids := containerIDs(t)

	report, err := l.Reconcile(t.Context())
	if err != nil || len(report.Removed) != 1 || len(report.Live) != 0 {
		t.Errorf("Reconcile = %+v, %v", report, err)
	}
	same(t, before)
	for _, id := range ids {
		if left := glob(t, "/run/containerd/fifo/*/"+id+"*"); len(left) > 0 {
			t.Errorf("pipes are left: %q", left)
		}
	}
	if left := glob(t, parent+"/.*"); len(left) > 0 {
		t.Errorf("beside the export: %q", left)
	}
	checkEnd(t, report.Removed)
	if report, err := l.Reconcile(t.Context()); err != nil || len(report.Removed) != 0 {
		t.Errorf("second Reconcile = %+v, %v", report, err)
	}
}

// checkEnd wants a run.end for each run.start, and none without.
func checkEnd(t *testing.T, cells []string) {
	t.Helper()
	var started, ended []string
	for _, r := range shared.gateway.recorded() {
		if r.Kind == audit.RunStart {
			started = append(started, r.Run)
		}
		if r.Kind == audit.RunEnd {
			ended = append(ended, r.Run)
			var e launcher.Ending
			if err := json.Unmarshal(r.Data, &e); err != nil || e.Cause != launcher.Died || !e.Destroyed || !slices.Contains(cells, r.Cell) {
				t.Errorf("run.end of %s: %+v, %v", r.Cell, e, err)
			}
		}
	}
	if !slices.Equal(started, ended) {
		t.Errorf("started %q, ended %q", started, ended)
	}
}

func runChild(t *testing.T, o order) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, childArg, string(data))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the launcher ended with %v, want killed", err)
	}
	for _, path := range glob(t, filepath.Join(shared.StateDir, "cells", "*.lock")) {
		awaitLock(t, path)
	}
}

// awaitLock waits until nobody holds a lock. A process that a launcher was starting when
// it was killed has the launcher's descriptors until it has a program of its own.
func awaitLock(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err == nil {
			return
		} else if !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
}

// containerIDs are those that dead launchers have noted.
func containerIDs(t *testing.T) (ids []string) {
	t.Helper()
	for _, path := range glob(t, filepath.Join(shared.RunDir, "runs", "*", "cid*")) {
		ids = append(ids, strings.TrimSpace(read(t, path)))
	}
	return ids
}

// A run that is cancelled as a step begins undoes every step before it.
func TestCancelledAtStep(t *testing.T) {
	for _, step := range launcher.Steps() {
		t.Run(step, func(t *testing.T) {
			shared.gateway.reset()
			before := snapshot(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l, err := shared.launcher(func(s string) {
				if s == step {
					cancel()
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			s := spec("sleep", "600")
			if step == launcher.StepExport {
				s = spec("sh", "-c", "echo x > x")
			}
			s.Credentials, s.Export = []string{"key"}, filepath.Join(t.TempDir(), "out")
			began := time.Now()
			res, err := l.Run(ctx, s)
			if step != launcher.StepExport && !errors.Is(err, context.Canceled) {
				t.Errorf("Run = %v, want canceled", err)
			}
			if d := time.Since(began); d > 20*time.Second || !res.Destroyed {
				t.Errorf("after %v: destroyed %v", d, res.Destroyed)
			}
			same(t, before)
			var kinds []string
			for _, r := range shared.gateway.recorded() {
				kinds = append(kinds, string(r.Kind))
			}
			if len(kinds) != 0 && !slices.Equal(kinds, []string{"run.start", "run.end"}) && !slices.Equal(kinds, []string{"run.end"}) {
				t.Errorf("records %q", kinds)
			}
		})
	}
}

// Reconcile leaves the living alone, also those of other processes.
func TestReconcileSparesTheLiving(t *testing.T) {
	shared.gateway.reset()
	before := snapshot(t)
	l, err := shared.launcher(nil)
	if err != nil {
		t.Fatal(err)
	}
	var report launcher.Report
	var reconciled error
	s := spec("sh", "-c", "echo ready; read x; echo $x")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s.Stdin = r
	first := true
	s.Stdout = writer(func([]byte) {
		if first {
			first = false
			report, reconciled = l.Reconcile(t.Context())
			_, _ = w.WriteString("still here\n")
			w.Close()
		}
	})
	res, err := l.Run(t.Context(), s)
	if err != nil || text(res, "stdout") != "ready\nstill here\n" {
		t.Errorf("Run = %v, %q, %s", err, text(res, "stdout"), res.Text)
	}
	if reconciled != nil || len(report.Removed) != 0 || !slices.Equal(report.Live, []string{res.Cell}) {
		t.Errorf("Reconcile = %+v, %v", report, reconciled)
	}
	same(t, before)
}

// Every index comes round before one is used again (NW-23), over processes too.
func TestIndicesAreNotReused(t *testing.T) {
	seen := map[string]bool{}
	for range 3 {
		res := must(t, spec("sh", "-c", "echo $HTTP_PROXY"))
		if addr := text(res, "stdout"); seen[addr] {
			t.Errorf("%s again", addr)
		} else {
			seen[addr] = true
		}
	}
}

// CT-03: a sandbox that has ended and was not removed, as its launcher was killed, keeps
// its address. Who wants one more than there are is told so and gets nobody's; after one
// reconcile it is there again.
func TestAddressesOfTheDead(t *testing.T) {
	shared.gateway.reset()
	before := snapshot(t)
	write(t, filepath.Join(shared.StateDir, "cells", "next"), "0")
	runChild(t, order{Lab: *shared, CA: caPEM, Isolation: launcher.Container, Ready: true})
	ids := containerIDs(t)
	if len(ids) != 1 {
		t.Fatalf("containers %q", ids)
	}
	if out, err := asRoot("stop", "--time", "1", ids[0]); err != nil {
		t.Fatalf("stop: %v: %s", err, out)
	}
	if out, err := asRoot("ps", "--all", "--filter", "status=exited", "--quiet", "--no-trunc"); err != nil || strings.TrimSpace(out) != ids[0] {
		t.Fatalf("containers that have ended: %q, %v, want %s", out, err, ids[0])
	}
	one, err := shared.launcherOf(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := one.Run(t.Context(), spec("true"))
	if err == nil || !strings.Contains(err.Error(), "all 1 cells are in use: wait for a run to end, or `sallyport reconcile`") || !res.Started.IsZero() {
		t.Errorf("Run = %v, started %v, want no cell", err, res.Started)
	}
	if res := must(t, spec("sh", "-c", "echo $HTTP_PROXY")); text(res, "stdout") == "" || strings.Contains(text(res, "stdout"), "10.213.0.1:") {
		t.Errorf("with more cells it was told of %q, the gateway of the dead", text(res, "stdout"))
	}
	if report, err := one.Reconcile(t.Context()); err != nil || len(report.Removed) != 1 {
		t.Errorf("Reconcile = %+v, %v", report, err)
	}
	if res, err := one.Run(t.Context(), spec("sh", "-c", "echo $HTTP_PROXY")); err != nil || !strings.Contains(text(res, "stdout"), "10.213.0.1:") {
		t.Errorf("Run after it = %v, %q, %s", err, text(res, "stdout"), res.Text)
	}
	same(t, before)
}
