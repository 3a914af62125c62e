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
// through stands in the broker's log.
type door struct {
	gate   *gate.Gate
	dialer *dial.Dialer
}

// maxTold bounds an answer to the broker.
const maxTold = 1 << 20

// doorCell is who asks, in the log.
const doorCell = "broker"

// openDoor makes the way out; nil where no credential needs one.
func openDoor(inst instance, creds []policyfile.Credential, log *slog.Logger) (http.RoundTripper, error) {
	policy, err := doorPolicy(creds)
	if err != nil || policy == nil {
		return nil, err
	}
	cfg, err := loadGatewayConfig(inst.run("config.yaml"))
	if err != nil {
		return nil, err
	}
	out, err := dialConfig(inst, cfg)
	if err != nil {
		return nil, err
	}
	return newDoor(policy, out, log)
}

func newDoor(policy *rules.Policy, cfg dial.Config, log *slog.Logger) (*door, error) {
	g, err := gate.New(gate.Config{
		Identity: func(cell string) (gate.Identity, bool) {
			return gate.Identity{Cell: doorCell, Run: doorCell, Policy: policy}, cell == doorCell
		},
		Recorder: logRecorder{log}, Now: cfg.Now, Hash: func(string) string { return "" },
	})
	if err != nil {
		return nil, err
	}
	cfg.Vet = g.Vet
	d, err := dial.New(cfg)
	if err != nil {
		return nil, err
	}
	return &door{g, d}, nil
}

// doorPolicy allows what credentials ask by themselves: nil for nothing.
func doorPolicy(creds []policyfile.Credential) (*rules.Policy, error) {
	src := rules.Source{Name: "the broker's own requests", Digest: "broker"}
	for _, c := range creds {
		for i, text := range c.Asks() {
			r, err := doorRule(text)
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

func doorRule(text string) (rules.Rule, error) {
	e, p, _, err := readURL(text)
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
	}
	if a, ok := e.Host.Addr(); ok { // spelled out by the operator
		r.Private = []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
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
	resp, err := d.dialer.Forward(ctx, pass, req)
	out := gate.Outcome{Err: err}
	if err == nil {
		out.Status = resp.StatusCode
		var body []byte
		body, err = io.ReadAll(io.LimitReader(resp.Body, maxTold))
		err = errors.Join(err, resp.Body.Close())
		out.Received, out.Err = int64(len(body)), err
		resp.Body = io.NopCloser(bytes.NewReader(body))
	}
	if err := errors.Join(err, pass.Done(ctx, out)); err != nil {
		return nil, err
	}
	return resp, nil
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
	l.log.InfoContext(ctx, "asked a token endpoint", "kind", r.Kind, "id", r.ID+r.Ref, "rule", r.Rule, "verdict", r.Verdict,
		"reason", r.Reason, "host", r.Host, "port", r.Port, "method", r.Method, "path", r.Path, "status", r.Status, "cause", r.Error)
	return nil
}
