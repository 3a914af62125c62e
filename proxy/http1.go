package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/proxy/h1"
	"sallyport/rules"
	"sallyport/rules/gate"
)

const (
	// watchAfter is how long a request is under way before somebody looks
	// whether its client is still there: most are answered sooner.
	watchAfter = 20 * time.Millisecond
	// hotTime is how long a connection waits for its next request with a buffer
	// at hand.
	hotTime = time.Second
	// lingerTime is for a client to read an answer that it did not wait for,
	// before a reset could take it away (RFC 9112 section 9.6).
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 1 << 20
)

// http1 serves the HTTP/1.1 requests of one stream, one after the other, on
// the stream's goroutine: net/http would take two for each connection, and
// hand every request over between them.
type http1 struct {
	run    *run
	st     *stream
	conn   net.Conn // the stream's, in TLS or bare
	in     *h1.Reader
	ctx    context.Context //nolint:containedctx // of all requests on the stream
	cancel context.CancelFunc
	handle handler
	answer answer
	now    atomic.Pointer[exchange] // which net/http/httptrace tells of
	readBy time.Time                // the deadline that is set for reading
	last   string                   // the method before
	h2     bool                     // it turned out to be HTTP/2

	timer *time.Timer
	mu    sync.Mutex // guards the rest, and whose turn it is to read
	busy  bool       // with a request
	quit  bool       // who watches is to end
	watch chan struct{}
}

// handler answers one request on a stream.
type handler func(ctx context.Context, st *stream, w http.ResponseWriter, req *http.Request)

// serveHTTP1 serves what comes on conn until either side has had enough, and
// ends the stream, unless it was taken over.
func (r *run) serveHTTP1(ctx context.Context, st *stream, conn net.Conn, handle handler) {
	c := &http1{run: r, st: st, conn: conn, in: h1.NewReader(conn), handle: handle}
	ctx = gate.WithOrigin(withStream(ctx, st), st.origin())
	ctx, c.cancel = context.WithCancel(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: c.gotConn, Got1xxResponse: c.got1xx}))
	c.ctx = ctx
	defer c.cancel()
	st.onCut(c.cancel)
	defer st.onCut(nil)
	for c.next() {
	}
	switch {
	case c.h2:
		c.deadline(noDeadline)
		st.conn.early = append(c.in.Unread(), st.conn.early...)
		r.doorH2(ctx, st)
	case !st.hijacked.Load():
		_ = c.conn.Close() // in TLS it says so
		st.finish(ctx, nil)
	}
}

func (c *http1) gotConn(i httptrace.GotConnInfo) {
	if x := c.now.Load(); x != nil {
		x.gotConn(i)
	}
}

func (c *http1) got1xx(code int, h textproto.MIMEHeader) error {
	if x := c.now.Load(); x != nil {
		x.got1xx(code, http.Header(h))
	}
	return nil
}

// next serves one request; false: it was the last.
func (c *http1) next() bool {
	if !c.await() {
		return false
	}
	switch {
	case c.last == "" && c.st.door:
		if secure, _ := c.in.Starts(helloType); secure {
			c.st.heads.Add(1)
			c.reject(errTLSDoor)
			return false
		}
		if c.h2, _ = c.in.Starts(h2Preface); c.h2 { // an error shows again in a moment
			return false
		}
	case c.last == http.MethodPost:
		if c.in.SkipLineEnds(); c.in.Buffered() == 0 {
			return true
		}
	}
	return c.serve()
}

// serve reads a request and answers it; false: it was the last.
func (c *http1) serve() bool {
	c.st.heads.Add(1)
	req, err := c.in.ReadRequest(c.run.cfg.Limits.HeaderBytes)
	expects := false
	if err == nil {
		expects, err = h1.ExpectsContinue(req)
	}
	if err != nil {
		c.reject(err)
		return false
	}
	c.last = req.Method
	req.RemoteAddr = c.st.client
	return c.one(req, expects)
}

// one has one request answered; false: it was the last.
func (c *http1) one(req *http.Request, expects bool) bool {
	a := &c.answer
	a.begin(c, req)
	body, hasBody := req.Body.(*h1.Body)
	if hasBody {
		c.deadline(noDeadline)
		if expects {
			body.Before = a.sendContinue
		}
	}
	c.begin()
	ok := c.call(a, req)
	c.end()
	switch {
	case a.taken:
		return false
	case !ok || a.finish() != nil:
		a.abort()
		return false
	case hasBody && !body.Whole():
		c.linger()
		return false
	}
	return !a.closing
}

// call runs the handler; false: it panicked, and there is no more to say.
func (c *http1) call(a *answer, req *http.Request) (ok bool) {
	defer func() {
		if v := recover(); v != nil {
			ok = false
			if v != http.ErrAbortHandler { //nolint:errorlint // the value itself is panicked with
				c.run.cfg.Log.Error("panic in a request", "panic", v, "cell", c.st.cell)
			}
		}
	}()
	c.handle(c.ctx, c.st, a, req)
	return true
}

// await returns once the head of a request has begun to come, with a deadline
// set for the rest of it, if there is more to come. False: none comes.
func (c *http1) await() bool {
	t := c.run.cfg.Timeouts
	longest := t.KeepAlive
	// A client that has just come is not sent away by an end of the server: its
	// request may be on its way.
	fresh := c.last == ""
	if fresh {
		longest = t.Header
	}
	c.st.idle.Store(!fresh)
	defer c.st.idle.Store(false)
	if fresh {
		c.st.silent.Store(c.run.cfg.Now().UnixNano())
		defer c.st.silent.Store(0)
	}
	hot := min(hotTime, longest)
	if c.in.Buffered() == 0 {
		c.deadlineAbout(hot)
	}
	if !fresh && c.run.draining.Load() && c.in.Buffered() == 0 {
		return false
	}
	whole, err := c.in.Begin()
	if timedOut(err) && longest > hot {
		c.deadline(c.run.cfg.Now().Add(longest - hot))
		if !fresh && c.run.draining.Load() {
			return false
		}
		if err = c.in.Wait(); err == nil {
			c.deadline(c.run.cfg.Now().Add(t.Header))
			whole, err = c.in.Begin()
		}
	}
	if err != nil {
		c.unended(err)
		return false
	}
	if !whole {
		c.deadline(c.run.cfg.Now().Add(t.Header))
	}
	return true
}

// deadline sets when reading from the client ends.
func (c *http1) deadline(t time.Time) {
	if c.readBy.Equal(t) {
		return
	}
	c.readBy = t
	_ = c.conn.SetReadDeadline(t) // a closed connection says so when it is read
}

// deadlineAbout has reading end d from now, or up to half as soon: moving a
// deadline for every request would cost as much as reading one.
func (c *http1) deadlineAbout(d time.Duration) {
	now := c.run.cfg.Now()
	if left := c.readBy.Sub(now); c.readBy.IsZero() || left < d/2 || left > d {
		c.deadline(now.Add(d))
	}
}

// helloType begins what a client says to a proxy that it takes to speak TLS. There may
// be no line end in it, for which it would be waited in vain.
const helloType = "\x16"

// errTLSDoor is answered in the clear: the door has no certificate (docs/protocols.md).
var errTLSDoor = &h1.Error{Status: http.StatusBadRequest, Text: "TLS to the proxy itself, whose address begins with http:// for https too"} //nolint:gochecknoglobals // a constant that Go cannot spell

// reject answers a head that cannot be read, or not be understood, with a
// refusal that is recorded.
func (c *http1) reject(err error) {
	status := headStatus(err)
	if status == 0 {
		c.slow(err)
		return // the client is gone or too slow; finish records it
	}
	c.st.requests.Add(1)
	reason := rules.BadRequest
	if errors.Is(err, h1.ErrTooLarge) {
		reason, err = rules.Limit, c.run.largeHead()
	}
	err = c.run.cfg.Gate.Refuse(c.ctx, c.st.unread(), reason, fmt.Errorf("%w: %w", errHead, err))
	denied, ok := errors.AsType[*gate.DeniedError](err)
	if !ok {
		return
	}
	d := denialOf(denied, c.st.cell, subject{endpoint: c.st.endpoint, secure: c.st.secure})
	d.status = status
	body := d.sentence + "\n"
	a := &c.answer
	a.begin(c, &http.Request{ProtoMajor: 1, ProtoMinor: 1, Close: true, Body: http.NoBody})
	h := a.Header()
	d.header(h)
	h["Content-Type"] = []string{textPlain}
	h["Content-Length"] = []string{fmt.Sprint(len(body))}
	a.WriteHeader(status)
	_, _ = io.WriteString(a, body)
	if a.finish() == nil {
		c.linger()
	}
}

// unended notes a head that was begun, and whose rest err took away.
func (c *http1) unended(err error) {
	if c.in.Buffered() > 0 {
		c.st.heads.Add(1)
		c.slow(err)
	}
}

// slow notes that a head which was begun did not come to its end in time, if that
// is what err says.
func (c *http1) slow(err error) {
	if timedOut(err) && !c.run.draining.Load() {
		c.st.slowHead = true
	}
}

// headStatus is how a head that cannot be read, or not be understood, is
// answered: 0 is not at all.
func headStatus(err error) int {
	if bad, ok := errors.AsType[*h1.Error](err); ok {
		return bad.Status
	}
	if errors.Is(err, h1.ErrTooLarge) || beyondHead(err) != "" {
		return http.StatusRequestHeaderFieldsTooLarge
	}
	return 0
}

// linger ends the connection in a way that lets the client read what was said.
func (c *http1) linger() {
	if t, ok := c.conn.(interface{ CloseWrite() error }); ok {
		_ = t.CloseWrite() // in TLS, says that there is no more
	}
	if c.conn != net.Conn(c.st.conn) {
		_ = c.st.conn.CloseWrite()
	}
	_ = c.st.conn.SetReadDeadline(c.run.cfg.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, struct{ io.Reader }{c.st.conn}, lingerBytes)
}

// begin notes that a request is under way, and has its client watched if it
// takes long.
func (c *http1) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = true
	if c.timer == nil {
		c.timer = time.AfterFunc(watchAfter, c.look)
	} else {
		c.timer.Reset(watchAfter)
	}
}

// look waits for the client to hang up, or to go on. While it does, nobody
// else reads from the connection.
func (c *http1) look() {
	c.mu.Lock()
	if !c.busy || c.watch != nil {
		c.mu.Unlock()
		return
	}
	if body, ok := c.answer.req.Body.(*h1.Body); ok && !body.Whole() {
		c.timer.Reset(watchAfter) // who reads the body will see it
		c.mu.Unlock()
		return
	}
	done := make(chan struct{})
	c.watch = done
	c.deadline(noDeadline)
	c.mu.Unlock()
	err := c.in.Wait()
	c.mu.Lock()
	if err != nil && !c.quit {
		c.cancel()
	}
	c.mu.Unlock()
	close(done)
}

// end takes the right to read back.
func (c *http1) end() {
	c.timer.Stop()
	c.mu.Lock()
	c.busy = false
	watch := c.watch
	if watch != nil {
		c.quit = true
		c.deadline(longAgo)
	}
	c.mu.Unlock()
	if watch == nil {
		return
	}
	<-watch
	c.mu.Lock()
	c.watch, c.quit = nil, false
	c.mu.Unlock()
	c.deadline(noDeadline)
}

var longAgo = time.Unix(1, 0) //nolint:gochecknoglobals // a constant that Go cannot spell
