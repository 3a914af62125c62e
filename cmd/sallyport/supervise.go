package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	stopGrace  = 10 * time.Second // from SIGTERM to SIGKILL
	backoffMin = 50 * time.Millisecond
	backoffMax = 5 * time.Second
	steady     = 10 * time.Second // a daemon that ran this long starts again at once
)

// ownProgram names this program whatever directory it is in: the accounts of the daemons
// may not look into a home directory, as root's (proc_pid_exe(5)).
const ownProgram = "/proc/self/exe"

// thisProgram returns where this program is, and its mode. That some accounts may not run
// it is an error: the daemons have accounts of their own, and so has what is first in a
// sandbox.
func thisProgram() (path string, mode fs.FileMode, err error) {
	const readAndRun = 0o005
	if path, err = os.Executable(); err != nil {
		return "", 0, fmt.Errorf("finding this program: %w", err)
	}
	fi, err := os.Stat(ownProgram)
	if err != nil {
		return "", 0, fmt.Errorf("finding this program: %w", err)
	}
	if mode = fi.Mode(); mode&readAndRun != readAndRun {
		err = hint(fmt.Errorf("%s has the mode %s, and other accounts have to run it", path, mode), "chmod 0755 %s", quoteArgs([]string{path})[0])
	}
	return path, mode, err
}

// daemon is a child process that is kept running. Its descriptors stay open
// here, so that it can die and be started again while connection attempts wait
// in their queues.
type daemon struct {
	name  string
	args  []string
	env   []string   // beside PATH and LANG
	files []*os.File // descriptors 3 and up in the child
	who   account
	group []int // supplementary groups
	log   *slog.Logger
	out   io.Writer

	ended    chan struct{} // closed when the process has ended for the first time
	endedNow sync.Once
}

// keep runs the daemon until ctx ends, then stops it. It returns when the
// process is gone. What it starts dies with this process: parent-death signals
// follow the thread, so the thread is kept.
func (d *daemon) keep(ctx context.Context) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	backoff := backoffMin
	for ctx.Err() == nil {
		began := time.Now()
		err := d.once(ctx)
		d.endedNow.Do(func() { close(d.ended) })
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > steady {
			backoff = backoffMin
		}
		d.log.Error("a daemon ended and is started again", "daemon", d.name, "cause", err, "in", backoff)
		wait(ctx, backoff)
		backoff = min(2*backoff, backoffMax)
	}
}

// once starts the process and waits for its end.
func (d *daemon) once(ctx context.Context) error {
	self, _, err := thisProgram()
	if err != nil {
		return err
	}
	cmd := exec.Command(ownProgram, d.args...) //nolint:noctx // it is told to stop, and waited for
	cmd.Args[0] = self
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}, d.env...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = d.out, d.out
	cmd.ExtraFiles = d.files
	var groups []uint32
	for _, g := range d.group {
		groups = append(groups, uint32(g))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: uint32(d.who.uid), Gid: uint32(d.who.gid), Groups: groups},
		Pdeathsig:  syscall.SIGKILL,
		Setpgid:    true, // ^C is for the supervisor, which stops things in order
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the %s: %w", d.name, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	return errors.Join(cmd.Process.Signal(syscall.SIGTERM), waitOrKill(cmd.Process, ended))
}

func waitOrKill(p *os.Process, ended <-chan error) error {
	t := time.NewTimer(stopGrace)
	defer t.Stop()
	select {
	case err := <-ended:
		return err
	case <-t.C:
	}
	return errors.Join(p.Kill(), <-ended)
}

// wait returns after dur or when ctx ends.
func wait(ctx context.Context, dur time.Duration) {
	t := time.NewTimer(dur)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// group runs daemons and stops them in the reverse order of their start.
type group struct {
	stops []func()
}

// start keeps d running until the group stops.
func (g *group) start(ctx context.Context, d *daemon) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.keep(ctx)
	}()
	g.stops = append(g.stops, func() {
		cancel()
		<-done
	})
}

// onStop adds something to undo.
func (g *group) onStop(f func()) { g.stops = append(g.stops, f) }

func (g *group) stop() {
	for _, stop := range slices.Backward(g.stops) {
		stop()
	}
	g.stops = nil
}
