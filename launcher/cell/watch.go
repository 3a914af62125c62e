package cell

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrOtherWay says that a cell has an interface that Create did not make.
var ErrOtherWay = errors.New("another interface")

// Watch returns nil when ctx ends, and ErrOtherWay as soon as a cell has another way
// than the one that Create made, by whomever: an interface in the sandbox's namespace
// that is up, or a port on the cell's bridge. The kernel tells of each change, so none
// is too short to be seen; what was there before is seen too.
//
// Interfaces are all that is looked at. Without another one nothing else that can be
// set in the sandbox's namespace (routes, addresses, rules) leads anywhere.
func (n *Network) Watch(ctx context.Context, c Cell) error {
	if err := n.watch(ctx, c); err != nil {
		return fmt.Errorf("watching cell %s: %w", c.ID, err)
	}
	return nil
}

func (n *Network) watch(ctx context.Context, c Cell) error {
	box, err := openNetns(cellNetns(n.cfg.Name, c.ID))
	if err != nil {
		return err
	}
	defer box.Close()
	w := watcher{cell: c, box: box, gateway: n.ns}
	if err := inside(n.ns, w.know); err != nil {
		return err
	}
	found := make(chan error, 2)
	var readers sync.WaitGroup
	defer readers.Wait()
	for _, side := range []struct {
		ns   *os.File
		look func([]syscall.NetlinkMessage) error
	}{{box, w.sandbox}, {n.ns, w.bridge}} {
		var s *nl.NetlinkSocket
		err := inside(side.ns, func() (err error) {
			s, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
			return err
		})
		if err != nil {
			return fmt.Errorf("opening netlink: %w", err)
		}
		defer s.Close() // which ends its reader
		readers.Go(func() { found <- follow(s, side.look) })
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-found:
		return err
	}
}

// follow has look see what is there, and then each change. It is given no messages
// when it has to look for itself: at first, and when some were lost.
func follow(s *nl.NetlinkSocket, look func([]syscall.NetlinkMessage) error) error {
	var changes []syscall.NetlinkMessage
	for {
		if err := look(changes); err != nil {
			return err
		}
		var err error
		changes, _, err = s.Receive()
		switch {
		case errors.Is(err, os.ErrClosed):
			return nil // nobody wants to know any more
		case errors.Is(err, unix.ENOBUFS):
			changes = nil
		case err != nil:
			return fmt.Errorf("reading netlink: %w", err)
		}
	}
}

// watcher knows a cell's own interfaces by their indices, which nobody can give to others.
type watcher struct {
	cell         Cell
	box, gateway *os.File

	bridgeIndex, portIndex int // in the gateway's namespace
	ownIndex               int // of the port's other end, in the sandbox's
}

// know finds the indices. It runs in the gateway's namespace.
func (w *watcher) know() error {
	h, err := openLinks()
	if err != nil {
		return err
	}
	defer h.Close()
	bridge, err := h.LinkByName(w.cell.Bridge)
	if err != nil {
		return err
	}
	port, err := h.LinkByName(portPrefix + w.cell.ID)
	if err != nil {
		return err
	}
	w.bridgeIndex, w.portIndex, w.ownIndex = bridge.Attrs().Index, port.Attrs().Index, port.Attrs().ParentIndex
	return nil
}

// sandbox looks at all there is whenever anything changes: nothing does while a sandbox works.
func (w *watcher) sandbox([]syscall.NetlinkMessage) error {
	return list(w.box, func(a *netlink.LinkAttrs) error {
		if a.Flags&net.FlagUp != 0 && a.Flags&net.FlagLoopback == 0 && a.Index != w.ownIndex {
			return fmt.Errorf("%w: %q is up in the sandbox's namespace", ErrOtherWay, a.Name)
		}
		return nil
	})
}

// bridge looks at what it is told alone: the interfaces of all cells come and go there.
func (w *watcher) bridge(changes []syscall.NetlinkMessage) error {
	if changes == nil {
		return list(w.gateway, w.port)
	}
	for _, m := range changes {
		if m.Header.Type != unix.RTM_NEWLINK {
			continue
		}
		header := unix.NlMsghdr(m.Header)
		l, err := netlink.LinkDeserialize(&header, m.Data)
		if err != nil {
			return fmt.Errorf("reading netlink: %w", err)
		}
		if err := w.port(l.Attrs()); err != nil {
			return err
		}
	}
	return nil
}

// port says whether an interface is one on the bridge that is not the cell's own.
func (w *watcher) port(a *netlink.LinkAttrs) error {
	if a.MasterIndex == w.bridgeIndex && a.Index != w.portIndex {
		return fmt.Errorf("%w: %q is a port of the cell's bridge", ErrOtherWay, a.Name)
	}
	return nil
}

// list calls f with every interface of a namespace, until it returns an error.
func list(ns *os.File, f func(*netlink.LinkAttrs) error) error {
	return inside(ns, func() error {
		h, err := openLinks()
		if err != nil {
			return err
		}
		defer h.Close()
		all, err := h.LinkList()
		if err != nil {
			return fmt.Errorf("listing interfaces: %w", err)
		}
		for _, l := range all {
			if err := f(l.Attrs()); err != nil {
				return err
			}
		}
		return nil
	})
}
