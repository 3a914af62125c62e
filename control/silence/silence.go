// Package silence tells whether the other end of a connection has said or done
// anything, at the price of one system call that does not wait.
//
// What the kernel has queued shows at once, before any goroutine has been woken
// for it: when an end has closed its connection, or its process has ended in
// whatever way, the other end is not silent any more. It reads nothing, and
// trusts nobody.
package silence

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// On reports whether a connection is open at both ends and has nothing to read.
func On(raw syscall.RawConn) bool {
	quiet := false
	err := raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		quiet = errors.Is(err, unix.EAGAIN)
	})
	return err == nil && quiet
}
