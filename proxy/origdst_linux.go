package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// originalDst reads where a connection was going before a REDIRECT rule sent
// it here (SO_ORIGINAL_DST, linux/netfilter_ipv4.h). IPv4 only: IPv6 is off.
func originalDst(c net.Conn) (netip.AddrPort, error) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return netip.AddrPort{}, errors.New("not a TCP connection")
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("reading the original destination: %w", err)
	}
	var dst netip.AddrPort
	var inner error
	err = raw.Control(func(fd uintptr) {
		// The option fills a sockaddr_in: family, port, address. The struct of
		// IPV6_ADD_MEMBERSHIP is the one in x/sys that is large enough.
		var m *unix.IPv6Mreq
		if m, inner = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST); inner != nil {
			return
		}
		dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(m.Multiaddr[4:8])), binary.BigEndian.Uint16(m.Multiaddr[2:4]))
	})
	if err = errors.Join(err, inner); err != nil {
		return netip.AddrPort{}, fmt.Errorf("reading the original destination: %w", err)
	}
	return dst, nil
}
