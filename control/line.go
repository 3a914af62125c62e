package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"

	"sallyport/control/silence"
)

// Line is a connection on which nothing is said. While it is silent, what the
// server said since it was opened still holds (ADR-0023): the server closes it
// before it completes a change, and the kernel closes it when the server's
// process ends, however it ends.
type Line struct {
	conn net.Conn
	raw  syscall.RawConn
}

// Line opens a line to an operation that [Lines.Handle] serves.
func (c *Client) Line(ctx context.Context, op string) (*Line, error) {
	conn, err := c.dial(ctx, op)
	if err != nil {
		return nil, fmt.Errorf("opening a line to %s at %s: %w", op, c.path, err)
	}
	sys, ok := conn.(syscall.Conn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%T is not a socket", conn), conn.Close())
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Line{conn, raw}, nil
}

// Silent reports whether nothing has changed since the line was opened. It is
// one system call, which does not wait. A nil Line is not silent.
func (l *Line) Silent() bool { return l != nil && silence.On(l.raw) }

// Close closes the line, which is not silent from then on.
func (l *Line) Close() error { return l.conn.Close() }

// Lines are the lines of a server. The zero Lines has none and is ready for use.
type Lines struct {
	mu     sync.Mutex // guards the rest
	open   map[net.Conn]struct{}
	ending bool // with the server
}

// Handle serves lines to peers with one of the user ids, on a [NewServer].
func (l *Lines) Handle(allowed []uint32) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, ok := r.Context().Value(connKey{}).(net.Conn)
		if !ok {
			reply(w, http.StatusNotFound, &Error{Text: "there are no lines here"})
			return
		}
		defer l.drop(conn)
		if !permitted(r.Context(), allowed) || !l.add(r, conn) {
			return // net/http would wait for the body before it said why
		}
		if _, err := conn.Write(make([]byte, frameHead)); err == nil {
			_, _ = conn.Read(make([]byte, 1)) // until either side closes it: nothing is said
		}
	})
}

// add counts conn among the lines before anybody may rely on it.
func (l *Lines) add(r *http.Request, conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending {
		return false
	}
	if l.open == nil {
		l.open = map[net.Conn]struct{}{}
		if s, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok {
			s.RegisterOnShutdown(l.end)
		}
	}
	l.open[conn] = struct{}{}
	return true
}

func (l *Lines) drop(conn net.Conn) {
	l.mu.Lock()
	delete(l.open, conn)
	l.mu.Unlock()
	_ = conn.Close() // net/http would say something on it
}

// Break ends every line: what was said before is to be asked again. When it
// returns, none of them is silent any more.
func (l *Lines) Break() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for conn := range l.open {
		_ = conn.Close() // waits for nothing but its reader
	}
	clear(l.open)
}

// end breaks all lines for good.
func (l *Lines) end() {
	l.mu.Lock()
	l.ending = true
	l.mu.Unlock()
	l.Break()
}
