package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/audit"
	"sallyport/audit/query"
	"sallyport/broker"
	"sallyport/control"
	"sallyport/launcher"
	"sallyport/launcher/cell"
	"sallyport/launcher/nerdctl"
)

// noNetwork is the launcher's network where no sandbox is made.
type noNetwork struct{}

var errNoNetwork = errors.New("no sandbox is made in this test")

func (noNetwork) Create(context.Context, string, int) (cell.Cell, error) {
	return cell.Cell{}, errNoNetwork
}
func (noNetwork) Remove(context.Context, string) error    { return errNoNetwork }
func (noNetwork) Cells(context.Context) ([]string, error) { return nil, errNoNetwork }
func (noNetwork) Watch(context.Context, cell.Cell) error  { return nil }
func (noNetwork) Counters(context.Context, string) (cell.Bypass, error) {
	return cell.Bypass{}, errNoNetwork
}

// stage is an instance without sandboxes: a real gateway and a real broker on their
// real sockets, a supervisor's reloader, and policy and credential files.
type stage struct {
	t        *testing.T
	inst     instance
	dir      string // of the files that people write
	gateway  *gateway
	reloader *reloader
	said     syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

const stageCredential = `apiVersion: sallyport/v1
kind: Credential
metadata: {name: api}
type: bearer
endpoints: [{host: api.example.com, ports: [443], methods: [GET, POST], paths: ["/v1/**"]}]
source: {file: %s}
`

// newStage starts everything; its names are this process's own.
func newStage(t *testing.T) *stage {
	t.Helper()
	return newStageWith(t, func(*stage) {})
}

// newStageWith is newStage after prepare, which finds the directories made.
func newStageWith(t *testing.T, prepare func(*stage)) *stage {
	t.Helper()
	st := &stage{t: t, inst: instance{fmt.Sprintf("sp-rl-%d", os.Getpid())}, dir: t.TempDir()}
	t.Cleanup(func() {
		if err := errors.Join(os.RemoveAll(st.inst.run()), os.RemoveAll(st.inst.state())); err != nil {
			t.Error(err)
		}
	})
	st.must(st.inst.makeDirs(accounts{}))
	st.write("token", "secret-token-0001")
	st.must(os.Chmod(st.path("token"), 0o400))
	st.must(os.Mkdir(st.path("creds"), 0o755))
	st.write("creds/api.yaml", fmt.Sprintf(stageCredential, st.path("token")))
	prepare(st)
	log := slog.New(slog.NewTextHandler(&st.said, nil))
	s := newSupervisor(st.inst, io.Discard, &st.said)
	st.must(s.stageCredentials(st.path("creds")))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	serve := func(path string, run func(net.Listener) error) {
		l, err := net.Listen("unix", path)
		st.must(err)
		wg.Go(func() {
			if err := run(l); err != nil {
				t.Error(err)
			}
		})
	}
	var err error
	st.gateway, err = openGateway(ctx, st.inst, logOptions{}, log)
	st.must(err)
	serve(st.inst.gatewaySocket(), func(l net.Listener) error {
		return serveHTTP(ctx, control.NewServer(st.gateway.handler()), l)
	})
	reread := func() (c broker.Config, err error) {
		c.Credentials, err = loadCredentials(st.inst.credentials())
		return c, err
	}
	cfg, err := reread()
	st.must(err)
	cfg.Reread, cfg.CellsDir, cfg.Now, cfg.Log = reread, st.inst.cells(), time.Now, log
	b, err := broker.NewServer(cfg)
	st.must(err)
	serve(st.inst.brokerSocket(), func(l net.Listener) error { return serveHTTP(ctx, control.NewServer(b.Handler()), l) })
	s.runs = st.launcher()
	st.reloader, err = s.openReloader()
	st.must(err)
	wg.Go(func() {
		if err := serveHTTP(ctx, control.NewServer(st.reloader.handler()), st.reloader.control); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		st.reloader.close()
		s.group.stop()
		st.gateway.close()
	})
	return st
}

func (st *stage) launcher() *launcher.Launcher {
	tool := st.path("token") // never started
	engine, err := nerdctl.New(nerdctl.Config{
		Instance: st.inst.name, RunDir: st.inst.run(), StateDir: st.inst.state("containerd"),
		Tools: nerdctl.Tools{Nerdctl: "/nerdctl", Containerd: "/containerd", Runc: "/runc"},
	})
	st.must(err)
	ca, err := os.ReadFile(st.inst.state("ca", "ca.crt"))
	st.must(err)
	l, err := launcher.New(launcher.Config{
		Instance: st.inst.name, RunDir: st.inst.run(), StateDir: st.inst.state(), Network: noNetwork{}, Engine: engine,
		Gateway: st.inst.gatewayCalls(), Broker: st.inst.brokerCalls(), CA: ca, Guest: tool, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	st.must(err)
	return l
}

func (st *stage) must(err error) {
	st.t.Helper()
	if err != nil {
		st.t.Fatalf("%v\n%s", err, st.said.String())
	}
}

func (st *stage) path(name string) string { return filepath.Join(st.dir, name) }

func (st *stage) write(name, text string) {
	st.t.Helper()
	tmp := st.path(".tmp")
	st.must(os.WriteFile(tmp, []byte(text), 0o644))
	st.must(os.Rename(tmp, st.path(name)))
}

// attach puts a run in force as run does it.
func (st *stage) attach(id, run, file string) {
	st.t.Helper()
	creds, err := loadCredentials(st.inst.credentials())
	st.must(err)
	p, err := loadPolicy(policySource{path: st.path(file)}, creds)
	st.must(err)
	st.attachAs(id, run, st.path(file), p)
}

func (st *stage) attachAs(id, run, file string, p *policy) {
	st.t.Helper()
	f, err := st.tryAttachFrom(id, run, file, p)
	if err != nil {
		st.must(fmt.Errorf("%+v: %w", f, err))
	}
}

// tryAttach is attachAs for what may be refused.
func (st *stage) tryAttach(id, run string, p *policy) (*control.CellFile, error) {
	st.t.Helper()
	f, err := st.tryAttachFrom(id, run, st.path("p.yaml"), p)
	if err != nil {
		st.must(control.Remove(st.inst.cells(), id))
	}
	return f, err
}

func (st *stage) tryAttachFrom(id, run, file string, p *policy) (*control.CellFile, error) {
	st.t.Helper()
	unlock := st.lockPolicies()
	st.must(os.WriteFile(control.PolicyPath(st.inst.policies(), p.digest), p.text, 0o640))
	f := control.CellFile{
		Cell: id, Run: run, Sandbox: netip.AddrFrom4([4]byte{10, 213, id[0], 2}), Gateway: netip.AddrFrom4([4]byte{10, 213, id[0], 1}),
		Policy: p.digest, Created: time.Now(), Origin: &control.Origin{File: file},
	}
	if names := p.rules.Credentials(); len(names) > 0 {
		var err error
		f.Grants, err = st.inst.brokerCalls().Grants(st.t.Context(), id, run, names)
		st.must(err)
	}
	st.must(f.Write(st.inst.cells(), 0))
	unlock()
	return &f, st.inst.gatewayCalls().Attach(st.t.Context(), id)
}

// lockPolicies keeps policies that no cell names yet from being removed, as the
// launcher does it.
func (st *stage) lockPolicies() (unlock func()) {
	st.t.Helper()
	dir, err := os.Open(st.inst.policies())
	st.must(err)
	st.must(unix.Flock(int(dir.Fd()), unix.LOCK_EX))
	return func() { _ = dir.Close() }
}

// force returns the digest of what a cell is under, at the gateway and in its file.
func (st *stage) force(id string) string {
	st.t.Helper()
	f, err := control.Read(st.inst.cells(), id)
	st.must(err)
	got, ok := st.gateway.table.Identity(id)
	if !ok || got.Policy.Digest() != f.Policy {
		st.t.Errorf("cell %s: the gateway has %q, the file %q", id, got.Policy.Digest(), f.Policy)
	}
	if _, err := os.Stat(control.PolicyPath(st.inst.policies(), f.Policy)); err != nil {
		st.t.Errorf("the policy in force is not there: %v", err)
	}
	return f.Policy
}

// records returns what the log has of a kind.
func (st *stage) records(kind audit.Kind) (out []audit.Record) {
	st.t.Helper()
	st.must(st.gateway.records.Sync(st.t.Context())) // what is over waits for the next write
	f, err := query.Parse("kind="+string(kind), time.Now())
	st.must(err)
	for r, err := range query.Records(st.inst.auditDir(), f) {
		st.must(err)
		out = append(out, r)
	}
	return out
}

func policyText(rules string) string {
	return "apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: p}\n" + rules
}

const (
	oneHost  = "rules:\n  - {id: one, reason: r, allow: {host: one.example.com}}\n"
	twoHosts = "rules:\n  - {id: one, reason: r, allow: {hosts: [one.example.com, two.example.com]}}\n"
	withKey  = "rules:\n  - {id: api, reason: r, allow: {host: api.example.com, methods: [POST], paths: [\"/v1/x\"]}, credential: api}\n"
)

// What is in order comes into force, for every run of the file, and is recorded.
func TestReloadPutsInForce(t *testing.T) {
	st := newStage(t)
	st.write("p.yaml", policyText(oneHost))
	st.write("q.yaml", policyText(oneHost))
	st.attach("aaaaaaaa", "run-a", "p.yaml")
	st.attach("bbbbbbbb", "run-b", "p.yaml")
	st.attach("cccccccc", "run-c", "q.yaml")
	before := st.force("aaaaaaaa")
	st.write("p.yaml", policyText(twoHosts))
	var out reloadOut
	st.must(callUp(t.Context(), st.inst, "/v1/reload", &out))
	if !out.ok() || len(out.Runs) != 3 || out.Trigger != "command" || out.Credentials != "ok" {
		t.Fatalf("reload: %+v", out)
	}
	after := st.force("aaaaaaaa")
	if after == before || st.force("bbbbbbbb") != after || st.force("cccccccc") == after {
		t.Error("the wrong policies are in force")
	}
	loads := st.records(audit.PolicyLoad)
	var runs []string
	for _, r := range loads {
		if r.Policy == after {
			runs = append(runs, r.Run)
			if want := fmt.Sprintf(`"was":%q`, before); !strings.Contains(string(r.Data), want) || !strings.Contains(string(r.Data), "p.yaml") {
				t.Errorf("record %s, want %s", r.Data, want)
			}
		}
	}
	if slices.Sort(runs); !slices.Equal(runs, []string{"run-a", "run-b"}) {
		t.Errorf("policy.load of %v", runs)
	}
	// Again: nothing is left to do, and nothing is recorded.
	st.must(callUp(t.Context(), st.inst, "/v1/reload", &out))
	for _, r := range out.Runs {
		if r.Outcome != kept {
			t.Errorf("the second time: %+v", r)
		}
	}
	if n := len(st.records(audit.PolicyLoad)); n != len(loads) {
		t.Errorf("%d records of policy.load, want %d", n, len(loads))
	}
	// A gateway that starts anew comes up with it.
	files, err := control.ReadAll(st.inst.cells())
	if err != nil || len(files) != 3 || files[0].Policy != after {
		t.Errorf("cell files %+v, %v", files, err)
	}
}

// Whatever is wrong with a file leaves the policy before in force, and is told to
// the caller, at up, by status and in the log.
func TestReloadRefuses(t *testing.T) {
	st := newStage(t)
	st.write("p.yaml", policyText(oneHost))
	st.write("q.yaml", policyText(oneHost))
	st.attach("aaaaaaaa", "run-a", "p.yaml")
	st.attach("cccccccc", "run-c", "q.yaml")
	before := st.force("aaaaaaaa")
	for name, tt := range map[string]struct{ text, want string }{
		"not YAML":         {"rules: [", "not YAML"},
		"an unknown key":   {policyText("ruls: []\n" + oneHost), "unknown key"},
		"a failing test":   {policyText(twoHosts + "tests: [{request: \"GET https://two.example.com/\", expect: deny}]\n"), "test fails"},
		"a broken promise": {policyText(twoHosts + "never: [{host: two.example.com}]\n"), "two.example.com"},
		"no credential":    {policyText(strings.ReplaceAll(withKey, "credential: api", "credential: none")), "no credential is named"},
		"a missing file":   {policyText("include: [{file: sub/x.yaml}]\n" + oneHost), "sub/x.yaml"},
		"a new credential": {policyText(withKey), "no placeholder"},
	} {
		t.Run(name, func(t *testing.T) {
			st.t = t
			n := len(st.records(audit.PolicyRefuse))
			st.write("p.yaml", tt.text)
			var out reloadOut
			st.must(callUp(t.Context(), st.inst, "/v1/reload", &out))
			if out.ok() || out.Runs[0].Outcome != refused || !strings.Contains(out.Runs[0].Error, tt.want) || out.Runs[0].Policy != before {
				t.Errorf("reload: %+v", out.Runs[0])
			}
			if out.Runs[1].Outcome != kept {
				t.Errorf("the other run: %+v", out.Runs[1])
			}
			if st.force("aaaaaaaa") != before {
				t.Error("the policy before is not in force")
			}
			recs := st.records(audit.PolicyRefuse)
			if len(recs) != n+1 {
				t.Fatalf("%d records, want %d", len(recs), n+1)
			}
			r := recs[n]
			if r.Run != "run-a" || r.Policy != before || !strings.Contains(string(r.Data), `"digest":"sha256:`) || r.Error == "" {
				t.Errorf("record %+v", r)
			}
			var status followOut
			st.must(callUp(t.Context(), st.inst, "/v1/status", &status))
			if len(status.Refused) != 1 || status.Refused[0].Cell != "aaaaaaaa" || status.Last.ok() || status.Watch != "ok" {
				t.Errorf("status: %+v", status)
			}
			if !strings.Contains(st.said.String(), "stays in force") {
				t.Errorf("up did not say it: %s", st.said.String())
			}
		})
	}
	st.t = t
	if files, err := os.ReadDir(st.inst.policies()); err != nil || len(files) != 2 {
		t.Errorf("policies that nobody is under were left: %v, %v", files, err)
	}
	// The twin: what was refused can be mended.
	st.write("p.yaml", policyText(twoHosts))
	var out reloadOut
	st.must(callUp(t.Context(), st.inst, "/v1/reload", &out))
	if !out.ok() || st.force("aaaaaaaa") == before {
		t.Errorf("mended: %+v", out)
	}
	var status followOut
	st.must(callUp(t.Context(), st.inst, "/v1/status", &status))
	if len(status.Refused) != 0 || !status.Last.ok() {
		t.Errorf("status: %+v", status)
	}
}

// A run that is over meanwhile is not brought back.
func TestReloadOfARunThatEnds(t *testing.T) {
	st := newStage(t)
	st.write("p.yaml", policyText(oneHost))
	st.attach("aaaaaaaa", "run-a", "p.yaml")
	st.must(control.Remove(st.inst.cells(), "aaaaaaaa"))
	err := st.launcher().Repolicy(t.Context(), "aaaaaaaa", launcher.Policy{Digest: "sha256:" + strings.Repeat("0", 64)})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Repolicy = %v", err)
	}
	if out := st.reloader.reload(t.Context(), "command"); !out.ok() || len(out.Runs) != 0 {
		t.Errorf("reload: %+v", out)
	}
}

// Credential files are read again too: a narrower lock acts at once, and a policy
// that grants beyond it is refused.
func TestReloadCredentials(t *testing.T) {
	st := newStage(t)
	st.write("p.yaml", policyText(withKey))
	st.attach("aaaaaaaa", "run-a", "p.yaml")
	before := st.force("aaaaaaaa")
	good := fmt.Sprintf(stageCredential, st.path("token"))
	for name, tt := range map[string]struct {
		text        string
		creds, runs string // what is said
	}{
		"broken":   {"kind: Credential\n", "apiVersion", ""},
		"narrower": {strings.Replace(good, "[GET, POST]", "[GET]", 1), "ok", "does not go that far"},
		"renamed":  {strings.Replace(good, "name: api", "name: other", 1), "ok", "no credential is named"},
	} {
		t.Run(name, func(t *testing.T) {
			st.t = t
			st.write("creds/api.yaml", tt.text)
			out := st.reloader.reload(t.Context(), "command")
			if !strings.Contains(out.Credentials, tt.creds) || !strings.Contains(out.Runs[0].Error, tt.runs) || (tt.runs == "") != (out.Runs[0].Error == "") {
				t.Errorf("reload: %+v", out)
			}
			if st.force("aaaaaaaa") != before {
				t.Error("the policy before is not in force")
			}
			st.write("creds/api.yaml", good)
			if out := st.reloader.reload(t.Context(), "command"); !out.ok() {
				t.Errorf("mended: %+v", out)
			}
		})
	}
	st.t = t
	st.write("creds/more.yaml", strings.ReplaceAll(good, "name: api", "name: more"))
	if out := st.reloader.reload(t.Context(), "command"); !out.ok() {
		t.Fatalf("another credential: %+v", out)
	}
	if _, err := st.inst.brokerCalls().Grants(t.Context(), "dddddddd", "run-d", []string{"more"}); err != nil {
		t.Errorf("the broker does not know it: %v", err)
	}
	if len(st.gateway.creds) != 2 {
		t.Errorf("the gateway knows %d credentials", len(st.gateway.creds))
	}
}

// A credential file that is refused when it changes is told by status until it is
// mended, and recorded, without what stands in it.
func TestRefusedCredentialsAreTold(t *testing.T) {
	st := newStage(t)
	st.must(st.reloader.s.lock(t.Context()))
	if code, _, errs := st.command("status"); code != 0 {
		t.Fatalf("status before = %d, %s", code, errs)
	}
	st.write("creds/api.yaml", fmt.Sprintf(stageCredential, "sk_live_oops"))
	for range 2 { // nothing changes: it is told once
		if out := st.reloader.reload(t.Context(), "files"); out.ok() {
			t.Fatalf("reload: %+v", out)
		}
	}
	code, out, errs := st.command("status")
	if code != exitFailed || !strings.Contains(errs, "are refused, those before stay in force: "+st.path("creds/api.yaml")+":6:") ||
		!strings.Contains(errs, "hint: mend it") || !strings.Contains(out, "refused      "+st.path("creds/api.yaml")) {
		t.Errorf("status = %d\n%s%s", code, out, errs)
	}
	if code, out, _ := st.command("status", "-o", "json"); code != exitFailed || !strings.Contains(out, `"credential_dir"`) {
		t.Errorf("status -o json = %d\n%s", code, out)
	}
	recs := st.records(audit.PolicyRefuse)
	if len(recs) != 1 || !strings.Contains(recs[0].Error, "the credential files: "+st.path("creds/api.yaml")+":6:") {
		t.Fatalf("records: %+v", recs)
	}
	if text := fmt.Sprint(recs[0].Error, string(recs[0].Data)); strings.Contains(text, "sk_live_oops") || !strings.Contains(text, st.path("creds")) {
		t.Errorf("the record says %s", text)
	}
	st.write("creds/api.yaml", fmt.Sprintf(stageCredential, st.path("token")))
	if out := st.reloader.reload(t.Context(), "files"); !out.ok() {
		t.Errorf("mended: %+v", out)
	}
	if code, out, errs := st.command("status"); code != 0 || errs != "" || strings.Contains(out, "refused") {
		t.Errorf("status when it is mended = %d\n%s%s", code, out, errs)
	}
}

// A change of any file that a policy is made of is seen, and one that comes between
// the reading for a run and its beginning too.
func TestChangedFilesAreFollowed(t *testing.T) {
	st := newStage(t)
	st.must(os.MkdirAll(st.path("v1/sub"), 0o755))
	st.must(os.MkdirAll(st.path("v2/sub"), 0o755))
	head := policyText("include: [{file: sub/inc.yaml}]\n")
	st.write("v1/p.yaml", head)
	st.write("v2/p.yaml", head)
	st.write("v1/sub/inc.yaml", policyText(oneHost))
	st.write("v2/sub/inc.yaml", policyText(strings.ReplaceAll(oneHost, "one", "third")))
	st.must(os.Symlink("v1", st.path("data")))
	st.attach("aaaaaaaa", "run-a", "data/p.yaml")
	ctx, cancel := context.WithCancel(t.Context())
	hup, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- st.reloader.follow(ctx, hup) }()
	d := st.force("aaaaaaaa")
	// Until it watches, a signal does the same.
	hup <- struct{}{}
	hup <- struct{}{}
	st.write("v1/sub/inc.yaml", policyText(twoHosts))
	d = st.inForce("aaaaaaaa", d) // an included file is written
	st.must(os.Symlink("v2", st.path("data.new")))
	st.must(os.Rename(st.path("data.new"), st.path("data")))
	d = st.inForce("aaaaaaaa", d) // a link is turned, as a ConfigMap's
	st.write("v2/sub/inc.yaml", policyText(oneHost))
	d = st.inForce("aaaaaaaa", d) // behind the new link
	// Read, changed, and only then begun.
	st.write("late.yaml", policyText(oneHost))
	late := st.path("late.yaml")
	creds, err := loadCredentials(st.inst.credentials())
	st.must(err)
	old, err := loadPolicy(policySource{path: late}, creds)
	st.must(err)
	st.write("late.yaml", policyText(twoHosts))
	st.attachAs("llllllll", "run-l", late, old)
	st.inForce("llllllll", old.digest) // changed before it was watched
	cancel()
	st.must(<-done)
	if d == "" || !strings.Contains(st.said.String(), "put in force") {
		t.Errorf("up did not say it: %s", st.said.String())
	}
}

// What was detected when a run began stays so: a reload asks no image and no
// variables again, and a further manager is for a new run.
func TestReloadKeepsWhatWasDetected(t *testing.T) {
	st := newStage(t)
	t.Setenv("SUDO_USER", "")
	t.Setenv("HOME", st.dir)
	st.write(".npmrc", "registry=https://old.example.com/\n")
	st.write("p.yaml", policyText("include: [{detect: [npm]}]\n"))
	d, err := newDetector("")
	st.must(err)
	p, err := loadPolicy(policySource{path: st.path("p.yaml"), detect: d.find}, nil)
	st.must(err)
	st.attachAs("aaaaaaaa", "run-a", st.path("p.yaml"), p)
	f, err := control.Read(st.inst.cells(), "aaaaaaaa")
	st.must(err)
	f.Origin.Detected = d.detected()
	st.must(f.Write(st.inst.cells(), 0))
	st.write(".npmrc", "registry=https://new.example.com/\n")
	if out := st.reloader.reload(t.Context(), "command"); !out.ok() || out.Runs[0].Outcome != kept {
		t.Errorf("nothing changed but the machine: %+v", out)
	}
	st.write("p.yaml", policyText("include: [{detect: [npm]}]\n"+oneHost))
	if out := st.reloader.reload(t.Context(), "command"); !out.ok() || out.Runs[0].Outcome != replacedBy {
		t.Errorf("another rule: %+v", out)
	}
	text, _ := st.gateway.policyText("aaaaaaaa")
	if !strings.Contains(text, "old.example.com") || strings.Contains(text, "new.example.com") || !strings.Contains(text, "one.example.com") {
		t.Errorf("in force: %s", text)
	}
	st.write("p.yaml", policyText("include: [{detect: [npm, pip]}]\n"))
	if out := st.reloader.reload(t.Context(), "command"); out.ok() || !strings.Contains(out.Runs[0].Error, "start a new run") {
		t.Errorf("another manager: %+v", out)
	}
}
