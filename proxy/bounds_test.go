package proxy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"sallyport/audit"
	"sallyport/proxy"
	"sallyport/rules/gate"
	"sallyport/rules/live"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// attach adds a cell that dials from 127.0.0.n.
func (l *lab) attach(n byte) {
	l.t.Helper()
	p, err := policyfile.ParsePolicy("lab.yaml", []byte(labPolicy), nil)
	must(l.t, err)
	id := gate.Identity{Cell: fmt.Sprintf("cell%04d", n), Run: fmt.Sprint("run", n), Policy: p}
	must(l.t, l.table.Attach(live.Cell{Identity: id, Addr: netip.AddrFrom4([4]byte{127, 0, 0, n})}))
}

// neighbour is a client in the cell of 127.0.0.n, which takes a new connection
// for each request.
func (l *lab) neighbour(n byte) *http.Client {
	tr := &http.Transport{
		DialContext:       func(ctx context.Context, _, addr string) (net.Conn, error) { return l.dialFrom(ctx, n, l.vip(addr)) },
		TLSClientConfig:   &tls.Config{RootCAs: l.roots},
		DisableKeepAlives: true,
	}
	return &http.Client{Transport: tr, Timeout: patience}
}

// served fails unless the cell of 127.0.0.2 is served.
func (l *lab) served() {
	l.t.Helper()
	resp, err := l.neighbour(2).Get("https://ok.test/public/a")
	must(l.t, err)
	must(l.t, resp.Body.Close())
	if resp.StatusCode != 200 {
		l.t.Errorf("the neighbour got %s", resp.Status)
	}
}

// TestRequestRate: what comes too fast is held back, and what would have to wait
// for more than a second is refused. A neighbour is not held back.
func TestRequestRate(t *testing.T) {
	const rate, asked = 10, 40
	for _, w := range ways() {
		t.Run(w.name, bubble(func(t *testing.T) {
			l := newPipeLab(t, func(c *proxy.Config) { c.Limits.RequestRate = rate })
			l.attach(2)
			l.serveOrigin("ok.test", w.h2, &witness{})
			client := w.client(l)
			resp, err := client.Get(w.url("ok.test", "/public/a"))
			must(t, err)
			must(t, resp.Body.Close())
			l.log.await(t, 2)
			var mu sync.Mutex
			got := map[string]int{}
			began := time.Now()
			var wg sync.WaitGroup
			for range asked {
				wg.Go(func() {
					said := "cut"
					if resp, err := client.Get(w.url("ok.test", "/public/a")); err == nil {
						said = strings.TrimSpace(resp.Status[:3] + " " + resp.Header.Get("Sallyport-Reason"))
						if resp.StatusCode == 429 && resp.Header.Get("Retry-After") == "" {
							t.Error("429 without Retry-After")
						}
						resp.Body.Close()
					}
					mu.Lock()
					defer mu.Unlock()
					got[said]++
				})
			}
			l.served()
			if d := time.Since(began); d > 0 {
				t.Errorf("the neighbour waited %v", d)
			}
			wg.Wait()
			// Each token is one for a stream or for a request, so how many requests get
			// one depends on how many streams the client takes.
			if n := got["200"]; n == 0 || n > 2*rate+int(time.Since(began).Seconds()*rate) || got["429 limit"]+got["cut"] != asked-n {
				t.Errorf("answers %v", got)
			}
			refused := 0
			for _, r := range l.log.await(t, asked) {
				if r.Kind == audit.Refuse && r.Reason != "no_request" {
					if refused++; r.Reason != "limit" || !strings.Contains(r.Error, "10 requests a second") {
						t.Errorf("record %+v", r)
					}
				}
			}
			if refused == 0 {
				t.Error("nothing was refused")
			}
		}))
	}
}

// TestRequestsUnderWay: a cell has a bounded number of requests under way, and
// its neighbour its own.
func TestRequestsUnderWay(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t, func(c *proxy.Config) { c.Limits.RequestsPerCell = 2 })
			l.attach(2)
			came, release := make(chan struct{}), make(chan struct{})
			l.serveOrigin("ok.test", w.h2, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/hold" {
					came <- struct{}{}
					<-release
				}
			}))
			client := w.client(l)
			ask := func(path string) int {
				resp, err := client.Get(w.url("ok.test", path))
				if err != nil {
					t.Error(err)
					return 0
				}
				defer resp.Body.Close()
				if resp.StatusCode == 429 && resp.Header.Get("Sallyport-Reason") != "limit" {
					t.Errorf("refused: %v", resp.Header)
				}
				return resp.StatusCode
			}
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					if got := ask("/v1/hold"); got != 200 {
						t.Errorf("a request under the bound: %d", got)
					}
				})
				<-came
			}
			l.log.await(t, 2)
			if got := ask("/v1/a"); got != 429 {
				t.Errorf("one too many: %d", got)
			}
			if r := wantRefusal(t, l, "limit"); !strings.Contains(r.Error, "too many requests under way") {
				t.Errorf("record %+v", r)
			}
			l.served()
			close(release)
			wg.Wait()
			l.log.await(t, 4)
			if got := ask("/v1/a"); got != 200 {
				t.Errorf("after the others: %d", got)
			}
		})
	}
}

// stalling is a connection whose client hears nothing after its first flight.
type stalling struct {
	net.Conn
	end chan struct{}
}

func (s stalling) Read([]byte) (int, error) {
	<-s.end
	return 0, io.EOF
}

// TestHandshakesUnderWay: handshakes that do not end take nothing from anybody
// but their own cell, and are bounded there.
func TestHandshakesUnderWay(t *testing.T) {
	for name, open := range opens() {
		t.Run(name, func(t *testing.T) {
			leaves := make(chan struct{}, 10)
			l := newLab(t, func(c *proxy.Config) {
				c.Limits.HandshakesPerCell = 2
				leaf := c.Leaf
				c.Leaf = func(ctx context.Context, h target.Host) (*tls.Certificate, error) {
					leaves <- struct{}{}
					return leaf(ctx, h)
				}
			})
			l.attach(2)
			l.serveOrigin("ok.test", false, &witness{})
			end := make(chan struct{})
			var wg sync.WaitGroup
			for range 2 {
				c, err := open(l, t.Context(), "ok.test:443")
				must(t, err)
				wg.Go(func() {
					_ = tls.Client(stalling{c, end}, &tls.Config{ServerName: "ok.test"}).Handshake()
					c.Close()
				})
				<-leaves // the handshake is under way
			}
			c, err := open(l, t.Context(), "ok.test:443")
			must(t, err)
			if _, err := handshake(t, l, c, &tls.Config{ServerName: "ok.test"}); err == nil {
				t.Error("a handshake too many")
			}
			c.Close()
			if r := wantRefusal(t, l, "limit"); !strings.Contains(r.Error, "handshakes") {
				t.Errorf("record %+v", r)
			}
			l.served()
			l.log.await(t, 2)
			close(end)
			wg.Wait()
			l.log.await(t, 2) // both ended without a request
			c, err = open(l, t.Context(), "ok.test:443")
			must(t, err)
			defer c.Close()
			tc, err := handshake(t, l, c, &tls.Config{ServerName: "ok.test"})
			must(t, err)
			if status, _, _ := exchangeRaw(t, tc, get); status != 200 {
				t.Errorf("after the others: %d", status)
			}
		})
	}
}

// TestH2Connections: beyond its HTTP/2 connections a cell is offered HTTP/1.1,
// and a client that speaks nothing else is refused.
func TestH2Connections(t *testing.T) {
	for name, open := range opens() {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, func(c *proxy.Config) {
				if c.Limits.H2ConnsPerCell = 1; name == "connect over h2" {
					c.Limits.H2ConnsPerCell = 2 // one for the way
				}
			})
			l.attach(2)
			l.serveOrigin("ok.test", false, &witness{})
			dial := func(protos ...string) (*tls.Conn, error) {
				c, err := open(l, t.Context(), "ok.test:443")
				must(t, err)
				t.Cleanup(func() { c.Close() })
				return handshake(t, l, c, &tls.Config{ServerName: "ok.test", NextProtos: protos})
			}
			first, err := dial("h2", "http/1.1")
			must(t, err)
			second, err := dial("h2", "http/1.1")
			must(t, err)
			if a, b := first.ConnectionState().NegotiatedProtocol, second.ConnectionState().NegotiatedProtocol; a != "h2" || b != "http/1.1" {
				t.Errorf("agreed on %q and %q", a, b)
			}
			if status, _, _ := exchangeRaw(t, second, get); status != 200 {
				t.Errorf("by HTTP/1.1: %d", status)
			}
			l.log.await(t, 2)
			if _, err := dial("h2"); err == nil {
				t.Error("HTTP/2 alone was agreed on")
			}
			if r := wantRefusal(t, l, "limit"); !strings.Contains(r.Error, "HTTP/2") {
				t.Errorf("record %+v", r)
			}
			l.served()
			l.log.await(t, 2)
			must(t, first.Close())
			wantRefusal(t, l, "no_request")
			third, err := dial("h2")
			must(t, err)
			if got := h2Get(t, third, "/public/a", []hpack.HeaderField{{Name: ":authority", Value: "ok.test"}}); got != "200" {
				t.Errorf("after the first has ended: %q", got)
			}
		})
	}
}

// TestH2Doors: clients that speak HTTP/2 to the explicit listener are bounded
// with the others.
func TestH2Doors(t *testing.T) {
	l := newLab(t, func(c *proxy.Config) { c.Limits.H2ConnsPerCell = 1 })
	l.serveRaw(func(c net.Conn) { _, _ = io.Copy(c, c) })
	held, err := l.connect2(t.Context(), "raw.test:5432")
	must(t, err)
	l.log.await(t, 1)
	c, err := l.sandboxDial(t.Context(), l.explicitAddr)
	must(t, err)
	defer c.Close()
	_, err = io.WriteString(c, http2.ClientPreface)
	must(t, err)
	if got := readAll(t, c); got != "" {
		t.Errorf("a second one is answered %q", got)
	}
	wantRefusal(t, l, "limit")
	if _, err := io.WriteString(held, "x"); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(held, make([]byte, 1)); err != nil {
		t.Errorf("the first one: %v", err)
	}
	must(t, held.Close())
}

// TestUnreadOctetsAreBounded is DS-07: what a cell can have the gateway hold
// that nobody reads is its HTTP/2 connections times a window, and one stream does
// not take the whole window of its connection.
func TestUnreadOctetsAreBounded(t *testing.T) {
	const conns, conn, stream = 64, 1 << 20, 256 << 10
	l := newLab(t)
	stop := make(chan struct{})
	l.serveOrigin("any.test", false, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-stop }))
	defer close(stop)
	h2 := 0
	for range conns + 8 {
		c, err := l.flow(t.Context(), "any.test:443")
		must(t, err)
		defer c.Close()
		tc, err := handshake(t, l, c, &tls.Config{ServerName: "any.test", NextProtos: []string{"h2", "http/1.1"}})
		must(t, err)
		if tc.ConnectionState().NegotiatedProtocol != "h2" {
			continue
		}
		if h2++; h2 > 1 {
			continue
		}
		perConn, perStream := h2Windows(t, tc)
		if perConn != conn || perStream != stream {
			t.Errorf("a connection may send %d octets that nobody reads, a stream %d; want %d and %d", perConn, perStream, conn, stream)
		}
	}
	if h2 != conns {
		t.Errorf("one cell has %d HTTP/2 connections, want %d", h2, conns)
	}
}

// h2Windows returns what a server lets a client send before it reads.
func h2Windows(t *testing.T, c net.Conn) (conn, stream uint32) {
	t.Helper()
	_, err := io.WriteString(c, http2.ClientPreface)
	must(t, err)
	f := http2.NewFramer(c, c)
	must(t, f.WriteSettings())
	must(t, f.WritePing(false, [8]byte{1}))
	conn, stream = 65535, 65535 // RFC 9113 section 6.9.2
	for {
		fr, err := f.ReadFrame()
		must(t, err)
		switch fr := fr.(type) {
		case *http2.SettingsFrame:
			if v, ok := fr.Value(http2.SettingInitialWindowSize); ok {
				stream = v
			}
		case *http2.WindowUpdateFrame:
			conn += fr.Increment
		case *http2.PingFrame:
			return conn, stream
		}
	}
}

// TestLifetime: whatever passes on a connection, it ends, and the record says why.
func TestLifetime(t *testing.T) {
	short := func(c *proxy.Config) { c.Timeouts.Lifetime = time.Second }
	wantLimit := func(t *testing.T, l *lab, n int, kind audit.Kind) {
		t.Helper()
		records := l.log.await(t, n)
		if last := records[len(records)-1]; len(records) != n || last.Kind != kind || last.Reason != "limit" || !strings.Contains(last.Error, "as long as a connection may be") {
			t.Errorf("records %+v", records)
		}
	}
	for name, open := range opens() {
		t.Run(name+" tunnel", func(t *testing.T) {
			l := newLab(t, short)
			l.serveRaw(func(c net.Conn) {
				for {
					if _, err := c.Write([]byte("never quiet")); err != nil {
						return
					}
				}
			})
			c, err := open(l, t.Context(), "raw.test:5432")
			must(t, err)
			defer c.Close()
			if n, err := io.Copy(io.Discard, c); err == nil {
				t.Errorf("%d octets, and no error", n)
			}
			wantLimit(t, l, 2, audit.Done)
		})
		t.Run(name+" without a request", bubble(func(t *testing.T) {
			l := newPipeLab(t, short)
			c, err := open(l, t.Context(), "ok.test:443")
			must(t, err)
			defer c.Close()
			tc, err := handshake(t, l, c, &tls.Config{ServerName: "ok.test"})
			must(t, err)
			readAll(t, tc)
			wantLimit(t, l, 1, audit.Refuse)
		}))
	}
	for _, w := range ways() {
		t.Run(w.name, bubble(func(t *testing.T) {
			l := newPipeLab(t, short)
			l.serveOrigin("ok.test", w.h2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				fmt.Fprint(rw, "data: 1\n\n")
				_ = http.NewResponseController(rw).Flush()
				<-r.Context().Done()
			}))
			resp, err := w.client(l).Get(w.url("ok.test", "/v1/events"))
			must(t, err)
			defer resp.Body.Close()
			var got bytes.Buffer
			if _, err := io.Copy(&got, resp.Body); err == nil || got.String() != "data: 1\n\n" {
				t.Errorf("got %q, %v", got.String(), err)
			}
			wantLimit(t, l, 2, audit.Done)
		}))
	}
	// The twin: a connection that is not old is not ended.
	l := newLab(t)
	l.serveOrigin("ok.test", false, &witness{})
	c, err := l.flow(t.Context(), "ok.test:80")
	must(t, err)
	defer c.Close()
	for range 2 {
		if status, _, _ := exchangeRaw(t, c, get); status != 200 {
			t.Errorf("status %d", status)
		}
	}
}
