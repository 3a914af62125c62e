package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"sallyport/rules"
)

// h2Preface begins a connection that speaks HTTP/2 without having asked
// (RFC 9113 section 3.4). Only the explicit listener takes it, from a client
// that uses one connection to its proxy for all streams.
const h2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// doorH2 serves a client of the explicit listener that speaks HTTP/2.
func (r *run) doorH2(ctx context.Context, st *stream) {
	if !st.takeH2() {
		_ = r.cfg.Gate.Refuse(ctx, rules.Request{Question: rules.Connect, Cell: st.cell}, rules.Limit, errH2Conns)
		st.abort(ctx, nil)
		return
	}
	st.h2 = true
	r.serveH2(ctx, st, st.conn)
}

// connectH2 opens the stream that a CONNECT over HTTP/2 asks for (RFC 9113
// section 8.5) and returns when it has ended. It counts as a connection.
func (r *run) connectH2(w http.ResponseWriter, req *http.Request) {
	door := streamFrom(req.Context())
	if req.Method != http.MethodConnect {
		r.serveAbsolute(w, req) // which it is not: that is refused, and recorded
		return
	}
	door.requests.Add(1)
	c := newH2Stream(door.conn, w, req)
	if st, ok := r.newStream(c); ok {
		st.reply = &connectReply{proto: req.Proto, authority: req.Host, bad: r.badHead(req), w: w}
		r.guard(req.Context(), st, func() { r.connectRequest(req.Context(), st) })
	}
	<-c.ended
	<-c.read
	if c.broken {
		panic(http.ErrAbortHandler) // RST_STREAM
	}
}

// h2Stream is a stream of an HTTP/2 connection as a connection of its own. It
// cannot be closed in one direction: what ends it is the end of the answer.
type h2Stream struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	req  *http.Request
	door net.Conn

	// in is the body of the request, with deadlines that can be moved: once
	// that of the body itself has passed, nothing can be read from it any more.
	in      net.Conn
	read    chan struct{} // closed when there is no more to read
	readErr error         // set before read is closed

	once   sync.Once
	ended  chan struct{} // closed when the handler may return
	broken bool          // set before ended is closed
	// using is held for reading by who uses w, which is forbidden to all once
	// the handler has returned, and for writing by who ends that.
	using sync.RWMutex
	gone  bool // guarded by using
}

func newH2Stream(door net.Conn, w http.ResponseWriter, req *http.Request) *h2Stream {
	c := &h2Stream{
		w: w, rc: http.NewResponseController(w), req: req, door: door,
		read: make(chan struct{}), ended: make(chan struct{}),
	}
	var feed net.Conn
	c.in, feed = net.Pipe()
	go func() {
		defer close(c.read)
		_, c.readErr = io.Copy(feed, req.Body)
		_ = feed.Close() // for the reader, the end
	}()
	return c
}

// Read implements net.Conn.
func (c *h2Stream) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	switch {
	case errors.Is(err, io.ErrClosedPipe):
		return n, net.ErrClosed
	case errors.Is(err, io.EOF):
		if <-c.read; c.readErr != nil {
			// RST_STREAM is to a stream what RST is to a connection.
			return n, fmt.Errorf("%w: %w", syscall.ECONNRESET, c.readErr)
		}
	}
	return n, err
}

// Write implements net.Conn.
func (c *h2Stream) Write(b []byte) (n int, err error) {
	err = c.use(func() error {
		if n, err = c.w.Write(b); err != nil {
			return err
		}
		return c.rc.Flush()
	})
	return n, err
}

// use runs f while w may be used.
func (c *h2Stream) use(f func() error) error {
	c.using.RLock()
	defer c.using.RUnlock()
	if c.gone {
		return net.ErrClosed
	}
	return f()
}

// Close implements net.Conn: with the end of the stream if nothing is being
// written, and else by a reset.
func (c *h2Stream) Close() error { return c.end(false) }

// abort ends the stream by a reset.
func (c *h2Stream) abort() { _ = c.end(true) }

func (c *h2Stream) end(broken bool) error {
	c.once.Do(func() {
		if !c.using.TryLock() {
			broken = true
			_ = c.rc.SetWriteDeadline(longAgo) // ends what is being written
			c.using.Lock()
		}
		c.gone, c.broken = true, broken
		c.using.Unlock()
		_, _ = c.in.Close(), c.req.Body.Close() // end what is being read
		close(c.ended)
	})
	return nil
}

// LocalAddr implements net.Conn.
func (c *h2Stream) LocalAddr() net.Addr { return c.door.LocalAddr() }

// RemoteAddr implements net.Conn. It is the cell's, as of every stream.
func (c *h2Stream) RemoteAddr() net.Addr { return c.door.RemoteAddr() }

// SetDeadline implements net.Conn.
func (c *h2Stream) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn. Where the client has said all it had to say there
// is nothing to wait for, and nothing wrong.
func (c *h2Stream) SetReadDeadline(t time.Time) error {
	err := c.in.SetReadDeadline(t)
	if !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	select {
	case <-c.ended:
		return net.ErrClosed
	default:
		return nil
	}
}

// SetWriteDeadline implements net.Conn.
func (c *h2Stream) SetWriteDeadline(t time.Time) error {
	return c.use(func() error { return c.rc.SetWriteDeadline(t) })
}
