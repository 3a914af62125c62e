package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"

	"sallyport/rules"
	"sallyport/rules/gate"
)

// RoundTrip implements http.RoundTripper for httputil.ReverseProxy: the last
// changes, the credential, and out.
func (x *exchange) RoundTrip(out *http.Request) (*http.Response, error) {
	x.prepare(out)
	ctx := out.Context()
	if err := x.cfg.Inject(ctx, x.pass, out); err != nil {
		if _, ok := errors.AsType[*gate.DeniedError](err); !ok {
			err = &gate.DeniedError{Reason: rules.BrokerUnavailable, ID: x.pass.ID(), Decision: x.pass.Decision(), Err: err}
		}
		return nil, err
	}
	resp, err := x.cfg.Forward(ctx, x.pass, out)
	if err != nil {
		return nil, err
	}
	if err := x.receive(resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// prepare makes of the clone that ReverseProxy made the request that was
// admitted, octet by octet.
func (x *exchange) prepare(out *http.Request) {
	out.URL, out.Host, out.RequestURI = x.url(), x.form.endpoint.Authority(defaultPort(x.secure)), ""
	out.Trailer = nil
	if out.Body != nil {
		d := x.pass.Decision()
		body := &requestBody{ReadCloser: out.Body, x: x, most: d.BodyLimit()}
		for name := range x.in.Trailer {
			if trailerAllowed(name) {
				if out.Trailer == nil {
					out.Trailer = make(http.Header)
				}
				out.Trailer[name] = nil
			}
		}
		body.trailer = out.Trailer
		out.Body = body
	}
	// ReverseProxy has put a trace of its own, made for this request, into the
	// context; adding to it saves composing two by reflection.
	if t := httptrace.ContextClientTrace(out.Context()); t != nil {
		t.GotConn = x.gotConn
	}
}

// url writes the place and the path as they were judged.
func (x *exchange) url() *url.URL {
	u := &url.URL{
		Scheme: schemeOf(x.secure), Host: x.form.endpoint.Authority(defaultPort(x.secure)),
		RawQuery: x.form.query,
	}
	path := x.form.path.String()
	if plain, err := url.PathUnescape(path); err == nil {
		u.Path = plain
		if plain != path {
			u.RawPath = path
		}
		if u.EscapedPath() == path {
			return u
		}
	}
	if strings.HasPrefix(path, "//") {
		return u // cannot be sent as it was judged: Forward refuses it
	}
	u.Path, u.RawPath, u.Opaque = "", "", path
	return u
}

func (x *exchange) gotConn(i httptrace.GotConnInfo) {
	if t, ok := i.Conn.RemoteAddr().(*net.TCPAddr); ok {
		a := t.AddrPort()
		a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
		x.addr.Store(&a)
	}
}

// receive looks at upstream's answer before the sandbox gets it. With an error
// the answer is done with.
func (x *exchange) receive(resp *http.Response) error {
	cleanResponse(resp.Header)
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return x.switchProtocols(resp)
	}
	x.known = resp.ContentLength >= 0
	resp.Body = &responseBody{ReadCloser: resp.Body, x: x, resp: resp}
	return nil
}

// failed is the ErrorHandler of all requests: httputil could not send one, or
// got no answer.
func failed(w http.ResponseWriter, _ *http.Request, err error) {
	if x, ok := w.(*exchange); ok {
		x.failed(err)
	}
}

func (x *exchange) failed(err error) {
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
	x.reason = refusedBy(err)
	if denied, ok := errors.AsType[*gate.DeniedError](err); ok {
		x.answer(denialOf(&gate.DeniedError{Reason: denied.Reason, ID: x.pass.ID(), Decision: denied.Decision}, x.st.cell, x.subject()))
		return
	}
	x.answer(faultOf(err, x.pass, x.subject()))
}

// Header implements http.ResponseWriter.
func (x *exchange) Header() http.Header { return x.w.Header() }

// WriteHeader implements http.ResponseWriter, also for 1xx answers. 100
// Continue is not passed on: our server says it when upstream begins to read
// the body.
func (x *exchange) WriteHeader(code int) {
	if code >= 200 {
		x.status = code
		if x.in.ContentLength != 0 && x.in.ProtoMajor == 1 && !x.allSent.Load() && x.sent.Load() != x.in.ContentLength {
			x.w.Header().Set("Connection", "close") // see duplex
		}
		x.w.WriteHeader(code)
		return
	}
	if code != http.StatusContinue {
		cleanResponse(x.w.Header())
		x.w.WriteHeader(code)
	}
}

// Write implements http.ResponseWriter. An answer with a length is flushed
// as it comes, too: the last piece would be at the end of the request anyway.
func (x *exchange) Write(b []byte) (int, error) {
	n, err := x.w.Write(b)
	x.received += int64(n)
	if err == nil && x.known {
		err = x.FlushError()
	}
	if err != nil && x.err == nil {
		x.err = fmt.Errorf("answering the client: %w", err)
	}
	return n, err
}

// FlushError is what http.ResponseController looks for.
func (x *exchange) FlushError() error {
	if f, ok := x.w.(interface{ FlushError() error }); ok {
		return f.FlushError()
	}
	return http.ErrNotSupported
}

// Unwrap gives http.ResponseController the rest.
func (x *exchange) Unwrap() http.ResponseWriter { return x.w }

// requestBody counts what is sent upstream, and passes on the trailer that
// may be passed on.
type requestBody struct {
	io.ReadCloser
	x       *exchange
	trailer http.Header
	most    int64       // octets, 0 for any number
	closed  atomic.Bool // by the transport, which wants no more of it
}

// Close implements io.Closer.
func (b *requestBody) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}

// errBodyTooLarge ends a body that is longer than a limit, whatever it declared.
var errBodyTooLarge = errors.New("the request's body is larger than its limit")

// Read implements io.Reader. Of a body that is too long no octet beyond the
// limit leaves: one more is read, to tell such a body from one that ends there.
func (b *requestBody) Read(p []byte) (int, error) {
	if b.x.overBody.Load() {
		return 0, errBodyTooLarge
	}
	left := b.most - b.x.sent.Load()
	if b.most > 0 && int64(len(p)) > left+1 {
		p = p[:left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if b.most > 0 && int64(n) > left {
		n, err = int(left), errBodyTooLarge
		b.x.overBody.Store(true)
	}
	b.x.sent.Add(int64(n))
	switch {
	case errors.Is(err, errBodyTooLarge):
	case errors.Is(err, io.EOF):
		b.x.allSent.Store(true)
		for name := range b.trailer {
			b.trailer[name] = b.x.in.Trailer[name]
		}
	case err != nil && !b.closed.Load(): // else upstream has gone, and the sandbox is not to blame
		err = fmt.Errorf("reading the request's body: %w", err)
		b.x.badBody.CompareAndSwap(nil, &err)
	}
	return n, err
}

// responseBody notices a body that ends before its time, and a trailer that
// is not upstream's to set.
type responseBody struct {
	io.ReadCloser
	x    *exchange
	resp *http.Response
}

// Read implements io.Reader.
func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		cleanResponse(b.resp.Trailer)
	case err != nil && b.x.err == nil:
		b.x.err = fmt.Errorf("reading the answer: %w", err)
	}
	return n, err
}
