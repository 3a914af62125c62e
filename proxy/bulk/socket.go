package bulk

import (
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Socket is what a TLS connection stands on.
type Socket struct {
	net.Conn
	touch func()

	raw  syscall.RawConn // of the socket that Conn is, once it may be asked; nil for none
	full bool            // the last read filled its room: there may be more
	now  bool            // reads do not wait
	more atomic.Bool     // what is written is not the last for now

	// What readNow and writeMore are about, and what came of it: a closure for each
	// would be an allocation for each.
	in, out  []byte
	got      int
	inErr    error
	sent     int
	outErr   error
	readNow  func(fd uintptr) bool
	sendMore func(fd uintptr) bool
}

// Below returns the Socket for a connection. Touch, if it is not nil, is called where
// something was read that Conn does not know of.
func Below(c net.Conn, touch func()) *Socket { return &Socket{Conn: c, touch: touch} }

// nothing is the error of a read that would wait. It is one that does not end the
// connection (crypto/tls goes by Temporary).
type nothing struct{}

func (nothing) Error() string   { return "nothing has come" }
func (nothing) Timeout() bool   { return true }
func (nothing) Temporary() bool { return true }

var errNothing net.Error = nothing{}

// Read implements [net.Conn].
func (s *Socket) Read(p []byte) (n int, err error) {
	if !s.now {
		n, err = s.Conn.Read(p)
		s.full = n == len(p)
		return n, err
	}
	if !s.full || s.raw == nil || len(p) == 0 {
		return 0, errNothing
	}
	if s.readNow == nil {
		s.readNow = s.receive
	}
	s.in, s.got, s.inErr = p, 0, nil
	err = s.raw.Read(s.readNow)
	s.in = nil
	if err == nil {
		err = s.inErr
	}
	if s.full = s.got == len(p); s.got > 0 && s.touch != nil {
		s.touch()
	}
	return s.got, err
}

// receive takes what is there. It never has itself called again.
func (s *Socket) receive(fd uintptr) bool {
	for {
		n, err := unix.Read(int(fd), s.in)
		switch err {
		case nil:
			if s.got = n; n == 0 {
				s.inErr = io.EOF
			}
			return true
		case unix.EINTR:
		case unix.EAGAIN:
			s.inErr = errNothing
			return true
		default:
			s.inErr = os.NewSyscallError("read", err)
			return true
		}
	}
}

// Write implements [net.Conn].
func (s *Socket) Write(p []byte) (int, error) {
	if s.raw == nil || !s.more.Load() {
		return s.Conn.Write(p)
	}
	if s.sendMore == nil {
		s.sendMore = s.send
	}
	s.out, s.sent, s.outErr = p, 0, nil
	err := s.raw.Write(s.sendMore)
	s.out = nil
	if err == nil {
		err = s.outErr
	}
	return s.sent, err
}

// send hands octets to the kernel, which may wait with the last of them for what comes
// next. It reports whether all were taken.
func (s *Socket) send(fd uintptr) bool {
	for s.sent < len(s.out) {
		n, err := unix.SendmsgN(int(fd), s.out[s.sent:], nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL)
		switch err {
		case nil:
			s.sent += n
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			s.outErr = os.NewSyscallError("write", err)
			return true
		}
	}
	return true
}
