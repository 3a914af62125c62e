// Package launcher runs untrusted work: it makes a cell and a sandbox in it, has
// the guest do the work, says what came of it, and takes everything down again.
//
// A run is a list of named steps. Each has its undo noted, and is written to the
// run's journal, before it is taken; so whatever way a run ends, what was made
// is undone in reverse, and what a killed launcher left is found by
// [Launcher.Reconcile]. A lock on the journal, held by the living process, tells
// the two apart.
//
// It trusts root, the kernel and the engine's tools. It trusts neither the image
// nor anything that comes out of the sandbox. It never makes anything before the
// gateway has answered, never starts a container before the gateway has attached
// its cell and the log has its run.start, and has no option for the host's
// network, a privilege, a capability or a mount.
package launcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"sallyport/audit"
	"sallyport/control"
	"sallyport/launcher/cell"
	"sallyport/launcher/nerdctl"
)

// Network makes and removes cells; [cell.Network] is one. Its methods may be
// called at once, from several processes. Remove of a cell that is not there, or
// only half, is no error.
type Network interface {
	Create(ctx context.Context, id string, index int) (cell.Cell, error)
	Remove(ctx context.Context, id string) error
	// Cells names every cell of which there is a trace.
	Cells(ctx context.Context) ([]string, error)
	Counters(ctx context.Context, id string) (cell.Bypass, error)
	// Watch returns nil when ctx ends, and an error once the cell has another way than
	// Create made, or cannot be watched.
	Watch(ctx context.Context, c cell.Cell) error
}

// Gateway is what the launcher asks of the gateway. Every field is required.
type Gateway struct {
	// Ready says whether it answers. A run is refused before anything is made if not.
	Ready func(ctx context.Context) error
	// Attach has it serve a cell whose file has been written, and returns once it does.
	Attach func(ctx context.Context, cell string) error
	// Reload has it put the policy in force that a cell's file names by now, in
	// place of the one before. On an error the one before stays.
	Reload func(ctx context.Context, cell string) error
	// Detach cuts every flow of a cell and forgets it. An unknown cell is no error.
	Detach func(ctx context.Context, cell string) error
	// Record appends to the log. An error means that it must be taken as not written.
	Record func(ctx context.Context, r audit.Record) error
	// Denials returns what was refused to a run, also if the gateway has begun
	// again meanwhile, or the run is detached.
	Denials func(ctx context.Context, run string) (Denials, error)
}

// Denials is what was refused to a run.
type Denials struct {
	Last  []Denial // lately
	Count int      // in all
	// More says that there may be more than Count: requests that could not be
	// recorded, of a gateway that was killed.
	More bool
}

// Denial is a request that policy refused.
type Denial struct {
	Record string    `json:"record"` // id in the log
	Time   time.Time `json:"time"`
	Reason string    `json:"reason"`
	What   string    `json:"what"` // sandbox-controlled, bounded and made printable by the log
}

// Broker is what the launcher asks of the broker. Every field is required.
type Broker struct {
	// Grants gives a run the use of credentials, by name.
	Grants func(ctx context.Context, cell, run string, credentials []string) ([]control.Grant, error)
	// Revoke takes all of a cell's grants back. An unknown cell is no error.
	Revoke func(ctx context.Context, cell string) error
}

// Config is what a Launcher needs; every field without a default is required.
type Config struct {
	Instance string // as of the engine
	RunDir   string // with cells/, policies/ and runs/ of the instance
	StateDir string // with cells/ (journals) and images/

	Network Network
	Engine  *nerdctl.Engine
	Gateway Gateway
	Broker  Broker

	// Group may read cell files and policies: the daemons'.
	Group int
	// CA is the certificate that the gateway's are signed with, in PEM.
	CA []byte
	// Guest is the path of the static program that is process 1 of a sandbox;
	// GuestArgs have it call guest.Main. Default "guest".
	Guest     string
	GuestArgs []string
	// ExplicitPort is the proxy's. Default 3128.
	ExplicitPort uint16
	// Cells is how many indices there are. Default 4096, a /16 of /28s.
	Cells int

	Now func() time.Time
	Log *slog.Logger
	// Progress is told of each step before it is taken. It may be nil.
	Progress func(step string)
}

// Launcher is safe for use by many goroutines, and several processes may each
// have one for the same instance.
type Launcher struct {
	cfg Config
}

// cleanTimeout bounds each undo: a run that was cancelled must not hang.
const cleanTimeout = 30 * time.Second

// settleTime is how much longer a call to a daemon is waited for once its run is cancelled.
const settleTime = 5 * time.Second

// settled makes a call that changes something elsewhere. If ctx ends meanwhile its answer
// is awaited all the same, for settleTime: given up midway, it could be done only after
// what undoes it.
func settled(ctx context.Context, call func(context.Context) error) error {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(settleTime, cancel) })()
	return call(own)
}

// New returns a Launcher and makes its directories. It refuses an incomplete Config.
func New(cfg Config) (*Launcher, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("setting up the launcher: %w", err)
	}
	if cfg.ExplicitPort == 0 {
		cfg.ExplicitPort = 3128
	}
	if cfg.Cells == 0 {
		cfg.Cells = 4096
	}
	if len(cfg.GuestArgs) == 0 {
		cfg.GuestArgs = []string{"guest"}
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	l := &Launcher{cfg}
	for _, d := range []struct {
		path string
		mode os.FileMode
		gid  int
	}{
		{l.cellsDir(), 0o750, cfg.Group},
		{l.policiesDir(), 0o750, cfg.Group},
		{l.runsDir(), 0o700, 0},
		{l.journalDir(), 0o700, 0},
		{l.imagesDir(), 0o700, 0},
	} {
		if err := makeDir(d.path, d.mode, d.gid); err != nil {
			return nil, fmt.Errorf("setting up the launcher: %w", err)
		}
	}
	return l, nil
}

func (c *Config) check() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New(what+" is required"))
		}
	}
	need(c.Instance != "" && filepath.IsAbs(c.RunDir) && filepath.IsAbs(c.StateDir), "an instance with absolute directories")
	need(c.Network != nil && c.Engine != nil, "a network and an engine")
	g, b := c.Gateway, c.Broker
	need(g.Ready != nil && g.Attach != nil && g.Reload != nil && g.Detach != nil && g.Record != nil && g.Denials != nil, "all of the gateway")
	need(b.Grants != nil && b.Revoke != nil, "all of the broker")
	need(filepath.IsAbs(c.Guest), "an absolute path of the guest")
	need(c.Now != nil && c.Log != nil, "a clock and a log")
	if _, err := certificates(c.CA); err != nil {
		errs = append(errs, fmt.Errorf("the CA: %w", err))
	}
	return errors.Join(errs...)
}

// makeDir makes a directory, or mends one that is there.
func makeDir(path string, mode os.FileMode, gid int) error {
	if err := os.MkdirAll(path, mode); err != nil {
		return err
	}
	return errors.Join(os.Chown(path, 0, gid), os.Chmod(path, mode))
}

func (l *Launcher) cellsDir() string    { return filepath.Join(l.cfg.RunDir, "cells") }
func (l *Launcher) policiesDir() string { return filepath.Join(l.cfg.RunDir, "policies") }
func (l *Launcher) runsDir() string     { return filepath.Join(l.cfg.RunDir, "runs") }
func (l *Launcher) journalDir() string  { return filepath.Join(l.cfg.StateDir, "cells") }
func (l *Launcher) imagesDir() string   { return filepath.Join(l.cfg.StateDir, "images") }

// runDir holds what is mounted into a cell's sandbox.
func (l *Launcher) runDir(id string) string { return filepath.Join(l.runsDir(), id) }

// cgroup is the parent of a cell's containers, in every hierarchy. It outlives
// the container's own, so that its counters can still be read.
func (l *Launcher) cgroup(id string) string { return "/" + l.cfg.Instance + "-" + id }
