package source

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"sallyport/broker/secret"
)

const (
	execTimeout = 10 * time.Second
	// execPath is all the environment that a command gets.
	execPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// command runs a helper that prints the secret.
type command struct {
	argv []string
	*timed
}

func newExec(argv []string, cfg Config) (Source, error) {
	if !filepath.IsAbs(argv[0]) {
		return nil, fmt.Errorf("source exec %q: write the absolute path of the command", argv[0])
	}
	c := &command{argv: argv}
	c.timed = newTimed(cfg.Now, c.run)
	return c, nil
}

func (c *command) String() string { return "exec " + c.argv[0] }

func (c *command) Get(ctx context.Context) (secret.Value, error) {
	v, err := c.get(ctx)
	if err != nil {
		return secret.Value{}, fmt.Errorf("running %s: %w", c, err)
	}
	return v, nil
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
