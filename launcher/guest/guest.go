// Package guest is the first process of a sandbox, and the launcher's end of the
// line to it.
//
// [Main] reads one [Spec] from its standard input, starts the work in a session
// of its own, reaps whatever is orphaned, sends what the work writes as frames
// over its standard output, holds it to its limits, and when its first process
// is gone kills every other one. [Talk] is the other end.
//
// Main trusts the launcher and the kernel. It shares a user with the work, which
// is hostile: the work may stop, starve or crash it, and the launcher then says
// so, but it cannot speak in its name. Standard input and output are not
// inherited, and a guest that is not dumpable keeps its descriptors, its memory
// and its environment from every process without CAP_SYS_PTRACE (prctl(2),
// PR_SET_DUMPABLE). Talk trusts nothing: a frame that it does not expect ends
// the conversation.
//
// Main never opens a socket, never writes outside the files it is told to make,
// and never runs but as process 1, since it ends with kill(-1).
package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Config is what Main needs; every field is required.
type Config struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer // for what cannot be said in a frame
	Now    func() time.Time
}

// statusFailed is the exit status when it is the guest that failed.
const statusFailed = 125

// Main is the program. It returns the exit status.
func Main(ctx context.Context, cfg Config) int {
	status, err := run(ctx, cfg)
	if err != nil {
		fmt.Fprintf(cfg.Stderr, "sallyport guest: error: %v\n", err)
		return statusFailed
	}
	return status
}

// ownThreads is how many threads the guest has before there is any work. Once the
// work has taken all the processes that the sandbox may have, no further one can
// be made, and Go's runtime ends a program that needs one and gets none.
const ownThreads = 10

// makeThreads makes them. The runtime keeps what it has once had.
func makeThreads() {
	var made sync.WaitGroup
	free := make(chan struct{})
	for range ownThreads {
		made.Add(1)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			made.Done()
			<-free
		}()
	}
	made.Wait()
	close(free)
}

func run(ctx context.Context, cfg Config) (status int, err error) {
	if os.Getpid() != 1 {
		return 0, errors.New("this runs as the first process of a sandbox only: `sallyport run` starts it")
	}
	// Before anything of the work exists. A write that is refused leaves the
	// work as likely to be killed for memory as the guest, which is survivable.
	oom, _ := os.OpenFile("/proc/self/oom_score_adj", os.O_WRONLY, 0)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("closing /proc/1: %w", err)
	}
	makeThreads()
	// Every signal, so that none that the work sends ends or dumps the guest;
	// nobody reads that channel. The ones that are heeded have their own, which a
	// flood of others does not fill.
	signal.Notify(make(chan os.Signal, 1))
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	defer signal.Stop(signals)

	began := cfg.Now()
	g := &guest{
		in:   &frameReader{r: cfg.Stdin},
		out:  newFrameWriter(cfg.Stdout, func() time.Duration { return cfg.Now().Sub(began) }),
		oom:  oom,
		over: make(chan struct{}),
		bye:  make(chan struct{}),
	}
	if g.spec, err = g.readSpec(); err != nil {
		return 0, err
	}
	if len(g.spec.Look) > 0 {
		return 0, g.serveLook()
	}
	return g.serve(ctx, signals)
}

// serveLook is a run that only looks for files.
func (g *guest) serveLook() error {
	close(g.over) // there is no work
	go g.listen(nil)
	look := g.look
	if g.spec.All {
		look = g.lookAll
	}
	if err := look(); err != nil {
		return err
	}
	g.leave()
	return nil
}

type guest struct {
	in   *frameReader
	out  *frameWriter
	spec *Spec
	oom  *os.File

	over chan struct{} // closed when the work and its children are gone
	bye  chan struct{} // closed when the launcher has said goodbye or hung up

	mu      sync.Mutex // guards what follows
	cause   Cause      // the first one stands
	written int64      // octets of output
}

func (g *guest) readSpec() (*Spec, error) {
	f, err := g.in.next()
	if err != nil {
		return nil, err
	}
	if f.kind != kindSpec {
		return nil, fmt.Errorf("frame %d is not a spec", f.kind)
	}
	return parseSpec(f.data)
}

// serve is a run from the files that go in to the files that come out.
func (g *guest) serve(ctx context.Context, signals <-chan os.Signal) (int, error) {
	if g.spec.Files {
		if err := g.unpack(); err != nil {
			return statusFailed, g.finish(ctx, End{Cause: NotStarted, Exit: statusFailed, Error: err.Error()})
		}
	}
	w, err := g.start()
	if err != nil {
		return statusOf(err), g.finish(ctx, End{Cause: NotStarted, Exit: statusOf(err), Error: err.Error()})
	}
	if err := g.out.write(kindStarted, nil); err != nil {
		g.stop(HostGone)
	}
	var helpers sync.WaitGroup
	helpers.Go(func() { g.watch(signals) })
	go g.listen(w.input) // ends with the launcher's line, which may outlive the work
	end := w.wait(g)
	close(g.over)
	helpers.Wait()
	return end.Exit, g.finish(ctx, end)
}

// finish reports the end, sends the files and waits to be let go.
func (g *guest) finish(ctx context.Context, end End) error {
	if err := g.send(kindEnd, end); err != nil {
		return err
	}
	var done Done
	if g.spec.Export && end.Cause != HostGone {
		done = g.export(ctx)
	}
	if err := g.send(kindDone, done); err != nil {
		return err
	}
	if end.Cause == NotStarted {
		go g.listen(nil) // nobody does yet
	}
	g.leave()
	return nil
}

// leave waits for the launcher's goodbye: until it has read the sandbox's
// counters they must not vanish with it, and what the engine has not begun to
// read when a container ends is lost on its way.
func (g *guest) leave() {
	t := time.NewTimer(time.Minute)
	defer t.Stop()
	select {
	case <-g.bye:
	case <-t.C: // the launcher is stuck; it makes sure of us by other means
	}
}

func (g *guest) send(k kind, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return g.out.write(k, data)
}

// watch ends the work when its time is up or when somebody asks for it.
func (g *guest) watch(signals <-chan os.Signal) {
	deadline := time.NewTimer(g.spec.Deadline)
	defer deadline.Stop()
	var grace <-chan time.Time
	for {
		select {
		case <-g.over:
			return
		case <-deadline.C:
			grace = g.terminate(TimedOut, grace)
		case <-signals:
			grace = g.terminate(Terminated, grace)
		case <-grace:
			killAll(unix.SIGKILL)
		}
	}
}

// terminate asks every process to end, and gives them a while.
func (g *guest) terminate(c Cause, grace <-chan time.Time) <-chan time.Time {
	g.because(c)
	killAll(unix.SIGTERM)
	if grace != nil {
		return grace
	}
	return time.After(g.spec.Grace)
}

// stop ends the work at once.
func (g *guest) stop(c Cause) {
	g.because(c)
	killAll(unix.SIGKILL)
}

func (g *guest) because(c Cause) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cause == "" {
		g.cause = c
	}
}

// killAll signals every process of the sandbox but this one (kill(2), -1). The
// kernel walks all of them under one lock: a fork bomb does not outrun it.
func killAll(s unix.Signal) {
	_ = unix.Kill(-1, s) // ESRCH: there is none
}

// listen serves the launcher's frames until it says goodbye or hangs up. input
// may be nil. It never blocks on the work: what is in flight of standard input
// is bounded by credit, so that a launcher's end is seen at once.
func (g *guest) listen(input *inputQueue) {
	defer close(g.bye)
	for {
		f, err := g.in.next()
		if err != nil {
			g.hangUp()
			return
		}
		switch f.kind {
		case kindBye:
			g.hangUp()
			return
		case kindInput:
			err = input.put(f.data)
		case kindInputEnd:
			err = input.end()
		default:
			err = fmt.Errorf("frame %d is not expected", f.kind)
		}
		if err != nil {
			g.hangUp()
			return
		}
	}
}

// hangUp kills the work if there is any: nobody listens to it.
func (g *guest) hangUp() {
	select {
	case <-g.over:
	default:
		g.stop(HostGone)
	}
}
