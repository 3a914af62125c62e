package proxy_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"

	"sallyport/audit"
	"sallyport/certs"
	"sallyport/proxy"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/live"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(idleEnv); what != "" {
		fmt.Fprintln(os.Stderr, holdIdle(what))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// labPolicy is the policy of the tests unless they bring their own.
const labPolicy = `
apiVersion: sallyport/v1
kind: Policy
metadata: {name: lab, owner: test, description: what the proxy tests need}
rules:
  - id: ok
    reason: test
    allow: {host: ok.test, ports: [80, 443], methods: [GET, HEAD, POST, PUT, OPTIONS], paths: ["/", "/public/**", "/v1/**", "/pkg.Service/**"]}
  - id: any
    reason: test
    allow: {host: any.test, ports: [80, 443], access: write}
  - id: pass
    reason: test
    tls: passthrough
    allow: {host: pass.test, ports: [443]}
  - id: raw
    reason: test
    allow: {host: raw.test, ports: [5432], protocol: tcp}
  - id: no-secret
    reason: test
    deny: {host: ok.test, methods: [GET], paths: ["/public/secret"]}
`

// patience is how long a test waits for what has to come, to end at all if it does not:
// on a machine that does much else, seconds are no sign of that.
const patience = time.Minute

// lab is a gateway without its other rooms: one cell on each loopback address,
// origins on loopback, and fakes that keep the contract of Dial and Forward.
type lab struct {
	t     testing.TB
	log   *memory
	table *live.Table
	ca    *certs.CA
	roots *x509.CertPool // what the sandbox trusts

	transparentPort int
	explicitAddr    string
	changed         chan struct{}
	stop            func() error
	cfg             proxy.Config

	mu      sync.Mutex
	vips    map[netip.Addr]target.Endpoint // loopback address that a flow goes to → what it stands for
	origins map[string]string              // host:port → loopback address
	dials   []string
	finds   func(string, *http.Request) []rules.Carry
	inject  func(context.Context, gate.Pass, *http.Request) error

	pipes    *pipeNet // instead of the network; nil: none
	upstream *http.Transport
	door     *http.Transport // to the explicit listener, made at its first use
	origin   *originCA
}

// memory is a log that keeps the records, and fails on cue.
type memory struct {
	mu      sync.Mutex
	records []audit.Record
	fail    error
	more    chan struct{} // closed with the next record; nil: nobody waits

	admits func() // is done before an admission is recorded; nil: nothing
}

func (m *memory) Append(_ context.Context, r *audit.Record) error {
	if r.Kind == audit.Admit && m.admits != nil {
		m.admits()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	m.records = append(m.records, *r)
	if m.more != nil {
		close(m.more)
		m.more = nil
	}
	return nil
}

func (m *memory) failWith(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = err
}

// take returns the records so far and forgets them.
func (m *memory) take() []audit.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := m.records
	m.records = nil
	return out
}

// await returns the records once there are n of them, and forgets them.
func (m *memory) await(t testing.TB, n int) []audit.Record {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		have, more := m.watch()
		if have >= n {
			return m.take()
		}
		select {
		case <-more:
		case <-late.C:
			return m.take()
		}
	}
}

// watch returns how many records there are, and what is closed when there is
// another.
func (m *memory) watch() (have int, more <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.more == nil {
		m.more = make(chan struct{})
	}
	return len(m.records), m.more
}

const cellID = "cell0001"

type labOption func(*proxy.Config)

func newLab(t testing.TB, opts ...labOption) *lab {
	t.Helper()
	l := makeLab(t, opts...)
	s, err := proxy.New(l.cfg)
	must(t, err)
	l.serve(s)
	return l
}

// makeLab is newLab for who brings listeners.
func makeLab(t testing.TB, opts ...labOption) *lab {
	t.Helper()
	ca, err := certs.Open(filepath.Join(t.TempDir(), "ca"), certs.Options{Now: time.Now})
	must(t, err)
	l := &lab{
		t: t, log: &memory{}, table: &live.Table{}, ca: ca, roots: x509.NewCertPool(), changed: make(chan struct{}, 1),
		vips: map[netip.Addr]target.Endpoint{}, origins: map[string]string{}, origin: newOriginCA(t),
	}
	l.roots.AppendCertsFromPEM(ca.Certificate())
	l.setPolicy(labPolicy)
	l.upstream = &http.Transport{
		DialContext:        func(ctx context.Context, _, addr string) (net.Conn, error) { return l.dialOrigin(ctx, addr) },
		TLSClientConfig:    &tls.Config{RootCAs: l.origin.pool},
		ForceAttemptHTTP2:  true,
		DisableCompression: true, MaxIdleConnsPerHost: 64, ExpectContinueTimeout: time.Minute,
	}
	g, err := gate.New(gate.Config{
		Identity: l.table.Identity, Recorder: l.log, Now: time.Now, Hash: func(string) string { return "hash" },
	})
	must(t, err)
	cfg := proxy.Config{
		Gate:   g,
		CellOf: l.table.ByAddr,
		NameOf: func(_ string, vip netip.Addr) (target.Name, bool) {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.vips[vip].Host.Name()
		},
		Dial:    l.dial,
		Forward: l.forward,
		Leaf:    ca.Leaf,
		Find: func(cell string, r *http.Request) []rules.Carry {
			if l.finds != nil {
				return l.finds(cell, r)
			}
			return nil
		},
		Inject: func(ctx context.Context, p gate.Pass, r *http.Request) error {
			if l.inject != nil {
				return l.inject(ctx, p, r)
			}
			return nil
		},
		Changed: l.changed,
		OriginalDst: func(c net.Conn) (netip.AddrPort, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			to := c.LocalAddr().(*net.TCPAddr).AddrPort()
			ep, ok := l.vips[to.Addr()]
			if !ok {
				return to, nil // not redirected
			}
			if a, ok := ep.Host.Addr(); ok {
				return netip.AddrPortFrom(a, ep.Port), nil
			}
			return netip.AddrPortFrom(to.Addr(), ep.Port), nil
		},
		Log:      slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Now:      time.Now,
		Timeouts: proxy.Timeouts{Peek: patience, Handshake: patience, Header: patience, Drain: time.Second},
	}
	for _, o := range opts {
		o(&cfg)
	}
	l.cfg = cfg
	return l
}

// serveCopies has a server of its own serve copies of two listeners, as one does
// that was handed them: the listeners outlive it.
func (l *lab) serveCopies(held []*net.TCPListener) (stop func()) {
	l.t.Helper()
	s, err := proxy.New(l.cfg)
	must(l.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, len(held))
	for i, serve := range []func(context.Context, net.Listener) error{s.ServeTransparent, s.ServeExplicit} {
		f, err := held[i].File()
		must(l.t, err)
		ln, err := net.FileListener(f)
		must(l.t, err)
		must(l.t, f.Close())
		go func() { done <- serve(ctx, ln) }()
	}
	return func() {
		cancel()
		if err := errors.Join(<-done, <-done); err != nil {
			l.t.Errorf("serving: %v", err)
		}
	}
}

// serve runs both listeners until the test ends.
func (l *lab) serve(s *proxy.Server) {
	tr, err := net.Listen("tcp4", "0.0.0.0:0")
	must(l.t, err)
	ex, err := net.Listen("tcp4", "0.0.0.0:0")
	must(l.t, err)
	l.transparentPort = tr.Addr().(*net.TCPAddr).Port
	l.explicitAddr = fmt.Sprintf("127.0.0.1:%d", ex.Addr().(*net.TCPAddr).Port)
	l.serveOn(s, tr, ex)
}

// serveOn serves two listeners until the test ends.
func (l *lab) serveOn(s *proxy.Server, tr, ex net.Listener) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- s.ServeTransparent(ctx, tr) }()
	go func() { done <- s.ServeExplicit(ctx, ex) }()
	l.stop = sync.OnceValue(func() error {
		cancel()
		err := errors.Join(<-done, <-done)
		l.upstream.CloseIdleConnections()
		return err
	})
	l.t.Cleanup(func() {
		if err := l.stop(); err != nil {
			l.t.Errorf("serving: %v", err)
		}
	})
}

// testWriter shows the server's log with the test.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", strings.TrimRight(string(b), "\n"))
	return len(b), nil
}

func (l *lab) setPolicy(text string) {
	l.t.Helper()
	p, err := policyfile.ParsePolicy("lab.yaml", []byte(text), nil)
	must(l.t, err)
	l.table.Attach(live.Cell{Identity: gate.Identity{Cell: cellID, Run: "run1", Policy: p}, Addr: netip.MustParseAddr("127.0.0.1")})
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *lab) detach() {
	l.table.Detach(cellID)
	l.changed <- struct{}{}
}

// dialOrigin is the one way to an origin.
func (l *lab) dialOrigin(ctx context.Context, addr string) (net.Conn, error) {
	l.mu.Lock()
	l.dials = append(l.dials, addr)
	to, ok := l.origins[addr]
	l.mu.Unlock()
	if !ok {
		return nil, fault{"dns_error"}
	}
	if l.pipes != nil {
		return l.pipes.reach(to)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, fault{"connection_refused"}
	}
	return c, nil
}

// dialled returns where connections went, and forgets it.
func (l *lab) dialled() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.dials
	l.dials = nil
	return out
}

type fault struct{ class string }

func (f fault) Error() string       { return "fault: " + f.class }
func (f fault) ProxyStatus() string { return f.class }

func (l *lab) dial(ctx context.Context, p gate.Pass) (net.Conn, error) {
	if !p.Dialable() {
		l.t.Error("Dial without a dialable pass")
		return nil, errors.New("no pass")
	}
	return l.dialOrigin(ctx, p.Request().Endpoint.String())
}

func (l *lab) forward(ctx context.Context, p gate.Pass, r *http.Request) (*http.Response, error) {
	if !p.Dialable() || p.Request().Question != rules.Fetch {
		l.t.Error("Forward without a dialable pass")
		return nil, errors.New("no pass")
	}
	out := r.WithContext(ctx)
	out.Header = r.Header.Clone() // net/http may look at it late
	resp, err := l.upstream.RoundTrip(out)
	var f fault
	var unverified *tls.CertificateVerificationError
	switch {
	case errors.As(err, &f):
		return nil, f
	case errors.As(err, &unverified):
		return nil, fault{"tls_certificate_error"}
	}
	return resp, err
}

// vip returns a loopback address that stands for host:port at the transparent
// listener.
func (l *lab) vip(hostport string) string {
	ep, err := target.ParseAuthority(hostport, 0)
	must(l.t, err)
	l.mu.Lock()
	defer l.mu.Unlock()
	for a, e := range l.vips {
		if e == ep {
			return fmt.Sprintf("%v:%d", a, l.transparentPort)
		}
	}
	n := len(l.vips) + 1
	a := netip.AddrFrom4([4]byte{127, 100, byte(n >> 8), byte(n)})
	l.vips[a] = ep
	return fmt.Sprintf("%v:%d", a, l.transparentPort)
}

// sandboxDial connects as the cell with a source address.
func (l *lab) sandboxDial(ctx context.Context, addr string) (net.Conn, error) {
	return l.dialFrom(ctx, 1, addr)
}

// dialFrom connects as the cell of 127.0.0.n.
func (l *lab) dialFrom(ctx context.Context, n byte, addr string) (net.Conn, error) {
	if l.pipes != nil {
		return l.pipes.dialFrom(n, addr)
	}
	return socketFrom(ctx, n, addr)
}

func socketFrom(ctx context.Context, n byte, addr string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, n)}}
	return d.DialContext(ctx, "tcp4", addr)
}

// flow opens a redirected connection.
func (l *lab) flow(ctx context.Context, hostport string) (net.Conn, error) {
	c, err := l.sandboxDial(ctx, l.vip(hostport))
	if errors.Is(err, syscall.ECONNRESET) {
		return resetFlow(err), nil
	}
	return c, err
}

// gone is a connection that was reset before the one who dialled could look at it:
// that shows at the first read, as if it had come a moment later.
type gone struct {
	net.Conn
	err error
}

func resetFlow(err error) net.Conn {
	c, _ := net.Pipe() // takes deadlines, as long as its other end is open
	return &gone{c, err}
}

func (g *gone) Read([]byte) (int, error)  { return 0, g.err }
func (g *gone) Write([]byte) (int, error) { return 0, g.err }

// connect opens a CONNECT tunnel; a refusal is an error with status and body.
func (l *lab) connect(ctx context.Context, hostport string) (net.Conn, error) {
	c, err := l.sandboxDial(ctx, l.explicitAddr)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", hostport, hostport)
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, &http.Request{Method: "CONNECT"})
	if err != nil {
		c.Close()
		return nil, err
	}
	if resp.StatusCode != 200 {
		c.Close()
		return nil, fmt.Errorf("CONNECT: %s", resp.Status)
	}
	return &buffered{c, br}, nil
}

// connect2 opens a stream by CONNECT over HTTP/2, of which a lab's are all on
// one connection; a refusal is an error with its status.
func (l *lab) connect2(_ context.Context, hostport string) (net.Conn, error) {
	l.mu.Lock()
	if l.door == nil {
		l.door = &http.Transport{
			Protocols: new(http.Protocols), DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return l.sandboxDial(ctx, addr) },
		}
		l.door.Protocols.SetUnencryptedHTTP2(true)
		l.t.Cleanup(l.door.CloseIdleConnections)
	}
	l.mu.Unlock()
	up, w := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background()) // without the caller's traces
	req := (&http.Request{Method: http.MethodConnect, URL: &url.URL{Scheme: "http", Host: l.explicitAddr}, Host: hostport, Body: up, Header: http.Header{}}).WithContext(ctx)
	resp, err := l.door.RoundTrip(req)
	if err != nil {
		cancel()
		return nil, err
	}
	if resp.StatusCode != 200 {
		cancel()
		return nil, fmt.Errorf("CONNECT: %s", resp.Status)
	}
	return &h2Conn{ReadCloser: resp.Body, w: w, cancel: cancel}, nil
}

// h2Conn is a client's end of a stream by connect2. It knows no deadlines.
type h2Conn struct {
	io.ReadCloser
	w      *io.PipeWriter
	cancel context.CancelFunc
}

func (c *h2Conn) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	if _, ok := errors.AsType[http2.StreamError](err); ok {
		err = syscall.ECONNRESET // RST_STREAM is to a stream what RST is to a connection
	}
	return n, err
}

func (c *h2Conn) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	if err == nil {
		_, err = c.w.Write(nil) // returns when more is asked for: then b was sent
	}
	if errors.Is(err, io.ErrClosedPipe) {
		return len(b), nil // answered before all was said: the answer is to be read
	}
	return n, err
}
func (c *h2Conn) CloseWrite() error { return c.w.Close() }
func (c *h2Conn) Close() error {
	err := errors.Join(c.w.Close(), c.ReadCloser.Close())
	c.cancel()
	return err
}
func (c *h2Conn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *h2Conn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *h2Conn) SetDeadline(time.Time) error      { return nil }
func (c *h2Conn) SetReadDeadline(time.Time) error  { return nil }
func (c *h2Conn) SetWriteDeadline(time.Time) error { return nil }

// buffered is a connection of which some was read already.
type buffered struct {
	net.Conn
	br *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.br.Read(p) }
func (b *buffered) CloseWrite() error          { return b.Conn.(*net.TCPConn).CloseWrite() }

// tellingConn is a client's connection that tells how often something was written.
type tellingConn struct {
	net.Conn
	writes atomic.Int64 // that have returned
}

func telling(c net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return &tellingConn{Conn: c}, nil
}

func (c *tellingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.writes.Add(1)
	return n, err
}

// way is a path from the sandbox to an origin.
type way struct {
	name   string
	secure bool
	h2     bool
	client func(l *lab) *http.Client
	open   func(l *lab, ctx context.Context, hostport string) (net.Conn, error) // nil: absolute form
}

func tlsClient(open func(*lab, context.Context, string) (net.Conn, error), h2 bool) func(*lab) *http.Client {
	return func(l *lab) *http.Client {
		tr := &http.Transport{
			DialContext:       func(ctx context.Context, _, addr string) (net.Conn, error) { return telling(open(l, ctx, addr)) },
			TLSClientConfig:   &tls.Config{RootCAs: l.roots},
			ForceAttemptHTTP2: h2, DisableCompression: true,
			ExpectContinueTimeout: time.Minute,
		}
		if !h2 {
			tr.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
		}
		l.t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
}

func absoluteClient(l *lab) *http.Client {
	tr := &http.Transport{
		Proxy:              http.ProxyURL(&url.URL{Scheme: "http", Host: l.explicitAddr}),
		DialContext:        func(ctx context.Context, _, addr string) (net.Conn, error) { return telling(l.sandboxDial(ctx, addr)) },
		DisableCompression: true, ExpectContinueTimeout: time.Minute,
	}
	l.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func ways() []way {
	flow, connect, connect2 := (*lab).flow, (*lab).connect, (*lab).connect2
	return []way{
		{"transparent tls h1", true, false, tlsClient(flow, false), flow},
		{"transparent tls h2", true, true, tlsClient(flow, true), flow},
		{"transparent http", false, false, tlsClient(flow, false), flow},
		{"connect tls h1", true, false, tlsClient(connect, false), connect},
		{"connect tls h2", true, true, tlsClient(connect, true), connect},
		{"connect http", false, false, tlsClient(connect, false), connect},
		{"connect over h2, tls h1", true, false, tlsClient(connect2, false), connect2},
		{"connect over h2, tls h2", true, true, tlsClient(connect2, true), connect2},
		{"connect over h2, http", false, false, tlsClient(connect2, false), connect2},
		{"absolute form", false, false, absoluteClient, nil},
	}
}

func (w way) url(host, rest string) string {
	if w.secure {
		return "https://" + host + rest
	}
	return "http://" + host + rest
}

func (w way) port() string {
	if w.secure {
		return ":443"
	}
	return ":80"
}

// raw opens a connection over which HTTP/1 is spoken, and says what to put
// before a path. It is for what no client library would send.
func (w way) raw(t testing.TB, l *lab, host string) (c net.Conn, prefix string) {
	t.Helper()
	if w.open == nil {
		c, err := l.sandboxDial(t.Context(), l.explicitAddr)
		must(t, err)
		t.Cleanup(func() { c.Close() })
		return c, "http://" + host
	}
	c, err := w.open(l, t.Context(), host+w.port())
	must(t, err)
	t.Cleanup(func() { c.Close() })
	if !w.secure {
		return c, ""
	}
	tc := tls.Client(c, &tls.Config{RootCAs: l.roots, ServerName: host, NextProtos: []string{"http/1.1"}})
	must(t, tc.HandshakeContext(t.Context()))
	return tc, ""
}

// originCA signs what origins show.
type originCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newOriginCA(t testing.TB) *originCA {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "origins"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(48 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &originCA{cert, key, pool}
}

func (o *originCA) leaf(t testing.TB, names ...string) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, o.cert, &key.PublicKey, o.key)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// serveOrigin starts an origin for a host on ports 80 and 443; it speaks h2
// where h2 is true.
func (l *lab) serveOrigin(host string, h2 bool, h http.Handler) {
	for _, secure := range []bool{false, true} {
		s := httptest.NewUnstartedServer(h)
		if l.pipes != nil {
			s.Listener.Close()
			s.Listener = l.pipes.listen()
		}
		s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		port := ":80"
		if secure {
			port = ":443"
			s.EnableHTTP2 = h2
			s.TLS = &tls.Config{Certificates: []tls.Certificate{l.origin.leaf(l.t, host)}}
			s.StartTLS()
		} else {
			s.Start()
		}
		l.t.Cleanup(func() {
			_ = l.stop()
			s.CloseClientConnections()
			s.Close()
		})
		l.setOrigin(host+port, s.Listener.Addr().String())
	}
}

func (l *lab) setOrigin(hostport, addr string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.origins[hostport] = addr
}

// serveRaw starts the origin raw.test:5432, which is not HTTP.
func (l *lab) serveRaw(handle func(net.Conn)) {
	l.setOrigin("raw.test:5432", serveConns(l.t, func() { _ = l.stop() }, handle).String())
}

// serveConns has handle serve connections, which it closes then, until the test has
// ended; first is done before the last are waited for.
func serveConns(t testing.TB, first func(), handle func(net.Conn)) net.Addr {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				handle(c)
			})
		}
	})
	t.Cleanup(func() {
		first()
		ln.Close()
		wg.Wait()
	})
	return ln.Addr()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
