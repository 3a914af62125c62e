package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/rules/gate"
)

// The names of the listeners in records.
const (
	transparent = "transparent"
	explicit    = "explicit"
)

// run is one call of a Serve method: a listener, and what its streams need.
type run struct {
	*Server
	listener string
	inner    served // HTTP/2: the requests inside terminated streams, and CONNECT
	crew     *crew  // has the goroutines of the streams
	open     sync.WaitGroup
	draining atomic.Bool // no further request is taken
	// handing is held for reading by who may hand a connection on to HTTP/2, and
	// for writing once nobody will any more.
	handing sync.RWMutex
}

// served is an HTTP server and the connections that it is fed.
type served struct {
	*http.Server
	feed *feed
}

// ServeTransparent carries the connections that were redirected to ln, until
// ctx ends. It returns once the last stream is gone: those in flight have the
// drain time to end by themselves.
func (s *Server) ServeTransparent(ctx context.Context, ln net.Listener) error {
	r := s.newRun(ctx, transparent, ln)
	return r.serve(ctx, ln, func(streams context.Context) error {
		return r.accept(ctx, ln, func(c net.Conn) {
			if st, ok := r.newStream(c); ok {
				r.crew.run(func() { r.guard(streams, st, func() { r.redirected(streams, st) }) })
			}
		})
	})
}

// newRun makes what serves the requests inside the streams of a listener.
func (s *Server) newRun(ctx context.Context, name string, ln net.Listener) *run {
	r := &run{Server: s, listener: name, crew: newCrew()}
	r.inner = r.newServed(context.WithoutCancel(ctx), ln, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if st := streamFrom(req.Context()); st.door {
			r.connectH2(w, req)
		} else {
			r.serveInspected(req.Context(), st, w, req)
		}
	}))
	return r
}

// serve runs loop and what goes with it, and takes everything down again.
func (r *run) serve(ctx context.Context, ln net.Listener, loop func(streams context.Context) error) error {
	streams, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := make(chan struct{})
	var own sync.WaitGroup
	own.Go(func() { r.watch(stop) })
	own.Go(func() {
		if err := r.inner.Serve(r.inner.feed); !errors.Is(err, http.ErrServerClosed) {
			r.cfg.Log.Error("serving requests ended", "err", err)
		}
	})
	unlisten := context.AfterFunc(ctx, func() { _ = ln.Close() })
	err := loop(streams)
	unlisten()
	_ = ln.Close()
	if ctx.Err() != nil {
		err = nil // asked to end: not a failure
	}
	r.drain(ctx, cancel)
	r.crew.dismiss()
	close(stop)
	own.Wait()
	return err
}

// drain waits for the streams, and cuts those that take too long.
func (r *run) drain(ctx context.Context, cancel context.CancelFunc) {
	grace, stop := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Timeouts.Drain)
	defer stop()
	gone := make(chan struct{})
	go func() {
		r.open.Wait()
		close(gone)
	}()
	r.draining.Store(true)
	r.each(func(st *stream) {
		if st.run == r && st.idle.Load() {
			_ = st.conn.SetReadDeadline(longAgo)
		}
	})
	var shut sync.WaitGroup
	shut.Go(func() {
		r.handing.Lock()            // who was offered HTTP/2 gets it
		r.handing.Unlock()          //nolint:staticcheck // nothing is to be done in between
		_ = r.inner.Shutdown(grace) // what it leaves open is cut below
	})
	r.await(grace, gone)
	cancel()
	r.each(func(st *stream) {
		if st.run == r {
			st.cut(errShutdown)
		}
	})
	_ = r.inner.Close()
	shut.Wait()
	<-gone
}

// await returns when gone is closed or grace ends: tunnels and WebSockets count too,
// which Shutdown does not know. Who says nothing is sent away meanwhile.
func (r *run) await(grace context.Context, gone <-chan struct{}) {
	const sweeps = 4
	fresh := r.cfg.Timeouts.Fresh
	tick := time.NewTicker(max(fresh/sweeps, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-gone:
			return
		case <-grace.Done():
			return
		case <-tick.C:
			late := r.cfg.Now().Add(-fresh).UnixNano()
			r.cutAll(errShutdown, func(st *stream) bool {
				since := st.silent.Load()
				return st.run == r && since != 0 && since <= late
			})
		}
	}
}

var errShutdown = errors.New("the gateway is shutting down")

// accept hands every connection of ln to take. Running out of descriptors
// costs a pause, never the listener (DS-05).
func (r *run) accept(ctx context.Context, ln net.Listener, take func(net.Conn)) error {
	const longest = time.Second
	pause := 5 * time.Millisecond
	for {
		c, err := ln.Accept()
		switch {
		case err == nil:
			pause = 5 * time.Millisecond
			take(c)
			continue
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accepting on %v: %w", ln.Addr(), err)
		}
		r.cfg.Log.Warn("accepting failed; waiting", "err", err, "pause", pause)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, longest)
	}
}

// newServed returns an HTTP/2 server with this room's limits. Its connections
// are clientConns in TLS that have agreed on it.
func (r *run) newServed(base context.Context, ln net.Listener, h http.Handler) served {
	t, l := r.cfg.Timeouts, r.cfg.Limits
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true) // for a door; no other stream comes here in the clear (HW-01)
	s := &http.Server{
		Protocols:         protocols,
		Handler:           h,
		ReadHeaderTimeout: t.Header,
		IdleTimeout:       t.KeepAlive,
		MaxHeaderBytes:    2 * l.HeaderBytes, // h2Wire lets half of it pass
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: l.H2Streams, MaxReadFrameSize: h2FrameBytes,
			MaxReceiveBufferPerConnection: h2ConnBuffer, MaxReceiveBufferPerStream: h2StreamBuffer,
		},
		BaseContext: func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			st := streamOf(c)
			return gate.WithOrigin(withStream(ctx, st), st.origin())
		},
		ConnState: func(c net.Conn, state http.ConnState) { streamOf(c).httpState(base, state) },
		ErrorLog:  slog.NewLogLogger(r.cfg.Log.Handler(), slog.LevelDebug),
		// OPTIONS * is for us to refuse and to record.
		DisableGeneralOptionsHandler: true,
	}
	r.perConnection(s, ln.Addr())
	return served{feed: newFeed(ln.Addr()), Server: s}
}

// guard keeps a panic in one stream from the others (DS-12).
func (r *run) guard(ctx context.Context, st *stream, f func()) {
	defer func() {
		if v := recover(); v != nil {
			r.cfg.Log.Error("panic in a stream", "panic", v, "cell", st.cell, "to", st.endpoint.String())
			st.finish(ctx, fmt.Errorf("%w: %v", errPanic, v))
		}
	}()
	f()
}

// source returns the address of a connection's other end.
func source(c net.Conn) netip.AddrPort {
	if t, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		a := t.AddrPort()
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	return netip.AddrPort{}
}
