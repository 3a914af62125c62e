package dns

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

const (
	// recvBuffer keeps a burst of one cell from pushing out another's queries.
	recvBuffer = 1 << 20
	oobSize    = 128 // the control messages of one datagram
)

// datagrams reads queries and answers each from the address that was asked:
// one socket serves many bridges, and a client takes an answer from no other.
type datagrams struct{ conn *ipv4.PacketConn }

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
	return datagrams{ipv4.NewPacketConn(u)}, nil // which is for both families, as far as it is used
}

// read waits for a datagram, and takes all that are there, up to a batch.
func (d datagrams) read(b *batch) error {
	n, err := d.conn.ReadBatch(b.msgs, 0)
	b.n = max(n, 0)
	return err
}

// write answers. A client that is gone asks again or never; the next one is
// answered all the same.
func (d datagrams) write(replies []ipv4.Message) {
	for len(replies) > 0 {
		n, err := d.conn.WriteBatch(replies, 0)
		if err != nil || n <= 0 {
			n = 1
		}
		replies = replies[n:]
	}
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
