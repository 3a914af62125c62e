package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"

	"sallyport/proxy/sniff"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
)

var (
	errHead       = errors.New("the request head could not be read")
	errPanic      = errors.New("panic")
	errRejudged   = errors.New("a change of policy no longer allows it")
	errUnrecorded = errors.New("the log could not be written for too long")
	errOwnAddress = errors.New("addressed to the listener itself, not redirected to it")
	errSlowStart  = errors.New("what the client began to say was not whole in time")
	errNoName     = errors.New("TLS without a server name, on a stream that is not terminated")
)

// redirected opens a stream of the transparent listener. Where it was going
// is a virtual address, which stands for a name, or else a bare address.
func (r *run) redirected(ctx context.Context, st *stream) {
	ctx = gate.WithOrigin(ctx, st.origin())
	dst, err := r.cfg.OriginalDst(st.conn.Conn)
	if err == nil && dst.String() == st.conn.LocalAddr().String() {
		err = errOwnAddress
	}
	if err != nil {
		_ = r.cfg.Gate.Refuse(ctx, rules.Request{Question: rules.Connect, Cell: st.cell}, rules.BadRequest, err)
		st.abort(ctx, nil)
		return
	}
	st.endpoint = target.Endpoint{Host: target.HostOfAddr(dst.Addr()), Port: dst.Port()}
	if name, ok := r.cfg.NameOf(st.cell, dst.Addr()); ok {
		st.endpoint.Host = target.HostOf(name)
	}
	r.connect(ctx, st)
}

// connect asks for a stream whose place is known, and carries it as far as
// the answer allows. It returns when the stream is done or handed on.
func (r *run) connect(ctx context.Context, st *stream) {
	req := rules.Request{Question: rules.Connect, Cell: st.cell, Endpoint: st.endpoint, Carries: r.inName(st)}
	err := r.paced(ctx, st.cell)
	if st.over {
		err = errConns
	}
	if err != nil {
		r.refuseStream(ctx, st, r.cfg.Gate.Refuse(ctx, req, rules.Limit, err))
		return
	}
	st.judged = r.judged.Load()
	pass, err := r.cfg.Gate.Admit(ctx, req)
	if err != nil {
		r.refuseStream(ctx, st, err)
		return
	}
	st.hold(ctx, pass)
	if pass.Decision().Verdict == rules.Tunnel {
		r.tunnel(ctx, st) // the server may speak first: no look at bytes
		return
	}
	if !st.accepted(ctx) {
		return
	}
	seen, err := st.peek()
	if errors.Is(err, errSlowStart) && !st.explain { // why it was refused anyway matters more
		st.reason = rules.Limit
	}
	if err != nil {
		st.abort(ctx, err)
		return
	}
	r.judgeHello(ctx, st, seen)
}

// inName tells which credentials the name of a stream's place holds.
func (r *run) inName(st *stream) []rules.Carry {
	if name, ok := st.endpoint.Host.Name(); ok && r.cfg.FindName != nil {
		return r.cfg.FindName(st.cell, name)
	}
	return nil
}

// hold makes pass the stream's own, in place of the one before it, which has
// nothing to record: the next question tells more.
func (st *stream) hold(ctx context.Context, pass gate.Pass) {
	st.supersede(ctx)
	st.pass, st.opened, st.explain = pass, true, pass.Decision().Explain
}

// supersede closes the stream's pass without a record: another tells it all.
func (st *stream) supersede(ctx context.Context) {
	if st.opened {
		st.opened = false
		st.record(st.pass.Done(ctx, gate.Outcome{Requests: 1}))
	}
}

// abort ends a stream that cannot be told why.
func (st *stream) abort(ctx context.Context, cause error) {
	st.conn.reset()
	st.said = gate.Said{Answer: answerReset}
	st.finish(ctx, cause)
}

// refuseStream ends a stream that the gate refused, and recorded. Only a
// CONNECT can be told.
func (r *run) refuseStream(ctx context.Context, st *stream, err error) {
	if denied, ok := errors.AsType[*gate.DeniedError](err); ok && st.reply != nil {
		st.reply.deny(st, denied)
		_ = st.conn.Close()
		st.finish(ctx, nil)
		return
	}
	st.abort(ctx, nil)
}

// judgeHello asks for a stream whose first bytes are known.
func (r *run) judgeHello(ctx context.Context, st *stream, seen sniff.Result) {
	req := rules.Request{Question: rules.Hello, Cell: st.cell, Endpoint: st.endpoint, Protocol: rules.Opaque, Carries: r.inName(st)}
	switch seen.Kind {
	case sniff.TLS:
		req.Protocol = rules.TLS
		if !r.judgeName(ctx, st, seen) {
			return
		}
	case sniff.HTTP1:
		req.Protocol = rules.HTTP
	default: // opaque, and so is HTTP/2 in the clear (HW-01)
		req.Seen = words(seen.Kind, st.conn.early)
	}
	if st.reason == rules.AuthorityMismatch {
		r.inspectTLS(ctx, st) // to say so; there is nothing to ask
		return
	}
	st.judged = r.judged.Load()
	pass, err := r.cfg.Gate.Admit(ctx, req)
	if err != nil {
		st.supersede(ctx)
		r.refuseStream(ctx, st, err)
		return
	}
	st.hold(ctx, pass)
	switch {
	case pass.Decision().Verdict == rules.Tunnel:
		if _, named := st.endpoint.Host.Name(); named && req.Protocol == rules.TLS && seen.ServerName == "" {
			// TL-02: nothing shows for whom it is, and nobody looks inside.
			st.reason = rules.AuthorityMismatch
			st.abort(ctx, errNoName)
			return
		}
		r.tunnel(ctx, st)
	case req.Protocol == rules.TLS:
		r.inspectTLS(ctx, st)
	case req.Protocol == rules.HTTP:
		r.inspect(ctx, st, st.conn)
	default:
		st.abort(ctx, errors.New("bytes of no known protocol were to be inspected"))
	}
}

// judgeName compares the server name with the place that the stream is for.
// On a stream that is refused anyway the client gets a certificate for
// whatever name it asked for, or it could not read why. False: the stream
// is over.
func (r *run) judgeName(ctx context.Context, st *stream, seen sniff.Result) bool {
	st.leaf, st.hello = st.endpoint.Host, seen.ServerName
	if seen.ServerName == "" {
		return true
	}
	name, err := target.ParseHost(seen.ServerName)
	if err != nil {
		st.supersede(ctx)
		req := rules.Request{Question: rules.Hello, Cell: st.cell, Endpoint: st.endpoint, Protocol: rules.TLS}
		_ = r.cfg.Gate.Refuse(ctx, req, rules.BadRequest, fmt.Errorf("server name: %w", err))
		st.abort(ctx, nil)
		return false
	}
	if name != st.endpoint.Host {
		st.leaf = name
		if !st.explain {
			st.reason = rules.AuthorityMismatch
		}
	}
	return true
}

// leafFor is the GetCertificate of all streams.
func leafFor(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	st := streamOf(h.Conn)
	if h.ServerName != st.hello {
		return nil, errors.New("proxy: the server name is not the one that was judged")
	}
	cert, err := st.run.cfg.Leaf(h.Context(), st.leaf)
	if err != nil {
		st.leafErr = err
	}
	return cert, err
}
