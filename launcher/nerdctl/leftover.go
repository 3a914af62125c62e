package nerdctl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fifoDir is where containerd's clients put the pipes of a container's streams.
// It is compiled into nerdctl, which makes a directory there for each run in the
// foreground and does not remove it (seen with 2.0.5).
const fifoDir = "/run/containerd/fifo"

// RemoveCell removes all that may be left of a cell's container, at whatever
// step its launcher died: the nerdctl that was at work, containers with the
// cell's label, and the files of one that never came to be. cidFile may be
// missing. The container's name is the one that it was to be started with.
func (e *Engine) RemoveCell(ctx context.Context, cell, name, cidFile string) error {
	if err := killClients(cell); err != nil {
		return err
	}
	found, err := e.List(ctx)
	if err != nil {
		return err
	}
	var ids []string
	for _, f := range found {
		if f.Cell == cell {
			ids = append(ids, f.ID)
		}
	}
	for _, path := range append(e.nameFiles(name), cidFile) {
		if data, err := os.ReadFile(path); err == nil && containerID(string(data)) && !slices.Contains(ids, string(data)) {
			ids = append(ids, string(data))
		}
	}
	var errs []error
	for _, id := range ids {
		errs = append(errs, e.Remove(ctx, id))
	}
	for _, path := range e.nameFiles(name) {
		errs = append(errs, remove(path))
	}
	return errors.Join(errs...)
}

// Gone says whether nothing is left of a container that nerdctl was to remove
// itself. It asks nobody, so it takes no time.
func (e *Engine) Gone(name, id string) bool {
	if len(e.nameFiles(name)) > 0 {
		return false
	}
	return id == "" || len(e.files(id)) == 0
}

// Sweep removes what a finished run's nerdctl leaves behind.
func (e *Engine) Sweep(id string) error {
	if !containerID(id) {
		return nil // it never had one
	}
	return e.sweep(id)
}

// SweepAll removes the files of every container that does not exist. No
// container may be in the making meanwhile.
func (e *Engine) SweepAll(ctx context.Context) error {
	found, err := e.List(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range e.files("*") {
		id := filepath.Base(path)
		known := slices.ContainsFunc(found, func(f Found) bool { return f.ID == id })
		if containerID(id) && !known {
			errs = append(errs, e.sweep(id))
		}
	}
	return errors.Join(append(errs, e.killShims(found))...)
}

// killShims ends the shims of containers that do not exist. A shim outlives its
// containerd; one whose container goes while that is dead is told to end by nobody.
func (e *Engine) killShims(found []Found) error {
	return eachProcess(func(pidfd int, dir string) error {
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			return nil //nolint:nilerr // it has ended
		}
		args := strings.Split(string(cmdline), "\x00")
		id := after(args, "-id")
		if !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim-") || !containerID(id) ||
			after(args, "-namespace") != e.cfg.Instance || after(args, "-address") != e.cfg.socket() ||
			slices.ContainsFunc(found, func(f Found) bool { return f.ID == id }) {
			return nil
		}
		return killAndWait(pidfd)
	})
}

// after is what follows a flag, "" if nothing does.
func after(args []string, flag string) string {
	if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// files are the directories that nerdctl keeps for a container.
func (e *Engine) files(id string) []string {
	var out []string
	for _, kind := range []string{"containers", "etchosts"} {
		out = append(out, glob(filepath.Join(e.cfg.dataRoot(), "*", kind, e.cfg.Instance, id))...)
	}
	return out
}

// nameFiles say which container has a name.
func (e *Engine) nameFiles(name string) []string {
	if !plainName(name) {
		return nil
	}
	return append(glob(filepath.Join(e.cfg.dataRoot(), "*", e.cfg.Instance, name)),
		glob(filepath.Join(e.cfg.dataRoot(), "*", "names", e.cfg.Instance, name))...)
}

func (e *Engine) sweep(id string) error {
	var errs []error
	for _, path := range e.files(id) {
		errs = append(errs, os.RemoveAll(path))
	}
	for _, path := range glob(filepath.Join(fifoDir, "*", id+"-std*")) {
		errs = append(errs, remove(path))
		// Not empty if another stream of it is still there: its turn comes.
		_ = os.Remove(filepath.Dir(path)) //nolint:gosec // found below fifoDir
	}
	// What runsc leaves when it is killed while it makes a sandbox: a state
	// file, its lock, and the socket of a sandbox that never came to be.
	for _, pattern := range []string{id + "_sandbox:*", "runsc-" + id + ".sock"} {
		for _, path := range glob(filepath.Join(runcRoot, e.cfg.Instance, pattern)) {
			errs = append(errs, remove(path))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("removing the files of container %.12s: %w", id, err)
	}
	return nil
}

// runcRoot is where the runc shim has a runtime keep its state, by namespace.
const runcRoot = "/run/containerd/runc"

func glob(pattern string) []string {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		panic("nerdctl: bad pattern " + pattern)
	}
	return paths
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { //nolint:gosec // ours, or found in a directory of ours
		return err
	}
	return nil
}

// killClients ends every nerdctl that was started for a cell, and waits for it.
func killClients(cell string) error {
	want := "\x00" + CellVariable + "=" + cell + "\x00"
	return eachProcess(func(pidfd int, dir string) error {
		environ, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !strings.Contains("\x00"+string(environ), want) {
			return nil //nolint:nilerr // it has ended
		}
		return killAndWait(pidfd)
	})
}

// eachProcess calls f with every other process and its directory of /proc.
func eachProcess(f func(pidfd int, dir string) error) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// The descriptor first: what is read then is of the process that it names.
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		errs = append(errs, f(fd, filepath.Join("/proc", entry.Name())))
		_ = unix.Close(fd)
	}
	return errors.Join(errs...)
}

func killAndWait(pidfd int) error {
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		return fmt.Errorf("ending a leftover process: %w", err)
	}
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 5000)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("ending a leftover process: %w", err)
		case n == 0:
			return errors.New("ending a leftover process: it does not die")
		default:
			return nil
		}
	}
}
