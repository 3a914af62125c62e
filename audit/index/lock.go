package index

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockSuffix is of the file beside an index that whoever makes or updates it
// holds a lock on: SQLite's own go with the file, which may be made anew. The
// file stays: to remove it would give two the lock.
const lockSuffix = ".lock"

// lock waits until no other process makes or updates the index, and tells
// after a second of waiting. It returns what gives the lock back.
func (x *Index) lock(ctx context.Context) (func(), error) {
	f, err := os.OpenFile(x.path+lockSuffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the index: %w", err)
	}
	again := time.NewTicker(lockEvery)
	defer again.Stop()
	for waited := time.Duration(0); ; waited += lockEvery {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { _ = f.Close() }, nil // nothing was written
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return nil, errors.Join(fmt.Errorf("locking the index: %w", err), f.Close())
		}
		if waited == lockTell && x.waiting != nil {
			x.waiting()
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("waiting for the index: %w", ctx.Err()), f.Close())
		}
	}
}

const (
	lockEvery = 50 * time.Millisecond
	lockTell  = time.Second
)
