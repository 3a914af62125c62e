package dial

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
)

// Forward sends the request that p admits and returns the answer's header
// with its body still to be read, as an [http.RoundTripper] does; it never
// follows a redirect.
//
// Scheme, host, port, method, path and query are those of p: whatever URL and
// Host req has are not looked at, and another method than the admitted one is
// an error. The one exception are the parameters that [Config.Params] names.
// Header and body are req's; a short body is read before anything is sent. The
// address that was dialled is told by a net/http/httptrace GotConn hook in ctx. Errors are as of [Dialer.Dial].
func (d *Dialer) Forward(ctx context.Context, p gate.Pass, req *http.Request) (*http.Response, error) {
	query, addrs, err := d.admitted(ctx, p, req)
	if err != nil {
		closeBody(req)
		return nil, err
	}
	pool := d.poolFor(p, addrs)
	t := &ticket{pass: p, addrs: addrs, pool: pool}
	resp, err := d.send(ctx, t, query, req)
	if err != nil {
		return nil, requestError(p.Request().Endpoint.String(), err)
	}
	if resp.StatusCode == http.StatusSwitchingProtocols && req.Header.Get("Upgrade") == "" {
		_ = resp.Body.Close() // the answer is refused whatever this says
		return nil, &Error{
			Op: "requesting", To: p.Request().Endpoint.String(), Status: statusResponse,
			Err: errors.New("upstream switched protocols without being asked"),
		}
	}
	return resp, nil
}

// send sends a request over HTTP/1.1 by itself, and has net/http send it where
// HTTP/2 is spoken.
func (d *Dialer) send(ctx context.Context, t *ticket, query string, req *http.Request) (*http.Response, error) {
	if t.pool.tls != nil && (!t.pool.speaksH2(t.key()) || req.Header["Upgrade"] != nil) {
		resp, again, err := d.sendDirectly(ctx, t, query, req)
		if !errors.Is(err, errH2) {
			return resp, err
		}
		req = again
	}
	ctx = context.WithValue(ctx, ticketKey{}, t)
	out, err := t.outgoing(ctx, query, req)
	if err != nil {
		closeBody(req)
		return nil, err
	}
	resp, err := t.pool.transport.RoundTrip(out)
	t.pool.settle()
	if c := t.ready.Swap(nil); c != nil {
		_ = c.Close() // net/http had another one
	}
	return resp, err
}

// sendDirectly sends a request over HTTP/1.1. With errH2 it returns the request
// that is to be sent instead: a short body was read already.
func (d *Dialer) sendDirectly(ctx context.Context, t *ticket, query string, req *http.Request) (resp *http.Response, again *http.Request, err error) {
	r, err := newRequest(t.pass.Request(), query, req)
	if err == nil {
		err = r.readSmall()
	}
	if err != nil {
		closeBody(req)
		return nil, nil, err
	}
	resp, err = d.roundTrip(ctx, t, r)
	if again = req; r.small != nil {
		again = req.WithContext(ctx)
		again.Body = io.NopCloser(bytes.NewReader(r.small))
	}
	return resp, again, err
}

// closeBody does what a RoundTripper must, also on error.
func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// ticket goes with a request to the dial that it may lead to: by net/http, in the
// request's context.
type ticket struct {
	pass  gate.Pass
	addrs []netip.Addr // vetted for pass
	pool  *pool
	ready atomic.Pointer[tls.Conn] // open already, for net/http
}

type ticketKey struct{}

func (t *ticket) key() wireKey {
	r := t.pass.Request()
	return wireKey{secure: r.Secure, to: r.Endpoint}
}

// admitted holds a request against the pass, and vets where it goes. This is
// done for every request, whether or not a connection for it is open: what one
// may reach, another may not. It returns the query that is sent.
func (d *Dialer) admitted(ctx context.Context, p gate.Pass, req *http.Request) (query string, addrs []netip.Addr, err error) {
	r := p.Request()
	switch {
	case !p.Dialable() || r.Question != rules.Fetch:
		return "", nil, &Error{Op: "requesting", Status: statusInternal, Err: ErrNoPass}
	case req.Method != r.Method:
		return "", nil, &Error{
			Op: "requesting", To: r.Endpoint.String(), Status: statusInternal,
			Err: fmt.Errorf("method %q was not the one admitted: %w", req.Method, ErrNoPass),
		}
	case !upgradeKnown(req.Header):
		return "", nil, &Error{
			Op: "requesting", To: r.Endpoint.String(), Status: statusRequest,
			Err: errors.New("WebSocket is the only upgrade there is"),
		}
	}
	if query, err = d.query(p, req.URL); err != nil {
		return "", nil, &Error{Op: "requesting", To: r.Endpoint.String(), Status: statusInternal, Err: err}
	}
	addrs, err = d.vetted(ctx, p)
	return query, addrs, err
}

// outgoing makes the request that net/http sends, which can only be the one
// admitted.
func (t *ticket) outgoing(ctx context.Context, query string, req *http.Request) (*http.Request, error) {
	r := t.pass.Request()
	u, err := admittedURL(r)
	if err != nil {
		return nil, &Error{Op: "requesting", To: r.Endpoint.String(), Status: statusRequest, Err: err}
	}
	u.RawQuery = query
	out := req.WithContext(ctx)
	out.URL, out.Host, out.RequestURI = u, u.Host, ""
	out.Header = maps.Clone(req.Header) // net/http has goroutines, which may look at it late
	out.Close = false                   // the client's wish is about its own connection
	return out, nil
}

// query returns the query that is sent: the admitted one, but for the parameters
// that hold a credential. Each of them stands there at most once, spelled as it
// is named; all else is the admitted query, octet for octet.
func (d *Dialer) query(p gate.Pass, u *url.URL) (string, error) {
	r := p.Request()
	if d.cfg.Params == nil || u == nil || u.RawQuery == r.Query || p.Decision().Credential == "" || !r.Secure {
		return r.Query, nil
	}
	names := d.cfg.Params(p)
	if len(names) == 0 {
		return r.Query, nil
	}
	changed := func() (string, error) { return "", fmt.Errorf("the query was not the one admitted: %w", ErrNoPass) }
	if target.WithoutParams(u.RawQuery, names) != target.WithoutParams(r.Query, names) {
		return changed()
	}
	seen := map[string]bool{}
	for part := range strings.SplitSeq(u.RawQuery, "&") {
		if !slices.ContainsFunc(names, func(n string) bool { return target.ParamNamed(part, n) }) {
			continue
		}
		key, value, _ := strings.Cut(part, "=")
		if seen[key] || !slices.Contains(names, key) || strings.ContainsFunc(value, notInValue) {
			return changed()
		}
		seen[key] = true
	}
	return u.RawQuery, nil
}

// notInValue reports what does not stand in the value of one parameter
// (RFC 3986 section 3.4), and the semicolon, which some read as a separator.
func notInValue(c rune) bool {
	return c <= ' ' || c >= 0x7f || strings.ContainsRune(";#\"<>\\^`{|}", c)
}

// upgradeKnown reports whether h asks for no upgrade or for WebSocket, which
// net/http then sends over HTTP/1.1 (RFC 6455 section 4.1).
func upgradeKnown(h http.Header) bool {
	up := h.Values("Upgrade")
	return len(up) == 0 || len(up) == 1 && strings.EqualFold(up[0], "websocket")
}

// admittedURL writes the admitted place and path as they were judged.
func admittedURL(r rules.Request) (*url.URL, error) {
	scheme, port := "http", uint16(80)
	if r.Secure {
		scheme, port = "https", 443
	}
	path := r.Path.String()
	u := &url.URL{Scheme: scheme, Host: r.Endpoint.Authority(port), RawQuery: r.Query}
	if r.Path.IsZero() {
		if r.Method != http.MethodOptions {
			return nil, errors.New("no path")
		}
		u.Opaque = "*" // RFC 9110 section 9.3.7
		return u, nil
	}
	plain, err := url.PathUnescape(path)
	if err != nil {
		return nil, fmt.Errorf("path: %w", err)
	}
	u.Path, u.RawPath = plain, path
	if u.EscapedPath() == path {
		return u, nil
	}
	// net/url would escape what the client did not ({ or |, say). Opaque sends
	// the very octets, but takes two slashes at its start for an authority.
	if strings.HasPrefix(path, "//") {
		return nil, errors.New("path cannot be sent as it was judged")
	}
	u.Path, u.RawPath, u.Opaque = "", "", path
	return u, nil
}

// dialPooled opens a connection for a transport. net/http detaches a dial
// from the request that asked for it, so that it may outlive that request; the
// request's pass must still hold when the dial begins. The addresses are those
// that were vetted: nothing is looked up again.
func (d *Dialer) dialPooled(ctx context.Context, _, addr string) (net.Conn, error) {
	t, ok := ctx.Value(ticketKey{}).(*ticket)
	if !ok || !t.pass.Dialable() {
		return nil, &Error{Op: "dialling", To: addr, Status: statusInternal, Err: ErrNoPass}
	}
	end := t.pass.Request().Endpoint
	if addr != end.String() {
		return nil, &Error{
			Op: "dialling", To: addr, Status: statusInternal,
			Err: fmt.Errorf("the pass is for %v: %w", end, ErrNoPass),
		}
	}
	return d.connect(ctx, t.addrs, end.Port)
}

func isDenied(err error) bool {
	var denied *gate.DeniedError
	return errors.As(err, &denied)
}
