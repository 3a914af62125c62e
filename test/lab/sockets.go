package lab

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// Socket is a row of the kernel's table of sockets (proc_pid_net(5)): what has arrived
// shows there before anybody has read it.
type Socket struct {
	Own, Other netip.AddrPort
	State      int // of TCP, as unix.BPF_TCP_*
	// Unread is how many octets, or of a socket that listens connections, are to be taken;
	// for UDP it is the memory that they need.
	Unread uint64
}

// Sockets returns the IPv4 sockets of a protocol, tcp or udp, in this network namespace.
func Sockets(protocol string) (all []Socket, err error) {
	table, err := os.ReadFile("/proc/self/net/" + protocol)
	if err != nil {
		return nil, err
	}
	for row := range strings.Lines(string(table)) {
		f := strings.Fields(row) // number, own address, other, state, octets to send and to read
		if len(f) < 5 || f[3] == "st" {
			continue
		}
		var own, other uint32
		var ownPort, otherPort uint16
		var s Socket
		var unsent uint64
		if _, err := fmt.Sscanf(strings.Join(f[1:5], " "), "%X:%X %X:%X %X %X:%X", &own, &ownPort, &other, &otherPort, &s.State, &unsent, &s.Unread); err != nil {
			return nil, fmt.Errorf("reading %q of the table of sockets: %w", row, err)
		}
		s.Own, s.Other = addrPort(own, ownPort), addrPort(other, otherPort)
		all = append(all, s)
	}
	return all, nil
}

// addrPort is an address that the table has as a number of this machine's.
func addrPort(ip uint32, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(binary.NativeEndian.AppendUint32(nil, ip))), port)
}
