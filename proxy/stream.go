package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/proxy/bulk"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
)

// stream is one connection of a sandbox, from accept to close.
type stream struct {
	run    *run
	conn   *clientConn
	cell   string
	client string // source address, for the log

	// Set while the stream is being opened, by one goroutine, and read after.
	endpoint target.Endpoint // zero while an explicit client has not said
	pass     gate.Pass       // of the stream's last question
	opened   bool            // pass is to be closed
	explain  bool            // the place is denied; say so inside
	reason   rules.Reason    // with which every request inside is refused, "" for none
	leaf     target.Host     // whom to be, in TLS
	hello    string          // the server name that was judged
	leafErr  error           // why there is no certificate
	secure   bool            // terminated TLS
	h2       bool
	door     bool          // of the explicit listener, from which streams are asked for
	reply    *connectReply // answers a CONNECT that was not answered yet
	said     gate.Said     // what the client was told when the stream was refused
	judged   int64         // Server.judged, before pass was asked for

	over     bool         // beyond a limit: refuse whatever comes
	countsH2 bool         // among the HTTP/2 connections of the cell
	handing  atomic.Bool  // holds run.handing
	began    time.Time    // of the connection below, for a stream of an HTTP/2 connection
	requests atomic.Int32 // that were judged
	heads    atomic.Int32 // HTTP/1 request heads begun, understood or not
	slowHead bool         // the last of them did not end in time
	hijacked atomic.Bool  // a WebSocket, or a CONNECT's tunnel
	quiet    int          // sweeps without use; of the sweeper alone

	idle   atomic.Bool  // waits for another request
	silent atomic.Int64 // since when it waits for the first octets; 0: it does not

	mu     sync.Mutex // guards the three below
	passes []gate.Pass
	why    error  // why it was cut
	stop   func() // what is to be done when it is cut

	left, once sync.Once
}

// newStream registers a connection; false means that it is refused and closed:
// far too many are open.
func (r *run) newStream(c net.Conn) (*stream, bool) {
	st := &stream{run: r, client: c.RemoteAddr().String(), began: r.cfg.Now()}
	st.conn = &clientConn{Conn: c, st: st}
	if below, ok := c.(*h2Stream); ok {
		st.began = streamOf(below.door).began
	}
	st.cell, _ = r.cfg.CellOf(source(c).Addr()) // an unknown cell is refused by the gate
	l := r.cfg.Limits
	r.mu.Lock()
	n := r.perCell[st.cell]
	st.over = n >= l.ConnsPerCell || len(r.streams) >= l.Conns
	// Connections over the limit are told so, but not without a limit.
	full := n >= l.ConnsPerCell+l.ConnsPerCell/8+8 || len(r.streams) >= l.Conns+l.Conns/8+8
	if !full {
		r.streams[st] = struct{}{}
		r.perCell[st.cell]++
		r.open.Add(1)
	}
	r.mu.Unlock()
	if full {
		st.conn.reset()
		return nil, false
	}
	return st, true
}

// each calls f for every stream; f does not block.
func (s *Server) each(f func(*stream)) {
	s.mu.Lock()
	all := make([]*stream, 0, len(s.streams))
	for st := range s.streams {
		all = append(all, st)
	}
	s.mu.Unlock()
	for _, st := range all {
		f(st)
	}
}

// streamOf returns the stream of a connection that net/http or crypto/tls has.
func streamOf(c net.Conn) *stream {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if s, ok := c.(*bulk.Socket); ok {
		c = s.Conn
	}
	if cc, ok := c.(*clientConn); ok {
		return cc.st
	}
	panic("proxy: a connection that is not a stream's")
}

// origin is what records say about the way.
func (st *stream) origin() gate.Origin {
	o := gate.Origin{Listener: st.run.listener, Client: source(st.conn), Tells: st}
	switch {
	case st.h2:
		o.Proto = "h2"
	case st.secure:
		o.Proto = "h1"
	}
	return o
}

// httpState follows what net/http does with a connection, which speaks HTTP/2.
func (st *stream) httpState(ctx context.Context, state http.ConnState) {
	if state == http.StateClosed {
		st.finish(gate.WithOrigin(ctx, st.origin()), nil)
	}
}

// finish ends the stream: once, whoever comes first. A request head that did
// not come to its end is recorded here, since no handler saw it.
func (st *stream) finish(ctx context.Context, cause error) {
	st.once.Do(func() {
		st.leave()
		judged := st.requests.Load()
		if !st.h2 && st.heads.Load() > judged && !st.hijacked.Load() {
			st.refuseHead(ctx)
			judged++
		}
		if st.opened {
			st.record(st.pass.Done(ctx, gate.Outcome{
				Status: st.said.Status, Answer: st.said.Answer, Reason: cmp.Or(st.reason, st.boundedBy()), Err: st.because(cause), Requests: int(judged),
			}))
		}
		st.run.open.Done() // last, so that draining waits for the record
	})
}

// leave closes the connection and makes room for another, before a record says that
// there is.
func (st *stream) leave() {
	st.left.Do(func() {
		_ = st.conn.Close()
		st.run.forget(st)
		st.handed()
		st.giveH2()
	})
}

// refuseHead records a request that could not be read. That of a stream that is
// refused anyway is told by the stream's own record.
func (st *stream) refuseHead(ctx context.Context) {
	req := st.unread()
	reason, cause := rules.BadRequest, errHead
	if st.slowHead {
		reason, cause = rules.Limit, fmt.Errorf("%w: it was not whole after %v", errHead, st.run.cfg.Timeouts.Header)
	}
	_ = st.run.cfg.Gate.Refuse(ctx, req, reason, cause) // the error is the refusal itself
}

// unread is a request of which nothing is known.
func (st *stream) unread() rules.Request {
	return rules.Request{Question: rules.Fetch, Cell: st.cell, Endpoint: st.endpoint, Secure: st.secure, Carries: st.run.inName(st)}
}

// record logs that a closing record could not be written. There is nobody
// left to refuse; the next Admit will be.
func (st *stream) record(err error) {
	if err != nil {
		st.run.cfg.Log.Error("closing record not written", "err", err, "cell", st.cell, "to", st.endpoint.String())
	}
}

// forget makes room for another connection.
func (r *run) forget(st *stream) {
	r.mu.Lock()
	delete(r.streams, st)
	if r.perCell[st.cell]--; r.perCell[st.cell] <= 0 {
		delete(r.perCell, st.cell)
	}
	r.mu.Unlock()
}

// cut ends the stream from outside.
func (st *stream) cut(why error) {
	st.mu.Lock()
	if st.why == nil {
		st.why = why
	}
	stop := st.stop
	st.mu.Unlock()
	st.conn.reset()
	if stop != nil {
		stop()
	}
}

// onCut has stop called when the stream is cut; nil: nothing.
func (st *stream) onCut(stop func()) {
	st.mu.Lock()
	st.stop = stop
	st.mu.Unlock()
}

// because returns why the stream was cut, or else err.
func (st *stream) because(err error) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.why != nil {
		return st.why
	}
	return err
}

// track has p judged again when policies change, until untrack; judged is Server.judged
// from before p was asked for. Where policies changed between the two, all that was open
// may have been judged again without it, so that is done here: false means that the stream
// is cut.
func (st *stream) track(p gate.Pass, judged int64) bool {
	st.mu.Lock()
	st.passes = append(st.passes, p)
	st.mu.Unlock()
	if st.run.judged.Load() == judged || st.holds() {
		return true
	}
	st.cut(errRejudged)
	return false
}

func (st *stream) untrack(p gate.Pass) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if i := slices.Index(st.passes, p); i >= 0 {
		st.passes = slices.Delete(st.passes, i, i+1)
	}
}

// holds asks the present policy about everything that is open on the stream.
func (st *stream) holds() bool {
	st.mu.Lock()
	passes := append([]gate.Pass(nil), st.passes...)
	st.mu.Unlock()
	for _, p := range passes {
		// A pass that was closed meanwhile needs no permission any more.
		if p.Valid() && !st.run.cfg.Gate.Recheck(p) && p.Valid() {
			return false
		}
	}
	return true
}

// watch judges open streams again when policies change, and ends those that
// have been quiet, or open, for too long, and all when the log is down for too
// long, until stop is closed.
func (r *run) watch(stop <-chan struct{}) {
	const sweeps = 8
	tick := time.NewTicker(max(r.cfg.Timeouts.Quiet/sweeps, time.Millisecond))
	defer tick.Stop()
	old := time.NewTicker(max(r.cfg.Timeouts.Lifetime/sweeps/sweeps, time.Millisecond))
	defer old.Stop()
	for {
		select {
		case <-stop:
			return
		case <-r.cfg.Changed:
			r.judged.Add(1) // first: see track
			r.each(func(st *stream) {
				if !st.holds() {
					st.cut(errRejudged)
				}
			})
		case <-r.cfg.Unrecorded:
			r.cutAll(errUnrecorded, func(*stream) bool { return true })
		case <-tick.C:
			r.each(func(st *stream) {
				if st.run != r {
					return
				}
				if st.quiet++; st.conn.active.Swap(false) {
					st.quiet = 0
				}
				if st.quiet >= sweeps {
					st.cut(errQuiet)
				}
			})
		case <-old.C:
			r.endOld()
		}
	}
}

// endOld ends the connections that have been open for too long.
func (r *run) endOld() {
	now := r.cfg.Now()
	r.cutAll(errLifetime, func(st *stream) bool { return st.run == r && now.Sub(st.began) >= r.cfg.Timeouts.Lifetime })
}

// cutAll cuts the connections of which is true, and the streams on them first,
// so that each says why.
func (r *run) cutAll(why error, of func(*stream) bool) {
	for _, carried := range []bool{true, false} {
		r.each(func(st *stream) {
			if _, is := st.conn.Conn.(*h2Stream); is == carried && of(st) {
				st.cut(why)
			}
		})
	}
}
