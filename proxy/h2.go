package proxy

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"

	"sallyport/rules"
)

// HTTP/2 is net/http's, which answers by itself what it cannot read, and tells
// nobody which connection that was. So each connection is served under a
// http.Server of its own, a shell around the one that counts: what goes wrong
// there is then the stream's, and is recorded.

// perConnection has an HTTP/2 server serve each connection under a shell. A server
// knows how only once it has begun to serve, so it serves a listener that is at
// its end.
func (r *run) perConnection(s *http.Server, addr net.Addr) {
	none := newFeed(addr)
	_ = none.Close()
	_ = s.Serve(none)
	inner := s.TLSNextProto["unencrypted_http2"]
	if inner == nil || s.TLSNextProto["h2"] == nil {
		panic("proxy: net/http serves no HTTP/2")
	}
	for _, how := range []string{"h2", "unencrypted_http2"} {
		s.TLSNextProto[how] = func(_ *http.Server, c *tls.Conn, h http.Handler) {
			ctx := contextOf(h)
			w := &h2Watch{run: r, st: streamFrom(ctx), ctx: ctx}
			if c, ok := w.watched(c); ok {
				inner(w.shell(s), c, h2Handler{h, w, how == "h2"})
				w.ended()
				// Requests end after their connection. The server waits for them: who
				// ends it closes the log next, and their outcomes are to be in it.
				w.running.Wait()
			}
		}
	}
}

// contextOf is what net/http asks its own handler of HTTP/2 for: the context of
// the connection.
func contextOf(h http.Handler) context.Context {
	of, ok := h.(interface{ BaseContext() context.Context })
	if !ok {
		panic("proxy: net/http's handler of HTTP/2 has no context")
	}
	return of.BaseContext()
}

// h2Watch records what net/http refuses on one connection.
type h2Watch struct {
	run *run
	st  *stream
	ctx context.Context //nolint:containedctx // of the connection, for its records

	mu     sync.Mutex // guards all below
	heads  int        // begun
	passed int        // of these, dealt with by net/http: it reads on
	told   int        // of these, handed to us, or refused and recorded
	active bool       // streams are open
	resets bool       // the client took one back, maybe before it was handed to us
	broken bool       // the connection, which was recorded
	over   bool       // nothing is handled any more
	closed bool       // the connection is at its end, and nothing begins to be handled

	running sync.WaitGroup // requests that are handled; grows only while not closed
}

// shell returns what a connection is served under: as s, but that errors come here.
func (w *h2Watch) shell(s *http.Server) *http.Server {
	conf := *s.HTTP2
	conf.CountError = w.count
	return &http.Server{
		HTTP2: &conf, Protocols: s.Protocols, MaxHeaderBytes: s.MaxHeaderBytes,
		IdleTimeout: s.IdleTimeout, ReadHeaderTimeout: s.ReadHeaderTimeout,
		ErrorLog: slog.NewLogLogger(slogFor(w), slog.LevelDebug),
		ConnState: func(_ net.Conn, state http.ConnState) {
			w.mu.Lock()
			w.active = state == http.StateActive
			w.mu.Unlock()
			w.settle()
		},
	}
}

// begun is told of each request head that comes.
func (w *h2Watch) begun() {
	w.mu.Lock()
	w.heads++
	w.mu.Unlock()
}

// dealt is told when all that was begun is dealt with, or handed to a goroutine.
func (w *h2Watch) dealt() {
	w.mu.Lock()
	w.passed = w.heads
	w.mu.Unlock()
	w.settle()
}

// reset is told that the client took something back.
func (w *h2Watch) reset() {
	w.mu.Lock()
	w.resets = true
	w.mu.Unlock()
}

// handled is told that a request was handed to us.
func (w *h2Watch) handled() {
	w.mu.Lock()
	w.told++
	w.mu.Unlock()
}

// begin is told that a request is handed to us; false: its connection is at its end.
// Else running is to be told when it has ended.
func (w *h2Watch) begin() bool {
	w.mu.Lock()
	w.told++
	if !w.closed {
		w.running.Add(1)
		w.mu.Unlock()
		return true
	}
	told := w.over
	w.mu.Unlock()
	if !told {
		w.unseen(1)
	}
	return false
}

// count is told every error by the words that net/http has for it: conn_ or
// stream_, the code that it is answered with, and what it was.
func (w *h2Watch) count(what string) {
	is := func(names ...string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(what, "_"+name) })
	}
	switch {
	case is("too_many_early_resets"):
		w.lost(rules.Limit, what)
	case !strings.HasPrefix(what, "stream_"):
		w.lost(rules.BadRequest, what)
	case is("over_max_streams", "over_max_streams_race"):
		w.handled()
		w.refuse(rules.Limit, what)
	default: // of a request that was judged: its own record tells how it ended
	}
}

// refuse records a request that net/http refused.
func (w *h2Watch) refuse(reason rules.Reason, what string) {
	w.st.requests.Add(1)
	_ = w.run.cfg.Gate.Refuse(w.ctx, w.st.unread(), reason, fmt.Errorf("%w: HTTP/2: %s", errHead, what)) // the error is the refusal itself
}

// lost records a connection that ends because of what cannot be read on it, once.
func (w *h2Watch) lost(reason rules.Reason, what string) {
	w.mu.Lock()
	first := !w.broken
	w.broken = true
	w.mu.Unlock()
	if first {
		w.refuse(reason, what)
	}
}

// settle records what net/http has answered by itself, if nothing is under way.
func (w *h2Watch) settle() {
	w.mu.Lock()
	n := 0
	if !w.active && !w.resets && !w.broken { // else one may still be on its way to us
		n = max(0, w.passed-w.told)
		w.told += n
	}
	w.mu.Unlock()
	w.unseen(n)
}

// ended records what else was begun, and not judged. Whatever is still on its way to
// us finds that it was told.
func (w *h2Watch) ended() {
	w.mu.Lock()
	n := 0
	w.closed = true
	if !w.broken && !w.run.draining.Load() { // else it was left, and not answered
		n = max(0, w.heads-w.told)
		w.over = n > 0
	}
	w.mu.Unlock()
	w.unseen(n)
}

// unseen records n requests that nobody here has seen.
func (w *h2Watch) unseen(n int) {
	for range n {
		w.refuse(rules.BadRequest, "a head that was not whole, or was answered by nobody here")
	}
}

// slogFor takes net/http's log of a connection: an error that ends it is recorded,
// the rest is for us.
func slogFor(w *h2Watch) slog.Handler { return h2Log{w.run.cfg.Log.Handler(), w} }

type h2Log struct {
	slog.Handler
	w *h2Watch
}

// Handle implements [slog.Handler].
func (l h2Log) Handle(ctx context.Context, r slog.Record) error {
	if _, what, ok := strings.Cut(r.Message, "connection error: "); ok {
		l.w.lost(rules.BadRequest, strings.TrimSpace(what))
	}
	if !l.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

// Enabled implements [slog.Handler]: all of it is looked at.
func (h2Log) Enabled(context.Context, slog.Level) bool { return true }

// h2Handler is net/http's own handler, and is asked before that. It says which
// requests in TLS have another :scheme than https (RFC 9113 section 8.3.1): net/http
// leaves the TLS state out of such a request, and then fills it in.
type h2Handler struct {
	http.Handler
	w      *h2Watch
	secure bool
}

type otherSchemeKey struct{}

// ServeHTTP implements [http.Handler].
func (h h2Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !h.w.begin() {
		panic(http.ErrAbortHandler)
	}
	defer h.w.running.Done()
	if h.secure && r.TLS == nil {
		r = r.WithContext(context.WithValue(r.Context(), otherSchemeKey{}, true))
	}
	h.Handler.ServeHTTP(w, h.w.run.restored(r))
}

// BaseContext is what net/http asks for.
func (h h2Handler) BaseContext() context.Context { return contextOf(h.Handler) }

// otherScheme reports a request in TLS whose :scheme is not https.
func otherScheme(r *http.Request) bool {
	return r.ProtoMajor == 2 && r.Context().Value(otherSchemeKey{}) != nil
}
