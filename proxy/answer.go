package proxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"sallyport/proxy/h1"
)

// answer is the ResponseWriter of an http1. What is written is gathered and
// sent when it is flushed, when the buffer is full, and at the end.
type answer struct {
	c       *http1
	req     *http.Request
	header  http.Header
	trailer http.Header // after a body in chunks

	status  int
	left    int64 // still to come of the length that was told; -1: none was
	bare    bool  // no body may follow
	chunks  bool
	duplex  bool // the handler sees to the rest of the request's body
	closing bool // the connection ends with this answer
	taken   bool // the connection has got another owner

	finished bool

	buf  []byte // the pool's; nil until something is written
	head int    // octets of the head in it, at its start
	data int    // where the body's octets begin in it
	end  int    // and end
	err  error  // of writing

	mu   sync.Mutex // guards said, and the order of what is said
	said bool       // the head was begun: too late for 100 Continue
}

func (a *answer) begin(c *http1, req *http.Request) {
	a.c, a.req, a.trailer = c, req, nil
	a.header = nil
	a.status, a.left, a.bare, a.chunks, a.duplex, a.taken, a.finished = 0, -1, false, false, false, false, false
	a.closing = req.Close
	a.head, a.data, a.end, a.err = 0, 0, 0, nil
	a.mu.Lock()
	a.said = false
	a.mu.Unlock()
}

// Header implements [http.ResponseWriter].
func (a *answer) Header() http.Header {
	if a.header == nil { // upstream's answer brings its own
		a.header = make(http.Header)
	}
	return a.header
}

// EnableFullDuplex is what [http.ResponseController] looks for.
func (a *answer) EnableFullDuplex() error {
	a.duplex = true
	return nil
}

// SetReadDeadline is what [http.ResponseController] looks for.
func (a *answer) SetReadDeadline(t time.Time) error {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	if a.c.watch == nil { // else the request's body has ended already
		a.c.deadline(t)
	}
	return nil
}

// sendContinue says 100 Continue, unless the answer has begun.
func (a *answer) sendContinue() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.said {
		return nil
	}
	_, err := io.WriteString(a.c.conn, "HTTP/1.1 100 Continue\r\n\r\n")
	return err
}

// WriteHeader implements [http.ResponseWriter].
func (a *answer) WriteHeader(status int) {
	if a.status != 0 || a.taken {
		return
	}
	if status < http.StatusOK {
		a.inform(status)
		return
	}
	a.mu.Lock()
	a.said = true
	a.mu.Unlock()
	a.status = status
	a.settleBody()
	a.frame()
	b := a.buffer()[:0]
	b = a.appendStatus(b, status)
	b = h1.AppendHeader(b, a.header, a.unsaid)
	if a.header["Date"] == nil {
		b = append(b, "Date: "...)
		b = a.c.run.cfg.Now().UTC().AppendFormat(b, http.TimeFormat)
		b = append(b, "\r\n"...)
	}
	switch {
	case a.closing:
		b = append(b, "Connection: close\r\n"...)
	case a.req.ProtoMinor == 0:
		b = append(b, "Connection: keep-alive\r\n"...)
	}
	if a.chunks {
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	b = append(b, "\r\n"...)
	if len(b) > len(a.buf)/2 { // a head beyond what is usual goes by itself
		a.send(b)
		b = b[:0]
	}
	a.head = copy(a.buf, b) // where it is already, as a rule
	a.startBody()
}

// inform sends an interim answer (RFC 9110 section 15.2).
func (a *answer) inform(status int) {
	if a.req.ProtoMinor == 0 {
		return
	}
	b := a.appendStatus(make([]byte, 0, 512), status)
	b = append(h1.AppendHeader(b, a.header, a.unsaid), "\r\n"...)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.send(b)
}

func (a *answer) appendStatus(b []byte, status int) []byte {
	if a.req.ProtoMinor == 0 {
		b = append(b, "HTTP/1.0 "...)
	} else {
		b = append(b, "HTTP/1.1 "...)
	}
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	b = append(b, http.StatusText(status)...)
	return append(b, "\r\n"...)
}

// unsaid tells the fields that are not taken from the header.
func (a *answer) unsaid(name string) bool {
	switch name {
	case "Connection", "Transfer-Encoding":
		return true
	case "Content-Length":
		return a.chunks || a.status < http.StatusOK || a.status == http.StatusNoContent
	case "Trailer":
		return !a.chunks
	default:
		return false
	}
}

// settleBody decides what becomes of a request's body that the handler has
// not read, and does not mean to: a short rest is read, so that the connection
// can be used again.
func (a *answer) settleBody() {
	body, ok := a.req.Body.(*h1.Body)
	if !ok || body.Whole() || a.duplex {
		return
	}
	if body.Before == nil { // or else it was not even sent
		_ = a.SetReadDeadline(a.c.run.cfg.Now().Add(bodyGrace))
		_, _ = io.CopyN(io.Discard, body, bodyRest)
	}
	a.closing = a.closing || !body.Whole()
}

// frame decides how the end of the body is told (RFC 9112 section 6).
func (a *answer) frame() {
	a.closing = a.closing || a.req.Close || a.c.run.draining.Load()
	for _, v := range a.header["Connection"] {
		a.closing = a.closing || hasToken([]string{v}, "close")
	}
	a.bare = h1.Bodiless(a.req.Method, a.status)
	if a.bare {
		return
	}
	if v := a.header["Content-Length"]; len(v) == 1 {
		if n, err := strconv.ParseInt(v[0], 10, 64); err == nil && n >= 0 {
			a.left = n
			return
		}
	}
	delete(a.header, "Content-Length")
	a.chunks = a.req.ProtoMinor > 0
	a.closing = a.closing || !a.chunks
}

// buffer returns the buffer, which is taken from the pool when it is needed.
func (a *answer) buffer() []byte {
	if a.buf == nil {
		a.buf = a.c.run.buffers.Get()
	}
	return a.buf
}

// startBody makes room for what comes next.
func (a *answer) startBody() {
	a.data = a.head
	if a.chunks {
		a.data += h1.ChunkHead
	}
	a.end = a.data
}

// room returns where octets of the body go, of which there is always some;
// grow tells how many were put there.
func (a *answer) room() []byte {
	const least = 4 << 10
	if len(a.buf)-a.end < least {
		_ = a.flush() // room is made in any case
	}
	end := len(a.buf) - len("\r\n")
	if a.left >= 0 && int64(end-a.end) > a.left {
		end = a.end + int(a.left)
	}
	return a.buf[a.end:end]
}

func (a *answer) grow(n int) {
	a.end += n
	if a.left >= 0 {
		a.left -= int64(n)
	}
}

// flush sends what there is.
func (a *answer) flush() error {
	if a.buf == nil {
		return a.err
	}
	from, to := 0, a.end
	switch n := a.end - a.data; {
	case n == 0:
		to = a.head
	case a.chunks:
		// The line goes right before the chunk, and the head right before that.
		line := a.head + h1.PutChunkHead(a.buf[a.head:a.data], n)
		from = line - a.head
		copy(a.buf[from:line], a.buf[:a.head])
		to += copy(a.buf[to:], "\r\n")
	}
	if from < to {
		a.send(a.buf[from:to])
	}
	a.head = 0
	a.startBody()
	return a.err
}

// send writes to the client.
func (a *answer) send(b []byte) {
	if a.err == nil {
		_, a.err = a.c.conn.Write(b)
	}
}

// Write implements [http.ResponseWriter].
func (a *answer) Write(p []byte) (n int, err error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	switch {
	case a.taken:
		return 0, http.ErrHijacked
	case a.bare:
		return 0, http.ErrBodyNotAllowed
	case a.left >= 0 && int64(len(p)) > a.left:
		return 0, http.ErrContentLength
	}
	for len(p) > 0 && a.err == nil {
		k := copy(a.room(), p)
		a.grow(k)
		n += k
		p = p[k:]
	}
	return n, a.err
}

// FlushError is what [http.ResponseController] looks for.
func (a *answer) FlushError() error {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	return a.flush()
}

// Flush implements [http.Flusher].
func (a *answer) Flush() { _ = a.FlushError() }

// ready reports whether a body says that reading from it will not wait.
func ready(body io.Reader) bool {
	b, ok := body.(interface{ Ready() bool })
	return ok && b.Ready()
}

var errBodyTooLong = errors.New("upstream sent more than it announced")

// relay writes a body as it comes. Nothing is held back: what was read is sent
// before more is waited for, unless it is known that no more will come. It
// returns how much was read, and what went wrong reading or writing.
func (a *answer) relay(body io.Reader) (n int64, reading, writing error) {
	if a.left < 0 && !a.bare && !ready(body) {
		_ = a.flush() // the head; the body may be long in coming
	}
	for a.left != 0 && !a.bare {
		k, err := body.Read(a.room())
		a.grow(k)
		n += int64(k)
		if errors.Is(err, io.EOF) {
			if a.left > 0 {
				return n, io.ErrUnexpectedEOF, nil
			}
			return n, nil, nil
		}
		if a.left != 0 || err != nil {
			_ = a.flush()
		}
		if err != nil || a.err != nil {
			return n, err, a.err
		}
	}
	// The end is still to be seen, for the connection to be used again.
	var more [1]byte
	if k, err := body.Read(more[:]); k > 0 {
		return n, errBodyTooLong, nil
	} else if err != nil && !errors.Is(err, io.EOF) {
		return n, err, nil
	}
	return n, nil, nil
}

// finish sends the rest of the answer, once.
func (a *answer) finish() error {
	if a.finished {
		return a.err
	}
	a.finished = true
	defer a.free()
	if a.status == 0 {
		if a.header["Content-Length"] == nil {
			a.Header()["Content-Length"] = []string{"0"}
		}
		a.WriteHeader(http.StatusOK)
	}
	if a.left > 0 {
		return io.ErrShortWrite
	}
	if a.chunks {
		a.finishChunks()
	}
	return a.flush()
}

// finishChunks ends a body in chunks, in one piece with what there is.
func (a *answer) finishChunks() {
	last := h1.AppendLastChunk(make([]byte, 0, 64), a.trailer)
	a.chunks = false
	if n := a.end - a.data; n == 0 {
		a.end = a.head
	} else {
		line := a.head + h1.PutChunkHead(a.buf[a.head:a.data], n)
		copy(a.buf[a.head:], a.buf[line:a.end])
		a.end -= line - a.head
		a.end += copy(a.buf[a.end:], "\r\n")
	}
	a.data = a.head
	if len(last) > len(a.buf)-a.end {
		_ = a.flush()
	}
	if len(last) > len(a.buf)-a.end {
		a.send(last)
		return
	}
	a.end += copy(a.buf[a.end:], last)
}

// abort breaks an answer off, so that it cannot be taken for a whole one.
func (a *answer) abort() {
	if a.status != 0 && a.err == nil && !a.bare {
		_ = a.flush() // what has come so far
	}
	a.free()
	if !a.chunks && a.left < 0 {
		a.c.st.conn.reset() // only the end of the connection would tell
	}
}

func (a *answer) free() {
	if a.buf != nil {
		a.c.run.buffers.Put(a.buf)
		a.buf = nil
	}
	a.head, a.data, a.end = 0, 0, 0
}

// take hands the connection over, with what was read from it already.
func (a *answer) take() (net.Conn, []byte) {
	a.c.end()
	a.c.deadline(noDeadline)
	a.taken = true
	a.c.st.hijacked.Store(true)
	return a.c.conn, a.c.in.Unread()
}

// Hijack implements [http.Hijacker], for goproxy: what was read already is put
// back, since goproxy drops it (CN-16).
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, early := a.take()
	if c, ok := conn.(*clientConn); ok {
		c.early = append(early, c.early...)
		early = nil
	}
	if len(early) > 0 {
		return nil, nil, errors.Join(errors.New("proxy: taken over in the middle of TLS"), conn.Close())
	}
	const least = 16
	return conn, bufio.NewReadWriter(bufio.NewReaderSize(conn, least), bufio.NewWriterSize(conn, least)), nil
}
