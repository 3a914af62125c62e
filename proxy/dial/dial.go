// Package dial is the only door out: it resolves names, opens sockets and
// sends requests, and it does so for a [gate.Pass] alone.
//
// A name is resolved only once its request is admitted, by a resolver of its
// own (no system library, no search list, no second look-up), every address
// of the answer is put to the policy, one bad address refuses the whole
// answer, and a vetted address is the one that is dialled. Upstream TLS is
// always verified for the name that was admitted. Connections are pooled for
// one cell, run and policy, and every request is vetted anew, pooled or not.
//
// It trusts the gate's passes and its own configuration. It never trusts a
// DNS answer, a request's own Host or URL, or the environment; it never
// follows a redirect and never uses a proxy that nobody configured.
package dial

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"sallyport/rules/gate"
	"sallyport/rules/target"
)

// Config is what a Dialer needs. Vet and Now are required.
type Config struct {
	// Vet asks the policy that admitted a pass about a resolved address:
	// (*gate.Gate).Vet. Its error is handed on as it is.
	Vet func(context.Context, gate.Pass, netip.Addr) error
	Now func() time.Time

	// Hosts are addresses of names that no resolver is asked about. They are
	// vetted like any other. Naming one of this machine's own addresses here is
	// the only way to have it dialled.
	Hosts map[target.Name][]netip.Addr
	// Resolvers are the DNS servers to ask, in order. Default: those of
	// /etc/resolv.conf, read again when it changes.
	Resolvers []Resolver
	// Proxy is the HTTP proxy that every connection goes through. Names are
	// resolved and addresses vetted all the same, and it is told the address.
	Proxy *UpstreamProxy
	// Roots are the authorities that upstream certificates are verified
	// against. Default: the system's. See [LoadRoots].
	Roots *x509.CertPool

	// Params returns the parameters of the query that may differ from what p
	// admitted, since a credential stands in them. Default: none.
	Params func(gate.Pass) []string

	// Certificate returns the client's certificate that p's connection shows a
	// server that asks for one, nil for none. Connections that show one are pooled
	// for its credential alone. Default: none.
	Certificate func(context.Context, gate.Pass) (*tls.Certificate, error)
	// Certified says which credentials are certificates. Default: none.
	Certified func(gate.Pass) bool

	Timeouts Timeouts
}

// Timeouts bound the stages of a request. A zero field takes its default.
type Timeouts struct {
	Resolve  time.Duration // one look-up, all servers: 5 s
	Connect  time.Duration // all addresses of a host together: 10 s
	TLS      time.Duration // one handshake: 10 s
	Response time.Duration // from the request's last octet to the answer's header: 10 min
	Idle     time.Duration // a pooled connection without a request: 90 s
}

func (t Timeouts) withDefaults() (Timeouts, error) {
	fields := []struct {
		d   *time.Duration
		def time.Duration
	}{
		{&t.Resolve, 5 * time.Second},
		{&t.Connect, 10 * time.Second},
		{&t.TLS, 10 * time.Second},
		{&t.Response, 10 * time.Minute},
		{&t.Idle, 90 * time.Second},
	}
	for _, f := range fields {
		if *f.d < 0 {
			return t, errors.New("dial: a timeout is negative")
		}
		if *f.d == 0 {
			*f.d = f.def
		}
	}
	return t, nil
}

// Dialer opens connections and sends requests for passes. It is safe for use
// by many goroutines.
type Dialer struct {
	cfg      Config
	resolver *resolver
	own      *ownAddrs
	open     opener
	pools    pools
}

// New returns a Dialer. It refuses an incomplete Config.
func New(cfg Config) (*Dialer, error) {
	if cfg.Vet == nil || cfg.Now == nil {
		return nil, errors.New("dial: vet and a clock are required")
	}
	if (cfg.Certificate == nil) != (cfg.Certified == nil) {
		return nil, errors.New("dial: certificates need both Certificate and Certified")
	}
	t, err := cfg.Timeouts.withDefaults()
	if err != nil {
		return nil, err
	}
	cfg.Timeouts = t
	for _, r := range cfg.Resolvers {
		if !r.Addr.IsValid() || r.Addr.Port() == 0 {
			return nil, fmt.Errorf("dial: resolver %v is not an address and a port", r.Addr)
		}
	}
	if err := cfg.Proxy.check(); err != nil {
		return nil, err
	}
	hosts, named, err := readHosts(cfg.Hosts)
	if err != nil {
		return nil, err
	}
	cfg.Hosts, cfg.Resolvers = hosts, slices.Clone(cfg.Resolvers)
	d := &Dialer{
		cfg:      cfg,
		resolver: newResolver(cfg.Resolvers, cfg.Roots, cfg.Now, t.Resolve),
		own:      &ownAddrs{now: cfg.Now, named: named},
		open:     openDirectly,
	}
	if cfg.Proxy != nil {
		d.open = cfg.Proxy.open
	}
	return d, nil
}

// readHosts copies the table of hosts in the one spelling of addresses, and
// returns all of these as well.
func readHosts(in map[target.Name][]netip.Addr) (hosts map[target.Name][]netip.Addr, all map[netip.Addr]bool, err error) {
	hosts, all = make(map[target.Name][]netip.Addr, len(in)), map[netip.Addr]bool{}
	for name, addrs := range in {
		if name.IsZero() || len(addrs) == 0 {
			return nil, nil, fmt.Errorf("dial: host %q needs a name and an address", name)
		}
		for _, a := range addrs {
			if !a.IsValid() || a.Zone() != "" {
				return nil, nil, fmt.Errorf("dial: host %q: %v is not an address without a zone", name, a)
			}
			hosts[name] = append(hosts[name], a.Unmap())
			all[a.Unmap()] = true
		}
	}
	return hosts, all, nil
}

// Dial opens a TCP connection to the place that p admits. The address dialled
// is the connection's RemoteAddr. A refusal of the resolved address is a
// [*gate.DeniedError], every other failure an [*Error].
func (d *Dialer) Dial(ctx context.Context, p gate.Pass) (net.Conn, error) {
	addrs, err := d.vetted(ctx, p)
	if err != nil {
		return nil, err
	}
	return d.connect(ctx, addrs, p.Request().Endpoint.Port)
}

// connect opens a connection to one of addrs, which are vetted.
func (d *Dialer) connect(ctx context.Context, addrs []netip.Addr, port uint16) (net.Conn, error) {
	to := make([]netip.AddrPort, len(addrs))
	for i, a := range addrs {
		to[i] = netip.AddrPortFrom(a, port)
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Timeouts.Connect)
	defer cancel()
	return race(ctx, to, d.open)
}
