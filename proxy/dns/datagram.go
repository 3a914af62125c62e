package dns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	// recvBuffer keeps a burst of one cell from pushing out another's queries.
	recvBuffer = 1 << 20
	oobSize    = 128 // the control messages of one datagram
)

// datagrams reads queries and answers each from the address that was asked:
// one socket serves many bridges, and a client takes an answer from no other.
type datagrams struct{ conn *net.UDPConn }

func newDatagrams(pc net.PacketConn) (datagrams, error) {
	u, ok := pc.(*net.UDPConn)
	if !ok {
		return datagrams{}, fmt.Errorf("%T is not a UDP socket", pc)
	}
	_ = u.SetReadBuffer(recvBuffer) // the system's limit may be lower
	raw, err := u.SyscallConn()
	if err != nil {
		return datagrams{}, err
	}
	// A socket of one family refuses the other's option, one of both wants both.
	var four, six error
	err = raw.Control(func(fd uintptr) {
		four = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_PKTINFO, 1)
		six = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
	})
	if err == nil && four != nil && six != nil {
		err = errors.Join(four, six)
	}
	if err != nil {
		return datagrams{}, fmt.Errorf("asking for destination addresses: %w", err)
	}
	return datagrams{u}, nil
}

// read returns a query's length, what it takes to answer it, and who asks.
func (d datagrams) read(buf, oob []byte) (n int, control []byte, client netip.AddrPort, err error) {
	n, oobn, _, client, err := d.conn.ReadMsgUDPAddrPort(buf, oob)
	if err != nil {
		return 0, nil, client, err
	}
	return n, source(oob[:oobn]), client, nil
}

// write answers. A client that is gone asks again or never.
func (d datagrams) write(reply, control []byte, client netip.AddrPort) {
	_, _, _ = d.conn.WriteMsgUDPAddrPort(reply, control, client)
}

// source turns the control messages that tell where a datagram arrived into
// those that say from where to send one (ip(7) and ipv6(7), PKTINFO). The
// interface is left to routing. Anything that is not understood is left out:
// the kernel then chooses the address.
func source(oob []byte) []byte {
	rest := oob
	for len(rest) > 0 {
		h, data, next, err := unix.ParseOneSocketControlMessage(rest)
		switch {
		case err != nil:
			return nil
		case h.Level == unix.SOL_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			// struct in_pktinfo: ifindex, spec_dst, addr. What is sent leaves from
			// spec_dst; where the datagram was sent to stands in addr, and only
			// there on every route.
			clear(data[:4])
			copy(data[4:8], data[8:12])
		case h.Level == unix.SOL_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			clear(data[16:20]) // struct in6_pktinfo: addr, ifindex
		default:
			return nil
		}
		rest = next
	}
	return oob
}
