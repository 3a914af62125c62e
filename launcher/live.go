package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Live is a run whose launcher is at work.
type Live struct {
	Cell string
	PID  int // of the launcher; SIGTERM has it end the run and clean up
}

// Live lists the runs whose launchers are at work, in this process or another.
func (l *Launcher) Live() ([]Live, error) {
	ids, err := l.journals()
	if err != nil {
		return nil, err
	}
	var live []Live
	for _, id := range ids {
		pid, err := l.holder(id)
		if err != nil {
			return nil, err
		}
		if pid > 0 {
			live = append(live, Live{id, pid})
		}
	}
	return live, nil
}

// holder returns the process that holds a cell's lock, 0 if none does. A
// number in a file that nobody has locked is an old one.
func (l *Launcher) holder(id string) (int, error) {
	f, err := os.Open(l.lockPath(id))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
		return 0, nil
	}
	data := make([]byte, 32)
	n, _ := f.Read(data)
	pid, err := strconv.Atoi(strings.TrimSpace(string(data[:n])))
	if err != nil || pid < 2 {
		return 0, fmt.Errorf("%s is held by nobody knows whom: %q", l.lockPath(id), data[:n])
	}
	return pid, nil
}

// WaitIdle returns when no launcher is at work any more, or with ctx's error.
func (l *Launcher) WaitIdle(ctx context.Context) error {
	live, err := l.Live()
	if err != nil {
		return err
	}
	for _, r := range live {
		f, err := os.Open(l.lockPath(r.Cell))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := waitLock(ctx, f); err != nil {
			return fmt.Errorf("waiting for the launcher of cell %s (pid %d): %w", r.Cell, r.PID, err)
		}
	}
	return nil
}

// waitLock waits until nobody holds f's lock for itself. It takes f over.
func waitLock(ctx context.Context, f *os.File) error {
	got := make(chan error, 1)
	go func() {
		err := unix.Flock(int(f.Fd()), unix.LOCK_SH)
		_ = f.Close() // which gives the lock back
		got <- err
	}()
	select {
	case err := <-got:
		return err
	case <-ctx.Done():
		return ctx.Err() // the goroutine ends with the launcher that it waits for
	}
}
