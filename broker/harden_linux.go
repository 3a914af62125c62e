package broker

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrNotLocked says that memory could not be locked, so that secrets may reach
// swap. Everything else that [Harden] does holds.
var ErrNotLocked = errors.New("memory is not locked")

// Harden keeps secrets in this process: no core dump, no debugger and no
// /proc/PID/mem or environ for other processes of the user (prctl(2),
// PR_SET_DUMPABLE), no swap (mlockall(2)). An error that is [ErrNotLocked] can
// be a warning; any other must stop the broker.
func Harden() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("hardening the broker: core dumps: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hardening the broker: dumpable: %w", err)
	}
	return lockMemory()
}

// lockMemory locks pages as they are touched. A limit on locked memory must not
// be there: with one, a later allocation fails, and that ends the process.
func lockMemory() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return fmt.Errorf("%w: %w", ErrNotLocked, err)
	}
	if limit.Cur != unix.RLIM_INFINITY && !mayLock() {
		return fmt.Errorf("%w: RLIMIT_MEMLOCK is %d octets; let whoever starts the broker set it to unlimited (LimitMEMLOCK=infinity) or keep CAP_IPC_LOCK", ErrNotLocked, limit.Cur)
	}
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		return fmt.Errorf("%w: %w", ErrNotLocked, err)
	}
	return nil
}

// mayLock reports whether the limit does not count for this process
// (capabilities(7), CAP_IPC_LOCK).
func mayLock() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0
}
