package dial_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"sallyport/proxy/dial"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
	"sallyport/test/lab"
)

// internals are services that no test may reach.
func internals(t *testing.T) []*lab.Site {
	t.Helper()
	s := lab.NewSite("internal", loopback, corpAddr, lab.MetadataAddr)
	t.Cleanup(func() { _ = s.Close() })
	for _, port := range []uint16{80, 443, 5432} {
		if err := s.ServeGreeting(port, "secret\n"); err != nil {
			t.Fatal(err)
		}
	}
	return []*lab.Site{s}
}

// TestSpecialAnswersRefused: an allowed name must not lead inside, whatever
// the address is written like (IP-01 IP-03 IP-04 IP-05 IP-08 IP-09 IP-10 IP-12).
func TestSpecialAnswersRefused(t *testing.T) {
	groups := map[string][]string{
		"IP-01": {"A 127.0.0.1", "A 127.8.8.8", "AAAA ::1"},
		"IP-03": {"AAAA ::ffff:127.0.0.1", "AAAA ::ffff:7f00:1", "AAAA ::ffff:169.254.169.254"},
		"IP-04": {"A 0.0.0.0", "A 0.1.2.3", "AAAA ::", "AAAA ::ffff:0.0.0.0"},
		"IP-05": {"AAAA 64:ff9b::7f00:1", "AAAA 64:ff9b::a9fe:a9fe", "AAAA 64:ff9b:1::a00:1"},
		"IP-08": {
			"AAAA fc00::1", "AAAA fd12::1", "AAAA fec0::1", "AAAA fe80::1", "AAAA 100::1", "AAAA 5f00::1",
			"AAAA 2001:db8::1", "AAAA ff02::1", "AAAA 2002:7f00:1::1", "AAAA 2001:0:7f00:1::1",
		},
		"IP-09": {
			"A 100.64.0.1", "A 100.100.100.200", "A 198.18.0.1", "A 192.0.0.1", "A 192.0.0.192", "A 192.88.99.1",
			"A 203.0.113.1", "A 224.0.0.1", "A 240.0.0.1", "A 255.255.255.255",
		},
		"IP-10": {"A 169.254.169.254", "A 169.254.170.2", "A 169.254.169.253", "AAAA fd00:ec2::254", "A 168.63.129.16"},
		"IP-12": {"A 10.77.0.5", "A 172.16.0.1", "A 192.168.1.1"},
	}
	w := newWorld(t, []rules.Rule{allow("ok", nil, "*.wild.test"), allow("raw", raw, "*.raw.test")}, nil)
	inside := internals(t)
	n := 0
	for id, records := range groups {
		t.Run(id, func(t *testing.T) {
			for _, rec := range records {
				n++
				web, stream := fmt.Sprintf("n%d.wild.test", n), fmt.Sprintf("n%d.raw.test", n)
				w.resolver.Set(web, rec)
				w.resolver.Set(stream, rec)
				for _, u := range []string{"http://" + web + "/", "https://" + web + "/"} {
					if _, err := w.get(u); reason(err) != rules.PrivateIP {
						t.Errorf("GET %s at %s: %v, want private_ip", u, rec, err)
					}
				}
				if _, err := w.Dial(t.Context(), w.tunnel(stream+":5432")); reason(err) != rules.PrivateIP {
					t.Errorf("stream to %s: %v, want private_ip", rec, err)
				}
			}
		})
	}
	untouched(t, inside...)

	s := w.site("twin.wild.test", okAddr, nil)
	w.resolver.Set("twin.wild.test", "A 11.7.7.7")
	if _, err := w.get("https://twin.wild.test/"); err != nil {
		t.Errorf("a public address: %v", err)
	}
	if len(s.Seen()) != 1 {
		t.Errorf("site saw %d requests", len(s.Seen()))
	}
}

// TestRebinding: IP-13. The address that was vetted is dialled; the resolver's
// second opinion is not asked for.
func TestRebinding(t *testing.T) {
	w := newWorld(t, ok, nil)
	s := w.site("ok.test", okAddr, nil)
	inside := internals(t)
	w.resolver.Script("ok.test", func(n int, q *dns.Msg) *dns.Msg {
		if n < 2 { // A and AAAA of the first look-up
			return lab.Reply(q, "@ 0 A 11.7.7.7")
		}
		return lab.Reply(q, "@ 0 A 127.0.0.1", "@ 0 AAAA ::1")
	})
	for _, u := range []string{"http://ok.test/", "https://ok.test/"} {
		if _, err := w.get(u); err != nil {
			t.Errorf("GET %s: %v", u, err)
		}
	}
	var all sync.WaitGroup
	for i := range 20 {
		p := w.fetch("GET", fmt.Sprintf("https://ok.test/%d", i))
		all.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), "GET", "/", nil)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := w.Forward(t.Context(), p, req)
			if err != nil {
				t.Error(err)
				return
			}
			_ = resp.Body.Close()
		})
	}
	all.Wait()
	if got := len(w.resolver.Queries()); got != 2 {
		t.Errorf("%d queries, want one for A and one for AAAA", got)
	}
	if got := len(s.Seen()); got != 22 {
		t.Errorf("site saw %d requests, want 22", got)
	}
	// When the answer has expired, the new one is judged, pooled connection or not.
	w.clock.advance(dial.MinTTL)
	if _, err := w.get("https://ok.test/"); reason(err) != rules.PrivateIP {
		t.Errorf("after rebinding: %v, want private_ip", err)
	}
	if got := len(s.Seen()); got != 22 {
		t.Errorf("site saw %d requests after rebinding, want 22", got)
	}
	untouched(t, inside...)
}

// TestMixedAnswers: IP-14. One bad address refuses the set.
func TestMixedAnswers(t *testing.T) {
	w := newWorld(t, append([]rules.Rule{allow("raw", raw, "*.raw.test")}, ok...), nil)
	s := w.site("ok.test", okAddr, nil)
	inside := internals(t)
	sets := [][]string{
		{"A 11.7.7.7", "A 127.0.0.1"},
		{"A 127.0.0.1", "A 11.7.7.7"},
		{"A 11.7.7.7", "AAAA ::1"},
		{"AAAA 2a0d:7777::1", "A 10.77.0.5"},
		{"A 11.7.7.7", "A 11.7.7.8", "A 169.254.169.254"},
	}
	for i, set := range sets {
		for n := range 50 {
			web := fmt.Sprintf("m%d-%d.wild.test", i, n)
			stream := fmt.Sprintf("m%d-%d.raw.test", i, n)
			w.resolver.Set(web, set...)
			w.resolver.Set(stream, set...)
			if _, err := w.get("https://" + web + "/"); reason(err) != rules.PrivateIP {
				t.Fatalf("%v: %v, want private_ip", set, err)
			}
			if _, err := w.Dial(t.Context(), w.tunnel(stream+":443")); reason(err) != rules.PrivateIP {
				t.Fatalf("%v: %v, want private_ip", set, err)
			}
		}
	}
	untouched(t, append(inside, s)...)
	w.resolver.Set("ok.test", "A 11.7.7.7", "A 11.7.7.8")
	if _, err := w.get("https://ok.test/"); err != nil {
		t.Errorf("two public addresses: %v", err)
	}
}

// TestEveryPathIsGuarded: IP-16. All ways out go through the one guard.
func TestEveryPathIsGuarded(t *testing.T) {
	w := newWorld(t, append([]rules.Rule{allow("raw", raw, "raw.test")}, ok...), nil)
	inside := internals(t)
	w.resolver.Set("ok.test", "A 127.0.0.1")
	w.resolver.Set("raw.test", "A 127.0.0.1")
	upgrade := func(r *http.Request) {
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
	}
	tests := []struct {
		name string
		do   func() error
	}{
		{"plain HTTP", func() error { _, err := w.get("http://ok.test/"); return err }},
		{"HTTPS", func() error { _, err := w.get("https://ok.test/"); return err }},
		{"ws", func() error { _, err := w.do("GET", "http://ok.test/", upgrade); return err }},
		{"wss", func() error { _, err := w.do("GET", "https://ok.test/", upgrade); return err }},
		{"upload", func() error {
			_, err := w.do("POST", "https://ok.test/", func(r *http.Request) { r.Body = http.NoBody })
			return err
		}},
		{"tunnel", func() error { _, err := w.Dial(t.Context(), w.tunnel("raw.test:443")); return err }},
	}
	for _, tt := range tests {
		if err := tt.do(); reason(err) != rules.PrivateIP {
			t.Errorf("%s: %v, want private_ip", tt.name, err)
		}
	}
	untouched(t, inside...)
}

// TestResolutionFailureRefuses: IP-17. What cannot be resolved is not dialled,
// and there is no second look-up that could say something else.
func TestResolutionFailureRefuses(t *testing.T) {
	failures := map[string]func(*dns.Msg) *dns.Msg{
		"servfail": func(q *dns.Msg) *dns.Msg { return lab.Fail(q, dns.RcodeServerFailure) },
		"nxdomain": func(q *dns.Msg) *dns.Msg { return lab.Fail(q, dns.RcodeNameError) },
		"refused":  func(q *dns.Msg) *dns.Msg { return lab.Fail(q, dns.RcodeRefused) },
		"empty":    func(q *dns.Msg) *dns.Msg { return lab.Reply(q) },
		"silence":  func(*dns.Msg) *dns.Msg { return nil },
	}
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, ok, nil)
			w.resolver.Script("ok.test", func(n int, q *dns.Msg) *dns.Msg { return fail(q) })
			_, err := w.get("https://ok.test/")
			want := "dns_error"
			if name == "silence" {
				want = "dns_timeout"
			}
			if status(err) != want {
				t.Errorf("error %v, status %q, want %q", err, status(err), want)
			}
		})
	}
	t.Run("then loopback", func(t *testing.T) {
		w := newWorld(t, ok, nil)
		inside := internals(t)
		w.resolver.Script("ok.test", func(n int, q *dns.Msg) *dns.Msg {
			if n < 4 { // two tries for each type
				return lab.Fail(q, dns.RcodeServerFailure)
			}
			return lab.Reply(q, "@ 60 A 127.0.0.1")
		})
		if _, err := w.get("https://ok.test/"); status(err) != "dns_error" {
			t.Errorf("first: %v", err)
		}
		if _, err := w.get("https://ok.test/"); reason(err) != rules.PrivateIP {
			t.Errorf("second: %v, want private_ip", err)
		}
		untouched(t, inside...)
	})
}

// TestAliasesToInside: IP-18. Only the last address matters.
func TestAliasesToInside(t *testing.T) {
	w := newWorld(t, ok, nil)
	inside := internals(t)
	s := w.site("ok.test", okAddr, nil)
	w.resolver.Set("127.0.0.1.wild.test", "A 127.0.0.1")
	w.resolver.Set("a.wild.test", "CNAME localhost.")
	w.resolver.Set("localhost", "A 127.0.0.1")
	w.resolver.Set("b.wild.test", "CNAME internal.corp.")
	w.resolver.Set("internal.corp", "A 10.77.0.5")
	w.resolver.Script("c.wild.test", func(_ int, q *dns.Msg) *dns.Msg {
		return lab.Reply(q, "@ 60 CNAME inside.corp.", "inside.corp. 60 A 10.77.0.5", "@ 60 A 11.7.7.7")
	})
	for _, name := range []string{"127.0.0.1.wild.test", "a.wild.test", "b.wild.test"} {
		if _, err := w.get("https://" + name + "/"); reason(err) != rules.PrivateIP {
			t.Errorf("%s: %v, want private_ip", name, err)
		}
	}
	untouched(t, append(inside, s)...)
	w.resolver.Set("ok.test", "CNAME cdn.example.test.")
	w.resolver.Set("cdn.example.test", "A 11.7.7.7")
	if _, err := w.get("https://ok.test/"); err != nil {
		t.Errorf("an alias to a public address: %v", err)
	}
}

// TestOwnAddressesRefused: IP-11. An address of this machine is refused though
// it is public, unless the operator named it.
func TestOwnAddressesRefused(t *testing.T) {
	own := netip.MustParseAddr("11.9.9.9")
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	a, err := netlink.ParseAddr(own.String() + "/32")
	if err != nil {
		t.Fatal(err)
	}
	named, err := target.ParseName("named.wild.test")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, append([]rules.Rule{allow("own", nil, own.String())}, ok...), nil)
	w.resolver.Set("ok.test", "A "+own.String())
	// It becomes ours while the dialler runs.
	if _, err := w.get("https://ok.test/"); reason(err) != "" {
		t.Fatalf("before it is ours: %v", err)
	}
	if err := netlink.AddrAdd(lo, a); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.AddrDel(lo, a) })
	w.clock.advance(2e9)
	s := w.site("named.wild.test", own, nil)
	for _, u := range []string{"https://ok.test/", "https://" + own.String() + "/"} {
		_, err := w.get(u)
		var d *gate.DeniedError
		if !errors.As(err, &d) || d.Reason != rules.PrivateIP || d.ID == "" || d.Decision.Verdict != rules.Deny {
			t.Errorf("%s: %v, want private_ip", u, err)
		}
	}
	untouched(t, s)
	n := newWorld(t, ok, func(c *dial.Config) {
		c.Hosts = map[target.Name][]netip.Addr{named: {own}}
		c.Roots = w.ca.Pool()
	})
	if _, err := n.get("https://named.wild.test/"); err != nil {
		t.Errorf("named by the operator: %v", err)
	}
}

// TestRangesAreForAddresses: IP-19. A rule about a range says nothing of names.
func TestRangesAreForAddresses(t *testing.T) {
	w := newWorld(t, []rules.Rule{allow("range", opening("11.7.7.0/24"))}, nil)
	w.resolver.Set("x.evil.test", "A 11.7.7.7")
	_, err := w.gate.Admit(t.Context(), rules.Request{
		Question: rules.Fetch, Cell: "c1", Secure: true, Method: "GET",
		Endpoint: endpoint(t, "x.evil.test:443"), Path: path(t, "/"),
	})
	if reason(err) != rules.HostNotAllowed {
		t.Errorf("Admit = %v, want host_not_allowed", err)
	}
	if q := w.resolver.Queries(); len(q) != 0 {
		t.Errorf("asked %v", q)
	}
	s := w.site("twin", okAddr, nil)
	if _, err := w.get("https://11.7.7.7/"); err != nil {
		t.Errorf("the address itself: %v", err)
	}
	if len(s.Seen()) != 1 {
		t.Errorf("site saw %d requests", len(s.Seen()))
	}
}

// TestRuleOpensRange: a special-purpose address that the matching rule opens,
// and a request of another rule that must not profit by the open connection.
func TestRuleOpensRange(t *testing.T) {
	reads := allow("reads", func(r *rules.Rule) {
		r.Methods = []string{"GET"}
		r.Private = []netip.Prefix{netip.MustParsePrefix("10.77.0.0/24")}
	}, "db.corp.test")
	writes := allow("writes", func(r *rules.Rule) { r.Methods = []string{"POST"} }, "db.corp.test")
	w := newWorld(t, []rules.Rule{reads, writes}, nil)
	s := w.site("db.corp.test", corpAddr, nil)
	w.resolver.Set("db.corp.test", "A 10.77.0.5")
	for range 3 {
		if _, err := w.get("https://db.corp.test/"); err != nil {
			t.Errorf("GET: %v", err)
		}
		if _, err := w.do("POST", "https://db.corp.test/", nil); reason(err) != rules.PrivateIP {
			t.Errorf("POST: %v, want private_ip", err)
		}
	}
	for _, v := range s.Seen() {
		if v.Method != "GET" {
			t.Errorf("site saw %s", v.Method)
		}
	}
	if len(s.Seen()) != 3 {
		t.Errorf("site saw %d requests", len(s.Seen()))
	}
}

// TestStaticHostsAreVetted: the operator's own table opens nothing.
func TestStaticHostsAreVetted(t *testing.T) {
	name, err := target.ParseName("ok.test")
	if err != nil {
		t.Fatal(err)
	}
	inside := internals(t)
	for _, a := range []netip.Addr{corpAddr, lab.MetadataAddr, loopback} {
		w := newWorld(t, ok, func(c *dial.Config) { c.Hosts = map[target.Name][]netip.Addr{name: {a}} })
		if _, err := w.get("https://ok.test/"); reason(err) != rules.PrivateIP {
			t.Errorf("%v: %v, want private_ip", a, err)
		}
		if q := w.resolver.Queries(); len(q) != 0 {
			t.Errorf("asked %v", q)
		}
	}
	untouched(t, inside...)
}

// TestTooManyAddresses: an answer that cannot be judged whole is refused.
func TestTooManyAddresses(t *testing.T) {
	w := newWorld(t, ok, nil)
	s := w.site("ok.test", okAddr, nil)
	records := make([]string, 100)
	for i := range records {
		records[i] = fmt.Sprintf("A 11.7.7.%d", 100+i)
	}
	w.resolver.Set("ok.test", records...)
	_, err := w.get("https://ok.test/")
	if status(err) != "dns_error" || !strings.Contains(err.Error(), "100 addresses") {
		t.Errorf("error %v", err)
	}
	untouched(t, s)
}

func endpoint(t *testing.T, s string) target.Endpoint {
	t.Helper()
	e, err := target.ParseAuthority(s, 443)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func path(t *testing.T, s string) target.Path {
	t.Helper()
	p, err := target.ParsePath(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
