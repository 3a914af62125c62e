// Package cell makes and removes cells: a bridge, a sandbox's network namespace
// and the rules that leave the sandbox exactly one thing to talk to.
//
// All bridges live in one network namespace, the gateway's, which has no uplink,
// does not forward and has no IPv6. Only its listening sockets are reachable
// from a sandbox; they are made here (Network.Listen) and handed to a process
// that lives in the host's namespace. Isolation is therefore the absence of a
// route, not a rule: the rules (tables.go) only steer a sandbox's TCP and DNS to
// the listeners and count the rest, and with all of them gone there is still no
// way out.
//
// It trusts the kernel, the iptables program, and whoever is root on the host.
// It trusts nothing that comes out of a sandbox, not even with every capability
// in its own namespace: source addresses, ARP, fragments and raw sockets are all
// taken to be hostile.
//
// It never touches the host's tables, routes or sysctls, never adds an interface
// that leads out, never switches IPv6 on, never decides what a flow may reach,
// and never leaves a thread of the program in another namespace (thread.go).
package cell

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"sync"

	"github.com/coreos/go-iptables/iptables"
	"golang.org/x/sys/unix"
)

// ErrExists says that a cell's id or index is in use; see Create.
var ErrExists = errors.New("cell exists")

// Config says where the cells are made. The zero value is the default network.
type Config struct {
	// Name of the gateway's namespace, /run/netns/<Name>. Two networks with
	// different names share nothing. Default "sallyport".
	Name string
	// Prefix is cut into /28s, one for each cell: cell n has the n-th, the
	// gateway .1 in it and the sandbox .2. Default 10.213.0.0/16.
	Prefix netip.Prefix
	// DNSPort is where queries land, whatever server they were sent to. Default 53.
	DNSPort uint16
	// ExplicitPort is the proxy that clients are told of. Default 3128.
	ExplicitPort uint16
	// TransparentPort is where every other TCP connection lands. Default 15001.
	TransparentPort uint16
	// Flows is how many flows (TCP and DNS) a cell may have at once. Default 4096.
	Flows int
	// FlowRate is how many new flows a cell may open in a second, with a burst
	// of twice that. Default 1000, at most 10000.
	FlowRate int
}

// Cell is one isolated bridge and the sandbox's namespace behind it.
type Cell struct {
	ID      string
	Index   int
	Bridge  string       // in the gateway's namespace
	Netns   string       // path of the sandbox's namespace, as for nerdctl --network ns:
	Gateway netip.Addr   // the only address that the sandbox can reach
	Sandbox netip.Addr   // of eth0 in the sandbox's namespace
	Subnet  netip.Prefix // the cell's identity: no packet from elsewhere has a source in it
}

// Bypass counts packets of a cell that were dropped. Two kinds are dropped
// uncounted: fragments, which are no packets until they are put together, which
// never happens; and TCP segments to elsewhere that belong to no flow, which have
// no route and are mostly late ones of a flow that was closed.
type Bypass struct {
	UDP, ICMP, TCP, Other uint64 // sent where nothing listens, or from an address that is not the cell's
	Limited               uint64 // to a listener, but over Flows or FlowRate
}

// Network is the gateway's namespace and the cells in it. Its methods may be
// called at once, from one process or several.
type Network struct {
	cfg Config
	ns  *os.File // the gateway's namespace, held open so that it cannot be swapped below us

	ip4     *iptables.IPTables
	ip6     *iptables.IPTables // nil if the kernel has no IPv6
	nflog   bool
	printed layout // what iptables prints for the wanted tables; see reference

	mu    sync.Mutex              // held while the namespace is changed, with a lock on ns for other processes
	after func(step string) error // called after each step of Create, before its error is looked at; nil outside tests
}

// subnetBits is the size of a cell: a /28 leaves room for a sandbox's
// companions (a throw-away database) beside the gateway and the sandbox.
const subnetBits = 28

var (
	idPattern   = regexp.MustCompile(`^[a-z2-7]{8}$`)
	namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
)

// withDefaults copies and checks.
func (c Config) withDefaults() (Config, error) {
	if c.Name == "" {
		c.Name = defaultName
	}
	if !c.Prefix.IsValid() {
		c.Prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 213, 0, 0}), 16)
	}
	setDefault(&c.DNSPort, 53)
	setDefault(&c.ExplicitPort, 3128)
	setDefault(&c.TransparentPort, 15001)
	setDefault(&c.Flows, 4096)
	setDefault(&c.FlowRate, 1000)

	var errs []error
	// A name that reads as a default cell's would make Destroy of one network
	// remove another.
	if !namePattern.MatchString(c.Name) || isCellNetns(defaultName, c.Name) {
		errs = append(errs, fmt.Errorf("name %q: want lower-case letters, digits and dashes, and not sp-<cell>", c.Name))
	}
	if !c.Prefix.Addr().Is4() || c.Prefix.Bits() > subnetBits || c.Prefix != c.Prefix.Masked() {
		errs = append(errs, fmt.Errorf("prefix %v: want an IPv4 network of /%d or wider, without host bits", c.Prefix, subnetBits))
	}
	// TCP to port 53 is always DNS, so nothing else can listen there.
	if c.ExplicitPort == 53 || c.TransparentPort == 53 || c.ExplicitPort == c.TransparentPort ||
		c.DNSPort == c.ExplicitPort || c.DNSPort == c.TransparentPort {
		errs = append(errs, fmt.Errorf("ports %d, %d, %d: want three different ones, 53 for DNS only",
			c.DNSPort, c.ExplicitPort, c.TransparentPort))
	}
	return c, errors.Join(append(errs, c.checkFlows())...)
}

// checkFlows checks what a cell may have open at once.
func (c Config) checkFlows() error {
	var errs []error
	if c.Flows < 1 {
		errs = append(errs, fmt.Errorf("flows %d: want at least 1", c.Flows))
	}
	if c.FlowRate < 1 || c.FlowRate > 10000 { // hashlimit's own ceiling
		errs = append(errs, fmt.Errorf("flow rate %d: want 1 to 10000", c.FlowRate))
	}
	return errors.Join(errs...)
}

func setDefault[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// cell fills in what follows from an id and an index.
func (c Config) cell(id string, index int) (Cell, error) {
	if !idPattern.MatchString(id) {
		return Cell{}, fmt.Errorf("cell id %q: want 8 lower-case base32 characters", id)
	}
	if most := 1 << (subnetBits - c.Prefix.Bits()); index < 0 || index >= most {
		return Cell{}, fmt.Errorf("cell index %d: %v holds 0 to %d", index, c.Prefix, most-1)
	}
	a := c.Prefix.Addr().As4()
	base := binary.BigEndian.Uint32(a[:]) + uint32(index)<<(32-subnetBits)
	return Cell{
		ID:      id,
		Index:   index,
		Bridge:  bridgePrefix + id,
		Netns:   netnsPath(cellNetns(c.Name, id)),
		Gateway: addr4(base + 1),
		Sandbox: addr4(base + 2),
		Subnet:  netip.PrefixFrom(addr4(base), subnetBits),
	}, nil
}

// index is cell's inverse for a gateway's address; ok is false outside Prefix.
func (c Config) index(gateway netip.Prefix) (index int, ok bool) {
	if gateway.Bits() != subnetBits || !c.Prefix.Contains(gateway.Addr()) {
		return 0, false
	}
	a, b := gateway.Addr().As4(), c.Prefix.Addr().As4()
	off := binary.BigEndian.Uint32(a[:]) - binary.BigEndian.Uint32(b[:])
	return int(off >> (32 - subnetBits)), off%(1<<(32-subnetBits)) == 1
}

func addr4(n uint32) netip.Addr {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], n)
	return netip.AddrFrom4(a)
}

// change runs f in the gateway's namespace while nobody else, in this process
// or another, changes it. A done ctx gives up waiting, not half-way through.
func (n *Network) change(ctx context.Context, f func() error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	unlock, err := lockFile(ctx, n.ns)
	if err != nil {
		return fmt.Errorf("waiting for namespace %q: %w", n.cfg.Name, err)
	}
	defer unlock()
	return inside(n.ns, f)
}

// look runs f in the gateway's namespace, for reading only.
func (n *Network) look(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return inside(n.ns, f)
}

// lockFile waits for an exclusive flock on f. The namespace's own file serves as
// the lock: it lives and dies with what it guards, and no crash leaves it taken.
// Each wait has an opening of f to itself: a lock belongs to the opening, so one
// given up half-way could otherwise release its successor's.
func lockFile(ctx context.Context, f *os.File) (unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	own, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return nil, err
	}
	fd := int(own.Fd())
	got := make(chan error, 1)
	go func() {
		err := unix.Flock(fd, unix.LOCK_EX)
		for errors.Is(err, unix.EINTR) {
			err = unix.Flock(fd, unix.LOCK_EX)
		}
		got <- err
	}()
	release := func() { _ = own.Close() } // nothing was written
	select {
	case err := <-got:
		if err != nil {
			release()
			return nil, err
		}
		return release, nil
	case <-ctx.Done():
		go func() {
			_ = <-got //nolint:staticcheck // errcheck wants the error looked at: nobody waits for it any more
			release()
		}()
		return nil, ctx.Err()
	}
}

// Close gives up the handle. The namespace, the cells and the sockets stay.
func (n *Network) Close() error { return n.ns.Close() }
