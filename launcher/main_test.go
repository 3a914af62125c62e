package launcher_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/control"
	"sallyport/deploy"
	"sallyport/launcher"
	"sallyport/launcher/cell"
	"sallyport/launcher/nerdctl"
)

// These tests run real containers: containerd, nerdctl, runc, gVisor and an image
// made of Debian packages. One engine and one network serve all of them; they are
// told apart from anything else on the machine by the instance's name.
const image = "sallyport/sandbox:latest"

// instance is this process's, so that several may test at once.
var instance = fmt.Sprintf("splt-%d", os.Getpid())

// lab is what the tests share. A launcher in another process makes the same from
// the same paths.
type lab struct {
	Instance, RunDir, StateDir, Guest string
	Tools                             nerdctl.Tools

	engine  *nerdctl.Engine
	network *cell.Network
	gateway *gateway
}

var shared *lab

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == childArg {
		childMain()
		return
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) (status int) {
	ctx := context.Background()
	l, closeLab, err := openLab(ctx)
	defer func() {
		if err := closeLab(); err != nil {
			fmt.Fprintln(os.Stderr, "closing the lab:", err)
			status = 1
		}
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "opening the lab:", err)
		return 1
	}
	shared = l
	return m.Run()
}

func findTools() (t nerdctl.Tools, archive string, err error) {
	var errs []error
	find := func(name string) string {
		path, err := deploy.Find(name)
		errs = append(errs, err)
		return path
	}
	t = nerdctl.Tools{Nerdctl: find("nerdctl"), Containerd: find("containerd"), Runc: find("runc"), Runsc: find("runsc")}
	archive, err = deploy.Image("sandbox")
	return t, archive, errors.Join(append(errs, err)...)
}

// openLab starts everything. closeLab works also after an error.
func openLab(ctx context.Context) (_ *lab, closeLab func() error, err error) {
	var undo []func() error
	closeLab = func() error {
		var errs []error
		for _, f := range slices.Backward(undo) {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	tools, archive, err := findTools()
	if err != nil {
		return nil, closeLab, err
	}
	dir, err := os.MkdirTemp("", "sp-launcher-")
	if err != nil {
		return nil, closeLab, err
	}
	undo = append(undo, func() error { return os.RemoveAll(dir) })
	// What is mounted into a sandbox has to be reached by its user.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, closeLab, err
	}
	l := &lab{Instance: instance, RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"), Guest: filepath.Join(dir, "guest"), Tools: tools}
	build := exec.Command("go", "build", "-trimpath", "-o", l.Guest, "./guest/testdata/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, closeLab, fmt.Errorf("building the guest: %w: %s", err, out)
	}
	c, err := nerdctl.StartContainerd(ctx, l.engineConfig())
	if err != nil {
		return nil, closeLab, err
	}
	undo = append(undo, func() error { return c.Stop(ctx) })
	if err := l.open(ctx); err != nil {
		return nil, closeLab, err
	}
	undo = append(undo, func() error { return l.network.Destroy(ctx) })
	if err := l.engine.Load(ctx, archive); err != nil {
		return nil, closeLab, err
	}
	l.gateway = newGateway(l.RunDir)
	server, err := l.gateway.listen(filepath.Join(l.RunDir, "gateway.sock"))
	if err != nil {
		return nil, closeLab, err
	}
	undo = append(undo, server.Close)
	front, err := l.network.Listen(ctx, "tcp", ":3128")
	if err != nil {
		return nil, closeLab, err
	}
	greeter, err := greet(front)
	if err != nil {
		return nil, closeLab, err
	}
	undo = append(undo, greeter.Close)
	return l, closeLab, l.warmUp(ctx)
}

// warmUp makes a run, so that what is made once for all runs is there: directories,
// and what is known of the image.
func (l *lab) warmUp(ctx context.Context) error {
	launch, err := l.launcher(nil)
	if err != nil {
		return err
	}
	res, err := launch.Run(ctx, spec("true"))
	if err == nil && res.Exit != 0 {
		err = errors.New(res.Text)
	}
	return err
}

// greet answers on the explicit listener, for a sandbox to show that it gets there.
func greet(f *os.File) (net.Listener, error) {
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "the gateway\n")
			_ = c.Close()
		}
	}()
	return ln, nil
}

func (l *lab) engineConfig() nerdctl.Config {
	return nerdctl.Config{Instance: instance, RunDir: l.RunDir, StateDir: l.StateDir, Tools: l.Tools}
}

// open makes what a launcher needs and does not start.
func (l *lab) open(ctx context.Context) (err error) {
	if l.engine, err = nerdctl.New(l.engineConfig()); err != nil {
		return err
	}
	l.network, err = cell.Open(ctx, cell.Config{Name: instance})
	return err
}

var caPEM = makeCA()

func makeCA() []byte {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "launcher test"}, IsCA: true, BasicConstraintsValid: true,
		NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// launcher makes one that talks to the gateway by its socket, as a real one does.
func (l *lab) launcher(progress func(string)) (*launcher.Launcher, error) {
	return l.launcherOf(0, progress)
}

// launcherOf makes one that has so many cells; 0 is the default.
func (l *lab) launcherOf(cells int, progress func(string)) (*launcher.Launcher, error) {
	client := control.NewClient(filepath.Join(l.RunDir, "gateway.sock"))
	call := func(ctx context.Context, op string, in any) error { return client.Call(ctx, op, in, nil) }
	return launcher.New(launcher.Config{
		Instance: instance, RunDir: l.RunDir, StateDir: l.StateDir, Network: l.network, Engine: l.engine,
		Gateway: launcher.Gateway{
			Ready:  func(ctx context.Context) error { return call(ctx, "/v1/status", struct{}{}) },
			Attach: func(ctx context.Context, cell string) error { return call(ctx, "/v1/attach", cellMessage{cell}) },
			Reload: func(ctx context.Context, cell string) error { return call(ctx, "/v1/attach", cellMessage{cell}) },
			Detach: func(ctx context.Context, cell string) error { return call(ctx, "/v1/detach", cellMessage{cell}) },
			Record: func(ctx context.Context, r audit.Record) error { return call(ctx, "/v1/record", r) },
			Denials: func(ctx context.Context, run string) (d launcher.Denials, err error) {
				err = client.Call(ctx, "/v1/denials", runMessage{run}, &d.Last)
				d.Count = len(d.Last)
				return d, err
			},
		},
		Broker: launcher.Broker{
			Grants: func(ctx context.Context, cell, run string, names []string) (g []control.Grant, err error) {
				return g, client.Call(ctx, "/v1/grants", grantMessage{cell, names}, &g)
			},
			Revoke: func(ctx context.Context, cell string) error { return call(ctx, "/v1/revoke", cellMessage{cell}) },
		},
		CA: caPEM, Guest: l.Guest, Cells: cells, Now: time.Now, Log: slog.New(slog.DiscardHandler), Progress: progress,
	})
}

type (
	cellMessage  struct{ Cell string }
	runMessage   struct{ Run string }
	grantMessage struct {
		Cell        string
		Credentials []string
	}
)

// gateway is a fake that keeps the real one's contract, and the broker's: it
// attaches a cell whose file and policy are there, and refuses any other.
type gateway struct {
	runDir string

	mu       sync.Mutex // guards the rest
	attached map[string]*control.CellFile
	granted  map[string]bool
	records  []audit.Record
	denials  []launcher.Denial
	fail     map[string]error // by operation; it is done nevertheless if lost
	lost     bool
}

func newGateway(runDir string) *gateway {
	return &gateway{runDir: runDir, attached: map[string]*control.CellFile{}, granted: map[string]bool{}, fail: map[string]error{}}
}

func (g *gateway) listen(path string) (*http.Server, error) {
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	root := []uint32{0}
	mux := http.NewServeMux()
	mux.Handle("/v1/status", control.Handle(root, func(context.Context, struct{}) (struct{}, error) {
		return struct{}{}, g.do("status", func() error { return nil })
	}))
	mux.Handle("/v1/attach", control.Handle(root, func(_ context.Context, m cellMessage) (struct{}, error) {
		return struct{}{}, g.do("attach", func() error { return g.attachLocked(m.Cell) })
	}))
	mux.Handle("/v1/detach", control.Handle(root, func(_ context.Context, m cellMessage) (struct{}, error) {
		return struct{}{}, g.do("detach", func() error { delete(g.attached, m.Cell); return nil })
	}))
	mux.Handle("/v1/record", control.Handle(root, func(_ context.Context, r audit.Record) (struct{}, error) {
		return struct{}{}, g.do("record "+string(r.Kind), func() error { g.records = append(g.records, r); return nil })
	}))
	mux.Handle("/v1/denials", control.Handle(root, func(context.Context, runMessage) (d []launcher.Denial, err error) {
		return d, g.do("denials", func() error { d = g.denials; return nil })
	}))
	mux.Handle("/v1/grants", control.Handle(root, func(_ context.Context, m grantMessage) (out []control.Grant, err error) {
		return out, g.do("grants", func() error {
			for _, name := range m.Credentials {
				g.granted[m.Cell] = true
				out = append(out, control.Grant{
					Credential: name, Env: "API_KEY", Placeholder: "placeholder-" + m.Cell,
					Place: control.Place{Type: "bearer", Header: "Authorization"},
				})
			}
			return nil
		})
	}))
	mux.Handle("/v1/revoke", control.Handle(root, func(_ context.Context, m cellMessage) (struct{}, error) {
		return struct{}{}, g.do("revoke", func() error { delete(g.granted, m.Cell); return nil })
	}))
	server := control.NewServer(mux)
	go func() { _ = server.Serve(ln) }()
	return server, nil
}

// do does an operation, or fails on cue: before the effect, or after it with the
// answer lost.
func (g *gateway) do(op string, f func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.fail[op]
	if err != nil && !g.lost {
		return err
	}
	return errors.Join(f(), err)
}

func (g *gateway) attachLocked(id string) error {
	f, err := control.Read(filepath.Join(g.runDir, "cells"), id)
	if err != nil {
		return err
	}
	source, err := os.ReadFile(filepath.Join(g.runDir, "policies", f.Policy[len("sha256:"):]+".yaml"))
	if err != nil {
		return err
	}
	if digest(source) != f.Policy {
		return errors.New("the policy is not what its name says")
	}
	g.attached[id] = f
	return nil
}

// reset forgets records and failures.
func (g *gateway) reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.records, g.denials, g.fail, g.lost = nil, nil, map[string]error{}, false
}

func (g *gateway) recorded() []audit.Record {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.records)
}

// left names what is still attached or granted.
func (g *gateway) left() (out []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id := range g.attached {
		out = append(out, "attached "+id)
	}
	for id := range g.granted {
		out = append(out, "granted "+id)
	}
	slices.Sort(out)
	return out
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

var policySource = []byte("apiVersion: sallyport/v1\nkind: Policy\n")

func spec(argv ...string) launcher.Spec {
	return launcher.Spec{
		Image: image, Isolation: launcher.Container, Argv: argv,
		Policy: launcher.Policy{Name: "test", Digest: digest(policySource), Source: policySource},
		Asker:  launcher.Asker{User: "tester", UID: 1234, GID: 1234},
	}
}

// must runs and wants no error of ours.
func must(t *testing.T, s launcher.Spec) launcher.Result {
	t.Helper()
	res, err := run(t, s)
	if err != nil {
		t.Fatalf("Run: %v", err)
	}
	if !res.Destroyed {
		t.Error("Destroyed = false")
	}
	return res
}

func run(t *testing.T, s launcher.Spec) (launcher.Result, error) {
	t.Helper()
	shared.gateway.reset()
	l, err := shared.launcher(nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := l.Run(t.Context(), s)
	if testing.Verbose() {
		shown := res
		shown.Denials = nil
		data, _ := json.Marshal(shown)
		t.Logf("%.1500s", data)
	}
	return res, err
}

// text is what went to a stream.
func text(res launcher.Result, stream string) string {
	var b bytes.Buffer
	for _, line := range res.Output {
		if line.Stream == stream {
			b.WriteString(line.Text)
			if !line.Open {
				b.WriteByte('\n')
			}
		}
	}
	return b.String()
}
