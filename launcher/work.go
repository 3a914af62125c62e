package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"sallyport/launcher/guest"
	"sallyport/launcher/nerdctl"
)

const (
	// startTimeout is for the engine and the runtime, cold and on a busy machine.
	startTimeout = 2 * time.Minute
	// exportTimeout is for the files that come back.
	exportTimeout = 5 * time.Minute
	// hangTimeout is for a guest that was told to end, and for an engine whose
	// container has.
	hangTimeout = 4 * time.Second
)

// errStuck says that a guest did not keep its own limits.
var errStuck = errors.New("the sandbox did not end when it had to, and was killed")

func (r *run) proxy() netip.AddrPort {
	return netip.AddrPortFrom(r.cell.Gateway, r.l.cfg.ExplicitPort)
}

// work has the sandbox do its work. What becomes of that is the result, not an
// error; an error is a run that was cancelled, or ended because of its cell.
func (r *run) work(ctx context.Context) error {
	ctx, unwatch := r.watched(ctx)
	defer unwatch()
	c := r.container()
	out, err := r.l.converse(ctx, c, r.job(ctx))
	if r.result.Ended.IsZero() {
		r.result.Ended = r.output.clock.now(r.l.cfg.Now().UTC())
		r.count() // what is left to count: the guest did not come to say that it is over
	}
	if !r.result.Started.IsZero() {
		r.result.Duration = r.result.Ended.Sub(r.result.Started)
	}
	r.result.Output, r.result.Truncated = r.output.all(), r.output.cut
	cancelled := ctx.Err() != nil
	r.result.ended(out, err, r.spec.Limits, cancelled)
	if errors.Is(err, errStuck) && !r.result.Started.IsZero() {
		r.result.set(TimedOut, err.Error())
	}
	cause := context.Cause(ctx)
	if other := (*otherWayError)(nil); errors.As(cause, &other) {
		r.result.set(OtherWay, other.Error())
	}
	r.explain(ctx, out)
	if cancelled {
		return cause
	}
	return nil
}

// otherWayError ends a run whose cell has another interface, or may have: it cannot be
// watched.
type otherWayError struct{ err error }

func (e *otherWayError) Error() string { return "ended: " + e.err.Error() }
func (e *otherWayError) Unwrap() error { return e.err }

// watched returns a context that ends when the cell has another way than the gateway.
// Root alone can give it one, behind our back (catalogue: CT-14); a sandbox must not go
// on with it, and the log has to say so.
func (r *run) watched(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := r.l.cfg.Network.Watch(ctx, r.cell); err != nil {
			cancel(&otherWayError{err})
		}
	}()
	return ctx, func() { cancel(nil); <-ended }
}

// explain adds what the gateway refused and what was not exported.
func (r *run) explain(ctx context.Context, out guest.Outcome) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	d := r.l.denials(ctx, r.result.Run)
	r.result.Denied, r.result.Denials, r.result.Uncounted = d.Count, d.Last, d.More
	r.result.remark(r.spec.Limits)
	r.result.Skipped = append(r.result.Skipped, out.Done.Skipped...)
	for _, why := range []string{out.Done.Error, errorText(out.Export)} {
		if why != "" {
			r.result.Files = nil
			r.result.Text += "; nothing was exported: " + why
			break
		}
	}
}

// denials asks for what was refused to a run. What cannot be asked is not 0.
func (l *Launcher) denials(ctx context.Context, run string) Denials {
	d, err := l.cfg.Gateway.Denials(ctx, run)
	if err != nil {
		l.cfg.Log.Warn("asking for the denials of a run", "run", run, "error", err)
		return Denials{More: true}
	}
	return d
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// count reads the sandbox's counters while they are there.
func (r *run) count() {
	c := readCounters(r.l.cgroup(r.id))
	u := &r.result.Usage
	u.PeakMemory = max(u.PeakMemory, c.Memory)
	u.CPU = max(u.CPU, c.CPU)
	u.PeakPIDs = max(u.PeakPIDs, c.PIDs)
	u.OOMKills = max(u.OOMKills, c.OOMKills)
	u.PIDsHit = max(u.PIDsHit, c.PIDsHit)
}

func (r *run) job(ctx context.Context) guest.Job {
	job := guest.Job{
		Spec: guest.Spec{
			Argv: r.spec.argv(r.image.Entrypoint, r.image.Cmd), Env: r.env, Unset: hidden, Dir: r.dir(), Home: homeDir,
			Files: r.spec.Workspace != "" || r.spec.Code != nil, Export: r.spec.Export != "",
			Root: workspaceDir, Bounds: r.spec.bounds(), Input: r.spec.Stdin != nil,
			Output: r.spec.Limits.Output, Deadline: r.spec.Limits.Time, Grace: grace,
		},
		Input: r.spec.Stdin,
		Started: func(at time.Duration) {
			now := r.l.cfg.Now().UTC()
			r.output.clock = clock{now, at}
			r.result.Started, r.result.SetUp = now, now.Sub(r.asked)
		},
		Output: func(s guest.Stream, at time.Duration, data []byte) {
			r.output.add(s, r.output.clock.sent(at, r.l.cfg.Now()), data)
			w := r.spec.Stdout
			if s == guest.Stderr {
				w = r.spec.Stderr
			}
			if w != nil {
				_, _ = w.Write(data) // whoever reads has gone; the result has it
			}
		},
		Ended: func(guest.End) {
			r.result.Ended = r.output.clock.now(r.l.cfg.Now().UTC())
			r.count()
		},
		Files: func(w io.Writer) error { return r.sendFiles(ctx, w) },
	}
	if r.spec.Export != "" {
		job.Export = r.receiveFiles
	}
	return job
}

// dir is where the work starts.
func (r *run) dir() string {
	switch {
	case r.spec.Dir != "":
		return r.spec.Dir
	case r.spec.Workspace != "" || r.spec.Code != nil || r.image.Dir == "" || !filepath.IsAbs(r.image.Dir):
		return workspaceDir
	}
	return r.image.Dir
}

// converse runs a container and talks to its guest. When it returns nerdctl has
// ended, and has removed the container if all went well.
func (l *Launcher) converse(ctx context.Context, c *nerdctl.Container, job guest.Job) (guest.Outcome, error) {
	p, err := l.cfg.Engine.Run(c)
	if err != nil {
		return guest.Outcome{}, err
	}
	defer p.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(startTimeout, func() { cancel(errStuck) })
	defer late.Stop()

	started, ended := job.Started, job.Ended
	job.Started = func(at time.Duration) {
		late.Reset(job.Spec.Deadline + job.Spec.Grace + 2*hangTimeout)
		if started != nil {
			started(at)
		}
	}
	job.Ended = func(e guest.End) {
		late.Reset(exportTimeout)
		if ended != nil {
			ended(e)
		}
	}
	talked, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		makeSure(ctx, p, talked)
	}()
	out, err := guest.Talk(ctx, p.Stdout, p.Stdin, job)
	close(talked)
	<-watched
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if said := l.settle(p); said != nil && errors.Is(err, guest.ErrHungUp) {
		err = fmt.Errorf("%w: the engine: %w", err, said)
	}
	return out, err
}

// makeSure ends a nerdctl whose guest was told to end by ctx and does not.
func makeSure(ctx context.Context, p *nerdctl.Process, talked <-chan struct{}) {
	select {
	case <-talked:
		return
	case <-ctx.Done():
	}
	t := time.NewTimer(hangTimeout)
	defer t.Stop()
	select {
	case <-talked:
	case <-t.C:
		p.Stop()
		p.Close()
	}
}

// settle waits for nerdctl to clean up after its container, and returns what it
// had to say. That matters only where the guest said nothing.
func (l *Launcher) settle(p *nerdctl.Process) error {
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, p.Stdout) // nothing is expected
	}()
	t := time.NewTimer(hangTimeout)
	defer t.Stop()
	select {
	case <-p.Done():
	case <-t.C:
		p.Stop() // what is left is removed by the step's undo
	}
	p.Close()
	<-drained
	return p.Err()
}

func (r *run) removeSandbox(ctx context.Context) error {
	return errors.Join(r.removeExport(), r.l.removeContainer(ctx, r.id, r.id, filepath.Join(r.l.runDir(r.id), "cid")))
}

// removeContainer makes sure that a container of a cell is gone, and all that the
// kernel and the engine kept for it. Where nerdctl has removed it, as it was told
// to, that takes no time.
func (l *Launcher) removeContainer(ctx context.Context, id, name, cidFile string) error {
	data, _ := os.ReadFile(cidFile) // none if there was no container
	e := l.cfg.Engine
	if !e.Gone(name, string(data)) || !noProcesses(l.cgroup(id)) {
		if err := e.RemoveCell(ctx, id, name, cidFile); err != nil {
			return err
		}
	}
	return errors.Join(e.Sweep(string(data)), removeCgroups(l.cgroup(id)))
}

func (r *run) export(context.Context) error {
	if r.exportRoot == nil || len(r.result.Files) == 0 {
		return nil
	}
	if err := r.handOver(); err != nil {
		return err
	}
	r.result.Export = r.spec.Export
	return nil
}

// removeExport removes what was unpacked and not handed over.
func (r *run) removeExport() error {
	if r.journal.Export == "" {
		return nil
	}
	var errs []error
	for _, root := range []*os.Root{r.exportRoot, r.exportParent} {
		if root != nil {
			errs = append(errs, root.Close())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(r.journal.Export))...)
}
