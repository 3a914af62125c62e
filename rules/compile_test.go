package rules_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/rules"
)

// one is a rule that compiles, changed by f.
func one(tb testing.TB, id string, f func(*rules.Rule)) rules.Rule {
	tb.Helper()
	r := rules.Rule{
		ID: id, Where: "p.yaml:7", Action: rules.AllowAction, Hosts: hosts(tb, "ok.test"), Ports: []uint16{443},
	}
	f(&r)
	return r
}

func deny(r *rules.Rule) { r.Action, r.Ports = rules.DenyAction, nil }

func TestCompileRefusesARule(t *testing.T) {
	tests := []struct {
		id, field, text string
		f               func(*rules.Rule)
	}{
		{"", "id", "not an id", func(r *rules.Rule) { r.ID = "" }},
		{"", "id", "not an id", func(r *rules.Rule) { r.ID = "A b" }},
		{"", "id", "not an id", func(r *rules.Rule) { r.ID = "-a" }},
		{"", "id", "not an id", func(r *rules.Rule) { r.ID = strings.Repeat("a", 65) }},
		{"CF-01", "hosts", "needs a host", func(r *rules.Rule) { r.Hosts = nil }},
		{"", "hosts", "empty host", func(r *rules.Rule) { r.Hosts = []rules.HostPattern{{}} }},
		{"NM-07", "hosts", "below an address", func(r *rules.Rule) { r.Hosts[0] = host(t, "1.2.3.4"); r.Hosts[0].Wildcard = true }},
		{"", "hosts", "reserved", func(r *rules.Rule) { r.Hosts = hosts(t, "sallyport.internal") }},
		{"", "hosts", "reserved", func(r *rules.Rule) { r.Hosts = hosts(t, "x.sallyport.internal") }},
		{"", "hosts", "reserved", func(r *rules.Rule) { r.Hosts = hosts(t, "*.internal") }},
		{"", "hosts", "reserved", func(r *rules.Rule) { r.Hosts = hosts(t, "*.sallyport.internal") }},
		{"", "hosts", "reserved", func(r *rules.Rule) { deny(r); r.Hosts = hosts(t, "sallyport.internal") }},
		{"IP-01", "hosts", "cidrs: [127.0.0.1/32]", func(r *rules.Rule) { r.Hosts = hosts(t, "127.0.0.1") }},
		{"IP-10", "hosts", "cidrs: [169.254.169.254/32]", func(r *rules.Rule) { r.Hosts = hosts(t, "169.254.169.254"); r.Private = cidrs("169.254.0.0/16") }},
		{"", "ports", "needs ports", func(r *rules.Rule) { r.Ports = nil }},
		{"", "ports", "0 is not", func(r *rules.Rule) { r.Ports = []uint16{443, 0} }},
		{"HT-16", "methods", "not a method", func(r *rules.Rule) { r.Methods = []string{"GET "} }},
		{"HT-16", "methods", "not a method", func(r *rules.Rule) { r.Methods = []string{""} }},
		{"HT-16", "methods", "case-sensitive", func(r *rules.Rule) { r.Methods = []string{"get"} }},
		{"HT-16", "methods", "cannot be allowed", func(r *rules.Rule) { r.Methods = []string{"TRACE"} }},
		{"HT-16", "methods", "cannot be allowed", func(r *rules.Rule) { r.Methods = []string{"CONNECT"} }},
		{"", "paths", "empty path", func(r *rules.Rule) { r.Paths = []rules.PathPattern{{}} }},
		{"", "cidrs", "canonical", func(r *rules.Rule) { r.Private = cidrs("10.0.0.1/8") }},
		{"", "cidrs", "canonical", func(r *rules.Rule) { r.Private = cidrs("::ffff:10.0.0.0/104") }},
		{"", "cidrs", "too wide", func(r *rules.Rule) { r.Private = cidrs("0.0.0.0/0") }},
		{"", "cidrs", "too wide", func(r *rules.Rule) { r.Private = cidrs("::/0") }},
		{"", "cidrs", "name no host", func(r *rules.Rule) { r.Private = cidrs("0.0.0.0/8") }},
		{"", "cidrs", "name no host", func(r *rules.Rule) { r.Private = cidrs("224.1.0.0/16") }},
		{"CR-21", "credential", "exact hosts only", func(r *rules.Rule) { r.Hosts, r.Credential = hosts(t, "*.wild.test"), "key" }},
		{"CR-22", "credential", "tls: passthrough", func(r *rules.Rule) { r.TLS, r.Credential = rules.PassthroughTLS, "key" }},
		{"CR-22", "credential", "protocol: tcp", func(r *rules.Rule) { r.Raw, r.Credential = true, "key" }},
		{"", "protocol", "methods cannot be judged", func(r *rules.Rule) { r.Raw, r.Methods = true, []string{"GET"} }},
		{"", "protocol", "paths cannot be judged", func(r *rules.Rule) { r.Raw, r.Paths = true, patterns(t, "/a") }},
		{"", "tls", "methods cannot be judged", func(r *rules.Rule) { r.TLS, r.Methods = rules.PassthroughTLS, []string{"GET"} }},
		{"", "tls", "already", func(r *rules.Rule) { r.TLS, r.Raw = rules.PassthroughTLS, true }},
		{"", "hosts", "needs a host or cidrs", func(r *rules.Rule) { deny(r); r.Hosts = nil }},
		{"", "cidrs", "make it two", func(r *rules.Rule) { deny(r); r.Private = cidrs("10.0.0.0/8") }},
		{"", "credential", "grants nothing", func(r *rules.Rule) { deny(r); r.Credential = "key" }},
		{"", "protocol", "whatever the protocol", func(r *rules.Rule) { deny(r); r.Raw = true }},
		{"", "tls", "carries no stream", func(r *rules.Rule) { deny(r); r.TLS = rules.PassthroughTLS }},
		{"", "expires", "does not expire", func(r *rules.Rule) { deny(r); r.Expires = 1 }},
	}
	for _, tt := range tests {
		p, err := rules.Compile(rules.Source{Rules: []rules.Rule{one(t, "r", tt.f)}})
		var all *rules.CompileError
		if !errors.As(err, &all) || p != nil || len(all.Faults) != 1 {
			t.Errorf("%s: Compile = %v, %v, want one fault: %s: %s", tt.id, p, err, tt.field, tt.text)
			continue
		}
		if f := all.Faults[0]; f.Field != tt.field || !strings.Contains(f.Text, tt.text) {
			t.Errorf("%s: Compile: %s: %s, want %s: %s", tt.id, f.Field, f.Text, tt.field, tt.text)
		}
	}
	for name, f := range map[string]func(*rules.Rule){
		"plain":            func(*rules.Rule) {},
		"deny trace":       func(r *rules.Rule) { deny(r); r.Methods = []string{"TRACE"} },
		"deny everywhere":  func(r *rules.Rule) { deny(r); r.Hosts, r.Private = nil, cidrs("0.0.0.0/0", "::/0") },
		"unique local":     func(r *rules.Rule) { r.Private = cidrs("fc00::/7") },
		"literal":          func(r *rules.Rule) { r.Hosts = hosts(t, "8.8.8.8") },
		"range alone":      func(r *rules.Rule) { r.Hosts, r.Private = nil, cidrs("10.0.0.0/8") },
		"raw":              func(r *rules.Rule) { r.Raw = true },
		"passthrough":      func(r *rules.Rule) { r.TLS = rules.PassthroughTLS },
		"internal, not us": func(r *rules.Rule) { r.Hosts = hosts(t, "*.corp.internal") },
	} {
		if _, err := rules.Compile(rules.Source{Rules: []rules.Rule{one(t, "r", f)}}); err != nil {
			t.Errorf("%s: Compile: %v", name, err)
		}
	}
}

// TestCompileRefusesPairs: rules that are sound alone and not together. Each
// pair is tried in both orders.
func TestCompileRefusesPairs(t *testing.T) {
	cred := func(name string) func(*rules.Rule) { return func(r *rules.Rule) { r.Credential = name } }
	raw := func(r *rules.Rule) { r.Raw = true }
	pass := func(r *rules.Rule) { r.TLS = rules.PassthroughTLS }
	plain := func(*rules.Rule) {}
	at := func(h string, f func(*rules.Rule)) func(*rules.Rule) {
		return func(r *rules.Rule) { f(r); r.Hosts = hosts(t, h) }
	}
	port := func(p uint16, f func(*rules.Rule)) func(*rules.Rule) {
		return func(r *rules.Rule) { f(r); r.Ports = []uint16{p} }
	}
	method := func(m string, f func(*rules.Rule)) func(*rules.Rule) {
		return func(r *rules.Rule) { f(r); r.Methods = []string{m} }
	}
	path := func(p string, f func(*rules.Rule)) func(*rules.Rule) {
		return func(r *rules.Rule) { f(r); r.Paths = patterns(t, p) }
	}
	tests := []struct {
		name, text string // "" for a pair that compiles
		a, b       func(*rules.Rule)
	}{
		{"two credentials", "could match", cred("one"), cred("two")},
		{"a credential and none", "could match", cred("one"), plain},
		{"a credential below a wildcard without", "could match", at("a.ok.test", cred("one")), at("*.ok.test", plain)},
		{"paths meet", "could match", path("/v1/**", cred("one")), path("/*/charges", cred("two"))},
		{"raw and inspected", "before the first byte", raw, plain},
		{"raw and inspected, wildcards", "before the first byte", at("*.a.ok.test", raw), at("*.ok.test", plain)},
		{"raw and passed through", "before the first byte", raw, pass},
		{"CR-22 credential and passthrough", "uninspected", cred("one"), pass},
		{"CR-22 credential and raw", "uninspected", cred("one"), raw},
		{"CR-22 credential below passthrough", "uninspected", at("a.ok.test", cred("one")), at("*.ok.test", pass)},
		{"deny by method, carried raw", "unseen", method("POST", deny), raw},
		{"deny by path, passed through", "unseen", path("/x", deny), pass},
		{"literal in a raw range", "before the first byte", at("8.8.8.8", plain), func(r *rules.Rule) { raw(r); r.Hosts, r.Private = nil, cidrs("8.8.0.0/16") }},
		{"ranges", "before the first byte", func(r *rules.Rule) { r.Hosts, r.Private = nil, cidrs("8.8.8.0/24") }, func(r *rules.Rule) { raw(r); r.Hosts, r.Private = nil, cidrs("8.8.0.0/16") }},

		{"one credential twice", "", cred("one"), cred("one")},
		{"other host", "", at("a.test", cred("one")), at("b.test", cred("two"))},
		{"apex and wildcard", "", at("ok.test", cred("one")), at("*.ok.test", plain)},
		{"other port", "", port(443, cred("one")), port(8443, cred("two"))},
		{"other port, raw", "", port(443, cred("one")), port(5432, raw)},
		{"other method", "", method("GET", cred("one")), method("POST", cred("two"))},
		{"other path", "", path("/a/**", cred("one")), path("/b/**", cred("two"))},
		{"inspected and passed through", "", plain, pass},
		{"deny all of a raw host", "", deny, raw},
		{"deny by path, inspected", "", path("/x", deny), plain},
		{"deny and credential", "", deny, cred("one")},
	}
	for _, tt := range tests {
		for turn, pair := range [][]rules.Rule{{one(t, "a", tt.a), one(t, "b", tt.b)}, {one(t, "a", tt.b), one(t, "b", tt.a)}} {
			_, err := rules.Compile(rules.Source{Rules: pair})
			if (err == nil) != (tt.text == "") || err != nil && (!strings.Contains(err.Error(), tt.text) || strings.Count(err.Error(), "\n") > 0) {
				t.Errorf("%s (order %d): Compile = %v, want %q", tt.name, turn, err, tt.text)
			}
		}
	}
}

func TestCompileTellsEverything(t *testing.T) {
	_, err := rules.Compile(rules.Source{Rules: []rules.Rule{
		one(t, "same", func(r *rules.Rule) { r.Where = "p.yaml:3" }),
		one(t, "same", func(r *rules.Rule) { r.Where, r.Ports = "p.yaml:9", []uint16{0} }),
		one(t, "other", func(r *rules.Rule) { r.Where, r.Credential = "p.yaml:15", "key" }),
	}})
	want := `p.yaml:9: rule "same": id: id "same" is taken by p.yaml:3
p.yaml:9: rule "same": ports: 0 is not a port
p.yaml:15: rule "other": credential: a request could match rule "same" (p.yaml:3) too, and get no credential there: make them disjoint in method, path or conditions, or grant the same`
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("Compile (-want +got):\n%s", diff)
	}
}

func TestCompileKeepsNothingOfItsSource(t *testing.T) {
	src := rules.Source{Rules: []rules.Rule{one(t, "r", func(*rules.Rule) {})}}
	p := compile(t, src)
	src.Rules[0].Hosts[0], src.Rules[0].Ports[0], src.Rules[0].ID = host(t, "evil.test"), 22, "x"
	if got := p.Decide(ask(t, "GET https://ok.test/")); got.Rule != "r" {
		t.Errorf("changing the source changed the policy: %+v", got)
	}
	p.Rules()[0].Ports[0] = 22
	if got := p.Decide(ask(t, "GET https://ok.test/")); got.Rule != "r" {
		t.Errorf("changing what Rules returned changed the policy: %+v", got)
	}
}
