package cell

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// setting is a file below /proc/sys/net and what it must hold.
type setting struct {
	key, want string
	optional  bool // the kernel may lack it; then there is nothing to switch off
}

// conf is set for all, default and each interface: the kernel takes the maximum
// of all and the interface for some of these and the logical and or or for
// others, so that equal values everywhere are the only ones without surprise
// (Documentation/networking/ip-sysctl.rst).
var conf = []setting{
	{key: "forwarding", want: "0"},
	{key: "rp_filter", want: "1"}, // strict (RFC 3704); 2 in "all" would loosen every bridge
	{key: "route_localnet", want: "0"},
	{key: "accept_local", want: "0"},
	{key: "src_valid_mark", want: "0"},
	{key: "arp_ignore", want: "1"},   // answer only for the address of the bridge that was asked
	{key: "arp_announce", want: "2"}, // and never name another bridge's as our own
	{key: "arp_accept", want: "0"},
	{key: "proxy_arp", want: "0"},
	{key: "proxy_arp_pvlan", want: "0"},
	{key: "accept_redirects", want: "0"},
	{key: "secure_redirects", want: "0"},
	{key: "send_redirects", want: "0"},
	{key: "accept_source_route", want: "0"},
	{key: "bootp_relay", want: "0"},
	{key: "drop_unicast_in_l2_multicast", want: "1"},
}

// gatewaySettings are the namespace's own, without those of its bridges.
func gatewaySettings() []setting {
	s := []setting{
		// First: a write to it resets others.
		{key: "ipv4/ip_forward", want: "0"},
		{key: "ipv4/ip_nonlocal_bind", want: "0"},
		{key: "ipv4/icmp_echo_ignore_all", want: "1"},
		{key: "ipv4/icmp_echo_ignore_broadcasts", want: "1"},
		// No memory for reassembly is no reassembly: fragments are dropped before
		// a rule could mistake them, and one cell cannot fill the queue of all.
		// The low mark first, it may not exceed the high one.
		{key: "ipv4/ipfrag_low_thresh", want: "0"},
		{key: "ipv4/ipfrag_high_thresh", want: "0"},
		// Rules see packets between bridge and host only, once each.
		{key: "bridge/bridge-nf-call-iptables", want: "0", optional: true},
		{key: "bridge/bridge-nf-call-ip6tables", want: "0", optional: true},
		{key: "bridge/bridge-nf-call-arptables", want: "0", optional: true},
		// A flow that we did not see begin is no flow: one cut on removal cannot
		// come back as ESTABLISHED.
		{key: "netfilter/nf_conntrack_tcp_loose", want: "0"},
		// Short memories for what is over, so that Flows bounds a cell's share of
		// the table: closed and half-open flows are not counted by connlimit.
		{key: "netfilter/nf_conntrack_tcp_timeout_syn_recv", want: "10"},
		{key: "netfilter/nf_conntrack_tcp_timeout_time_wait", want: "10"},
		{key: "netfilter/nf_conntrack_udp_timeout", want: "10"},
		{key: "netfilter/nf_conntrack_udp_timeout_stream", want: "30"},
	}
	s = append(s, interfaceSettings("all")...)
	s = append(s, interfaceSettings("default")...)
	return append(s, setting{key: "ipv6/conf/lo/disable_ipv6", want: "1", optional: noIPv6()})
}

// interfaceSettings are those of one interface, or of "all" or "default".
func interfaceSettings(name string) []setting {
	var s []setting
	for _, c := range conf {
		c.key = filepath.Join("ipv4/conf", name, c.key)
		s = append(s, c)
	}
	return append(s, setting{key: filepath.Join("ipv6/conf", name, "disable_ipv6"), want: "1", optional: noIPv6()})
}

// sandboxSettings are those of a sandbox's namespace. Nothing relies on them but
// the promise that there is no IPv6 in it before something runs there.
func sandboxSettings(names ...string) []setting {
	s := []setting{{key: "ipv4/ip_forward", want: "0"}}
	for _, name := range append([]string{"all", "default", "lo"}, names...) {
		s = append(s, setting{key: filepath.Join("ipv6/conf", name, "disable_ipv6"), want: "1", optional: noIPv6()})
	}
	return s
}

// noIPv6 says whether the kernel has no IPv6 at all, in any namespace.
func noIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return errors.Is(err, fs.ErrNotExist)
}

// apply writes settings that differ, in order, and reads each back. The calling
// thread's namespace is the one that is set.
func apply(settings []setting) error {
	for _, s := range settings {
		if check([]setting{s}) == nil {
			continue
		}
		if err := os.WriteFile(s.path(), []byte(s.want), 0); err != nil {
			return fmt.Errorf("setting sysctl: %w", err)
		}
		if err := check([]setting{s}); err != nil {
			return err
		}
	}
	return nil
}

// check says everything that differs.
func check(settings []setting) error {
	var errs []error
	for _, s := range settings {
		got, err := os.ReadFile(s.path())
		switch {
		case errors.Is(err, fs.ErrNotExist) && s.optional:
		case err != nil:
			errs = append(errs, fmt.Errorf("reading sysctl: %w", err))
		case strings.TrimSpace(string(got)) != s.want:
			errs = append(errs, fmt.Errorf("sysctl net/%s is %q, want %q", s.key, strings.TrimSpace(string(got)), s.want))
		}
	}
	return errors.Join(errs...)
}

func (s setting) path() string { return filepath.Join("/proc/sys/net", s.key) }
