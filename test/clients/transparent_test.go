package clients_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"sallyport/audit"
	"sallyport/rules/target"
)

// A cell whose programs know no proxy finds other addresses for the origins' names.
// What it sends there is redirected to the gateway, in the product by the kernel.
// Here the gateway listens at these addresses.
var (
	doors    = netip.MustParsePrefix("127.88.0.0/24")
	virtuals = netip.MustParsePrefix("198.18.0.0/24") // what the listener is told, as in a cell
)

// nth is the address of the i-th origin there.
func nth(p netip.Prefix, i int) netip.Addr {
	a := p.Addr().As4()
	a[3] = byte(i + 1)
	return netip.AddrFrom4(a)
}

// redirected tells where a connection was going, as the kernel does.
func redirected(c net.Conn) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil || !doors.Contains(at.Addr()) {
		return netip.AddrPort{}, fmt.Errorf("%s is no door", c.LocalAddr())
	}
	return netip.AddrPortFrom(nth(virtuals, int(at.Addr().As4()[3])-1), at.Port()), nil
}

// nameOf tells which name a virtual address was handed out for.
func (g *gateway) nameOf(_ string, a netip.Addr) (target.Name, bool) {
	i := int(a.As4()[3]) - 1
	if !virtuals.Contains(a) || i < 0 || i >= len(g.names) {
		return target.Name{}, false
	}
	return g.names[i], true
}

// openDoors serves the transparent listener, and returns what has to stand before a
// command of a cell that gets there by names.
func (g *gateway) openDoors() []string {
	g.t.Helper()
	var hosts strings.Builder
	ctx, cancel := context.WithCancel(context.WithoutCancel(g.t.Context()))
	g.t.Cleanup(cancel)
	for i, name := range g.names {
		door := nth(doors, i)
		l, err := net.Listen("tcp4", netip.AddrPortFrom(door, 443).String())
		if err != nil {
			g.t.Fatal(err)
		}
		g.serve(func() error { return g.server.ServeTransparent(ctx, l) }, func() error { cancel(); return nil })
		fmt.Fprintln(&hosts, door, name)
	}
	files := map[string]string{"hosts": hosts.String(), "nsswitch.conf": "hosts: files\n"} // no server is asked for IPv6
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(g.dir, name), []byte(text), 0o600); err != nil {
			g.t.Fatal(err)
		}
	}
	g.address("198.18.1.2/32")
	g.env = append(g.env, "HTTPS_PROXY=", "https_proxy=")
	const mounts = `for f in hosts nsswitch.conf; do mount --bind "$0/$f" "/etc/$f" || exit; done; exec "$@"`
	return []string{"unshare", "--mount", "--propagation", "private", "sh", "-c", mounts, g.dir}
}

// address gives the machine an address that is none of loopback, as a cell has one:
// libraries ask for IPv4 addresses of names only then (AI_ADDRCONFIG, RFC 3493
// section 6.1).
func (g *gateway) address(a string) {
	g.t.Helper()
	ip := func(verb string) {
		cmd := exec.CommandContext(context.WithoutCancel(g.t.Context()), "ip", "address", verb, a, "dev", "lo")
		if out, err := cmd.CombinedOutput(); err != nil {
			g.t.Errorf("ip address %s %s: %v, %s", verb, a, err, out)
		}
	}
	ip("add")
	g.t.Cleanup(func() { ip("del") })
}

// onlyBy reports whether all that was recorded came by one listener.
func (g *gateway) onlyBy(listener string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.records) > 0 && !slices.ContainsFunc(g.records, func(r audit.Record) bool { return r.Listener != listener })
}
