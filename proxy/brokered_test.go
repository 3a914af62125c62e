package proxy_test

import (
	"context"
	"crypto/tls"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"sallyport/broker"
	"sallyport/control"
	"sallyport/proxy"
	"sallyport/proxy/dial"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/live"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// brokered is a lab in which nothing about credentials is a fake: a broker behind its
// socket, its client, the door out, and origins that speak HTTP/1.1 (one.test) and
// HTTP/2 (two.test).
type brokered struct {
	*lab
	client  *broker.Client
	ledger  *ledger
	stands  map[string]string // placeholders, by credential
	secrets map[string]string
	socket  string
	policy  *rules.Policy
}

// kept are the credentials of the lab: type and settings, secret, path of its rule.
var kept = []struct{ name, doc, secret, path string }{
	{"bearer", "type: bearer", "sk_test_4eC39HqLyjWDarjtT1zdp7dcREAL", "/bearer"},
	{"header", "type: header\nheader: {name: X-Api-Key}", "0123456789abcdef0123456789abcdef", "/header"},
	{"basic", "type: basic\nbasic: {username: x}", "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "/basic"},
	{"query", "type: query\nquery: {param: key}", "AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY", "/query"},
	{"body", "type: body\nbody: {json: [token, auth.keys], form: [token], multipart: [token]}", "xapp-1-A0123456789-abcdefghijREAL", "/body"},
	{"socket", "type: body\nbody: {websocket: [token]}", "rt_9f8e7d6c5b4a39281706f5e4d3c2b1a0", "/socket"},
	{"proto", "type: header\nheader: {name: Sec-WebSocket-Protocol, prefix: key.}", "pk_live_0a1b2c3d4e5f6a7b8c9dREAL", "/proto"},
}

var originHosts = []string{"one.test", "two.test"}

func newBrokered(t *testing.T) *brokered {
	t.Helper()
	b := &brokered{ledger: &ledger{saw: map[string]string{}}, stands: map[string]string{}, secrets: map[string]string{}}
	docs := b.documents(t)
	b.socket = startBroker(t, docs)
	b.client = broker.NewClient(b.socket)
	t.Cleanup(b.client.Close)
	b.grant(t)
	var err error
	hosts := map[target.Name][]netip.Addr{}
	b.lab = newLab(t, func(c *proxy.Config) { b.wire(t, c, hosts) })
	for i, name := range append(append(slices.Clone(originHosts), callsHost), b.names()...) {
		n, err := target.ParseName(name)
		must(t, err)
		addr := netip.AddrFrom4([4]byte{127, 78, 0, byte(i + 1)})
		hosts[n] = []netip.Addr{addr}
		b.serveAt(addr, name, name != "one.test")
	}
	b.policy, err = policyfile.ParsePolicy("lab.yaml", []byte(brokeredPolicy()), docs)
	must(t, err)
	must(t, b.table.Attach(live.Cell{Identity: gate.Identity{Cell: cellID, Run: "run1", Policy: b.policy}, Addr: netip.MustParseAddr("127.0.0.1")}))
	return b
}

// names are hosts below wild.test (inspected) and open.test (carried as it is): with a
// placeholder as a label, and their twins.
func (b *brokered) names() []string {
	var out []string
	for _, text := range []string{b.stands["header"], innocent(b.stands["header"])} {
		for _, write := range hostSpellings {
			out = append(out, write(text)+".wild.test", write(text)+".open.test")
		}
	}
	return out
}

// hostSpellings are what the name of a host can hold a text as.
var hostSpellings = []func(string) string{
	func(s string) string { return s },
	func(s string) string { return s[:7] + "." + s[7:20] + "." + s[20:] },
	func(s string) string { h := hex.EncodeToString([]byte(s)); return h[:33] + "." + h[33:] },
	func(s string) string { return strings.ToLower(base64.RawURLEncoding.EncodeToString([]byte("a" + s))) },
	func(s string) string {
		return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString([]byte("ab" + s)))
	},
}

// innocent is a text of the shape of a placeholder that is nobody's.
func innocent(placeholder string) string {
	b := []byte(placeholder)
	slices.Reverse(b[len(b)-12:])
	b[len(b)-20], b[len(b)-21] = b[len(b)-21], b[len(b)-20]
	return string(b)
}

func brokeredPolicy() string {
	p := "apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: lab, owner: test, description: placeholders in every place}\nrules:\n"
	for _, h := range originHosts {
		id := strings.TrimSuffix(h, ".test")
		for _, c := range kept {
			p += fmt.Sprintf("  - id: %s-%s\n    reason: test\n    allow: {host: %s, ports: [80, 443], paths: [%s], access: write, cidrs: [127.0.0.0/8]}\n    credential: %s\n", id, c.name, h, c.path, c.name)
		}
		p += fmt.Sprintf("  - id: %s-free\n    reason: test\n    allow: {host: %s, ports: [80, 443], paths: [\"/free/**\"], access: write, cidrs: [127.0.0.0/8]}\n", id, h)
	}
	for _, c := range []struct{ service, credential string }{{"free", ""}, {"key", "\n    credential: header"}} {
		p += fmt.Sprintf("  - id: calls-%[1]s\n    reason: test\n    allow: {host: %[2]s, ports: [443], paths: [/%[1]s.Service/*], access: write, cidrs: [127.0.0.0/8]}%[3]s\n", c.service, callsHost, c.credential)
	}
	return p + `  - id: wild
    reason: test
    allow: {host: "*.wild.test", ports: [80, 443], access: write, cidrs: [127.0.0.0/8]}
  - id: open
    reason: test
    tls: passthrough
    allow: {host: "*.open.test", ports: [443], cidrs: [127.0.0.0/8]}
`
}

func (b *brokered) documents(t *testing.T) (docs []policyfile.Credential) {
	t.Helper()
	for _, c := range kept {
		file := filepath.Join(t.TempDir(), c.name)
		must(t, os.WriteFile(file, []byte(c.secret), 0o600))
		text := fmt.Sprintf("apiVersion: sallyport/v1\nkind: Credential\nmetadata: {name: %s}\n%s\nsource: {file: %s}\nendpoints:\n", c.name, c.doc, file)
		for _, h := range originHosts {
			text += fmt.Sprintf("  - {host: %s, ports: [80, 443], paths: [%s]}\n", h, c.path)
		}
		if c.name == "header" {
			text += "  - {host: " + callsHost + ", paths: [/key.Service/*]}\n"
		}
		doc, err := policyfile.ParseCredential(c.name+".yaml", []byte(text))
		must(t, err)
		docs = append(docs, *doc)
		b.secrets[c.name] = c.secret
	}
	return docs
}

// startBroker serves a broker and returns its socket.
func startBroker(t *testing.T, docs []policyfile.Credential) string {
	t.Helper()
	uid := uint32(os.Getuid())
	s, err := broker.NewServer(broker.Config{
		Credentials: docs, GatewayUID: uid, AdminUID: uid, UID: uid, User: "root", Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	socket := filepath.Join(t.TempDir(), "broker.sock")
	ln, err := net.Listen("unix", socket)
	must(t, err)
	srv, done := control.NewServer(s.Handler()), make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	t.Cleanup(func() {
		must(t, srv.Close())
		<-done
	})
	return socket
}

// grant grants the run every credential.
func (b *brokered) grant(t *testing.T) {
	t.Helper()
	admin := control.NewClient(b.socket)
	defer admin.Close()
	var names []string
	for _, c := range kept {
		names = append(names, c.name)
	}
	var out broker.Grants
	must(t, admin.Call(t.Context(), "/v1/grants", broker.GrantRequest{Cell: cellID, Run: "run1", Credentials: names}, &out))
	for _, g := range out.Grants {
		b.stands[g.Credential] = g.Placeholder
	}
	b.client.Attach(control.CellFile{Cell: cellID, Run: "run1", Grants: out.Grants})
}

// secondCell attaches another cell, at 127.0.0.2, and returns what it has for the bearer
// token.
func (b *brokered) secondCell(t *testing.T) string {
	t.Helper()
	admin := control.NewClient(b.socket)
	defer admin.Close()
	var out broker.Grants
	must(t, admin.Call(t.Context(), "/v1/grants", broker.GrantRequest{Cell: "cell0002", Run: "run2", Credentials: []string{"bearer"}}, &out))
	b.client.Attach(control.CellFile{Cell: "cell0002", Run: "run2", Grants: out.Grants})
	must(t, b.table.Attach(live.Cell{Identity: gate.Identity{Cell: "cell0002", Run: "run2", Policy: b.policy}, Addr: netip.MustParseAddr("127.0.0.2")}))
	return out.Grants[0].Placeholder
}

// wire puts the broker's client and the door out into a proxy as the product does.
func (b *brokered) wire(t *testing.T, c *proxy.Config, hosts map[target.Name][]netip.Addr) {
	b.client.Used = c.Gate.Used
	c.Find, c.FindName, c.Inject = b.client.Find, b.client.FindName, b.client.Inject
	door := sync.OnceValues(func() (*dial.Dialer, error) { // hosts are known by the first request
		d, err := dial.New(dial.Config{Vet: c.Gate.Vet, Now: time.Now, Hosts: hosts, Roots: b.origin.pool, Params: b.client.Params})
		if err == nil {
			t.Cleanup(d.Close)
		}
		return d, err
	})
	c.Dial = func(ctx context.Context, p gate.Pass) (net.Conn, error) {
		d, err := door()
		if err != nil {
			return nil, err
		}
		return d.Dial(ctx, p)
	}
	c.Forward = func(ctx context.Context, p gate.Pass, r *http.Request) (*http.Response, error) {
		if resp, err := b.client.Answer(ctx, p, r); resp != nil || err != nil {
			return resp, err
		}
		d, err := door()
		if err != nil {
			return nil, err
		}
		resp, err := d.Forward(ctx, p, r)
		if err != nil {
			return nil, err
		}
		return resp, b.client.Scrub(p, resp)
	}
}

// serveAt starts an origin on ports 80 and 443 of an address.
func (b *brokered) serveAt(addr netip.Addr, host string, h2 bool) {
	for _, port := range []uint16{80, 443} {
		ln, err := net.Listen("tcp4", netip.AddrPortFrom(addr, port).String())
		must(b.t, err)
		s := &http.Server{Handler: b.ledger, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), Protocols: new(http.Protocols)}
		s.Protocols.SetHTTP1(true)
		s.Protocols.SetHTTP2(h2)
		if port == 443 {
			s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{b.origin.leaf(b.t, host)}}
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if s.TLSConfig != nil {
				_ = s.ServeTLS(ln, "", "")
				return
			}
			_ = s.Serve(ln)
		}()
		b.t.Cleanup(func() {
			_ = b.stop()
			_ = s.Close()
			<-done
		})
	}
}

// ledger is an origin that writes down all that reaches it, by the number that each
// request carries.
type ledger struct {
	mu    sync.Mutex
	saw   map[string]string
	calls http.Handler // of callsHost
}

// callsHost is an origin that a test may give calls of gRPC to.
const callsHost = "calls.test"

const caseField = "X-Case"

func (l *ledger) note(id, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.saw[id] += text
}

func (l *ledger) of(id string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.saw[id]
}

// ServeHTTP implements [http.Handler].
func (l *ledger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Host == callsHost {
		l.calls.ServeHTTP(w, r)
		return
	}
	id := r.Header.Get(caseField)
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s %s\n", r.Proto, r.Method, r.Host, r.RequestURI)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		for _, v := range r.Header[name] {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	if r.Header.Get("Upgrade") != "" {
		l.note(id, b.String())
		l.serveSocket(id, w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	fmt.Fprintf(&b, "\n%s\nend: %v\n", body, err)
	for name, values := range r.Trailer {
		fmt.Fprintf(&b, "%s: %s\n", name, values)
	}
	l.note(id, b.String())
	fmt.Fprint(w, "hello")
}

// serveSocket writes messages down, and answers each with its length.
func (l *ledger) serveSocket(id string, w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{OnPingReceived: func(_ context.Context, p []byte) bool {
		l.note(id, "ping: "+string(p)+"\n")
		return true
	}})
	if err != nil {
		return
	}
	defer func() { _ = c.CloseNow() }()
	for {
		kind, msg, err := c.Read(r.Context())
		if err != nil {
			return
		}
		l.note(id, fmt.Sprintf("%v: %s\n", kind, msg))
		if err := c.Write(r.Context(), kind, fmt.Appendf(nil, "%d", len(msg))); err != nil {
			return
		}
	}
}
