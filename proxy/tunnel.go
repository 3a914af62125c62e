package proxy

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/rules"
	"sallyport/rules/gate"
)

// tunnel carries a stream's bytes as they are, by the stream's own pass.
func (r *run) tunnel(ctx context.Context, st *stream) {
	pass := st.pass
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st.opened = false // closed here, with all that there is to tell
	out := gate.Outcome{}
	defer func() {
		st.untrack(pass)
		st.leave()
		out.Err, out.Reason = st.because(out.Err), cmp.Or(out.Reason, st.boundedBy())
		st.record(pass.Done(ctx, out))
		st.finish(ctx, nil)
	}()
	if !st.track(pass, st.judged) {
		return
	}
	up, err := r.cfg.Dial(ctx, pass)
	if err != nil {
		out.Err, out.Reason = err, refusedBy(err)
		st.failed(pass, err)
		return
	}
	defer up.Close()
	out.Addr = remote(up)
	if !st.accepted(ctx) {
		return
	}
	out.Sent, out.Received, out.Err = relay(endOf(st.conn, st.conn.touch, pass), st.conn.takeEarly(), up, r)
	out.Reason = refusedBy(out.Err)
}

func remote(c net.Conn) netip.AddrPort {
	if t, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return t.AddrPort()
	}
	return netip.AddrPort{}
}

// lastWords is how long a client is given to read why its stream is refused.
const lastWords = time.Second

// relay copies both ways, beginning with what the client sent early, until
// both ends have ended or one has failed.
func relay(client end, early []byte, up io.ReadWriteCloser, r *run) (sent, received int64, err error) {
	var there, back error
	fail := func() {
		_ = client.Close()
		_ = up.Close()
	}
	var ended atomic.Int32 // directions; after the second both ends are closed anyway
	done := make(chan struct{})
	r.crew.run(func() {
		defer close(done)
		if received, back = pipe(client.Conn, up, client.receives, client.touch, &r.buffers, &ended); back != nil {
			fail()
		}
	})
	if len(early) > 0 {
		var n int
		n, there = client.sends.write(up, early)
		sent = int64(n)
	}
	if there == nil {
		var n int64
		n, there = pipe(up, client.Conn, client.sends, client.touch, &r.buffers, &ended)
		sent += n
	}
	switch {
	case there == nil:
	case refusedBy(there) == rules.Limit:
		fail()
	case refusedBy(there) != "": // what is read of up last tells the client why
		_ = up.Close()
		_ = client.SetWriteDeadline(time.Now().Add(lastWords)) //nolint:forbidigo // deadlines are the system's clock's
	default:
		fail()
	}
	<-done
	return sent, received, firstCause(there, back)
}

// firstCause drops the error that closing the other direction made. A refusal is the
// cause of all others.
func firstCause(errs ...error) error {
	for _, err := range errs {
		if refusedBy(err) != "" {
			return err
		}
	}
	for _, err := range errs {
		if err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
	}
	return nil
}

// pipe copies from src to dst, and then passes the end on. While nothing
// comes from a socket it holds no buffer: an idle tunnel costs two sockets and
// two stacks.
func pipe(dst io.Writer, src io.Reader, m meter, touch func(), pool *buffers, ended *atomic.Int32) (n int64, err error) {
	sys, ok := bareConn(src).(syscall.Conn)
	if !ok {
		return pipeSimply(dst, src, m, pool)
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return 0, err
	}
	in := &waiting{pool: pool}
	ready := in.read // made a value once, not for every read
	full := 0        // reads in a row that filled their buffer
	for {
		if full >= bulkReads && m == nil {
			full = 0
			k, err := splice(dst, src, touch, pool)
			if n += k; err != nil {
				return n, err
			}
		}
		buf, k, err := in.wait(raw, ready)
		if full++; k < len(buf) {
			full = 0
		}
		if k > 0 {
			touch()
			var w int
			w, err = m.write(dst, buf[:k])
			n += int64(w)
		}
		if buf != nil {
			pool.Put(buf)
		}
		switch {
		case errors.Is(err, io.EOF) && ended.Add(1) > 1:
			return n, nil
		case errors.Is(err, io.EOF):
			return n, closeWrite(dst)
		case err != nil:
			return n, err
		}
	}
}

// bareConn returns the connection below a clientConn.
func bareConn(c any) any {
	if cc, ok := c.(*clientConn); ok {
		return cc.Conn
	}
	return c
}

// waiting reads what has come from a socket, into a buffer that it takes only then.
type waiting struct {
	pool *buffers
	buf  []byte
	n    int
	err  error
}

// wait returns what has come. The caller puts the buffer back. ready is read.
func (w *waiting) wait(raw syscall.RawConn, ready func(uintptr) bool) (buf []byte, n int, err error) {
	w.buf, w.n, w.err = nil, 0, nil
	err = raw.Read(ready)
	switch {
	case err != nil:
		return w.buf, 0, err
	case w.err != nil:
		return w.buf, 0, w.err
	case w.n == 0:
		return w.buf, 0, io.EOF
	}
	return w.buf, w.n, nil
}

// read reports whether something came; if not, no buffer is held.
func (w *waiting) read(fd uintptr) bool {
	w.buf = w.pool.Get()
	for {
		if w.n, w.err = unix.Read(int(fd), w.buf); w.err != unix.EINTR { //nolint:errorlint // a bare errno
			break
		}
	}
	if w.err == unix.EAGAIN { //nolint:errorlint // a bare errno
		w.pool.Put(w.buf)
		w.buf, w.n = nil, 0
		return false
	}
	return true
}

// pipeSimply is pipe for what is not a socket: it waits with a small buffer,
// and takes a large one while that is filled.
func pipeSimply(dst io.Writer, src io.Reader, m meter, pool *buffers) (n int64, err error) {
	small := make([]byte, 4<<10)
	buf := small
	back := func() {
		if len(buf) == bufferSize {
			pool.Put(buf)
		}
	}
	defer func() { back() }()
	for {
		k, err := src.Read(buf)
		if k > 0 {
			w, werr := m.write(dst, buf[:k])
			n += int64(w)
			if werr != nil {
				return n, werr
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return n, closeWrite(dst)
		case err != nil:
			return n, err
		case k == len(small) && len(buf) == len(small):
			buf = pool.Get()
		case k < len(small) && len(buf) != len(small):
			back()
			buf = small
		}
	}
}

func closeWrite(w io.Writer) (err error) {
	switch c := w.(type) {
	case interface{ CloseWrite() error }:
		err = c.CloseWrite()
	case io.Closer:
		err = c.Close()
	}
	if errors.Is(err, syscall.ENOTCONN) {
		return nil // it was gone already
	}
	return err
}
