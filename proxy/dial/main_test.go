package dial_test

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/proxy/dial"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
	"sallyport/test/lab"
)

// The tests need addresses that look public and a network that leads nowhere.
func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

var (
	okAddr   = netip.MustParseAddr("11.7.7.7")
	evilAddr = netip.MustParseAddr("11.7.7.66")
	corpAddr = netip.MustParseAddr("10.77.0.5")
	loopback = netip.MustParseAddr("127.0.0.1")
)

// world is a gate with a policy, a resolver, and a dialler between them.
type world struct {
	cfg dial.Config
	*dial.Dialer
	t        *testing.T
	gate     *gate.Gate
	resolver *lab.Resolver
	ca       *lab.CA
	clock    *clock
	ids      map[string]gate.Identity
}

type clock struct {
	mu  sync.Mutex
	off time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.off)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off += d
}

type discard struct{}

func (discard) Append(context.Context, *audit.Record) error { return nil }

// newWorld makes a world. rs are the rules of cell "c1"; change, if not nil,
// alters the dialler's configuration.
func newWorld(t *testing.T, rs []rules.Rule, change func(*dial.Config)) *world {
	t.Helper()
	ca, err := lab.NewCA("test")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, ca: ca, clock: &clock{}, ids: map[string]gate.Identity{}}
	w.ids["c1"] = gate.Identity{Cell: "c1", Run: "r1", Policy: policy(t, "sha256:one", rs)}
	w.gate, err = gate.New(gate.Config{
		Identity: func(c string) (gate.Identity, bool) { id, ok := w.ids[c]; return id, ok },
		Recorder: discard{}, Now: w.clock.now, Hash: func(string) string { return "h" },
	})
	if err != nil {
		t.Fatal(err)
	}
	if w.resolver, err = lab.StartResolver(netip.AddrPortFrom(lab.ResolverAddr, 0)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.resolver.Close() })
	cfg := dial.Config{
		Vet: w.gate.Vet, Now: w.clock.now, Resolvers: []dial.Resolver{{Addr: w.resolver.Addr}}, Roots: ca.Pool(),
		Timeouts: dial.Timeouts{Resolve: 5 * time.Second, Connect: 5 * time.Second, TLS: 5 * time.Second},
	}
	w.cfg = cfg
	if change == nil {
		change = func(*dial.Config) {}
	}
	w.again(change)
	return w
}

// again replaces the dialler by one with an altered configuration.
func (w *world) again(change func(*dial.Config)) {
	w.t.Helper()
	cfg := w.cfg
	change(&cfg)
	d, err := dial.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Dialer = d
	w.t.Cleanup(d.Close)
}

func policy(t *testing.T, digest string, rs []rules.Rule) *rules.Policy {
	t.Helper()
	p, err := rules.Compile(rules.Source{Name: "test", Digest: digest, Rules: rs})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// allow makes a rule that allows every method of hosts ("*." is a wildcard) on
// every port the tests use.
func allow(id string, change func(*rules.Rule), hosts ...string) rules.Rule {
	r := rules.Rule{ID: id, Where: "test.yaml:1", Action: rules.AllowAction, Ports: []uint16{80, 443, 5432, 8443}}
	for _, h := range hosts {
		rest, wild := strings.CutPrefix(h, "*.")
		host, err := target.ParseHost(rest)
		if err != nil {
			panic(err)
		}
		r.Hosts = append(r.Hosts, rules.HostPattern{Host: host, Wildcard: wild})
	}
	if change != nil {
		change(&r)
	}
	return r
}

func raw(r *rules.Rule) { r.Raw = true }

func opening(prefixes ...string) func(*rules.Rule) {
	return func(r *rules.Rule) {
		for _, p := range prefixes {
			r.Private = append(r.Private, netip.MustParsePrefix(p))
		}
	}
}

// ok is the rule that most tests have.
var ok = []rules.Rule{allow("ok", nil, "ok.test", "*.wild.test")}

// okRaw is the same for streams.
var okRaw = []rules.Rule{allow("ok", raw, "ok.test", "*.wild.test")}

// fetch admits a request of cell c1.
func (w *world) fetch(method, rawURL string) gate.Pass { return w.fetchAs("c1", method, rawURL) }

func (w *world) fetchAs(cell, method, rawURL string) gate.Pass {
	w.t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		w.t.Fatal(err)
	}
	port := uint16(80)
	if u.Scheme == "https" {
		port = 443
	}
	end, err := target.ParseAuthority(u.Host, port)
	if err != nil {
		w.t.Fatal(err)
	}
	path, err := target.ParsePath(u.EscapedPath())
	if err != nil {
		w.t.Fatal(err)
	}
	p, err := w.gate.Admit(w.t.Context(), rules.Request{
		Question: rules.Fetch, Cell: cell, Endpoint: end, Secure: u.Scheme == "https",
		Method: method, Path: path, Query: u.RawQuery,
	})
	if err != nil {
		w.t.Fatalf("admitting %s %s: %v", method, rawURL, err)
	}
	return p
}

// tunnel admits a stream of cell c1.
func (w *world) tunnel(authority string) gate.Pass {
	w.t.Helper()
	end, err := target.ParseAuthority(authority, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	p, err := w.gate.Admit(w.t.Context(), rules.Request{Question: rules.Connect, Cell: "c1", Endpoint: end})
	if err != nil {
		w.t.Fatalf("admitting a stream to %s: %v", authority, err)
	}
	return p
}

// get forwards a GET, and closes its pass when the test ends.
func (w *world) get(rawURL string) (*http.Response, error) {
	w.t.Helper()
	return w.do("GET", rawURL, nil)
}

func (w *world) do(method, rawURL string, change func(*http.Request)) (*http.Response, error) {
	w.t.Helper()
	p := w.fetch(method, rawURL)
	w.t.Cleanup(func() { _ = p.Done(context.Background(), gate.Outcome{}) })
	return w.forward(p, change)
}

func (w *world) forward(p gate.Pass, change func(*http.Request)) (*http.Response, error) {
	w.t.Helper()
	// Whatever stands in the request's own URL and Host must not matter.
	req, err := http.NewRequestWithContext(w.t.Context(), p.Request().Method, "http://evil.test:9/other?x=1", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Host = "evil.test"
	if change != nil {
		change(req)
	}
	resp, err := w.Forward(req.Context(), p, req)
	if err == nil {
		b := resp.Body // a WebSocket client takes it away
		w.t.Cleanup(func() { _ = b.Close() })
	}
	return resp, err
}

// site starts HTTP and HTTPS for a name on one address, and clears it away.
func (w *world) site(name string, addr netip.Addr, h http.HandlerFunc) *lab.Site {
	w.t.Helper()
	s := lab.NewSite(name, addr)
	w.t.Cleanup(func() { _ = s.Close() })
	if h == nil {
		h = func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(name)) }
	}
	if err := errors.Join(s.ServeTLS(w.ca, 443, h), s.ServePlain(80, h)); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// reason returns why an error refuses, "" if it is no refusal.
func reason(err error) rules.Reason {
	if d, ok := errors.AsType[*gate.DeniedError](err); ok {
		return d.Reason
	}
	return ""
}

// status returns what an error says in a Proxy-Status header.
func status(err error) string {
	var s interface{ ProxyStatus() string }
	if errors.As(err, &s) {
		return s.ProxyStatus()
	}
	return ""
}

func untouched(t *testing.T, sites ...*lab.Site) {
	t.Helper()
	for _, s := range sites {
		if err := s.Untouched(); err != nil {
			t.Error(err)
		}
	}
}
