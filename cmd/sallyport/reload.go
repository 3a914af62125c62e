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
	"sync/atomic"
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
	Lint    string `json:"lint,omitempty"` // with what policy lint shows the error
}

// reloader brings what people write into force while runs go on: the policy files
// of runs with all that they include, and the credential files. A file is read,
// checked and tested as for a new run before anything changes; what is wrong with
// it leaves the old policy in force and is told to people and to the log.
//
// Each run's policy is read, proved and put in force by itself. What takes long
// holds up the runs of that file alone: further passes begin meanwhile, and for
// one run they take turns, the newest reading last.
type reloader struct {
	s       *supervisor
	control net.Listener
	files   *watcher
	load    policyLoader
	secrets sync.Mutex // held while credentials are exchanged

	mu     sync.Mutex // guards all below; nothing is read or proved under it
	last   *reloadOut
	byCell map[string]reloadedRun // the last outcome of every run that is there
	cells  []*control.CellFile    // that were there when the newest pass began
	seen   map[string][]string    // the files that each origin's policy is made of
	turns  map[string]*turn       // of every run that is there
	passes int64
	fault  string // of the watch, as it was told last
	creds  string // what became of the credential files when they were read last: "ok" or what is wrong
}

// policyLoader reads a policy: loadPolicy.
type policyLoader func(policySource, []policyfile.Credential) (*policy, error)

// turn is whose turn it is to read the policy of one run.
type turn struct {
	sync.Mutex              // held by whoever reads it
	newest     atomic.Int64 // of the passes that came for it
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
	r := &reloader{s: s, control: l, files: w, load: loadPolicy, byCell: map[string]reloadedRun{}, creds: "ok"}
	r.seen, r.turns = map[string][]string{}, map[string]*turn{}
	return r, nil
}

func (r *reloader) close() {
	if err := r.files.close(); err != nil {
		r.s.log.Error("ending the watch of files", "cause", err)
	}
}

// follow reloads whenever files change or hup says so, until ctx ends and what
// was begun has ended with it.
func (r *reloader) follow(ctx context.Context, hup <-chan struct{}) error {
	fresh := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	reload := func(trigger string) { wg.Go(func() { r.reload(ctx, trigger) }) }
	reload("files")
	return serveAll(ctx,
		func(ctx context.Context) error { return r.files.run(ctx, r.s.inst.cells(), fresh) },
		func(ctx context.Context) error {
			settle(ctx, r.files.changes, func() { reload("files") })
			return nil
		},
		func(ctx context.Context) error {
			settle(ctx, fresh, func() { wg.Go(func() { r.greet(ctx) }) })
			return nil
		},
		func(ctx context.Context) error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-hup:
					reload("signal")
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
	// Credentials is "ok", or why the files are not what is in force; they are in
	// CredentialDir, "" for none.
	Credentials   string `json:"credentials"`
	CredentialDir string `json:"credential_dir,omitempty"`

	Watch string   `json:"watch"` // "ok" or what cannot be watched
	Ships []string `json:"ships"` // collectors that records are shipped to
}

func (r *reloader) status() followOut {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := followOut{
		Last: r.last, Refused: []reloadedRun{}, Watch: r.files.fault(), Ships: append([]string{}, r.s.collectors...),
		Credentials: r.creds, CredentialDir: r.s.credentialDir,
	}
	for _, cell := range slices.Sorted(maps.Keys(r.byCell)) {
		if run := r.byCell[cell]; run.Outcome == refused {
			out.Refused = append(out.Refused, run)
		}
	}
	return out
}

// reload reads credentials and the policies of all runs again.
func (r *reloader) reload(ctx context.Context, trigger string) reloadOut {
	out := reloadOut{Time: time.Now().UTC(), Trigger: trigger, Credentials: "ok"}
	changed, err := r.renewCredentials(ctx, trigger)
	if err != nil {
		out.Credentials = err.Error()
	}
	p := r.newPass(trigger)
	out.Runs = p.each(ctx, p.cells)
	r.mu.Lock()
	defer r.mu.Unlock()
	if trigger != "files" || changed || err != nil || p.news || r.mendedLocked(&out) {
		r.last = &out
	}
	return out
}

// mendedLocked reports whether a pass found nothing refused that an earlier one
// found: a file that was put back as it was is no other policy.
func (r *reloader) mendedLocked(out *reloadOut) bool {
	for _, run := range r.byCell {
		if run.Outcome == refused {
			return false
		}
	}
	return r.last != nil && !r.last.ok() && out.ok()
}

func (r *reloader) renewCredentials(ctx context.Context, trigger string) (changed bool, err error) {
	r.secrets.Lock()
	defer r.secrets.Unlock()
	changed, err = r.s.reloadCredentials(ctx)
	is := "ok"
	if err != nil {
		is = err.Error()
	}
	r.mu.Lock()
	was := r.creds
	r.creds = is
	r.mu.Unlock()
	if err != nil && ctx.Err() == nil && (trigger != "files" || was != is) {
		r.refuseCredentials(ctx, err)
	}
	return changed, err
}

// refuseCredentials tells people and the log that the credential files were not
// put in force. A line of such a file may hold what should not be there, a secret:
// the log gets the places alone.
func (r *reloader) refuseCredentials(ctx context.Context, err error) {
	r.s.tell("the credential files are refused; those before stay in force", err, "dir", r.s.credentialDir)
	raw, jsonErr := json.Marshal(struct {
		File string `json:"file"`
	}{r.s.credentialDir})
	rec := audit.Record{Kind: audit.PolicyRefuse, Error: "the credential files: " + placesIn(err), Data: raw}
	if err := errors.Join(jsonErr, callGateway(ctx, r.s.inst, "/v1/record", rec, nil)); err != nil {
		r.s.log.Error("recording that the credential files are refused", "cause", err)
	}
}

// placesIn returns where the errors of files are, without what stands there; an error
// that is of no line says what it says.
func placesIn(err error) string {
	switch e := err.(type) { //nolint:errorlint // every error of the tree is looked at, one by one
	case policyfile.Errors:
		var list []string
		for _, one := range e {
			list = append(list, fmt.Sprintf("%s:%d:%d", one.File, one.Line, one.Column))
		}
		return strings.Join(list, ", ")
	case interface{ Unwrap() []error }:
		var list []string
		for _, one := range e.Unwrap() {
			list = append(list, placesIn(one))
		}
		return strings.Join(list, ", ")
	}
	if in := errors.Unwrap(err); in != nil && holdsLines(in) {
		return placesIn(in)
	}
	return err.Error()
}

// holdsLines reports whether an error quotes lines of a file.
func holdsLines(err error) bool {
	_, ok := errors.AsType[policyfile.Errors](err)
	return ok
}

// greet reads the policies of runs that began since: their files may have changed
// between their being read and being watched.
func (r *reloader) greet(ctx context.Context) {
	p := r.newPass("files")
	p.each(ctx, slices.DeleteFunc(slices.Clone(p.cells), func(f *control.CellFile) bool { return p.knew[f.Cell] }))
}

// pass is one time that policies are read. What several runs share is read once.
type pass struct {
	*reloader
	number  int64
	trigger string
	cells   []*control.CellFile // that have an origin
	knew    map[string]bool     // those of them that an earlier pass came for
	creds   []policyfile.Credential
	err     error // why creds are not there
	free    chan struct{}

	state sync.Mutex // guards the rest
	read  map[string]*reading
	news  bool // something was put in force or refused
}

// atOnce is how many policies a pass reads at a time.
const atOnce = 16

// each reads the policies of runs, side by side. The answers are in the order of
// the cells, without those that a later pass answers for.
func (p *pass) each(ctx context.Context, cells []*control.CellFile) []reloadedRun {
	out := make([]reloadedRun, len(cells))
	var wg sync.WaitGroup
	for i, f := range cells {
		wg.Go(func() { out[i] = p.inTurn(ctx, f) })
	}
	wg.Wait()
	return slices.DeleteFunc(out, func(run reloadedRun) bool { return run.Cell == "" })
}

// inTurn reads the policy of a run when nobody else does. Of the passes that
// wait for that because files changed, only the newest comes to it: it reads
// what the others would have.
func (p *pass) inTurn(ctx context.Context, f *control.CellFile) (out reloadedRun) {
	p.mu.Lock()
	t := p.turns[f.Cell]
	p.mu.Unlock()
	if t == nil {
		return out // it has ended
	}
	for n := t.newest.Load(); n < p.number && !t.newest.CompareAndSwap(n, p.number); n = t.newest.Load() {
	}
	t.Lock()
	defer t.Unlock()
	late := t.newest.Load() > p.number
	if late && p.trigger == "files" {
		return out
	}
	p.free <- struct{}{}
	defer func() { <-p.free }()
	out = p.run(ctx, f, late)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.turns[f.Cell] != nil {
		p.byCell[f.Cell] = out
	}
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

// newPass begins a pass over the runs that are there.
func (r *reloader) newPass(trigger string) *pass {
	p := &pass{reloader: r, trigger: trigger, read: map[string]*reading{}, knew: map[string]bool{}, free: make(chan struct{}, atOnce)}
	p.creds, p.err = loadCredentials(r.s.inst.credentials())
	r.mu.Lock()
	defer r.mu.Unlock()
	all, err := control.ReadAll(r.s.inst.cells())
	if err != nil {
		r.s.tell("the policies of some runs cannot be read again", err)
	}
	p.cells = slices.DeleteFunc(all, func(f *control.CellFile) bool { return f.Origin == nil })
	r.passes++
	p.number, r.cells = r.passes, p.cells
	turns := map[string]*turn{}
	for _, f := range p.cells {
		t, knew := r.turns[f.Cell]
		if !knew {
			t = &turn{}
		}
		turns[f.Cell], p.knew[f.Cell] = t, knew
	}
	r.turns = turns
	maps.DeleteFunc(r.byCell, func(cell string, _ reloadedRun) bool { return turns[cell] == nil })
	r.watchLocked()
	return p
}

// run reads the policy of a run, and puts it in force if it is another. anew is
// for a reading of its own: the pass may have read before another pass did.
func (p *pass) run(ctx context.Context, f *control.CellFile, anew bool) reloadedRun {
	out := reloadedRun{Cell: f.Cell, Run: f.Run, File: f.Origin.File, Outcome: kept}
	is, err := control.Read(p.s.inst.cells(), f.Cell) // as earlier turns left it
	if errors.Is(err, fs.ErrNotExist) {
		return reloadedRun{} // it has just ended
	}
	if err == nil {
		out.Was, out.Policy = is.Policy, is.Policy
	}
	got := &reading{err: err}
	if err == nil {
		got = p.readOrigin(ctx, f.Origin, anew)
		err = got.err
	}
	if err == nil && got.policy.digest != out.Was {
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
	if err != nil && ctx.Err() == nil {
		out.Outcome, out.Error, out.Lint = refused, err.Error(), p.lintArgs(f.Origin)
		p.refuse(ctx, &out, got.digest, err)
	}
	return out
}

// refuse tells people and the log that a file was not put in force: once, as long
// as nothing changes and nobody asks.
func (p *pass) refuse(ctx context.Context, run *reloadedRun, digest string, err error) {
	p.mu.Lock()
	before := p.byCell[run.Cell]
	p.mu.Unlock()
	if p.trigger == "files" && before.Outcome == refused && before.Error == run.Error {
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

// lintArgs are the arguments with which policy lint reads what a run's policy is
// made of, as a reload does.
func (p *pass) lintArgs(o *control.Origin) string {
	var args []string
	if floor := p.s.inst.floorFrom(); floor != "" {
		args = append(args, "--floor", floor)
	}
	if o.Narrow != "" {
		args = append(args, "--narrow", o.Narrow)
	}
	return strings.Join(append(args, o.File), " ")
}

// originKey tells policies apart that are read from different places.
func originKey(o *control.Origin) string {
	return fmt.Sprintf("%s\x00%s\x00%v\x00%s\x00%d", o.File, o.Narrow, o.Detected, o.Workspace, o.Owner)
}

// readOrigin reads a policy as it stands in its files now.
func (p *pass) readOrigin(ctx context.Context, o *control.Origin, anew bool) *reading {
	key := originKey(o)
	p.state.Lock()
	got := p.read[key]
	if got == nil || anew {
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
		p.mu.Lock()
		before := append([]string{o.File}, p.seen[key]...)
		p.mu.Unlock()
		got.err = p.written(before)
	}
	if got.err == nil {
		note := func(path string) { seen = append(seen, path) }
		got.policy, got.err = p.load(policySource{
			path: o.File, floor: p.s.inst.under(), from: p.s.inst.floorFrom(), narrow: o.Narrow, place: &place{o.Workspace, o.Owner},
			seen: note, detect: keptDetector(o.Detected), stop: ctx.Err,
		}, p.creds)
		if err := p.written(seen); err != nil { // whatever was read may have been half of it
			got.err = err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[key] = seen
	p.watchLocked()
}

// written returns an error while somebody writes to one of some files: the part
// that is there may be a policy, too, and a wider one. It is read when it is closed.
func (r *reloader) written(files []string) error {
	for _, file := range files {
		if beingWritten(file) {
			r.files.await(file)
			return fmt.Errorf("%s is open for writing: it is read once it is closed; write beside it and rename", file)
		}
	}
	return nil
}

// watchLocked follows the files that the runs' policies are made of, as far as
// they are known: each time that one was read, it is.
func (r *reloader) watchLocked() {
	present := map[string]bool{}
	var files []string
	for _, f := range r.cells {
		present[originKey(f.Origin)] = true
		files = append(files, f.Origin.File)
	}
	for key, list := range r.seen {
		if !present[key] {
			delete(r.seen, key)
			continue
		}
		files = append(files, list...)
	}
	dirs := []string{r.s.inst.cells()}
	if r.s.credentialDir != "" {
		dirs = append(dirs, r.s.credentialDir)
	}
	r.files.follow(files, dirs)
	fault := r.files.fault()
	if fault == r.fault {
		return
	}
	if r.fault = fault; fault != "ok" {
		r.s.log.Error("files are not watched: changes need a SIGHUP or policy reload", "cause", fault)
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
