package cell

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A packet from a sandbox passes four gates, each of which stands alone:
//
//	raw/PREROUTING     TCP, DNS and QUIC with a source that belongs to the bridge go on;
//	                   all else is counted for its cell and dropped, before
//	                   conntrack has seen it: a forged source cannot touch the
//	                   state of a neighbour's flow, nor fill the table.
//	nat/PREROUTING     DNS to the DNS port, TCP to the transparent port; only the
//	                   explicit port at the bridge's own address is left alone.
//	rp_filter, routing what is not for the namespace itself has no route.
//	filter/INPUT       new flows to the three listeners, within the cell's limits;
//	                   QUIC is refused aloud, so that a client of HTTP/3 falls back
//	                   to TCP at once rather than when its patience ends.
//
// Rules are written so that a chain cut off after any rule lets through less,
// and the policies drop, so a half-written table is a closed one.
const (
	rawChain      = "sp-raw"
	natChain      = "sp-nat"
	inChain       = "sp-in"
	outChain      = "sp-out"
	dispatchChain = "sp-cells" // one jump for each cell, in raw and filter; the order has no meaning
	spareSuffix   = ".new"

	// nflogGroup is the netlink group on which dropped packets can be watched
	// (inside the gateway's namespace); the prefix of a packet is its cell's bridge.
	nflogGroup = "213"

	quicPort = 443 // of HTTP/3, RFC 9114
)

type rule []string

// chain is one of ours, or with a policy or a hook one of the kernel's.
type chain struct {
	table, name string
	rules       []rule
}

// hook is a chain of the kernel's: its policy and the one rule in it.
type hook struct {
	table, name, policy string
	rule                rule
}

// hooks, in the order in which they are set: what drops comes first.
var hooks = []hook{
	{"filter", "INPUT", "DROP", rule{"-j", inChain}},
	{"filter", "FORWARD", "DROP", nil},
	{"filter", "OUTPUT", "DROP", rule{"-j", outChain}},
	{"raw", "PREROUTING", "DROP", rule{"-j", rawChain}},
	{"nat", "PREROUTING", "ACCEPT", rule{"-j", natChain}}, // nat knows no DROP
}

// tables are those that belong to us whole: a rule that is not ours goes.
var tables = []string{"raw", "nat", "filter"}

func args(s string, more ...string) rule { return append(strings.Fields(s), more...) }

func port(p uint16) string { return strconv.Itoa(int(p)) }

// baseChains are the same however many cells there are.
func (c Config) baseChains() []chain {
	const bridges = bridgePrefix + "+"
	// A listener never has business with a broadcast, and TCP to one is none.
	const good = "-m addrtype ! --dst-type BROADCAST,MULTICAST -m rpfilter -j ACCEPT"
	return []chain{
		{"raw", dispatchChain, nil},
		{"raw", rawChain, []rule{
			args("-i " + bridges + " -p tcp " + good),
			args("-i " + bridges + " -p udp -m udp --dport 53 " + good),
			args("-i " + bridges + " -p udp -m udp --dport " + port(quicPort) + " " + good),
			args("-j " + dispatchChain),
			args("-j DROP"),
		}},
		{"nat", natChain, []rule{
			args("-i "+bridges+" -p udp -m udp --dport 53 -j REDIRECT --to-ports", port(c.DNSPort)),
			args("-i "+bridges+" -p tcp -m tcp --dport 53 -j REDIRECT --to-ports", port(c.DNSPort)),
			// To where it is refused: what is not for the namespace itself has no route.
			args("-i "+bridges+" -p udp -m udp --dport", port(quicPort), "-j", "REDIRECT", "--to-ports", port(quicPort)),
			// LOCAL on the incoming interface: a neighbour's gateway is LOCAL too,
			// and must not pass for the cell's own explicit proxy.
			args("-i "+bridges+" -p tcp -m tcp --dport", port(c.ExplicitPort),
				"-m", "addrtype", "--dst-type", "LOCAL", "--limit-iface-in", "-j", "ACCEPT"),
			args("-i "+bridges+" -p tcp -j REDIRECT --to-ports", port(c.TransparentPort)),
		}},
		{"filter", dispatchChain, nil},
		{"filter", inChain, []rule{
			args("-i " + bridges + " -m conntrack --ctstate ESTABLISHED --ctdir ORIGINAL -j ACCEPT"),
			args("-j " + dispatchChain),
			args("-j DROP"),
		}},
		// The namespace answers; it never asks. The one ICMP error that leaves it
		// says that QUIC is not spoken here.
		{"filter", outChain, []rule{
			args("-o " + bridges + " -p tcp -m conntrack --ctstate ESTABLISHED --ctdir REPLY -j ACCEPT"),
			args("-o " + bridges + " -p udp -m conntrack --ctstate ESTABLISHED --ctdir REPLY -j ACCEPT"),
			args("-o " + bridges + " -p icmp -m icmp --icmp-type port-unreachable -m conntrack --ctstate RELATED -j ACCEPT"),
			args("-j DROP"),
		}},
	}
}

// cellChains are a cell's own; their counters are its counters.
func (c Config) cellChains(cell Cell, nflog bool) []chain {
	name := chainName(cell.ID)
	fromTo := "-s " + cell.Subnet.String() + " -d " + netip.PrefixFrom(cell.Gateway, 32).String()
	listener := func(proto string, p uint16) string {
		return fmt.Sprintf("%s -p %s -m %s --dport %d -m conntrack --ctstate NEW", fromTo, proto, proto, p)
	}
	dropped := []rule{args("-p tcp -j DROP"), args("-p udp -j DROP"), args("-p icmp -j DROP"), args("-j DROP")}
	refused := append([]rule{args(listener("udp", quicPort) + " -j REJECT --reject-with icmp-port-unreachable")}, dropped...)
	if nflog {
		watch := args("-m limit --limit 10/sec --limit-burst 20 -j NFLOG --nflog-group", nflogGroup, "--nflog-prefix", name)
		dropped = append([]rule{watch}, dropped...)
		refused = append([]rule{watch}, refused...)
	}
	in := []rule{
		// The rate first, so that connlimit does not count what is dropped anyway.
		args(fromTo + " -m conntrack --ctstate NEW" + fmt.Sprintf(
			" -m hashlimit --hashlimit-above %d/sec --hashlimit-burst %d --hashlimit-name %s -j DROP",
			c.FlowRate, 2*c.FlowRate, name)),
		args(fromTo + fmt.Sprintf(" -m conntrack --ctstate NEW -m connlimit --connlimit-above %d --connlimit-mask 0 -j DROP", c.Flows)),
		args(listener("udp", c.DNSPort) + " -j ACCEPT"),
		args(listener("tcp", c.DNSPort) + " -j ACCEPT"),
		args(listener("tcp", c.ExplicitPort) + " -j ACCEPT"),
		// Only what was redirected: a connection made to the transparent port
		// itself has no other destination, and a sandbox's loopback never leaves it.
		args(listener("tcp", c.TransparentPort) + " -m conntrack --ctstate DNAT ! --ctorigdst 127.0.0.0/8 -j ACCEPT"),
	}
	return []chain{
		{"raw", name, dropped},
		{"filter", name, append(in, refused...)},
	}
}

func chainName(id string) string { return bridgePrefix + id }

// dispatch is the rule that sends a cell's packets to its chain.
func dispatch(id string) rule {
	return rule{"-i", bridgePrefix + id, "-j", chainName(id)}
}

// layout is what iptables prints for our tables: table, chain, lines. The first
// line of a chain is its -P or -N.
type layout map[string]map[string][]string

// templateCell stands for any cell in a reference layout.
var templateCell = Cell{
	ID:      "template",
	Gateway: netip.AddrFrom4([4]byte{192, 0, 2, 1}),
	Subnet:  netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, 0}), subnetBits),
}

// wanted is the reference with the template taken out and the cells put in.
func (n *Network) wanted(cells []Cell) layout {
	want := layout{}
	template := chainName(templateCell.ID)
	for table, chains := range n.printed {
		want[table] = map[string][]string{}
		for name, lines := range chains {
			if name != template && name != dispatchChain {
				want[table][name] = lines
			}
		}
		dispatched, ok := chains[dispatchChain]
		if !ok {
			continue
		}
		want[table][dispatchChain] = slices.Clone(dispatched[:1])
		for _, cell := range cells {
			// The reference's only dispatch rule is the template's.
			want[table][dispatchChain] = append(want[table][dispatchChain], asCell(cell, dispatched[1:])...)
			want[table][chainName(cell.ID)] = asCell(cell, chains[template])
		}
		slices.Sort(want[table][dispatchChain][1:])
	}
	return want
}

// asCell rewrites the lines of the template for a cell.
func asCell(cell Cell, lines []string) []string {
	r := strings.NewReplacer(
		chainName(templateCell.ID), chainName(cell.ID),
		templateCell.Subnet.String(), cell.Subnet.String(),
		templateCell.Gateway.String(), cell.Gateway.String())
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = r.Replace(line)
	}
	return out
}

// diff says in words where got is not want.
func diff(want, got layout) []string {
	var out []string
	for _, table := range tables {
		names := slices.Collect(maps.Keys(want[table]))
		for name := range got[table] {
			if _, ok := want[table][name]; !ok {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		for _, name := range names {
			w, g := want[table][name], got[table][name]
			switch {
			case slices.Equal(w, g):
			case w == nil:
				out = append(out, fmt.Sprintf("table %s has chain %s, which is not ours", table, name))
			case g == nil:
				out = append(out, fmt.Sprintf("table %s lacks chain %s", table, name))
			default:
				out = append(out, fmt.Sprintf("table %s, chain %s: have %q, want %q", table, name, g, w))
			}
		}
	}
	return out
}
