package dial_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sallyport/proxy/dial"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
	"sallyport/test/lab"
)

// reach dials a stream and returns the address, or the error's status.
func (w *world) reach(to string) string {
	w.t.Helper()
	p := w.tunnel(to)
	defer p.Done(w.t.Context(), gate.Outcome{})
	c, err := w.Dial(w.t.Context(), p)
	if err != nil {
		if r := reason(err); r != "" {
			return string(r)
		}
		return status(err)
	}
	defer c.Close()
	return netip.MustParseAddrPort(c.RemoteAddr().String()).Addr().String()
}

func TestOnlyFullNamesAreAsked(t *testing.T) {
	w := newWorld(t, []rules.Rule{allow("ok", raw, "ok.test", "host")}, nil)
	greeter(t, "ok.test", okAddr)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	w.resolver.Set("host.corp.test", "A 11.7.7.7") // what a search list would find
	if got := w.reach("OK.test:5432"); got != "11.7.7.7" {
		t.Errorf("ok.test: %s", got)
	}
	if got := w.reach("host:5432"); got != "dns_error" {
		t.Errorf("host: %s", got)
	}
	for _, q := range w.resolver.Queries() {
		if q.Name != "ok.test." && q.Name != "host." || q.Type != "A" && q.Type != "AAAA" {
			t.Errorf("asked %v", q)
		}
	}
}

func TestQueriesCannotBeGuessed(t *testing.T) {
	w := newWorld(t, okRaw, nil)
	ids, ports := map[uint16]bool{}, map[uint16]bool{}
	const names = 50
	for i := range names {
		w.reach(fmt.Sprintf("n%d.wild.test:5432", i))
	}
	for _, q := range w.resolver.Queries() {
		ids[q.ID], ports[q.Port] = true, true
	}
	if len(ids) < names || len(ports) < names {
		t.Errorf("%d queries with %d ids from %d ports", 2*names, len(ids), len(ports))
	}
}

// TestForgedAnswers: answers to other questions are passed over; the right one
// counts although it comes last.
func TestForgedAnswers(t *testing.T) {
	pc, err := net.ListenPacket("udp", "11.7.7.54:0")
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			q := new(dns.Msg)
			if q.Unpack(buf[:n]) != nil {
				continue
			}
			send := func(change func(m *dns.Msg)) {
				m := lab.Reply(q, "@ 60 A 11.7.7.66")
				change(m)
				if wire, err := m.Pack(); err == nil {
					_, _ = pc.WriteTo(wire, from)
				}
			}
			send(func(m *dns.Msg) { m.Id++ })
			send(func(m *dns.Msg) { m.Question[0].Name = "other.test." })
			send(func(m *dns.Msg) { m.Question = nil })
			send(func(m *dns.Msg) { m.Response = false })
			send(func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeTXT })
			_, _ = pc.WriteTo([]byte{1, 2, 3}, from)
			send(func(m *dns.Msg) { *m = *lab.Reply(q, "@ 60 A 11.7.7.7", "other.test. 60 A 11.7.7.66") })
		}
	})
	t.Cleanup(func() { _ = pc.Close(); done.Wait() })
	w := newWorld(t, okRaw, func(c *dial.Config) {
		c.Resolvers = []dial.Resolver{{Addr: netip.MustParseAddrPort(pc.LocalAddr().String())}}
	})
	greeter(t, "ok.test", okAddr)
	evil := greeter(t, "evil", evilAddr)
	if got := w.reach("ok.test:5432"); got != "11.7.7.7" {
		t.Errorf("dialled %s", got)
	}
	untouched(t, evil)
}

func TestTruncatedAnswersAreAskedAgainByTCP(t *testing.T) {
	w := newWorld(t, okRaw, nil)
	greeter(t, "ok.test", okAddr)
	w.resolver.Script("ok.test", func(_ int, q *dns.Msg) *dns.Msg {
		qs := w.resolver.Queries()
		m := lab.Reply(q, "@ 60 A 11.7.7.7")
		if !qs[len(qs)-1].TCP && q.Question[0].Qtype == dns.TypeA {
			m.Answer, m.Truncated = nil, true
		}
		return m
	})
	if got := w.reach("ok.test:5432"); got != "11.7.7.7" {
		t.Errorf("dialled %s", got)
	}
	tcp := 0
	for _, q := range w.resolver.Queries() {
		if q.TCP {
			tcp++
		}
	}
	if tcp == 0 {
		t.Error("no query by TCP")
	}
}

func TestAliases(t *testing.T) {
	w := newWorld(t, okRaw, nil)
	greeter(t, "ok.test", okAddr)
	for i := range 20 {
		w.resolver.Set(fmt.Sprintf("long%d.test", i), fmt.Sprintf("CNAME long%d.test.", i+1))
		w.resolver.Set(fmt.Sprintf("short%d.test", i), fmt.Sprintf("CNAME short%d.test.", i+1))
	}
	w.resolver.Set("short20.test", "A 11.7.7.7")
	w.resolver.Set("long20.test", "A 11.7.7.7")
	w.resolver.Set("a.wild.test", "CNAME short15.test.")
	w.resolver.Set("b.wild.test", "CNAME long0.test.")
	w.resolver.Set("c.wild.test", "CNAME c.wild.test.")
	w.resolver.Set("d.wild.test", "CNAME e.wild.test.")
	w.resolver.Set("e.wild.test", "CNAME d.wild.test.")
	w.resolver.Set("f.wild.test", "CNAME gone.test.")
	w.resolver.Set("g.wild.test", `CNAME a\ b.test.`)
	w.resolver.Script("h.wild.test", func(_ int, q *dns.Msg) *dns.Msg {
		return lab.Reply(q, "z.test. 60 A 11.7.7.7", "y.test. 60 CNAME z.test.", "@ 60 CNAME y.test.")
	})
	for name, want := range map[string]string{
		"a": "11.7.7.7", "b": "dns_error", "c": "dns_error", "d": "dns_error", "f": "dns_error", "g": "dns_error", "h": "11.7.7.7",
	} {
		before := len(w.resolver.Queries())
		if got := w.reach(name + ".wild.test:5432"); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		if n := len(w.resolver.Queries()) - before; n > 40 {
			t.Errorf("%s: %d queries", name, n)
		}
	}
}

func TestOtherServersAreAsked(t *testing.T) {
	good, err := lab.StartResolver(netip.MustParseAddrPort("11.7.7.55:0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = good.Close() })
	good.Set("ok.test", "A 11.7.7.7")
	for name, first := range map[string]Script{
		"servfail": func(_ int, q *dns.Msg) *dns.Msg { return lab.Fail(q, dns.RcodeServerFailure) },
		"silence":  func(int, *dns.Msg) *dns.Msg { return nil },
	} {
		w := newWorld(t, okRaw, nil)
		w.resolver.Script("ok.test", first)
		both := newWorld(t, okRaw, func(c *dial.Config) { c.Resolvers = []dial.Resolver{{Addr: w.resolver.Addr}, {Addr: good.Addr}} })
		s := greeter(t, "ok.test", okAddr)
		if got := both.reach("ok.test:5432"); got != "11.7.7.7" {
			t.Errorf("%s: %s", name, got)
		}
		_ = s.Close()
	}
}

// Script spells lab.Script for the table above.
type Script = lab.Script

// TestOneFamilyFails: what cannot be asked for is not dialled; the rest is vetted.
func TestOneFamilyFails(t *testing.T) {
	w := newWorld(t, okRaw, nil)
	greeter(t, "ok.test", okAddr)
	w.resolver.Script("ok.test", func(_ int, q *dns.Msg) *dns.Msg {
		if q.Question[0].Qtype == dns.TypeAAAA {
			return lab.Fail(q, dns.RcodeServerFailure)
		}
		return lab.Reply(q, "@ 3600 A 11.7.7.7")
	})
	for range 2 {
		if got := w.reach("ok.test:5432"); got != "11.7.7.7" {
			t.Errorf("dialled %s", got)
		}
	}
	n := len(w.resolver.Queries())
	w.clock.advance(dial.MinTTL)
	w.reach("ok.test:5432")
	if len(w.resolver.Queries()) == n {
		t.Error("a half answer was kept for longer than the least time")
	}
}

// TestAnswersAreKeptForOurTime: DN-21. TTLs are clamped both ways.
func TestAnswersAreKeptForOurTime(t *testing.T) {
	tests := []struct {
		name, ttl string
		kept      time.Duration
	}{
		{"zero", "0", dial.MinTTL},
		{"a minute", "60", time.Minute},
		{"for ever", "2147483647", dial.MaxTTL},
		{"negative", "2147483648", dial.MinTTL}, // RFC 2181 section 8: zero
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, okRaw, nil)
			s := greeter(t, "ok.test", okAddr)
			defer s.Close()
			w.resolver.Script("ok.test", func(n int, q *dns.Msg) *dns.Msg {
				if n < 2 {
					return lab.Reply(q, "@ "+tt.ttl+" A 11.7.7.7")
				}
				return lab.Reply(q, "@ "+tt.ttl+" A 127.0.0.1")
			})
			if got := w.reach("ok.test:5432"); got != "11.7.7.7" {
				t.Errorf("first: %s", got)
			}
			w.clock.advance(tt.kept - time.Second)
			if got := w.reach("ok.test:5432"); got != "11.7.7.7" {
				t.Errorf("before its end: %s", got)
			}
			w.clock.advance(2 * time.Second)
			if got := w.reach("ok.test:5432"); got != "private_ip" {
				t.Errorf("after its end: %s", got)
			}
		})
	}
}

func TestNoSuchNameIsKept(t *testing.T) {
	w := newWorld(t, okRaw, nil)
	for range 5 {
		if got := w.reach("gone.wild.test:5432"); got != "dns_error" {
			t.Errorf("dialled %s", got)
		}
	}
	if n := len(w.resolver.Queries()); n != 2 {
		t.Errorf("%d queries", n)
	}
	w.clock.advance(dial.MinTTL)
	w.reach("gone.wild.test:5432")
	if n := len(w.resolver.Queries()); n != 4 {
		t.Errorf("%d queries after its end", n)
	}
}

func TestCacheIsBounded(t *testing.T) {
	w := newWorld(t, okRaw, nil)
	const over = 200
	for i := range dial.MaxCached + over {
		w.reach(fmt.Sprintf("n%d.wild.test:5432", i))
	}
	before := len(w.resolver.Queries())
	for i := range dial.MaxCached + over {
		w.reach(fmt.Sprintf("n%d.wild.test:5432", i))
	}
	if n := len(w.resolver.Queries()) - before; n < 2*over {
		t.Errorf("%d queries the second time: more names were kept than may be", n)
	}
}

func TestOneLookupForAll(t *testing.T) {
	w := newWorld(t, okRaw, nil)
	greeter(t, "ok.test", okAddr)
	gate := make(chan struct{})
	w.resolver.Script("ok.test", func(_ int, q *dns.Msg) *dns.Msg {
		<-gate
		return lab.Reply(q, "@ 0 A 11.7.7.7")
	})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if got := w.reach("ok.test:5432"); got != "11.7.7.7" {
				t.Errorf("dialled %s", got)
			}
		})
	}
	close(gate)
	all.Wait()
	if n := len(w.resolver.Queries()); n != 2 {
		t.Errorf("%d queries", n)
	}
}

// TestStaticHosts: what is named is never asked for.
func TestStaticHosts(t *testing.T) {
	name, err := target.ParseName("ok.test")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, okRaw, func(c *dial.Config) { c.Hosts = map[target.Name][]netip.Addr{name: {okAddr}} })
	greeter(t, "ok.test", okAddr)
	w.resolver.Set("ok.test", "A 11.7.7.66")
	if got := w.reach("ok.test:5432"); got != "11.7.7.7" {
		t.Errorf("dialled %s", got)
	}
	if q := w.resolver.Queries(); len(q) > 0 {
		t.Errorf("asked %v", q)
	}
}

// TestOddAnswers: what a hostile server may send is an error or is passed over.
func TestOddAnswers(t *testing.T) {
	w := newWorld(t, okRaw, nil)
	s := greeter(t, "ok.test", okAddr)
	odd := map[string]func(q *dns.Msg) *dns.Msg{
		"another name's address": func(q *dns.Msg) *dns.Msg { return lab.Reply(q, "other.test. 60 A 11.7.7.7") },
		"another class": func(q *dns.Msg) *dns.Msg {
			m := lab.Reply(q, "@ 60 A 11.7.7.7")
			for _, rr := range m.Answer {
				rr.Header().Class = dns.ClassCHAOS
			}
			return m
		},
		"an alias to a number": func(q *dns.Msg) *dns.Msg { return lab.Reply(q, "@ 60 CNAME 2130706433.") },
		"an alias to the root": func(q *dns.Msg) *dns.Msg { return lab.Reply(q, "@ 60 CNAME .") },
		"a TXT record": func(q *dns.Msg) *dns.Msg {
			m := lab.Reply(q)
			rr, _ := dns.NewRR(q.Question[0].Name + ` 60 IN TXT "11.7.7.7"`)
			m.Answer = []dns.RR{rr}
			return m
		},
	}
	n := 0
	for what, f := range odd {
		n++
		name := fmt.Sprintf("odd%d.wild.test", n)
		w.resolver.Script(name, func(_ int, q *dns.Msg) *dns.Msg { return f(q) })
		if got := w.reach(name + ":5432"); got != "dns_error" {
			t.Errorf("%s: %s", what, got)
		}
	}
	untouched(t, s)
	w.resolver.Script("big.wild.test", func(_ int, q *dns.Msg) *dns.Msg {
		m := lab.Reply(q, "@ 60 A 11.7.7.7")
		for range 200 {
			rr, _ := dns.NewRR(q.Question[0].Name + ` 60 IN TXT "` + strings.Repeat("x", 200) + `"`)
			m.Extra = append(m.Extra, rr)
		}
		m.Truncate(1232)
		m.Answer = nil
		return m
	})
	if got := w.reach("big.wild.test:5432"); got != "dns_error" {
		t.Errorf("truncated for ever: %s", got)
	}
}

// FuzzAnswer: whatever a server answers, nothing but a vetted address is dialled.
func FuzzAnswer(f *testing.F) {
	q := new(dns.Msg)
	q.SetQuestion("ok.test.", dns.TypeA)
	for _, rec := range []string{"@ 60 A 11.7.7.7", "@ 60 CNAME x.test.", "@ 60 CNAME @"} {
		wire, err := lab.Reply(q, rec).Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	name, err := target.ParseName("ok.test")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		m := new(dns.Msg)
		if m.Unpack(wire) != nil {
			return
		}
		for _, a := range dial.ReadAnswer(m, name, dns.TypeA) {
			if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
				t.Errorf("address %v", a)
			}
		}
	})
}
