package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"sallyport/proxy/bulk"
	"sallyport/rules"
)

// noDeadline takes a deadline away.
var noDeadline time.Time //nolint:gochecknoglobals // a constant that Go cannot spell

// deadline bounds what is read and written next.
func (st *stream) deadline(d time.Duration) error {
	return st.conn.SetDeadline(st.run.cfg.Now().Add(d))
}

// inspectTLS terminates TLS and serves the requests inside.
func (r *run) inspectTLS(ctx context.Context, st *stream) {
	t, err := r.handshake(ctx, st)
	if err != nil {
		r.handshakeFailed(ctx, st, err)
		return
	}
	st.secure, st.h2 = true, t.ConnectionState().NegotiatedProtocol == "h2"
	if !st.h2 {
		st.handed()
		st.giveH2()
	}
	if err := st.conn.SetDeadline(noDeadline); err != nil {
		st.finish(ctx, err)
		return
	}
	if st.h2 {
		r.inspect(ctx, st, t) // net/http wants it as it is
		return
	}
	r.inspect(ctx, st, bulk.Over(t, st.conn.socket()))
}

// handshake makes TLS with the client.
func (r *run) handshake(ctx context.Context, st *stream) (*tls.Conn, error) {
	if !r.handshakes.Take(st.cell) {
		return nil, errHandshakes
	}
	defer r.handshakes.Give(st.cell)
	if err := st.deadline(r.cfg.Timeouts.Handshake); err != nil {
		return nil, err
	}
	t := tls.Server(bulk.Below(st.conn, st.conn.touch), r.tls)
	// The deadline and cut end a handshake; a context would cost a goroutine.
	return t, t.HandshakeContext(context.WithoutCancel(ctx))
}

// inspect serves the stream's requests. HTTP/2 is net/http's, which ends the
// stream as well (stream.httpState).
func (r *run) inspect(ctx context.Context, st *stream, c net.Conn) {
	if st.opened {
		st.track(st.pass, st.judged) // an idle stream is judged again as well
	}
	switch {
	case !st.h2:
		r.serveHTTP1(ctx, st, c, r.serveInspected)
	default:
		r.serveH2(ctx, st, c)
	}
}

// serveH2 hands a stream that speaks HTTP/2 to net/http.
func (r *run) serveH2(ctx context.Context, st *stream, c net.Conn) {
	ok := r.inner.feed.put(c)
	st.handed()
	if !ok {
		st.finish(ctx, errShutdown)
	}
}

func (r *run) handshakeFailed(ctx context.Context, st *stream, err error) {
	switch {
	case errors.Is(err, errHandshakes), errors.Is(err, errH2Conns):
		st.reason = cmp.Or(st.reason, rules.Limit)
		st.abort(ctx, err)
		return
	case st.leafErr != nil:
		r.cfg.Log.Error("no certificate for a stream", "err", st.leafErr, "host", st.leaf.String())
	case timedOut(err):
		if st.reason == "" && !st.explain { // as below
			st.reason = rules.Limit
		}
		err = fmt.Errorf("it was not whole after %v: %w", r.cfg.Timeouts.Handshake, err)
	case rejectsCA(err):
		if st.reason == "" && !st.explain { // why it was refused anyway matters more
			st.reason = rules.ClientRejectedCA
		}
		why := "does not trust the CA"
		if hungUp(err) {
			why += ", or was ended"
		}
		err = fmt.Errorf("%w; the client %s: see docs/protocols.md", err, why)
	}
	st.finish(ctx, fmt.Errorf("handshake with the client: %w", err))
}

// rejectsCA recognises a client that does not trust our CA. With TLS 1.3 it
// says so under keys that we do not read with yet, or not at all; these are
// the names that it was seen under:
//
//	local error: tls: bad record MAC                   OpenSSL 3.0: curl, Python, cargo, PHP
//	EOF                                                Node
//	remote error: tls: unknown certificate authority   rustls: Deno, pnpm
//	remote error: tls: bad certificate                 Go
//	remote error: tls: unknown certificate             Chromium, Java
//	connection reset by peer                           GnuTLS: apt, wget; Bun
//
// A client that hung up for another reason looks the same under the second
// and the last; the fix that is shown does no harm then.
func rejectsCA(err error) bool {
	if hungUp(err) {
		return true
	}
	var op *net.OpError
	if !errors.As(err, &op) || op.Err == nil {
		return false
	}
	// crypto/tls does not export the type of an alert that came over TCP.
	switch op.Err.Error() {
	case "tls: bad record MAC", "tls: unknown certificate authority", "tls: bad certificate", "tls: unknown certificate":
		return true
	default:
		return false
	}
}

// hungUp recognises a client that went without a word.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
