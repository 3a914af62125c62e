package cell

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// links asks and changes the interfaces of one namespace: the one of the thread
// that opened it.
type links struct{ *netlink.Handle }

func openLinks() (links, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER)
	if err != nil {
		return links{}, fmt.Errorf("opening netlink: %w", err)
	}
	return links{h}, nil
}

// cellOf returns the id in the name of a cell's bridge or port.
func cellOf(name string) (id string, ok bool) {
	for _, prefix := range []string{portPrefix, bridgePrefix} {
		if id, ok := strings.CutPrefix(name, prefix); ok && idPattern.MatchString(id) {
			return id, true
		}
	}
	return "", false
}

// strangeLinks says which interfaces could lead out. The tunnels that some
// kernels put into every namespace are down, and harmless while they are.
func (h links) strangeLinks() error {
	all, err := h.LinkList()
	if err != nil {
		return fmt.Errorf("listing interfaces: %w", err)
	}
	byIndex := map[int]string{}
	for _, l := range all {
		byIndex[l.Attrs().Index] = l.Attrs().Name
	}
	var errs []error
	for _, l := range all {
		a := l.Attrs()
		id, ours := cellOf(a.Name)
		var want string // the bridge that it is a port of
		if ours && a.Name == portPrefix+id {
			want = bridgePrefix + id
		}
		switch up := a.Flags&net.FlagUp != 0; {
		case a.MasterIndex != 0 && byIndex[a.MasterIndex] != want:
			errs = append(errs, fmt.Errorf("interface %s is a port of %s, which is not its cell's bridge", a.Name, byIndex[a.MasterIndex]))
		case !ours && up && a.Name != "lo":
			errs = append(errs, fmt.Errorf("interface %s is up and not a cell's: it may lead out; take it away", a.Name))
		}
	}
	return errors.Join(errs...)
}

// strangeRoutes says which routes, of any table, lead further than to a cell.
func (h links) strangeRoutes() error {
	routes, err := h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("listing routes: %w", err)
	}
	var errs []error
	for _, r := range routes {
		if r.Gw != nil || r.Via != nil || len(r.MultiPath) > 0 {
			errs = append(errs, fmt.Errorf("route %v leads out; take it away", r))
		}
	}
	return errors.Join(errs...)
}

// cells returns the cells that have a bridge with a gateway's address, and for
// all other bridges and ports why they are none.
func (n *Network) cells(h links) (whole []Cell, halves []error, err error) {
	all, err := h.LinkList()
	if err != nil {
		return nil, nil, fmt.Errorf("listing interfaces: %w", err)
	}
	found := map[string]bool{}
	for _, l := range all {
		id, ok := cellOf(l.Attrs().Name)
		if !ok || l.Attrs().Name != bridgePrefix+id {
			continue
		}
		found[id] = true
		c, err := n.cellAt(h, id, l)
		if err != nil {
			halves = append(halves, fmt.Errorf("cell %s is no whole cell: %w", id, err))
			continue
		}
		whole = append(whole, c)
	}
	slices.SortFunc(whole, func(a, b Cell) int { return strings.Compare(a.ID, b.ID) })
	ids, err := n.traces(h)
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		if !found[id] {
			halves = append(halves, fmt.Errorf("cell %s is no whole cell: it has no bridge", id))
		}
	}
	return whole, halves, nil
}

// cellAt works a cell out from its bridge.
func (n *Network) cellAt(h links, id string, bridge netlink.Link) (Cell, error) {
	addrs, err := bridgeAddrs(h, bridge)
	if err != nil {
		return Cell{}, err
	}
	if len(addrs) != 1 {
		return Cell{}, fmt.Errorf("bridge %s has addresses %v, want one", bridge.Attrs().Name, addrs)
	}
	index, ok := n.cfg.index(addrs[0])
	if !ok {
		return Cell{}, fmt.Errorf("bridge %s has address %v, not a gateway's in %v", bridge.Attrs().Name, addrs[0], n.cfg.Prefix)
	}
	return n.cfg.cell(id, index)
}

func bridgeAddrs(h links, bridge netlink.Link) ([]netip.Prefix, error) {
	addrs, err := h.AddrList(bridge, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("listing addresses of %s: %w", bridge.Attrs().Name, err)
	}
	var out []netip.Prefix
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok {
			bits, _ := a.Mask.Size()
			out = append(out, netip.PrefixFrom(ip, bits))
		}
	}
	return out, nil
}

// traces returns the ids of everything that could be a cell's.
func (n *Network) traces(h links) ([]string, error) {
	ids, err := netnsCells(n.cfg.Name)
	if err != nil {
		return nil, err
	}
	all, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	for _, l := range all {
		if id, ok := cellOf(l.Attrs().Name); ok {
			ids = append(ids, id)
		}
	}
	got, err := n.read()
	if err != nil {
		return nil, err
	}
	ids = append(ids, tableCells(got)...)
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// hardwareAddr makes a locally administered address that says what it belongs
// to, so that a bridge does not change its own when a port comes or goes.
func hardwareAddr(kind byte, index int) net.HardwareAddr {
	return net.HardwareAddr{0x02, 's', 'p', kind, byte(index >> 8), byte(index)}
}

const (
	gatewayMAC byte = 1 + iota
	portMAC
	sandboxMAC
)

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}

func missing(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.As(err, &none)
}
