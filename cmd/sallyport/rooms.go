package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"sallyport/broker"
	"sallyport/certs"
	"sallyport/control"
	"sallyport/proxy"
	"sallyport/proxy/dial"
	"sallyport/proxy/dns"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
)

// openRooms makes what the proxy is wired to.
func (g *gateway) openRooms(cfg *policyfile.Gateway) (err error) {
	if g.ca, err = certs.Open(g.inst.state("ca"), certs.Options{Now: time.Now}); err != nil {
		return err
	}
	door, err := dialConfig(g.inst, cfg)
	if err != nil {
		return err
	}
	g.broker = broker.NewClient(g.inst.brokerSocket())
	g.broker.Used, g.broker.Minted, g.broker.Unsaved = g.gate.Used, g.gate.Minted, g.gate.Unsaved
	door.Vet, door.Params = g.gate.Vet, g.broker.Params
	door.Certificate, door.Certified = g.broker.Certificate, g.broker.Certified
	if g.dialer, err = dial.New(door); err != nil {
		return err
	}
	g.names, err = dns.NewNames(dns.NamesConfig{Dir: g.inst.run("names")})
	return err
}

// dialConfig is what the configuration says about the way out.
func dialConfig(inst instance, cfg *policyfile.Gateway) (dial.Config, error) {
	c := dial.Config{Now: time.Now, Hosts: cfg.Hosts}
	for _, r := range cfg.Resolvers {
		c.Resolvers = append(c.Resolvers, dial.Resolver(r))
	}
	if p := cfg.Proxy; p != nil {
		c.Proxy = &dial.UpstreamProxy{Addr: p.Addr, User: p.User}
		if p.User != "" {
			text, err := readFile(inst.run(stagedPassword))
			if err != nil {
				return c, fmt.Errorf("the password for the upstream proxy: %w", err)
			}
			c.Proxy.Password = string(text)
		}
	}
	var err error
	c.Roots, err = loadRoots(inst)
	return c, err
}

// forward sends an admitted request and keeps the secret that went with it out
// of the answer. What the broker's client answers is not sent.
func (g *gateway) forward(ctx context.Context, p gate.Pass, req *http.Request) (*http.Response, error) {
	if resp, err := g.broker.Answer(ctx, p, req); resp != nil || err != nil {
		return resp, err
	}
	resp, err := g.dialer.Forward(ctx, p, req)
	if err != nil {
		return nil, err
	}
	if err := g.broker.Scrub(p, resp); err != nil {
		return nil, errors.Join(err, resp.Body.Close())
	}
	return resp, nil
}

// proxyServer wires the proxy; changed tells it when identities change, unrecorded
// when the log is down for too long.
func (g *gateway) proxyServer(changed, unrecorded <-chan struct{}) (*proxy.Server, error) {
	b := g.bounds
	return proxy.New(proxy.Config{
		Gate: g.gate, CellOf: g.table.ByAddr, NameOf: g.names.Lookup,
		Dial: g.dialer.Dial, Forward: g.forward, Leaf: g.ca.Leaf,
		Find: g.broker.Find, FindName: g.broker.FindName, Ready: g.broker.Ready, Inject: g.broker.Inject, Interim: g.broker.Interim,
		Hide:     func(cell, text string) string { return g.broker.Hider(cell)(text) },
		Keep:     g.keepBodies,
		Internal: &proxy.Help{Policy: g.policyText, Denials: g.denials, Ask: g.askAccess, Asked: g.askedFor},
		Changed:  changed, Unrecorded: unrecorded, Log: g.log, Now: time.Now,
		Limits:   proxy.Limits{ConnsPerCell: b.Connections, Conns: 8 * b.Connections, RequestsPerCell: b.Requests, Requests: 8 * b.Requests, RequestRate: b.RequestRate},
		Timeouts: proxy.Timeouts{Lifetime: time.Duration(b.Lifetime) * time.Second},
	})
}

func (g *gateway) dnsServer() (*dns.Server, error) {
	return dns.New(dns.Config{
		Gate: g.gate, CellOf: g.table.ByAddr, Names: g.names,
		FindName: g.broker.FindName, LookUp: g.dialer.LookUp, Now: time.Now, Log: g.log,
	})
}

// policyText returns the text of the policy that a cell runs under.
func (g *gateway) policyText(cell string) (string, bool) {
	id, ok := g.table.Identity(cell)
	if !ok {
		return "", false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p, ok := g.policies[id.Policy.Digest()]
	if !ok {
		return "", false
	}
	return string(p.text), true
}

// denials returns a cell's own last refusals, the newest first.
func (g *gateway) denials(_ context.Context, cell string, last int) ([]proxy.Denied, error) {
	id, _ := g.table.Identity(cell)
	list, _ := g.recent.recent(id.Run, last)
	slices.Reverse(list)
	return list, nil
}

// status tells how the gateway is.
func (g *gateway) status() statusOut {
	s := statusOut{Version: version(), PID: os.Getpid(), Since: g.since, Ready: "ok", LogKey: g.records.Verifier()}
	if err := g.records.Ready(); err != nil {
		s.Ready = err.Error()
	}
	s.Records, s.Signed, s.Anchors = g.recent.written(), g.records.Signed(), g.records.Anchors()
	for _, c := range g.table.Cells() {
		_, n := g.recent.recent(c.Run, 0)
		s.Cells = append(s.Cells, cellOut{
			Cell: c.Cell, Run: c.Run, Address: c.Addr.String(), Policy: c.Policy.Name(), Digest: c.Policy.Digest(), Denials: n, Since: g.began(c.Cell),
		})
	}
	slices.SortFunc(s.Cells, func(a, b cellOut) int { return strings.Compare(a.Cell, b.Cell) })
	return s
}

// began tells when a cell was made.
func (g *gateway) began(cell string) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	f, ok := g.files[cell]
	if !ok {
		return time.Time{}
	}
	return f.Created
}

// publish puts copies of the CA certificate and of the log's public key where
// everybody may read them and only root can write. A key that is not the one
// that was published before means another log: that is never passed over.
func publish(ctx context.Context, inst instance, gid int) error {
	var ca caOut
	if err := callGateway(ctx, inst, "/v1/ca", caIn{}, &ca); err != nil {
		return err
	}
	var st statusOut
	if err := callGateway(ctx, inst, "/v1/status", empty{}, &st); err != nil {
		return err
	}
	key := st.LogKey + "\n"
	if old, err := os.ReadFile(inst.auditPublicKey()); err == nil && string(old) != key {
		return hint(fmt.Errorf("the log is signed with another key than the one in %s", inst.auditPublicKey()),
			"if that is meant, keep the old key with the old log: mv %[1]s %[1]s.old", inst.auditPublicKey())
	}
	return errors.Join(putPublic(inst.caCert(), ca.Certificate, gid), putPublic(inst.auditPublicKey(), key, gid))
}

// putPublic writes a file that everybody may read and only root can write.
func putPublic(path, text string, gid int) error {
	return errors.Join(putFile(path, []byte(text), gid), os.Chmod(path, 0o644))
}

// callBroker calls the broker's control socket.
func callBroker(ctx context.Context, inst instance, op string, in, out any) error {
	c := control.NewClient(inst.brokerSocket())
	defer c.Close()
	return explainCall(inst, c.Call(ctx, op, in, out))
}
