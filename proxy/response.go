package proxy

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"sallyport/rules"
	"sallyport/rules/gate"
)

// fetch sends the admitted request, after the last changes and with the
// credential, and returns the answer with its body still to be read.
func (x *exchange) fetch() (*http.Response, error) {
	ctx := x.ctx
	if _, ok := x.w.(*answer); !ok { // the other has one for all its requests
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			GotConn: x.gotConn,
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				x.got1xx(code, http.Header(h))
				return nil
			},
		})
	}
	out := x.outgoing()
	if err := x.cfg.Inject(ctx, x.pass, out); err != nil {
		if _, ok := errors.AsType[*gate.DeniedError](err); !ok {
			err = &gate.DeniedError{Reason: rules.BrokerUnavailable, ID: x.pass.ID(), Decision: x.pass.Decision(), Err: err}
		}
		return nil, err
	}
	x.watchBody(out)
	resp, err := x.cfg.Forward(ctx, x.pass, out)
	if denied := x.refused.Load(); denied != nil && err == nil {
		err = errors.Join(denied, resp.Body.Close())
	}
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		cleanResponse(resp.Header)
		return nil, x.switchProtocols(resp)
	}
	return resp, nil
}

// outgoing makes the request that was admitted, octet by octet. The header of
// the one that came stays as it was judged: it may be judged again.
func (x *exchange) outgoing() *http.Request {
	x.url()
	if x.fields == nil {
		x.fields = make(http.Header, len(x.in.Header)+1)
	}
	maps.Copy(x.fields, x.in.Header)
	x.out = http.Request{
		Method: x.in.Method, URL: &x.to, Host: x.to.Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: x.fields, ContentLength: x.in.ContentLength, TransferEncoding: x.in.TransferEncoding,
	}
	out := &x.out
	forwardable(out.Header, x.websocket)
	if x.in.ContentLength == 0 {
		return out
	}
	d := x.pass.Decision()
	x.body = &requestBody{body: x.in.Body, x: x, most: d.BodyLimit()}
	x.body.counted, _ = x.pass.Bounds()
	for name := range x.in.Trailer {
		if trailerAllowed(name) {
			if out.Trailer == nil {
				out.Trailer = make(http.Header)
			}
			out.Trailer[name] = nil
		}
	}
	x.body.trailer = out.Trailer
	out.Body = x.body
	return out
}

// url writes the place and the path as they were judged.
func (x *exchange) url() {
	x.to = url.URL{
		Scheme: schemeOf(x.secure), Host: x.form.endpoint.Authority(defaultPort(x.secure)),
		RawQuery: x.form.query,
	}
	u := &x.to
	path := x.form.path.String()
	if plain, err := url.PathUnescape(path); err == nil {
		u.Path = plain
		if plain != path {
			u.RawPath = path
		}
		if u.EscapedPath() == path {
			return
		}
	}
	if strings.HasPrefix(path, "//") {
		return // cannot be sent as it was judged: Forward refuses it
	}
	u.Path, u.RawPath, u.Opaque = "", "", path
}

func (x *exchange) gotConn(i httptrace.GotConnInfo) {
	if t, ok := i.Conn.RemoteAddr().(*net.TCPAddr); ok {
		a := t.AddrPort()
		x.mu.Lock()
		x.addr = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
		x.mu.Unlock()
	}
}

// got1xx passes an interim answer on. 100 Continue is not one of them: our
// own server says it when upstream begins to read the body.
func (x *exchange) got1xx(code int, h http.Header) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.answered || code == http.StatusContinue || code == http.StatusSwitchingProtocols {
		return
	}
	hopByHop(h)
	cleanResponse(h)
	if x.cfg.Interim != nil && x.cfg.Interim(x.pass, h) != nil {
		return // nobody needs to see it
	}
	to := x.w.Header()
	copyHeader(to, h)
	x.w.WriteHeader(code)
	clear(to)
}

// passOn gives upstream's answer to the client as it comes.
func (x *exchange) passOn(resp *http.Response) {
	hopByHop(resp.Header)
	cleanResponse(resp.Header)
	if x.kept != nil {
		x.kept.Answer(resp.StatusCode, resp.Header)
		resp.Body = &keptBody{resp.Body, x.kept}
	}
	announced := len(resp.Trailer)
	if announced > 0 {
		resp.Header["Trailer"] = []string{strings.Join(keys(resp.Trailer), ", ")}
	}
	x.status = resp.StatusCode
	if x.in.ContentLength != 0 && x.in.ProtoMajor == 1 && !x.allSent.Load() && x.sent.Load() != x.in.ContentLength {
		resp.Header["Connection"] = []string{"close"} // see duplex
	}
	var reading, writing error
	if a, ok := x.w.(*answer); ok {
		a.header = resp.Header
		a.WriteHeader(resp.StatusCode)
		x.received, reading, writing = a.relay(resp.Body)
	} else {
		copyHeader(x.w.Header(), resp.Header)
		x.w.WriteHeader(resp.StatusCode)
		if resp.ContentLength < 0 {
			_ = http.NewResponseController(x.w).Flush() // the body may be long in coming
		}
		reading, writing = x.copyBody(resp.Body)
	}
	switch {
	case reading != nil:
		x.err = fmt.Errorf("reading the answer: %w", reading)
	case writing != nil:
		x.err = fmt.Errorf("answering the client: %w", writing)
	}
	if x.err != nil {
		panic(http.ErrAbortHandler) // what was sent must not look whole
	}
	_ = resp.Body.Close() // the trailer may be there only now
	if len(resp.Trailer) > 0 {
		cleanResponse(resp.Trailer)
		x.passTrailer(resp.Trailer, announced)
	}
	if a, ok := x.w.(*answer); ok {
		// Before the closing record, for which the client need not wait.
		if err := a.finish(); err != nil {
			x.err = fmt.Errorf("answering the client: %w", err)
			panic(http.ErrAbortHandler)
		}
	}
	x.whole = true
}

func keys(h http.Header) []string {
	out := make([]string, 0, len(h))
	for name := range h {
		out = append(out, name)
	}
	return out
}

// copyBody passes a body on to net/http, which speaks HTTP/2.
func (x *exchange) copyBody(body io.Reader) (reading, writing error) {
	buf := x.buffers.Get()
	defer x.buffers.Put(buf)
	flush := http.NewResponseController(x.w).Flush
	for {
		n, err := body.Read(buf)
		if n > 0 {
			k, werr := x.w.Write(buf[:n])
			x.received += int64(k)
			if werr == nil {
				werr = flush()
			}
			if werr != nil {
				return nil, werr
			}
		}
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return err, nil
		}
	}
}

func (x *exchange) passTrailer(t http.Header, announced int) {
	if a, ok := x.w.(*answer); ok {
		a.trailer = t
		return
	}
	// In HTTP/1 this would force chunks; here it forces a header block of its own.
	_ = http.NewResponseController(x.w).Flush()
	to := x.w.Header()
	if len(t) == announced {
		copyHeader(to, t)
		return
	}
	for name, values := range t {
		for _, v := range values {
			to.Add(http.TrailerPrefix+name, v)
		}
	}
}

// failed answers a request that could not be sent, or got no answer.
func (x *exchange) failed(err error) {
	x.stopBody()
	if errors.Is(err, errSwitched) {
		return
	}
	x.err = err
	if bad := x.badBody.Load(); bad != nil {
		x.err, x.reason = *bad, rules.BadRequest
		x.in.Close = true
		x.answer(denialOf(&gate.DeniedError{Reason: rules.BadRequest, ID: x.pass.ID(), Decision: x.pass.Decision()}, x.st.cell, x.subject()))
		return
	}
	if x.ctx.Err() != nil || x.st.hijacked.Load() {
		panic(http.ErrAbortHandler) // nobody is left to be told
	}
	if x.overBody.Load() {
		x.reason, x.in.Close = rules.BodyTooLarge, true
		x.answer(denialOf(&gate.DeniedError{Reason: rules.BodyTooLarge, ID: x.pass.ID(), Decision: x.pass.Decision()}, x.st.cell, x.subject()))
		return
	}
	if over := x.overOctets.Load(); over != nil { // whatever became of the rest
		x.err, err, x.in.Close = *over, *over, true
	}
	x.reason = refusedBy(err)
	if denied, ok := errors.AsType[*gate.DeniedError](err); ok {
		x.answer(denialOf(&gate.DeniedError{Reason: denied.Reason, ID: x.pass.ID(), Decision: denied.Decision, Wait: denied.Wait}, x.st.cell, x.subject()))
		return
	}
	x.answer(faultOf(err, x.pass, x.subject()))
}

// counted counts what our own handlers answer.
type counted struct{ x *exchange }

// Header implements [http.ResponseWriter].
func (c *counted) Header() http.Header { return c.x.w.Header() }

// WriteHeader implements [http.ResponseWriter].
func (c *counted) WriteHeader(code int) {
	if code >= http.StatusOK && c.x.status == 0 {
		c.x.status = code
	}
	c.x.w.WriteHeader(code)
}

// Write implements [http.ResponseWriter].
func (c *counted) Write(b []byte) (int, error) {
	if c.x.status == 0 {
		c.x.status = http.StatusOK
	}
	n, err := c.x.w.Write(b)
	c.x.received += int64(n)
	if err != nil && c.x.err == nil {
		c.x.err = fmt.Errorf("answering the client: %w", err)
	}
	return n, err
}

// Unwrap gives [http.ResponseController] the rest.
func (c *counted) Unwrap() http.ResponseWriter { return c.x.w }

// requestBody counts what is sent upstream, and passes on the trailer that
// may be passed on. After stop nobody reads any more.
type requestBody struct {
	x       *exchange
	trailer http.Header

	most    int64       // octets, 0 for any number
	counted bool        // against a limit
	closed  atomic.Bool // by the transport, which wants no more of it

	mu      sync.Mutex // guards body while it is read
	body    io.Reader
	stopped bool
}

// errBodyTooLarge ends a body that is longer than a limit, whatever it declared.
var errBodyTooLarge = errors.New("the request's body is larger than its limit")

// Read implements [io.Reader]. Of a body that is too long no octet beyond the
// limit leaves: one more is read, to tell such a body from one that ends there.
func (b *requestBody) Read(p []byte) (int, error) {
	if b.x.overBody.Load() {
		return 0, errBodyTooLarge
	}
	if over := b.x.overOctets.Load(); over != nil {
		return 0, *over
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped || b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.readBounded(p)
	if b.counted {
		n, err = b.x.count(b.x.pass.Send, n, err)
	}
	b.x.sent.Add(int64(n))
	b.x.keepSent(p[:n])
	switch {
	case errors.Is(err, errBodyTooLarge), refusedBy(err) != "":
	case errors.Is(err, io.EOF):
		for name := range b.trailer {
			b.trailer[name] = b.x.in.Trailer[name]
		}
		b.x.allSent.Store(true)
	case err != nil && !b.closed.Load() && !b.x.bodyStopped.Load(): // else upstream has gone, and the sandbox is not to blame
		err = fmt.Errorf("reading the request's body: %w", err)
		b.x.badBody.CompareAndSwap(nil, &err)
	}
	return n, err
}

func (b *requestBody) readBounded(p []byte) (int, error) {
	if b.most <= 0 {
		return b.body.Read(p)
	}
	left := b.most - b.x.sent.Load()
	n, err := b.body.Read(p[:min(int64(len(p)), left+1)])
	if int64(n) > left {
		n, err = int(left), errBodyTooLarge
		b.x.overBody.Store(true)
	}
	return n, err
}

// Close implements [io.Closer]. The transport closes what it does not read;
// that must not keep the exchange from reading the rest.
func (b *requestBody) Close() error {
	b.closed.Store(true)
	return nil
}

// stopBody keeps the transport from reading on in the client's connection,
// whose next owner waits for this.
func (x *exchange) stopBody() {
	b := x.body
	if b == nil || x.allSent.Load() || x.bodyStopped.Swap(true) {
		return
	}
	a, own := x.w.(*answer)
	if own {
		_ = a.SetReadDeadline(longAgo) // ends a read that is under way
	} else {
		_ = x.in.Body.Close() // net/http's can be closed while it is read
	}
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	if own {
		_ = a.SetReadDeadline(noDeadline)
	}
}
