package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// dropPrivileges makes sure that a daemon has nothing to lose: not root, no
// capability in any set, and no way to gain one through a set-user-id program.
func dropPrivileges() error {
	if os.Geteuid() == 0 {
		return hint(errors.New("this daemon must not run as root"), "start it with: sallyport up")
	}
	// Every thread has its own flag (prctl(2)).
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return hint(fmt.Errorf("setting no_new_privs: %w", errno), "a program built with cgo cannot: make build")
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return fmt.Errorf("reading capabilities: %w", err)
	}
	for _, d := range data {
		if d.Effective|d.Permitted|d.Inheritable != 0 {
			return errors.New("this daemon was started with capabilities and must have none")
		}
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// ballast is memory that the gateway asks for and never touches, so that it takes
// none. What lives in a gateway without many streams is little, and the garbage
// collector, which runs whenever as much again was allocated, would run many
// times a second.
const ballast = 32 << 20
