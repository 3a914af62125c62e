package rules

import "net/netip"

// Special returns the name of the special-purpose block that an address lies
// in; special is false only for ordinary public unicast addresses. It is the
// guard against an allowed name that resolves to an internal address.
//
// It admits by exception, since the blocks that nobody thought of are the
// dangerous ones: IPv4 is everything outside the IANA IPv4 Special-Purpose
// Address Registry, multicast and class E; IPv6 is 2000::/3 (the only range
// that is allocated to unicast) outside the IANA IPv6 registry. Registered
// blocks count whether the registry calls them globally reachable or not: no
// upstream lives in one, and those that carry IPv4 inside (6to4, Teredo,
// NAT64) would be a way round the IPv4 half.
func Special(a netip.Addr) (block string, special bool) {
	a = a.Unmap()
	switch {
	case !a.IsValid() || a.Zone() != "":
		return "not an address", true
	case isMetadata(a):
		return "cloud metadata", true
	case a.Is4():
		return lookup(special4[:], a)
	}
	if block, special = lookup(special6[:], a); special {
		return block, true
	}
	if !globalUnicast6.Contains(a) {
		return "outside global unicast", true
	}
	return "", false
}

type block struct {
	prefix netip.Prefix
	name   string
}

func lookup(table []block, a netip.Addr) (string, bool) {
	for i := range table {
		if table[i].prefix.Contains(a) {
			return table[i].name, true
		}
	}
	return "", false
}

var globalUnicast6 = netip.MustParsePrefix("2000::/3") // RFC 4291 section 2.4

// special4 is the IANA IPv4 registry (RFC 6890 and successors), plus what that
// registry leaves to others: multicast (RFC 5771).
var special4 = [...]block{
	{netip.MustParsePrefix("0.0.0.0/8"), "this network"},             // RFC 791
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},                 // RFC 1918
	{netip.MustParsePrefix("100.64.0.0/10"), "shared (CGNAT)"},       // RFC 6598
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},               // RFC 1122
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},          // RFC 3927
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},              // RFC 1918
	{netip.MustParsePrefix("192.0.0.0/24"), "protocol assignments"},  // RFC 6890
	{netip.MustParsePrefix("192.0.2.0/24"), "documentation"},         // RFC 5737
	{netip.MustParsePrefix("192.31.196.0/24"), "AS112"},              // RFC 7535
	{netip.MustParsePrefix("192.52.193.0/24"), "multicast tunnels"},  // RFC 7450
	{netip.MustParsePrefix("192.88.99.0/24"), "6to4 relay"},          // RFC 7526
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},             // RFC 1918
	{netip.MustParsePrefix("192.175.48.0/24"), "AS112"},              // RFC 7534
	{netip.MustParsePrefix("198.18.0.0/15"), "benchmarking/virtual"}, // RFC 2544; the gateway's own virtual addresses
	{netip.MustParsePrefix("198.51.100.0/24"), "documentation"},      // RFC 5737
	{netip.MustParsePrefix("203.0.113.0/24"), "documentation"},       // RFC 5737
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},              // RFC 5771
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},               // RFC 1112; holds 255.255.255.255
}

// special6 is the IANA IPv6 registry. What lies outside 2000::/3 is refused
// anyway and is here only to be called by its name.
var special6 = [...]block{
	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("::/96"), "IPv4-compatible"},          // RFC 4291 section 2.5.5.1
	{netip.MustParsePrefix("64:ff9b::/96"), "NAT64"},             // RFC 6052
	{netip.MustParsePrefix("64:ff9b:1::/48"), "local NAT64"},     // RFC 8215
	{netip.MustParsePrefix("100::/64"), "discard-only"},          // RFC 6666
	{netip.MustParsePrefix("100:0:0:1::/64"), "dummy"},           // RFC 9780
	{netip.MustParsePrefix("2001::/32"), "Teredo"},               // RFC 4380
	{netip.MustParsePrefix("2001:2::/48"), "benchmarking"},       // RFC 5180
	{netip.MustParsePrefix("2001::/23"), "protocol assignments"}, // RFC 2928; ORCHID, DETs, anycasts
	{netip.MustParsePrefix("2001:db8::/32"), "documentation"},    // RFC 3849
	{netip.MustParsePrefix("2002::/16"), "6to4"},                 // RFC 3056
	{netip.MustParsePrefix("2620:4f:8000::/48"), "AS112"},        // RFC 7534
	{netip.MustParsePrefix("3fff::/20"), "documentation"},        // RFC 9637
	{netip.MustParsePrefix("5f00::/16"), "segment routing"},      // RFC 9602
	{netip.MustParsePrefix("fc00::/7"), "unique local"},          // RFC 4193
	{netip.MustParsePrefix("fe80::/10"), "link-local"},           // RFC 4291
	{netip.MustParsePrefix("fec0::/10"), "site-local"},           // RFC 3879
	{netip.MustParsePrefix("ff00::/8"), "multicast"},             // RFC 4291
}

// metadata are the addresses at which clouds hand credentials and
// configuration to whoever asks. Most lie in a special block already; they are
// listed because a range opens them never, only the address itself (opens).
var metadata = [...]netip.Addr{
	netip.MustParseAddr("168.63.129.16"),   // Azure's agent and DHCP; looks public
	netip.MustParseAddr("100.100.100.200"), // Alibaba Cloud
	netip.MustParseAddr("192.0.0.192"),     // Oracle Cloud, classic
	netip.MustParseAddr("fd00:ec2::254"),   // AWS
	netip.MustParseAddr("fd00:ec2::23"),    // AWS, EKS Pod Identity
	netip.MustParseAddr("fd00:ec2::253"),   // AWS, resolver
	netip.MustParseAddr("fd00:ec2::123"),   // AWS, time
	netip.MustParseAddr("fd20:ce::254"),    // Google Cloud
	netip.MustParseAddr("fd00:42::42"),     // Scaleway
}

// linkLocal4 holds the metadata service of nearly every cloud
// (169.254.169.254, 169.254.170.2, 169.254.42.42 …), so the whole of it counts.
var linkLocal4 = netip.MustParsePrefix("169.254.0.0/16")

func isMetadata(a netip.Addr) bool {
	if a.Is4() && linkLocal4.Contains(a) {
		return true
	}
	for _, m := range metadata {
		if a == m {
			return true
		}
	}
	return false
}

// never are the ranges that no rule can open: they name no host.
var never = [...]netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), // dials loopback
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/128"), // dials loopback
	netip.MustParsePrefix("ff00::/8"),
}

// opens reports whether ranges, the cidrs of one rule, open a special-purpose
// address. A metadata address is opened only by itself, as a /32 or /128. An
// address that carries an IPv4 address is opened only together with that one,
// unless that one is public.
func opens(ranges []netip.Prefix, a netip.Addr) bool {
	a = a.Unmap()
	if a.Zone() != "" {
		return false
	}
	for _, n := range never {
		if n.Contains(a) {
			return false
		}
	}
	exact := isMetadata(a)
	open := false
	for _, r := range ranges {
		if r.Contains(a) && (!exact || r.IsSingleIP()) {
			open = true
			break
		}
	}
	if !open {
		return false
	}
	inner, ok := embedded(a)
	if !ok {
		return true
	}
	if _, special := Special(inner); !special {
		return true
	}
	return opens(ranges, inner)
}

var (
	nat64Known = netip.MustParsePrefix("64:ff9b::/96")
	nat64Local = netip.MustParsePrefix("64:ff9b:1::/48")
	teredo     = netip.MustParsePrefix("2001::/32")
	sixToFour  = netip.MustParsePrefix("2002::/16")
	compatible = netip.MustParsePrefix("::/96")
	loopback6  = netip.MustParseAddr("::1")
)

// embedded returns the IPv4 address that a translated or tunnelled IPv6
// address carries. For the local NAT64 prefix, whose length an operator
// chooses, it is taken from the last 32 bits (RFC 6052, a /96).
func embedded(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() || a == loopback6 {
		return netip.Addr{}, false
	}
	b := a.As16()
	switch {
	case nat64Known.Contains(a), nat64Local.Contains(a), compatible.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case sixToFour.Contains(a): // RFC 3056 section 2
		return netip.AddrFrom4([4]byte(b[2:6])), true
	case teredo.Contains(a): // RFC 4380 section 4: the client's address, inverted
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}), true
	default:
		return netip.Addr{}, false
	}
}
