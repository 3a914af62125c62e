package broker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/broker"
	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

const (
	realToken = "sk_test_4eC39HqLyjWDarjtT1zdp7dcREAL"
	otherKey  = "0123456789abcdef0123456789abcdef"
)

var epoch = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

// kit is a broker and a gateway's client of it, over a unix socket.
type kit struct {
	t      testing.TB
	dir    string
	server *broker.Server
	client *broker.Client
	admin  *control.Client
	log    *lockedBuffer
	stop   func()
	socket string
	cells  string
	creds  []policyfile.Credential
	tweak  func(*broker.Config)
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func host(s string) target.Host {
	h, err := target.ParseHost(s)
	if err != nil {
		panic(err)
	}
	return h
}

func paths(list ...string) (out []rules.PathPattern) {
	for _, s := range list {
		p, err := rules.ParsePathPattern(s)
		if err != nil {
			panic(err)
		}
		out = append(out, p)
	}
	return out
}

func writeSecret(tb testing.TB, path, text string) {
	tb.Helper()
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(tmp, path); err != nil {
		tb.Fatal(err)
	}
}

// newKit serves three credentials: api (bearer, api.test), key (header,
// key.test), git (basic, git.test).
func newKit(tb testing.TB) *kit {
	tb.Helper()
	k := &kit{t: tb, dir: tb.TempDir(), log: &lockedBuffer{}}
	k.socket, k.cells = filepath.Join(k.dir, "broker.sock"), filepath.Join(k.dir, "cells")
	if err := os.Mkdir(k.cells, 0o755); err != nil {
		tb.Fatal(err)
	}
	writeSecret(tb, k.secret("api"), realToken+"\n")
	writeSecret(tb, k.secret("key"), otherKey)
	writeSecret(tb, k.secret("git"), "ghp_16C7e42F292c6912E7710c838347Ae178B4a\n")
	writeSecret(tb, k.secret("maps"), "AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY")
	k.creds = []policyfile.Credential{
		{
			Name: "api", Owner: "team", Scheme: policyfile.Scheme{Type: "bearer"}, Env: "API_KEY", Source: policyfile.Source{File: k.secret("api")},
			Endpoints: []policyfile.Endpoint{{Host: host("api.test"), Ports: []uint16{443}, Methods: []string{"GET", "POST"}, Paths: paths("/v1/**")}},
		},
		{
			Name: "key", Scheme: policyfile.Scheme{Type: "header", Header: "X-Api-Key"}, Env: "OTHER_KEY", Source: policyfile.Source{File: k.secret("key")},
			Endpoints: []policyfile.Endpoint{{Host: host("key.test"), Ports: []uint16{443, 8443}}},
		},
		{
			Name: "git", Scheme: policyfile.Scheme{Type: "basic", Username: "x-access-token"}, Env: "GIT_TOKEN", Source: policyfile.Source{File: k.secret("git")},
			Endpoints: []policyfile.Endpoint{{Host: host("git.test"), Ports: []uint16{443}}},
		},
		{
			Name: "maps", Scheme: policyfile.Scheme{Type: "query", Param: "key"}, Env: "MAPS_KEY", Source: policyfile.Source{File: k.secret("maps")},
			Endpoints: []policyfile.Endpoint{{Host: host("maps.test"), Ports: []uint16{443}}},
		},
	}
	k.start()
	tb.Cleanup(func() { k.stop() })
	return k
}

// restart serves the broker anew, with a tweak.
func (k *kit) restart(tweak func(*broker.Config)) {
	k.t.Helper()
	k.stop()
	k.tweak = tweak
	k.start()
}

// holdNothing has every request asked about: what is tested is a store.
func holdNothing(c *broker.Config) { c.Hold = -1 }

func (k *kit) secret(name string) string { return filepath.Join(k.dir, "secret-"+name) }

// start serves the broker; root is admin and gateway at once here. The test
// over processes tells users apart.
func (k *kit) start() {
	k.t.Helper()
	uid := uint32(os.Getuid())
	cfg := broker.Config{
		Credentials: k.creds, GatewayUID: uid, AdminUID: uid, CellsDir: k.cells, UID: uid, User: "sallyport-broker",
		Now: func() time.Time { return epoch }, Log: slog.New(slog.NewJSONHandler(k.log, nil)),
	}
	if k.tweak != nil {
		k.tweak(&cfg)
	}
	s, err := broker.NewServer(cfg)
	if err != nil {
		k.t.Fatal(err)
	}
	ln, err := net.Listen("unix", k.socket)
	if err != nil {
		k.t.Fatal(err)
	}
	srv := control.NewServer(s.Handler())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	k.server, k.client, k.admin = s, broker.NewClient(k.socket), control.NewClient(k.socket)
	stopped := false
	k.stop = func() {
		if stopped {
			return
		}
		stopped = true
		k.client.Close()
		k.admin.Close()
		if err := srv.Close(); err != nil {
			k.t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			k.t.Error(err)
		}
	}
}

// grant grants credentials to a run and attaches its cell at the client.
func (k *kit) grant(cell, run string, names ...string) control.CellFile {
	k.t.Helper()
	var out broker.Grants
	if err := k.admin.Call(k.t.Context(), "/v1/grants", broker.GrantRequest{Cell: cell, Run: run, Credentials: names}, &out); err != nil {
		k.t.Fatal(err)
	}
	f := control.CellFile{Cell: cell, Run: run, Policy: "sha256:00", Sandbox: sandboxAddr, Gateway: sandboxAddr, Grants: out.Grants, Created: epoch}
	k.client.Attach(f)
	return f
}

func (k *kit) revoke(cell string) {
	k.t.Helper()
	if err := k.admin.Call(k.t.Context(), "/v1/revoke", broker.RevokeRequest{Cell: cell}, nil); err != nil {
		k.t.Fatal(err)
	}
}

// recorder keeps records in memory.
type recorder struct {
	mu   sync.Mutex
	recs []audit.Record
}

func (r *recorder) Append(_ context.Context, rec *audit.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recs = append(r.recs, *rec)
	return nil
}

// wide is a policy that lets a credential go anywhere on the hosts of the kit:
// the broker's own lock is what is tested.
func wide(tb testing.TB) *rules.Policy {
	tb.Helper()
	src := rules.Source{Name: "wide", Digest: "sha256:00"}
	for host443, cred := range map[string]string{"api.test": "api", "key.test": "key", "git.test": "git", "maps.test": "maps", "ok.test": "", "evil.test": "api", "s3.test": "aws", "ddb.test": "aws", "idp.test": "idp"} {
		src.Rules = append(src.Rules, rules.Rule{
			ID: "rule-" + host443, Action: rules.AllowAction,
			Hosts: []rules.HostPattern{{Host: host(host443)}}, Ports: []uint16{443, 8443, 80}, Credential: cred,
		})
	}
	p, err := rules.Compile(src)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// admit makes a Pass for a request, as the proxy would.
func admit(tb testing.TB, cell, run string, r *http.Request, carries []rules.Carry) (gate.Pass, error) {
	tb.Helper()
	p := wide(tb)
	g, err := gate.New(gate.Config{
		Identity: func(c string) (gate.Identity, bool) { return gate.Identity{Cell: c, Run: run, Policy: p}, true },
		Recorder: &recorder{}, Now: func() time.Time { return epoch }, Hash: func(string) string { return "" },
	})
	if err != nil {
		tb.Fatal(err)
	}
	secure := r.URL.Scheme == "https"
	port := uint16(443)
	if !secure {
		port = 80
	}
	e, err := target.ParseAuthority(r.URL.Host, port)
	if err != nil {
		tb.Fatal(err)
	}
	path, err := target.ParsePath(r.URL.EscapedPath())
	if err != nil {
		tb.Fatal(err)
	}
	return g.Admit(tb.Context(), rules.Request{
		Question: rules.Fetch, Cell: cell, Endpoint: e, Secure: secure, Protocol: rules.HTTP,
		Method: r.Method, Path: path, Query: r.URL.RawQuery, Carries: carries,
	})
}

// pass is admit for a request that the gateway admits.
func pass(tb testing.TB, cell, run string, r *http.Request) gate.Pass {
	tb.Helper()
	p, err := admit(tb, cell, run, r, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// request makes a request as it comes from a sandbox.
func request(method, url string, header ...string) *http.Request {
	r := httptest.NewRequest(method, url, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header[header[i]] = append(r.Header[header[i]], header[i+1])
	}
	return r
}

// wantDenied asserts the reason of a refusal.
func wantDenied(t *testing.T, err error, want rules.Reason) {
	t.Helper()
	var denied *gate.DeniedError
	if !errors.As(err, &denied) {
		t.Fatalf("got %v, want a refusal for %q", err, want)
	}
	if denied.Reason != want {
		t.Errorf("refused for %q (%v), want %q", denied.Reason, err, want)
	}
}
