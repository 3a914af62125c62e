package dial

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/control/silence"
	"sallyport/proxy/bulk"
	"sallyport/proxy/h1"
	"sallyport/rules/target"
)

const (
	// smallBody is how long a body may be to be read before the request is
	// sent, and so be sent with it, by one goroutine.
	smallBody = 16 << 10
	// maxInterim bounds the 1xx answers to one request.
	maxInterim = 16
	// freshFor is how long a connection that became idle is not asked whether
	// it is still open.
	freshFor = 10 * time.Millisecond
	// afterAnswer is how long the rest of a request may take to be sent once
	// its answer was read, for the connection to be used again.
	afterAnswer = 50 * time.Millisecond
	// errorGrace is for an answer to come that explains why a body was not taken.
	errorGrace = time.Second
)

// wireKey is what connections must have in common to stand in for each other
// within a pool.
type wireKey struct {
	secure bool
	to     target.Endpoint
}

// wire is an upstream connection that speaks HTTP/1.1, with one request on it
// at a time. Unlike one of net/http's it has no goroutines of its own.
type wire struct {
	conn   net.Conn // in TLS, or what is below it
	raw    syscall.RawConn
	in     *h1.Reader
	pool   *pool
	key    wireKey
	expire func() // ends what is read and written
	reused bool
	since  time.Time // idle since then
	readBy time.Time // the deadline that is set for reading
}

// newWire takes tcp, and TLS over it if there is some.
func newWire(secure *tls.Conn, tcp net.Conn, pl *pool, key wireKey) (*wire, error) {
	sys, ok := tcp.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%T is not a socket", tcp)
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return nil, err
	}
	conn := tcp
	if secure != nil {
		conn = bulk.Over(secure, raw)
	}
	expire := func() { _ = conn.SetDeadline(longAgo) }
	return &wire{conn: conn, raw: raw, in: h1.NewReader(conn), pool: pl, key: key, expire: expire}, nil
}

// open reports whether the far end has neither closed the connection nor said
// anything: what comes unasked on an idle connection would be taken for the
// answer to the next request.
func (w *wire) open() bool { return silence.On(w.raw) }

func (w *wire) close() { _ = w.conn.Close() }

var longAgo = time.Unix(1, 0)

// clock is the system's, which deadlines go by.
func clock() time.Time { return time.Now() } //nolint:forbidigo // see above; Config.Now may be another

// request is what is sent.
type request struct {
	*http.Request
	target string // path and query
	host   string
	body   io.ReadCloser // nil for none
	length int64         // -1: in chunks
	small  []byte        // the whole body, if it was read already
}

func (r *request) upgrades() bool { return r.Header["Upgrade"] != nil }

// expects reports whether upstream is asked before the body is sent.
func (r *request) expects() bool {
	return r.body != nil && strings.EqualFold(r.Header.Get("Expect"), "100-continue")
}

// readSmall reads a short body, so that it goes out with the head.
func (r *request) readSmall() error {
	if r.body == nil || r.length < 0 || r.length > smallBody || r.expects() {
		return nil
	}
	b := make([]byte, r.length, r.length+1)
	n, err := io.ReadFull(r.body, b)
	if err == nil {
		// The end has to be seen: who guards the body may say something there.
		var k int
		k, err = r.body.Read(b[n:cap(b)])
		if k > 0 {
			err = errors.New("the body is longer than was announced")
		}
	}
	closeErr := r.body.Close()
	r.body, r.small = nil, b[:n]
	switch {
	case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return err // who guards the body refused it, say
	case n < len(b):
		return fmt.Errorf("the body is shorter than was announced: %w", err)
	}
	return closeErr
}

// appendHead writes the head as RFC 9112 section 3 has it.
func (r *request) appendHead(b []byte) []byte {
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, r.target...)
	b = append(b, " HTTP/1.1\r\n"...)
	b = h1.AppendField(b, "Host", r.host)
	upgrade := r.upgrades()
	b = h1.AppendHeader(b, r.Header, func(name string) bool {
		switch name {
		case "Host", "Content-Length", "Transfer-Encoding", "Trailer", "Keep-Alive", "Proxy-Connection":
			return true
		case "Connection":
			return !upgrade
		case "User-Agent":
			v := r.Header[name]
			return len(v) == 1 && v[0] == "" // none, in net/http's way of saying so
		default:
			return false
		}
	})
	switch {
	case r.length < 0:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
		if len(r.Trailer) > 0 {
			b = h1.AppendField(b, "Trailer", strings.Join(keys(r.Trailer), ", "))
		}
	case r.length > 0 || r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch:
		b = h1.AppendLength(b, r.length)
	}
	return append(b, "\r\n"...)
}

func keys(h http.Header) []string {
	out := make([]string, 0, len(h))
	for name := range h {
		out = append(out, name)
	}
	return out
}

// scratch holds buffers for heads and for pieces of bodies.
var scratch = sync.Pool{New: func() any { return new([64 << 10]byte) }}

func getScratch() *[64 << 10]byte {
	if b, ok := scratch.Get().(*[64 << 10]byte); ok {
		return b
	}
	return new([64 << 10]byte)
}

// exchange sends a request and reads the head of its answer. After an error
// the connection is closed; again tells that upstream has not said a word, so
// that the request may be sent on another one.
func (w *wire) exchange(ctx context.Context, r *request, timeout time.Duration) (resp *http.Response, again bool, err error) {
	d := &delivery{w: w, ctx: ctx, up: upload{w: w, r: r}, unwatch: context.AfterFunc(ctx, w.expire)}
	up := &d.up
	if err = up.begin(); err == nil {
		resp, again, err = w.answer(ctx, up, timeout)
	} else {
		again = isGone(err)
	}
	if err != nil {
		d.unwatch()
		w.close()
		up.wait()
		switch {
		case up.failed() != nil:
			err, again = up.failed(), false
		case ctx.Err() != nil:
			err, again = ctx.Err(), false
		}
		return nil, again && up.none() && w.reused, err
	}
	d.prepare(resp)
	return resp, false, nil
}

// answer reads heads until one is final.
func (w *wire) answer(ctx context.Context, up *upload, timeout time.Duration) (resp *http.Response, again bool, err error) {
	trace := httptrace.ContextClientTrace(ctx)
	for n := range maxInterim {
		w.deadline(timeout)
		if up.asking {
			err = up.ask()
		}
		if err == nil {
			resp, err = w.in.ReadResponse(maxRespHeader, up.r.Method)
		}
		switch {
		case err != nil:
			return nil, n == 0 && isGone(err) && w.in.Buffered() == 0, err
		case resp.StatusCode == http.StatusContinue:
			up.goOn()
		case resp.StatusCode >= http.StatusOK || resp.StatusCode == http.StatusSwitchingProtocols:
			return resp, false, nil
		case trace != nil && trace.Got1xxResponse != nil:
			if err := trace.Got1xxResponse(resp.StatusCode, textproto.MIMEHeader(resp.Header)); err != nil {
				return nil, false, err
			}
		}
	}
	return nil, false, errors.New("too many interim answers")
}

// isGone tells the errors of a connection that the far end has closed.
func isGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// deadline bounds the wait for an answer. It is not moved for every request:
// it may be up to an eighth later than it should.
func (w *wire) deadline(timeout time.Duration) {
	at := clock().Add(timeout)
	if w.readBy.Before(at) || w.readBy.Sub(at) > timeout/8 {
		w.readBy = at.Add(timeout / 8)
		_ = w.conn.SetReadDeadline(w.readBy) // a closed connection says so when it is read
	}
}

func (w *wire) noDeadline() {
	if !w.readBy.IsZero() {
		w.readBy = time.Time{}
		_ = w.conn.SetReadDeadline(time.Time{})
	}
}

// prepare makes an answer ready for whoever reads it, who then gives the
// connection back.
func (d *delivery) prepare(resp *http.Response) {
	resp.Request = d.up.r.Request
	d.keep = !resp.Close
	body, ok := resp.Body.(*h1.Body)
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols:
		d.w.noDeadline()
		resp.Body = &upgraded{w: d.w, unwatch: d.unwatch}
	case !ok:
		d.end(true)
	default:
		if int64(d.w.in.Buffered()) < resp.ContentLength || resp.ContentLength < 0 {
			d.w.noDeadline() // the body may take as long as it likes
		}
		d.body = body
		resp.Body = d
	}
}

// delivery is a request on its way and the body of its answer. It gives its
// connection back when that has been read to its end, and closes it when it is
// closed before.
type delivery struct {
	w       *wire
	ctx     context.Context //nolint:containedctx // the request's: a body lives as long
	up      upload
	unwatch func() bool // of ctx, whose end ends reading and writing
	body    *h1.Body
	keep    bool // the connection may be used again

	once sync.Once
}

// Read implements [io.Reader].
func (d *delivery) Read(p []byte) (int, error) {
	n, err := d.body.Read(p)
	if err != nil {
		if err != io.EOF && d.ctx.Err() != nil { //nolint:errorlint // never wrapped
			err = d.ctx.Err()
		}
		d.end(err == io.EOF) //nolint:errorlint // as above
	}
	return n, err
}

// Ready tells whether Read will not wait.
func (d *delivery) Ready() bool { return d.body.Ready() }

// Now tells whether Read is certain not to wait.
func (d *delivery) Now() bool { return d.body.Now() }

// Close implements [io.Closer].
func (d *delivery) Close() error {
	d.end(false)
	return nil
}

func (d *delivery) end(whole bool) {
	d.once.Do(func() {
		watched := d.unwatch()
		if whole && d.keep && watched && d.up.finished() && d.w.in.Buffered() == 0 {
			d.w.in.Release()
			d.w.pool.put(d.w)
			return
		}
		d.w.close()
		d.up.wait()
	})
}

// upgraded is a connection that left HTTP.
type upgraded struct {
	w       *wire
	unwatch func() bool
	early   []byte
	begun   bool
}

// Read implements [io.Reader].
func (u *upgraded) Read(p []byte) (int, error) {
	if !u.begun {
		u.begun = true
		u.early = u.w.in.Unread()
	}
	if len(u.early) > 0 {
		n := copy(p, u.early)
		u.early = u.early[n:]
		return n, nil
	}
	return u.w.conn.Read(p)
}

// Write implements [io.Writer].
func (u *upgraded) Write(p []byte) (int, error) { return u.w.conn.Write(p) }

// CloseWrite passes an end on.
func (u *upgraded) CloseWrite() error {
	if c, ok := u.w.conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return u.w.conn.Close()
}

// Close implements [io.Closer].
func (u *upgraded) Close() error {
	u.unwatch()
	return u.w.conn.Close()
}

// handshake makes TLS over tcp, which it closes after an error.
func (d *Dialer) handshake(ctx context.Context, cfg *tls.Config, tcp net.Conn) (*tls.Conn, error) {
	t := tls.Client(bulk.Below(tcp, nil), cfg)
	if err := tcp.SetDeadline(clock().Add(d.cfg.Timeouts.TLS)); err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	stop := context.AfterFunc(ctx, func() { _ = tcp.SetDeadline(longAgo) })
	// The deadline and stop end it; a context would cost a goroutine.
	err := t.HandshakeContext(context.WithoutCancel(ctx))
	if !stop() && err == nil || ctx.Err() != nil {
		err = ctx.Err()
	}
	if err == nil {
		err = tcp.SetDeadline(time.Time{})
	}
	if err == nil {
		return t, nil
	}
	_ = tcp.Close() // of no use any more
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = &Error{Op: "requesting", To: cfg.ServerName, Status: statusTimeout, Err: fmt.Errorf("TLS handshake: %w", err)}
	}
	return nil, err
}
