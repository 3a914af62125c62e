package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"sallyport/audit/query"
)

// A soak carries mixed load over all paths, with clients that are killed, and
// judges what a measurement is too short for: that memory and descriptors stay
// flat, that nothing fails, and that the log has an end for each beginning.

// What may be more in the last quarter of a soak than in the second.
const (
	moreMemory      = 16 << 10 // KiB
	moreDescriptors = 64
	// largeMemory is what bodies of any size may add while they pass, in KiB.
	largeMemory = 96 << 10
)

func runSoak(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("soak", flag.ContinueOnError)
	d := fs.Duration("for", 5*time.Minute, "how long")
	rate := fs.Int("rate", 0, "operations a second that each part of the load begins; 0: as many as it can")
	large := fs.Int64("large", 10, "GiB of one body up and one down; 0: none")
	dir := fs.String("dir", "", "keep log and keys here; default: a directory that is removed")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *d < time.Minute || *large < 0 || *rate < 0 {
		return errors.New("a soak takes a minute or more, bodies of 0 GiB or more, and a rate of 0 or more")
	}
	s := &soak{rate: *rate, bench: &bench{dir: *dir, parts: map[string]*process{}, roots: map[string]*x509.CertPool{}}, loads: map[string]measured{}}
	if s.dir == "" {
		var err error
		if s.dir, err = os.MkdirTemp("", "sallyport-soak-"); err != nil {
			return err
		}
		defer os.RemoveAll(s.dir)
	}
	if err := s.start(ctx, nil, "-transparent", "-hosts", openHost); err != nil {
		return errors.Join(err, s.stop())
	}
	err := s.run(ctx, *d, *large)
	return errors.Join(err, s.stop(), s.judgeLog(ctx))
}

type soak struct {
	*bench

	rate int // of each part of the load, but for events, whose rate is the origin's

	mu    sync.Mutex // guards loads
	loads map[string]measured
	bad   []error // what it is judged by
}

// sample is what a part takes at one time.
type sample struct{ memory, descriptors int }

func (s *soak) sampleOf(part string) sample {
	p := s.parts[part]
	return sample{p.memory(), p.descriptors()}
}

func (s *soak) failf(format string, args ...any) { s.bad = append(s.bad, fmt.Errorf(format, args...)) }

func (s *soak) run(ctx context.Context, d time.Duration, gib int64) error {
	begin := s.sampleOf(ours)
	fmt.Printf("begin: %d KiB, %d descriptors\n", begin.memory, begin.descriptors)
	if gib > 0 {
		s.largeBodies(ctx, gib<<30)
	}
	var wg sync.WaitGroup
	for name, load := range s.mix(d) {
		wg.Go(func() {
			m := load(d)
			s.mu.Lock()
			s.loads[name] = m
			s.mu.Unlock()
		})
	}
	samples := s.watch(ctx, d)
	wg.Wait()
	s.judge(samples)
	s.judgeLoads()
	s.judgeEnd(ctx, begin)
	if err := ctx.Err(); err != nil {
		return err
	}
	return errors.Join(s.bad...)
}

// watch samples the gateway and the broker once a second.
func (s *soak) watch(ctx context.Context, d time.Duration) map[string][]sample {
	out := map[string][]sample{}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	began := time.Now()
	told := began
	for time.Since(began) < d && ctx.Err() == nil {
		<-tick.C
		for _, part := range []string{ours, "broker"} {
			out[part] = append(out[part], s.sampleOf(part))
		}
		if time.Since(told) >= d/10 {
			told = time.Now()
			g, b := out[ours][len(out[ours])-1], out["broker"][len(out["broker"])-1]
			fmt.Printf("%8v: gateway %6d KiB %4d descriptors, broker %6d KiB %3d descriptors\n",
				time.Since(began).Round(time.Second), g.memory, g.descriptors, b.memory, b.descriptors)
		}
	}
	return out
}

// judge compares the second quarter, when all is warm, with the last.
func (s *soak) judge(samples map[string][]sample) {
	for part, all := range samples {
		n := len(all) / 4
		if n == 0 {
			s.failf("%s: too few samples", part)
			continue
		}
		early, late := typical(all[n:2*n]), typical(all[3*n:])
		fmt.Printf("%s: second quarter %d KiB and %d descriptors, last quarter %d KiB and %d descriptors\n",
			part, early.memory, early.descriptors, late.memory, late.descriptors)
		if late.memory > early.memory+max(moreMemory, early.memory/10) {
			s.failf("%s: memory grew from %d to %d KiB", part, early.memory, late.memory)
		}
		if late.descriptors > early.descriptors+moreDescriptors {
			s.failf("%s: descriptors grew from %d to %d", part, early.descriptors, late.descriptors)
		}
	}
}

func typical(all []sample) (m sample) {
	by := func(f func(sample) int) int {
		list := make([]int, 0, len(all))
		for _, x := range all {
			list = append(list, f(x))
		}
		slices.Sort(list)
		return list[len(list)/2]
	}
	m.memory = by(func(x sample) int { return x.memory })
	m.descriptors = by(func(x sample) int { return x.descriptors })
	return m
}

func (s *soak) judgeLoads() {
	for _, name := range slices.Sorted(mapKeys(s.loads)) {
		m := s.loads[name]
		fmt.Printf("%-26s %9d done, %6d failed\n", name, m.ops, m.errs)
		if m.errs > 0 {
			s.failf("%s: %d failed: %w", name, m.errs, m.err)
		}
		if m.ops == 0 {
			s.failf("%s: nothing was done", name)
		}
	}
}

// judgeEnd waits for what clients held to be given back. Upstream connections
// that idle in pools are kept for a while.
func (s *soak) judgeEnd(ctx context.Context, begin sample) {
	const pooled, patience = 400, 30 * time.Second
	deadline := time.Now().Add(patience)
	var now sample
	for {
		now = s.sampleOf(ours)
		if now.descriptors <= begin.descriptors+pooled || time.Now().After(deadline) || ctx.Err() != nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	fmt.Printf("end: %d KiB, %d descriptors\n", now.memory, now.descriptors)
	if now.descriptors > begin.descriptors+pooled {
		s.failf("%d descriptors are left, there were %d at the beginning", now.descriptors, begin.descriptors)
	}
}

// judgeLog reads the log of the gateway that has ended.
func (s *soak) judgeLog(ctx context.Context) error {
	f, err := query.Parse("kind=admit,done,refuse", time.Now())
	if err != nil {
		return err
	}
	open := map[string]bool{}
	var admits, dones, refusals int
	for r, err := range query.Records(filepath.Join(s.dir, "audit"), f) {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch r.Kind {
		case "admit":
			admits++
			open[r.ID] = true
		case "done":
			dones++
			if !open[r.Ref] {
				return fmt.Errorf("the log has an end for %s, which did not begin or ended twice", r.Ref)
			}
			delete(open, r.Ref)
		default:
			refusals++
		}
	}
	fmt.Printf("log: %d admitted, %d of them ended, %d refused\n", admits, dones, refusals)
	if len(open) > 0 {
		return fmt.Errorf("%d of what was admitted has no end in the log", len(open))
	}
	return nil
}

// mix is the load of a soak of length d: what each does until the time is over.
func (s *soak) mix(d time.Duration) map[string]func(time.Duration) measured {
	inspected, passed, raw, cold := s.inspected(ours), s.passed(ours), s.raw(ours), s.cold(ours)
	plain := &probe{host: openHost, port: plainPort, flow: flowPlain}
	for _, p := range []*probe{inspected, passed, raw, cold, plain} {
		p.longer, p.rate = d, s.rate // the connections are kept
	}
	flow := func(p *probe, to string) *probe {
		q := *p
		q.flow = to
		return &q
	}
	return map[string]func(time.Duration) measured{
		"connect, inspected":      func(d time.Duration) measured { return inspected.requests(d, 2) },
		"connect, new tunnels":    func(d time.Duration) measured { return s.slowly(d, inspected.once) },
		"connect, cold leaves":    func(d time.Duration) measured { return s.over(d, 0, cold.once) },
		"connect, tunnelled":      func(d time.Duration) measured { return raw.requests(d, 1) },
		"connect, passed through": func(d time.Duration) measured { return s.slowly(d, passed.once) },
		"connect, download":       func(d time.Duration) measured { return inspected.downloads(d, 1) },
		"connect, upload":         func(d time.Duration) measured { return inspected.uploads(d, 1) },
		"connect, bulk tunnel":    func(d time.Duration) measured { return raw.downloads(d, 1) },
		"connect, WebSocket":      func(d time.Duration) measured { return inspected.messages(d, 1) },
		"connect, events":         func(d time.Duration) measured { return inspected.events(d, 4) },
		"transparent, inspected":  func(d time.Duration) measured { return flow(inspected, flowInspected).requests(d, 1) },
		"transparent, tunnelled":  func(d time.Duration) measured { return flow(raw, flowRaw).requests(d, 1) },
		"transparent, passed":     func(d time.Duration) measured { return s.slowly(d, flow(passed, flowPassed).once) },
		"transparent, plain HTTP": func(d time.Duration) measured { return plain.requests(d, 1) },
		"connect, HTTP/2":         s.http2,
		"names":                   func(d time.Duration) measured { return s.slowly(d, func() error { return lookups(dnsOurs, 0, 1).err }) },
		"killed in a download": func(d time.Duration) measured {
			return s.slowly(d, func() error { return inspected.killed("GET", "/bytes/8388608") })
		},
		"killed in an upload": func(d time.Duration) measured {
			return s.slowly(d, func() error { return inspected.killed("POST", "/upload") })
		},
		"killed among events": func(d time.Duration) measured {
			return s.slowly(d, func() error { return inspected.killed("GET", "/events") })
		},
		"killed in a tunnel": func(d time.Duration) measured {
			return s.slowly(d, func() error { return raw.killed("GET", "/bytes/8388608") })
		},
		"killed in a flow": func(d time.Duration) measured {
			return s.slowly(d, func() error { return flow(inspected, flowInspected).killed("GET", "/bytes/8388608") })
		},
		"killed in a handshake":     func(d time.Duration) measured { return s.slowly(d, inspected.halfHello) },
		"a head that is none":       func(d time.Duration) measured { return s.slowly(d, plain.brokenHead) },
		"a place that is forbidden": func(d time.Duration) measured { return s.slowly(d, s.forbidden) },
	}
}

// slowly does f over and over, with a pause between.
func (s *soak) slowly(d time.Duration, f func() error) measured {
	return s.over(d, 10*time.Millisecond, f)
}

func (s *soak) over(d, pause time.Duration, f func() error) measured {
	return during(d, 1, func(until func() bool) (m measured) {
		for until = paced(s.rate, until); until(); {
			if err := f(); err != nil {
				m.fail(err)
			} else {
				m.ops++
			}
			time.Sleep(pause)
		}
		return m
	})
}

// once opens a connection, asks, and closes.
func (p *probe) once() error {
	c, err := p.open()
	if err != nil {
		return err
	}
	defer c.Close()
	_, _, err = c.ask(c.request(p, "GET", "/", "Connection: close\r\n"))
	return err
}

// killed vanishes somewhere in the middle of a request.
func (p *probe) killed(method, path string) error {
	c, err := p.open()
	if err != nil {
		return err
	}
	defer c.kill()
	more := ""
	if method == "POST" {
		more = "Content-Length: 8388608\r\n"
	}
	if _, err := c.Write(c.request(p, method, path, more)); err != nil {
		return err
	}
	if method == "POST" {
		for range rand.IntN(40) {
			if _, err := c.Write(filler); err != nil {
				return err
			}
		}
		return nil
	}
	_, err = io.CopyN(io.Discard, c.br, rand.Int64N(200))
	return err
}

// kill ends a connection as the end of a process does.
func (c *conn) kill() {
	raw := c.Conn
	if t, ok := raw.(*tls.Conn); ok {
		raw = t.NetConn()
	}
	if t, ok := raw.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = raw.Close()
}

// halfHello asks for a tunnel and says half a ClientHello.
func (p *probe) halfHello() error {
	q := *p
	q.tls = nil
	c, err := q.open()
	if err != nil {
		return err
	}
	defer c.kill()
	_, err = c.Write([]byte("\x16\x03\x01\x02\x00\x01"))
	return err
}

// brokenHead says what cannot be read, and is told so.
func (p *probe) brokenHead() error {
	c, err := p.open()
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost : x\r\n\r\n")); err != nil {
		return err
	}
	if a, err := readHead(c.br); err != nil || a.status != http.StatusBadRequest {
		return fmt.Errorf("answered %d, %w", a.status, errors.Join(err, errors.New("want 400")))
	}
	return nil
}

// forbidden asks for what no rule allows.
func (s *soak) forbidden() error {
	p := s.inspected(ours)
	p.host, p.header = "forbidden.perf.test", ""
	c, err := p.open()
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write(c.request(p, "GET", "/", "")); err != nil {
		return err
	}
	if a, err := readHead(c.br); err != nil || a.status != http.StatusForbidden {
		return fmt.Errorf("answered %d, %w", a.status, errors.Join(err, errors.New("want 403")))
	}
	return nil
}

// http2 asks over HTTP/2, and gives up every tenth request in its middle.
func (s *soak) http2(d time.Duration) measured {
	p := s.inspected(ours)
	cfg := p.tls.Clone()
	cfg.NextProtos = nil
	tr := &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: gatewayAddr}), TLSClientConfig: cfg, ForceAttemptHTTP2: true,
	}
	defer tr.CloseIdleConnections()
	return during(d, 2, func(until func() bool) (m measured) {
		until = paced(s.rate, until)
		for n := 0; until(); n++ {
			if err := h2Get(tr, "https://"+p.host+":"+p.port, s.placeholder, n%10 == 9); err != nil {
				m.fail(err)
			} else {
				m.ops++
			}
			time.Sleep(time.Millisecond)
		}
		return m
	})
}

func h2Get(tr *http.Transport, base, placeholder string, kill bool) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	path := "/bytes/65536"
	if kill {
		path = "/bytes/8388608"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+placeholder)
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.ProtoMajor != 2 || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s over %s", resp.Status, resp.Proto)
	}
	if kill {
		_, err = io.CopyN(io.Discard, resp.Body, 1<<10)
		return err
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && n != 65536 {
		err = fmt.Errorf("%d octets", n)
	}
	return err
}

// largeBodies sends one body up and one down, and looks at the memory meanwhile.
func (s *soak) largeBodies(ctx context.Context, size int64) {
	p := s.inspected(ours)
	before := s.sampleOf(ours)
	for name, carry := range map[string]func(*conn) error{
		"up": func(c *conn) error { return c.sendLarge(p, size) },
		"down": func(c *conn) error {
			_, err := c.Write(c.request(p, "GET", "/bytes/"+strconv.FormatInt(size, 10), ""))
			if err != nil {
				return err
			}
			a, err := readHead(c.br)
			if err != nil || a.length != size {
				return fmt.Errorf("status %d, length %d: %w", a.status, a.length, err)
			}
			_, err = io.CopyN(io.Discard, c.br, size)
			return err
		},
	} {
		c, err := p.open()
		if err != nil {
			s.failf("%d octets %s: %w", size, name, err)
			continue
		}
		_ = c.SetDeadline(time.Time{})
		done := make(chan error, 1)
		began := time.Now()
		go func() { done <- carry(c) }()
		most, err := s.most(ctx, done)
		_ = c.Close()
		fmt.Printf("%d GiB %s in %v: at most %d KiB, %d before\n", size>>30, name, time.Since(began).Round(time.Second), most, before.memory)
		if err != nil {
			s.failf("%d octets %s: %w", size, name, err)
		}
		if most > before.memory+largeMemory {
			s.failf("%d octets %s took %d KiB, %d before", size, name, most, before.memory)
		}
	}
}

// most returns the most memory that the gateway has until done says something.
func (s *soak) most(ctx context.Context, done <-chan error) (kib int, err error) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return kib, err
		case <-ctx.Done():
			return kib, ctx.Err()
		case <-tick.C:
			kib = max(kib, s.sampleOf(ours).memory)
		}
	}
}

func (c *conn) sendLarge(p *probe, size int64) error {
	if _, err := c.Write(c.request(p, "POST", "/upload", "Content-Length: "+strconv.FormatInt(size, 10)+"\r\n")); err != nil {
		return err
	}
	for left := size; left > 0; {
		n, err := c.Write(filler[:min(left, int64(len(filler)))])
		if err != nil {
			return err
		}
		left -= int64(n)
	}
	_, _, err := c.answer()
	return err
}
