package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/audit/capture"
	"sallyport/audit/query"
	"sallyport/broker"
	"sallyport/certs"
	"sallyport/control"
	"sallyport/control/slack"
	"sallyport/proxy/dial"
	"sallyport/proxy/dns"
	"sallyport/rules/gate"
	"sallyport/rules/limit/ledger"
	"sallyport/rules/live"
	"sallyport/rules/policyfile"
)

// The descriptors that the supervisor hands to the gateway, in this order.
const (
	fdControl = 3 + iota
	fdTransparent
	fdExplicit
	fdDNSStream
	fdDNSPacket
)

func newGateway() *cobra.Command {
	var o logOptions
	c := daemonCommand("gateway", "The gateway process; started by up", func(ctx context.Context, inst instance, log *slog.Logger) error {
		return runGateway(ctx, inst, o, log)
	})
	o.add(c)
	return c
}

// runGateway serves until ctx ends. It runs as a user of its own without
// capabilities, on sockets that were opened for it.
func runGateway(ctx context.Context, inst instance, o logOptions, log *slog.Logger) error {
	if err := dropPrivileges(); err != nil {
		return err
	}
	defer runtime.KeepAlive(make([]byte, ballast))
	if err := slack.Take(slack.Late); err != nil {
		log.Warn("threads wake more often than they need", "cause", err)
	}
	socks, err := inherited()
	if err != nil {
		return err
	}
	defer socks.close()
	g, err := openWithLog(ctx, inst, o, socks.control, log)
	if err != nil {
		return err
	}
	defer g.close()
	return g.serve(ctx, socks)
}

// sockets are the listeners that were handed over.
type sockets struct {
	control, transparent, explicit, dnsStream net.Listener
	dnsPacket                                 net.PacketConn
}

func inherited() (*sockets, error) {
	s := &sockets{}
	var errs []error
	listener := func(fd uintptr, name string) net.Listener {
		f := os.NewFile(fd, name)
		defer f.Close()
		l, err := net.FileListener(f)
		if err != nil {
			errs = append(errs, fmt.Errorf("taking over the %s socket (descriptor %d): %w", name, fd, err))
		}
		return l
	}
	s.control = listener(fdControl, "control")
	s.transparent = listener(fdTransparent, "transparent")
	s.explicit = listener(fdExplicit, "explicit")
	s.dnsStream = listener(fdDNSStream, "DNS stream")
	f := os.NewFile(fdDNSPacket, "DNS packet")
	defer f.Close()
	pc, err := net.FilePacketConn(f)
	if err != nil {
		errs = append(errs, fmt.Errorf("taking over the DNS packet socket (descriptor %d): %w", fdDNSPacket, err))
	}
	s.dnsPacket = pc
	if err := errors.Join(errs...); err != nil {
		return nil, hint(err, "start it with: sallyport up")
	}
	return s, nil
}

func (s *sockets) close() {
	for _, c := range []io.Closer{s.control, s.transparent, s.explicit, s.dnsStream, s.dnsPacket} {
		_ = c.Close() // closed already by the server that used it
	}
}

// gateway is the wired process.
type gateway struct {
	inst    instance
	log     *slog.Logger
	records *audit.Log
	aside   *ledger.Ledger
	recent  *recorder
	gate    *gate.Gate
	table   live.Table
	names   *dns.Names
	dialer  *dial.Dialer
	broker  *broker.Client
	ca      *certs.CA
	bounds  policyfile.Bounds
	floor   string         // digest of the floor, "" for none
	bodies  *capture.Store // nil: none are kept
	keepFor time.Duration  // of records and bodies; 0 is for ever
	access  live.Access
	since   time.Time
	first   uint64 // number of the first record that is a decision of this process
	load    digestLoader
	trials  sync.Map // tests of credentials under way: cell → gate.Identity
	metrics *metrics
	health  net.Listener // nil for none

	mu       sync.Mutex // guards all below, and attaching; nothing is proved under it
	creds    []policyfile.Credential
	policies map[string]*policy
	proofs   map[string]*proof            // under way, by digest
	files    map[string]*control.CellFile // of each attached cell
	coming   map[string]*control.CellFile // that are being attached
	turns    map[string]*sync.Mutex       // of each attached cell: see turn
}

// openGateway makes everything that the gateway needs before it serves.
func openGateway(ctx context.Context, inst instance, o logOptions, log *slog.Logger) (*gateway, error) {
	g := &gateway{inst: inst, log: log, since: time.Now(), load: loadPolicyByDigest, policies: map[string]*policy{}, proofs: map[string]*proof{}}
	g.files, g.coming, g.turns = map[string]*control.CellFile{}, map[string]*control.CellFile{}, map[string]*sync.Mutex{}
	cfg, err := loadGatewayConfig(inst.run("config.yaml"))
	if err != nil {
		return nil, err
	}
	if err := o.apply(cfg); err != nil {
		return nil, err
	}
	if g.creds, err = loadCredentials(inst.credentials()); err != nil {
		return nil, err
	}
	if path := inst.under(); path != "" {
		floor, err := readFloor(path, g.creds, nil)
		if err != nil {
			return nil, err
		}
		g.floor = floor.Floor
	}
	if g.records, err = openAudit(inst, cfg); err != nil {
		return nil, err
	}
	g.first = g.records.Signed() // how the log was opened is signed at once
	g.metrics = newMetrics(func() int { return len(g.table.Cells()) }, g.records.Ready)
	g.recent = newRecorder(g.records, g.metrics)
	if g.aside, err = ledger.Open(inst.run("limits", "aside")); err != nil {
		return nil, errors.Join(err, g.records.Close())
	}
	g.gate, err = gate.New(gate.Config{Identity: g.identity, Recorder: g.recent, Now: time.Now, Hash: g.records.Hash, Ledger: g.aside})
	if err != nil {
		return nil, errors.Join(err, g.records.Close())
	}
	if err := g.openRooms(cfg); err != nil {
		return nil, errors.Join(err, g.records.Close())
	}
	g.bounds = cfg.Bounds
	g.keepFor = time.Duration(cfg.Log.Keep) * time.Second
	if err := g.openBodies(cfg.Log.Capture); err != nil {
		return nil, errors.Join(err, g.records.Close())
	}
	if g.health, err = listenHealth(ctx, cfg.Metrics); err != nil {
		return nil, errors.Join(err, g.records.Close())
	}
	if err := g.restoreAccess(); err != nil {
		return nil, errors.Join(err, g.records.Close())
	}
	if err := g.attachAll(ctx); err != nil {
		// One cell that cannot be read must not take the others down: it stays
		// detached, which denies everything.
		log.Error("a cell stays detached", "cause", err)
	}
	if err := g.recount(); err != nil {
		return nil, errors.Join(err, g.records.Close())
	}
	return g, nil
}

// recount takes the counts of limits from the log, where a run has limits: no
// period is longer than a day.
func (g *gateway) recount() error {
	if !slices.ContainsFunc(g.table.Cells(), func(c live.Cell) bool { return c.Policy.Limited() }) {
		return g.gate.Recount(func(func(audit.Record, error) bool) {})
	}
	now := time.Now().UTC()
	f, err := query.Parse("kind=admit,done since=25h", now)
	if err != nil {
		return err
	}
	return g.gate.Recount(query.Records(g.inst.auditDir(), f))
}

// attachAll puts the cells in force that were attached before this process began.
func (g *gateway) attachAll(ctx context.Context) error {
	files, err := control.ReadAll(g.inst.cells())
	errs := []error{err}
	for _, f := range files {
		errs = append(errs, g.attachFile(ctx, f))
	}
	// Names of cells that ended while no gateway ran.
	errs = append(errs, g.names.Prune(func(cell string) bool {
		_, ok := g.table.Identity(cell)
		return ok
	}))
	return errors.Join(errs...)
}

// serve runs every listener until ctx ends or one of them fails.
func (g *gateway) serve(ctx context.Context, socks *sockets) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	changed := make(chan struct{}, 1)
	defer g.table.Notify(changed)()
	unrecorded := make(chan struct{})
	px, err := g.proxyServer(changed, unrecorded)
	if err != nil {
		return err
	}
	ns, err := g.dnsServer()
	if err != nil {
		return err
	}
	ctl := control.NewServer(g.handler())
	servers := []func(context.Context) error{
		func(ctx context.Context) error { return px.ServeTransparent(ctx, socks.transparent) },
		func(ctx context.Context) error { return px.ServeExplicit(ctx, socks.explicit) },
		func(ctx context.Context) error { return ns.Serve(ctx, socks.dnsPacket, socks.dnsStream) },
		func(ctx context.Context) error { return serveHTTP(ctx, ctl, socks.control) },
		g.expire,
		func(ctx context.Context) error { return watchLog(ctx, g.records.Ready, unrecorded) },
	}
	if g.health != nil {
		servers = append(servers, func(ctx context.Context) error { return g.serveHealth(ctx, g.health) })
	}
	servers = append(servers, g.pruning)
	return serveAll(ctx, servers...)
}

// close ends the log in order; it is the last thing that the process does.
func (g *gateway) close() {
	g.dialer.Close()
	g.broker.Close()
	if err := errors.Join(g.names.Close(), g.records.Close(), g.aside.Close()); err != nil {
		g.log.Error("closing", "cause", err)
	}
}

// serveAll runs every server until ctx ends or one fails, which ends the rest.
func serveAll(ctx context.Context, servers ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, len(servers))
	for _, serve := range servers {
		go func() {
			err := serve(ctx)
			cancel()
			errs <- err
		}()
	}
	var all []error
	for range servers {
		if err := <-errs; err != nil && !errors.Is(err, context.Canceled) {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// serveHTTP serves until ctx ends, then lets open calls finish for a moment.
func serveHTTP(ctx context.Context, s *http.Server, l net.Listener) error {
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	select {
	case err := <-done:
		return fmt.Errorf("serving %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	err := s.Shutdown(ctx)
	if served := <-done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
