package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync/atomic"

	"sallyport/audit"
	"sallyport/proxy/dial"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// door is the broker's way out to the endpoints that its credentials name. It is
// the gateway's door once more: a policy of its own, which allows just these
// URLs, one gate, and the dialler that resolves, vets and verifies. What it lets
// through stands in the broker's log. The zero policy lets nothing through.
type door struct {
	gate   *gate.Gate
	dialer *dial.Dialer
	policy atomic.Pointer[rules.Policy]
}

// maxTold bounds an answer to the broker.
const maxTold = 2 << 20

// doorCell is who asks, in the log.
const doorCell = "broker"

// openDoor makes the way out. It leads nowhere until allow is called.
func openDoor(inst instance, log *slog.Logger) (*door, error) {
	cfg, err := loadGatewayConfig(inst.run("config.yaml"))
	if err != nil {
		return nil, err
	}
	out, err := dialConfig(inst, cfg)
	if err != nil {
		return nil, err
	}
	return newDoor(nil, out, log)
}

func newDoor(policy *rules.Policy, cfg dial.Config, log *slog.Logger) (*door, error) {
	w := &door{}
	w.policy.Store(policy)
	g, err := gate.New(gate.Config{
		Identity: func(cell string) (gate.Identity, bool) {
			return gate.Identity{Cell: doorCell, Run: doorCell, Policy: w.policy.Load()}, cell == doorCell
		},
		Recorder: logRecorder{log}, Now: cfg.Now, Hash: func(string) string { return "" },
	})
	if err != nil {
		return nil, err
	}
	cfg.Vet = g.Vet
	w.gate = g
	w.dialer, err = dial.New(cfg)
	return w, err
}

// allow opens the way to what these credentials ask, and to nothing else.
func (d *door) allow(creds []policyfile.Credential) error {
	policy, err := doorPolicy(creds)
	if err != nil {
		return err
	}
	d.policy.Store(policy)
	return nil
}

// doorPolicy allows what credentials ask by themselves: nil for nothing.
func doorPolicy(creds []policyfile.Credential) (*rules.Policy, error) {
	src := rules.Source{Name: "the broker's own requests", Digest: "broker"}
	for _, c := range creds {
		for i, ask := range c.Reaches() {
			r, err := doorRule(ask)
			if err != nil {
				return nil, fmt.Errorf("%s: credential %q: %w", c.Where, c.Name, err)
			}
			r.ID, r.Where = fmt.Sprintf("%s-%d", c.Name, i+1), c.Where
			src.Rules = append(src.Rules, r)
		}
	}
	if len(src.Rules) == 0 {
		return nil, nil
	}
	return rules.Compile(src)
}

func doorRule(ask policyfile.Ask) (rules.Rule, error) {
	e, p, _, err := readURL(ask.URL)
	if err != nil {
		return rules.Rule{}, err
	}
	pattern, err := rules.ParsePathPattern(p.String())
	if err != nil {
		return rules.Rule{}, err
	}
	r := rules.Rule{
		Action: rules.AllowAction, Hosts: []rules.HostPattern{{Host: e.Host}}, Ports: []uint16{e.Port},
		Methods: []string{http.MethodGet, http.MethodPost}, Paths: []rules.PathPattern{pattern},
		Private: slices.Clone(ask.Private),
	}
	if a, ok := e.Host.Addr(); ok { // spelled out by the operator
		r.Private = append(r.Private, netip.PrefixFrom(a, a.BitLen()))
	}
	return r, nil
}

func readURL(text string) (target.Endpoint, target.Path, string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return target.Endpoint{}, target.Path{}, "", errors.New("not a URL")
	}
	if u.Scheme != "https" {
		return target.Endpoint{}, target.Path{}, "", errors.New("the broker asks over https only")
	}
	e, err := target.ParseAuthority(u.Host, 443)
	if err != nil {
		return target.Endpoint{}, target.Path{}, "", err
	}
	p, err := target.ParsePath(u.EscapedPath())
	return e, p, u.RawQuery, err
}

// RoundTrip implements [http.RoundTripper]: one request, no redirect.
func (d *door) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	e, p, query, err := readURL(req.URL.String())
	if err != nil {
		return nil, errors.Join(err, closeBody(req))
	}
	pass, err := d.gate.Admit(ctx, rules.Request{
		Question: rules.Fetch, Cell: doorCell, Endpoint: e, Secure: true, Protocol: rules.HTTP,
		Method: req.Method, Path: p, Query: query,
	})
	if err != nil {
		return nil, errors.Join(err, closeBody(req))
	}
	return d.carry(ctx, pass, req)
}

// carry sends what was admitted, reads the answer to its end, and has it recorded whatever
// comes.
func (d *door) carry(ctx context.Context, pass gate.Pass, req *http.Request) (*http.Response, error) {
	var whole *http.Response
	_, err := carried(ctx, pass, func() (gate.Outcome, error) {
		resp, err := d.dialer.Forward(ctx, pass, req)
		if err != nil {
			return gate.Outcome{Err: err}, err
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxTold))
		err = errors.Join(err, resp.Body.Close())
		resp.Body, whole = io.NopCloser(bytes.NewReader(body)), resp
		return gate.Outcome{Status: resp.StatusCode, Received: int64(len(body)), Err: err}, err
	})
	if err != nil {
		return nil, err
	}
	return whole, nil
}

// closeBody does what a RoundTripper owes also where it fails.
func closeBody(req *http.Request) error {
	if req.Body == nil {
		return nil
	}
	return req.Body.Close()
}

// logRecorder tells the broker's log what the broker itself asked. The audit log
// has one writer, the gateway.
type logRecorder struct{ log *slog.Logger }

// Append implements [gate.Recorder].
func (l logRecorder) Append(ctx context.Context, r *audit.Record) error {
	l.log.InfoContext(ctx, "asked for a credential", "kind", r.Kind, "id", r.ID+r.Ref, "rule", r.Rule, "verdict", r.Verdict,
		"reason", r.Reason, "host", r.Host, "port", r.Port, "method", r.Method, "path", r.Path, "status", r.Status, "cause", r.Error)
	return nil
}
