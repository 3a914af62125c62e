package nerdctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Container is all that can be said about one. What is not here it cannot have.
type Container struct {
	Name     string
	Hostname string
	Image    string // digest: see [Image.Digest]
	Netns    string // path of a network namespace; "" is a namespace with loopback only
	Cell     string
	Run      string
	User     string // uid:gid
	Hardened bool   // gVisor
	Command  []string

	Binds []Bind
	Tmpfs []Tmpfs

	Memory int64 // octets; there is no swap
	CPUs   float64
	PIDs   int
	NoFile int

	CgroupParent string // under every hierarchy's root
	CIDFile      string // gets the container's id; must not exist
	// TempDir is where nerdctl mounts the image while it makes the container. One
	// that is killed leaves the mount there.
	TempDir string
}

// Bind is a read-only bind mount.
type Bind struct{ Source, Target string }

// Tmpfs is a writable directory in memory, for everybody and with programs.
type Tmpfs struct {
	Target string
	Size   int64
}

var userPattern = regexp.MustCompile(`^[0-9]+:[0-9]+$`)

func (c *Container) check() error {
	switch {
	case !plainName(c.Name) || !plainName(c.Hostname) || len(c.Hostname) > 63:
		return fmt.Errorf("name %q, host name %q: want lower-case letters, digits and dashes", c.Name, c.Hostname)
	case !IsDigest(c.Image):
		return fmt.Errorf("image %q: want a digest", c.Image)
	case !userPattern.MatchString(c.User) || strings.HasPrefix(c.User, "0:"):
		return fmt.Errorf("user %q: want numbers uid:gid, and not root's", c.User)
	case c.Memory <= 0 || c.CPUs <= 0 || c.PIDs <= 0 || c.NoFile <= 0:
		return errors.New("limits of memory, CPUs, processes and open files are required")
	case len(c.Command) == 0:
		return errors.New("a command is required")
	}
	return c.checkPaths()
}

func (c *Container) checkPaths() error {
	paths := []string{c.CIDFile, c.TempDir, c.Command[0]}
	for _, p := range []string{c.Netns, c.CgroupParent} {
		if p != "" {
			paths = append(paths, p)
		}
	}
	for _, b := range c.Binds {
		paths = append(paths, b.Source, b.Target)
	}
	for _, t := range c.Tmpfs {
		paths = append(paths, t.Target)
		if t.Size <= 0 {
			return fmt.Errorf("tmpfs %s needs a size", t.Target)
		}
	}
	for _, p := range paths {
		if !plainPath.MatchString(p) || filepath.Clean(p) != p || p == "/" {
			return fmt.Errorf("path %q: want an absolute path of letters, digits and ._+@=~-", p)
		}
	}
	return nil
}

// args are those of nerdctl run. Options come before the image, which is a
// digest, and nothing after it is an option: the order is part of the defence
// (catalogue: CT-12).
func (e *Engine) args(c *Container) []string {
	a := []string{
		"run", "--rm", "--interactive", "--pull", "never", "--log-driver", "none",
		"--name", c.Name, "--hostname", c.Hostname, "--cidfile", c.CIDFile,
		"--label", LabelInstance + "=" + e.cfg.Instance, "--label", LabelCell + "=" + c.Cell, "--label", LabelRun + "=" + c.Run,
		"--ipc", "private", "--cgroupns", "private",
		"--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", c.User,
		"--memory", strconv.FormatInt(c.Memory, 10), "--memory-swap", strconv.FormatInt(c.Memory, 10),
		"--cpus", strconv.FormatFloat(c.CPUs, 'f', 3, 64), "--pids-limit", strconv.Itoa(c.PIDs),
		"--ulimit", fmt.Sprintf("nofile=%d:%d", c.NoFile, c.NoFile), "--ulimit", "core=0:0",
		"--workdir", "/", "--entrypoint", c.Command[0],
	}
	if c.Netns == "" {
		a = append(a, "--network", "none")
	} else {
		a = append(a, "--network", "ns:"+c.Netns)
	}
	if c.CgroupParent != "" {
		a = append(a, "--cgroup-parent", c.CgroupParent)
	}
	if c.Hardened {
		a = append(a, "--runtime", e.cfg.Tools.Runsc)
	}
	for _, b := range c.Binds {
		a = append(a, "--volume", b.Source+":"+b.Target+":ro")
	}
	for _, t := range c.Tmpfs {
		a = append(a, "--tmpfs", fmt.Sprintf("%s:rw,exec,nosuid,nodev,size=%d,mode=1777", t.Target, t.Size))
	}
	return append(append(a, c.Image), c.Command[1:]...)
}

// Process is a running nerdctl with a sandbox at the other end.
type Process struct {
	Stdin  io.WriteCloser
	Stdout io.Reader

	cmd    *exec.Cmd
	done   chan struct{} // closed when it has ended
	err    error         // read after done
	stderr *bounded
}

// Run starts a container in the foreground and removes it when it ends. The
// caller reads Stdout to its end and then waits.
func (e *Engine) Run(c *Container) (*Process, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("starting a container: %w", err)
	}
	if c.Hardened && e.cfg.Tools.Runsc == "" {
		return nil, errors.New("starting a container: hardened isolation needs gVisor's runsc: run `make setup-hardened`")
	}
	stdinR, stdinW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("starting a container: %w", err)
	}
	stdoutR, stdoutW, err := os.Pipe()
	if err != nil {
		stdinR.Close()
		stdinW.Close()
		return nil, fmt.Errorf("starting a container: %w", err)
	}
	p := &Process{Stdin: stdinW, Stdout: stdoutR, done: make(chan struct{}), stderr: &bounded{limit: 16 << 10}}
	p.cmd = exec.Command(e.cfg.Tools.Nerdctl, append(e.cfg.global(), e.args(c)...)...) //nolint:noctx // Stop ends it, in its own way
	p.cmd.Env = e.cfg.environ(CellVariable+"="+c.Cell, "TMPDIR="+c.TempDir)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = stdinR, stdoutW, p.stderr
	p.cmd.WaitDelay = time.Second
	err = startTied(p.cmd, syscall.SIGKILL, func(err error) {
		p.err = err
		close(p.done)
	})
	stdinR.Close()
	stdoutW.Close()
	if err != nil {
		stdinW.Close()
		stdoutR.Close()
		return nil, fmt.Errorf("starting a container: %w", err)
	}
	return p, nil
}

// startTied starts cmd in a process group of its own, so that a ^C at the
// terminal is ours to handle, and has the kernel send it sig should this program
// die. The kernel watches the thread that forked (prctl(2), PR_SET_PDEATHSIG),
// so that thread does nothing else until the child is gone.
func startTied(cmd *exec.Cmd, sig syscall.Signal, ended func(error)) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: sig}
		err := cmd.Start()
		started <- err
		if err == nil {
			ended(cmd.Wait())
		}
	}()
	return <-started
}

// Done is closed when nerdctl has ended, and its container with it.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says, once nerdctl has ended, how. A sandbox that ends with a status of
// its own makes it an *exec.ExitError as well.
func (p *Process) Err() error {
	<-p.done
	if p.err == nil {
		return nil
	}
	return withStderr(p.err, p.stderr)
}

// Stop ends nerdctl at once; its container has to be removed then.
func (p *Process) Stop() {
	_ = p.cmd.Process.Kill() // it has ended
	<-p.done
}

// Close gives up both ends of the line.
func (p *Process) Close() {
	_ = p.Stdin.Close()
	if c, ok := p.Stdout.(io.Closer); ok {
		_ = c.Close()
	}
}

// Found is a container that exists, running or not.
type Found struct {
	ID   string
	Cell string // of its label
}

func containerID(s string) bool { return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "" }

// List returns the containers of the instance.
func (e *Engine) List(ctx context.Context) ([]Found, error) {
	out, err := e.call(ctx, "ps", "--all", "--no-trunc", "--filter", "label="+LabelInstance+"="+e.cfg.Instance,
		"--format", `{{.ID}} {{.Label "`+LabelCell+`"}}`)
	if err != nil {
		return nil, err
	}
	var found []Found
	for line := range strings.Lines(string(out)) {
		id, cell, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !containerID(id) {
			return nil, fmt.Errorf("nerdctl ps: %q is not a container's id", id)
		}
		found = append(found, Found{id, cell})
	}
	return found, nil
}

// Remove kills and removes a container. One that is not there is no error.
func (e *Engine) Remove(ctx context.Context, id string) error {
	if !containerID(id) {
		return fmt.Errorf("removing a container: %q is not an id", id)
	}
	// Its exit status is 0 for one that is not there, and what it says is text.
	if _, err := e.call(ctx, "rm", "--force", "--volumes", id); err != nil {
		return err
	}
	return e.sweep(id)
}
