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
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/broker"
	"sallyport/broker/sign"
	"sallyport/broker/source"
	"sallyport/control"
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
	Op     string // or call an operation
	In     json.RawMessage
	Socket string
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
		var out json.RawMessage
		c := control.NewClient(r.Socket)
		defer c.Close()
		if err := c.Call(ctx, r.Op, r.In, &out); err != nil {
			return err
		}
		_, err := os.Stdout.Write(out)
		return err
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
	s, err := broker.NewServer(broker.Config{
		Credentials: []broker.Credential{{
			Name: "api", Spec: sign.Spec{Type: "bearer"}, PlaceholderEnv: "API_KEY",
			Source:    source.Spec{File: filepath.Join(r.Dir, "secret")},
			Endpoints: []broker.Endpoint{{Host: host("api.test"), Methods: []string{"GET"}, Paths: paths("/v1/**")}},
		}},
		GatewayUID: gatewayUID, CellsDir: filepath.Join(r.Dir, "cells"), UID: brokerUID, User: "sallyport-broker",
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
func spawn(t *testing.T, uid uint32, r role, files ...*os.File) (*exec.Cmd, *lockedBuffer) {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.ExtraFiles, cmd.Dir = []string{roleVariable + "=" + string(text)}, files, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Pdeathsig: syscall.SIGKILL}
	errs := &lockedBuffer{}
	cmd.Stderr = errs
	return cmd, errs
}

// call calls an operation as a user and returns what came back.
func call(t *testing.T, uid uint32, socket, op, in string) (out string, err error) {
	t.Helper()
	cmd, errs := spawn(t, uid, role{Op: op, In: json.RawMessage(in), Socket: socket})
	b, err := cmd.Output()
	if err != nil {
		return "", errors.New(strings.TrimSpace(errs.String()))
	}
	return string(b), nil
}

// process is a broker in a process of its own.
type process struct {
	cmd  *exec.Cmd
	errs *lockedBuffer
}

func serve(t *testing.T, dir string, ln *os.File, caps ...uintptr) *process {
	t.Helper()
	cmd, errs := spawn(t, brokerUID, role{Serve: true, Dir: dir}, ln)
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

func TestPeersAreToldApart(t *testing.T) {
	dir, socket, ln := world(t)
	p := serve(t, dir, ln)
	defer p.kill(t)
	grant := func(cell string) string { return fmt.Sprintf(`{"cell":%q,"run":"run1","credentials":["api"]}`, cell) }
	refusals := []struct {
		name   string
		uid    uint32
		op, in string
	}{
		{"stranger, grants", strangerUID, "/v1/grants", grant("cell1")},
		{"stranger, revoke", strangerUID, "/v1/revoke", `{"cell":"cell1"}`},
		{"stranger, inject", strangerUID, "/v1/inject", injectCell1},
		{"stranger, credentials", strangerUID, "/v1/credentials", `{}`},
		{"gateway, grants", gatewayUID, "/v1/grants", grant("cell1")},
		{"gateway, revoke", gatewayUID, "/v1/revoke", `{"cell":"cell1"}`},
		{"gateway, credentials", gatewayUID, "/v1/credentials", `{}`},
		{"broker, inject", brokerUID, "/v1/inject", injectCell1},
		{"root, inject", 0, "/v1/inject", injectCell1},
		{"gateway, inject before the grant", gatewayUID, "/v1/inject", injectCell1},
	}
	for _, tt := range refusals {
		if out, err := call(t, tt.uid, socket, tt.op, tt.in); err == nil {
			t.Errorf("%s: answered %q", tt.name, out)
		} else if strings.Contains(err.Error(), realToken[:8]) {
			t.Errorf("%s: the refusal shows the secret: %v", tt.name, err)
		}
	}
	out, err := call(t, 0, socket, "/v1/grants", grant("cell1"))
	if err != nil || !strings.Contains(out, `"placeholder":"sk_test_`) || strings.Contains(out, realToken) {
		t.Fatalf("twin, root grants: %q, %v", out, err)
	}
	if out, err = call(t, gatewayUID, socket, "/v1/inject", injectCell1); err != nil || !strings.Contains(out, "Bearer "+realToken) {
		t.Errorf("twin, gateway injects: %q, %v", out, err)
	}
	if out, err = call(t, 0, socket, "/v1/credentials", `{}`); err != nil || !strings.Contains(out, `"status":"ok"`) || strings.Contains(out, realToken[:12]) {
		t.Errorf("twin, root lists: %q, %v", out, err)
	}
	for _, uid := range []uint32{strangerUID, gatewayUID} {
		if _, err := call(t, uid, socket, "/v1/revoke", `{"cell":"cell1"}`); err == nil {
			t.Errorf("user %d revoked", uid)
		}
	}
	if _, err := call(t, 0, socket, "/v1/revoke", `{"cell":"cell1"}`); err != nil {
		t.Error(err)
	}
	if out, err = call(t, gatewayUID, socket, "/v1/inject", injectCell1); err == nil {
		t.Errorf("after the revocation: %q", out)
	}
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
			if _, err := call(t, 0, socket, "/v1/grants", `{"cell":"cell1","run":"run1","credentials":["api"]}`); err != nil {
				t.Fatal(err)
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
	text, err := call(t, 0, socket, "/v1/grants", `{"cell":"cell1","run":"run1","credentials":["api"]}`)
	if err != nil || json.Unmarshal([]byte(text), &out) != nil {
		t.Fatal(text, err)
	}
	f := control.CellFile{Cell: "cell1", Run: "run1", Policy: "sha256:00", Sandbox: sandboxAddr, Gateway: sandboxAddr, Grants: out.Grants, Created: epoch}
	if err := f.Write(filepath.Join(dir, "cells"), brokerUID); err != nil {
		t.Fatal(err)
	}
	p.kill(t)
	type answer struct {
		out string
		err error
	}
	done := make(chan answer, 1)
	waiting, errs := spawn(t, gatewayUID, role{Op: "/v1/inject", In: json.RawMessage(injectCell1), Socket: socket})
	go func() {
		b, err := waiting.Output()
		if err != nil {
			err = errors.New(errs.String())
		}
		done <- answer{string(b), err}
	}()
	p = serve(t, dir, ln)
	defer p.kill(t)
	if a := <-done; a.err != nil || !strings.Contains(a.out, "Bearer "+realToken) {
		t.Errorf("inject = %q, %v", a.out, a.err)
	}
}

func TestUnknownPeerIsRefused(t *testing.T) {
	k := newKit(t)
	for _, path := range []string{"/v1/grants", "/v1/revoke", "/v1/inject", "/v1/credentials"} {
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
