package cell

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// Open makes the gateway's namespace, or adopts one that an earlier process left
// with its cells, and puts right whatever is not as it must be. It refuses if
// something essential cannot be set up or does not read back as set; the error
// says what to install or do. A cell that is half made or outside the
// configuration is no reason to refuse: nothing reaches it, Cells names it and
// Remove takes it away.
func Open(ctx context.Context, cfg Config) (*Network, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("cell configuration: %w", err)
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("making network namespaces needs root: run as root, or with sudo")
	}
	n := &Network{cfg: cfg}
	if n.ip4, n.ip6, err = openTables(); err != nil {
		return nil, err
	}
	if err := n.reference(); err != nil {
		return nil, fmt.Errorf("trying the rules in a namespace of their own: %w", err)
	}
	made := false
	if n.ns, made, err = openGateway(ctx, cfg.Name); err != nil {
		return nil, fmt.Errorf("opening namespace %q: %w", cfg.Name, err)
	}
	if err := n.Repair(ctx); err != nil {
		if made { // leave nothing behind; one that was there before is not ours to remove
			err = errors.Join(err, n.Destroy(context.WithoutCancel(ctx)))
		}
		return nil, errors.Join(err, n.ns.Close())
	}
	return n, nil
}

// Repair puts right what Verify finds in the namespace and in whole cells, as
// Open does.
func (n *Network) Repair(ctx context.Context) error {
	if err := n.change(ctx, n.repair); err != nil {
		return fmt.Errorf("setting up namespace %q: %w", n.cfg.Name, err)
	}
	return nil
}

// openGateway opens the named namespace, making it if there is none.
func openGateway(ctx context.Context, name string) (ns *os.File, made bool, err error) {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return nil, false, err
	}
	dir, err := os.Open(netnsDir)
	if err != nil {
		return nil, false, err
	}
	defer dir.Close()
	// Locked, so that the file that one process has made and not yet mounted on
	// is not another's left-over.
	unlock, err := lockFile(ctx, dir)
	if err != nil {
		return nil, false, err
	}
	defer unlock()

	ns, err = openNetns(name)
	if errors.Is(err, fs.ErrNotExist) {
		made = true
		prepare := func() error { return apply(gatewaySettings()) }
		if err := errors.Join(removeNetns(name), makeNetns(name, prepare)); err != nil {
			return nil, false, err
		}
		ns, err = openNetns(name)
	}
	if err != nil {
		return nil, false, err
	}
	own, err := isOwnNetns(ns)
	if err == nil && own {
		err = fmt.Errorf("%s is this program's own namespace: its tables are not ours to write; choose another name", ns.Name())
	}
	if err != nil {
		return nil, false, errors.Join(err, ns.Close())
	}
	return ns, made, nil
}

// repair makes the namespace what it must be, and reads it back.
func (n *Network) repair() error {
	h, err := openLinks()
	if err != nil {
		return err
	}
	defer h.Close()
	// An interface or route that is not ours may be an uplink. Whoever put it
	// there meant something; taking it away is theirs to do.
	if err := errors.Join(h.strangeLinks(), h.strangeRoutes()); err != nil {
		return err
	}
	if err := apply(gatewaySettings()); err != nil {
		return err
	}
	if err := n.enoughFlows(); err != nil {
		return err
	}
	cells, _, err := n.cells(h)
	if err != nil {
		return err
	}
	for _, c := range cells {
		if err := repairLinks(h, c); err != nil {
			return err
		}
	}
	if err := n.reconcile(cells); err != nil {
		return err
	}
	return errors.Join(check(gatewaySettings()), n.checkIPv6())
}

// enoughFlows refuses a machine on which one cell could fill the table of flows
// that all share.
func (n *Network) enoughFlows() error {
	const key = "/proc/sys/net/netfilter/nf_conntrack_max"
	text, err := os.ReadFile(key)
	if err != nil {
		return fmt.Errorf("reading sysctl: %w", err)
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("reading %s: %w", key, err)
	}
	if need := 4 * n.cfg.Flows; most != 0 && most < need { // 0: no limit
		return fmt.Errorf("net.netfilter.nf_conntrack_max is %d, too little for cells of %d flows: sysctl -w net.netfilter.nf_conntrack_max=%d, or configure fewer",
			most, n.cfg.Flows, need)
	}
	return nil
}

// Verify reads everything back and says all that differs from what Open and
// Create have made. It changes nothing.
func (n *Network) Verify(ctx context.Context) error {
	return n.look(ctx, func() error {
		h, err := openLinks()
		if err != nil {
			return err
		}
		defer h.Close()
		errs := []error{
			n.checkName(),
			h.strangeLinks(),
			h.strangeRoutes(),
			check(gatewaySettings()),
			n.checkIPv6(),
		}
		cells, halves, err := n.cells(h)
		errs = append(errs, err)
		errs = append(errs, halves...)
		for _, c := range cells {
			if err := n.checkCell(h, c); err != nil {
				errs = append(errs, fmt.Errorf("cell %s: %w", c.ID, err))
			}
		}
		got, err := n.read()
		errs = append(errs, err)
		if err == nil {
			for _, d := range diff(n.wanted(cells), got) {
				errs = append(errs, errors.New(d))
			}
		}
		return errors.Join(errs...)
	})
}

// checkName says whether the name still means the namespace that we hold.
func (n *Network) checkName() error {
	ours, err := n.ns.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(netnsPath(n.cfg.Name))
	if err != nil {
		return fmt.Errorf("looking for namespace %q: %w", n.cfg.Name, err)
	}
	if !sameNetns(ours, named) {
		return fmt.Errorf("%s is not the namespace that was opened", netnsPath(n.cfg.Name))
	}
	return nil
}

// Cells returns the ids of all cells of which the kernel has any trace: a
// bridge, a veth, a namespace or a rule. Not all of them need be whole.
func (n *Network) Cells(ctx context.Context) ([]string, error) {
	var ids []string
	err := n.look(ctx, func() error {
		h, err := openLinks()
		if err != nil {
			return err
		}
		defer h.Close()
		ids, err = n.traces(h)
		return err
	})
	return ids, err
}

// Counters returns what a cell has had dropped since it was made, or since its
// rules last had to be repaired.
func (n *Network) Counters(ctx context.Context, id string) (Bypass, error) {
	if !idPattern.MatchString(id) {
		return Bypass{}, fmt.Errorf("cell id %q: want 8 lower-case base32 characters", id)
	}
	var b Bypass
	err := n.look(ctx, func() (err error) {
		b, err = n.readCounters(id)
		return err
	})
	return b, err
}

// Listen makes a listening socket inside the namespace. network is tcp or udp,
// address is a port with an IPv4 address or none before it. The file works in whatever process it is handed to, in any
// namespace; getsockopt SO_ORIGINAL_DST on what it accepts does too, since both
// act on the socket's own namespace.
func (n *Network) Listen(ctx context.Context, network, address string) (*os.File, error) {
	// A name would be looked up, on whatever thread.
	if host, _, err := net.SplitHostPort(address); err != nil || host != "" && !isIPv4(host) {
		return nil, fmt.Errorf("listening on %q: want a port, with an IPv4 address or none", address)
	}
	var f *os.File
	err := n.look(ctx, func() (err error) {
		var lc net.ListenConfig
		switch network {
		case "tcp":
			l, err := lc.Listen(ctx, "tcp4", address)
			if err != nil {
				return err
			}
			f, err = fileOf(l)
			return errors.Join(err, l.Close())
		case "udp":
			c, err := lc.ListenPacket(ctx, "udp4", address)
			if err != nil {
				return err
			}
			f, err = fileOf(c)
			return errors.Join(err, c.Close())
		default:
			return net.UnknownNetworkError(network)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listening in namespace %q: %w", n.cfg.Name, err)
	}
	return f, nil
}

func isIPv4(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.Is4()
}

// fileOf returns a descriptor of its own of a socket.
func fileOf(socket any) (*os.File, error) {
	s, ok := socket.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, fmt.Errorf("%T has no descriptor", socket)
	}
	return s.File()
}
