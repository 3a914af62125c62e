package cell_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/launcher/cell"
)

// TestTraffic sends what a sandbox might send, from one network's cells; none of
// it may leave anything behind for the next.
func TestTraffic(t *testing.T) {
	l := openLab(t, cell.Config{})
	for _, tt := range []struct {
		name string
		run  func(*testing.T, *lab)
	}{
		{"tcpLandsAtTransparentListener", tcpLandsAtTransparentListener},
		{"dnsLandsAtDNSListener", dnsLandsAtDNSListener},
		{"otherResolversAreNotReached", otherResolversAreNotReached},
		{"explicitPortIsReachedDirectly", explicitPortIsReachedDirectly},
		{"transparentPortIsNoDestination", transparentPortIsNoDestination},
		{"udpIsDroppedAndCounted", udpIsDroppedAndCounted},
		{"quicIsRefusedAtOnce", quicIsRefusedAtOnce},
		{"neighboursDoNotMeet", neighboursDoNotMeet},
		{"noIPv6", noIPv6},
		{"forgedSourceIsDropped", forgedSourceIsDropped},
		{"forgedResetDoesNotTouchNeighbour", forgedResetDoesNotTouchNeighbour},
		{"icmpAndOtherProtocolsAreDropped", icmpAndOtherProtocolsAreDropped},
		{"fragmentsAreDropped", fragmentsAreDropped},
		{"loopbackIsNoDestination", loopbackIsNoDestination},
		{"arpIsAnsweredForOneAddress", arpIsAnsweredForOneAddress},
		{"forgedIPv6IsIgnored", forgedIPv6IsIgnored},
		{"segmentOutOfNowhereIsDropped", segmentOutOfNowhereIsDropped},
		{"droppedPacketsAreLogged", droppedPacketsAreLogged},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l.heard()
			tt.run(t, l)
			if err := l.n.Verify(t.Context()); err != nil {
				t.Errorf("Verify: %v", err)
			}
		})
	}
}

// NW-01, NW-05, NW-06, NW-08, NW-22 (of a neighbour): whatever TCP a sandbox tries ends at the
// transparent listener, which is told where it was meant to go.
func tcpLandsAtTransparentListener(t *testing.T, l *lab) {
	before := l.counters(t, l.a)
	for _, dst := range []string{
		"1.1.1.1:443", "8.8.8.8:80", "198.18.0.7:5432", "169.254.169.254:80", "203.0.113.9:15001", "203.0.113.9:3128",
		"10.0.0.1:22", "192.168.1.1:2375",
		on(l.a.Gateway, 22), on(l.a.Gateway, 8080), // a port where something listens
		on(l.b.Gateway, 3128), on(l.b.Gateway, 15001), on(l.b.Gateway, 8080),
		on(l.b.Sandbox, 8080),
	} {
		conn, greeting, err := dial(l.a, dst, limit)
		if err != nil || greeting != "transparent" {
			t.Errorf("connection to %s: %q, %v, want the transparent listener", dst, greeting, err)
			continue
		}
		conn.Close()
		want := event{at: "transparent", from: addrPort(conn.LocalAddr()), original: netip.MustParseAddrPort(dst)}
		if got := l.heard(); len(got) != 1 || got[0] != want {
			t.Errorf("connection to %s: heard %v, want %+v", dst, got, want)
		}
	}
	if after := l.counters(t, l.a); after != before {
		t.Errorf("counters before TCP only = %+v, after = %+v", before, after)
	}
}

func dnsLandsAtDNSListener(t *testing.T, l *lab) {
	for _, server := range []netip.Addr{
		l.a.Gateway, l.b.Gateway, l.b.Sandbox, netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("169.254.169.253"),
	} {
		got, err := query(l.a, on(server, 53), "q", limit)
		if err != nil || got != "dns/udp" {
			t.Errorf("query to %v: %q, %v, want an answer of the listener's from that address", server, got, err)
		}
		conn, greeting, err := dial(l.a, on(server, 53), limit)
		if err != nil || greeting != "dns/tcp" {
			t.Errorf("TCP query to %v: %q, %v", server, greeting, err)
			continue
		}
		conn.Close()
		for _, e := range l.heard() {
			if e.from.Addr() != l.a.Sandbox || !strings.HasPrefix(e.at, "dns/") {
				t.Errorf("query to %v: heard %v", server, e)
			}
		}
	}
}

// DN-07: whatever resolver is asked, on whatever port, the question ends here: at
// the listener, in a count, or in the sandbox. noIPv6 has the same for IPv6.
func otherResolversAreNotReached(t *testing.T, l *lab) {
	for _, server := range []string{"8.8.8.8:53", "10.0.0.53:53", "192.168.1.1:53"} { // public ones, and those of a LAN
		if got, err := query(l.a, server, "canary", limit); err != nil || got != "dns/udp" {
			t.Errorf("query to %s: %q, %v, want the listener's answer", server, got, err)
		}
	}
	l.heard()
	for _, server := range []string{"1.1.1.1:5353", "8.8.8.8:853", "9.9.9.9:784"} {
		dropped := l.counted(t, l.a, func() {
			if err := send(l.a, server, "canary"); err != nil {
				t.Errorf("sending to %s: %v", server, err)
			}
			l.silence(t, l.a)
		})
		if want := (cell.Bypass{UDP: 1}); dropped != want {
			t.Errorf("query to %s: dropped %+v, want %+v", server, dropped, want)
		}
	}
	// systemd's and Docker's stubs are the sandbox's own loopback, where nobody listens.
	for _, stub := range []string{"127.0.0.53:53", "127.0.0.11:53"} {
		if _, err := query(l.a, stub, "canary", limit); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("query to %s: %v, want nobody there", stub, err)
		}
		l.silence(t, l.a)
	}
	// DNS over TLS is TCP like any other: told where it was going, and judged.
	conn, greeting, err := dial(l.a, "8.8.8.8:853", limit)
	if err != nil || greeting != "transparent" {
		t.Errorf("DNS over TLS: %q, %v, want the transparent listener", greeting, err)
		return
	}
	conn.Close()
	if got := l.heard(); len(got) != 1 || got[0].original.String() != "8.8.8.8:853" {
		t.Errorf("DNS over TLS: heard %v", got)
	}
}

func explicitPortIsReachedDirectly(t *testing.T, l *lab) {
	for _, c := range []cell.Cell{l.a, l.b} {
		conn, greeting, err := dial(c, on(c.Gateway, 3128), limit)
		if err != nil || greeting != "explicit" {
			t.Fatalf("explicit port from %s: %q, %v", c.ID, greeting, err)
		}
		conn.Close()
	}
}

// A connection made to the transparent port itself has no other destination.
func transparentPortIsNoDestination(t *testing.T, l *lab) {
	dropped := l.counted(t, l.a, func() {
		if _, greeting, err := dial(l.a, on(l.a.Gateway, 15001), soon); err == nil {
			t.Errorf("connected to %q, want a time-out", greeting)
		}
		l.silence(t, l.a)
	})
	if dropped.TCP == 0 {
		t.Errorf("dropped %+v, want TCP counted", dropped)
	}
}

// NW-03, NW-04, NW-05, NW-06, NW-08: UDP other than DNS goes nowhere and is counted.
func udpIsDroppedAndCounted(t *testing.T, l *lab) {
	before := l.counters(t, l.b)
	for _, dst := range []string{
		"1.1.1.1:80", "1.1.1.1:123", "1.1.1.1:3478", "1.1.1.1:51820", "169.254.169.254:80",
		on(l.a.Gateway, 9999), on(l.b.Gateway, 9999), on(l.b.Sandbox, 9999), on(l.a.Gateway, 15001),
		"224.0.0.251:5353", "239.1.2.3:53",
	} {
		dropped := l.counted(t, l.a, func() {
			if err := send(l.a, dst, "canary"); err != nil {
				t.Errorf("sending to %s: %v", dst, err)
			}
			l.silence(t, l.a)
		})
		if want := (cell.Bypass{UDP: 1}); dropped != want {
			t.Errorf("datagram to %s: dropped %+v, want %+v", dst, dropped, want)
		}
	}
	if after := l.counters(t, l.b); after != before {
		t.Errorf("counters of the neighbour were %+v, are %+v", before, after)
	}
}

// NW-03: QUIC is refused at once, wherever it was going, and counted; the twin, a
// port beside it, is met with silence.
func quicIsRefusedAtOnce(t *testing.T, l *lab) {
	for _, dst := range []string{
		"1.1.1.1:443", "198.18.0.1:443", "169.254.169.254:443", on(l.a.Gateway, 443), on(l.b.Gateway, 443), on(l.b.Sandbox, 443),
	} {
		dropped := l.counted(t, l.a, func() {
			if _, err := query(l.a, dst, "canary", limit); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("datagram to %s: %v, want a refusal", dst, err)
			}
			l.silence(t, l.a)
		})
		if want := (cell.Bypass{UDP: 1}); dropped != want {
			t.Errorf("datagram to %s: dropped %+v, want %+v", dst, dropped, want)
		}
	}
	if _, err := query(l.a, "1.1.1.1:444", "canary", soon); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("another port: %v, want silence", err)
	}
}

// send sends a datagram and wants no answer.
func send(c cell.Cell, address, data string) error { return sendSome(c, 1, address, data) }

// sendSome sends as many datagrams, each from a port of its own, with nothing between them.
func sendSome(c cell.Cell, n int, address, data string) error {
	return in(c, func() error {
		for range n {
			conn, err := net.Dial("udp4", address)
			if err != nil {
				return err
			}
			_, err = conn.Write([]byte(data))
			if err := errors.Join(err, conn.Close()); err != nil {
				return err
			}
		}
		return nil
	})
}

// With all rules gone the same datagram does reach the stranger: it is there,
// and it is the rules that keep it out of sight. NW-18: even so, no way out.
func TestStrangerIsHeardWithoutRules(t *testing.T) {
	l := openLab(t, cell.Config{})
	l.gateway(t, "sh", "-c", `for t in raw nat filter; do iptables -t $t -F; iptables -t $t -X; done
		iptables -t raw -P PREROUTING ACCEPT; iptables -P INPUT ACCEPT; iptables -P OUTPUT ACCEPT; iptables -P FORWARD ACCEPT`)
	if got, err := query(l.a, on(l.a.Gateway, 9999), "canary", limit); err != nil || got != "stranger/udp" {
		t.Errorf("without rules: %q, %v", got, err)
	}
	l.heard()
	for _, dst := range []string{"1.1.1.1:443", on(l.b.Sandbox, 8080), "192.0.2.1:80"} {
		if _, greeting, err := dial(l.a, dst, soon); err == nil {
			t.Errorf("connection to %s without rules: greeted by %q, want no route", dst, greeting)
		}
	}
	if e := l.heard(); len(e) > 0 {
		t.Errorf("heard %v, want nothing", e)
	}

	n, err := cell.Open(t.Context(), l.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := l.n.Verify(t.Context()); err != nil {
		t.Errorf("Verify after Open: %v", err)
	}
	if _, err := query(l.a, on(l.a.Gateway, 9999), "canary", soon); err == nil {
		t.Error("the stranger answers after Open has put the rules back")
	}
	l.silence(t, l.a)
}

// NW-08: nothing of a cell reaches the sandbox of another.
func neighboursDoNotMeet(t *testing.T, l *lab) {
	var tcp net.Listener
	var udp net.PacketConn
	err := in(l.b, func() (err error) {
		if tcp, err = net.Listen("tcp4", ":8080"); err != nil {
			return err
		}
		udp, err = net.ListenPacket("udp4", ":9999")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	defer udp.Close()
	heard := make(chan string, 10)
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			heard <- "tcp from " + c.RemoteAddr().String()
			fmt.Fprintln(c, "neighbour")
			c.Close()
		}
	}()
	go func() {
		buf := make([]byte, 100)
		for {
			_, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			heard <- "udp from " + from.String()
			udp.WriteTo([]byte("neighbour"), from)
		}
	}()

	// The twin: its own sandbox reaches both.
	if _, greeting, err := dial(l.b, on(l.b.Sandbox, 8080), limit); err != nil || greeting != "neighbour" {
		t.Fatalf("own sandbox: %q, %v", greeting, err)
	}
	if got, err := query(l.b, on(l.b.Sandbox, 9999), "x", limit); err != nil || got != "neighbour" {
		t.Fatalf("own sandbox: %q, %v", got, err)
	}
	<-heard
	<-heard

	if _, greeting, err := dial(l.a, on(l.b.Sandbox, 8080), limit); err != nil || greeting != "transparent" {
		t.Errorf("connection to the neighbour: %q, %v, want the transparent listener", greeting, err)
	}
	if got, err := query(l.a, on(l.b.Sandbox, 9999), "x", soon); err == nil {
		t.Errorf("datagram to the neighbour: answer %q", got)
	}
	select {
	case e := <-heard:
		t.Errorf("the neighbour heard %s", e)
	default:
	}
}

// NW-19: no listener, no egress, and no fallback.
func TestClosedListenersRefuse(t *testing.T) {
	l := &lab{cfg: cell.Config{Name: uniqueName()}}
	l.n = mustOpen(t, l.cfg)
	l.a = mustCreate(t, l.n, "aaaaaaaa", 0)
	if _, _, err := dial(l.a, "1.1.1.1:443", limit); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("connection without a listener: %v, want it refused", err)
	}
	if got, err := query(l.a, "8.8.8.8:53", "q", soon); err == nil {
		t.Errorf("query without a listener: %q, want no answer", got)
	}
	closeListener := l.listen(t, "transparent", "tcp", ":15001")
	if _, greeting, err := dial(l.a, "1.1.1.1:443", limit); err != nil || greeting != "transparent" {
		t.Errorf("connection after the listener came: %q, %v", greeting, err)
	}
	closeListener()
	if _, _, err := dial(l.a, "1.1.1.1:443", limit); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("connection after the listener went: %v, want it refused", err)
	}
}

// NW-02: there is no IPv6 in either namespace.
func noIPv6(t *testing.T, l *lab) {
	look := func() error {
		text, err := os.ReadFile("/proc/thread-self/net/if_inet6")
		if errors.Is(err, os.ErrNotExist) {
			return nil // no IPv6 in the kernel
		}
		if err != nil || len(text) > 0 {
			return fmt.Errorf("IPv6 addresses: %q, %w, want none", text, err)
		}
		for _, dst := range []string{"[2606:4700::1111]:443", "[::1]:80", "[fe80::1%eth0]:53"} {
			if c, err := net.DialTimeout("tcp6", dst, soon); err == nil {
				c.Close()
				return fmt.Errorf("connected to %s", dst)
			}
		}
		return nil
	}
	if err := in(l.a, look); err != nil {
		t.Errorf("sandbox: %v", err)
	}
	if err := cell.Inside(l.n.Namespace(), look); err != nil {
		t.Errorf("gateway: %v", err)
	}
	l.silence(t, l.a)
}

// A cell that opens flows without end stops itself, and nobody else.
func TestFlowsAreLimitedPerCell(t *testing.T) {
	const flows = 8
	l := openLab(t, cell.Config{Flows: flows})
	for i := range flows {
		conn, _, err := dial(l.a, "1.1.1.1:443", limit)
		if err != nil {
			t.Fatalf("flow %d of %d: %v", i+1, flows, err)
		}
		defer conn.Close()
	}
	dropped := l.counted(t, l.a, func() {
		if _, _, err := dial(l.a, "1.1.1.1:443", soon); err == nil {
			t.Errorf("flow %d of %d was let through", flows+1, flows)
		}
	})
	if dropped.Limited == 0 || dropped.TCP != 0 {
		t.Errorf("dropped %+v, want Limited only", dropped)
	}
	if _, greeting, err := dial(l.b, "1.1.1.1:443", limit); err != nil || greeting != "transparent" {
		t.Errorf("the neighbour: %q, %v", greeting, err)
	}
	// What is dropped before the listeners never enters the table of flows.
	before := len(strings.Split(l.gateway(t, "cat", "/proc/net/nf_conntrack"), "\n"))
	for i := range 200 {
		if err := send(l.a, on(l.a.Gateway, uint16(20000+i)), "x"); err != nil {
			t.Fatal(err)
		}
	}
	if after := len(strings.Split(l.gateway(t, "cat", "/proc/net/nf_conntrack"), "\n")); after > before {
		t.Errorf("%d flows before 200 stray datagrams, %d after", before, after)
	}
}

func TestFlowRateIsLimitedPerCell(t *testing.T) {
	l := openLab(t, cell.Config{FlowRate: 2}) // and a burst of 4
	dropped := l.counted(t, l.a, func() {
		if err := sendSome(l.a, 20, "8.8.8.8:53", "q"); err != nil {
			t.Fatal(err)
		}
	})
	if dropped.Limited < 10 {
		t.Errorf("dropped %+v of 20 queries at once, want most of them Limited", dropped)
	}
	if got, err := query(l.b, "8.8.8.8:53", "q", limit); err != nil {
		t.Errorf("the neighbour: %q, %v", got, err)
	}
}

// CT-04: two sandboxes on one bridge do not meet, as the kernel keeps isolated ports
// apart: no plugin of whatever version has a part in it. With one port that is not, they
// do, which is what Verify reports of a cell's own.
func TestSameBridgeIsIsolated(t *testing.T) {
	l := openLab(t, cell.Config{})
	var ln net.Listener
	if err := in(l.a, func() (err error) { ln, err = net.Listen("tcp4", ":8080"); return err }); err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { l.serveTCP("sandbox", ln) })
	t.Cleanup(func() { ln.Close(); serving.Wait() })
	third := l.a.Sandbox.Next()
	// Where the kernel can put what a bridge forwards to our rules, those would drop it too.
	l.gateway(t, "sh", "-c", "f=/proc/sys/net/bridge/bridge-nf-call-iptables; test ! -e $f || echo 0 > $f")
	l.gateway(t, "sh", "-c", "ip link add port2 type veth peer name eth7; ip link set eth7 netns "+l.b.Netns+"; ip link set port2 master "+l.a.Bridge+"; ip link set port2 up")
	t.Cleanup(func() { l.gateway(t, "ip", "link", "del", "port2") })
	l.gateway(t, "nsenter", "--net="+l.b.Netns, "sh", "-c", "ip addr add "+third.String()+"/28 dev eth7; ip link set eth7 up")
	for _, isolated := range []string{"on", "off", "on"} {
		l.gateway(t, "bridge", "link", "set", "dev", "port2", "isolated", isolated)
		l.gateway(t, "nsenter", "--net="+l.b.Netns, "ip", "neigh", "flush", "dev", "eth7")
		timeout := limit
		if isolated == "on" {
			timeout = soon
		}
		conn, greeting, err := dial(l.b, on(l.a.Sandbox, 8080), timeout)
		if err == nil {
			conn.Close()
		}
		if met := greeting == "sandbox"; met != (isolated == "off") {
			t.Errorf("isolated %s: %q, %v", isolated, greeting, err)
		}
	}
}
