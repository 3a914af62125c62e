package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/broker"
	"sallyport/broker/needle"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// Users that exist on no machine, so that nothing else is theirs.
const (
	brokerUID   = 4200001
	gatewayUID  = 4200002
	strangerUID = 4200003
)

// role is what a copy of this test binary does instead of testing.
type role struct {
	Serve  bool // serve the broker on descriptor 3
	Dir    string
	Root   bool          // is the gateway's user
	Hold   time.Duration // of the broker's Config
	Calls  []opCall      // or call operations, one after the other
	Socket string
}

// opCall is one operation, and what came of it.
type opCall struct {
	Op, In, Out, Err string
}

const roleVariable = "SALLYPORT_BROKER_TEST_ROLE"

func TestMain(m *testing.M) {
	text := os.Getenv(roleVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	var r role
	err := json.Unmarshal([]byte(text), &r)
	if err == nil {
		err = r.play(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (r role) play(ctx context.Context) error {
	if !r.Serve {
		c := control.NewClient(r.Socket)
		defer c.Close()
		for i := range r.Calls {
			var out json.RawMessage
			if err := c.Call(ctx, r.Calls[i].Op, json.RawMessage(r.Calls[i].In), &out); err != nil {
				r.Calls[i].Err = err.Error()
			}
			r.Calls[i].Out = string(out)
		}
		return json.NewEncoder(os.Stdout).Encode(r.Calls)
	}
	if err := broker.Harden(); errors.Is(err, broker.ErrNotLocked) {
		fmt.Fprintln(os.Stderr, err)
	} else if err != nil {
		return err
	}
	ln, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	gateway := uint32(gatewayUID)
	if r.Root {
		gateway = 0
	}
	s, err := broker.NewServer(broker.Config{
		Credentials: []policyfile.Credential{{
			Name: "api", Scheme: policyfile.Scheme{Type: "bearer"}, Env: "API_KEY",
			Source:    policyfile.Source{File: filepath.Join(r.Dir, "secret")},
			Endpoints: []policyfile.Endpoint{{Host: host("api.test"), Ports: []uint16{443}, Methods: []string{"GET"}, Paths: paths("/v1/**")}},
		}},
		Revoked: func(name string) bool { _, err := os.Stat(filepath.Join(r.Dir, "revoked-"+name)); return err == nil },
		Generation: func(name string) string {
			b, _ := os.ReadFile(filepath.Join(r.Dir, "generation-"+name))
			return string(b)
		},
		GatewayUID: gateway, Hold: r.Hold, CellsDir: filepath.Join(r.Dir, "cells"), UID: brokerUID, User: "sallyport-broker",
		Now: time.Now, Log: slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return control.NewServer(s.Handler()).Serve(ln)
}

// spawn starts a copy of this binary as a user. The path is the kernel's name
// for the running program: the build directory is root's alone.
func spawn(t *testing.T, uid uint32, r role, files ...*os.File) (*exec.Cmd, *stderr) {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.ExtraFiles, cmd.Dir = []string{roleVariable + "=" + string(text)}, files, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Pdeathsig: syscall.SIGKILL}
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	cmd.Stderr = f
	return cmd, &stderr{t, f.Name()}
}

// stderr is what a process has said on its standard error: all of it, at any time, since
// nobody has to copy it out of a pipe first.
type stderr struct {
	t    *testing.T
	path string
}

func (e *stderr) String() string {
	b, err := os.ReadFile(e.path)
	if err != nil {
		e.t.Error(err)
	}
	return string(b)
}

// call calls operations as a user and returns what came back.
func call(t *testing.T, uid uint32, socket string, calls ...opCall) []opCall {
	t.Helper()
	cmd, errs := spawn(t, uid, role{Calls: calls, Socket: socket})
	b, err := cmd.Output()
	if err != nil {
		t.Fatalf("calling as %d: %v: %s", uid, err, errs)
	}
	var done []opCall
	if err := json.Unmarshal(b, &done); err != nil {
		t.Fatal(err)
	}
	return done
}

// process is a broker in a process of its own.
type process struct {
	cmd  *exec.Cmd
	errs *stderr
}

func serve(t *testing.T, dir string, ln *os.File, caps ...uintptr) *process {
	t.Helper()
	return serveAs(t, role{Dir: dir}, ln, caps...)
}

func serveAs(t *testing.T, r role, ln *os.File, caps ...uintptr) *process {
	t.Helper()
	r.Serve = true
	cmd, errs := spawn(t, brokerUID, r, ln)
	cmd.SysProcAttr.AmbientCaps = caps
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 6)
	if _, err := out.Read(line); err != nil || string(line) != "ready\n" {
		_ = cmd.Wait()
		t.Fatalf("the broker did not start: %s", errs)
	}
	return &process{cmd, errs}
}

func (p *process) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait() // killed
}

// world makes a directory that the three users can reach, with a secret of the
// broker's and a listening socket that outlives the broker.
func world(t *testing.T) (dir, socket string, ln *os.File) {
	t.Helper()
	dir, err := os.MkdirTemp("", "broker-test-") //nolint:usetesting // the parent of t.TempDir is closed to others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "broker.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if ln, err = l.File(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	secret := filepath.Join(dir, "secret")
	err = errors.Join(os.Chmod(dir, 0o755), os.Chmod(socket, 0o666), os.Mkdir(filepath.Join(dir, "cells"), 0o755),
		os.WriteFile(secret, []byte(realToken+"\n"), 0o400), os.Chown(secret, brokerUID, brokerUID))
	if err != nil {
		t.Fatal(err)
	}
	return dir, socket, ln
}

const injectCell1 = `{"cell":"cell1","run":"run1","rule":"r","credential":"api","secure":true,"method":"GET","host":"api.test","port":443,"path":"/v1/x","query":""}`

const grantCell1 = `{"cell":"cell1","run":"run1","credentials":["api"]}`

func TestPeersAreToldApart(t *testing.T) {
	dir, socket, ln := world(t)
	p := serve(t, dir, ln)
	defer p.kill(t)
	grants, revoke := opCall{Op: "/v1/grants", In: grantCell1}, opCall{Op: "/v1/revoke", In: `{"cell":"cell1"}`}
	for _, op := range []string{"test", "refresh", "revoke"} {
		managed := opCall{Op: "/v1/credentials/" + op, In: `{"credential":"api"}`}
		for _, uid := range []uint32{strangerUID, gatewayUID, brokerUID} {
			if c := call(t, uid, socket, managed)[0]; c.Err == "" || c.Out != "" {
				t.Errorf("user %d may %s: %q", uid, op, c.Out)
			}
		}
	}
	inject, list := opCall{Op: "/v1/inject", In: injectCell1}, opCall{Op: "/v1/credentials", In: `{}`}
	refused := func(who string, done []opCall) {
		t.Helper()
		for _, c := range done {
			if c.Err == "" || c.Out != "" || strings.Contains(c.Err, realToken[:8]) {
				t.Errorf("%s, %s: %q, %q, want a refusal", who, c.Op, c.Out, c.Err)
			}
		}
	}
	refused("stranger", call(t, strangerUID, socket, grants, revoke, inject, list))
	refused("gateway", call(t, gatewayUID, socket, grants, revoke, list, inject)) // nothing is granted yet
	refused("broker", call(t, brokerUID, socket, grants, revoke, inject, list))
	refused("root", call(t, 0, socket, inject))
	done := call(t, 0, socket, grants, list)
	if c := done[0]; c.Err != "" || !strings.Contains(c.Out, `"placeholder":"sk_test_`) || strings.Contains(c.Out, realToken) {
		t.Fatalf("twin, root grants: %q, %q", c.Out, c.Err)
	}
	if c := done[1]; c.Err != "" || !strings.Contains(c.Out, `"status":"ok"`) || strings.Contains(c.Out, realToken[:12]) {
		t.Errorf("twin, root lists: %q, %q", c.Out, c.Err)
	}
	done = call(t, gatewayUID, socket, inject, revoke, inject)
	refused("gateway", done[1:2])
	for _, c := range []opCall{done[0], done[2]} {
		if c.Err != "" || !strings.Contains(c.Out, "Bearer "+realToken) {
			t.Errorf("twin, gateway injects: %q, %q", c.Out, c.Err)
		}
	}
	refused("stranger", call(t, strangerUID, socket, inject, revoke, list))
	if c := call(t, 0, socket, revoke)[0]; c.Err != "" {
		t.Error(c.Err)
	}
	refused("gateway, after the revocation", call(t, gatewayUID, socket, inject))
	if strings.Contains(p.errs.String(), realToken[8:]) {
		t.Error("the broker's log shows the secret")
	}
}

// TestProcessIsHardened: CR-30, as root sees it from outside.
func TestProcessIsHardened(t *testing.T) {
	tests := []struct {
		name   string
		caps   []uintptr
		locked bool
	}{
		{"without a way to lock memory", nil, false},
		{"with CAP_IPC_LOCK", []uintptr{unix.CAP_IPC_LOCK}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			limitMemlock(t)
			dir, socket, ln := world(t)
			p := serve(t, dir, ln, tt.caps...)
			defer p.kill(t)
			if c := call(t, 0, socket, opCall{Op: "/v1/grants", In: grantCell1})[0]; c.Err != "" {
				t.Fatal(c.Err)
			}
			status := p.proc(t, "status")
			locked := !strings.Contains(status, "VmLck:\t       0 kB")
			warned := strings.Contains(p.errs.String(), "memory is not locked: RLIMIT_MEMLOCK is ")
			if locked != tt.locked || warned == tt.locked {
				t.Errorf("memory locked %v, warned %v, want locked %v", locked, warned, tt.locked)
			}
			if limits := p.proc(t, "limits"); !strings.Contains(strings.Join(strings.Fields(limits), " "), "Max core file size 0 0 bytes") {
				t.Errorf("core dumps are not off:\n%s", limits)
			}
			// A process that is not dumpable belongs to root in /proc (proc(5)).
			fi, err := os.Stat(fmt.Sprintf("/proc/%d/environ", p.cmd.Process.Pid))
			if err != nil || fi.Sys().(*syscall.Stat_t).Uid != 0 {
				t.Errorf("the process is dumpable: %v, %v", fi, err)
			}
			if shown := p.proc(t, "environ") + p.proc(t, "cmdline") + p.errs.String(); strings.Contains(shown, realToken[:12]) {
				t.Errorf("the secret is in %q", shown)
			}
		})
	}
}

func (p *process) proc(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// limitMemlock gives processes that are started from now on a usual limit.
func limitMemlock(t *testing.T) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old); err != nil {
		t.Fatal(err)
	}
	small := unix.Rlimit{Cur: min(old.Max, 8<<20), Max: old.Max}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &small); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old) })
}

// TestKilledBrokerComesBack: the socket stays open in its parent, so that a
// request that comes meanwhile waits for the next broker, which knows the grants
// from the cell files.
func TestKilledBrokerComesBack(t *testing.T) {
	dir, socket, ln := world(t)
	p := serve(t, dir, ln)
	var out broker.Grants
	if c := call(t, 0, socket, opCall{Op: "/v1/grants", In: grantCell1})[0]; c.Err != "" || json.Unmarshal([]byte(c.Out), &out) != nil {
		t.Fatal(c.Out, c.Err)
	}
	f := control.CellFile{Cell: "cell1", Run: "run1", Policy: "sha256:00", Sandbox: sandboxAddr, Gateway: sandboxAddr, Grants: out.Grants, Created: epoch}
	if err := f.Write(filepath.Join(dir, "cells"), brokerUID); err != nil {
		t.Fatal(err)
	}
	p.kill(t)
	waiting, errs := spawn(t, gatewayUID, role{Calls: []opCall{{Op: "/v1/inject", In: injectCell1}}, Socket: socket})
	done := make(chan string, 1)
	go func() {
		b, err := waiting.Output()
		done <- fmt.Sprint(string(b), err, errs)
	}()
	p = serve(t, dir, ln)
	defer p.kill(t)
	if text := <-done; !strings.Contains(text, "Bearer "+realToken) {
		t.Errorf("inject: %s", text)
	}
}

// TestRevokedGrantStaysEnded: after a revocation that was taken back, a broker that is
// killed, or was down all along, gives the new secret to no run that had the old one.
func TestRevokedGrantStaysEnded(t *testing.T) {
	for _, tt := range []struct {
		name string
		down bool // while it is revoked and rotated
	}{{"the broker is told, and killed after that", false}, {"the broker is down meanwhile", true}} {
		t.Run(tt.name, func(t *testing.T) {
			dir, socket, ln := world(t)
			p := serve(t, dir, ln)
			defer func() { p.kill(t) }()
			ask := func(op, in string) string {
				t.Helper()
				uid := uint32(0)
				if op == "inject" {
					uid = gatewayUID
				}
				c := call(t, uid, socket, opCall{Op: "/v1/" + op, In: in})[0]
				return c.Out + c.Err
			}
			var out broker.Grants
			if err := json.Unmarshal([]byte(ask("grants", grantCell1)), &out); err != nil {
				t.Fatal(err)
			}
			f := control.CellFile{Cell: "cell1", Run: "run1", Policy: "sha256:00", Sandbox: sandboxAddr, Gateway: sandboxAddr, Grants: out.Grants, Created: epoch}
			if err := f.Write(filepath.Join(dir, "cells"), brokerUID); err != nil {
				t.Fatal(err)
			}
			if tt.down {
				p.kill(t)
			}
			mark := filepath.Join(dir, "revoked-api")
			if err := errors.Join(os.WriteFile(mark, nil, 0o644), os.WriteFile(filepath.Join(dir, "generation-api"), []byte("2"), 0o644)); err != nil {
				t.Fatal(err)
			}
			if !tt.down {
				ask("credentials/revoke", `{"credential":"api"}`)
			}
			if err := os.Remove(mark); err != nil {
				t.Fatal(err)
			}
			if !tt.down {
				ask("credentials/refresh", `{"credential":"api"}`)
				if text := ask("inject", injectCell1); !strings.Contains(text, "has ended") {
					t.Errorf("before the kill: %s", text)
				}
				p.kill(t)
			}
			p = serve(t, dir, ln)
			if text := ask("inject", injectCell1); !strings.Contains(text, "has ended") || strings.Contains(text, realToken) {
				t.Errorf("a run of before the revocation: %s", text)
			}
			later := strings.NewReplacer("cell1", "cell2", "run1", "run2")
			ask("grants", later.Replace(grantCell1))
			if text := ask("inject", later.Replace(injectCell1)); !strings.Contains(text, "Bearer "+realToken) {
				t.Errorf("twin, a run that begins after it: %s", text)
			}
		})
	}
}

// TestACrashShowsNothing: CR-30, LG-04. What Go prints when a process is made to
// crash names functions and addresses; no secret is among them.
func TestACrashShowsNothing(t *testing.T) {
	dir, socket, ln := world(t)
	p := serve(t, dir, ln)
	if c := call(t, 0, socket, opCall{Op: "/v1/grants", In: grantCell1})[0]; c.Err != "" {
		t.Fatal(c.Err)
	}
	if c := call(t, gatewayUID, socket, opCall{Op: "/v1/inject", In: injectCell1})[0]; !strings.Contains(c.Out, realToken) {
		t.Fatalf("twin: the secret is not in use: %q, %q", c.Out, c.Err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGABRT); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait() // it crashed
	said := p.errs.String()
	if !strings.Contains(said, "SIGABRT") || !strings.Contains(said, "goroutine ") {
		t.Fatalf("it printed no trace: %q", said)
	}
	set := needle.NewSet(needle.Spellings([]byte(realToken), nil, 0))
	if h, ok := needle.Next(set, said, 0); ok || strings.Contains(said, realToken[8:16]) {
		t.Errorf("the trace shows the secret at octet %d", h.At)
	}
	if cores, err := filepath.Glob(filepath.Join(dir, "core*")); err != nil || len(cores) > 0 {
		t.Errorf("cores: %v, %v", cores, err)
	}
}

func TestUnknownPeerIsRefused(t *testing.T) {
	k := newKit(t)
	for _, path := range []string{
		"/v1/grants", "/v1/revoke", "/v1/inject", "/v1/credentials", "/v1/reload", "/v1/certificate", "/v1/handshake",
		"/v1/credentials/test", "/v1/credentials/refresh", "/v1/credentials/revoke",
	} {
		w := &statusOnly{h: http.Header{}}
		k.server.Handler().ServeHTTP(w, request("POST", "https://broker"+path))
		if w.status != http.StatusForbidden {
			t.Errorf("%s answers %d to nobody", path, w.status)
		}
	}
}

type statusOnly struct {
	h      http.Header
	status int
}

func (w *statusOnly) Header() http.Header         { return w.h }
func (w *statusOnly) WriteHeader(s int)           { w.status = s }
func (w *statusOnly) Write(p []byte) (int, error) { return len(p), nil }

// TestKilledBrokerRefuses: CR-11. While there is no broker, requests with a credential
// are refused and go nowhere; others go on, and so do all when it is back.
func TestKilledBrokerRefuses(t *testing.T) {
	dir, socket, ln := world(t)
	p := serveAs(t, role{Dir: dir, Root: true}, ln)
	var out broker.Grants
	if c := call(t, 0, socket, opCall{Op: "/v1/grants", In: grantCell1})[0]; c.Err != "" || json.Unmarshal([]byte(c.Out), &out) != nil {
		t.Fatal(c.Out, c.Err)
	}
	f := control.CellFile{Cell: "cell1", Run: "run1", Policy: "sha256:00", Sandbox: sandboxAddr, Gateway: sandboxAddr, Grants: out.Grants, Created: epoch}
	if err := f.Write(filepath.Join(dir, "cells"), brokerUID); err != nil {
		t.Fatal(err)
	}
	client := broker.NewClient(socket)
	defer client.Close()
	client.Attach(f)
	var saw atomic.Pointer[http.Header]
	front := gateway(t, client, origin(t, false, &saw))
	ask := func(path string, header ...string) (int, string) {
		t.Helper()
		return send(t, front, "GET", path, header...)
	}
	auth := []string{"Authorization", "Bearer " + out.Grants[0].Placeholder}
	works := func(when string) {
		t.Helper()
		status, _ := ask("/v1/x", auth...)
		if h := saw.Swap(nil); status != http.StatusOK || h == nil || h.Get("Authorization") != "Bearer "+realToken {
			t.Errorf("%s: %d, the origin saw %v", when, status, h)
		}
	}
	works("twin, before")
	p.kill(t)
	// Nobody serves the socket, which its parent holds open: the gateway waits for the
	// next broker as long as it waits for any.
	status, all := ask("/v1/x", auth...)
	if status != http.StatusForbidden || !strings.Contains(all, "\nbroker_unavailable\n") || saw.Load() != nil {
		t.Errorf("without a broker: %d %q, the origin saw %v", status, all, saw.Swap(nil))
	}
	other, err := http.NewRequestWithContext(t.Context(), "GET", front.URL+"/v1/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	other.Host = "ok.test"
	resp, err := front.Client().Do(other)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK || saw.Swap(nil) == nil {
		t.Errorf("twin, without a credential: %d", resp.StatusCode)
	}
	p = serveAs(t, role{Dir: dir, Root: true}, ln)
	defer p.kill(t)
	works("twin, after")
}
