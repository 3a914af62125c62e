package dial_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/test/lab"
)

// socket reports whether there is one that is as wanted.
func socket(t *testing.T, wanted func(lab.Socket) bool) bool {
	t.Helper()
	all, err := lab.Sockets("tcp")
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(all, wanted)
}

// fullBacklog listens on an address where nobody ever answers: the queue of
// connections is full, so the kernel drops every further SYN.
func fullBacklog(t *testing.T, addr netip.AddrPort) (stop func()) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}),
		unix.Listen(fd, 0),
	)
	if err != nil {
		t.Fatal(err)
	}
	held, err := net.Dial("tcp", addr.String()) // one has room
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a full queue", func() bool {
		return socket(t, func(s lab.Socket) bool {
			return s.Own == addr && s.State == unix.BPF_TCP_LISTEN && s.Unread > 0
		})
	})
	return func() {
		_ = held.Close()
		_ = unix.Close(fd)
	}
}
