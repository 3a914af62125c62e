package rules_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"sallyport/rules"
)

// TestNoModeLetsThroughWhatIsNever: a statement holds in every mode (ADR-0028),
// and what it is not about is let through as before.
func TestNoModeLetsThroughWhatIsNever(t *testing.T) {
	never := []rules.Rule{
		{ID: "never:f:1", Where: "f:1", Scope: rules.FloorScope, Hosts: hosts(t, "pay.test"), Paths: patterns(t, "/refunds/**")},
		{ID: "never:f:2", Where: "f:2", Scope: rules.FloorScope, Hosts: hosts(t, "*.corp.test"), Ports: []uint16{22}},
		{ID: "never:p:3", Where: "p:3", Methods: []string{"DELETE"}},
	}
	connect := func(asked string) rules.Request {
		return rules.Request{Question: rules.Connect, Endpoint: endpoint(t, asked)}
	}
	opaque := func(asked string) rules.Request {
		return rules.Request{Question: rules.Hello, Protocol: rules.Opaque, Endpoint: endpoint(t, asked)}
	}
	reach := func(r rules.Request) rules.Request {
		r.Question, r.Addr = rules.Reach, addr("8.8.8.8")
		return r
	}
	resolve := rules.Request{Question: rules.Resolve, Endpoint: endpoint(t, "db.corp.test:22"), Type: 1}
	for _, tt := range []struct {
		name   string
		req    rules.Request
		reason rules.Reason
		rule   string
	}{
		{"a path", fetchOf(t, "GET", "pay.test", "/refunds/1"), rules.DeniedByRule, "never:f:1"},
		{"a path with two readings", fetchOf(t, "GET", "pay.test", "/x/../refunds/1"), rules.DeniedByRule, "never:f:1"},
		{"another path", fetchOf(t, "GET", "pay.test", "/charges"), rules.Allowed, ""},
		{"a port", connect("db.corp.test:22"), rules.DeniedByRule, "never:f:2"},
		{"another port", connect("db.corp.test:443"), rules.Allowed, ""},
		{"the apex", connect("corp.test:22"), rules.Allowed, ""},
		{"the name", resolve, rules.Allowed, ""},
		{"a method, on any host", fetchOf(t, "DELETE", "other.test", "/"), rules.DeniedByRule, "never:p:3"},
		{"HT-16 a method in another case", fetchOf(t, "Delete", "other.test", "/"), rules.BadRequest, ""},
		{"another method", fetchOf(t, "PUT", "other.test", "/"), rules.Allowed, ""},
		{"the address of what is denied", reach(fetchOf(t, "DELETE", "other.test", "/")), rules.HostNotAllowed, ""},
		{"the address of what is not", reach(fetchOf(t, "PUT", "other.test", "/")), rules.Allowed, ""},
		{"bytes in which a statement would look", opaque("pay.test:443"), rules.HostNotAllowed, ""},
	} {
		for mode, src := range map[string]rules.Source{
			"observe": {Observe: true, Never: never},
			"learn":   {Observe: true, Learn: true, Never: never},
		} {
			want := tt.reason
			if mode == "learn" && want == rules.Allowed {
				want = rules.Learned
			}
			d := compile(t, src).Decide(tt.req)
			if d.Reason != want || d.Rule != tt.rule || admitted(d) != (tt.reason == rules.Allowed) {
				t.Errorf("%s, %s: %+v", mode, tt.name, d)
			}
		}
	}
}

// TestNeverTakesOnlyFromWhatAModeLetsThrough: with statements, nothing is
// admitted that a statement is about unless the rules say so, all that the rules
// admit stays admitted, and nothing more is admitted than without them.
func TestNeverTakesOnlyFromWhatAModeLetsThrough(t *testing.T) {
	statement := func(t *rapid.T) rules.Rule {
		tb := nil2(t)
		return rules.Rule{
			ID: "never:x:1", Scope: rapid.SampledFrom([]rules.Scope{rules.PolicyScope, rules.FloorScope}).Draw(t, "scope"),
			Hosts:   hosts(tb, rapid.SliceOfN(rapid.SampledFrom([]string{"a.test", "*.a.test", "b.test", "8.8.8.8"}), 0, 2).Draw(t, "hosts")...),
			Ports:   rapid.SliceOfN(rapid.SampledFrom([]uint16{80, 443}), 0, 1).Draw(t, "ports"),
			Methods: rapid.SliceOfN(rapid.SampledFrom([]string{"GET", "POST"}), 0, 1).Draw(t, "methods"),
			Paths:   rapid.SliceOfN(drawPattern, 0, 2).Draw(t, "paths"),
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		list, req := scoped(t, someLists.Draw(t, "rules")), someRequests.Draw(t, "request")
		src := source(t, list)
		without, err := rules.Compile(src)
		if err != nil {
			t.SkipNow()
		}
		n := statement(t)
		src.Never = []rules.Rule{n}
		p, err := rules.Compile(src)
		if err != nil {
			t.Fatal(err)
		}
		is, was, strict := p.Decide(req), without.Decide(req), p.Enforced().Decide(req)
		if admitted(is) && !admitted(was) {
			t.Fatalf("%+v is %+v, and without the statement %+v", req, is, was)
		}
		if admitted(strict) && !admitted(is) {
			t.Fatalf("%+v is %+v, and enforced %+v", req, is, strict)
		}
		if req.Question == rules.Fetch && admitted(is) && !admitted(strict) && concerns(&n, &req) {
			t.Fatalf("%+v is let through as %+v", req, is)
		}
	})
}

// concerns says in its own words whether a statement is about a request.
func concerns(n *rules.Rule, r *rules.Request) bool {
	return (len(n.Hosts) == 0 || slices.ContainsFunc(n.Hosts, func(h rules.HostPattern) bool { return h.Match(r.Endpoint.Host) })) &&
		(len(n.Ports) == 0 || slices.Contains(n.Ports, r.Endpoint.Port)) &&
		(len(n.Methods) == 0 || slices.Contains(n.Methods, r.Method)) &&
		(len(n.Paths) == 0 || slices.ContainsFunc(n.Paths, func(p rules.PathPattern) bool { return p.Match(r.Path) }))
}
