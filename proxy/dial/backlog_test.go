package dial_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

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
	var held []net.Conn
	for range 4 { // one is queued; the rest find out that the queue is full
		c, err := net.DialTimeout("tcp", addr.String(), 100*time.Millisecond)
		if err != nil {
			break
		}
		held = append(held, c)
	}
	return func() {
		for _, c := range held {
			_ = c.Close()
		}
		_ = unix.Close(fd)
	}
}
