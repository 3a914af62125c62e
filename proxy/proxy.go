// Package proxy carries the streams of the cells, explicit and transparent,
// as far as the gate admits them.
//
// Every stream takes one way, whichever door it came in by: ask (Connect), look
// at the first bytes, ask again (Hello), then tunnel it or terminate it and ask
// for every request inside (Fetch). A denied place is terminated as well, so
// that the refusal can be said where the client reads it.
//
// It trusts the source address of a connection for who asks, and the gate for
// what may be done. It trusts nothing that a sandbox sends: a name, an
// authority or a path counts only once rules/target has read it, and only if
// all that name a place agree. It never dials, never resolves, never holds a
// key or a secret: that is done by the func fields of [Config], and only for a
// gate.Pass.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/proxy/bound"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
)

// Config is what a Server needs. Fields without a default are required.
type Config struct {
	Gate *gate.Gate
	// CellOf tells which cell a source address proves: (*live.Table).ByAddr.
	CellOf func(netip.Addr) (cell string, ok bool)
	// NameOf tells which name a virtual address was handed out for in a cell.
	NameOf func(cell string, vip netip.Addr) (target.Name, bool)
	// Dial opens the upstream connection of a tunnel.
	//
	// An error of Dial or Forward that is a *gate.DeniedError is a refusal. Any
	// other is upstream's fault; its class is what its method
	//
	//	ProxyStatus() string
	//
	// returns, if it has one: an error type of RFC 9209 section 2.3.
	Dial func(context.Context, gate.Pass) (net.Conn, error)
	// Forward sends an admitted request and returns the answer with its body
	// still to be read. After 101 Switching Protocols the body is an
	// io.ReadWriteCloser. The address dialled is told by the GotConn hook of
	// net/http/httptrace in the request's context. It follows no redirect. The request
	// is the caller's again once the answer's body was read to its end and closed.
	Forward func(context.Context, gate.Pass, *http.Request) (*http.Response, error)
	// Leaf returns the certificate to show for a host.
	Leaf func(context.Context, target.Host) (*tls.Certificate, error)
	// Find tells which credentials a request holds. It reads header and URL
	// and leaves the body alone.
	Find func(cell string, r *http.Request) []rules.Carry
	// FindName tells which credentials the name of a host holds that a stream goes
	// to. Default: none.
	FindName func(cell string, name target.Name) []rules.Carry
	// Ready reports whether Inject has the credential at hand that a request is being
	// admitted with: (*broker.Client).Ready. Its use is then recorded with the
	// admission. nil: never.
	Ready func(gate.Pass) bool
	// Hide takes the secrets and placeholders of a cell out of a text for records; ""
	// if nothing is known of the cell. Errors may cite what an upstream sent. nil:
	// nothing is taken out.
	Hide func(cell, text string) string
	// Inject puts the admitted credential into the outgoing request. It is
	// called for every admitted request, after all other changes to it. A
	// *gate.DeniedError is a refusal with its reason; any other error refuses
	// with broker_unavailable.
	Inject func(context.Context, gate.Pass, *http.Request) error
	// Interim keeps out of the header of an informational answer (1xx) to an admitted
	// request what a sandbox must not see. After an error the answer is not passed on.
	// nil: nothing is to be kept out.
	Interim func(gate.Pass, http.Header) error
	// Keep begins to take copies of an admitted request and its answer, as its
	// rule says (rules.Decision.Log): r is as the sandbox sent it, and lives as
	// long as the exchange. A nil Keeper keeps nothing. nil: never.
	Keep func(p gate.Pass, r *http.Request) Keeper
	// Internal answers requests for sallyport.internal. Default: a [Help]
	// without a policy or denials to show.
	Internal http.Handler
	// Changed tells that identities or policies changed; streams that are
	// still open are then judged again. nil: never.
	Changed <-chan struct{}
	// Unrecorded tells that what streams do has not been recordable for too long:
	// all that are open are cut. Nil: never.
	Unrecorded <-chan struct{}
	// OriginalDst returns where a redirected connection was going. Default:
	// the socket option SO_ORIGINAL_DST.
	OriginalDst func(net.Conn) (netip.AddrPort, error)

	Log      *slog.Logger
	Now      func() time.Time // also the clock of deadlines: a real one outside of synctest
	Limits   Limits
	Timeouts Timeouts
}

// Limits bound what sandboxes can make the gateway hold. A zero field takes
// its default.
type Limits struct {
	Conns             int // open connections, all cells together: 16384
	ConnsPerCell      int // open connections of one cell: 2048
	Handshakes        int // under way, all cells together: 2048
	HandshakesPerCell int // under way in one cell: 256
	Requests          int // under way, all cells together: 8192
	RequestsPerCell   int // under way in one cell: 1024
	// RequestRate is how many requests and streams of one cell begin in a second,
	// and at once after a pause: 1000 for each processor, a part of what it carries.
	// What comes faster is held back for up to a second, and then refused.
	RequestRate int
	HeaderBytes int // of one request: 64 KiB
	HeaderLines int // of one request: 200
	H2Streams   int // requests at once on one HTTP/2 connection: 250
	// H2Conns and H2ConnsPerCell bound the HTTP/2 connections: 512 and 64. Each can
	// have the gateway hold [h2ConnBuffer] octets that nobody has read. A client
	// beyond that is offered HTTP/1.1 alone.
	H2Conns        int
	H2ConnsPerCell int
}

// What a client may send on an HTTP/2 connection, and on one stream of it, before
// it is read. One stream that stalls leaves room for the others.
const (
	h2ConnBuffer   = 1 << 20
	h2StreamBuffer = 256 << 10
	h2FrameBytes   = 64 << 10 // the longest; net/http keeps a buffer of that size
)

// Timeouts bound how long a sandbox can hold a stream without using it. A
// zero field takes its default.
type Timeouts struct {
	Peek      time.Duration // until the first bytes are understood: 10 s
	Handshake time.Duration // of TLS with the client: 10 s
	Header    time.Duration // of one request: 10 s
	KeepAlive time.Duration // between requests: 2 min
	// Quiet ends a stream on which no octet has passed: tunnels, WebSockets,
	// stalled bodies: 2 h, so that an idle hour is survived.
	Quiet time.Duration
	// Lifetime ends a connection, whatever passes on it: 24 h. A client that is
	// still there opens another, which is judged anew.
	Lifetime time.Duration
	Drain    time.Duration // for what is in flight at shutdown: 10 s
	// Fresh is for a client at shutdown that has connected and said nothing yet: 2 s.
	// What it says may be on its way, but it need not hold the others up.
	Fresh time.Duration
}

func (l Limits) withDefaults() (Limits, error) {
	for _, f := range []struct {
		n   *int
		def int
	}{
		{&l.Conns, 16384},
		{&l.ConnsPerCell, 2048},
		{&l.Handshakes, 2048},
		{&l.HandshakesPerCell, 256},
		{&l.Requests, 8192},
		{&l.RequestsPerCell, 1024},
		{&l.RequestRate, 1000 * runtime.GOMAXPROCS(0)},
		{&l.HeaderBytes, 64 << 10},
		{&l.HeaderLines, 200},
		{&l.H2Streams, 250},
		{&l.H2Conns, 512},
		{&l.H2ConnsPerCell, 64},
	} {
		if *f.n < 0 {
			return l, errors.New("proxy: a limit is negative")
		}
		if *f.n == 0 {
			*f.n = f.def
		}
	}
	return l, nil
}

func (t Timeouts) withDefaults() (Timeouts, error) {
	for _, f := range []struct {
		d   *time.Duration
		def time.Duration
	}{
		{&t.Peek, 10 * time.Second},
		{&t.Handshake, 10 * time.Second},
		{&t.Header, 10 * time.Second},
		{&t.KeepAlive, 2 * time.Minute},
		{&t.Quiet, 2 * time.Hour},
		{&t.Lifetime, 24 * time.Hour},
		{&t.Drain, 10 * time.Second},
		{&t.Fresh, 2 * time.Second},
	} {
		if *f.d < 0 {
			return t, errors.New("proxy: a timeout is negative")
		}
		if *f.d == 0 {
			*f.d = f.def
		}
	}
	return t, nil
}

// Server is safe for use by many goroutines.
type Server struct {
	cfg     Config
	tls     *tls.Config // shared by all terminated streams
	tlsH1   *tls.Config // by those that cannot have HTTP/2
	buffers buffers

	exchanges sync.Pool // of *exchange, none of which anybody holds

	judged atomic.Int64 // how often what is open was judged again

	handshakes, requests, h2Conns bound.Count
	rate                          bound.Rate

	mu      sync.Mutex // guards the two below
	streams map[*stream]struct{}
	perCell map[string]int
}

// New returns a Server. It refuses an incomplete Config.
func New(cfg Config) (*Server, error) {
	switch {
	case cfg.Gate == nil || cfg.CellOf == nil || cfg.NameOf == nil:
		return nil, errors.New("proxy: gate, cells and names are required")
	case cfg.Dial == nil || cfg.Forward == nil || cfg.Leaf == nil:
		return nil, errors.New("proxy: dial, forward and leaf are required")
	case cfg.Find == nil || cfg.Inject == nil:
		return nil, errors.New("proxy: find and inject are required")
	case cfg.Log == nil || cfg.Now == nil:
		return nil, errors.New("proxy: log and clock are required")
	}
	var err error
	if cfg.Limits, err = cfg.Limits.withDefaults(); err != nil {
		return nil, err
	}
	if cfg.Timeouts, err = cfg.Timeouts.withDefaults(); err != nil {
		return nil, err
	}
	if cfg.Internal == nil {
		cfg.Internal = &Help{}
	}
	if cfg.OriginalDst == nil {
		cfg.OriginalDst = originalDst
	}
	l := cfg.Limits
	s := &Server{
		cfg: cfg, streams: make(map[*stream]struct{}), perCell: make(map[string]int),
		handshakes: bound.Count{Each: l.HandshakesPerCell, All: l.Handshakes},
		requests:   bound.Count{Each: l.RequestsPerCell, All: l.Requests},
		h2Conns:    bound.Count{Each: l.H2ConnsPerCell, All: l.H2Conns},
		rate:       bound.Rate{PerSecond: float64(l.RequestRate), Burst: float64(l.RequestRate)},
	}
	s.tls = &tls.Config{
		MinVersion: tls.VersionTLS12,
		// http/1.0 is what curl -0 offers; without it crypto/tls refuses.
		NextProtos:     []string{"h2", "http/1.1", "http/1.0"},
		GetCertificate: leafFor,
		// The client is a sandbox on this machine and the wire between us an
		// isolated bridge: post-quantum secrecy would protect nothing here and
		// cost 8 % of a handshake.
		CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384},
		// For the same reason: nothing is won by small records, and each is a system call.
		DynamicRecordSizingDisabled: true,
	}
	s.tlsH1 = s.tls.Clone()
	s.tlsH1.NextProtos = s.tls.NextProtos[1:]
	s.tls.GetConfigForClient = s.offer
	return s, nil
}
