package proxy

import (
	"context"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// clientConn is a sandbox's connection: with the bytes put back that were
// looked at already, and a mark for every use. It hides what the connection
// below can do otherwise, so that net/http and io.Copy do not splice: idle
// tunnels would hold six descriptors each (docs/performance.md).
type clientConn struct {
	net.Conn
	st     *stream
	early  []byte // read before anything else
	active atomic.Bool
}

// Read implements net.Conn.
func (c *clientConn) Read(b []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(b, c.early)
		if c.early = c.early[n:]; len(c.early) == 0 {
			c.early = nil
		}
		return n, nil
	}
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.touch()
	}
	return n, err
}

// Write implements net.Conn.
func (c *clientConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if n > 0 {
		c.touch()
	}
	return n, err
}

// takeEarly returns what is to be read first, and forgets it.
func (c *clientConn) takeEarly() []byte {
	b := c.early
	c.early = nil
	return b
}

// touch marks use. Loading first keeps the cache line shared while it is set.
func (c *clientConn) touch() {
	if !c.active.Load() {
		c.active.Store(true)
	}
}

// socket returns what the connection is in the kernel; nil if it is carried by another,
// or something is to be read before what comes there.
func (c *clientConn) socket() syscall.RawConn {
	sys, ok := c.Conn.(syscall.Conn)
	if !ok || len(c.early) > 0 {
		return nil
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// CloseWrite sends the end of the stream and keeps on reading.
func (c *clientConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Close()
}

// reset closes so that the client learns at once that this was no ordinary end.
func (c *clientConn) reset() {
	switch t := c.Conn.(type) {
	case *net.TCPConn:
		_ = t.SetLinger(0)
	case *h2Stream:
		t.abort()
	}
	_ = c.Close()
}

// feed is a listener of connections that were accepted elsewhere.
type feed struct {
	addr net.Addr
	ch   chan net.Conn
	done chan struct{}
	once sync.Once
}

func newFeed(addr net.Addr) *feed {
	return &feed{addr: addr, ch: make(chan net.Conn), done: make(chan struct{})}
}

// put hands c to whoever accepts; false: there is nobody any more.
func (f *feed) put(c net.Conn) bool {
	select {
	case f.ch <- c:
		return true
	case <-f.done:
		return false
	}
}

// Accept implements net.Listener.
func (f *feed) Accept() (net.Conn, error) {
	select {
	case c := <-f.ch:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (f *feed) Close() error {
	f.once.Do(func() { close(f.done) })
	return nil
}

// Addr implements net.Listener.
func (f *feed) Addr() net.Addr { return f.addr }

const bufferSize = 64 << 10

// buffers is a pool of copy buffers; it is an httputil.BufferPool.
type buffers struct {
	pool     sync.Pool
	splicing atomic.Int32 // streams that hold a pipe instead
}

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return p[:]
	}
	return new([bufferSize]byte)[:]
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(p []byte) { b.pool.Put((*[bufferSize]byte)(p)) }

type streamKey struct{}

func withStream(ctx context.Context, st *stream) context.Context {
	return context.WithValue(ctx, streamKey{}, st)
}

func streamFrom(ctx context.Context) *stream {
	st, _ := ctx.Value(streamKey{}).(*stream)
	return st
}

// timedOut reports whether a deadline ended an operation.
func timedOut(err error) bool {
	return err != nil && os.IsTimeout(err)
}
