package cell_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/launcher/cell"
)

// These tests have every capability in the sandbox's namespace, which no
// sandbox should ever have, and forge what they send (NW-20).

// packet makes an IPv4 packet; the kernel fills in the checksum of the header.
func packet(src, dst netip.Addr, protocol byte, frag uint16, payload []byte) []byte {
	p := make([]byte, 20, 20+len(payload))
	p[0] = 0x45
	binary.BigEndian.PutUint16(p[2:], uint16(20+len(payload)))
	binary.BigEndian.PutUint16(p[4:], 4711)
	binary.BigEndian.PutUint16(p[6:], frag)
	p[8], p[9] = 64, protocol
	s, d := src.As4(), dst.As4()
	copy(p[12:], s[:])
	copy(p[16:], d[:])
	return append(p, payload...)
}

// datagram makes a UDP payload for the DNS port without a checksum, which
// IPv4 permits.
func datagram(from uint16, data string) []byte {
	p := make([]byte, 8, 8+len(data))
	binary.BigEndian.PutUint16(p[0:], from)
	binary.BigEndian.PutUint16(p[2:], 53)
	binary.BigEndian.PutUint16(p[4:], uint16(8+len(data)))
	return append(p, data...)
}

const (
	flagRST = 1 << 2
	flagSYN = 1 << 1
)

// segment makes a TCP header with its checksum.
func segment(src, dst netip.AddrPort, seq uint32, flags byte) []byte {
	p := make([]byte, 20)
	binary.BigEndian.PutUint16(p[0:], src.Port())
	binary.BigEndian.PutUint16(p[2:], dst.Port())
	binary.BigEndian.PutUint32(p[4:], seq)
	p[12], p[13] = 5<<4, flags
	binary.BigEndian.PutUint16(p[14:], 65535)
	s, d := src.Addr().As4(), dst.Addr().As4()
	pseudo := append(append(append([]byte{}, s[:]...), d[:]...), 0, unix.IPPROTO_TCP, 0, byte(len(p)))
	binary.BigEndian.PutUint16(p[16:], checksum(append(pseudo, p...)))
	return p
}

func checksum(p []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(p); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// raw sends a packet out of eth0 as it is, to the gateway's hardware address:
// the sandbox's own routing and martian checks have no say.
func raw(c cell.Cell, packets ...[]byte) error {
	const ethIP, ethIPv6 = 0x0800, 0x86dd
	return in(c, func() error {
		ifindex, err := eth0()
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, p := range packets {
			proto := uint16(ethIP)
			if p[0]>>4 == 6 {
				proto = ethIPv6
			} else {
				p = bytes.Clone(p)
				binary.BigEndian.PutUint16(p[10:], 0)
				binary.BigEndian.PutUint16(p[10:], checksum(p[:20]))
			}
			to := &unix.SockaddrLinklayer{Protocol: proto<<8 | proto>>8, Ifindex: ifindex, Halen: 6}
			copy(to.Addr[:], gatewayMAC(c))
			if err := unix.Sendto(fd, p, 0, to); err != nil {
				return err
			}
		}
		return nil
	})
}

func eth0() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("eth0")
	if err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, req); err != nil {
		return 0, err
	}
	return int(req.Uint32()), nil
}

func gatewayMAC(c cell.Cell) []byte {
	return []byte{2, 's', 'p', 1, byte(c.Index >> 8), byte(c.Index)}
}

// A packet with a source that is not the cell's reaches nobody, and what it
// carries does not matter.
func forgedSourceIsDropped(t *testing.T, l *lab) {
	own := l.a.Sandbox
	server := netip.MustParseAddr("8.8.8.8")
	// The twin: sent the same way from the cell's own address, it is heard.
	if err := raw(l.a, packet(own, server, unix.IPPROTO_UDP, 0, datagram(4000, "own"))); err != nil {
		t.Fatal(err)
	}
	if _, err := query(l.a, "8.8.8.8:53", barrier, limit); err != nil {
		t.Fatal(err)
	}
	if got := l.heard(); len(got) != 1 || got[0].data != "own" {
		t.Fatalf("heard %v, want the twin", got)
	}
	for _, forged := range []netip.Addr{
		l.b.Sandbox, l.b.Gateway, l.a.Gateway,
		netip.MustParseAddr("10.213.0.1"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("0.0.0.0"),
		netip.MustParseAddr("8.8.4.4"), netip.MustParseAddr("224.0.0.1"), netip.MustParseAddr("255.255.255.255"),
	} {
		for _, to := range []netip.Addr{server, l.a.Gateway, l.b.Gateway} {
			dropped := l.counted(t, l.a, func() {
				err := raw(l.a,
					packet(forged, to, unix.IPPROTO_UDP, 0, datagram(4000, "forged")),
					packet(forged, to, unix.IPPROTO_TCP, 0,
						segment(netip.AddrPortFrom(forged, 4000), netip.AddrPortFrom(to, 443), 1, flagSYN)))
				if err != nil {
					t.Fatal(err)
				}
				l.silence(t, l.a)
			})
			if want := (cell.Bypass{UDP: 1, TCP: 1}); dropped != want {
				t.Errorf("from %v to %v: dropped %+v, want %+v", forged, to, dropped, want)
			}
		}
	}
}

// A forged reset, with every number of a neighbour's flow right, does not reach
// even the kernel's record of that flow.
func forgedResetDoesNotTouchNeighbour(t *testing.T, l *lab) {
	conn, _, err := dial(l.b, "1.1.1.1:443", limit)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	src, dst := addrPort(conn.LocalAddr()), addrPort(conn.RemoteAddr())
	state := func() string {
		for line := range strings.Lines(l.gateway(t, "cat", "/proc/net/nf_conntrack")) {
			if strings.Contains(line, fmt.Sprintf("src=%v dst=%v sport=%d", src.Addr(), dst.Addr(), src.Port())) {
				return strings.Fields(line)[5]
			}
		}
		return ""
	}
	if got := state(); got != "ESTABLISHED" {
		t.Fatalf("flow before = %q", got)
	}
	var resets [][]byte
	for seq := range uint32(64) {
		resets = append(resets, packet(src.Addr(), dst.Addr(), unix.IPPROTO_TCP, 0, segment(src, dst, seq<<26, flagRST)))
	}
	if err := raw(l.a, resets...); err != nil {
		t.Fatal(err)
	}
	if _, err := query(l.a, "8.8.8.8:53", barrier, limit); err != nil {
		t.Fatal(err)
	}
	if got := state(); got != "ESTABLISHED" {
		t.Errorf("flow after forged resets = %q", got)
	}
	fmt.Fprintln(conn, "still here")
	if line, err := bufio.NewReader(conn).ReadString('\n'); line != "still here\n" {
		t.Errorf("the neighbour's connection: %q, %v", line, err)
	}
}

// NW-04: no answer to ICMP, from anybody, and no other protocol.
func icmpAndOtherProtocolsAreDropped(t *testing.T, l *lab) {
	echo := []byte{8, 0, 0, 0, 0x12, 0x34, 0, 1, 'c', 'a', 'n', 'a', 'r', 'y'}
	binary.BigEndian.PutUint16(echo[2:], checksum(echo))
	tests := []struct {
		name     string
		protocol byte
		payload  []byte
		want     cell.Bypass
	}{
		{"echo", unix.IPPROTO_ICMP, echo, cell.Bypass{ICMP: 1}},
		{"timestamp", unix.IPPROTO_ICMP, append([]byte{13, 0}, make([]byte, 18)...), cell.Bypass{ICMP: 1}},
		{"gre", unix.IPPROTO_GRE, make([]byte, 24), cell.Bypass{Other: 1}},
		{"ipip", unix.IPPROTO_IPIP, packet(l.a.Sandbox, netip.MustParseAddr("1.1.1.1"), unix.IPPROTO_UDP, 0, datagram(1, "x")), cell.Bypass{Other: 1}},
		{"sctp", unix.IPPROTO_SCTP, make([]byte, 32), cell.Bypass{Other: 1}},
		{"igmp", unix.IPPROTO_IGMP, make([]byte, 8), cell.Bypass{Other: 1}},
		{"udplite", 136, datagram(1, "x"), cell.Bypass{Other: 1}},
		{"dccp", unix.IPPROTO_DCCP, make([]byte, 24), cell.Bypass{Other: 1}},
	}
	for _, tt := range tests {
		for _, to := range []netip.Addr{l.a.Gateway, l.b.Gateway, l.b.Sandbox, netip.MustParseAddr("1.1.1.1")} {
			dropped := l.counted(t, l.a, func() {
				answer, err := listenPackets(l.a, func() error {
					return raw(l.a, packet(l.a.Sandbox, to, tt.protocol, 0, tt.payload))
				}, func(frame []byte) bool { return len(frame) > 9 && frame[0] == 0x45 && frame[9] == tt.protocol })
				if err != nil {
					t.Fatal(err)
				}
				if answer != nil {
					t.Errorf("%s to %v: answer %x", tt.name, to, answer)
				}
				l.silence(t, l.a)
			})
			if dropped != tt.want {
				t.Errorf("%s to %v: dropped %+v, want %+v", tt.name, to, dropped, tt.want)
			}
		}
	}
}

// listenPackets returns the first packet that comes into a sandbox and matches,
// out of those that come before the answer to a query asked after send.
func listenPackets(c cell.Cell, send func() error, match func([]byte) bool) (got []byte, err error) {
	err = in(c, func() error {
		const all = 0x0300 // ETH_P_ALL, in the network's order
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		tv := unix.NsecToTimeval(int64(limit))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return err
		}
		if err := send(); err != nil {
			return err
		}
		if _, err := query(c, "8.8.8.8:53", barrier, limit); err != nil {
			return err
		}
		buf := make([]byte, 65536)
		for {
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				return err
			}
			if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			if match(buf[:n]) {
				got = bytes.Clone(buf[:n])
				return nil
			}
			if bytes.HasSuffix(buf[:n], []byte("dns/udp")) {
				return nil
			}
		}
	})
	return got, err
}

// A fragment carries no port to judge it by. Reassembly is off.
func fragmentsAreDropped(t *testing.T, l *lab) {
	const moreFragments = 1 << 13
	server := netip.MustParseAddr("8.8.8.8")
	whole := datagram(4000, strings.Repeat("fragment", 8))
	if err := raw(l.a, packet(l.a.Sandbox, server, unix.IPPROTO_UDP, 0, whole)); err != nil {
		t.Fatal(err)
	}
	if _, err := query(l.a, "8.8.8.8:53", barrier, limit); err != nil {
		t.Fatal(err)
	}
	if got := l.heard(); len(got) != 1 {
		t.Fatalf("heard %v, want the whole datagram", got)
	}
	err := raw(l.a,
		packet(l.a.Sandbox, server, unix.IPPROTO_UDP, moreFragments, whole[:32]),
		packet(l.a.Sandbox, server, unix.IPPROTO_UDP, 32/8, whole[32:]))
	if err != nil {
		t.Fatal(err)
	}
	l.silence(t, l.a)
}

// A sandbox's loopback addresses, forced onto the wire, are no destination: the
// gateway must never be told that 127.0.0.1 was asked for.
func loopbackIsNoDestination(t *testing.T, l *lab) {
	lo := netip.MustParseAddr("127.0.0.1")
	dropped := l.counted(t, l.a, func() {
		src, dst := netip.AddrPortFrom(l.a.Sandbox, 4000), netip.AddrPortFrom(lo, 3128)
		if err := raw(l.a, packet(src.Addr(), lo, unix.IPPROTO_TCP, 0, segment(src, dst, 1, flagSYN))); err != nil {
			t.Fatal(err)
		}
		l.silence(t, l.a)
	})
	if dropped.TCP != 1 {
		t.Errorf("dropped %+v, want 1 of TCP", dropped)
	}
}

// NW-08, NW-09: the gateway answers ARP for its own address on that bridge only,
// and a cell's lies do not reach the neighbour's bridge.
func arpIsAnsweredForOneAddress(t *testing.T, l *lab) {
	for _, tt := range []struct {
		target netip.Addr
		want   bool
	}{
		{l.a.Gateway, true},
		{l.b.Gateway, false},
		{l.b.Sandbox, false},
		{netip.MustParseAddr("8.8.8.8"), false},
		{netip.MustParseAddr("127.0.0.1"), false},
	} {
		reply, err := listenPackets(l.a,
			func() error { return arp(l.a, 1, l.a.Sandbox, tt.target) },
			func(p []byte) bool { return len(p) >= 28 && p[0] == 0 && p[1] == 1 && p[7] == 2 })
		if err != nil {
			t.Fatal(err)
		}
		if (reply != nil) != tt.want {
			t.Errorf("ARP for %v: reply %x, want one: %t", tt.target, reply, tt.want)
		}
	}

	// Who is where, without the state, which the kernel changes as time goes by.
	neighbours := func() (out []string) {
		for line := range strings.Lines(l.gateway(t, "ip", "neigh", "show", "dev", l.b.Bridge)) {
			f := strings.Fields(line)
			out = append(out, strings.Join(f[:len(f)-1], " "))
		}
		return out
	}
	before := neighbours()
	for _, lie := range []netip.Addr{l.a.Gateway, l.b.Gateway, l.b.Sandbox, netip.MustParseAddr("8.8.8.8")} {
		if err := errors.Join(arp(l.a, 2, lie, lie), arp(l.a, 1, lie, l.a.Gateway)); err != nil {
			t.Fatal(err)
		}
	}
	l.silence(t, l.a)
	if after := neighbours(); !slices.Equal(before, after) {
		t.Errorf("the neighbour's table was %q, is %q", before, after)
	}
	for line := range strings.Lines(l.gateway(t, "ip", "neigh", "show", "dev", l.a.Bridge)) {
		if a, err := netip.ParseAddr(strings.Fields(line)[0]); err != nil || !l.a.Subnet.Contains(a) {
			t.Errorf("the cell's own table has %q", line)
		}
	}
}

// arp sends a request (1) or reply (2) from a cell to everybody on its bridge.
func arp(c cell.Cell, op byte, sender, target netip.Addr) error {
	const ethARP = 0x0806
	return in(c, func() error {
		ifindex, err := eth0()
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		s, d := sender.As4(), target.As4()
		p := []byte{0, 1, 8, 0, 6, 4, 0, op}
		p = append(p, 2, 's', 'p', 3+0, byte(c.Index>>8), byte(c.Index))
		p = append(p, s[:]...)
		p = append(p, 0, 0, 0, 0, 0, 0)
		p = append(p, d[:]...)
		to := &unix.SockaddrLinklayer{Protocol: ethARP<<8&0xff00 | ethARP>>8, Ifindex: ifindex, Halen: 6}
		copy(to.Addr[:], bytes.Repeat([]byte{0xff}, 6))
		return unix.Sendto(fd, p, 0, to)
	})
}

// NW-02: IPv6 that is put on the wire all the same is not heard.
func forgedIPv6IsIgnored(t *testing.T, l *lab) {
	p := make([]byte, 40, 64)
	p[0], p[6], p[7] = 0x60, unix.IPPROTO_UDP, 255
	copy(p[8:], netip.MustParseAddr("fe80::1234").AsSlice())
	copy(p[24:], netip.MustParseAddr("ff02::1").AsSlice())
	udp := datagram(4000, "v6")
	binary.BigEndian.PutUint16(p[4:], uint16(len(udp)))
	answer, err := listenPackets(l.a,
		func() error { return raw(l.a, append(p, udp...)) },
		func(frame []byte) bool { return frame[0]>>4 == 6 })
	if err != nil || answer != nil {
		t.Errorf("answer %x, %v, want none", answer, err)
	}
	l.silence(t, l.a)
}

// What a flow never began with is no flow: tcp_loose is off.
func segmentOutOfNowhereIsDropped(t *testing.T, l *lab) {
	src, dst := netip.AddrPortFrom(l.a.Sandbox, 4999), netip.MustParseAddrPort("1.1.1.1:443")
	const flagACK = 1 << 4
	if err := raw(l.a, packet(src.Addr(), dst.Addr(), unix.IPPROTO_TCP, 0, segment(src, dst, 1, flagACK))); err != nil {
		t.Fatal(err)
	}
	l.silence(t, l.a)
	if table := l.gateway(t, "cat", "/proc/net/nf_conntrack"); strings.Contains(table, "sport=4999 ") {
		t.Errorf("the segment is in the table of flows:\n%s", table)
	}
}
