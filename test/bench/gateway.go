package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/broker"
	"sallyport/certs"
	"sallyport/control"
	"sallyport/control/slack"
	"sallyport/proxy"
	"sallyport/proxy/dial"
	"sallyport/proxy/dns"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

const (
	benchCell  = "bench222"
	bareCell   = "bench333" // of the gateway without a log: a cell has one run at a time
	benchRun   = "bench"
	credential = "bench"
	coldNames  = 20000
)

type gatewayOptions struct {
	dir, listen, dns string
	transparent      bool
	hosts            string
	roots            string
	broker           bool
	unlogged         bool
	rules            int
	cpu, heap        string
}

// runGateway serves the explicit listener, wired as in production. Every
// client on loopback is one cell. It tells the placeholder that its one
// credential has.
func runGateway(ctx context.Context, args []string) error {
	var o gatewayOptions
	fs := flag.NewFlagSet("gateway", flag.ContinueOnError)
	fs.StringVar(&o.dir, "dir", "", "directory for the log and the CA, with the authorities")
	fs.StringVar(&o.listen, "listen", "127.0.0.1:3128", "where to listen")
	fs.StringVar(&o.dns, "dns", "", "where to answer DNS; empty: nowhere")
	fs.BoolVar(&o.transparent, "transparent", false, "serve redirected connections too, at the addresses of flows")
	fs.StringVar(&o.hosts, "hosts", "", "more names of the origin, comma separated")
	fs.StringVar(&o.roots, "roots", "", "the origin's authority, if not the one in -dir")
	fs.BoolVar(&o.broker, "broker", false, "use the credential of the broker in -dir")
	fs.BoolVar(&o.unlogged, "unlogged", false, "record nothing, to measure what that costs")
	fs.IntVar(&o.rules, "rules", 100, "how many rules there are beside those that match")
	fs.StringVar(&o.cpu, "cpuprofile", "", "write a CPU profile here")
	fs.StringVar(&o.heap, "memprofile", "", "write a profile of allocations here")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if o.roots == "" {
		o.roots = filepath.Join(o.dir, "origin-ca.crt")
	}
	if err := loopback(o.listen); err != nil {
		return err
	}
	stop, err := profile(o)
	if err != nil {
		return err
	}
	return errors.Join(serveGateway(ctx, o), stop())
}

func profile(o gatewayOptions) (stop func() error, err error) {
	stop = func() error { return nil }
	if o.heap != "" {
		runtime.MemProfileRate = 512
	}
	var cpu *os.File
	if o.cpu != "" {
		if cpu, err = os.Create(o.cpu); err != nil {
			return stop, err
		}
		if err := pprof.StartCPUProfile(cpu); err != nil {
			return stop, err
		}
	}
	return func() error {
		var errs []error
		if cpu != nil {
			pprof.StopCPUProfile()
			errs = append(errs, cpu.Close())
		}
		if o.heap != "" {
			f, err := os.Create(o.heap)
			if err != nil {
				return errors.Join(append(errs, err)...)
			}
			errs = append(errs, pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
		}
		return errors.Join(errs...)
	}, nil
}

// ballast is what the daemons of cmd/sallyport have.
const ballast = 32 << 20

func serveGateway(ctx context.Context, o gatewayOptions) error {
	defer runtime.KeepAlive(make([]byte, ballast))
	if err := slack.Take(slack.Late); err != nil {
		return err
	}
	g, err := openBench(ctx, o)
	if err != nil {
		return err
	}
	defer g.close()
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 2+len(flows))
	parts := 1
	go func() { served <- g.proxy.ServeExplicit(ctx, l) }()
	if o.transparent {
		for addr := range flows {
			l, err := net.Listen("tcp", addr)
			if err != nil {
				return err
			}
			parts++
			go func() { served <- g.proxy.ServeTransparent(ctx, l) }()
		}
	}
	if o.dns != "" {
		pc, err := net.ListenPacket("udp", o.dns)
		if err != nil {
			return err
		}
		parts++
		go func() { served <- g.dns.Serve(ctx, pc, nil) }()
	}
	fmt.Println("ready", g.placeholder, filepath.Join(o.dir, "ca", "ca.crt"))
	err = <-served // all of them end with ctx, or the first with its error
	cancel()
	for range parts - 1 {
		err = errors.Join(err, <-served)
	}
	return err
}

// flows are the addresses at which connections come that a kernel would have
// redirected, and where each was going.
var flows = map[string]string{
	flowInspected: inspectedHost + ":" + tlsPort,
	flowPassed:    passedHost + ":" + tlsPort,
	flowRaw:       rawHost + ":" + plainPort,
	flowPlain:     openHost + ":" + plainPort,
}

const (
	flowInspected = "127.50.0.1:3129"
	flowPassed    = "127.50.0.2:3129"
	flowRaw       = "127.50.0.3:3129"
	flowPlain     = "127.50.0.4:3129"
)

// originalDst is a virtual address for each flow: its own, with the port that the
// client meant.
func originalDst(c net.Conn) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil {
		return at, err
	}
	_, port, err := net.SplitHostPort(flows[at.String()])
	if err != nil {
		return at, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return netip.AddrPortFrom(at.Addr(), uint16(n)), err
}

// flowName is which name a virtual address stands for.
func flowName(_ string, vip netip.Addr) (target.Name, bool) {
	for addr, to := range flows {
		if netip.MustParseAddrPort(addr).Addr() == vip {
			n, err := target.ParseName(to[:strings.LastIndexByte(to, ':')])
			return n, err == nil
		}
	}
	return target.Name{}, false
}

// policyText has a rule for each of the origin's names, and many beside them.
func policyText(o gatewayOptions) string {
	var b strings.Builder
	b.WriteString("apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: bench, owner: bench}\nrules:\n")
	for i := range o.rules {
		fmt.Fprintf(&b, "  - {id: other-%d, reason: beside it, allow: {host: h%d.other.test, methods: [GET, POST], paths: [\"/v1/**\"]}}\n", i, i)
	}
	rule := func(id, host, more, after string) {
		fmt.Fprintf(&b, "  - {id: %s, reason: measured, allow: {host: %q, ports: [80, 443, %s, %s], cidrs: [127.0.0.0/8]%s}%s}\n",
			id, host, plainPort, tlsPort, more, after)
	}
	with := ", tls: inspect"
	if o.broker {
		with += ", credential: " + credential
	}
	inspect := ", methods: [GET, POST, PUT]"
	rule("inspected", inspectedHost, inspect, with)
	rule("passed", passedHost, "", ", tls: passthrough")
	rule("raw", rawHost, ", protocol: tcp", "")
	rule("cold", "*."+coldZone, inspect, ", tls: inspect")
	for i, h := range o.names() {
		rule(fmt.Sprint("more-", i), h, inspect, ", tls: inspect")
	}
	return b.String()
}

func (o gatewayOptions) cell() string {
	if o.unlogged {
		return bareCell
	}
	return benchCell
}

func (o gatewayOptions) names() []string {
	if o.hosts == "" {
		return nil
	}
	return strings.Split(o.hosts, ",")
}

// credentialText is the one credential's document.
func credentialText(dir string) string {
	return fmt.Sprintf(`apiVersion: sallyport/v1
kind: Credential
metadata: {name: %s, owner: bench}
type: bearer
endpoints: [{host: %s, ports: [80, 443, %s, %s]}]
source: {file: %s}
placeholder: {env: BENCH_KEY}
`, credential, inspectedHost, plainPort, tlsPort, filepath.Join(dir, "secret"))
}

func credentials(dir string) ([]policyfile.Credential, error) {
	c, err := policyfile.ParseCredential("credential.yaml", []byte(credentialText(dir)))
	if err != nil {
		return nil, err
	}
	return []policyfile.Credential{*c}, nil
}

// benchGateway is the gateway's rooms, put together as cmd/sallyport does.
type benchGateway struct {
	close       func() error // of the log
	proxy       *proxy.Server
	dns         *dns.Server
	placeholder string
}

func openBench(ctx context.Context, o gatewayOptions) (*benchGateway, error) {
	var creds []policyfile.Credential
	var err error
	if o.broker {
		if creds, err = credentials(o.dir); err != nil {
			return nil, err
		}
	}
	policy, err := policyfile.ParsePolicy("bench.yaml", []byte(policyText(o)), creds)
	if err != nil {
		return nil, err
	}
	b := &benchGateway{}
	recorder, hash, err := b.record(o)
	if err != nil {
		return nil, err
	}
	g, err := gate.New(gate.Config{
		Identity: func(string) (gate.Identity, bool) {
			return gate.Identity{Cell: o.cell(), Run: benchRun, Policy: policy}, true
		},
		Recorder: recorder, Now: time.Now, Hash: hash,
	})
	if err != nil {
		return nil, err
	}
	if err := b.wireProxy(ctx, o, g); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(o.dir, "names"), 0o700); err != nil {
		return nil, err
	}
	names, err := dns.NewNames(dns.NamesConfig{Dir: filepath.Join(o.dir, "names")})
	if err != nil {
		return nil, err
	}
	b.dns, err = dns.New(dns.Config{
		Gate: g, CellOf: func(netip.Addr) (string, bool) { return o.cell(), true }, Names: names, Now: time.Now, Log: warnings(),
		Rate: 1 << 30, Burst: 1 << 30,
	})
	return b, err
}

// record opens the log, or says that there is none.
func (b *benchGateway) record(o gatewayOptions) (gate.Recorder, func(string) string, error) {
	if o.unlogged {
		b.close = func() error { return nil }
		return nowhere{}, func(string) string { return "" }, nil
	}
	log, err := audit.Open(audit.Config{Dir: filepath.Join(o.dir, "audit"), KeyFile: filepath.Join(o.dir, "audit.key"), Now: time.Now})
	if err != nil {
		return nil, nil, err
	}
	b.close = log.Close
	return log, log.Hash, nil
}

// nowhere takes records and keeps none.
type nowhere struct{}

// Append implements [gate.Recorder].
func (nowhere) Append(context.Context, *audit.Record) error { return nil }

// AppendAll implements [gate.AllRecorder].
func (nowhere) AppendAll(context.Context, []*audit.Record) error { return nil }

func warnings() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// originNames is where the origin is, by all of its names.
func originNames(o gatewayOptions) (map[target.Name][]netip.Addr, error) {
	list := append([]string{inspectedHost, passedHost, rawHost}, o.names()...)
	for i := range coldNames {
		list = append(list, coldName(i))
	}
	hosts := make(map[target.Name][]netip.Addr, len(list))
	for _, s := range list {
		n, err := target.ParseName(s)
		if err != nil {
			return nil, err
		}
		hosts[n] = []netip.Addr{netip.MustParseAddr(originAddr)}
	}
	return hosts, nil
}

func coldName(i int) string { return fmt.Sprintf("u%d.%s", i, coldZone) }

func (b *benchGateway) wireProxy(ctx context.Context, o gatewayOptions, g *gate.Gate) error {
	ca, err := certs.Open(filepath.Join(o.dir, "ca"), certs.Options{Now: time.Now})
	if err != nil {
		return err
	}
	roots, err := dial.LoadRoots(o.roots)
	if err != nil {
		return err
	}
	hosts, err := originNames(o)
	if err != nil {
		return err
	}
	cfg := proxy.Config{
		Gate:   g,
		CellOf: func(netip.Addr) (string, bool) { return o.cell(), true },
		NameOf: flowName, OriginalDst: originalDst,
		Leaf:   ca.Leaf,
		Find:   func(string, *http.Request) []rules.Carry { return nil },
		Inject: func(context.Context, gate.Pass, *http.Request) error { return nil },
		Log:    warnings(), Now: time.Now,
		Limits: proxy.Limits{Conns: 16384, ConnsPerCell: 16384, RequestRate: 1 << 20}, // one cell is measured, not bounded
	}
	dialing := dial.Config{Vet: g.Vet, Now: time.Now, Hosts: hosts, Roots: roots}
	scrub := func(gate.Pass, *http.Response) error { return nil }
	if o.broker {
		c, err := b.attachCredential(ctx, o)
		if err != nil {
			return err
		}
		c.Used, c.Minted = g.Used, g.Minted
		cfg.Find, cfg.Ready, cfg.Inject, cfg.Interim, dialing.Params, scrub = c.Find, c.Ready, c.Inject, c.Interim, c.Params, c.Scrub
	}
	d, err := dial.New(dialing)
	if err != nil {
		return err
	}
	cfg.Dial = d.Dial
	cfg.Forward = func(ctx context.Context, p gate.Pass, req *http.Request) (*http.Response, error) {
		resp, err := d.Forward(ctx, p, req)
		if err != nil {
			return nil, err
		}
		if err := scrub(p, resp); err != nil {
			return nil, errors.Join(err, resp.Body.Close())
		}
		return resp, nil
	}
	b.proxy, err = proxy.New(cfg)
	return err
}

// attachCredential has the broker grant the credential to the one run.
func (b *benchGateway) attachCredential(ctx context.Context, o gatewayOptions) (*broker.Client, error) {
	socket := filepath.Join(o.dir, "broker.sock")
	admin := control.NewClient(socket)
	defer admin.Close()
	var out broker.Grants
	in := broker.GrantRequest{Cell: o.cell(), Run: benchRun, Credentials: []string{credential}}
	if err := admin.Call(ctx, "/v1/grants", in, &out); err != nil {
		return nil, err
	}
	b.placeholder = out.Grants[0].Placeholder
	c := broker.NewClient(socket)
	c.Attach(control.CellFile{Cell: o.cell(), Run: benchRun, Grants: out.Grants})
	return c, nil
}

// runBroker serves the broker process's part.
func runBroker(ctx context.Context, args []string) error {
	debug.SetGCPercent(400)
	fs := flag.NewFlagSet("broker", flag.ContinueOnError)
	dir := fs.String("dir", "", "directory for the socket and the secret")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(*dir, "secret"), []byte("bench_4eC39HqLyjWDarjtT1zdp7dcBENCH\n"), 0o600); err != nil {
		return err
	}
	creds, err := credentials(*dir)
	if err != nil {
		return err
	}
	uid := uint32(os.Getuid())
	s, err := broker.NewServer(broker.Config{
		Credentials: creds, GatewayUID: uid, AdminUID: uid, UID: uid, Now: time.Now, Log: warnings(),
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", filepath.Join(*dir, "broker.sock"))
	if err != nil {
		return err
	}
	srv := control.NewServer(s.Handler())
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	return ready(ctx, "broker")
}
