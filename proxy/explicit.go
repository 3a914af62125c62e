package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"

	"github.com/elazarl/goproxy"

	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
)

// ServeExplicit carries what clients with proxy settings send to ln, until
// ctx ends; see [Server.ServeTransparent].
//
// goproxy is the front door: it tells CONNECT from the rest, and hands the
// connection over. Everything else that it could do, it does not get to do:
// each CONNECT is taken by the first handler, and all other requests look to
// it like ones for the proxy itself.
func (s *Server) ServeExplicit(ctx context.Context, ln net.Listener) error {
	r := s.newRun(ctx, explicit, ln)
	door := r.door()
	return r.serve(ctx, ln, func(streams context.Context) error {
		return r.accept(ctx, ln, func(c net.Conn) {
			if st, ok := r.newStream(c); ok {
				r.crew.run(func() { r.guard(streams, st, func() { r.admitted(streams, st, door) }) })
			}
		})
	})
}

// admitted serves a client of the explicit listener, until it asks for a
// stream; that it gets on the same goroutine.
func (r *run) admitted(ctx context.Context, st *stream, door http.Handler) {
	st.door = true
	r.serveHTTP1(ctx, st, st.conn, func(ctx context.Context, _ *stream, w http.ResponseWriter, req *http.Request) {
		req.URL.Scheme = "" // see door; what was asked for is read from RequestURI
		door.ServeHTTP(w, req.WithContext(ctx))
	})
	if st.hijacked.Load() {
		r.connectRequest(ctx, st)
	}
}

var errNoDefault = errors.New("proxy: goproxy was to act by itself")

// door makes the goproxy server of a listener.
func (r *run) door() *goproxy.ProxyHttpServer {
	g := goproxy.NewProxyHttpServer()
	g.Logger = doorLog{r.cfg.Log}
	// None of the following is reached. They are taken away so that a mistake
	// above would end in an error, not in a connection (CN-03, TL-11).
	refuse := func(string, string) (net.Conn, error) { return nil, errNoDefault }
	g.Tr = nil
	g.ConnectDial = refuse
	g.ConnectDialWithReq = func(*http.Request, string, string) (net.Conn, error) { return nil, errNoDefault }
	g.OnRequest().DoFunc(func(req *http.Request, _ *goproxy.ProxyCtx) (*http.Request, *http.Response) {
		return req, goproxy.NewResponse(req, goproxy.ContentTypeText, http.StatusInternalServerError, errNoDefault.Error())
	})

	g.OnRequest().HijackConnect(func(req *http.Request, client net.Conn, _ *goproxy.ProxyCtx) {
		c, ok := client.(*clientConn)
		if !ok {
			_ = client.Close()
			return
		}
		c.st.reply = &connectReply{proto: req.Proto, authority: req.RequestURI, bad: r.badHead(req)}
	})
	g.NonproxyHandler = http.HandlerFunc(r.serveAbsolute)
	return g
}

// doorLog is where goproxy warns.
type doorLog struct{ log *slog.Logger }

// Printf implements goproxy.Logger.
func (l doorLog) Printf(format string, args ...any) {
	l.log.Warn("goproxy", "msg", fmt.Sprintf(format, args...))
}

// connectRequest opens the stream that a CONNECT asks for.
func (r *run) connectRequest(ctx context.Context, st *stream) {
	// From here on it is a stream like one of the other listener's.
	st.door = false
	st.hijacked.Store(false)
	st.heads.Store(0)
	st.requests.Store(0)
	if st.reply == nil { // taken over, and not by a CONNECT: goproxy's doing
		st.finish(ctx, errNoDefault)
		return
	}
	ctx = gate.WithOrigin(ctx, st.origin())
	to, err := target.ParseAuthority(st.reply.authority, 0)
	st.endpoint = to
	bad := st.reply.bad
	if err != nil && bad == nil {
		bad = &formError{rules.BadRequest, err}
	}
	if bad != nil {
		req := rules.Request{Question: rules.Connect, Cell: st.cell, Endpoint: to, Method: http.MethodConnect, Carries: r.inName(st)}
		r.refuseStream(ctx, st, r.cfg.Gate.Refuse(ctx, req, bad.reason, bad.err))
		return
	}
	r.connect(ctx, st)
}

// connectReply is the answer to a CONNECT, which is given once.
type connectReply struct {
	proto, authority string              // sandbox-controlled
	bad              *formError          // what is wrong with its head; nil for nothing
	w                http.ResponseWriter // over HTTP/2; nil over HTTP/1
}

// accept says that the stream is open.
func (c *connectReply) accept(st *stream) error {
	if c.w != nil {
		c.w.WriteHeader(http.StatusOK)
		return http.NewResponseController(c.w).Flush()
	}
	_, err := st.conn.Write([]byte(c.line() + "200 Connection established\r\n\r\n"))
	return err
}

// accepted tells the client that its stream is open. A stream to a denied
// place is accepted where the refusal can be said inside, and refused where
// the client would wait for the server to speak. False: the stream is over.
func (st *stream) accepted(ctx context.Context) bool {
	reply := st.reply
	if st.explain && !explainable(st.endpoint.Port) {
		if reply == nil {
			st.abort(ctx, nil)
			return false
		}
		d := st.pass.Decision()
		reply.deny(st, &gate.DeniedError{Reason: d.Reason, ID: st.pass.ID(), Decision: d})
		st.finish(ctx, nil)
		return false
	}
	if reply == nil {
		return true
	}
	st.reply = nil
	if err := reply.accept(st); err != nil {
		st.finish(ctx, fmt.Errorf("answering CONNECT: %w", err))
		return false
	}
	return true
}

func (c *connectReply) line() string {
	if c.proto == "HTTP/1.0" {
		return "HTTP/1.0 "
	}
	return "HTTP/1.1 "
}

// deny answers a CONNECT with a refusal. The reason phrase carries the
// sentence, since it is all that many clients show (wget, Go, requests, npm).
func (c *connectReply) deny(st *stream, denied *gate.DeniedError) {
	d := denialOf(denied, st.cell, subject{method: http.MethodConnect, endpoint: st.endpoint})
	c.write(st, d)
}

// failed answers a CONNECT whose upstream connection failed.
func (st *stream) failed(pass gate.Pass, err error) {
	if st.reply == nil {
		st.conn.reset()
		return
	}
	st.reply.write(st, faultOf(err, pass, subject{method: http.MethodConnect, endpoint: st.endpoint}))
}

func (c *connectReply) write(st *stream, d denial) {
	st.reply = nil
	st.said = gate.Said{Status: d.status}
	body := d.sentence + "\n"
	h := http.Header{}
	d.header(h)
	h.Set("Content-Type", textPlain)
	h.Set("Content-Length", fmt.Sprint(len(body)))
	if c.w != nil {
		maps.Copy(c.w.Header(), h)
		c.w.WriteHeader(d.status)
		_, _ = st.conn.Write([]byte(body))
		return
	}
	h.Set("Connection", "close")
	w := bufio.NewWriter(st.conn)
	_, _ = fmt.Fprintf(w, "%s%d %s\r\n", c.line(), d.status, d.sentence)
	_ = h.Write(w)
	_, _ = w.WriteString("\r\n" + body)
	_ = w.Flush() // a client that is gone learns nothing
}

// explainable reports whether the clients of a port speak first, so that a
// refusal can be said inside. The others would wait for a banner.
func explainable(port uint16) bool {
	switch port {
	case 20, 21, 22, 23, 25, 110, 119, 143, 220, 389, 445, 465, 587, 873, 993, 995,
		1433, 1521, 3306, 3389, 5222, 5432, 5672, 5900, 6379, 9042, 11211, 27017:
		return false
	default:
		return true
	}
}
