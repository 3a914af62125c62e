package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
)

// exchange is one request and its answer.
type exchange struct {
	*run
	st     *stream
	w      http.ResponseWriter // an *answer, or net/http's for HTTP/2
	in     *http.Request
	ctx    context.Context //nolint:containedctx // the request's, for the closing record
	form   form
	secure bool

	out    http.Request // what is sent
	to     url.URL      // of out
	fields http.Header  // the memory of out's header

	pass      gate.Pass
	kept      Keeper // nil: nothing is
	websocket bool
	counted   bool         // among the requests of the cell
	judged    int64        // Server.judged, before pass was asked for
	body      *requestBody // what is sent upstream; nil for nothing

	// The outcome.
	status     int
	received   int64
	sent       atomic.Int64 // the body may be read by another goroutine
	reason     rules.Reason
	err        error
	badBody    atomic.Pointer[error] // why the sandbox's body could not be read
	allSent    atomic.Bool           // the body was read to its end
	overBody   atomic.Bool           // it was longer than it may be, and cut off
	overOctets atomic.Pointer[error] // the refusal of octets beyond a limit, either way

	refused atomic.Pointer[gate.DeniedError] // why the rest of the body may not be sent

	bodyStopped atomic.Bool // and nobody reads it any more
	whole       bool        // the answer was passed on to its end

	mu       sync.Mutex     // guards addr and answered, and the header while it is not
	addr     netip.AddrPort // that was dialled
	answered bool           // too late for interim answers
}

// serveInspected answers the requests inside a terminated stream.
func (r *run) serveInspected(ctx context.Context, st *stream, w http.ResponseWriter, req *http.Request) {
	x := r.newExchange(ctx, st, w, req)
	x.secure = st.secure
	defer x.end()
	x.serve(st.explain)
}

// serveAbsolute answers what comes to the explicit listener and is no CONNECT:
// it must be in absolute form (CN-12), for plain HTTP.
func (r *run) serveAbsolute(w http.ResponseWriter, req *http.Request) {
	x := r.newExchange(req.Context(), streamFrom(req.Context()), w, req)
	defer x.end()
	x.serve(false)
}

func (r *run) newExchange(ctx context.Context, st *stream, w http.ResponseWriter, req *http.Request) *exchange {
	x, ok := r.exchanges.Get().(*exchange)
	if !ok {
		x = new(exchange)
	}
	x.run, x.st, x.w, x.in, x.ctx = r, st, w, req, ctx
	if a, ok := w.(*answer); ok {
		a.c.now.Store(x)
	}
	st.requests.Add(1)
	return x
}

// serve takes the steps of one request; explain says that the place was denied
// already.
func (x *exchange) serve(explain bool) {
	over := x.admitted()
	err := x.read()
	if bad, ok := errors.AsType[*formError](err); ok {
		x.refuse(bad.reason, bad.err)
		return
	}
	if over != nil {
		x.refuse(rules.Limit, over)
		return
	}
	cleanRequest(x.in.Header)
	if x.websocket, err = readUpgrade(x.in); err != nil {
		x.refuse(rules.BadRequest, err)
		return
	}
	if asksDNS(x.in.Header) {
		x.refuse(rules.ProtocolNotAllowed, errDoH)
		return
	}
	req := x.request()
	req.Carries = x.cfg.Find(x.st.cell, x.in)
	ready := x.cfg.Ready
	if explain {
		ready = nil // it will be refused here, whatever the policy says now
	}
	x.judged = x.run.judged.Load()
	if x.pass, err = x.cfg.Gate.AdmitUsing(x.ctx, req, ready); err != nil {
		x.deny(err)
		return
	}
	if explain {
		// The policy changed since the stream began. The stream is still the
		// one of a denied place, and is never carried on.
		x.reason = x.st.pass.Decision().Reason
		x.in.Close = true
		x.answer(denialOf(&gate.DeniedError{Reason: x.reason, ID: x.pass.ID(), Decision: x.pass.Decision()}, x.st.cell, x.subject()))
		return
	}
	x.keep()
	x.forward()
}

// admitted counts the request and holds it back if need be; the error says which
// bound it is beyond.
func (x *exchange) admitted() error {
	if x.st.over {
		return errConns
	}
	if x.counted = x.run.requests.Take(x.st.cell); !x.counted {
		return errRequests
	}
	return x.paced(x.ctx, x.st.cell)
}

// read takes the request's form from its head.
func (x *exchange) read() (err error) {
	x.form, err = readForm(x.in, x.secure)
	if bad := x.badHead(x.in); bad != nil {
		return bad
	}
	if err != nil {
		return err
	}
	return x.agrees()
}

// agrees compares the authority with the place that the stream is for.
func (x *exchange) agrees() error {
	st := x.st
	switch {
	case st.endpoint.Host.IsZero() && !x.form.absolute: // the explicit listener: CN-12
		return malformed("not the absolute form that a proxy is sent")
	case st.endpoint.Host.IsZero():
	case st.reason != "":
		return &formError{st.reason, fmt.Errorf("the server name %q is not the one of the stream", st.hello)}
	case st.explain: // denied whatever it says; judged by the stream's place
		x.form.endpoint = st.endpoint
		return nil
	case x.form.endpoint != st.endpoint:
		return &formError{rules.AuthorityMismatch, fmt.Errorf("authority %v", x.form.endpoint)}
	}
	if !x.secure && x.form.endpoint.Port == defaultPort(true) {
		// CN-02: nobody speaks it there, and what was meant to be encrypted
		// would leave in the clear.
		return &formError{rules.ProtocolNotAllowed, errors.New("plain HTTP to the port of HTTPS")}
	}
	return nil
}

// request is the question to the gate.
func (x *exchange) request() rules.Request {
	req := rules.Request{
		Question: rules.Fetch, Cell: x.st.cell, Endpoint: x.st.endpoint, Secure: x.secure,
		Method: x.in.Method, Path: x.form.path, Query: x.form.query,
		Header: x.in.Header, Length: x.in.ContentLength, // nobody changes the fields from here on: what is sent is a clone
	}
	if req.Endpoint.Host.IsZero() {
		req.Endpoint = x.form.endpoint
	}
	return req
}

// refuse has a request recorded that is refused before a policy is asked, without the
// placeholders that it leaks.
func (x *exchange) refuse(reason rules.Reason, cause error) {
	req := x.request()
	req.Carries = append(x.cfg.Find(x.st.cell, x.in), x.run.inName(x.st)...)
	if name, err := target.ParseName(x.st.hello); err == nil && x.cfg.FindName != nil { // the cause may cite it
		req.Carries = append(req.Carries, x.cfg.FindName(x.st.cell, name)...)
	}
	x.deny(x.cfg.Gate.Refuse(x.ctx, req, reason, cause))
}

// deny answers with a refusal that is recorded already.
func (x *exchange) deny(err error) {
	denied, ok := errors.AsType[*gate.DeniedError](err)
	if !ok {
		denied = &gate.DeniedError{Reason: rules.BadRequest, Err: err}
	}
	x.answer(denialOf(denied, x.st.cell, x.subject()))
}

func (x *exchange) subject() subject {
	return subject{method: x.in.Method, endpoint: x.request().Endpoint, path: x.form.path, ask: x.in, secure: x.secure}
}

const (
	// A refused request may take this long and send this much to end its
	// body, so that its connection can be used again.
	bodyGrace = 5 * time.Second
	bodyRest  = 256 << 10
)

// answer writes a refusal or a fault instead of upstream's answer.
func (x *exchange) answer(d denial) {
	rest := x.in.ProtoMajor == 1 && x.in.ContentLength != 0
	if rest {
		// Say it at once, and not after the body (HT-20).
		x.duplex()
		_ = http.NewResponseController(x.w).SetReadDeadline(x.cfg.Now().Add(bodyGrace)) // HTTP/1 has it
	}
	// With much of a body to come, the connection is not worth keeping.
	drain := rest && x.in.ContentLength > 0 && x.in.ContentLength <= bodyRest && x.in.Header.Get("Expect") == ""
	h := x.w.Header()
	clear(h)
	d.header(h)
	if rest && !drain || x.in.ProtoMajor == 1 &&
		(x.in.Close || d.status == http.StatusMisdirectedRequest || d.status == http.StatusBadRequest) {
		h.Set("Connection", "close")
		drain = false
	}
	x.status = d.write(x.w, x.in)
	if drain {
		_ = http.NewResponseController(x.w).Flush()
		_, _ = io.CopyN(io.Discard, x.in.Body, bodyRest) // what is left over ends the connection
	}
}

// duplex lets the answer begin before the request's body has ended. net/http
// then does not read the rest itself, in the transport's stead. It must not do
// so after the handler either, if the connection is to be used again: it
// would read twice at once. So the body is at its end by then, or the answer
// says that the connection closes.
func (x *exchange) duplex() {
	_ = http.NewResponseController(x.w).EnableFullDuplex() // HTTP/1 has it
}

// forward sends an admitted request on its way.
func (x *exchange) forward() {
	if !x.st.track(x.pass, x.judged) {
		x.err = errRejudged
		panic(http.ErrAbortHandler) // its client is gone
	}
	if n, ok := x.form.endpoint.Host.Name(); ok && n.String() == rules.Reserved {
		x.in = x.in.WithContext(withCell(x.ctx, x.st.cell))
		x.cfg.Internal.ServeHTTP(&counted{x}, x.in)
		return
	}
	if x.in.ContentLength != 0 && x.in.ProtoMajor == 1 {
		x.duplex()
	}
	resp, err := x.fetch()
	x.mu.Lock()
	x.answered = true
	x.mu.Unlock()
	if err != nil {
		x.failed(err)
		return
	}
	defer resp.Body.Close()
	if err := x.bound(resp); err != nil {
		x.failed(err)
		return
	}
	x.passOn(resp)
}

// end closes the exchange, after a panic too: it costs this request alone.
func (x *exchange) end() {
	v := recover()
	if v != nil && v != http.ErrAbortHandler { //nolint:errorlint // the value itself is panicked with
		x.cfg.Log.Error("panic in a request", "panic", v, "cell", x.st.cell, "host", x.form.endpoint.String())
		x.err = errors.Join(x.err, fmt.Errorf("%w: %v", errPanic, v))
		if x.pass.ID() == "" && x.status == 0 { // not recorded yet in any way
			_ = x.cfg.Gate.Refuse(x.ctx, x.request(), rules.BadRequest, x.err)
		}
	}
	if x.overBody.Load() && x.reason == "" {
		x.reason = rules.BodyTooLarge
	}
	if over := x.overOctets.Load(); over != nil {
		x.reason, x.err = rules.Limit, cmp.Or(x.err, *over)
	}
	if denied := x.refused.Load(); denied != nil && x.reason == "" { // the answer was under way already
		x.reason, x.err = denied.Reason, errors.Join(x.err, denied)
	}
	x.stopBody()
	if x.counted {
		x.run.requests.Give(x.st.cell)
	}
	if x.st.hijacked.Load() {
		x.st.leave()
	}
	if x.pass.Valid() {
		x.st.untrack(x.pass)
		x.st.record(x.pass.Done(x.ctx, x.outcome()))
	}
	if x.st.hijacked.Load() {
		x.st.finish(x.ctx, nil)
	}
	if v != nil {
		panic(http.ErrAbortHandler)
	}
	x.release()
}

// release lends the memory of an exchange to another one (ADR-0056), if nobody can hold any of it:
// of a request with a body somebody may read the rest, and of one that failed net/http
// may not know yet.
func (x *exchange) release() {
	if x.in.ContentLength != 0 || !x.whole {
		return
	}
	pool, fields := &x.exchanges, x.fields
	clear(fields)
	*x = exchange{fields: fields}
	pool.Put(x)
}
