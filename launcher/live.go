package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Live is a run whose launcher is at work.
type Live struct {
	Cell    string    `json:"cell"`
	Run     string    `json:"run"`
	PID     int       `json:"pid"` // of the launcher; SIGTERM has it end the run
	Step    string    `json:"step"`
	Created time.Time `json:"created"`
}

// Live returns the runs of all launchers of the instance that are at work.
func (l *Launcher) Live() ([]Live, error) {
	ids, err := l.journals()
	if err != nil {
		return nil, fmt.Errorf("listing runs: %w", err)
	}
	var out []Live
	var errs []error
	for _, id := range ids {
		j, err := l.readJournal(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has not begun, or is over
		}
		var live bool
		if err == nil {
			live, err = l.isLive(id)
		}
		errs = append(errs, err)
		if live {
			out = append(out, Live{Cell: id, Run: j.Run, PID: j.PID, Step: j.Step, Created: j.Created})
		}
	}
	if err := errors.Join(errs...); err != nil {
		return out, fmt.Errorf("listing runs: %w", err)
	}
	return out, nil
}

// Dead reports whether there is a run whose launcher is gone, so that Reconcile
// has something to do. It looks at files alone, so it can be asked often.
func (l *Launcher) Dead() (bool, error) {
	ids, err := l.journals()
	if err != nil {
		return false, fmt.Errorf("listing runs: %w", err)
	}
	for _, id := range ids {
		_, err := os.Stat(l.journalPath(id))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has not begun, or is over
		}
		if err != nil {
			return false, fmt.Errorf("listing runs: %w", err)
		}
		if live, err := l.isLive(id); err != nil || !live {
			return err == nil, err
		}
	}
	return false, nil
}

// isLive tries the lock of a cell, without taking it from anybody who has it.
func (l *Launcher) isLive(id string) (bool, error) {
	f, err := os.Open(l.lockPath(id))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// WaitIdle waits until no launcher that is at work now is any more, however each
// of them ends.
func (l *Launcher) WaitIdle(ctx context.Context) error {
	live, err := l.Live()
	if err != nil {
		return err
	}
	for _, run := range live {
		f, err := os.Open(l.lockPath(run.Cell))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			if err = waitLock(ctx, f, unix.LOCK_SH); err == nil {
				err = f.Close()
			}
		}
		if err != nil {
			return fmt.Errorf("waiting for the run in cell %s: %w", run.Cell, err)
		}
	}
	return nil
}
