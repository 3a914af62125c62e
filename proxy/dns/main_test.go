package dns_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"sallyport/audit"
	"sallyport/proxy/dns"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
	"sallyport/test/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

var (
	one     = netip.MustParseAddrPort("10.77.0.2:5353") // the sandbox of cell "one"
	two     = netip.MustParseAddrPort("10.77.0.18:5353")
	nowhere = netip.MustParseAddrPort("10.77.0.99:5353")
)

// world is a server with two cells, and what it recorded.
type world struct {
	*dns.Server
	t        *testing.T
	gate     *gate.Gate
	names    *dns.Names
	records  *recorder
	resolver *lab.Resolver
	clock    *clock
}

type recorder struct {
	mu   sync.Mutex
	all  []audit.Record
	fail error

	together int // most records in one AppendAll
}

func (r *recorder) Append(_ context.Context, rec *audit.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return r.fail
	}
	r.all = append(r.all, *rec)
	return nil
}

// take returns what was recorded since the last call.
func (r *recorder) take() []audit.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.all
	r.all = nil
	return out
}

func (r *recorder) breakWith(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// newWorld makes a world whose policy allows ok.test and what is below
// wild.test. denied says how it answers other names; change, if not nil,
// alters the server's configuration.
func newWorld(t *testing.T, denied rules.DeniedNames, change func(*dns.Config)) *world {
	t.Helper()
	return newWorldOf(t, func(s *rules.Source) { s.Denied = denied }, change)
}

// newWorldOf makes such a world whose policy of may alter.
func newWorldOf(t *testing.T, of func(*rules.Source), change func(*dns.Config)) *world {
	t.Helper()
	w := &world{t: t, records: &recorder{}, clock: &clock{now: time.Unix(1_800_000_000, 0)}}
	host := func(s string, wild bool) rules.HostPattern {
		return rules.HostPattern{Host: target.HostOf(name(t, s)), Wildcard: wild}
	}
	src := rules.Source{Name: "test", Digest: "sha256:test", Rules: []rules.Rule{{
		ID: "ok", Where: "p.yaml:1", Action: rules.AllowAction, Ports: []uint16{443},
		Hosts: []rules.HostPattern{host("ok.test", false), host("wild.test", true)},
	}}}
	of(&src)
	p, err := rules.Compile(src)
	if err != nil {
		t.Fatal(err)
	}
	cells := map[netip.Addr]string{one.Addr(): "one", two.Addr(): "two"}
	g, err := gate.New(gate.Config{
		Identity: func(c string) (gate.Identity, bool) {
			return gate.Identity{Cell: c, Run: "run-" + c, Policy: p}, c == "one" || c == "two"
		},
		Recorder: w.records, Now: w.clock.read, Hash: func(string) string { return "h" },
	})
	if err != nil {
		t.Fatal(err)
	}
	w.gate = g
	if w.names, err = dns.NewNames(dns.NamesConfig{Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.names.Close() })
	// Where a query would go if one were ever sent.
	if w.resolver, err = lab.StartResolver(netip.AddrPortFrom(lab.ResolverAddr, 53)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if q := w.resolver.Queries(); len(q) > 0 {
			t.Errorf("upstream was asked %v", q)
		}
		_ = w.resolver.Close()
	})
	cfg := dns.Config{
		Gate:   g,
		CellOf: func(a netip.Addr) (string, bool) { c, ok := cells[a]; return c, ok },
		Names:  w.names, Now: w.clock.read, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	if w.Server, err = dns.New(cfg); err != nil {
		t.Fatal(err)
	}
	return w
}

func name(t testing.TB, s string) target.Name {
	t.Helper()
	n, err := target.ParseName(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// query makes a message with EDNS.
func query(qname string, qtype uint16) *mdns.Msg {
	m := new(mdns.Msg)
	m.SetQuestion(mdns.Fqdn(qname), qtype)
	m.SetEdns0(1232, false)
	return m
}

// ask hands a query of cell "one" to the server, by UDP; nil is no answer.
func (w *world) ask(m *mdns.Msg) *mdns.Msg { return w.askAs(one, m) }

func (w *world) askAs(client netip.AddrPort, m *mdns.Msg) *mdns.Msg {
	w.t.Helper()
	wire, err := m.Pack()
	if err != nil {
		w.t.Fatal(err)
	}
	return w.raw(client, wire)
}

func (w *world) raw(client netip.AddrPort, wire []byte) *mdns.Msg {
	w.t.Helper()
	out := w.Handle(w.t.Context(), wire, client, true, make([]byte, 1232))
	if out == nil {
		return nil
	}
	m := new(mdns.Msg)
	if err := m.Unpack(out); err != nil {
		w.t.Fatalf("the reply cannot be read: %v", err)
	}
	return m
}

// only returns the one record that was written since the last look.
func (w *world) only() audit.Record {
	w.t.Helper()
	recs := w.records.take()
	if len(recs) != 1 {
		w.t.Fatalf("%d records, want 1: %+v", len(recs), recs)
	}
	return recs[0]
}

// said returns an answer in one word: the response code, or the address.
func said(m *mdns.Msg) string {
	switch {
	case m == nil:
		return "silence"
	case m.Rcode != mdns.RcodeSuccess:
		return mdns.RcodeToString[m.Rcode]
	case len(m.Answer) == 0:
		return "NODATA"
	}
	var out []string
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *mdns.A:
			out = append(out, rr.A.String())
		default:
			out = append(out, mdns.TypeToString[rr.Header().Rrtype])
		}
	}
	return strings.Join(out, ",")
}

// ede returns the code of an extended error, -1 for none.
func ede(m *mdns.Msg) int {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*mdns.EDNS0_EDE); ok {
				return int(e.InfoCode)
			}
		}
	}
	return -1
}

var errFull = errors.New("no space left")
