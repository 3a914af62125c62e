package dial_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// States of a socket in the kernel's table of them.
const (
	synSent   = "02"
	closeWait = "08"
	listening = "0A"
)

// socket is a row of that table.
type socket struct {
	own, other, state string
	unread            string // octets to be read, or connections to be accepted; in hexadecimal
}

// sockets returns the table.
func sockets(t *testing.T) (all []socket) {
	t.Helper()
	table, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for row := range strings.Lines(string(table)) {
		f := strings.Fields(row) // number, own address, other, state, octets to send and to read
		if len(f) > 4 && f[3] != "st" {
			_, unread, _ := strings.Cut(f[4], ":")
			all = append(all, socket{f[1], f[2], f[3], unread})
		}
	}
	return all
}

// inTable spells an address as the table has it.
func inTable(a netip.AddrPort) string {
	ip := a.Addr().Unmap().As4()
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(ip[:]), a.Port())
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
		for _, s := range sockets(t) {
			if s.own == inTable(addr) && s.state == listening {
				return s.unread != "00000000"
			}
		}
		return false
	})
	return func() {
		_ = held.Close()
		_ = unix.Close(fd)
	}
}
