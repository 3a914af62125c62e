package dns_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"sallyport/proxy/dns"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
)

// bare is the least that a server made with miekg/dns does.
func bare(w mdns.ResponseWriter, q *mdns.Msg) {
	m := new(mdns.Msg)
	m.SetReply(q)
	m.Answer = []mdns.RR{&mdns.A{
		Hdr: mdns.RR_Header{Name: q.Question[0].Name, Rrtype: mdns.TypeA, Class: mdns.ClassINET, Ttl: 30},
		A:   net.IPv4(198, 18, 0, 1).To4(),
	}}
	_ = w.WriteMsg(m)
}

// BenchmarkAnswer compares answers a second over sockets, with a policy of 100
// rules and records that cost nothing, to a bare server.
func BenchmarkAnswer(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		pc := listenUDP(b)
		var ready sync.WaitGroup
		ready.Add(1)
		srv := &mdns.Server{PacketConn: pc, Handler: mdns.HandlerFunc(bare), NotifyStartedFunc: ready.Done}
		done := make(chan error, 1)
		go func() { done <- srv.ActivateAndServe() }()
		ready.Wait()
		load(b, pc.LocalAddr().String())
		_ = srv.Shutdown()
		<-done
	})
	b.Run("sallyport", func(b *testing.B) {
		pc := listenUDP(b)
		s := benchServer(b)
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error, 1)
		go func() { done <- s.Serve(ctx, pc, nil) }()
		load(b, pc.LocalAddr().String())
		cancel()
		<-done
	})
}

// BenchmarkHandle is the same without sockets.
func BenchmarkHandle(b *testing.B) {
	s := benchServer(b)
	wire, err := query("n50.test", mdns.TypeA).Pack()
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 1232)
	b.ReportAllocs()
	for b.Loop() {
		if s.Handle(b.Context(), wire, one, true, buf) == nil {
			b.Fatal("no answer")
		}
	}
}

func listenUDP(b *testing.B) *net.UDPConn {
	b.Helper()
	pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 77, 0, 1)})
	if err != nil {
		b.Fatal(err)
	}
	return pc
}

func benchServer(b *testing.B) *dns.Server {
	b.Helper()
	var rs []rules.Rule
	for i := range 100 {
		rs = append(rs, rules.Rule{
			ID: fmt.Sprintf("r%d", i), Action: rules.AllowAction, Ports: []uint16{443},
			Hosts: []rules.HostPattern{{Host: target.HostOf(name(b, fmt.Sprintf("n%d.test", i)))}},
		})
	}
	p, err := rules.Compile(rules.Source{Name: "bench", Digest: "sha256:bench", Rules: rs})
	if err != nil {
		b.Fatal(err)
	}
	g, err := gate.New(gate.Config{
		Identity: func(c string) (gate.Identity, bool) { return gate.Identity{Cell: c, Run: "r", Policy: p}, true },
		Recorder: &nothing{}, Now: time.Now, Hash: func(string) string { return "" },
	})
	if err != nil {
		b.Fatal(err)
	}
	names, err := dns.NewNames(dns.NamesConfig{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = names.Close() })
	s, err := dns.New(dns.Config{
		Gate: g, CellOf: func(netip.Addr) (string, bool) { return "one", true }, Names: names, Now: time.Now, Log: quiet,
		Rate: 1 << 30, Burst: 1 << 30,
	})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// load asks from 16 sockets at the same time, each one question at a time.
func load(b *testing.B, addr string) {
	b.Helper()
	wire, err := query("n50.test", mdns.TypeA).Pack()
	if err != nil {
		b.Fatal(err)
	}
	b.SetParallelism(8)
	before := cpu(b)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		c, err := net.Dial("udp4", addr)
		if err != nil {
			b.Error(err)
			return
		}
		defer c.Close()
		buf := make([]byte, 1232)
		for pb.Next() {
			_ = c.SetDeadline(time.Now().Add(5 * time.Second))
			if _, err := c.Write(wire); err != nil {
				b.Error(err)
				return
			}
			if _, err := c.Read(buf); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "answers/s")
	// The client's half is in it, and the same for both.
	b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// cpu returns what this process has used: on a busy machine it says more than
// the time that went by.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
