// Package slack lets the kernel wake a busy process's threads a little late, if
// that saves work.
//
// Go's runtime has a thread that sleeps for 20 µs at a time while system calls take
// long, to give what they hold to others. Each time it wakes costs a change of
// threads, and a call that it has given up on costs two more. With the kernel's own
// 50 µs of slack that was an eighth of what a request cost the gateway.
package slack

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Late is as late as what waits for anybody may be: deadlines here are tens of
// milliseconds at least.
const Late = time.Millisecond

// Take has every thread of this process, and those that come, wait up to d longer
// than they ask for where they wait for a time. What wakes them otherwise is as
// quick as ever. It works where no C code has threads: CGO_ENABLED=0.
func Take(d time.Duration) error {
	// Every thread has its own slack, and gives it to those that it starts (prctl(2)).
	_, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, uintptr(d.Nanoseconds()), 0, 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("setting the timer slack: %w", errno)
	}
	return nil
}
