package bulk

import (
	"io"
	"net"
	"os"
	"sync"
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

	// kept is what was written before that; nil for nothing. Crypto/tls has one goroutine
	// write at a time, whoever it writes for.
	kept []byte

	// What readNow is about, and what came of it: a closure for each would be an
	// allocation for each.
	in      []byte
	got     int
	inErr   error
	readNow func(fd uintptr) bool
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

// room is for as many records as come in one piece, as a rule.
const room = 4 * (record + 256)

var rooms = sync.Pool{New: func() any { return new([room]byte) }}

// Write implements [net.Conn]. It keeps what is not the last for now, as far as there is
// room. What of that cannot be written then ends the connection: crypto/tls writes nothing
// behind an error.
func (s *Socket) Write(p []byte) (int, error) {
	more := s.more.Load()
	if !more && s.kept == nil {
		return s.Conn.Write(p)
	}
	if len(s.kept)+len(p) > room {
		if err := s.send(); err != nil {
			return 0, err
		}
	}
	if s.kept == nil {
		b, ok := rooms.Get().(*[room]byte)
		if !ok {
			b = new([room]byte)
		}
		s.kept = b[:0]
	}
	s.kept = append(s.kept, p...)
	if more {
		return len(p), nil
	}
	return len(p), s.send()
}

// send writes what was kept, if there is any.
func (s *Socket) send() error {
	if s.kept == nil {
		return nil
	}
	_, err := s.Conn.Write(s.kept)
	rooms.Put((*[room]byte)(s.kept[:room]))
	s.kept = nil
	return err
}
