package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"
	mdns "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"sallyport/audit"
	"sallyport/audit/query"
	"sallyport/audit/verify"
	"sallyport/launcher"
	"sallyport/launcher/cell"
	"sallyport/proxy"
	"sallyport/proxy/dns"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
)

const mixPolicy = labPolicy + `
  - {id: down, reason: test, allow: {host: down.test, ports: [80, 443], access: write}}
  - {id: few, reason: test, allow: {host: few.test, ports: [80, 443], access: write}, limits: {requests: 300/day}}
`

// What the load is made of; with the DNS queries these are mixTotal requests.
const (
	mixTotal   = 50_000
	mixDNS     = 4_000
	mixTunnels = 800
	mixSockets = 300
	mixBroken  = 800 // heads that a parser refuses
	mixCut     = 400 // streams that end within their first bytes
	mixConnect = 300 // refused tunnels
	mixDrained = 60  // in flight when the gateway ends
	mixSwaps   = 200 // of the policy, at most
	mixPackets = 500 // that go another way; they are no requests
)

// mix is what clients and origins counted, each for itself.
type mix struct {
	*lab
	t   *testing.T
	log *audit.Log
	dir string // of the log

	mu       sync.Mutex
	answered map[string]int64  // path → octets, of requests that got their whole answer
	faults   map[string]bool   // path of requests that were told 502
	odd      map[string]int    // path → status of requests that were told something else
	killed   map[string]bool   // path of requests whose client went away
	refused  map[string]string // id → reason, as the client was told
	seen     map[string]int    // path → how often an origin saw it

	broken, cut, tunnels, banners, sockets atomic.Int64
	queries, uses                          atomic.Int64

	packets launcher.Bypass // that were sent another way
	first   string          // digest of the policy before the load
	loads   []string        // digests of the policies that came into force
}

// TestLogIsComplete carries 50,000 requests over every path, with clients and
// origins that vanish, parsers that refuse, limits that are reached and an end
// in the middle, while the policy changes and packets go another way, and compares
// the log with what clients and origins counted: for each request one admit or one
// refusal, for each admit one done (LG-05).
func TestLogIsComplete(t *testing.T) {
	m := newMix(t)
	var wg sync.WaitGroup
	ways := ways()
	rest := mixTotal - mixDNS - mixTunnels - mixSockets - mixBroken - mixCut - mixConnect - mixDrained
	for i, w := range ways {
		n := rest / len(ways)
		if i == 0 {
			n += rest % len(ways)
		}
		for half := range 2 {
			count := n/2 + half*(n%2)
			wg.Go(func() { m.requests(w, half, count) })
		}
	}
	wg.Go(func() { m.names(mixDNS) })
	wg.Go(func() { m.tunnelled(mixTunnels) })
	wg.Go(func() { m.webSockets(mixSockets) })
	wg.Go(func() { m.heads(mixBroken) })
	wg.Go(func() { m.cutStreams(mixCut) })
	wg.Go(func() { m.connects(mixConnect) })
	wg.Go(func() { m.bypass(mixPackets) })
	swapping, stopSwaps := context.WithCancel(t.Context())
	defer stopSwaps()
	var swaps sync.WaitGroup
	swaps.Go(func() { m.swapPolicies(swapping) })
	wg.Wait()
	stopSwaps()
	swaps.Wait()
	m.drain()
	must(t, m.log.Close())
	m.compare()
}

func newMix(t *testing.T) *mix {
	dir := t.TempDir()
	// Limits are counted by the day of UTC: the test must not run into the next.
	began := time.Now()
	noon := began.Truncate(24 * time.Hour).Add(12 * time.Hour)
	now := func() time.Time { return noon.Add(time.Since(began)) }
	log, err := audit.Open(audit.Config{
		Dir: filepath.Join(dir, "audit"), KeyFile: filepath.Join(dir, "key"), Now: now, SegmentSize: 4 << 20,
	})
	must(t, err)
	m := &mix{
		t: t, log: log, dir: filepath.Join(dir, "audit"),
		answered: map[string]int64{}, faults: map[string]bool{}, odd: map[string]int{}, killed: map[string]bool{}, refused: map[string]string{}, seen: map[string]int{},
	}
	g, err := gate.New(gate.Config{
		Identity: func(cell string) (gate.Identity, bool) { return m.table.Identity(cell) },
		Recorder: log, Now: now, Hash: log.Hash,
	})
	must(t, err)
	m.lab = newLab(t, func(c *proxy.Config) { c.Gate, c.Limits.RequestRate = g, 1<<20 })
	m.setPolicy(mixPolicy)
	id, _ := m.table.Identity(cellID)
	m.first = id.Policy.Digest()
	m.finds = func(_ string, r *http.Request) []rules.Carry {
		if strings.HasPrefix(r.URL.Path, "/leak/") {
			return []rules.Carry{{Credential: "stripe", State: rules.Leaked}}
		}
		return nil
	}
	m.inject = func(ctx context.Context, p gate.Pass, r *http.Request) error {
		if r.Method != http.MethodPost || !strings.HasPrefix(r.URL.Path, "/v1/") {
			return nil
		}
		m.uses.Add(1)
		return g.Used(ctx, p)
	}
	for _, h := range []string{"any.test", "few.test"} {
		m.serveOrigin(h, true, http.HandlerFunc(m.origin))
	}
	m.serveRaw(func(c net.Conn) {
		m.tunnels.Add(1)
		b, err := io.ReadAll(c)
		if err == nil {
			fmt.Fprintf(c, "%d octets", len(b))
		}
	})
	m.serveNames(g)
	return m
}

func (m *mix) serveNames(g *gate.Gate) {
	names, err := dns.NewNames(dns.NamesConfig{Dir: m.t.TempDir()})
	must(m.t, err)
	s, err := dns.New(dns.Config{
		Gate: g, CellOf: m.table.ByAddr, Names: names, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Rate: 1 << 20, Burst: 1 << 20,
	})
	must(m.t, err)
	udp, tcp := listenBoth(m.t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, udp, tcp) }()
	m.t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, names.Close()); err != nil {
			m.t.Errorf("serving names: %v", err)
		}
	})
	m.setOrigin("names", udp.LocalAddr().String())
}

// listenBoth listens on one port, free of both kinds: that of UDP may be another
// connection's of TCP.
func listenBoth(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	for {
		udp, err := net.ListenPacket("udp4", "127.0.0.1:0")
		must(t, err)
		tcp, err := net.Listen("tcp4", udp.LocalAddr().String())
		if err == nil {
			return udp, tcp
		}
		must(t, udp.Close())
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	}
}

// origin answers by path: /v1/ with its body, /hold/ never, /vanish/ not whole.
func (m *mix) origin(rw http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	m.seen[r.URL.Path]++
	m.mu.Unlock()
	switch {
	case strings.HasPrefix(r.URL.Path, "/hold/"):
		<-r.Context().Done()
	case strings.HasPrefix(r.URL.Path, "/vanish/"):
		panic(http.ErrAbortHandler)
	case r.Header.Get("Upgrade") != "":
		m.socket(rw, r)
	default:
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "hello, %d octets", len(b))
	}
}

func (m *mix) socket(rw http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(rw, r, nil)
	if err != nil {
		return
	}
	m.sockets.Add(1)
	defer c.CloseNow()
	for {
		kind, b, err := c.Read(r.Context())
		if err != nil || c.Write(r.Context(), kind, b) != nil {
			return
		}
	}
}

func (m *mix) sawIt(path string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen[path] > 0
}

// requests sends n requests one after another, over one client.
func (m *mix) requests(w way, half, n int) {
	rng := rand.New(rand.NewPCG(uint64(len(w.name)), uint64(half)))
	client := w.client(m.lab)
	tag := fmt.Sprintf("%s-%d", strings.ReplaceAll(w.name, " ", "-"), half)
	for i := range n {
		id := fmt.Sprintf("%s/%d", tag, i)
		switch k := rng.IntN(100); {
		case k < 78:
			m.send(client, http.MethodGet, w.url("any.test", "/v1/"+id), nil)
		case k < 85:
			m.send(client, http.MethodPost, w.url("any.test", "/v1/"+id), bytes.Repeat([]byte("x"), rng.IntN(8<<10)))
		case k < 86:
			m.send(client, http.MethodGet, w.url("any.test", "/leak/"+id), nil)
		case k < 88:
			m.send(client, http.MethodGet, w.url("evil.test", "/v1/"+id), nil)
		case k < 90:
			m.send(client, http.MethodDelete, w.url("ok.test", "/v1/"+id), nil)
		case k < 92:
			m.send(client, http.MethodPost, w.url("ok.test", "/secret/"+id), []byte("body"))
		case k < 94:
			m.send(client, http.MethodGet, w.url("few.test", "/v1/"+id), nil)
		case k < 95:
			m.send(client, http.MethodGet, w.url("down.test", "/v1/"+id), nil)
		case k < 96:
			m.send(client, http.MethodPost, w.url("any.test", "/vanish/"+id), []byte("body"))
		default:
			m.kill(client, w.url("any.test", "/hold/"+id), rng)
		}
	}
}

// send sends one request and notes what its client was told.
func (m *mix) send(client *http.Client, method, url string, body []byte) {
	req, err := http.NewRequestWithContext(m.t.Context(), method, url, bytes.NewReader(body))
	must(m.t, err)
	resp, err := client.Do(req)
	if err != nil {
		m.t.Errorf("%s %s: %v", method, url, err)
		return
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil {
		m.t.Errorf("%s %s: reading the answer: %v", method, url, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch resp.StatusCode {
	case http.StatusOK:
		m.answered[req.URL.Path] = n
	case http.StatusBadGateway:
		m.faults[req.URL.Path] = true
	case http.StatusForbidden, http.StatusTooManyRequests:
		m.refused[resp.Header.Get("Sallyport-Request")] = resp.Header.Get("Sallyport-Reason")
	default:
		m.odd[req.URL.Path] = resp.StatusCode
	}
}

// kill sends a request and goes away at some moment after its head was sent: half
// of the time when the origin has it.
func (m *mix) kill(client *http.Client, url string, rng *rand.Rand) {
	ctx, cancel := context.WithCancel(m.t.Context())
	defer cancel()
	var out departure
	wait, pause := rng.IntN(2) == 0, time.Duration(rng.IntN(2000))*time.Microsecond
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, out.trace()), http.MethodPost, url, nil)
	must(m.t, err)
	m.mu.Lock()
	m.killed[req.URL.Path] = true
	m.mu.Unlock()
	go func() {
		if !eventually(out.sent) {
			m.t.Errorf("%s was not sent", url)
		}
		if wait {
			eventually(func() bool { return m.sawIt(req.URL.Path) })
		} else {
			time.Sleep(pause) // a random moment
		}
		cancel()
	}()
	resp, err := client.Do(req)
	switch {
	case err == nil:
		resp.Body.Close()
		m.t.Errorf("%s: an answer to a request that is never answered: %s", url, resp.Status)
	case !errors.Is(err, context.Canceled):
		m.t.Errorf("%s: %v", url, err) // it was to end, but not of itself
	}
}

// departure tells when the head of a request is with the kernel. net/http calls a
// request of HTTP/1 written while it is in a buffer of its own yet, and who goes
// away then has not asked for anything.
type departure struct {
	conn    atomic.Pointer[tellingConn]
	before  atomic.Int64 // writes, when the request got the connection
	written atomic.Bool  // which is the truth for HTTP/2
}

func (d *departure) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			c := i.Conn
			if t, ok := c.(*tls.Conn); ok {
				c = t.NetConn()
			}
			told := c.(*tellingConn) // which all clients of a lab have
			d.before.Store(told.writes.Load())
			d.conn.Store(told)
		},
		WroteRequest: func(i httptrace.WroteRequestInfo) { d.written.Store(i.Err == nil) },
	}
}

func (d *departure) sent() bool {
	c := d.conn.Load()
	return c != nil && d.written.Load() && c.writes.Load() > d.before.Load()
}

// eventually waits for what another goroutine does.
func eventually(ok func() bool) bool {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if ok() {
			return true
		}
	}
	return false
}

// names asks n names, one after another so that none is lost.
func (m *mix) names(n int) {
	m.mu.Lock()
	addr := m.origins["names"]
	m.mu.Unlock()
	for i := range n {
		q := new(mdns.Msg)
		host := [...]string{"any.test.", "evil.test.", "ok.test.", "down.test."}[i%4]
		q.SetQuestion(host, [...]uint16{mdns.TypeA, mdns.TypeAAAA, mdns.TypeTXT}[i%3])
		c := mdns.Client{Net: [...]string{"udp", "udp", "udp", "tcp"}[i%4], Timeout: patience}
		if _, _, err := c.ExchangeContext(m.t.Context(), q, addr); err != nil {
			m.t.Errorf("query %d: %v", i, err)
			return
		}
		m.queries.Add(1)
	}
}

// tunnelled opens n tunnels of bytes; one in five is reset in the middle.
func (m *mix) tunnelled(n int) {
	opens := []func(context.Context, string) (net.Conn, error){m.flow, m.connect}
	for i := range n {
		c, err := opens[i%2](m.t.Context(), "raw.test:5432")
		if err != nil {
			m.t.Errorf("tunnel %d: %v", i, err)
			return
		}
		_, err = c.Write(bytes.Repeat([]byte("y"), 1+i%5000))
		must(m.t, err)
		if i%5 == 0 {
			reset(c)
			continue
		}
		must(m.t, c.(interface{ CloseWrite() error }).CloseWrite())
		b, err := io.ReadAll(c)
		if want := fmt.Sprintf("%d octets", 1+i%5000); err != nil || string(b) != want {
			m.t.Errorf("tunnel %d: %q, %v", i, b, err)
		}
		m.banners.Add(1)
		c.Close()
	}
}

func reset(c net.Conn) {
	if b, ok := c.(*buffered); ok {
		c = b.Conn
	}
	_ = c.(*net.TCPConn).SetLinger(0)
	c.Close()
}

// webSockets opens n WebSockets; one in four goes away without a word.
func (m *mix) webSockets(n int) {
	w := ways()
	for i := range n {
		way := w[[]int{0, 2, 3, 5, 6}[i%5]]
		client := way.client(m.lab)
		c, _, err := websocket.Dial(m.t.Context(), way.url("any.test", fmt.Sprintf("/socket/%d", i)), &websocket.DialOptions{HTTPClient: client})
		if err != nil {
			m.t.Errorf("WebSocket %d: %v", i, err)
			return
		}
		must(m.t, c.Write(m.t.Context(), websocket.MessageText, []byte("hello")))
		if _, b, err := c.Read(m.t.Context()); err != nil || string(b) != "hello" {
			m.t.Errorf("WebSocket %d: %q, %v", i, b, err)
		}
		if i%4 == 0 {
			c.CloseNow()
		} else {
			_ = c.Close(websocket.StatusNormalClosure, "")
		}
	}
}

// heads sends n heads that must not be understood.
func (m *mix) heads(n int) {
	bad := []string{
		"GET / HTTP/1.1\r\nHost: any.test\r\nhost: evil.test\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: any.test, evil.test\r\n\r\n",
		"GET /%zz HTTP/1.1\r\nHost: any.test\r\n\r\n",
		"GET /\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: any.test\r\nA : b\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: any.test\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
		"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n",
	}
	for i := range n {
		c, err := m.flow(m.t.Context(), "any.test:80")
		if err != nil {
			m.t.Errorf("head %d: %v", i, err)
			return
		}
		_, err = io.WriteString(c, bad[i%len(bad)])
		must(m.t, err)
		b, err := io.ReadAll(c)
		if err != nil || !bytes.HasPrefix(b, []byte("HTTP/1.1 4")) {
			m.t.Errorf("%q: %q, %v", bad[i%len(bad)], b[:min(len(b), 40)], err)
		}
		m.broken.Add(1)
		c.Close()
	}
}

// cutStreams opens n streams that end before they ask for anything.
func (m *mix) cutStreams(n int) {
	for i := range n {
		c, err := m.flow(m.t.Context(), "any.test:443")
		if err != nil {
			m.t.Errorf("stream %d: %v", i, err)
			return
		}
		switch i % 4 {
		case 0:
		case 1:
			_, err = c.Write([]byte{22, 3, 1, 2, 0, 1})
		case 2:
			_, err = io.WriteString(c, "GET /half HTTP/1.1\r\nHos")
		case 3:
			tc := tls.Client(c, &tls.Config{RootCAs: m.roots, ServerName: "any.test"})
			err = tc.HandshakeContext(m.t.Context())
		}
		must(m.t, err)
		m.cut.Add(1)
		c.Close()
	}
}

// connects asks for n tunnels that are refused.
func (m *mix) connects(n int) {
	for i := range n {
		req := &http.Request{Method: http.MethodConnect}
		c, err := m.sandboxDial(m.t.Context(), m.explicitAddr)
		must(m.t, err)
		to := []string{"evil.test:22", "other.test:25", "203.0.113.9:5432"}[i%3]
		fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to)
		resp, err := http.ReadResponse(bufio.NewReader(c), req)
		if err != nil || resp.StatusCode < 400 {
			m.t.Errorf("CONNECT %s: %v, %v", to, resp, err)
			return
		}
		resp.Body.Close()
		m.mu.Lock()
		m.refused[resp.Header.Get("Sallyport-Request")] = resp.Header.Get("Sallyport-Reason")
		m.mu.Unlock()
		c.Close()
	}
}

// bypass sends n packets from a sandbox's namespace that have no business on its
// bridge, each of which is to be dropped and counted; the launcher records the
// counters when a run ends.
func (m *mix) bypass(n int) {
	t := m.t
	network, err := cell.Open(t.Context(), cell.Config{Name: fmt.Sprintf("mix%d", os.Getpid())})
	must(t, err)
	t.Cleanup(func() {
		if err := errors.Join(network.Destroy(context.Background()), network.Close()); err != nil {
			t.Errorf("removing the network: %v", err)
		}
	})
	c, err := network.Create(t.Context(), "mixcells", 7)
	must(t, err)
	ns, err := os.Open(c.Netns)
	must(t, err)
	defer ns.Close()
	ways := []struct {
		network, address string
		sent             *uint64
	}{
		{"udp4", "192.0.2.1:9", &m.packets.UDP},
		{"udp4", "8.8.8.8:853", &m.packets.UDP},
		{"ip4:icmp", "192.0.2.1", &m.packets.ICMP},
		{"ip4:47", "192.0.2.1", &m.packets.Other},
	}
	must(t, inside(ns, func() error {
		for i := range n {
			w := ways[i%len(ways)]
			conn, err := net.Dial(w.network, w.address)
			if err != nil {
				return err
			}
			_, err = conn.Write([]byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}) // an echo request
			if err := errors.Join(err, conn.Close()); err != nil {
				return err
			}
			*w.sent++
		}
		return nil
	}))
	var got cell.Bypass
	eventually(func() bool {
		got, err = network.Counters(t.Context(), c.ID)
		return err != nil || launcher.Bypass(got) == m.packets
	})
	must(t, err)
	raw, err := json.Marshal(launcher.Bypass(got))
	must(t, err)
	must(t, m.log.Append(t.Context(), &audit.Record{Kind: audit.Bypass, Cell: cellID, Run: "run1", Data: raw}))
}

// inside runs f in a network namespace, on a thread that ends with it.
func inside(ns *os.File, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// swapPolicies puts one policy in force after the other, which allow the same, as
// the gateway does: the record first.
func (m *mix) swapPolicies(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := 0; i < mixSwaps && ctx.Err() == nil; i++ {
		text := mixPolicy + fmt.Sprintf("  - {id: version-%d, reason: test, allow: {host: unused.test}}\n", i)
		p, err := policyfile.ParsePolicy("lab.yaml", []byte(text), nil)
		must(m.t, err)
		must(m.t, m.log.Append(m.t.Context(), &audit.Record{Kind: audit.PolicyLoad, Cell: cellID, Run: "run1", Policy: p.Digest()}))
		m.loads = append(m.loads, p.Digest())
		m.setPolicy(text)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// drain ends the gateway while requests are in flight.
func (m *mix) drain() {
	var wg sync.WaitGroup
	ways := ways()
	for i := range mixDrained {
		w := ways[i%len(ways)]
		client := w.client(m.lab)
		path := fmt.Sprintf("/hold/drain/%d", i)
		m.mu.Lock()
		m.killed[path] = true
		m.mu.Unlock()
		wg.Go(func() {
			req, err := http.NewRequestWithContext(m.t.Context(), http.MethodPost, w.url("any.test", path), http.NoBody)
			must(m.t, err)
			if resp, err := client.Do(req); err == nil {
				resp.Body.Close()
			}
		})
		if !eventually(func() bool { return m.sawIt(path) }) {
			m.t.Errorf("%s did not arrive", path)
		}
	}
	must(m.t, m.stop())
	wg.Wait()
}

// compare holds the log against the counts.
func (m *mix) compare() {
	t, dir := m.t, m.dir
	report, err := verify.Verify(dir, m.log.Verifier(), verify.Options{})
	if err != nil || !report.Whole() {
		t.Errorf("Verify: %v, %v", report, err)
	}
	b := readBooks(t, dir, m.first)
	m.mu.Lock()
	defer m.mu.Unlock()
	for path, n := range m.answered {
		d := b.only(t, path)
		if d.Status != 200 || d.Error != "" || d.Received != n || m.seen[path] != 1 {
			t.Errorf("%s was answered with %d octets, and seen %d times by the origin: done %+v", path, n, m.seen[path], d)
		}
	}
	for path, status := range m.odd {
		t.Errorf("%s was told %d: done %+v", path, status, b.only(t, path))
	}
	for path := range m.faults {
		if d := b.only(t, path); d.Status != 502 || d.Error == "" {
			t.Errorf("%s was told 502: done %+v", path, d)
		}
	}
	gone := 0
	for path := range m.killed {
		switch {
		case len(b.admits[path]) == 0 && b.gone[path] == 1 && m.seen[path] == 0:
			gone++ // away before it was admitted
		default:
			b.only(t, path)
		}
	}
	for path, n := range m.seen {
		if strings.HasPrefix(path, "/socket/") {
			b.only(t, path)
			continue
		}
		if n != 1 || len(b.admits[path]) != 1 {
			t.Errorf("the origin saw %s %d times; admits: %d", path, n, len(b.admits[path]))
		}
	}
	for id, reason := range m.refused {
		if got := b.refusals[id]; got != reason {
			t.Errorf("refusal %s: %q was told, %q recorded", id, reason, got)
		}
	}
	m.sums(b, gone)
}

func (m *mix) sums(b *books, gone int) {
	t := m.t
	leaks := 0
	for _, reason := range m.refused {
		if reason == string(rules.PlaceholderLeak) {
			leaks++
		}
	}
	if leaks == 0 || m.uses.Load() == 0 {
		t.Errorf("%d leaks and %d uses of a credential: the load has none", leaks, m.uses.Load())
	}
	if diff := cmp.Diff(m.loads, b.loads); diff != "" || len(m.loads) < 10 {
		t.Errorf("policies that came into force (-counted +recorded):\n%s", diff)
	}
	if b.bypass != m.packets || m.packets.UDP == 0 || m.packets.ICMP == 0 || m.packets.Other == 0 {
		t.Errorf("packets that went another way: sent %+v, recorded %+v", m.packets, b.bypass)
	}
	unsaid := len(b.refusals) - len(m.refused) - gone
	for what, c := range map[string][2]int64{
		"DNS queries":                 {m.queries.Load(), int64(b.names)},
		"heads and streams cut":       {m.broken.Load() + m.cut.Load(), int64(unsaid)},
		"WebSockets":                  {m.sockets.Load(), int64(b.sockets)},
		"tunnels":                     {mixTunnels, int64(b.tunnels)},
		"tunnels that came to origin": {m.tunnels.Load(), int64(b.dialled)},
		"limit":                       {300, int64(b.few)},
		"uses of a credential":        {m.uses.Load(), int64(b.events["use"])},
		"leaks of a credential":       {int64(leaks), int64(b.events["leak"])},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: counted %d, recorded %d", what, c[0], c[1])
		}
	}
	all := len(m.answered) + len(m.faults) + len(m.killed) + len(m.refused) + int(m.queries.Load()+m.broken.Load()+m.cut.Load()+m.sockets.Load()) + mixTunnels
	if all != mixTotal {
		t.Errorf("the load was of %d requests, want %d", all, mixTotal)
	}
	t.Logf("%d requests: %d answered, %d refused, %d faults, %d killed (%d before they were admitted); %d records", all,
		len(m.answered), len(m.refused), len(m.faults), len(m.killed), gone, b.records)
}

// books are the records, sorted.
type books struct {
	records, names, sockets, tunnels, dialled, few int

	admits   map[string][]string     // path → ids
	done     map[string]audit.Record // id → its outcome
	refusals map[string]string       // id → reason
	events   map[string]int          // of credentials
	refs     map[string]bool         // what those are about
	gone     map[string]int          // path → refusals of clients that had gone
	loads    []string                // digests of the policies that came into force
	bypass   launcher.Bypass
	loaded   map[string]bool // them, and the one that was in force before
}

func readBooks(t *testing.T, dir, first string) *books {
	b := &books{loaded: map[string]bool{first: true}, admits: map[string][]string{}, done: map[string]audit.Record{}, refusals: map[string]string{}, gone: map[string]int{}, events: map[string]int{}, refs: map[string]bool{}}
	admits := map[string]audit.Record{}
	for r, err := range query.Records(dir, query.Filter{}) {
		must(t, err)
		b.records++
		b.decided(t, &r)
		if r.Event != "" {
			b.events[r.Event]++
		}
		switch r.Kind {
		case audit.PolicyLoad:
			b.loads = append(b.loads, r.Policy)
			b.loaded[r.Policy] = true
		case audit.Bypass:
			must(t, json.Unmarshal(r.Data, &b.bypass))
		case audit.DNS:
			b.names++
		case audit.Admit:
			if _, twice := admits[r.ID]; twice {
				t.Errorf("two admits %s", r.ID)
			}
			admits[r.ID] = r
			b.admit(r)
		case audit.Refuse:
			if _, twice := b.refusals[r.ID]; twice {
				t.Errorf("two refusals %s", r.ID)
			}
			b.refusals[r.ID] = r.Reason
			if r.Reason == "client_gone" {
				b.gone[r.Path]++
			}
		case audit.Done:
			if _, twice := b.done[r.Ref]; twice {
				t.Errorf("two outcomes of %s", r.Ref)
			}
			if _, ok := admits[r.Ref]; !ok {
				t.Errorf("an outcome of %s, which was not admitted", r.Ref)
			}
			b.done[r.Ref] = r
			if r.Question == "connect" && r.Addr != "" {
				b.dialled++
			}
		case audit.Credential:
			b.refs[r.Ref] = true
		case audit.Gap:
			t.Errorf("a gap: %+v", r)
		default:
		}
	}
	for id := range b.refs {
		_, admitted := admits[id]
		if _, refused := b.refusals[id]; !admitted && !refused {
			t.Errorf("what happened to the credential of %s, of which there is nothing else", id)
		}
	}
	for id, r := range admits {
		if _, ok := b.done[id]; !ok {
			t.Errorf("no outcome of %s (%s %s%s)", id, r.Method, r.Host, r.Path)
		}
		if _, ok := b.refusals[id]; ok {
			t.Errorf("%s was admitted and refused", id)
		}
	}
	return b
}

// decided checks that a decision was made by a policy that had come into force.
func (b *books) decided(t *testing.T, r *audit.Record) {
	asked := r.Kind == audit.Admit || r.Kind == audit.Refuse || r.Kind == audit.DNS
	if asked && r.Policy != "" && !b.loaded[r.Policy] {
		t.Errorf("record %d was decided by %s, which was not in force", r.Seq, r.Policy)
	}
}

func (b *books) admit(r audit.Record) {
	b.admits[r.Path] = append(b.admits[r.Path], r.ID)
	switch {
	case r.Question == "connect":
		b.tunnels++
	case strings.HasPrefix(r.Path, "/socket/"):
		b.sockets++
	}
	if r.Host == "few.test" {
		b.few++
	}
}

// only returns the outcome of the only request for a path.
func (b *books) only(t *testing.T, path string) audit.Record {
	ids := b.admits[path]
	if len(ids) != 1 {
		t.Errorf("%s has %d admits, want 1", path, len(ids))
		return audit.Record{}
	}
	return b.done[ids[0]]
}
