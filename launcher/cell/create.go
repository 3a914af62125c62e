package cell

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
)

// step is one of the named parts of Create.
type step struct {
	name string
	do   func() error
}

// Create makes a cell. The sandbox's end comes up last, when the rules are in
// force, so nothing can run before them. All or nothing: on failure all that was
// made is removed again, by the same code that Remove uses after a crash.
// ErrExists if there is any trace of a cell with that id, or one with that index.
//
// An index, and so an address, may be used again as soon as Remove has returned
// as far as the kernel is concerned; who keeps caches or logs by address must
// hold it back for longer.
func (n *Network) Create(ctx context.Context, id string, index int) (Cell, error) {
	c, err := n.cfg.cell(id, index)
	if err != nil {
		return Cell{}, err
	}
	err = n.change(ctx, func() error {
		h, err := openLinks()
		if err != nil {
			return err
		}
		defer h.Close()
		if err := n.free(h, c); err != nil {
			return err
		}
		for _, s := range n.steps(h, c) {
			err := ctx.Err()
			if err == nil {
				err = s.do()
			}
			if n.after != nil {
				err = errors.Join(err, n.after(s.name))
			}
			if err != nil {
				return errors.Join(fmt.Errorf("%s: %w", s.name, err), n.remove(h, id))
			}
		}
		return nil
	})
	if err != nil {
		return Cell{}, fmt.Errorf("making cell %s: %w", id, err)
	}
	return c, nil
}

// free says whether neither the id nor the index is in use.
func (n *Network) free(h links, c Cell) error {
	ids, err := n.traces(h)
	if err != nil {
		return err
	}
	if slices.Contains(ids, c.ID) {
		return fmt.Errorf("%w: id %s is in use, or was left by a crash: remove it first", ErrExists, c.ID)
	}
	addrs, err := h.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("listing addresses: %w", err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok && c.Subnet.Contains(ip) {
			return fmt.Errorf("%w: index %d has the addresses of %s", ErrExists, c.Index, a.Label)
		}
	}
	return nil
}

// steps make a cell, in order. They run in the gateway's namespace.
func (n *Network) steps(h links, c Cell) []step {
	return []step{
		{"sandbox namespace", func() error {
			return makeNetns(cellNetns(n.cfg.Name, c.ID), func() error { return apply(sandboxSettings()) })
		}},
		{"rules", func() error { return n.addCell(c) }},
		{"bridge", func() error { return makeBridge(h, c) }},
		{"bridge sysctls", func() error { return apply(interfaceSettings(c.Bridge)) }},
		{"bridge address", func() error { return raiseBridge(h, c) }},
		{"link", func() error { return n.makeLink(h, c) }},
		{"sandbox link", func() error { return n.inSandbox(c, func(h links) error { return raiseSandbox(h, c) }) }},
		{"check", func() error {
			got, err := n.read()
			if err != nil {
				return err
			}
			if n.cellDiffers(c, n.wanted([]Cell{c}), got) {
				return errors.New("the cell's rules are not what was written")
			}
			return n.checkCell(h, c)
		}},
	}
}

// makeBridge makes it down, and without the spanning tree protocol: the
// kernel's default, which only root in the namespace can change.
func makeBridge(h links, c Cell) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = c.Bridge
	attrs.HardwareAddr = hardwareAddr(gatewayMAC, c.Index)
	snooping := false // no queries of the bridge's own, and no state for a sandbox to fill
	return h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping})
}

func raiseBridge(h links, c Cell) error {
	bridge, err := h.LinkByName(c.Bridge)
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(c.Gateway, subnetBits))}
	if err := h.AddrAdd(bridge, addr); err != nil {
		return err
	}
	return h.LinkSetUp(bridge)
}

// makeLink makes the veth pair with one end on the bridge and the other, never
// seen anywhere else, in the sandbox's namespace.
func (n *Network) makeLink(h links, c Cell) error {
	bridge, err := h.LinkByName(c.Bridge)
	if err != nil {
		return err
	}
	ns, err := os.Open(c.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = portPrefix + c.ID
	attrs.HardwareAddr = hardwareAddr(portMAC, c.Index)
	attrs.MasterIndex = bridge.Attrs().Index
	port := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         "eth0",
		PeerHardwareAddr: hardwareAddr(sandboxMAC, c.Index),
		PeerNamespace:    netlink.NsFd(int(ns.Fd())),
	}
	if err := h.LinkAdd(port); err != nil {
		return err
	}
	if err := hardenPort(h, port); err != nil {
		return err
	}
	return h.LinkSetUp(port)
}

// hardenPort sets what makes the bridge's end of a link a dead end. Isolated: a
// second port, should a cell ever have one, is no way to a neighbour. No
// learning: with one port there is nothing to learn, and a flood of forged
// addresses fills no table.
func hardenPort(h links, port netlink.Link) error {
	return errors.Join(
		h.LinkSetIsolated(port, true),
		h.LinkSetLearning(port, false),
		h.LinkSetHairpin(port, false),
		apply(interfaceSettings(port.Attrs().Name)),
	)
}

// repairLinks puts right what can be changed on a cell's links while they are in
// use. A port that is missing or on another bridge stays so: that cell is cut
// off, and Verify says it.
func repairLinks(h links, c Cell) error {
	if err := apply(interfaceSettings(c.Bridge)); err != nil {
		return err
	}
	port, err := h.LinkByName(portPrefix + c.ID)
	switch {
	case missing(err):
		return nil
	case err != nil:
		return err
	case port.Attrs().MasterIndex == 0: // on no bridge, these are not to be set
		return apply(interfaceSettings(port.Attrs().Name))
	}
	return hardenPort(h, port)
}

// raiseSandbox runs in the sandbox's namespace.
func raiseSandbox(h links, c Cell) error {
	if err := check(sandboxSettings("eth0")); err != nil {
		return err
	}
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := h.LinkSetUp(lo); err != nil {
		return err
	}
	eth, err := h.LinkByName("eth0")
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(c.Sandbox, subnetBits))}
	if err := h.AddrAdd(eth, addr); err != nil {
		return err
	}
	if err := h.LinkSetUp(eth); err != nil {
		return err
	}
	return h.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: c.Gateway.AsSlice()})
}

// inSandbox runs f in a cell's other namespace.
func (n *Network) inSandbox(c Cell, f func(links) error) error {
	ns, err := openNetns(cellNetns(n.cfg.Name, c.ID))
	if err != nil {
		return err
	}
	defer ns.Close()
	return inside(ns, func() error {
		h, err := openLinks()
		if err != nil {
			return err
		}
		defer h.Close()
		return f(h)
	})
}

// checkCell says what of a cell, its rules apart, is not as Create made it.
func (n *Network) checkCell(h links, c Cell) error {
	errs := []error{check(interfaceSettings(c.Bridge)), check(interfaceSettings(portPrefix + c.ID))}
	bridge, err := h.LinkByName(c.Bridge)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	port, err := h.LinkByName(portPrefix + c.ID)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	if port.Attrs().MasterIndex != bridge.Attrs().Index {
		errs = append(errs, fmt.Errorf("interface %s is no port of %s", port.Attrs().Name, c.Bridge))
	}
	info, err := h.LinkGetProtinfo(port)
	errs = append(errs, err)
	if err == nil && (!info.Isolated || info.Learning || info.Hairpin) {
		errs = append(errs, fmt.Errorf("port %s is isolated: %t, learning: %t, hairpin: %t; want true, false, false",
			port.Attrs().Name, info.Isolated, info.Learning, info.Hairpin))
	}
	// The sandbox may have rearranged its own namespace, which is its own loss;
	// but IPv6 it must not have.
	errs = append(errs, n.inSandbox(c, func(links) error { return check(sandboxSettings()) }))
	return errors.Join(errs...)
}
