// Command bench serves the gateway's explicit listener on loopback, wired as
// in production (policy, log, CA, dialler), for a load generator to measure.
// There is no broker and no cell: every client on loopback is one cell.
//
//	bench -dir DIR -listen 127.0.0.1:3128 -host origin.perf.test -addr 127.7.7.7 -ca origin-ca.crt -tls inspect
//
// It refuses to listen or dial outside 127.0.0.0/8.
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
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sallyport/audit"
	"sallyport/certs"
	"sallyport/proxy"
	"sallyport/proxy/dial"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

type options struct {
	dir, listen, host, addr, ca, tls string
	rules                            int
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "", "directory for the log and the CA")
	flag.StringVar(&o.listen, "listen", "127.0.0.1:3128", "where to listen")
	flag.StringVar(&o.host, "host", "origin.perf.test", "the one host that is allowed")
	flag.StringVar(&o.addr, "addr", "127.7.7.7", "its address")
	flag.StringVar(&o.ca, "ca", "", "authority of its certificate")
	flag.StringVar(&o.tls, "tls", "inspect", "inspect, passthrough or tcp")
	flag.IntVar(&o.rules, "rules", 100, "how many rules there are beside the one that matches")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, o); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, o options) error {
	listen, err := netip.ParseAddrPort(o.listen)
	if err != nil || !listen.Addr().IsLoopback() {
		return fmt.Errorf("listen %q is not on loopback: %w", o.listen, err)
	}
	addr, err := netip.ParseAddr(o.addr)
	if err != nil || !addr.IsLoopback() {
		return fmt.Errorf("address %q is not on loopback: %w", o.addr, err)
	}
	host, err := target.ParseName(o.host)
	if err != nil {
		return err
	}
	policy, err := policyfile.ParsePolicy("bench.yaml", []byte(policyText(o)), nil)
	if err != nil {
		return err
	}
	log, err := audit.Open(audit.Config{Dir: filepath.Join(o.dir, "audit"), KeyFile: filepath.Join(o.dir, "audit.key"), Now: time.Now})
	if err != nil {
		return err
	}
	defer log.Close()
	px, err := wire(o, policy, log, map[target.Name][]netip.Addr{host: {addr}})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	fmt.Println("listening on", l.Addr(), "with", filepath.Join(o.dir, "ca", "ca.crt"))
	return px.ServeExplicit(ctx, l)
}

// policyText is a policy with one rule for the host and many beside it.
func policyText(o options) string {
	var b strings.Builder
	b.WriteString("apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: bench, owner: bench}\nrules:\n")
	for i := range o.rules {
		fmt.Fprintf(&b, "  - {id: other-%d, reason: beside it, allow: {host: h%d.other.test, methods: [GET, POST], paths: [\"/v1/**\"]}}\n", i, i)
	}
	mode := "tls: " + o.tls
	if o.tls == "tcp" {
		mode = "protocol: tcp"
	}
	rule := "{host: " + o.host + ", ports: [80, 443, 8080, 8443], cidrs: [127.0.0.0/8]"
	switch o.tls {
	case "inspect":
		fmt.Fprintf(&b, "  - {id: origin, reason: measured, allow: %s, methods: [GET, POST, PUT]}, %s}\n", rule, mode)
	case "tcp":
		fmt.Fprintf(&b, "  - {id: origin, reason: measured, allow: %s, %s}}\n", rule, mode)
	default:
		fmt.Fprintf(&b, "  - {id: origin, reason: measured, allow: %s}, %s}\n", rule, mode)
	}
	return b.String()
}

// wire puts the rooms together as the gateway does.
func wire(o options, policy *rules.Policy, log *audit.Log, hosts map[target.Name][]netip.Addr) (*proxy.Server, error) {
	const cell = "bench222"
	g, err := gate.New(gate.Config{
		Identity: func(string) (gate.Identity, bool) {
			return gate.Identity{Cell: cell, Run: "bench", Policy: policy}, true
		},
		Recorder: log, Now: time.Now, Hash: log.Hash,
	})
	if err != nil {
		return nil, err
	}
	ca, err := certs.Open(filepath.Join(o.dir, "ca"), certs.Options{Now: time.Now})
	if err != nil {
		return nil, err
	}
	roots, err := dial.LoadRoots(o.ca)
	if err != nil {
		return nil, err
	}
	d, err := dial.New(dial.Config{Vet: g.Vet, Now: time.Now, Hosts: hosts, Roots: roots})
	if err != nil {
		return nil, err
	}
	return proxy.New(proxy.Config{
		Gate:   g,
		CellOf: func(netip.Addr) (string, bool) { return cell, true },
		NameOf: func(string, netip.Addr) (target.Name, bool) { return target.Name{}, false },
		Dial:   d.Dial, Forward: d.Forward, Leaf: ca.Leaf,
		Find:   func(string, *http.Request) []rules.Carry { return nil },
		Inject: func(context.Context, gate.Pass, *http.Request) error { return nil },
		Log:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})), Now: time.Now,
	})
}
