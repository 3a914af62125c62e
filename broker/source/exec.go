package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"sallyport/broker/secret"
)

const (
	execTimeout = 10 * time.Second
	// execKeep is how long an answer is used before the command is run again:
	// a helper that takes a second must not be part of every request.
	execKeep = time.Minute
	// execPath is all the environment that a command gets.
	execPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// command runs a helper that prints the secret. One run serves all who wait;
// its answer is kept for execKeep, and never longer, whatever the next run says.
type command struct {
	argv []string
	now  func() time.Time

	turn chan struct{} // holds one token: who has it may run the command

	mu    sync.Mutex // guards kept and until
	kept  []byte
	until time.Time
}

func newExec(argv []string, cfg Config) (Source, error) {
	if !filepath.IsAbs(argv[0]) {
		return nil, fmt.Errorf("source exec %q: write the absolute path of the command", argv[0])
	}
	if cfg.Now == nil {
		return nil, errors.New("source exec: no clock")
	}
	c := &command{argv: argv, now: cfg.Now, turn: make(chan struct{}, 1)}
	c.turn <- struct{}{}
	return c, nil
}

func (c *command) String() string { return "exec " + c.argv[0] }

func (c *command) Get(ctx context.Context) (secret.Value, error) {
	if v, ok := c.fresh(); ok {
		return v, nil
	}
	select {
	case <-c.turn:
		defer func() { c.turn <- struct{}{} }()
	case <-ctx.Done():
		return secret.Value{}, fmt.Errorf("waiting for %s: %w", c, context.Cause(ctx))
	}
	if v, ok := c.fresh(); ok { // the one before us ran it
		return v, nil
	}
	b, err := c.run(ctx)
	if err != nil {
		return secret.Value{}, fmt.Errorf("running %s: %w", c, err)
	}
	v, err := finish(b)
	if err != nil {
		return secret.Value{}, fmt.Errorf("running %s: its output: %w", c, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.kept)
	c.kept, c.until = bytes.Clone(v.Reveal()), c.now().Add(execKeep)
	return v, nil
}

// fresh returns a copy of an answer that is not too old, for the caller to wipe.
func (c *command) fresh() (secret.Value, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil || !c.now().Before(c.until) {
		clear(c.kept)
		c.kept = nil
		return secret.Value{}, false
	}
	return secret.New(bytes.Clone(c.kept)), true
}

// run returns what the command printed. Its standard error is dropped: helpers
// are known to print secrets there.
func (c *command) run(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, execTimeout, fmt.Errorf("it took longer than %v", execTimeout))
	defer cancel()
	out := &bounded{}
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout = []string{execPath}, "/", out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // its children too
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case out.over:
		err = fmt.Errorf("it printed more than %d octets", MaxLen)
	case errors.As(err, &exit):
		err = fmt.Errorf("it ended with %v", exit.ProcessState)
	}
	if err != nil {
		clear(out.b)
		return nil, err
	}
	return out.b, nil
}

// bounded takes what fits and remembers that there was more.
type bounded struct {
	b    []byte
	over bool
}

func (w *bounded) Write(p []byte) (int, error) {
	if w.b == nil {
		w.b = make([]byte, 0, MaxLen+2)
	}
	if len(w.b)+len(p) > cap(w.b) {
		w.over = true
		return len(p), nil // read on, so that the command can end
	}
	w.b = append(w.b, p...)
	return len(p), nil
}
