package dns_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"sallyport/audit"
	"sallyport/proxy/dns"
	"sallyport/rules"
)

func TestNewRefuses(t *testing.T) {
	names, err := dns.NewNames(dns.NamesConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer names.Close()
	good := dns.Config{
		Gate: fakeGate{}, CellOf: func(netip.Addr) (string, bool) { return "", false },
		Names: names, Now: time.Now, Log: quiet,
	}
	tests := []struct {
		name   string
		change func(*dns.Config)
		ok     bool
	}{
		{"no gate", func(c *dns.Config) { c.Gate = nil }, false},
		{"no cells", func(c *dns.Config) { c.CellOf = nil }, false},
		{"no names", func(c *dns.Config) { c.Names = nil }, false},
		{"no clock", func(c *dns.Config) { c.Now = nil }, false},
		{"no log", func(c *dns.Config) { c.Log = nil }, false},
		{"negative rate", func(c *dns.Config) { c.Rate = -1 }, false},
		{"long TTL", func(c *dns.Config) { c.TTL = 48 * time.Hour }, false},
		{"good", func(*dns.Config) {}, true},
	}
	for _, tt := range tests {
		cfg := good
		tt.change(&cfg)
		if _, err := dns.New(cfg); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestRefusedQueries: what is not a plain question is refused, each with one
// record (DN-04 DN-10 DN-11).
func TestRefusedQueries(t *testing.T) {
	with := func(qname string, qtype uint16, change func(*mdns.Msg)) *mdns.Msg {
		m := query(qname, qtype)
		if change != nil {
			change(m)
		}
		return m
	}
	chaos := func(m *mdns.Msg) { m.Question[0].Qclass = mdns.ClassCHAOS }
	tests := []struct {
		name   string
		msg    *mdns.Msg
		want   string
		reason rules.Reason
	}{
		{"DN-04 AXFR", with("ok.test", mdns.TypeAXFR, nil), "REFUSED", rules.TypeNotAllowed},
		{"DN-04 IXFR", with("ok.test", mdns.TypeIXFR, nil), "REFUSED", rules.TypeNotAllowed},
		{"DN-04 TKEY", with("ok.test", mdns.TypeTKEY, nil), "REFUSED", rules.TypeNotAllowed},
		{"DN-04 MAILB", with("ok.test", mdns.TypeMAILB, nil), "REFUSED", rules.TypeNotAllowed},
		{"DN-04 OPT as a question", with("ok.test", mdns.TypeOPT, nil), "REFUSED", rules.TypeNotAllowed},
		{"DN-04 type 0", with("ok.test", mdns.TypeNone, nil), "REFUSED", rules.TypeNotAllowed},
		{"DN-04 CH version.bind", with("version.bind", mdns.TypeTXT, chaos), "REFUSED", rules.TypeNotAllowed},
		{"DN-04 CH of an allowed name", with("ok.test", mdns.TypeA, chaos), "REFUSED", rules.TypeNotAllowed},
		{"DN-04 class ANY", with("ok.test", mdns.TypeA, func(m *mdns.Msg) { m.Question[0].Qclass = mdns.ClassANY }), "REFUSED", rules.TypeNotAllowed},
		{"DN-10 NUL", with(`a\000b.ok.test`, mdns.TypeA, nil), "FORMERR", rules.BadRequest},
		{"DN-10 CR LF", with(`a\013\010b.ok.test`, mdns.TypeA, nil), "FORMERR", rules.BadRequest},
		{"DN-10 escape", with(`a\027[2Jb.ok.test`, mdns.TypeA, nil), "FORMERR", rules.BadRequest},
		{"DN-10 0xff", with(`a\255b.ok.test`, mdns.TypeA, nil), "FORMERR", rules.BadRequest},
		{"DN-10 quote", with(`a\"b.ok.test`, mdns.TypeA, nil), "FORMERR", rules.BadRequest},
		{"DN-10 backslash", with(`a\\b.ok.test`, mdns.TypeA, nil), "FORMERR", rules.BadRequest},
		{"DN-10 space", with(`a\ b.ok.test`, mdns.TypeA, nil), "FORMERR", rules.BadRequest},
		{"DN-10 dot inside a label", with(`ok\.test`, mdns.TypeA, nil), "FORMERR", rules.BadRequest},
		{"the root", with(".", mdns.TypeNS, nil), "NXDOMAIN", rules.BadRequest},
		{"a number (IP-02)", with("2130706433", mdns.TypeA, nil), "NXDOMAIN", rules.BadRequest},
		{"an address", with("169.254.169.254", mdns.TypeA, nil), "NXDOMAIN", rules.BadRequest},
		{"a hyphen first (NM-23)", with("-x.ok.test", mdns.TypeA, nil), "NXDOMAIN", rules.BadRequest},
		{"DN-11 no question", with("ok.test", mdns.TypeA, func(m *mdns.Msg) { m.Question = nil }), "FORMERR", rules.BadRequest},
		{"DN-11 two questions", with("ok.test", mdns.TypeA, func(m *mdns.Msg) { m.Question = append(m.Question, m.Question[0]) }), "FORMERR", rules.BadRequest},
		{"DN-11 an answer along with it", with("ok.test", mdns.TypeA, func(m *mdns.Msg) {
			m.Answer = []mdns.RR{&mdns.TXT{Hdr: mdns.RR_Header{Name: "x.", Rrtype: mdns.TypeTXT, Class: 1}, Txt: []string{"data"}}}
		}), "FORMERR", rules.BadRequest},
		{"DN-11 UPDATE", with("ok.test", mdns.TypeSOA, func(m *mdns.Msg) { m.Opcode = mdns.OpcodeUpdate }), "NOTIMP", rules.BadRequest},
		{"DN-11 NOTIFY", with("ok.test", mdns.TypeSOA, func(m *mdns.Msg) { m.Opcode = mdns.OpcodeNotify }), "NOTIMP", rules.BadRequest},
		{"DN-11 a response", with("ok.test", mdns.TypeA, func(m *mdns.Msg) { m.Response = true }), "silence", rules.BadRequest},
		{"EDNS version 1", with("ok.test", mdns.TypeA, func(m *mdns.Msg) { m.IsEdns0().SetVersion(1) }), "BADVERS", rules.BadRequest},
	}
	w := newWorld(t, rules.ExplainDenied, nil)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := w.ask(tt.msg)
			if said(got) != tt.want && !(tt.want == "BADVERS" && got.Rcode == mdns.RcodeBadVers) {
				t.Errorf("answer %s, want %s", said(got), tt.want)
			}
			rec := w.only()
			if rec.Kind != audit.Refuse || rec.Reason != string(tt.reason) || rec.Cell != "one" || rec.Listener != "dns" {
				t.Errorf("record %+v, want reason %s", rec, tt.reason)
			}
			if told := strings.ReplaceAll(tt.want, "silence", ""); rec.Answer != told {
				t.Errorf("the record says that %q was answered, want %q", rec.Answer, told)
			}
			for _, r := range rec.Error {
				if r < ' ' || r > '~' && r != '…' {
					t.Errorf("the record holds octet %q: %q", r, rec.Error)
				}
			}
		})
	}
	if got := said(w.ask(query("ok.test", mdns.TypeA))); got != "198.18.0.1" {
		t.Errorf("a plain question: %s", got)
	}
}

// TestRawMessages: DN-11. Octets that are no message are an error or are dropped.
func TestRawMessages(t *testing.T) {
	good, err := query("ok.test", mdns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	edit := func(change func([]byte)) []byte {
		b := append([]byte(nil), good...)
		change(b)
		return b
	}
	tests := []struct {
		name string
		wire []byte
		want string
	}{
		{"empty", nil, "silence"},
		{"one octet", good[:1], "silence"},
		{"half a header", good[:11], "silence"},
		{"header alone", good[:12], "FORMERR"},
		{"cut in the name", good[:16], "FORMERR"},
		{"65535 questions", edit(func(b []byte) { b[4], b[5] = 0xff, 0xff }), "FORMERR"},
		{"pointer to itself", edit(func(b []byte) { b[12], b[13] = 0xc0, 12 }), "FORMERR"},
		{"pointer ahead", edit(func(b []byte) { b[12], b[13] = 0xc0, 0xff }), "FORMERR"},
		{"reserved label type", edit(func(b []byte) { b[12] = 0x80 }), "FORMERR"},
		{"a response that cannot be read", edit(func(b []byte) { b[2] |= 0x80; b[12] = 0x80 }), "silence"},
		{"noise", []byte(strings.Repeat("\x55", 4096)), "FORMERR"},
	}
	w := newWorld(t, rules.ExplainDenied, nil)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := w.raw(one, tt.wire)
			if said(got) != tt.want {
				t.Errorf("answer %s, want %s", said(got), tt.want)
			}
			if rec := w.only(); rec.Kind != audit.Refuse || rec.Reason != string(rules.BadRequest) {
				t.Errorf("record %+v", rec)
			}
		})
	}
	if got := said(w.raw(one, good)); got != "198.18.0.1" {
		t.Errorf("the same whole: %s", got)
	}
}

// TestAnswers: DN-01, DN-04, DN-13. What a name and a type get under both ways
// to answer a denied name.
func TestAnswers(t *testing.T) {
	nodata := map[string]uint16{
		"AAAA": mdns.TypeAAAA, "HTTPS": mdns.TypeHTTPS, "SVCB": mdns.TypeSVCB, "TXT": mdns.TypeTXT, "NULL": mdns.TypeNULL,
		"CNAME": mdns.TypeCNAME, "MX": mdns.TypeMX, "SRV": mdns.TypeSRV, "NAPTR": mdns.TypeNAPTR, "PTR": mdns.TypePTR,
		"CAA": mdns.TypeCAA, "DNSKEY": mdns.TypeDNSKEY, "NS": mdns.TypeNS, "SOA": mdns.TypeSOA, "TYPE65280": 65280,
	}
	const canary = "mfrggzdfmztwq2lknnwg23tpobyxe43u.evil.test"
	for _, denied := range []rules.DeniedNames{rules.ExplainDenied, rules.NameErrorDenied} {
		t.Run(fmt.Sprintf("denied %d", denied), func(t *testing.T) {
			w := newWorld(t, denied, nil)
			check := func(qname string, qtype uint16, want string, reason rules.Reason, code int) {
				t.Helper()
				m := w.ask(query(qname, qtype))
				if said(m) != want || ede(m) != code {
					t.Errorf("%s %s: %s, extended error %d; want %s, %d", qname, mdns.Type(qtype), said(m), ede(m), want, code)
				}
				rec := w.only()
				if rec.Kind != audit.DNS || rec.Reason != string(reason) || rec.Host != qname || rec.QType != mdns.Type(qtype).String() {
					t.Errorf("%s %s: record %+v, want reason %s", qname, mdns.Type(qtype), rec, reason)
				}
				if want != "HINFO" && rec.Answer != want {
					t.Errorf("%s %s: recorded answer %q, sent %q", qname, mdns.Type(qtype), rec.Answer, want)
				}
				if want == "NODATA" || want == "NXDOMAIN" {
					if len(m.Ns) != 1 || m.Ns[0].Header().Rrtype != mdns.TypeSOA {
						t.Errorf("%s %s: no SOA", qname, mdns.Type(qtype))
					}
				}
			}
			check("ok.test", mdns.TypeA, "198.18.0.1", rules.Allowed, -1)
			check("a.wild.test", mdns.TypeA, "198.18.0.2", rules.Allowed, -1)
			check("ok.test", mdns.TypeA, "198.18.0.1", rules.Allowed, -1)
			check("sallyport.internal", mdns.TypeA, "198.18.0.3", rules.Allowed, -1)
			check("ok.test", mdns.TypeANY, "HINFO", rules.TypeNotAllowed, -1)
			for kind, qtype := range nodata {
				code := int(mdns.ExtendedErrorCodeFiltered)
				if kind == "AAAA" || kind == "HTTPS" || kind == "SVCB" || kind == "SRV" {
					code = -1
				}
				check("ok.test", qtype, "NODATA", rules.TypeNotAllowed, code)
			}
			check("_https._tcp.ok.test", mdns.TypeSRV, anyOf(denied, "NODATA", "NXDOMAIN"), rules.TypeNotAllowed,
				anyOf(denied, -1, int(mdns.ExtendedErrorCodeBlocked)))

			if denied == rules.ExplainDenied {
				check(canary, mdns.TypeA, "198.18.0.4", rules.HostNotAllowed, -1)
				check("wild.test", mdns.TypeA, "198.18.0.5", rules.HostNotAllowed, -1)
				check(canary, mdns.TypeTXT, "NODATA", rules.TypeNotAllowed, int(mdns.ExtendedErrorCodeFiltered))
				return
			}
			blocked := int(mdns.ExtendedErrorCodeBlocked)
			check(canary, mdns.TypeA, "NXDOMAIN", rules.HostNotAllowed, blocked)
			check("wild.test", mdns.TypeA, "NXDOMAIN", rules.HostNotAllowed, blocked)
			check(canary, mdns.TypeTXT, "NXDOMAIN", rules.TypeNotAllowed, blocked)
			check(canary, mdns.TypeANY, "NXDOMAIN", rules.TypeNotAllowed, blocked)
		})
	}
}

func anyOf[T any](d rules.DeniedNames, explain, nameError T) T {
	if d == rules.ExplainDenied {
		return explain
	}
	return nameError
}

// TestLongLabelsAreAnswered: DN-01. What a name carries goes nowhere.
func TestLongLabelsAreAnswered(t *testing.T) {
	w := newWorld(t, rules.NameErrorDenied, nil)
	for i := range 100 {
		q := strings.Repeat("x", 60) + fmt.Sprintf("%03d", i) + "." + strings.Repeat("y", 63) + ".evil.test"
		if got := said(w.ask(query(q, mdns.TypeA))); got != "NXDOMAIN" {
			t.Fatalf("answer %s", got)
		}
	}
	if n := len(w.records.take()); n != 100 {
		t.Errorf("%d records", n)
	}
}

// TestNameBudget: DN-02. A cell has a bounded number of names, and its own.
func TestNameBudget(t *testing.T) {
	names, err := dns.NewNames(dns.NamesConfig{Dir: t.TempDir(), PerCell: 300})
	if err != nil {
		t.Fatal(err)
	}
	defer names.Close()
	w := newWorld(t, rules.ExplainDenied, func(c *dns.Config) { c.Names, c.Burst = names, 2000 })
	given := map[string]bool{}
	for i := range 1000 {
		q := fmt.Sprintf("n%d.wild.test", i)
		got, rec := said(w.ask(query(q, mdns.TypeA))), w.only()
		if i < 300 {
			if given[got] || got == "REFUSED" {
				t.Fatalf("%s: %s", q, got)
			}
			given[got] = true
			continue
		}
		if got != "REFUSED" || rec.Reason != string(rules.Limit) {
			t.Fatalf("%s: %s, record %+v", q, got, rec)
		}
	}
	if got := said(w.ask(query("n0.wild.test", mdns.TypeA))); got != "198.18.0.1" {
		t.Errorf("a name that it has: %s", got)
	}
	if got := said(w.askAs(two, query("ok.test", mdns.TypeA))); got != "198.18.0.1" {
		t.Errorf("another cell: %s", got)
	}
}

// TestCaseIsEchoed: DN-12.
func TestCaseIsEchoed(t *testing.T) {
	w := newWorld(t, rules.ExplainDenied, nil)
	first := said(w.ask(query("ok.test", mdns.TypeA)))
	w.records.take()
	for _, q := range []string{"oK.TeSt.", "OK.TEST.", "Ok.test."} {
		m := w.ask(query(q, mdns.TypeA))
		if said(m) != first || m.Question[0].Name != q || m.Answer[0].Header().Name != q {
			t.Errorf("%s: %v", q, m)
		}
		if rec := w.only(); rec.Host != "ok.test" {
			t.Errorf("recorded as %q", rec.Host)
		}
	}
}

// TestFixedTTL: DN-21.
func TestFixedTTL(t *testing.T) {
	w := newWorld(t, rules.ExplainDenied, func(c *dns.Config) { c.TTL = 17 * time.Second })
	for _, qtype := range []uint16{mdns.TypeA, mdns.TypeAAAA} {
		m := w.ask(query("ok.test", qtype))
		for _, rr := range append(m.Answer, m.Ns...) {
			if rr.Header().Ttl != 17 {
				t.Errorf("TTL %d of %v", rr.Header().Ttl, rr)
			}
		}
	}
}

// NW-22: whoever is no cell gets no name, and one record says why. The twin is a cell.
func TestUnknownSourceRefused(t *testing.T) {
	w := newWorld(t, rules.ExplainDenied, nil)
	for _, src := range []netip.AddrPort{nowhere, netip.MustParseAddrPort("[::ffff:10.77.0.99]:1"), {}} {
		if got := said(w.askAs(src, query("ok.test", mdns.TypeA))); got != "REFUSED" {
			t.Errorf("%v: %s", src, got)
		}
		if rec := w.only(); rec.Reason != string(rules.UnknownCell) || rec.Kind != audit.Refuse {
			t.Errorf("%v: record %+v", src, rec)
		}
	}
	// A socket of both families shows the same sandbox as a mapped address.
	if got := said(w.askAs(netip.AddrPortFrom(netip.AddrFrom16(one.Addr().As16()), 1), query("ok.test", mdns.TypeA))); got != "198.18.0.1" {
		t.Errorf("a cell by its mapped address: %s", got)
	}
}

// TestUnrecordedIsUnanswered: what cannot be written down is not said.
func TestUnrecordedIsUnanswered(t *testing.T) {
	w := newWorld(t, rules.ExplainDenied, nil)
	w.records.breakWith(errFull)
	if got := said(w.ask(query("ok.test", mdns.TypeA))); got != "SERVFAIL" {
		t.Errorf("answer %s", got)
	}
	w.records.breakWith(nil)
	if got := said(w.ask(query("ok.test", mdns.TypeA))); got != "198.18.0.1" {
		t.Errorf("afterwards: %s", got)
	}
}

// TestUnkeptIsUnanswered: an address that would be forgotten is not given out.
func TestUnkeptIsUnanswered(t *testing.T) {
	w := newWorld(t, rules.ExplainDenied, nil)
	if got := said(w.ask(query("ok.test", mdns.TypeA))); got != "198.18.0.1" {
		t.Fatalf("answer %s", got)
	}
	_ = w.names.Close()
	if got := said(w.ask(query("new.wild.test", mdns.TypeA))); got != "REFUSED" && got != "SERVFAIL" {
		t.Errorf("answer %s", got)
	}
}

// TestPanicCostsOneQuery.
func TestPanicCostsOneQuery(t *testing.T) {
	w := newWorld(t, rules.ExplainDenied, func(c *dns.Config) {
		c.Gate = panicGate{c.Gate}
	})
	if got := w.ask(query("boom.test", mdns.TypeA)); got != nil {
		t.Errorf("answer %v", got)
	}
	if rec := w.only(); rec.Kind != audit.Refuse {
		t.Errorf("record %+v", rec)
	}
	if got := said(w.ask(query("ok.test", mdns.TypeA))); got != "198.18.0.1" {
		t.Errorf("afterwards: %s", got)
	}
}

// TestRepliesFit: a reply is never larger than the client takes, and never
// much larger than the query: nothing to amplify with.
func TestRepliesFit(t *testing.T) {
	w := newWorld(t, rules.NameErrorDenied, nil)
	long := strings.Repeat(strings.Repeat("a", 49)+".", 4) + "evil.test."
	for _, size := range []uint16{0, 100, 512, 1232, 65535} {
		for _, qtype := range []uint16{mdns.TypeA, mdns.TypeTXT, mdns.TypeANY} {
			m := new(mdns.Msg)
			m.SetQuestion(long, qtype)
			if size > 0 {
				m.SetEdns0(size, true)
			}
			wire, err := m.Pack()
			if err != nil {
				t.Fatal(err)
			}
			out := w.Handle(t.Context(), wire, one, true, nil)
			if len(out) == 0 || len(out) > 512 || len(out) > len(wire)+200 {
				t.Errorf("size %d, %s: %d octets for %d", size, mdns.Type(qtype), len(out), len(wire))
			}
			r := new(mdns.Msg)
			if err := r.Unpack(out); err != nil || (r.IsEdns0() != nil) != (size > 0) {
				t.Errorf("size %d: EDNS %v, %v", size, r.IsEdns0(), err)
			}
		}
	}
}

// TestRate: DN-19. A flood is dropped and recorded once a second; the
// neighbour does not feel it.
func TestRate(t *testing.T) {
	w := newWorld(t, rules.ExplainDenied, func(c *dns.Config) { c.Rate, c.Burst = 10, 20 })
	answered := 0
	for i := range 1000 {
		if w.ask(query(fmt.Sprintf("n%d.evil.test", i), mdns.TypeA)) != nil {
			answered++
		}
	}
	recs := w.records.take()
	if answered != 20 || len(recs) != 21 {
		t.Errorf("%d answers, %d records", answered, len(recs))
	}
	if last := recs[len(recs)-1]; last.Reason != string(rules.Limit) || last.Kind != audit.Refuse {
		t.Errorf("record %+v", last)
	}
	if got := said(w.askAs(two, query("ok.test", mdns.TypeA))); got != "198.18.0.1" {
		t.Errorf("the neighbour: %s", got)
	}
	w.records.take()
	w.clock.advance(time.Second)
	answered = 0
	for range 100 {
		if w.ask(query("ok.test", mdns.TypeA)) != nil {
			answered++
		}
	}
	recs = w.records.take()
	if answered != 10 || len(recs) != 11 || !strings.Contains(recs[10].Error, "980 queries") {
		t.Errorf("a second later: %d answers, %d records, %q", answered, len(recs), recs[len(recs)-1].Error)
	}
	// Sources that are no cell share one bucket.
	answered = 0
	for i := range 100 {
		src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 78, 0, byte(i)}), 5)
		if w.askAs(src, query("ok.test", mdns.TypeA)) != nil {
			answered++
		}
	}
	if answered != 20 {
		t.Errorf("%d answers to strangers", answered)
	}
}
