package cell

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Remove removes a cell, or what a crash has left of one. No such cell is no
// error. Once it has returned, no flow of the cell is left in the kernel, so its
// addresses carry nothing over to the next owner.
func (n *Network) Remove(ctx context.Context, id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("cell id %q: want 8 lower-case base32 characters", id)
	}
	err := n.change(ctx, func() error {
		h, err := openLinks()
		if err != nil {
			return err
		}
		defer h.Close()
		return n.remove(h, id)
	})
	if err != nil {
		return fmt.Errorf("removing cell %s: %w", id, err)
	}
	return nil
}

// remove goes on after an error: what can be removed is removed. The sandbox is
// cut off first, its flows are ended next, and its rules go when nothing can
// send any more; so there is no moment with a sandbox and without its rules.
func (n *Network) remove(h links, id string) error {
	var errs []error
	errs = append(errs, deleteLink(h, portPrefix+id))
	bridge, err := h.LinkByName(bridgePrefix + id)
	switch {
	case err == nil:
		addrs, err := bridgeAddrs(h, bridge)
		errs = append(errs, err)
		for _, a := range addrs {
			errs = append(errs, endFlows(h, a.Masked()))
		}
		errs = append(errs, deleteLink(h, bridgePrefix+id))
	case !missing(err):
		errs = append(errs, err)
	}
	errs = append(errs, n.dropCell(id), removeNetns(cellNetns(n.cfg.Name, id)))
	return errors.Join(errs...)
}

// deleteLink deletes an interface that may not exist.
func deleteLink(h links, name string) error {
	l, err := h.LinkByName(name)
	if missing(err) {
		return nil
	}
	if err == nil {
		err = h.LinkDel(l)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("deleting interface %s: %w", name, err)
	}
	return nil
}

// endFlows closes what the gateway's process still holds open to a cell, which
// wakes whoever reads from it, and forgets what conntrack knows of the cell.
func endFlows(h links, subnet netip.Prefix) error {
	if err := closeSockets(h, subnet); err != nil {
		return fmt.Errorf("closing connections of %v: %w", subnet, err)
	}
	if _, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, from(subnet)); err != nil {
		return fmt.Errorf("forgetting flows of %v: %w", subnet, err)
	}
	return nil
}

// from is a filter for the flows that come from a subnet.
type from netip.Prefix

func (f from) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	ip, ok := netip.AddrFromSlice(flow.Forward.SrcIP.To4())
	return ok && netip.Prefix(f).Contains(ip)
}

func closeSockets(h links, subnet netip.Prefix) error {
	sockets, err := netlink.SocketDiagTCP(unix.AF_INET)
	if err != nil {
		return err
	}
	for _, s := range sockets {
		ip, ok := netip.AddrFromSlice(s.ID.Destination.To4())
		if !ok || !subnet.Contains(ip) {
			continue
		}
		err := h.SocketDestroy(
			&net.TCPAddr{IP: s.ID.Source, Port: int(s.ID.SourcePort)},
			&net.TCPAddr{IP: s.ID.Destination, Port: int(s.ID.DestinationPort)})
		// ENOENT: it has closed by itself. EOPNOTSUPP: a kernel without
		// INET_DIAG_DESTROY, on which the gateway's keep-alive finds out.
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
	}
	return nil
}

// Destroy removes all cells and the namespace's name. The namespace itself goes
// with the last socket in it. Nothing to destroy is no error.
func (n *Network) Destroy(ctx context.Context) error {
	err := n.change(ctx, func() error {
		h, err := openLinks()
		if err != nil {
			return err
		}
		defer h.Close()
		ids, err := n.traces(h)
		if err != nil {
			return err
		}
		var errs []error
		for _, id := range ids {
			if err := n.remove(h, id); err != nil {
				errs = append(errs, fmt.Errorf("cell %s: %w", id, err))
			}
		}
		// A name that has come to mean another namespace is not ours to take.
		ours, err := n.ns.Stat()
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		switch named, err := os.Stat(netnsPath(n.cfg.Name)); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			errs = append(errs, err)
		case sameNetns(ours, named):
			errs = append(errs, removeNetns(n.cfg.Name))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return fmt.Errorf("removing network %q: %w", n.cfg.Name, err)
	}
	return nil
}
