// Package nerdctl drives the container engine: nerdctl as a program, and the
// private containerd that it talks to.
//
// It trusts the tools and the directories that it is given, both root's. It does
// not trust an image, nor anything that a sandbox puts out: what nerdctl prints
// is read as strict, bounded JSON, and decisions are taken by exit status, never
// by text. What the sandbox is to run is not among its arguments at all: it goes
// to the guest over standard input.
//
// It never shares an image store, a socket or a configuration with an engine of
// the host, never pulls, never gives a container a network that it was not
// given by path, and has no way to spell privileged, an added capability, a
// writable mount or the host's namespaces.
package nerdctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Tools are absolute paths of the programs.
type Tools struct {
	Nerdctl    string
	Containerd string // with containerd-shim-runc-v2 beside it or on Path
	Runc       string
	Runsc      string // may be empty: then there is no hardened isolation
	// Path are directories that containerd and nerdctl find their helpers in,
	// ahead of the usual ones. The tools' own directories need not be named.
	Path []string
}

// Config is what an Engine needs; Instance, the directories and Tools are required.
type Config struct {
	// Instance names the containerd namespace and labels what is made.
	Instance string
	RunDir   string // holds the socket; its path must be short (unix(7))
	StateDir string // holds images and containers
	Tools    Tools
}

// Label names of the containers of an instance, and of the cell of each.
const (
	LabelInstance = "sallyport.instance"
	LabelCell     = "sallyport.cell"
	LabelRun      = "sallyport.run"
)

// CellVariable names the cell in the environment of the nerdctl that runs it,
// so that one whose launcher died can be found.
const CellVariable = "SALLYPORT_LAUNCHER_CELL"

// Engine drives one instance's containers. It is safe for use by many goroutines.
type Engine struct {
	cfg Config
}

var (
	// ErrNoImage says that an image is not in the store.
	ErrNoImage = errors.New("no such image")
	// ErrNoEngine says that containerd does not answer.
	ErrNoEngine = errors.New("containerd does not answer")
)

// commandTimeout bounds every nerdctl that does not run a sandbox.
const commandTimeout = 2 * time.Minute

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]*$`)

func plainName(s string) bool { return len(s) <= 76 && namePattern.MatchString(s) }

// plainPath is a path that no option of nerdctl reads anything else into.
var plainPath = regexp.MustCompile(`^/[A-Za-z0-9/._+@=~-]*$`)

// maxSocket is what sun_path holds, without the ".ttrpc" that containerd adds.
const maxSocket = 107 - len(".ttrpc")

// New returns an Engine. Nothing is started or looked at yet.
func New(cfg Config) (*Engine, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("setting up the container engine: %w", err)
	}
	return &Engine{cfg}, nil
}

func (c *Config) check() error {
	if !plainName(c.Instance) {
		return fmt.Errorf("instance %q: want lower-case letters, digits and dashes", c.Instance)
	}
	for _, path := range []string{c.RunDir, c.StateDir, c.Tools.Nerdctl, c.Tools.Containerd, c.Tools.Runc} {
		if !plainPath.MatchString(path) || filepath.Clean(path) != path {
			return fmt.Errorf("path %q: want an absolute path of letters, digits and ._+@=~-", path)
		}
	}
	if n := len(c.socket()); n > maxSocket {
		return fmt.Errorf("socket %q has %d characters, at most %d work: use a shorter run directory", c.socket(), n, maxSocket)
	}
	return nil
}

func (c *Config) socket() string { return filepath.Join(c.RunDir, "containerd.sock") }

// dataRoot is nerdctl's own.
func (c *Config) dataRoot() string { return filepath.Join(c.StateDir, "nerdctl") }

// environ is all that containerd and nerdctl see: no proxy, no locale and no
// setting of whoever started us changes what they do or print.
func (c *Config) environ(extra ...string) []string {
	var dirs []string
	for _, d := range append(slices.Clone(c.Tools.Path), filepath.Dir(c.Tools.Nerdctl),
		filepath.Dir(c.Tools.Containerd), filepath.Dir(c.Tools.Runc), "/usr/local/sbin", "/usr/local/bin",
		"/usr/sbin", "/usr/bin", "/sbin", "/bin") {
		if !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	return append([]string{
		"PATH=" + strings.Join(dirs, ":"),
		"HOME=" + c.StateDir,
		"LC_ALL=C",
		"TZ=UTC",
		"NERDCTL_TOML=" + os.DevNull, // not the host's nerdctl.toml
	}, extra...)
}

// global are the options that keep nerdctl to this instance.
func (c *Config) global() []string {
	none := filepath.Join(c.dataRoot(), "none") // no registry's, no network's configuration
	return []string{
		"--address", c.socket(), "--namespace", c.Instance, "--data-root", c.dataRoot(),
		"--cgroup-manager", "cgroupfs", "--snapshotter", "overlayfs",
		"--hosts-dir", none, "--cni-path", none, "--cni-netconfpath", none,
	}
}

// call runs nerdctl and returns what it printed.
func (e *Engine) call(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.cfg.Tools.Nerdctl, append(e.cfg.global(), args...)...)
	cmd.Env = e.cfg.environ()
	cmd.WaitDelay = time.Second
	stdout, stderr := &bounded{limit: 8 << 20}, &bounded{limit: 4 << 10}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case err == nil && stdout.cut:
		err = errors.New("it printed too much")
	case err != nil:
		err = withStderr(err, stderr)
	}
	if err != nil {
		if down := e.Ready(ctx); down != nil {
			return nil, down
		}
		return nil, fmt.Errorf("nerdctl %s: %w", args[0], err)
	}
	return stdout.buf.Bytes(), nil
}

// noise is what nerdctl says of a container that ended before it was looked at.
const noise = "forward signal child exited"

// withStderr adds the last line of what a program said to its exit status, for
// people to read.
func withStderr(err error, stderr *bounded) error {
	lines := strings.Split(strings.TrimSpace(stderr.buf.String()), "\n")
	for _, line := range slices.Backward(lines) {
		if line != "" && !strings.Contains(line, noise) {
			return fmt.Errorf("%w: %q", err, line)
		}
	}
	return err
}

// bounded keeps the start of what is written and drops the rest.
type bounded struct {
	buf   bytes.Buffer
	limit int
	cut   bool
}

func (b *bounded) Write(p []byte) (int, error) {
	keep := min(len(p), b.limit-b.buf.Len())
	b.cut = b.cut || keep < len(p)
	b.buf.Write(p[:keep])
	return len(p), nil
}

// Ready says whether containerd answers.
func (e *Engine) Ready(ctx context.Context) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", e.cfg.socket())
	if err != nil {
		return fmt.Errorf("%w at %s: is `sallyport up` running? (%w)", ErrNoEngine, e.cfg.socket(), err)
	}
	return conn.Close()
}

// decode reads one JSON value. nerdctl's answers have fields that are of no
// interest here, so unknown ones are let be; two values or none are not.
func decode(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(v); err != nil {
		return err
	}
	if dec.More() {
		return errors.New("something follows the value")
	}
	return nil
}
