package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/audit"
	"sallyport/control"
	"sallyport/launcher"
	"sallyport/rules/policyfile"
)

// What became of a run's policy when it was read again.
const (
	kept       = "unchanged"
	replacedBy = "reloaded"
	refused    = "refused" // the one before stays in force
)

// reloadOut tells of one reading of everything that may change under runs.
type reloadOut struct {
	Time        time.Time     `json:"time"`
	Trigger     string        `json:"trigger"`     // signal, command, files
	Credentials string        `json:"credentials"` // "ok" or what is wrong
	Runs        []reloadedRun `json:"runs"`
}

// reloadedRun is what became of one run.
type reloadedRun struct {
	Cell    string `json:"cell"`
	Run     string `json:"run"`
	File    string `json:"file"`
	Was     string `json:"was"`    // digest
	Policy  string `json:"policy"` // digest of what is in force now
	Outcome string `json:"outcome"`
	Error   string `json:"error,omitempty"`
}

// reloader brings what people write into force while runs go on: the policy files
// of runs with all that they include, and the credential files. A file is read,
// checked and tested as for a new run before anything changes; what is wrong with
// it leaves the old policy in force and is told to people and to the log.
type reloader struct {
	s       *supervisor
	control net.Listener
	files   *watcher

	mu     sync.Mutex // guards all below; one reload at a time
	last   *reloadOut
	byCell map[string]reloadedRun // the last outcome of every run that is there
	seen   map[string][]string    // the files that each origin's policy is made of
}

// openReloader opens the socket on which reloads are asked for, and the watch.
func (s *supervisor) openReloader() (*reloader, error) {
	f, err := s.listen(s.inst.upSocket(), 0o600)
	if err != nil {
		return nil, err
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	w, err := newWatcher()
	if err != nil {
		return nil, errors.Join(hint(err, "sysctl fs.inotify.max_user_instances fs.inotify.max_user_watches"), l.Close())
	}
	return &reloader{s: s, control: l, files: w, byCell: map[string]reloadedRun{}, seen: map[string][]string{}}, nil
}

func (r *reloader) close() {
	if err := r.files.close(); err != nil {
		r.s.log.Error("ending the watch of files", "cause", err)
	}
}

// follow reloads whenever files change or hup says so, until ctx ends.
func (r *reloader) follow(ctx context.Context, hup <-chan struct{}) error {
	fresh := make(chan struct{}, 1)
	r.reload(ctx, "files")
	return serveAll(ctx,
		func(ctx context.Context) error { return r.files.run(ctx, r.s.inst.cells(), fresh) },
		func(ctx context.Context) error {
			settle(ctx, r.files.changes, func() { r.reload(ctx, "files") })
			return nil
		},
		func(ctx context.Context) error { settle(ctx, fresh, func() { r.greet(ctx) }); return nil },
		func(ctx context.Context) error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-hup:
					r.reload(ctx, "signal")
				}
			}
		},
	)
}

func (r *reloader) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /v1/reload", control.Handle(rootOnly, func(ctx context.Context, _ empty) (reloadOut, error) {
		return r.reload(ctx, "command"), nil
	}))
	mux.Handle("POST /v1/status", control.Handle(rootOnly, func(context.Context, empty) (followOut, error) {
		return r.status(), nil
	}))
	return mux
}

// followOut is what the supervisor tells of what it does.
type followOut struct {
	Last    *reloadOut    `json:"last,omitempty"`
	Refused []reloadedRun `json:"refused"` // runs whose file is not what is in force
	Watch   string        `json:"watch"`   // "ok" or what cannot be watched
	Ships   []string      `json:"ships"`   // collectors that records are shipped to
}

func (r *reloader) status() followOut {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := followOut{Last: r.last, Refused: []reloadedRun{}, Watch: r.files.fault(), Ships: append([]string{}, r.s.collectors...)}
	for _, cell := range slices.Sorted(maps.Keys(r.byCell)) {
		if run := r.byCell[cell]; run.Outcome == refused {
			out.Refused = append(out.Refused, run)
		}
	}
	return out
}

// reload reads credentials and the policies of all runs again.
func (r *reloader) reload(ctx context.Context, trigger string) reloadOut {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := reloadOut{Time: time.Now().UTC(), Trigger: trigger, Credentials: "ok", Runs: []reloadedRun{}}
	changed, err := r.s.reloadCredentials(ctx)
	if err != nil {
		out.Credentials = err.Error()
		r.s.tell("the credential files are refused; those before stay in force", err, "dir", r.s.credentialDir)
	}
	p := r.newPass(trigger)
	out.Runs = p.each(ctx, p.cells)
	r.byCell = map[string]reloadedRun{}
	for _, run := range out.Runs {
		r.byCell[run.Cell] = run
	}
	p.watch()
	if trigger != "files" || changed || err != nil || p.news {
		r.last = &out
	}
	return out
}

// greet reads the policies of runs that began since: their files may have changed
// between their being read and being watched.
func (r *reloader) greet(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.newPass("files")
	present := map[string]reloadedRun{}
	for _, f := range p.cells {
		run, known := r.byCell[f.Cell]
		if !known {
			run = p.run(ctx, f)
		}
		present[f.Cell] = run
	}
	r.byCell = present
	if len(p.read) > 0 {
		p.watch()
	}
}

// pass is one time that policies are read. What several runs share is read once.
type pass struct {
	*reloader
	trigger string
	cells   []*control.CellFile // that have an origin
	creds   []policyfile.Credential
	err     error // why creds are not there

	state sync.Mutex // guards the rest, and seen of the reloader
	read  map[string]*reading
	news  bool // something was put in force or refused
}

// atOnce is how many policies are read at a time.
const atOnce = 8

// each reads the policies of runs, side by side: what takes long to be judged
// holds back no other run's. The answers are in the order of the cells.
func (p *pass) each(ctx context.Context, cells []*control.CellFile) []reloadedRun {
	out := make([]reloadedRun, len(cells))
	free := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, f := range cells {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			out[i] = p.run(ctx, f)
		})
	}
	wg.Wait()
	return out
}

func (p *pass) isNews() {
	p.state.Lock()
	defer p.state.Unlock()
	p.news = true
}

// reading is a policy as its file was read.
type reading struct {
	policy *policy
	digest string // of the file's octets, "" if it could not be read
	err    error
	once   sync.Once
}

func (r *reloader) newPass(trigger string) *pass {
	p := &pass{reloader: r, trigger: trigger, read: map[string]*reading{}}
	all, err := control.ReadAll(r.s.inst.cells())
	if err != nil {
		r.s.tell("the policies of some runs cannot be read again", err)
	}
	p.cells = slices.DeleteFunc(all, func(f *control.CellFile) bool { return f.Origin == nil })
	p.creds, p.err = loadCredentials(r.s.inst.credentials())
	return p
}

// run reads the policy of a run, and puts it in force if it is another.
func (p *pass) run(ctx context.Context, f *control.CellFile) reloadedRun {
	out := reloadedRun{Cell: f.Cell, Run: f.Run, File: f.Origin.File, Was: f.Policy, Policy: f.Policy, Outcome: kept}
	got := p.readOrigin(ctx, f.Origin)
	err := got.err
	if err == nil && got.policy.digest != f.Policy {
		err = p.s.runs.Repolicy(ctx, f.Cell, launcher.Policy{Name: got.policy.name, Digest: got.policy.digest, Source: got.policy.text})
		if errors.Is(err, fs.ErrNotExist) {
			return out // it has just ended
		}
		if err == nil {
			out.Outcome, out.Policy = replacedBy, got.policy.digest
			p.isNews()
			p.s.log.Info("a policy was put in force", "cell", f.Cell, "run", f.Run, "file", out.File, "policy", out.Policy, "was", out.Was)
		}
	}
	if err != nil {
		out.Outcome, out.Error = refused, err.Error()
		p.refuse(ctx, &out, got.digest, err)
	}
	return out
}

// refuse tells people and the log that a file was not put in force: once, as long
// as nothing changes and nobody asks.
func (p *pass) refuse(ctx context.Context, run *reloadedRun, digest string, err error) {
	if before := p.byCell[run.Cell]; p.trigger == "files" && before.Outcome == refused && before.Error == run.Error {
		return
	}
	p.isNews()
	p.s.tell("a policy file is refused; the policy before stays in force", err, "cell", run.Cell, "run", run.Run, "file", run.File, "policy", run.Policy)
	raw, jsonErr := json.Marshal(struct {
		File   string `json:"file"`
		Digest string `json:"digest,omitempty"`
	}{run.File, digest})
	rec := audit.Record{Kind: audit.PolicyRefuse, Cell: run.Cell, Run: run.Run, Policy: run.Policy, Error: err.Error(), Data: raw}
	if err := errors.Join(jsonErr, callGateway(ctx, p.s.inst, "/v1/record", rec, nil)); err != nil {
		p.s.log.Error("recording that a policy file is refused", "cell", run.Cell, "cause", err)
	}
}

// originKey tells policies apart that are read from different places.
func originKey(o *control.Origin) string {
	return fmt.Sprintf("%s\x00%s\x00%v", o.File, o.Narrow, o.Detected)
}

// readOrigin reads a policy as it stands in its files now.
func (p *pass) readOrigin(ctx context.Context, o *control.Origin) *reading {
	key := originKey(o)
	p.state.Lock()
	got := p.read[key]
	if got == nil {
		got = &reading{err: p.err}
		p.read[key] = got
	}
	p.state.Unlock()
	got.once.Do(func() { p.readOnce(ctx, o, key, got) })
	return got
}

func (p *pass) readOnce(ctx context.Context, o *control.Origin, key string, got *reading) {
	seen := []string{o.File}
	if text, err := readFile(o.File); err == nil {
		got.digest = policyfile.Digest(text)
	}
	if got.err == nil {
		note := func(path string) { seen = append(seen, path) }
		got.policy, got.err = loadPolicy(policySource{path: o.File, floor: p.s.inst.under(), from: p.s.inst.floorFrom(), narrow: o.Narrow, seen: note, detect: keptDetector(o.Detected), stop: ctx.Err}, p.creds)
	}
	p.state.Lock()
	defer p.state.Unlock()
	p.seen[key] = seen
}

// watch follows the files that the runs' policies are made of.
func (p *pass) watch() {
	present := map[string]bool{}
	for _, f := range p.cells {
		present[originKey(f.Origin)] = true
	}
	var files []string
	for key, list := range p.seen {
		if !present[key] {
			delete(p.seen, key)
			continue
		}
		files = append(files, list...)
	}
	dirs := []string{p.s.inst.cells()}
	if p.s.credentialDir != "" {
		dirs = append(dirs, p.s.credentialDir)
	}
	p.files.follow(files, dirs)
	if fault := p.files.fault(); fault != "ok" {
		p.s.log.Error("files are not watched: changes need a SIGHUP or policy reload", "cause", fault)
	}
}

// tell says at up's terminal what is wrong, first in a line and then whole.
func (s *supervisor) tell(what string, err error, args ...any) {
	first, _, more := strings.Cut(err.Error(), "\n")
	s.log.Error("a file is refused", append(args, "cause", first, "what", what)...)
	if more {
		fmt.Fprintln(s.err, err)
	}
}

// reloadCredentials brings the credential files into force as they are now: at
// the broker first, which holds the lock, then at the gateway, which reads policies
// by them. On an error those before stay.
func (s *supervisor) reloadCredentials(ctx context.Context) (changed bool, err error) {
	files, err := readCredentialFiles(s.credentialDir)
	if err != nil {
		return false, err
	}
	before, err := readCredentialFiles(s.inst.credentials())
	if err != nil {
		return false, err
	}
	if maps.EqualFunc(files, before, bytes.Equal) {
		return false, nil
	}
	if err := s.putCredentials(files); err != nil {
		return false, errors.Join(err, s.putCredentials(before))
	}
	if err := callBroker(ctx, s.inst, "/v1/reload", empty{}, nil); err != nil {
		return false, errors.Join(fmt.Errorf("the broker refuses them: %w", err), s.putCredentials(before))
	}
	if err := callGateway(ctx, s.inst, "/v1/credentials", empty{}, nil); err != nil {
		return true, fmt.Errorf("the gateway refuses them: %w", err)
	}
	s.log.Info("credentials were put in force", "dir", s.credentialDir, "files", len(files))
	return true, nil
}
