// Package clients_test runs the vendors' own clients through the whole way of a
// request: the proxy that inspects, the gate, the broker behind its socket and the
// door out, to servers that verify what they get by themselves. The clients hold
// placeholders; what the servers saw is the judge.
package clients_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/broker"
	"sallyport/certs"
	"sallyport/control"
	"sallyport/proxy"
	"sallyport/proxy/dial"
	"sallyport/rules/gate"
	"sallyport/rules/live"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
	"sallyport/test/lab"
)

const cell, run = "cell0001", "run1"

// origin is a server beyond the gateway.
type origin struct {
	host    string
	handler http.Handler
	// clients is the authority of client certificates that are demanded; nil
	// demands none.
	clients *x509.CertPool
}

// credential is a credential document without its head, source and endpoints.
type credential struct {
	name, doc, secret, host string
	more                    string // a further host that it may go to
	morePaths               string // methods and paths there, as a rule has them; "" is any
}

// gateway is one cell's way out.
type gateway struct {
	t      *testing.T
	dir    string
	proxy  string // host:port
	ca     string // file with the authority that the cell trusts
	env    []string
	log    *bytes.Buffer
	logMu  sync.Mutex
	broker *broker.Client
	admin  *control.Client
	server *proxy.Server
	names  []target.Name // of the origins, in their order

	mu      sync.Mutex // guards records
	records []audit.Record
}

// Append implements [gate.Recorder].
func (g *gateway) Append(_ context.Context, r *audit.Record) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.records = append(g.records, *r)
	return nil
}

// Write is the log's.
func (g *gateway) Write(p []byte) (int, error) {
	g.logMu.Lock()
	defer g.logMu.Unlock()
	return g.log.Write(p)
}

// reasons returns why requests were refused.
func (g *gateway) reasons() (out []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.records {
		if r.Reason != "" && !slices.Contains(out, r.Reason) {
			out = append(out, r.Reason)
		}
	}
	return out
}

// refusals returns the hosts at which requests were refused for a reason.
func (g *gateway) refusals(reason string) (out []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.records {
		if r.Reason == reason {
			out = append(out, r.Host)
		}
	}
	return out
}

// newGateway serves a gateway and a broker for these origins and credentials.
func newGateway(t *testing.T, origins []origin, creds []credential) *gateway {
	t.Helper()
	g := &gateway{t: t, dir: t.TempDir(), log: &bytes.Buffer{}}
	hosts, roots := g.serveOrigins(origins)
	docs := g.documents(creds)
	policy := "apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: clients, owner: tests, description: what the clients may do}\nrules:\n"
	for _, o := range origins {
		what := ", access: write"
		for _, c := range creds {
			if c.more == o.host && c.morePaths != "" {
				what = c.morePaths
			}
		}
		policy += fmt.Sprintf("  - id: %s\n    reason: test\n    allow: {host: %s%s, cidrs: [127.0.0.0/8]}\n", strings.ReplaceAll(o.host, ".", "-"), o.host, what)
		for _, c := range creds {
			if c.host == o.host || c.more == o.host {
				policy += "    credential: " + c.name + "\n"
			}
		}
	}
	compiled, err := policyfile.ParsePolicy("policy.yaml", []byte(policy), docs)
	if err != nil {
		t.Fatal(err)
	}
	table := &live.Table{}
	gt, err := gate.New(gate.Config{Identity: table.Identity, Recorder: g, Now: time.Now, Hash: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	g.startBroker(docs, hosts, roots)
	g.grant(creds)
	if err := table.Attach(live.Cell{Identity: gate.Identity{Cell: cell, Run: run, Policy: compiled}, Addr: netip.MustParseAddr("127.0.0.1")}); err != nil {
		t.Fatal(err)
	}
	dialer, err := dial.New(dial.Config{
		Vet: gt.Vet, Now: time.Now, Hosts: hosts, Roots: roots, Params: g.broker.Params, Certificate: g.broker.Certificate, Certified: g.broker.Certified,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dialer.Close)
	g.serveProxy(gt, table, dialer)
	return g
}

// serveOrigins starts the servers, each on a loopback address of its own.
func (g *gateway) serveOrigins(origins []origin) (map[target.Name][]netip.Addr, *x509.CertPool) {
	g.t.Helper()
	ca, err := lab.NewCA("upstream")
	if err != nil {
		g.t.Fatal(err)
	}
	hosts := map[target.Name][]netip.Addr{}
	for i, o := range origins {
		leaf, err := ca.Leaf(nil, o.host)
		if err != nil {
			g.t.Fatal(err)
		}
		name, err := target.ParseName(o.host)
		if err != nil {
			g.t.Fatal(err)
		}
		addr := netip.AddrFrom4([4]byte{127, 77, 0, byte(i + 1)})
		hosts[name], g.names = []netip.Addr{addr}, append(g.names, name)
		l, err := net.Listen("tcp4", netip.AddrPortFrom(addr, 443).String())
		if err != nil {
			g.t.Fatal(err)
		}
		cfg := &tls.Config{Certificates: []tls.Certificate{leaf}, MinVersion: tls.VersionTLS12}
		if o.clients != nil {
			cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, o.clients
		}
		s := &http.Server{Handler: o.handler, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
		g.serve(func() error { return s.Serve(tls.NewListener(l, cfg)) }, s.Close)
	}
	return hosts, ca.Pool()
}

// serve serves until the test ends.
func (g *gateway) serve(serve, stop func() error) {
	done := make(chan error, 1)
	go func() { done <- serve() }()
	g.t.Cleanup(func() {
		if err := stop(); err != nil {
			g.t.Error(err)
		}
		if err := <-done; err != nil && !errors.Is(err, http.ErrServerClosed) {
			g.t.Error(err)
		}
	})
}

// documents writes the secrets and reads the credential documents.
func (g *gateway) documents(creds []credential) (out []policyfile.Credential) {
	g.t.Helper()
	for _, c := range creds {
		file := filepath.Join(g.dir, "secret-"+c.name)
		if err := os.WriteFile(file, []byte(c.secret), 0o600); err != nil {
			g.t.Fatal(err)
		}
		ends := "{host: " + c.host + "}"
		if c.more != "" {
			ends += ", {host: " + c.more + c.morePaths + "}"
		}
		text := fmt.Sprintf("apiVersion: sallyport/v1\nkind: Credential\nmetadata: {name: %s}\n%s\nendpoints: [%s]\nsource: {file: %q}\n", c.name, c.doc, ends, file)
		doc, err := policyfile.ParseCredential(c.name+".yaml", []byte(text))
		if err != nil {
			g.t.Fatal(err)
		}
		out = append(out, *doc)
	}
	return out
}

// startBroker serves a broker, whose own way out leads to the origins alone.
func (g *gateway) startBroker(docs []policyfile.Credential, hosts map[target.Name][]netip.Addr, roots *x509.CertPool) {
	g.t.Helper()
	way := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		name, err := target.ParseName(host)
		if err != nil || len(hosts[name]) == 0 {
			return nil, fmt.Errorf("the broker dials %s", addr)
		}
		var d net.Dialer
		return d.DialContext(ctx, network, net.JoinHostPort(hosts[name][0].String(), port))
	}}
	g.t.Cleanup(way.CloseIdleConnections)
	uid := uint32(os.Getuid())
	s, err := broker.NewServer(broker.Config{
		Credentials: docs, GatewayUID: uid, AdminUID: uid, UID: uid, User: "root", Transport: way, Now: time.Now, Log: slog.New(slog.NewTextHandler(g, nil)),
	})
	if err != nil {
		g.t.Fatal(err)
	}
	socket := filepath.Join(g.dir, "broker.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		g.t.Fatal(err)
	}
	srv := control.NewServer(s.Handler())
	g.serve(func() error { return srv.Serve(l) }, srv.Close)
	g.broker, g.admin = broker.NewClient(socket), control.NewClient(socket)
	g.t.Cleanup(g.broker.Close)
	g.t.Cleanup(g.admin.Close)
}

// grant grants the run every credential: the placeholders are in g.env.
func (g *gateway) grant(creds []credential) {
	g.t.Helper()
	var names []string
	for _, c := range creds {
		names = append(names, c.name)
	}
	var out broker.Grants
	if err := g.admin.Call(g.t.Context(), "/v1/grants", broker.GrantRequest{Cell: cell, Run: run, Credentials: names}, &out); err != nil {
		g.t.Fatal(err)
	}
	addr := netip.MustParseAddr("127.0.0.1")
	g.broker.Attach(control.CellFile{Cell: cell, Run: run, Policy: "sha256:00", Sandbox: addr, Gateway: addr, Grants: out.Grants, Created: time.Now()})
	for _, gr := range out.Grants {
		for _, v := range append([]control.Value{{Env: gr.Env, Placeholder: gr.Placeholder}}, gr.More...) {
			if v.Env != "" {
				g.env = append(g.env, v.Env+"="+v.Placeholder)
			}
		}
	}
}

// serveProxy serves the explicit listener, wired as the product wires it.
func (g *gateway) serveProxy(gt *gate.Gate, table *live.Table, dialer *dial.Dialer) {
	g.t.Helper()
	ca, err := certs.Open(filepath.Join(g.dir, "ca"), certs.Options{Now: time.Now})
	if err != nil {
		g.t.Fatal(err)
	}
	g.ca = filepath.Join(g.dir, "ca.crt")
	if err := os.WriteFile(g.ca, ca.Certificate(), 0o644); err != nil {
		g.t.Fatal(err)
	}
	forward := func(ctx context.Context, p gate.Pass, r *http.Request) (*http.Response, error) {
		if resp, err := g.broker.Answer(ctx, p, r); resp != nil || err != nil {
			return resp, err
		}
		resp, err := dialer.Forward(ctx, p, r)
		if err != nil {
			return nil, err
		}
		return resp, g.broker.Scrub(p, resp)
	}
	g.server, err = proxy.New(proxy.Config{
		Gate: gt, CellOf: table.ByAddr, NameOf: g.nameOf, OriginalDst: redirected,
		Dial: dialer.Dial, Forward: forward, Leaf: ca.Leaf, Find: g.broker.Find, Ready: g.broker.Ready, Inject: g.broker.Inject,
		Log: slog.New(slog.NewTextHandler(g, nil)), Now: time.Now, Timeouts: proxy.Timeouts{Drain: time.Second},
	})
	if err != nil {
		g.t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		g.t.Fatal(err)
	}
	g.proxy = l.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(g.t.Context()))
	g.serve(func() error { return g.server.ServeExplicit(ctx, l) }, func() error { cancel(); return nil })
}

// command is a client in the cell: it has the placeholders, the way out and the
// authority that a sandbox has, and nothing else.
func (g *gateway) command(stdin, name string, args ...string) (string, error) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/usr/bin/env", append([]string{name}, args...)...) // looks where cmd's PATH says
	cmd.Dir, cmd.Stdin = g.dir, strings.NewReader(stdin)
	cmd.Env = append([]string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + g.dir, "LC_ALL=C.UTF-8", "HTTPS_PROXY=http://" + g.proxy, "https_proxy=http://" + g.proxy,
		"AWS_CA_BUNDLE=" + g.ca, "REQUESTS_CA_BUNDLE=" + g.ca, "SSL_CERT_FILE=" + g.ca, "CURL_CA_BUNDLE=" + g.ca, "GIT_SSL_CAINFO=" + g.ca,
		"AWS_EC2_METADATA_DISABLED=true", "AWS_DEFAULT_REGION=eu-west-1", "AWS_MAX_ATTEMPTS=1", "GIT_TERMINAL_PROMPT=0", "PYTHONWARNINGS=ignore",
	}, g.env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// must is command for one that has to succeed.
func (g *gateway) must(stdin, name string, args ...string) string {
	g.t.Helper()
	out, err := g.command(stdin, name, args...)
	if err != nil {
		g.t.Fatalf("%s %q: %v\n%s\nrefusals: %q", name, args, err, out, g.reasons())
	}
	return out
}

// holdsNone fails the test if a secret is anywhere that the cell or a reader of
// the logs could see it.
func (g *gateway) holdsNone(secrets ...string) {
	g.t.Helper()
	g.logMu.Lock()
	defer g.logMu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range secrets {
		if strings.Contains(g.log.String(), s) || strings.Contains(fmt.Sprintf("%+v", g.records), s) || strings.Contains(strings.Join(g.env, "\n"), s) {
			g.t.Errorf("a log, a record or the environment of the cell holds %.4s…", s)
		}
	}
}
