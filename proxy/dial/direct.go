package dial

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"

	"sallyport/rules"
)

// errH2 says that a connection agreed on HTTP/2, which net/http is to speak on it.
var errH2 = errors.New("HTTP/2 was agreed on")

// newRequest makes the request that is sent over a wire, which can only be the
// one admitted: place, path and query are written as they were judged.
func newRequest(admitted rules.Request, query string, req *http.Request) (*request, error) {
	port := uint16(80)
	if admitted.Secure {
		port = 443
	}
	r := &request{Request: req, target: admitted.Path.String(), host: admitted.Endpoint.Authority(port), length: req.ContentLength}
	if admitted.Path.IsZero() && admitted.Method == http.MethodOptions {
		r.target = "*" // RFC 9110 section 9.3.7
	}
	if query != "" {
		r.target += "?" + query
	}
	if r.target == "" || r.target[0] != '/' && r.target != "*" || !sendable(r.target) {
		return nil, &Error{
			Op: "requesting", To: admitted.Endpoint.String(), Status: statusRequest,
			Err: errors.New("path cannot be sent as it was judged"),
		}
	}
	switch req.Body {
	case nil, http.NoBody:
		r.length = 0
	default:
		r.body = req.Body
		if r.length == 0 {
			r.length = -1 // net/http's way of saying that it is not known
		}
	}
	return r, nil
}

// sendable reports that nothing in a request target would end it.
func sendable(target string) bool {
	for i := range len(target) {
		if c := target[i]; c <= ' ' || c == 0x7f {
			return false
		}
	}
	return true
}

// roundTrip sends a request over a wire, idle or new. A request that may be
// sent twice is, if an idle wire turns out to have been closed.
func (d *Dialer) roundTrip(ctx context.Context, t *ticket, r *request) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(ctx)
	for {
		w := t.pool.take(t.key())
		if w == nil {
			var err error
			if w, err = d.openWire(ctx, t, r.upgrades()); err != nil {
				if r.body != nil && !errors.Is(err, errH2) {
					_ = r.body.Close()
				}
				return nil, err
			}
		}
		if trace != nil && trace.GotConn != nil {
			trace.GotConn(httptrace.GotConnInfo{Conn: w.conn, Reused: w.reused})
		}
		resp, again, err := w.exchange(ctx, r, d.cfg.Timeouts.Response)
		if err == nil || !again || !replayable(r.Method) {
			return resp, err
		}
	}
}

// replayable tells the methods that change nothing (RFC 9110 section 9.2.1).
func replayable(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	default:
		return false
	}
}

// openWire opens a connection to the place of a ticket. If HTTP/2 was agreed on
// the connection is the ticket's, for net/http, and the error errH2.
func (d *Dialer) openWire(ctx context.Context, t *ticket, upgrade bool) (*wire, error) {
	tcp, err := d.connect(ctx, t.addrs, t.pass.Request().Endpoint.Port)
	if err != nil {
		return nil, err
	}
	key := t.key()
	if !key.secure {
		return newWire(nil, tcp, t.pool, key)
	}
	c, err := d.handshake(ctx, t.tlsConfig(upgrade), tcp)
	if err != nil {
		return nil, err
	}
	if c.ConnectionState().NegotiatedProtocol == "h2" {
		t.pool.knowH2(key)
		t.ready.Store(c)
		return nil, errH2
	}
	return newWire(c, tcp, t.pool, key)
}

// tlsConfig is for the host that was admitted. RFC 6455 knows WebSocket over
// HTTP/1.1 alone.
func (t *ticket) tlsConfig(upgrade bool) *tls.Config {
	cfg := t.pool.tls.Clone()
	cfg.ServerName = t.pass.Request().Endpoint.Host.String()
	cfg.NextProtos = []string{"h2", "http/1.1"}
	if upgrade {
		cfg.NextProtos = []string{"http/1.1"}
	}
	return cfg
}

// dialSecure opens a connection in TLS for net/http, or hands over the one that
// is open already.
func (d *Dialer) dialSecure(ctx context.Context, network, addr string) (net.Conn, error) {
	t, ok := ctx.Value(ticketKey{}).(*ticket)
	if ok {
		if c := t.ready.Swap(nil); c != nil && addr == t.pass.Request().Endpoint.String() {
			return c, nil
		}
	}
	tcp, err := d.dialPooled(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c, err := d.handshake(ctx, t.tlsConfig(false), tcp)
	if err != nil {
		return nil, err // not a nil *tls.Conn in an interface
	}
	return c, nil
}
