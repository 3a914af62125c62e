package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// The names of the sides of a comparison.
const (
	ours     = "sallyport"
	unlogged = "no log" // sallyport again, but it records nothing
	unsigned = "no key" // sallyport, a host without a credential
	direct   = "direct"
)

// metric is one line of the table.
type metric struct {
	name string
	unit string
	ref  string // what it is measured against
	// floor and aim are bounds of ours ÷ ref: from below for rates, from above
	// where less is better.
	floor, aim float64
	less       bool
	added      bool // what it costs over no proxy at all
	run        func(b *bench, side string, d time.Duration) measured
	value      func(*measured) float64
}

func perSecond(m *measured) float64 { return float64(m.ops) / m.took.Seconds() }
func megabytes(m *measured) float64 { return float64(m.octets) / 1e6 / m.took.Seconds() }
func micros(m *measured) float64    { return float64(m.median().Nanoseconds()) / 1e3 }

const many = 16

func metrics() []metric {
	inspected := func(f func(*probe, time.Duration) measured) func(*bench, string, time.Duration) measured {
		return func(b *bench, side string, d time.Duration) measured { return f(b.inspected(side), d) }
	}
	tunnelled := func(f func(*probe, time.Duration) measured) func(*bench, string, time.Duration) measured {
		return func(b *bench, side string, d time.Duration) measured { return f(b.raw(side), d) }
	}
	keep := func(p *probe, d time.Duration) measured { return p.requests(d, many) }
	return []metric{
		{
			name: "tunnels, nothing inside", unit: "/s", ref: "raw", floor: 0.85, aim: 1, value: perSecond,
			run: tunnelled(func(p *probe, d time.Duration) measured { return p.tunnels(d) }),
		},
		{
			name: "tunnels, TLS passed through", unit: "/s", ref: "raw", floor: 0.85, aim: 1, value: perSecond,
			run: func(b *bench, side string, d time.Duration) measured { return b.passed(side).tunnels(d) },
		},
		{name: "tunnel keep-alive", unit: "req/s", ref: "raw", floor: 0.95, aim: 1.05, value: perSecond, run: tunnelled(keep)},
		{
			name: "tunnel download", unit: "MB/s", ref: "raw", floor: 0.95, aim: 1.05, value: megabytes,
			run: tunnelled(func(p *probe, d time.Duration) measured { return p.downloads(d, 4) }),
		},
		{
			name: "inspected tunnels, warm leaf", unit: "/s", ref: "mitm", floor: 1.4, aim: 1.8, value: perSecond,
			run: inspected(func(p *probe, d time.Duration) measured { return p.tunnels(d) }),
		},
		{
			name: "inspected tunnels, cold leaf", unit: "/s", ref: "mitm", floor: 0.85, aim: 0.95, value: perSecond,
			run: func(b *bench, side string, d time.Duration) measured { return b.cold(side).tunnels(d) },
		},
		{name: "inspected keep-alive", unit: "req/s", ref: "stdlib", floor: 1, aim: 1.5, value: perSecond, run: inspected(keep)},
		{name: "inspected keep-alive", unit: "req/s", ref: "mitm", aim: 0.85, value: perSecond, run: inspected(keep)},
		{name: "inspected keep-alive", unit: "req/s", ref: unlogged, floor: 0.9, aim: 0.95, value: perSecond, run: inspected(keep)},
		{
			name: "the same, 64 conns", unit: "req/s", ref: unlogged, floor: 0.9, aim: 0.95, value: perSecond,
			run: inspected(func(p *probe, d time.Duration) measured { return p.requests(d, 4*many) }),
		},
		{
			name: "inspected p50 added, 1 conn", unit: "us", ref: "stdlib", floor: 1, aim: 0.6, less: true, added: true, value: micros,
			run: inspected(func(p *probe, d time.Duration) measured { return p.requests(d, 1) }),
		},
		{
			name: "inspected p50, 1 conn", unit: "us", ref: unsigned, less: true, value: micros,
			run: inspected(func(p *probe, d time.Duration) measured { return p.requests(d, 1) }),
		},
		{
			name: "inspected download", unit: "MB/s", ref: "mitm", floor: 0.9, aim: 1, value: megabytes,
			run: inspected(func(p *probe, d time.Duration) measured { return p.downloads(d, 4) }),
		},
		{
			name: "inspected upload", unit: "MB/s", ref: "mitm", floor: 0.9, aim: 1, value: megabytes,
			run: inspected(func(p *probe, d time.Duration) measured { return p.uploads(d, 4) }),
		},
		{
			name: "WebSocket echo, 4 conns", unit: "msg/s", ref: "mitm", floor: 0.9, aim: 1, value: perSecond,
			run: inspected(func(p *probe, d time.Duration) measured { return p.messages(d, 4) }),
		},
		{
			name: "SSE event p50, 4 conns", unit: "us", ref: "mitm", floor: 1.2, aim: 1, less: true, value: micros,
			run: inspected(func(p *probe, d time.Duration) measured { return p.events(d, 4) }),
		},
		{
			name: "DNS answers", unit: "/s", ref: "dns", floor: 0.8, aim: 1, value: perSecond,
			run: func(_ *bench, side string, d time.Duration) measured {
				return lookups(map[string]string{ours: dnsOurs, "dns": dnsRef}[side], d, many)
			},
		},
	}
}

// Where the parts listen.
const (
	gatewayAddr  = "127.0.0.1:3128"
	unloggedAddr = "127.0.0.1:3130"
	dnsOurs      = "127.0.0.1:3153"
	dnsUnlogged  = "127.0.0.1:3154"
	dnsRef       = "127.0.0.1:3253"
)

var refAddrs = map[string]string{"raw": "127.0.0.1:3201", "mitm": "127.0.0.1:3202", "stdlib": "127.0.0.1:3203", "dns": dnsRef}

// bench is one run.
type bench struct {
	dir, profile string
	parts        map[string]*process
	roots        map[string]*x509.CertPool // by who signs
	placeholder  string
	unlogged     string // placeholder there
	coldNo       atomic.Int64
}

func runBench(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	rounds := fs.Int("rounds", 5, "how often everything is measured")
	d := fs.Duration("d", 700*time.Millisecond, "how long one measurement takes")
	only := fs.String("only", "", "measure only what matches this regular expression: name, reference")
	dir := fs.String("dir", "", "keep log and keys here; default: a directory that is removed")
	idle := fs.Int("idle", 9900, "how many inspected tunnels idle; 0: none")
	profile := fs.String("profile", "", "write the gateway's CPU profile here")
	if err := fs.Parse(args); err != nil {
		return err
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	b := &bench{dir: *dir, profile: *profile, parts: map[string]*process{}, roots: map[string]*x509.CertPool{}}
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "sallyport-bench-"); err != nil {
			return err
		}
		defer os.RemoveAll(b.dir)
	}
	if err := b.start(ctx, refAddrs, "-hosts", openHost); err != nil {
		return errors.Join(err, b.stop())
	}
	if err := b.startUnlogged(ctx); err != nil {
		return errors.Join(err, b.stop())
	}
	err = b.measure(ctx, os.Stdout, match, *rounds, *d)
	if err == nil && *idle > 0 && match.MatchString("idle inspected tunnel") {
		b.idle(os.Stdout, *idle)
	}
	return errors.Join(err, b.stop())
}

// start starts the parts: the gateway with more arguments, and references.
func (b *bench) start(ctx context.Context, refs map[string]string, more ...string) error {
	if err := makePKI(b.dir); err != nil {
		return err
	}
	begin := func(name, role string, args ...string) error {
		p, err := start(ctx, b.dir, name, role, append([]string{"-dir", b.dir}, args...)...)
		if err == nil {
			b.parts[name] = p
		}
		return err
	}
	for _, err := range []error{begin("origin", "origin"), begin("broker", "broker")} {
		if err != nil {
			return err
		}
	}
	for name, addr := range refs {
		if err := begin(name, "ref", "-mode", name, "-listen", addr); err != nil {
			return err
		}
	}
	args := append([]string{"-broker", "-listen", gatewayAddr, "-dns", dnsOurs}, more...)
	if b.profile != "" {
		args = append(args, "-cpuprofile", b.profile)
	}
	if err := begin(ours, "gateway", args...); err != nil {
		return err
	}
	b.placeholder = b.parts[ours].words[1]
	for name, file := range map[string]string{ours: "ca/ca.crt", "ref": "ref-ca.crt", direct: "origin-ca.crt"} {
		pool, err := poolOf(filepath.Join(b.dir, file))
		if err != nil {
			return err
		}
		b.roots[name] = pool
	}
	return nil
}

// startUnlogged starts the gateway once more, alike in all but that it has no log.
func (b *bench) startUnlogged(ctx context.Context) error {
	p, err := start(ctx, b.dir, unlogged, "gateway", "-dir", b.dir, "-broker", "-listen", unloggedAddr, "-dns", dnsUnlogged, "-hosts", openHost, "-unlogged")
	if err != nil {
		return err
	}
	b.parts[unlogged], b.unlogged = p, p.words[1]
	return nil
}

// stop ends the parts, the gateways first.
func (b *bench) stop() error {
	var errs []error
	names := slices.SortedFunc(mapKeys(b.parts), func(x, y string) int {
		rank := map[string]int{ours: -2, unlogged: -1}
		return cmp.Or(rank[x]-rank[y], strings.Compare(x, y))
	})
	for _, n := range names {
		if err := b.parts[n].stop(); err != nil {
			said, _ := os.ReadFile(filepath.Join(b.dir, n+".err"))
			errs = append(errs, fmt.Errorf("%s ended: %w: %s", n, err, said))
		}
	}
	return errors.Join(errs...)
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// proxyOf returns where a side listens, and who signs what it shows.
func (b *bench) proxyOf(side string) (addr string, roots *x509.CertPool) {
	switch side {
	case ours, unsigned:
		return gatewayAddr, b.roots[ours]
	case unlogged:
		return unloggedAddr, b.roots[ours]
	case direct:
		return "", b.roots[direct]
	default:
		return refAddrs[side], b.roots["ref"]
	}
}

func client(roots *x509.CertPool) *tls.Config {
	// Without post-quantum key shares, as most agents' clients are today.
	return &tls.Config{RootCAs: roots, NextProtos: []string{"http/1.1"}, CurvePreferences: []tls.CurveID{tls.X25519}}
}

func (b *bench) inspected(side string) *probe {
	addr, roots := b.proxyOf(side)
	placeholder := b.placeholder
	if side == unsigned {
		return &probe{proxy: addr, host: openHost, port: tlsPort, tls: client(roots)}
	}
	if side == unlogged {
		placeholder = b.unlogged
	}
	return &probe{proxy: addr, host: inspectedHost, port: tlsPort, tls: client(roots), header: "Authorization: Bearer " + placeholder + "\r\n"}
}

func (b *bench) cold(side string) *probe {
	addr, roots := b.proxyOf(side)
	return &probe{proxy: addr, port: tlsPort, tls: client(roots), cold: &b.coldNo}
}

func (b *bench) passed(side string) *probe {
	addr, _ := b.proxyOf(side)
	return &probe{proxy: addr, host: passedHost, port: tlsPort, tls: client(b.roots[direct])}
}

func (b *bench) raw(side string) *probe {
	addr, _ := b.proxyOf(side)
	return &probe{proxy: addr, host: rawHost, port: plainPort}
}

// row is what was measured of one metric, a value for each round.
type row struct {
	metric
	ours, ref, ratio []float64
	cpu              map[string]time.Duration // of a side, all rounds
	ops              map[string]int64
	broker           time.Duration // of ours, the broker's
	errs             int64
	err              error
}

// cost is a side's CPU for one operation or megabyte, in microseconds.
func (r *row) cost(side string) float64 {
	return float64(r.cpu[side].Microseconds()) / float64(max(r.ops[side], 1))
}

// take measures one side once.
func (b *bench) take(r *row, side string, d time.Duration) float64 {
	before, aside := b.cpuOf(side), b.parts["broker"].cpu()
	m := r.run(b, side, d)
	r.cpu[side] += b.cpuOf(side) - before
	if side == ours {
		r.broker += b.parts["broker"].cpu() - aside
	}
	if m.octets > 0 {
		r.ops[side] += m.octets / 1e6
	} else {
		r.ops[side] += m.ops
	}
	if m.errs > 0 {
		r.errs, r.err = r.errs+m.errs, m.err
	}
	return r.value(&m)
}

// cpuOf counts the broker with the gateway.
func (b *bench) cpuOf(side string) time.Duration {
	switch side {
	case unsigned:
		return b.parts[ours].cpu() + b.parts["broker"].cpu()
	case ours, unlogged:
		return b.parts[side].cpu() + b.parts["broker"].cpu()
	case direct:
		return 0
	default:
		return b.parts[side].cpu()
	}
}

// round measures both sides, in turn first.
func (b *bench) round(r *row, n int, d time.Duration) {
	var base, x, y float64
	if r.added {
		base = b.take(r, direct, d)
	}
	if n%2 == 0 {
		y = b.take(r, r.metric.ref, d)
		x = b.take(r, ours, d)
	} else {
		x = b.take(r, ours, d)
		y = b.take(r, r.metric.ref, d)
	}
	x, y = x-base, y-base
	r.ours, r.ref, r.ratio = append(r.ours, x), append(r.ref, y), append(r.ratio, x/y)
}

func (b *bench) measure(ctx context.Context, w io.Writer, match *regexp.Regexp, rounds int, d time.Duration) error {
	var rows []*row
	for _, m := range metrics() {
		if match.MatchString(m.name + ", " + m.ref) {
			rows = append(rows, &row{metric: m, cpu: map[string]time.Duration{}, ops: map[string]int64{}})
		}
	}
	for n := range rounds {
		for i, r := range rows {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if i == 0 {
				fmt.Fprintf(os.Stderr, "bench: round %d of %d\n", n+1, rounds)
			}
			b.round(r, n, d)
		}
	}
	return report(w, rows, rounds, d)
}

// idle opens tunnels with one request each, and tells what each of them takes
// of the gateway.
func (b *bench) idle(w io.Writer, n int) {
	p := b.parts[ours]
	kib, fds := p.memory(), p.descriptors()
	var after, afterFDs int
	m := b.inspected(ours).idle(n, func() {
		time.Sleep(3 * time.Second)
		after, afterFDs = p.memory(), p.descriptors()
	})
	fmt.Fprintf(w, "\nidle inspected tunnels: %d open, %.1f KiB and %.2f descriptors each (floor: 45 kB and 2; aim: 33 kB and 1)\n",
		m.ops, float64(after-kib)/float64(max(m.ops, 1)), float64(afterFDs-fds)/float64(max(m.ops, 1)))
	if m.errs > 0 {
		fmt.Fprintf(w, "  %d failed: %v\n", m.errs, m.err)
	}
}
