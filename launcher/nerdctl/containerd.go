package nerdctl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Containerd is the private containerd of an instance.
type Containerd struct {
	// Socket that it listens on.
	Socket string

	runtime string    // the runtime's directory for the instance
	cmd     *exec.Cmd // nil if it was there already
	done    chan struct{}
	err     error // read after done
}

// readyTimeout bounds a start: a cold one reads its database first.
const readyTimeout = 60 * time.Second

// unwanted are parts of containerd that have no work here. The fewer listen,
// parse and watch, the better.
var unwanted = []string{
	"io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
	"io.containerd.podsandbox.controller.v1.podsandbox", "io.containerd.nri.v1.nri",
	"io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
	"io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
	"io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs",
	"io.containerd.internal.v1.opt", "io.containerd.image-verifier.v1.bindir",
	// It starts stopped containers again, and logs through any program, as labels
	// of theirs say; an image may have labels of its own.
	"io.containerd.monitor.container.v1.restart",
}

func (c *Config) containerdConfig() string {
	var b strings.Builder
	fmt.Fprintf(&b, "version = 3\nroot = %q\nstate = %q\n", filepath.Join(c.StateDir, "containerd"), filepath.Join(c.RunDir, "containerd"))
	fmt.Fprintf(&b, "disabled_plugins = [\"%s\"]\n", strings.Join(unwanted, `", "`))
	fmt.Fprintf(&b, "[grpc]\n  address = %q\n[ttrpc]\n  address = %q\n", c.socket(), c.socket()+".ttrpc")
	return b.String()
}

// StartContainerd starts the instance's containerd, or finds it running, and
// returns when it answers. It ends when this program does.
func StartContainerd(ctx context.Context, cfg Config) (*Containerd, error) {
	e, err := New(cfg)
	if err != nil {
		return nil, err
	}
	c := &Containerd{Socket: cfg.socket(), runtime: filepath.Join(runcDir, cfg.Instance), done: make(chan struct{})}
	if e.Ready(ctx) == nil {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := c.start(ctx, &cfg); err != nil {
		return nil, fmt.Errorf("starting containerd: %w", err)
	}
	if err := e.Ready(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("starting containerd: %w", err), c.Stop(ctx))
	}
	return c, nil
}

func (c *Containerd) start(ctx context.Context, cfg *Config) error {
	for _, dir := range []string{cfg.RunDir, cfg.StateDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	path := filepath.Join(cfg.RunDir, "containerd.toml")
	if err := os.WriteFile(path, []byte(cfg.containerdConfig()), 0o600); err != nil {
		return err
	}
	logFile, err := os.OpenFile(filepath.Join(cfg.StateDir, "containerd.log"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close()
	notify, err := listenNotify(filepath.Join(cfg.RunDir, "containerd.notify"))
	if err != nil {
		return err
	}
	defer func() { _ = notify.Close() }()                                               // again, if it ended
	c.cmd = exec.Command(cfg.Tools.Containerd, "--config", path, "--log-level", "warn") //nolint:noctx // Stop ends it, in its own way
	c.cmd.Env = cfg.environ("NOTIFY_SOCKET=" + notify.LocalAddr().String())
	c.cmd.Stdout, c.cmd.Stderr = logFile, logFile
	err = startTied(c.cmd, syscall.SIGTERM, func(err error) {
		c.err = err
		close(c.done)
		_ = notify.Close() // whoever waits to hear that it is ready
	})
	if err != nil {
		return err
	}
	if err := waitReady(ctx, notify); err != nil {
		return errors.Join(err, c.failure(ctx, logFile.Name()))
	}
	return nil
}

// listenNotify opens the socket on which containerd says that it is ready (sd_notify(3)).
func listenNotify(path string) (*net.UnixConn, error) {
	if err := remove(path); err != nil {
		return nil, err
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	return conn, os.Chmod(path, 0o600)
}

func waitReady(ctx context.Context, notify *net.UnixConn) error {
	defer context.AfterFunc(ctx, func() { _ = notify.Close() })()
	buf := make([]byte, 4096)
	for {
		n, err := notify.Read(buf)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return errors.New("it ended before it was ready")
		}
		for line := range strings.Lines(string(buf[:n])) {
			if strings.TrimSpace(line) == "READY=1" {
				return nil
			}
		}
	}
}

// failure stops a containerd that did not become ready, and says why it did not.
func (c *Containerd) failure(ctx context.Context, logFile string) error {
	err := c.Stop(context.WithoutCancel(ctx))
	data, readErr := os.ReadFile(logFile)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return errors.Join(err, fmt.Errorf("the last line of %s is %q", logFile, lines[len(lines)-1]))
}

// Done is closed when a containerd that was started here has ended.
func (c *Containerd) Done() <-chan struct{} { return c.done }

// Stop ends a containerd that was started here. Its containers survive it: they
// are to be removed before.
func (c *Containerd) Stop(ctx context.Context) error {
	if c.cmd == nil {
		return nil
	}
	_ = c.cmd.Process.Signal(unix.SIGTERM) // it has ended
	grace := time.NewTimer(10 * time.Second)
	defer grace.Stop()
	select {
	case <-c.done:
		return c.removeRuntimeDir()
	case <-ctx.Done():
	case <-grace.C:
	}
	_ = c.cmd.Process.Kill()
	<-c.done
	return errors.Join(errors.New("stopping containerd: it had to be killed"), c.removeRuntimeDir())
}

// runcDir is where containerd's shim has runc keep its state, a directory for each
// namespace. It is compiled in.
const runcDir = "/run/containerd/runc"

// removeRuntimeDir removes what runc keeps for an instance beyond its containers:
// an empty network namespace, mounted on a file (seen with 1.5). With a container
// there it is left alone.
func (c *Containerd) removeRuntimeDir() error {
	entries, err := os.ReadDir(c.runtime)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stopping containerd: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			return nil
		}
	}
	for _, e := range entries {
		path := filepath.Join(c.runtime, e.Name())
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: not mounted
			return fmt.Errorf("stopping containerd: unmounting %s: %w", path, err)
		}
		if err := remove(path); err != nil {
			return fmt.Errorf("stopping containerd: %w", err)
		}
	}
	return remove(c.runtime)
}
