package dns_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	mdns "github.com/miekg/dns"

	"sallyport/audit"
	"sallyport/proxy/dial"
	"sallyport/proxy/dns"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/test/lab"
)

// newLookupWorld makes a world whose policy has some names looked up, by the
// real way out.
func newLookupWorld(t *testing.T, find func(context.Context, gate.Pass) ([]mdns.RR, error)) *world {
	t.Helper()
	var d *dial.Dialer
	w := newWorldOf(t, func(s *rules.Source) {
		for _, l := range []string{"TXT ok.test", "AAAA ok.test", "MX ok.test", "CNAME ok.test", "CAA ok.test", "SRV _https._tcp.ok.test", "TXT many.wild.test", "TXT other.test"} {
			kind, of, _ := strings.Cut(l, " ")
			s.Lookups = append(s.Lookups, rules.Lookup{Name: name(t, of), Type: mdns.StringToType[kind]})
		}
	}, func(c *dns.Config) {
		if c.LookUp = find; find == nil {
			c.LookUp = func(ctx context.Context, p gate.Pass) ([]mdns.RR, error) { return d.LookUp(ctx, p) }
		}
	})
	var err error
	d, err = dial.New(dial.Config{Vet: w.gate.Vet, Now: w.clock.read, Resolvers: []dial.Resolver{{Addr: w.resolver.Addr}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close(); w.resolver.Reset() })
	return w
}

// asked returns what the upstream resolver was asked, and forgets it.
func (w *world) asked() (list []string) {
	for _, q := range w.resolver.Queries() {
		list = append(list, q.Type+" "+q.Name)
	}
	return list
}

// data returns the records of a reply without their owner and time to live.
func data(m *mdns.Msg) (list []string) {
	for _, rr := range m.Answer {
		list = append(list, strings.Join(strings.Fields(rr.String())[3:], " "))
	}
	return list
}

// TestLookUps: what the policy lists is asked for and answered; the log says so
// before it is asked, and afterwards what was answered.
func TestLookUps(t *testing.T) {
	w := newLookupWorld(t, nil)
	w.resolver.Set("ok.test", `TXT "v=spf1 -all" "two"`, "AAAA 2a00:1450::7", "MX 10 mail.OK.test.", "MX 0 .", `CAA 0 issue "ca.test"`)
	w.resolver.Set("_https._tcp.ok.test", "SRV 1 2 443 ok.test.")
	tests := []struct {
		name  string
		qtype uint16
		want  []string
	}{
		{"OK.test", mdns.TypeTXT, []string{`TXT "v=spf1 -all" "two"`}},
		{"ok.test", mdns.TypeAAAA, []string{"AAAA 2a00:1450::7"}},
		{"ok.test", mdns.TypeMX, []string{"MX 10 mail.ok.test.", "MX 0 ."}},
		{"ok.test", mdns.TypeCAA, []string{`CAA 0 issue "ca.test"`}},
		{"ok.test", mdns.TypeCNAME, nil},
		{"_https._tcp.ok.test", mdns.TypeSRV, []string{"SRV 1 2 443 ok.test."}},
	}
	for _, tt := range tests {
		kind := mdns.TypeToString[tt.qtype]
		before := len(w.asked())
		got := w.ask(query(tt.name, tt.qtype))
		if diff := cmp.Diff(tt.want, data(got)); diff != "" || got.Rcode != mdns.RcodeSuccess || ede(got) != -1 {
			t.Errorf("%s %s (-want +got):\n%s%v", kind, tt.name, diff, got)
		}
		for _, rr := range got.Answer {
			if h := rr.Header(); h.Name != tt.name+"." || h.Ttl > 30 {
				t.Errorf("%s %s: header %v", kind, tt.name, h)
			}
		}
		if now := w.asked()[before:]; len(now) != 1 || now[0] != kind+" "+strings.ToLower(tt.name)+"." {
			t.Errorf("%s %s: upstream was asked %v", kind, tt.name, now)
		}
		recs := w.records.take()
		if len(recs) != 2 {
			t.Fatalf("records: %+v", recs)
		}
		first, then := recs[0], recs[1]
		if first.Kind != audit.DNS || first.Answer != "look-up" || first.Reason != "allowed" || first.Rule != "ok" || first.QType != kind {
			t.Errorf("%s %s: first record %+v", kind, tt.name, first)
		}
		if then.Kind != audit.Done || then.Ref != first.ID || then.QType != kind || then.Verdict == "deny" {
			t.Errorf("%s %s: closing record %+v", kind, tt.name, then)
		}
		for _, s := range tt.want {
			if _, text, _ := strings.Cut(s, " "); !strings.Contains(then.Answer, text) {
				t.Errorf("%s %s: the log says %q was answered", kind, tt.name, then.Answer)
			}
		}
		// Kept: nothing is asked again.
		if w.ask(query(tt.name, tt.qtype)); len(w.asked()) != before+1 {
			t.Errorf("%s %s: asked again: %v", kind, tt.name, w.asked()[before:])
		}
		w.records.take()
	}
}

// TestWhatIsNotLookedUp: DN-01 DN-02 DN-03. Nothing else goes out, whatever is
// asked for and however it is spelled, and the look-ups are of our making.
func TestWhatIsNotLookedUp(t *testing.T) {
	w := newLookupWorld(t, nil)
	w.resolver.Set("ok.test", `TXT "yes"`, "A 11.7.7.7", "HTTPS 1 . alpn=h2")
	for _, tt := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"aGVsbG8.ok.test", mdns.TypeTXT, "NODATA"},
		{"secret.many.wild.test", mdns.TypeTXT, "NODATA"},
		{"b.wild.test", mdns.TypeTXT, "NODATA"},
		{"ok.test", mdns.TypeHTTPS, "NODATA"},
		{"ok.test", mdns.TypeSRV, "NODATA"},
		{"ok.test", mdns.TypeNS, "NODATA"},
		{"other.test", mdns.TypeTXT, "NODATA"}, // listed, but no rule is about it
		{"ok.test", mdns.TypeA, "198.18.0.1"},
	} {
		if got := said(w.ask(query(tt.name, tt.qtype))); got != tt.want {
			t.Errorf("type %d of %s: %s, want %s", tt.qtype, tt.name, got, tt.want)
		}
		if rec := w.only(); rec.Kind != audit.DNS {
			t.Errorf("type %d of %s: record %+v", tt.qtype, tt.name, rec)
		}
	}
	if got := w.asked(); len(got) > 0 {
		t.Errorf("upstream was asked %v", got)
	}
	// The same question with a payload wherever there is room for one.
	m := query("oK.tEsT", mdns.TypeTXT)
	m.CheckingDisabled, m.AuthenticatedData = true, true
	opt := m.IsEdns0()
	opt.SetDo()
	opt.Option = append(opt.Option, &mdns.EDNS0_LOCAL{Code: 65001, Data: []byte("payload")}, &mdns.EDNS0_NSID{Code: mdns.EDNS0NSID, Nsid: "7061796c6f6164"})
	seen := make(chan *mdns.Msg, 4)
	w.resolver.Script("ok.test", func(_ int, q *mdns.Msg) *mdns.Msg {
		seen <- q.Copy()
		return lab.Reply(q, `@ 60 TXT "yes"`)
	})
	if got := data(w.ask(m)); !slices.Equal(got, []string{`TXT "yes"`}) {
		t.Errorf("answer %v", got)
	}
	q := <-seen
	up := q.IsEdns0()
	if q.Question[0].Name != "ok.test." || q.CheckingDisabled || q.AuthenticatedData || up == nil || up.Do() || len(up.Option) > 0 || len(q.Extra) != 1 || q.Id == m.Id {
		t.Errorf("upstream was sent\n%v", q)
	}
}

// TestBadAnswers: an answer that is refused is refused whole.
func TestBadAnswers(t *testing.T) {
	many := make([]string, 40)
	for i := range many {
		many[i] = fmt.Sprintf(`@ 60 TXT "%d"`, i)
	}
	long := `@ 60 TXT`
	for range 20 {
		long += ` "` + strings.Repeat("x", 250) + `"`
	}
	tests := []struct {
		name    string
		qtype   uint16
		records []string
		want    string
		reason  rules.Reason // of the closing record; "" for allowed
	}{
		{"a private address", mdns.TypeAAAA, []string{"@ 60 AAAA fd00::1"}, "REFUSED", rules.PrivateIP},
		{"one bad of two", mdns.TypeAAAA, []string{"@ 60 AAAA 2a00:1450::7", "@ 60 AAAA ::1"}, "REFUSED", rules.PrivateIP},
		{"IPv4 inside", mdns.TypeAAAA, []string{"@ 60 AAAA ::ffff:169.254.169.254"}, "REFUSED", rules.PrivateIP},
		{"too many", mdns.TypeTXT, many, "SERVFAIL", ""},
		{"too long", mdns.TypeTXT, []string{long}, "SERVFAIL", ""},
		{"a name that is none", mdns.TypeMX, []string{`@ 60 MX 1 a\000b.test.`}, "SERVFAIL", ""},
		{"of another name", mdns.TypeTXT, []string{`evil.test. 60 TXT "x"`}, "NODATA", ""},
		{"good", mdns.TypeTXT, []string{`@ 60 TXT "x"`}, "TXT", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newLookupWorld(t, nil)
			w.resolver.Script("ok.test", func(_ int, q *mdns.Msg) *mdns.Msg { return lab.Reply(q, tt.records...) })
			if got := said(w.ask(query("ok.test", tt.qtype))); got != tt.want {
				t.Errorf("answer %s, want %s", got, tt.want)
			}
			recs := w.records.take()
			if len(recs) != 2 || recs[1].Kind != audit.Done {
				t.Fatalf("records %+v", recs)
			}
			want := "allowed"
			if tt.reason != "" {
				want = string(tt.reason)
			}
			if recs[1].Reason != want || (recs[1].Error == "") != (tt.want == "TXT" || tt.want == "NODATA") {
				t.Errorf("record %+v, want reason %s", recs[1], want)
			}
		})
	}
}

// TestLookUpsAreBounded: DS-01. A cell whose look-ups hang has few of them, and
// neither it nor the others wait for anything else.
func TestLookUpsAreBounded(t *testing.T) {
	release, began := make(chan struct{}), make(chan struct{}, 8)
	w := newLookupWorld(t, func(context.Context, gate.Pass) ([]mdns.RR, error) {
		began <- struct{}{}
		<-release
		return nil, errors.New("nobody answers")
	})
	got := make(chan string, 8)
	for range 4 {
		go func() { got <- said(w.ask(query("ok.test", mdns.TypeTXT))) }()
		<-began
	}
	if s := said(w.ask(query("ok.test", mdns.TypeTXT))); s != "REFUSED" {
		t.Errorf("a fifth at once: %s", s)
	}
	if s := said(w.ask(query("ok.test", mdns.TypeA))); s != "198.18.0.1" {
		t.Errorf("A meanwhile: %s", s)
	}
	go func() { got <- said(w.askAs(two, query("ok.test", mdns.TypeTXT))) }()
	<-began // another cell has its own
	close(release)
	for range 5 {
		if s := <-got; s != "SERVFAIL" {
			t.Errorf("a look-up that fails: %s", s)
		}
	}
}

// TestPanicInALookUpIsItsOutcome: one record of the query and one of its end, whether it was
// read alone or with others.
func TestPanicInALookUpIsItsOutcome(t *testing.T) {
	w := newLookupWorld(t, func(context.Context, gate.Pass) ([]mdns.RR, error) { panic("boom") })
	for range 9 { // more than a cell may have at once
		if got := said(w.ask(query("ok.test", mdns.TypeTXT))); got != "SERVFAIL" {
			t.Errorf("answer %s", got)
		}
		recs := w.records.take()
		if len(recs) != 2 || recs[0].Kind != audit.DNS || recs[1].Kind != audit.Done || recs[1].Ref != recs[0].ID || recs[1].Error == "" {
			t.Errorf("records %+v", recs)
		}
	}
}

// TestNoLookUpWithoutARecord: what cannot be recorded is not asked for, and what
// was found is not answered.
func TestNoLookUpWithoutARecord(t *testing.T) {
	w := newLookupWorld(t, nil)
	w.resolver.Set("ok.test", `TXT "x"`)
	w.records.breakWith(errFull)
	if got := said(w.ask(query("ok.test", mdns.TypeTXT))); got != "SERVFAIL" || len(w.asked()) > 0 {
		t.Errorf("answer %s, asked %v", got, w.asked())
	}
	w.records.breakWith(nil)
	w.resolver.Script("ok.test", func(_ int, q *mdns.Msg) *mdns.Msg {
		w.records.breakWith(errFull)
		return lab.Reply(q, `@ 60 TXT "x"`)
	})
	if got := said(w.ask(query("ok.test", mdns.TypeTXT))); got != "SERVFAIL" {
		t.Errorf("answer %s", got)
	}
	w.records.breakWith(nil)
	if got := said(w.ask(query("ok.test", mdns.TypeTXT))); got != "TXT" {
		t.Errorf("then: %s", got)
	}
}

// TestPassesOfLookUps: one is for its own look-up alone, and no other pass is
// for one.
func TestPassesOfLookUps(t *testing.T) {
	var kept gate.Pass
	w := newLookupWorld(t, func(_ context.Context, p gate.Pass) ([]mdns.RR, error) { kept = p; return nil, nil })
	d, err := dial.New(dial.Config{Vet: w.gate.Vet, Now: w.clock.read, Resolvers: []dial.Resolver{{Addr: w.resolver.Addr}}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for what, p := range map[string]gate.Pass{"no pass": {}, "one that is closed": kept} {
		if list, err := d.LookUp(t.Context(), p); !errors.Is(err, dial.ErrNoPass) || list != nil {
			t.Errorf("%s: %v, %v", what, list, err)
		}
	}
	w.ask(query("ok.test", mdns.TypeTXT))
	if kept.LooksUp() || kept.Dialable() {
		t.Error("a pass is good after its answer")
	}
	open, err := w.gate.Answer(t.Context(), kept.Request(), "TXT", func(rules.Decision) string { return "" })
	if err != nil || !open.LooksUp() || open.Dialable() {
		t.Fatalf("an open pass: looks up %v, dialable %v, %v", open.LooksUp(), open.Dialable(), err)
	}
	if c, err := d.Dial(t.Context(), open); !errors.Is(err, dial.ErrNoPass) {
		t.Errorf("dialled with: %v, %v", c, err)
	}
	if err := w.gate.Vet(t.Context(), open, netip.MustParseAddr("fd00::1")); err == nil {
		t.Error("a private address is vetted")
	}
	if err := open.Done(t.Context(), gate.Outcome{}); err != nil {
		t.Fatal(err)
	}
	if got := w.asked(); len(got) > 0 {
		t.Errorf("upstream was asked %v", got)
	}
}
