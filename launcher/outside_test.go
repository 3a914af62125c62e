package launcher_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/launcher"
)

// CT-14: what root does to a sandbox behind our back, with the engine or the kernel. It
// is root's to do; but none of it is a way out that the log does not tell of, and none
// of it outlives the run.

// outside is a run that works until it is ended, and root beside it.
type outside struct {
	t     *testing.T
	id    string // of the container
	netns string
	stop  func()
	ended chan struct{}
	res   launcher.Result // after ended
	err   error
}

func startOutside(t *testing.T, s launcher.Spec) *outside {
	t.Helper()
	shared.gateway.reset()
	l, err := shared.launcher(nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	o := &outside{t: t, stop: cancel, ended: make(chan struct{})}
	t.Cleanup(func() { cancel(); <-o.ended })
	ready := make(chan struct{}, 1)
	s.Stdout = writer(func([]byte) { ready <- struct{}{} })
	go func() {
		defer close(o.ended)
		o.res, o.err = l.Run(ctx, s)
	}()
	select {
	case <-ready:
	case <-o.ended:
		t.Fatalf("Run = %v, %s", o.err, o.res.Text)
	}
	found, err := shared.engine.List(t.Context())
	if err != nil || len(found) != 1 {
		t.Fatalf("containers %v, %v", found, err)
	}
	o.id, o.netns = found[0].ID, "/run/netns/"+instance+"."+found[0].Cell
	return o
}

// root runs a program of root's.
func root(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	return string(out), err
}

// asRoot is the engine as root calls it.
func asRoot(args ...string) (string, error) {
	cmd := exec.Command(shared.Tools.Nerdctl, append([]string{
		"--address", filepath.Join(shared.RunDir, "containerd.sock"), "--namespace", instance,
		"--data-root", filepath.Join(shared.StateDir, "nerdctl"), "--cgroup-manager", "cgroupfs",
	}, args...)...)
	cmd.Env = append(os.Environ(), "NERDCTL_TOML="+os.DevNull, "PATH="+filepath.Dir(shared.Tools.Runc)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// end is what the log has of the end.
func (o *outside) end() (e launcher.Ending) {
	o.t.Helper()
	select {
	case <-o.ended:
	case <-time.After(time.Minute):
		o.t.Fatal("the run does not end")
	}
	records := shared.gateway.recorded()
	last := records[len(records)-1]
	if err := json.Unmarshal(last.Data, &e); last.Kind != audit.RunEnd || err != nil {
		o.t.Fatalf("the last record is %s: %s", last.Kind, last.Data)
	}
	return e
}

// Another interface ends the run at once, and the record of its end says so. The twins
// are all other runs here, which end as they should.
func TestAnotherInterfaceEndsTheRun(t *testing.T) {
	isolated(t, func(t *testing.T, spec func(argv ...string) launcher.Spec) {
		before := snapshot(t)
		o := startOutside(t, spec("sh", "-c", "trap '' TERM; echo ready; sleep 600"))
		if out, err := root("nsenter", "--net="+o.netns, "sh", "-c", "ip link add up0 type bridge; ip link set up0 up"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		e := o.end()
		if e.Cause != launcher.OtherWay || !strings.Contains(e.Text, `"up0" is up in the sandbox's namespace`) || !e.Destroyed {
			t.Errorf("run.end says %+v", e)
		}
		if o.err == nil || o.res.Cause != launcher.OtherWay || o.res.Text != e.Text {
			t.Errorf("Run = %v, %s, %q", o.err, o.res.Cause, o.res.Text)
		}
		same(t, before)
	})
}

// A privileged process that root puts into a sandbox has all of its namespaces, and so
// its one way out and no other; it ends with the sandbox.
func TestPrivilegedExecHasNoOtherWay(t *testing.T) {
	before := snapshot(t)
	o := startOutside(t, spec("sh", "-c", "echo ready; sleep 600"))
	const code = `
import os, socket, subprocess
proxy = os.environ["HTTP_PROXY"].split("/")[2].split(":")
print(socket.create_connection((proxy[0], int(proxy[1])), 60).recv(99))
def up(name):
    try:
        return int(open("/sys/class/net/%s/flags" % name).read(), 16) & 1
    except OSError:
        return False
print(sorted(filter(up, os.listdir("/sys/class/net"))))
for to in ("192.0.2.1", proxy[0]):
    try:
        socket.create_connection((to, 9), 0.3)
        print("out")
    except OSError:
        print("shut")
subprocess.Popen(["sleep", "600"], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
`
	out, err := asRoot("exec", "--privileged", "--user", "0:0", "-e", "HTTP_PROXY="+o.proxy(), o.id, "sh", "-c",
		`grep CapEff /proc/self/status; python3 -c "$0"`, code)
	fields := strings.Split(strings.TrimSpace(out), "\n")
	if err != nil || len(fields) != 5 || strings.Contains(fields[0], "0000000000000000") {
		t.Errorf("exec: %v: %q", err, out)
	} else if got, want := strings.Join(fields[1:], " "), `b'the gateway\n' ['eth0', 'lo'] shut shut`; got != want {
		t.Errorf("exec got to %s, want %s", got, want)
	}
	o.stop()
	if e := o.end(); e.Cause != launcher.Canceled || !e.Destroyed {
		t.Errorf("run.end says %+v, Run = %v", e, o.err)
	}
	same(t, before)
}

// proxy is the explicit listener's address, as the sandbox is told it.
func (o *outside) proxy() string {
	o.t.Helper()
	out, err := root("nsenter", "--net="+o.netns, "ip", "-4", "route", "show", "default")
	fields := strings.Fields(out)
	if err != nil || len(fields) < 3 {
		o.t.Fatalf("route: %v: %q", err, out)
	}
	return "http://" + fields[2] + ":3128"
}

// A sandbox that the engine stops or begins anew is over: there is nothing to start again.
func TestRestartEndsTheRun(t *testing.T) {
	for _, args := range [][]string{{"restart", "--time", "1"}, {"stop", "--time", "1"}, {"kill"}, {"rm", "--force"}} {
		t.Run(args[0], func(t *testing.T) {
			before := snapshot(t)
			o := startOutside(t, spec("sh", "-c", "echo ready; sleep 600"))
			// It may find that the run's own end has removed the container under it.
			if out, err := asRoot(append(args, o.id)...); err != nil {
				t.Logf("%v: %s", err, out)
			}
			if e := o.end(); (e.Cause != launcher.Signaled && e.Cause != launcher.Lost) || !e.Destroyed {
				t.Errorf("run.end says %+v, Run = %v", e, o.err)
			}
			if out, err := asRoot("start", o.id); err == nil {
				t.Errorf("it was started again: %s", out)
			}
			// A restart that comes too late begins with what the end has removed already.
			l, err := shared.launcher(nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Reconcile(t.Context()); err != nil {
				t.Errorf("Reconcile = %v", err)
			}
			same(t, before)
		})
	}
}
