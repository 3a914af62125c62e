package proxy_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/broker"
	"sallyport/control"
	"sallyport/proxy"
	"sallyport/proxy/dial"
	"sallyport/proxy/dns"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/live"
	"sallyport/rules/policyfile"
	testlab "sallyport/test/lab"
)

// keySecret is what the credentials of the cases are.
const keySecret = "real-0123456789abcdefghijklmnopqrstuvwxyz"

// keyWorld is a lab with DNS, a broker, and one origin that has every name.
type keyWorld struct {
	*lab
	saw      *witness
	dns      string
	resolver *testlab.Resolver
	creds    []policyfile.Credential
	broker   *broker.Client
	admin    *control.Client
	gate     *gate.Gate
	runs     int
	nested   func()                // what the origin does while it is asked for /nested
	both     *x509.CertPool        // the gateway's authority and the origin's
	at       map[string]netip.Addr // where names are; 11.7.7.7 if they are not here
}

func newKeyWorld(t *testing.T) *keyWorld {
	t.Helper()
	w := &keyWorld{at: map[string]netip.Addr{"in.test": netip.MustParseAddr("10.20.0.7")}, saw: &witness{}}
	w.saw.next = w.serve
	w.startBroker(t)
	w.lab = newLab(t, func(c *proxy.Config) {
		w.gate = c.Gate
		c.Find, c.Inject = w.broker.Find, w.broker.Inject
		c.Dial, c.Forward = w.vetted(c.Dial, c.Forward)
		c.Keep = func(p gate.Pass, _ *http.Request) proxy.Keeper { return keptLevel(keptLevels[p.Decision().Log]) }
	})
	w.broker.Used = w.gate.Used
	w.both = w.roots.Clone()
	w.both.AddCert(w.origin.cert)
	w.startOrigin(t)
	w.startDNS(t)
	return w
}

// keptLevels are the levels at which something is kept.
var keptLevels = map[rules.LogLevel]string{rules.LogRequest: "request", rules.LogRequestResponse: "request_response"}

// keptLevel is a keeper that says how much was to be kept.
type keptLevel string

func (keptLevel) Request([]byte)          {}
func (keptLevel) Answer(int, http.Header) {}
func (keptLevel) Body([]byte)             {}
func (k keptLevel) Done() json.RawMessage { return json.RawMessage(`"` + string(k) + `"`) }

// vetted has the gate vet the address of a name before it is dialled, as the dialler does.
func (w *keyWorld) vetted(dial func(context.Context, gate.Pass) (net.Conn, error), forward func(context.Context, gate.Pass, *http.Request) (*http.Response, error)) (
	func(context.Context, gate.Pass) (net.Conn, error), func(context.Context, gate.Pass, *http.Request) (*http.Response, error),
) {
	vet := func(ctx context.Context, p gate.Pass) error {
		h := p.Request().Endpoint.Host
		a, ok := h.Addr()
		if !ok {
			if a, ok = w.at[h.String()]; !ok {
				a = netip.MustParseAddr("11.7.7.7")
			}
		}
		return w.gate.Vet(ctx, p, a)
	}
	return func(ctx context.Context, p gate.Pass) (net.Conn, error) {
			if err := vet(ctx, p); err != nil {
				return nil, err
			}
			return dial(ctx, p)
		}, func(ctx context.Context, p gate.Pass, r *http.Request) (*http.Response, error) {
			if err := vet(ctx, p); err != nil {
				return nil, err
			}
			return forward(ctx, p, r)
		}
}

// startBroker serves two credentials, each for one host.
func (w *keyWorld) startBroker(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	must(t, os.WriteFile(secret, []byte(keySecret), 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "cells"), 0o700))
	for name, host := range map[string]string{"key": "api.test", "llm": "api.anthropic.com"} {
		c, err := policyfile.ParseCredential(name+".yaml", fmt.Appendf(nil, `apiVersion: sallyport/v1
kind: Credential
metadata: {name: %s}
type: bearer
endpoints: [{host: %s}]
source: {file: %s}
placeholder: {env: %s_KEY}
`, name, host, secret, strings.ToUpper(name)))
		must(t, err)
		w.creds = append(w.creds, *c)
	}
	uid := uint32(os.Getuid())
	s, err := broker.NewServer(broker.Config{
		Credentials: w.creds, GatewayUID: uid, AdminUID: uid, CellsDir: filepath.Join(dir, "cells"), UID: uid, User: "broker",
		Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	ln, err := net.Listen("unix", filepath.Join(dir, "socket"))
	must(t, err)
	srv, done := control.NewServer(s.Handler()), make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	w.broker, w.admin = broker.NewClient(ln.Addr().String()), control.NewClient(ln.Addr().String())
	t.Cleanup(func() {
		w.broker.Close()
		w.admin.Close()
		must(t, srv.Close())
		<-done
	})
}

// startOrigin serves one origin, which has the name of every host of the cases.
func (w *keyWorld) startOrigin(t *testing.T) {
	t.Helper()
	hosts := []string{
		"ok.test", "other.test", "third.test", "a.ok.test", "b.a.ok.test", "xn--bcher-kva.test", "in.test", "api.test", "a.github.io",
		"api.anthropic.com", "github.com", "pip.example.com", "10.20.0.7", "11.7.7.9",
	}
	plain := httptest.NewServer(w.saw)
	secure := httptest.NewUnstartedServer(w.saw)
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	secure.EnableHTTP2 = true
	secure.TLS = &tls.Config{Certificates: []tls.Certificate{w.origin.leaf(t, hosts...)}}
	secure.StartTLS()
	t.Cleanup(func() {
		_ = w.stop()
		plain.Close()
		secure.CloseClientConnections()
		secure.Close()
	})
	w.serveRaw(func(c net.Conn) { _, _ = io.Copy(c, c) })
	for _, h := range hosts {
		for port, to := range map[string]string{"80": plain.Listener.Addr().String(), "8080": plain.Listener.Addr().String(), "443": secure.Listener.Addr().String(), "8443": secure.Listener.Addr().String()} {
			w.setOrigin(net.JoinHostPort(h, port), to)
		}
		w.mu.Lock()
		w.origins[h+":5432"] = w.origins["raw.test:5432"]
		w.mu.Unlock()
	}
}

// serve answers as an origin: with 2,000 octets for /big, and not before it has asked
// something else for /nested.
func (w *keyWorld) serve(rw http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	if r.URL.Path == "/nested" && w.nested != nil {
		w.nested()
	}
	if r.URL.Path == "/big" {
		_, _ = io.WriteString(rw, strings.Repeat("x", 2000))
		return
	}
	_, _ = io.WriteString(rw, "hello")
}

func (w *keyWorld) startDNS(t *testing.T) {
	t.Helper()
	var err error
	w.resolver, err = testlab.StartResolver(netip.MustParseAddrPort("127.0.0.1:0"))
	must(t, err)
	for _, name := range []string{"ok.test", "other.test"} {
		w.resolver.Set(name, `TXT "yes"`, "MX 10 "+name+".")
	}
	d, err := dial.New(dial.Config{Vet: w.gate.Vet, Now: time.Now, Resolvers: []dial.Resolver{{Addr: w.resolver.Addr}}})
	must(t, err)
	names, err := dns.NewNames(dns.NamesConfig{Dir: t.TempDir()})
	must(t, err)
	s, err := dns.New(dns.Config{Gate: w.gate, CellOf: w.table.ByAddr, Names: names, LookUp: d.LookUp, Now: time.Now, Log: w.cfg.Log})
	must(t, err)
	pc, err := net.ListenPacket("udp4", "0.0.0.0:0")
	must(t, err)
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	w.dns = fmt.Sprintf("127.0.0.1:%d", pc.LocalAddr().(*net.UDPAddr).Port)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, pc, ln) }()
	t.Cleanup(func() {
		cancel()
		must(t, errors.Join(<-done, names.Close(), w.resolver.Close()))
		d.Close()
	})
}

// attach puts a policy in force for a run of its own, so that nothing was counted yet.
func (w *keyWorld) attach(t *testing.T, p *policyfile.PolicyFile, approved *live.Ask) {
	t.Helper()
	w.runs++
	run, policy := fmt.Sprintf("run%d", w.runs), p.Policy
	file := control.CellFile{Cell: cellID, Run: run, Policy: policy.Digest(), Sandbox: netip.MustParseAddr("127.0.0.1"), Gateway: netip.MustParseAddr("127.0.0.2"), Created: time.Now()}
	must(t, w.admin.Call(t.Context(), "/v1/revoke", broker.RevokeRequest{Cell: cellID}, nil))
	if names := policy.Credentials(); len(names) > 0 {
		var out broker.Grants
		must(t, w.admin.Call(t.Context(), "/v1/grants", broker.GrantRequest{Cell: cellID, Run: run, Credentials: names}, &out))
		file.Grants = out.Grants
	}
	w.broker.Attach(file)
	if approved != nil {
		var access live.Access
		ask := *approved
		ask.Cell, ask.Run, ask.State, ask.Until = cellID, run, live.Approved, time.Now().Add(time.Hour)
		access.Put(&ask)
		var err error
		policy, err = policy.With(access.Rules(run, time.Now()))
		must(t, err)
	}
	must(t, w.table.Attach(live.Cell{Identity: gate.Identity{Cell: cellID, Run: run, Policy: policy}, Addr: file.Sandbox}))
	// A connection of the run before is cut, with the streams that begin on it meanwhile. It
	// may not be idle yet, so it is left for good.
	w.mu.Lock()
	if w.door != nil {
		w.door.CloseIdleConnections()
		w.door = nil
	}
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}
