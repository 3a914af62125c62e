package launcher

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"sallyport/audit"
	"sallyport/control"
	"sallyport/launcher/cell"
	"sallyport/launcher/nerdctl"
)

// The steps of a run, in order. The journal names the one that was begun last.
const (
	StepNetwork = "network" // the cell
	StepImage   = "image"   // found, and what it trusts learnt
	StepGrants  = "grants"  // of credentials
	StepFiles   = "files"   // that are mounted into the sandbox
	StepCell    = "cell"    // file, and the policy's
	StepAttach  = "attach"  // at the gateway
	StepRecord  = "record"  // run.start
	StepSandbox = "sandbox" // started; it ends with the work
	StepExport  = "export"  // files handed over
)

// Steps returns the names of all steps, in order.
func Steps() []string {
	return []string{StepNetwork, StepImage, StepGrants, StepFiles, StepCell, StepAttach, StepRecord, StepSandbox, StepExport}
}

// step is a part of a run. undo may be nil; it is called whether do succeeded,
// failed or died half-way, so it must not mind what is not there.
type step struct {
	name string
	do   func(context.Context) error
	undo func(context.Context) error
}

// run is one call of Run.
type run struct {
	l       *Launcher
	spec    *Spec
	id      string // of the cell
	journal *journal
	asked   time.Time

	image  *nerdctl.Image
	trust  *trust
	cell   cell.Cell
	grants []control.Grant
	env    []string
	output output
	result Result

	lookUp chan error // has the outcome of looking for the image

	exportParent, exportRoot *os.Root // of journal.Export; nil until files come
}

// Run makes a run and returns what came of it. The error is ours, not the
// work's: the run was refused, was cancelled, could not be recorded, or something
// of it is left, which Reconcile will find.
//
// A run that is cancelled is ended and undone within seconds.
func (l *Launcher) Run(ctx context.Context, spec Spec) (Result, error) {
	r := &run{l: l, spec: &spec, id: newCellID(), asked: l.cfg.Now(), lookUp: make(chan error, 1)}
	if err := spec.check(); err != nil {
		return Result{}, &SpecError{err}
	}
	if os.Geteuid() != 0 {
		return Result{}, errors.New("refusing the run: making sandboxes needs root: use sudo")
	}
	if err := l.cfg.Gateway.Ready(ctx); err != nil {
		return Result{}, fmt.Errorf("refusing the run: %w", err)
	}
	r.result = Result{
		Run: ulid.MustNew(ulid.Timestamp(r.asked), rand.Reader).String(), Cell: r.id, Image: spec.Image,
		Policy: spec.Policy.Digest, PolicyName: spec.Policy.Name, Isolation: spec.Isolation,
	}
	err := r.run(ctx)
	switch {
	case err == nil:
	case r.journal.Started:
		err = fmt.Errorf("run %s: %w", r.result.Run, err)
	default: // the log knows of no such run: its id would lead nowhere
		err = fmt.Errorf("starting the run: %w", err)
	}
	return r.result, err
}

func (r *run) run(ctx context.Context) (err error) {
	// Asking the engine takes as long as making the cell, so it is done beside it.
	go func() {
		var err error
		r.image, err = r.l.cfg.Engine.Image(ctx, r.spec.Image)
		r.lookUp <- err
	}()
	r.journal = &journal{Cell: r.id, Run: r.result.Run, Policy: r.spec.Policy.Digest, PID: os.Getpid(), Created: r.asked}
	if r.spec.Export != "" {
		if r.journal.Export, err = exportTemp(r.spec.Export, r.id); err != nil {
			return err
		}
	}
	lock, err := r.l.begin(ctx, r.journal)
	if err != nil {
		return fmt.Errorf("opening the journal: %w", err)
	}
	err, undone := r.steps(ctx)
	r.result.Destroyed = undone == nil
	err = errors.Join(err, undone)
	if r.journal.Started {
		if recordErr := r.recordEnd(ctx); recordErr != nil {
			// The journal stays, for Reconcile to record the end.
			return errors.Join(err, recordErr, lock.Close())
		}
	}
	if undone != nil {
		return errors.Join(err, lock.Close())
	}
	return errors.Join(err, r.l.forget(r.id, lock))
}

// steps takes every step and undoes what was begun, in reverse.
func (r *run) steps(ctx context.Context) (err, undone error) {
	all := []step{
		{StepNetwork, r.makeNetwork, r.removeNetwork},
		{StepImage, r.findImage, r.removeImage},
		{StepGrants, r.getGrants, r.revoke},
		{StepFiles, r.makeFiles, nil},
		{StepCell, r.writeCell, r.removeCell},
		{StepAttach, r.attach, r.detach},
		{StepRecord, r.recordStart, nil},
		{StepSandbox, r.work, r.removeSandbox},
		{StepExport, r.export, nil},
	}
	var begun []step
	for _, s := range all {
		if err = ctx.Err(); err != nil {
			break
		}
		r.journal.Step = s.name
		if err = r.l.writeJournal(r.journal); err != nil {
			break
		}
		r.l.cfg.Progress(s.name)
		begun = append(begun, s)
		if err = s.do(ctx); err != nil {
			err = fmt.Errorf("step %s: %w", s.name, err)
			break
		}
	}
	for _, s := range slices.Backward(begun) {
		if s.undo == nil {
			continue
		}
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		if undoErr := s.undo(clean); undoErr != nil {
			undone = errors.Join(undone, fmt.Errorf("undoing step %s: %w", s.name, undoErr))
		}
		cancel()
	}
	return err, undone
}

func (r *run) makeNetwork(ctx context.Context) (err error) {
	r.cell, err = r.l.cfg.Network.Create(ctx, r.id, r.journal.Index)
	return err
}

// removeNetwork tells of packets that went for another way out before their
// counters go.
func (r *run) removeNetwork(ctx context.Context) error {
	if r.cell.ID != "" {
		b, err := r.l.cfg.Network.Counters(ctx, r.id)
		if err != nil {
			r.l.cfg.Log.Warn("reading the counters of a cell", "cell", r.id, "error", err)
		}
		r.result.Bypass = Bypass(b)
	}
	return r.l.cfg.Network.Remove(ctx, r.id)
}

func (r *run) findImage(ctx context.Context) error {
	if err := <-r.lookUp; err != nil {
		return err
	}
	r.result.Digest = r.image.Digest
	if err := r.l.makeRunDir(r.id); err != nil {
		return err
	}
	var err error
	r.trust, err = r.l.trustOf(ctx, r)
	return err
}

// removeImage removes what it took to learn about the image, and the directory
// of the run.
func (r *run) removeImage(ctx context.Context) error {
	dir := r.l.runDir(r.id)
	return errors.Join(r.l.removeContainer(ctx, r.id, r.id+lookSuffix, filepath.Join(dir, "cid"+lookSuffix)), r.l.removeRunDir(r.id))
}

func (r *run) getGrants(ctx context.Context) (err error) {
	if len(r.spec.Credentials) > 0 {
		err = settled(ctx, func(ctx context.Context) (err error) {
			r.grants, err = r.l.cfg.Broker.Grants(ctx, r.id, r.result.Run, r.spec.Credentials)
			return err
		})
		if err != nil {
			return err
		}
	}
	r.env, err = environment(r.proxy(), r.id, r.result.Run, r.grants, r.spec.Env)
	return err
}

func (r *run) revoke(ctx context.Context) error {
	if len(r.spec.Credentials) == 0 {
		return nil
	}
	return r.l.cfg.Broker.Revoke(ctx, r.id)
}

func (r *run) makeFiles(context.Context) error { return r.prepare() }

func (r *run) writeCell(ctx context.Context) error {
	unlock, err := lockPath(ctx, r.l.policiesDir())
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.l.writePolicy(&r.spec.Policy); err != nil {
		return err
	}
	trusts, err := fingerprints(r.l.cfg.CA)
	if err != nil {
		return err
	}
	f := &control.CellFile{
		Cell: r.id, Run: r.result.Run, Index: r.cell.Index, Sandbox: r.cell.Sandbox, Gateway: r.cell.Gateway,
		Policy: r.spec.Policy.Digest, Grants: r.grants, Created: r.asked, Trusts: trusts,
		Origin: r.spec.Policy.Origin,
	}
	return f.Write(r.l.cellsDir(), r.l.cfg.Group)
}

func (r *run) removeCell(ctx context.Context) error { return r.l.removeCellFile(ctx, r.id) }

func (l *Launcher) policyPath(digest string) string {
	return control.PolicyPath(l.policiesDir(), digest)
}

// removeCellFile removes a cell's file and every policy that no cell is under.
func (l *Launcher) removeCellFile(ctx context.Context, id string) error {
	unlock, err := lockPath(ctx, l.policiesDir())
	if err != nil {
		return err
	}
	defer unlock()
	if err := control.Remove(l.cellsDir(), id); err != nil {
		return err
	}
	return l.prunePolicies()
}

// prunePolicies removes every policy that no cell is under. The caller has the
// lock of the directory.
func (l *Launcher) prunePolicies() error {
	cells, err := control.ReadAll(l.cellsDir())
	if err != nil {
		return nil // one that cannot be read may name any policy: leave them all
	}
	entries, err := os.ReadDir(l.policiesDir())
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(l.policiesDir(), e.Name())
		used := slices.ContainsFunc(cells, func(f *control.CellFile) bool { return l.policyPath(f.Policy) == path })
		if !used {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

func (r *run) attach(ctx context.Context) error {
	return settled(ctx, func(ctx context.Context) error { return r.l.cfg.Gateway.Attach(ctx, r.id) })
}

func (r *run) detach(ctx context.Context) error { return r.l.cfg.Gateway.Detach(ctx, r.id) }

var numericUser = regexp.MustCompile(`^([1-9][0-9]*)(:([1-9][0-9]*))?$`)

// userOf is the image's user if that is one by number and not root, else 1000. A
// name would be looked up in the image's own passwd, where it may be root's.
func userOf(image string) string {
	m := numericUser.FindStringSubmatch(image)
	switch {
	case m == nil || len(m[1]) > 9 || len(m[3]) > 9:
		return "1000:1000"
	case m[3] == "":
		return m[1] + ":" + m[1]
	}
	return m[1] + ":" + m[3]
}

// Manifest is what run.start says: everything that decides what a run can do. Of
// the environment it has the names, and of the command the program, since both
// may hold what does not belong in a log; the digest is for comparing.
type Manifest struct {
	Image       string    `json:"image"`
	ImageDigest string    `json:"image_digest"`
	Policy      string    `json:"policy_name,omitempty"`
	Runtime     string    `json:"runtime"`
	User        string    `json:"user"`
	Program     string    `json:"program,omitempty"`
	Command     string    `json:"command_sha256"`
	Code        string    `json:"code_sha256,omitempty"`
	Env         []string  `json:"env"`
	Credentials []string  `json:"credentials,omitempty"`
	Mounts      []string  `json:"mounts"`
	Tmpfs       []string  `json:"tmpfs"`
	Limits      Limits    `json:"limits"`
	Workspace   bool      `json:"workspace"`
	Export      bool      `json:"export"`
	Address     string    `json:"address"`
	Asker       Asker     `json:"asker"`
	Asked       time.Time `json:"asked"`
}

func (r *run) manifest() Manifest {
	argv := r.spec.argv(r.image.Entrypoint, r.image.Cmd)
	m := Manifest{
		Image: r.image.Name, ImageDigest: r.image.Digest, Policy: r.spec.Policy.Name, Runtime: r.spec.Isolation.runtime(),
		User: userOf(r.image.User), Command: digest([]byte(strings.Join(argv, "\x00"))), Env: names(r.env),
		Credentials: r.spec.Credentials, Limits: r.spec.Limits, Workspace: r.spec.Workspace != "",
		Export: r.spec.Export != "", Address: r.cell.Sandbox.String(), Asker: r.spec.Asker, Asked: r.asked,
	}
	if len(argv) > 0 {
		m.Program = argv[0]
	}
	if r.spec.Code != nil {
		m.Code = digest(r.spec.Code.Data)
	}
	c := r.container()
	for _, b := range c.Binds {
		m.Mounts = append(m.Mounts, b.Target)
	}
	for _, t := range c.Tmpfs {
		m.Tmpfs = append(m.Tmpfs, t.Target)
	}
	return m
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func (i Isolation) runtime() string {
	if i == Hardened {
		return "runsc"
	}
	return "runc"
}

func (r *run) recordStart(ctx context.Context) error {
	// Before it is asked for: an answer may be lost, and the log have it.
	r.journal.Started = true
	if err := r.l.writeJournal(r.journal); err != nil {
		return err
	}
	return settled(ctx, func(ctx context.Context) error {
		id, err := r.l.record(ctx, audit.RunStart, r.journal, r.manifest())
		r.result.Records = append(r.result.Records, id)
		return err
	})
}

// record appends a record about a run. Nothing of it is done if it fails.
func (l *Launcher) record(ctx context.Context, k audit.Kind, j *journal, data any) (id string, err error) {
	raw, err := json.Marshal(data)
	if err != nil {
		return "", fmt.Errorf("recording %s: %w", k, err)
	}
	now := l.cfg.Now()
	id = ulid.MustNew(ulid.Timestamp(now), rand.Reader).String()
	err = l.cfg.Gateway.Record(ctx, audit.Record{
		Schema: audit.Schema, ID: id, Kind: k, Time: now.UTC(), Cell: j.Cell, Run: j.Run, Policy: j.Policy, Data: raw,
	})
	if err != nil {
		return id, fmt.Errorf("recording %s: %w", k, err)
	}
	return id, nil
}

// Ending is what run.end says.
type Ending struct {
	Exit      int      `json:"exit"`
	Signal    string   `json:"signal,omitempty"`
	Cause     Cause    `json:"cause"`
	Text      string   `json:"text"`
	Micros    int64    `json:"us"`
	Usage     Usage    `json:"usage"`
	Truncated bool     `json:"truncated,omitempty"`
	Denied    int      `json:"denied"`
	Uncounted bool     `json:"denied_uncounted,omitempty"` // Denied is the least
	Files     []string `json:"files,omitempty"`            // "sha256 size path"; the first ones
	FileCount int      `json:"file_count"`
	FilesSum  string   `json:"files_sha256,omitempty"` // of all those lines
	Destroyed bool     `json:"destroyed"`
}

// maxRecorded bounds the files in a record; FilesSum stands for all.
const maxRecorded = 100

func (r *run) recordEnd(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	if b := r.result.Bypass; b != (Bypass{}) {
		if _, err := r.l.record(ctx, audit.Bypass, r.journal, b); err != nil {
			return err
		}
	}
	res := &r.result
	e := Ending{
		Exit: res.Exit, Signal: res.Signal, Cause: res.Cause, Text: res.Text, Micros: res.Duration.Microseconds(),
		Usage: res.Usage, Truncated: res.Truncated, Denied: res.Denied, Uncounted: res.Uncounted, FileCount: len(res.Files), Destroyed: res.Destroyed,
	}
	if e.Cause == "" {
		e.Cause, e.Text = NotStarted, "the sandbox was not started"
	}
	if len(e.Text) > 1024 {
		e.Text = e.Text[:1024]
	}
	all := sha256.New()
	for i, f := range res.Files {
		line := fmt.Sprintf("%s %d %s", f.SHA256, f.Size, f.Path)
		fmt.Fprintln(all, line)
		if i < maxRecorded {
			e.Files = append(e.Files, line)
		}
	}
	if len(res.Files) > 0 {
		e.FilesSum = hex.EncodeToString(all.Sum(nil))
	}
	id, err := r.l.record(ctx, audit.RunEnd, r.journal, e)
	res.Records = append(res.Records, id)
	return err
}
