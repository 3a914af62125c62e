package cell

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// inside runs f on a thread in the namespace ns. Sockets that f makes, files
// that it opens below /proc/sys/net and programs that it starts belong to ns.
// f must not start a goroutine that counts on that.
func inside(ns *os.File, f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("entering namespace %s: %w", ns.Name(), err)
		}
		return f()
	})
}

// insideNew is inside a namespace that nobody else has a name for. It is gone
// after f, unless f keeps it.
func insideNew(f func() error) error {
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("making a network namespace: %w", err)
		}
		return f()
	})
}

// onThread runs f on a thread that dies afterwards: its goroutine ends without
// unlocking it, so the runtime never gives the thread to another goroutine. To
// switch back instead would leave one failure (setns refused) after which some
// later connection of the program is made in the wrong namespace.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread cannot die, and its namespace is what
			// /proc/<pid>/ns/net shows. Hold it while another one works.
			defer runtime.UnlockOSThread()
			done <- onThread(f)
			return
		}
		done <- f()
	}()
	return <-done
}
