package cell_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/launcher/cell"
)

// A lab is a network with two cells, listeners that tell what they hear, and
// two more in the gateway's namespace that no sandbox may ever reach.

const (
	soon  = 400 * time.Millisecond // how long a refusal is waited for
	limit = 10 * time.Second       // how long an answer is
)

var labs atomic.Int32

func uniqueName() string { return fmt.Sprintf("ct%d-%d", os.Getpid(), labs.Add(1)) }

// event is one connection or datagram that reached a listener.
type event struct {
	at       string // the listener's name
	from     netip.AddrPort
	original netip.AddrPort // SO_ORIGINAL_DST; TCP only
	data     string         // UDP only
}

func (e event) String() string {
	return fmt.Sprintf("%s from %v to %v: %q", e.at, e.from, e.original, e.data)
}

type lab struct {
	cfg  cell.Config
	n    *cell.Network
	a, b cell.Cell

	mu     sync.Mutex
	events []event
}

func openLab(t *testing.T, cfg cell.Config) *lab {
	t.Helper()
	cfg.Name = uniqueName()
	l := &lab{cfg: cfg, n: mustOpen(t, cfg)}
	l.a, l.b = mustCreate(t, l.n, "aaaaaaaa", 5), mustCreate(t, l.n, "bbbbbbbb", 6)
	l.listen(t, "transparent", "tcp", ":15001")
	l.listen(t, "explicit", "tcp", ":3128")
	l.listen(t, "dns/tcp", "tcp", ":53")
	l.listen(t, "dns/udp", "udp", ":53")
	l.listen(t, "stranger/tcp", "tcp", ":8080")
	l.listen(t, "stranger/udp", "udp", ":9999")
	return l
}

func mustOpen(t *testing.T, cfg cell.Config) *cell.Network {
	t.Helper()
	n, err := cell.Open(t.Context(), cfg)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(n.Destroy(context.Background()), n.Close()); err != nil {
			t.Errorf("cleaning up: %v", err)
		}
	})
	return n
}

func mustCreate(t *testing.T, n *cell.Network, id string, index int) cell.Cell {
	t.Helper()
	c, err := n.Create(t.Context(), id, index)
	if err != nil {
		t.Fatalf("Create(%q, %d): %v", id, index, err)
	}
	return c
}

// listen makes a listener in the namespace and serves it from the host's.
func (l *lab) listen(t *testing.T, name, network, address string) (stop func()) {
	t.Helper()
	f, err := l.n.Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var closer interface{ Close() error }
	var serving sync.WaitGroup
	if network == "tcp" {
		ln, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		closer = ln
		serving.Go(func() { l.serveTCP(name, ln) })
	} else {
		pc, err := net.FilePacketConn(f)
		if err != nil {
			t.Fatal(err)
		}
		closer = pc
		serving.Go(func() { l.serveUDP(name, pc.(*net.UDPConn)) })
	}
	stop = sync.OnceFunc(func() { closer.Close(); serving.Wait() })
	t.Cleanup(stop)
	return stop
}

// serveTCP greets with its name, then echoes.
func (l *lab) serveTCP(name string, ln net.Listener) {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		l.hear(event{at: name, from: addrPort(c.RemoteAddr()), original: originalDst(c.(*net.TCPConn))})
		conns.Go(func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(limit))
			fmt.Fprintln(c, name)
			for r := bufio.NewReader(c); ; {
				line, err := r.ReadString('\n')
				if err != nil {
					return
				}
				fmt.Fprint(c, line)
			}
		})
	}
}

func (l *lab) serveUDP(name string, pc *net.UDPConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := pc.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		l.hear(event{at: name, from: from, data: string(buf[:n])})
		pc.WriteToUDPAddrPort([]byte(name), from)
	}
}

func (l *lab) hear(e event) {
	e.from = netip.AddrPortFrom(e.from.Addr().Unmap(), e.from.Port())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

// heard returns what was heard since the last call, but for barriers.
func (l *lab) heard() []event {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := slices.DeleteFunc(l.events, func(e event) bool { return e.data == barrier })
	l.events = nil
	return out
}

const barrier = "barrier"

// silence fails if anything was heard. A query that is answered goes first: what
// a cell sent before it has been dealt with then.
func (l *lab) silence(t *testing.T, c cell.Cell) {
	t.Helper()
	if got, err := query(c, "8.8.8.8:53", barrier, limit); err != nil || got != "dns/udp" {
		t.Fatalf("the twin that should be heard: %q, %v", got, err)
	}
	if e := l.heard(); len(e) > 0 {
		t.Errorf("listeners heard %v, want nothing", e)
	}
}

// counted runs f and returns what was dropped meanwhile.
func (l *lab) counted(t *testing.T, c cell.Cell, f func()) cell.Bypass {
	t.Helper()
	before := l.counters(t, c)
	f()
	after := l.counters(t, c)
	return cell.Bypass{
		UDP: after.UDP - before.UDP, ICMP: after.ICMP - before.ICMP, TCP: after.TCP - before.TCP,
		Other: after.Other - before.Other, Limited: after.Limited - before.Limited,
	}
}

func (l *lab) counters(t *testing.T, c cell.Cell) cell.Bypass {
	t.Helper()
	b, err := l.n.Counters(t.Context(), c.ID)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// gateway runs a program as root in the gateway's namespace.
func (l *lab) gateway(t *testing.T, name string, args ...string) string {
	t.Helper()
	return runIn(t, l.n.Namespace(), name, args...)
}

func runIn(t *testing.T, ns *os.File, name string, args ...string) string {
	t.Helper()
	var out []byte
	err := cell.Inside(ns, func() (err error) {
		out, err = exec.Command(name, args...).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// in runs f in a sandbox's namespace.
func in(c cell.Cell, f func() error) error {
	ns, err := os.Open(c.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	return cell.Inside(ns, f)
}

// dial connects from a sandbox and returns who greets.
func dial(c cell.Cell, address string, timeout time.Duration) (conn net.Conn, greeting string, err error) {
	err = in(c, func() (err error) {
		conn, err = net.DialTimeout("tcp4", address, timeout)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	conn.SetDeadline(time.Now().Add(limit))
	greeting, err = bufio.NewReader(conn).ReadString('\n')
	return conn, strings.TrimSpace(greeting), err
}

// query sends one datagram from a sandbox and returns the answer. The socket is
// connected, so that only an answer from the address that was asked counts.
func query(c cell.Cell, address, data string, timeout time.Duration) (string, error) {
	var conn net.Conn
	err := in(c, func() (err error) {
		conn, err = net.Dial("udp4", address)
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(timeout))
	if _, err := conn.Write([]byte(data)); err != nil {
		return "", err
	}
	buf := make([]byte, 2048)
	n, err := conn.Read(buf)
	return string(buf[:n]), err
}

// originalDst asks from the host's namespace, on the socket of another.
func originalDst(c *net.TCPConn) (dst netip.AddrPort) {
	raw, err := c.SyscallConn()
	if err != nil {
		return dst
	}
	const soOriginalDst = 80 // linux/netfilter_ipv4.h
	raw.Control(func(fd uintptr) {
		// A sockaddr_in fits into the first half of this struct.
		info, err := unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IP, soOriginalDst)
		if err != nil {
			return
		}
		var port [2]byte
		binary.NativeEndian.PutUint16(port[:], info.Addr.Port)
		var ip [4]byte
		binary.NativeEndian.PutUint32(ip[:], info.Addr.Flowinfo)
		dst = netip.AddrPortFrom(netip.AddrFrom4(ip), binary.BigEndian.Uint16(port[:]))
	})
	return dst
}

func addrPort(a net.Addr) netip.AddrPort { return netip.MustParseAddrPort(a.String()) }

func on(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }
