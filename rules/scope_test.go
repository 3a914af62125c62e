package rules_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sallyport/rules"
)

// fetchOf is a GET over TLS.
func fetchOf(tb testing.TB, method, at, path string) rules.Request {
	tb.Helper()
	return rules.Request{Question: rules.Fetch, Secure: true, Method: method, Endpoint: endpoint(tb, at), Path: pathOf(tb, path), Now: 10}
}

func TestScopes(t *testing.T) {
	allow := func(id, host string, scope rules.Scope, r rules.Rule) rules.Rule {
		r.ID, r.Where, r.Action, r.Hosts, r.Ports, r.Scope = id, id+":1", rules.AllowAction, hosts(t, host), []uint16{443}, scope
		return r
	}
	deny := func(id, host string, scope rules.Scope, r rules.Rule) rules.Rule {
		r.ID, r.Where, r.Hosts, r.Scope = id, id+":1", hosts(t, host), scope
		return r
	}
	api := allow("api", "*.api.test", rules.PolicyScope, rules.Rule{})
	floor := deny("org", "secret.api.test", rules.FloorScope, rules.Rule{})
	refunds := deny("refunds", "*.api.test", rules.FloorScope, rules.Rule{Paths: patterns(t, "/refunds/**")})
	run := allow("run", "one.api.test", rules.RunScope, rules.Rule{Methods: []string{"GET"}})
	asked := allow("asked", "more.test", rules.ApprovalScope, rules.Rule{Expires: 100})
	tests := []struct {
		name   string
		src    rules.Source
		req    rules.Request
		reason rules.Reason
		scope  string
		rule   string
	}{
		{"the policy", rules.Source{Rules: []rules.Rule{api, floor}}, fetchOf(t, "GET", "one.api.test", "/"), rules.Allowed, "policy", "api"},
		{"the floor denies", rules.Source{Rules: []rules.Rule{api, floor}}, fetchOf(t, "GET", "secret.api.test", "/"), rules.DeniedByRule, "floor", "org"},
		{"the floor speaks before the policy", rules.Source{Rules: []rules.Rule{api, floor, deny("a", "*.api.test", rules.PolicyScope, rules.Rule{})}}, fetchOf(t, "GET", "secret.api.test", "/"), rules.DeniedByRule, "floor", "org"},
		{"the floor, observed", rules.Source{Rules: []rules.Rule{floor}, Observe: true}, fetchOf(t, "GET", "secret.api.test", "/"), rules.DeniedByRule, "floor", "org"},
		{"the floor, learned", rules.Source{Rules: []rules.Rule{floor}, Observe: true, Learn: true}, fetchOf(t, "GET", "secret.api.test", "/"), rules.DeniedByRule, "floor", "org"},
		{"the floor's path, observed", rules.Source{Rules: []rules.Rule{refunds}, Observe: true}, fetchOf(t, "GET", "x.api.test", "/refunds/1"), rules.DeniedByRule, "floor", "refunds"},
		{"a path that the floor cannot read, observed", rules.Source{Rules: []rules.Rule{refunds}, Observe: true}, fetchOf(t, "GET", "x.api.test", "/a/../refunds/1"), rules.PathAmbiguous, "policy", ""},
		{"beside the floor's path, observed", rules.Source{Rules: []rules.Rule{refunds}, Observe: true}, fetchOf(t, "GET", "x.api.test", "/other"), rules.Allowed, "policy", ""},
		{"bytes that the floor would have to read, observed", rules.Source{Rules: []rules.Rule{refunds}, Observe: true}, rules.Request{Question: rules.Hello, Protocol: rules.Opaque, Endpoint: endpoint(t, "x.api.test")}, rules.HostNotAllowed, "policy", ""},
		{"the run narrows", rules.Source{Rules: []rules.Rule{api, run}, Narrowed: true}, fetchOf(t, "GET", "two.api.test", "/"), rules.HostNotAllowed, "run", ""},
		{"the run narrows methods", rules.Source{Rules: []rules.Rule{api, run}, Narrowed: true}, fetchOf(t, "POST", "one.api.test", "/"), rules.MethodNotAllowed, "run", ""},
		{"HT-16 the run denies a method, in another case", rules.Source{Rules: []rules.Rule{api, deny("not", "*.api.test", rules.RunScope, rules.Rule{Methods: []string{"POST"}})}, Narrowed: true}, fetchOf(t, "post", "one.api.test", "/"), rules.BadRequest, "policy", ""},
		{"the run denies a method", rules.Source{Rules: []rules.Rule{api, deny("not", "*.api.test", rules.RunScope, rules.Rule{Methods: []string{"POST"}})}, Narrowed: true}, fetchOf(t, "POST", "one.api.test", "/"), rules.DeniedByRule, "run", "not"},
		{"what both allow", rules.Source{Rules: []rules.Rule{api, run}, Narrowed: true}, fetchOf(t, "GET", "one.api.test", "/"), rules.Allowed, "policy", "api"},
		{"the run allows nothing more", rules.Source{Rules: []rules.Rule{run}, Narrowed: true}, fetchOf(t, "GET", "one.api.test", "/"), rules.HostNotAllowed, "policy", ""},
		{"a run of deny rules", rules.Source{Rules: []rules.Rule{api, deny("not", "two.api.test", rules.RunScope, rules.Rule{})}, Narrowed: true}, fetchOf(t, "GET", "two.api.test", "/"), rules.DeniedByRule, "run", "not"},
		{"beside a run of deny rules", rules.Source{Rules: []rules.Rule{api, deny("not", "two.api.test", rules.RunScope, rules.Rule{})}, Narrowed: true}, fetchOf(t, "GET", "one.api.test", "/"), rules.Allowed, "policy", "api"},
		{"a run of nothing", rules.Source{Rules: []rules.Rule{api}, Narrowed: true}, fetchOf(t, "GET", "one.api.test", "/"), rules.HostNotAllowed, "run", ""},
		{"the run, observed", rules.Source{Rules: []rules.Rule{api, run}, Narrowed: true, Observe: true}, fetchOf(t, "GET", "other.test", "/"), rules.HostNotAllowed, "policy", ""},
		{"a run's deny, observed", rules.Source{Rules: []rules.Rule{deny("not", "a.test", rules.RunScope, rules.Rule{}), deny("no", "a.test", rules.PolicyScope, rules.Rule{})}, Narrowed: true, Observe: true}, fetchOf(t, "GET", "a.test", "/"), rules.DeniedByRule, "policy", "no"},
		{"an approval", rules.Source{Rules: []rules.Rule{api, asked}}, fetchOf(t, "GET", "more.test", "/"), rules.Allowed, "approval", "asked"},
		{"an approval that has expired", rules.Source{Rules: []rules.Rule{api, allow("asked", "more.test", rules.ApprovalScope, rules.Rule{Expires: 10})}}, fetchOf(t, "GET", "more.test", "/"), rules.RuleExpired, "approval", "asked"},
		{"an approval of what the floor denies", rules.Source{Rules: []rules.Rule{floor, allow("asked", "secret.api.test", rules.ApprovalScope, rules.Rule{Expires: 100})}}, fetchOf(t, "GET", "secret.api.test", "/"), rules.DeniedByRule, "floor", "org"},
		{"an approval of what the policy denies", rules.Source{Rules: []rules.Rule{deny("no", "more.test", rules.PolicyScope, rules.Rule{}), asked}}, fetchOf(t, "GET", "more.test", "/"), rules.DeniedByRule, "policy", "no"},
		{"an approval of what the run leaves out", rules.Source{Rules: []rules.Rule{api, run, allow("asked", "two.api.test", rules.ApprovalScope, rules.Rule{Expires: 100})}, Narrowed: true}, fetchOf(t, "GET", "two.api.test", "/"), rules.Allowed, "approval", "asked"},
		{"an approval of another method", rules.Source{Rules: []rules.Rule{api, allow("asked", "more.test", rules.ApprovalScope, rules.Rule{Methods: []string{"GET"}, Expires: 100})}}, fetchOf(t, "POST", "more.test", "/"), rules.MethodNotAllowed, "policy", ""},
		{"an approval of another path", rules.Source{Rules: []rules.Rule{api, allow("asked", "more.test", rules.ApprovalScope, rules.Rule{Paths: patterns(t, "/a"), Expires: 100})}}, fetchOf(t, "GET", "more.test", "/b"), rules.PathNotAllowed, "policy", ""},
		{"an approval of another port", rules.Source{Rules: []rules.Rule{api, asked}}, fetchOf(t, "GET", "more.test:8443", "/"), rules.PortNotAllowed, "policy", ""},
		{"a rule that comes nearer than an approval", rules.Source{Rules: []rules.Rule{allow("more", "more.test", rules.PolicyScope, rules.Rule{Methods: []string{"POST"}, Paths: patterns(t, "/a")}), allow("asked", "more.test", rules.ApprovalScope, rules.Rule{Methods: []string{"GET"}, Expires: 100})}}, fetchOf(t, "POST", "more.test", "/b"), rules.PathNotAllowed, "policy", ""},
		{"what is learned", rules.Source{Learn: true}, fetchOf(t, "GET", "a.test", "/"), rules.Learned, "policy", ""},
		{"a deny rule is not learned from", rules.Source{Rules: []rules.Rule{deny("no", "a.test", rules.PolicyScope, rules.Rule{})}, Learn: true}, fetchOf(t, "GET", "a.test", "/"), rules.DeniedByRule, "policy", "no"},
		{"a rule that is learned from", rules.Source{Rules: []rules.Rule{allow("l", "a.test", rules.PolicyScope, rules.Rule{Methods: []string{"GET"}, Observe: true, Learn: true})}}, fetchOf(t, "POST", "a.test", "/"), rules.Learned, "policy", "l"},
	}
	for _, tt := range tests {
		got := compile(t, tt.src).Decide(tt.req)
		if got.Reason != tt.reason || got.Scope != tt.scope || got.Rule != tt.rule {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

// TestARunIsCarriedAsBothSay: what the run would look into is not tunnelled.
func TestARunIsCarriedAsBothSay(t *testing.T) {
	policy := rules.Rule{ID: "p", Action: rules.AllowAction, Hosts: hosts(t, "a.test"), Ports: []uint16{443}, TLS: rules.PassthroughTLS}
	run := rules.Rule{ID: "r", Action: rules.AllowAction, Hosts: hosts(t, "a.test"), Ports: []uint16{443}, Scope: rules.RunScope}
	hello := rules.Request{Question: rules.Hello, Protocol: rules.TLS, Endpoint: endpoint(t, "a.test")}
	if d := compile(t, rules.Source{Rules: []rules.Rule{policy, run}, Narrowed: true}).Decide(hello); !d.Explain || d.Reason != rules.ProtocolNotAllowed || d.Scope != "run" {
		t.Errorf("%+v", d)
	}
	run.TLS = rules.PassthroughTLS
	if d := compile(t, rules.Source{Rules: []rules.Rule{policy, run}, Narrowed: true}).Decide(hello); d.Verdict != rules.Tunnel {
		t.Errorf("%+v", d)
	}
}

func TestWhatAScopeCannotSay(t *testing.T) {
	allow := rules.Rule{ID: "r", Action: rules.AllowAction, Hosts: hosts(t, "a.test"), Ports: []uint16{443}, Expires: 10}
	in := func(s rules.Scope, f func(*rules.Rule)) rules.Rule {
		r := allow
		r.Scope = s
		f(&r)
		return r
	}
	for name, r := range map[string]rules.Rule{
		"a floor that allows":              in(rules.FloorScope, func(*rules.Rule) {}),
		"a floor that observes":            in(rules.FloorScope, func(r *rules.Rule) { r.Action, r.Expires, r.Ports, r.Observe = rules.DenyAction, 0, nil, true }),
		"a run that grants":                in(rules.RunScope, func(r *rules.Rule) { r.Credential = "c" }),
		"a run that observes":              in(rules.RunScope, func(r *rules.Rule) { r.Observe = true }),
		"a run's rule with limits":         in(rules.RunScope, func(r *rules.Rule) { r.Limits.Body = 1 }),
		"an approval that does not expire": in(rules.ApprovalScope, func(r *rules.Rule) { r.Expires = 0 }),
		"an approval that denies":          in(rules.ApprovalScope, func(r *rules.Rule) { r.Action, r.Expires = rules.DenyAction, 0 }),
		"an approval that grants":          in(rules.ApprovalScope, func(r *rules.Rule) { r.Credential = "c" }),
		"an approval of private addresses": in(rules.ApprovalScope, func(r *rules.Rule) { r.Private = cidrs("10.0.0.0/8") }),
		"a deny rule that is learned from": in(rules.PolicyScope, func(r *rules.Rule) { r.Action, r.Expires, r.Learn, r.Observe = rules.DenyAction, 0, true, true }),
		"a scope that there is not":        in(9, func(*rules.Rule) {}),
		"a limit of less than nothing":     in(rules.PolicyScope, func(r *rules.Rule) { r.Limits.Body = -1 }),
		"a limit in no time":               in(rules.PolicyScope, func(r *rules.Rule) { r.Limits.Sent = rules.Rate{N: 1} }),
	} {
		if p, err := rules.Compile(rules.Source{Rules: []rules.Rule{r}}); err == nil {
			t.Errorf("%s: %+v", name, p.Rules())
		}
	}
}

// scoped gives each rule a scope that it can have.
func scoped(t *rapid.T, list []rules.Rule) []rules.Rule {
	out := slices.Clone(list)
	for i := range out {
		r := &out[i]
		if r.Action == rules.DenyAction {
			r.Scope = rapid.SampledFrom([]rules.Scope{rules.PolicyScope, rules.FloorScope, rules.RunScope}).Draw(t, "scope")
			continue
		}
		if r.Scope = rapid.SampledFrom([]rules.Scope{rules.PolicyScope, rules.PolicyScope, rules.RunScope, rules.ApprovalScope}).Draw(t, "scope"); r.Scope != rules.PolicyScope {
			r.Credential = ""
		}
		if r.Scope == rules.ApprovalScope {
			r.Expires = 50
			if r.Private = nil; len(r.Hosts) == 0 {
				r.Scope, r.Expires, r.Private = rules.PolicyScope, 0, cidrs("8.8.8.0/24")
			}
		}
	}
	return out
}

func source(t *rapid.T, list []rules.Rule) rules.Source {
	mode := rapid.IntRange(0, 2).Draw(t, "mode")
	return rules.Source{Digest: "sha256:00", Rules: list, Narrowed: rapid.Bool().Draw(t, "narrowed"), Observe: mode > 0, Learn: mode > 1}
}

// TestTheFloorAlwaysWins: what a floor denies when everything else is let
// through is admitted under no policy, in no mode, for no run, by no approval.
func TestTheFloorAlwaysWins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list, req := scoped(t, someLists.Draw(t, "rules")), someRequests.Draw(t, "request")
		p, err := rules.Compile(source(t, list))
		if err != nil {
			t.SkipNow()
		}
		floor := slices.DeleteFunc(slices.Clone(list), func(r rules.Rule) bool { return r.Scope != rules.FloorScope })
		alone, err := rules.Compile(rules.Source{Rules: floor, Observe: true})
		if err != nil {
			t.SkipNow()
		}
		if d := alone.Decide(req); d.Scope == "floor" && admitted(p.Decide(req)) {
			t.Fatalf("%+v is %+v, and the floor says %+v", req, p.Decide(req), d)
		}
	})
}

// TestARunOnlyNarrows: what is admitted with rules of the run is admitted
// without them.
func TestARunOnlyNarrows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list, req := scoped(t, someLists.Draw(t, "rules")), someRequests.Draw(t, "request")
		src := source(t, list)
		p, err := rules.Compile(src)
		if err != nil {
			t.SkipNow()
		}
		if is, was := p.Decide(req), p.WithoutRun().Decide(req); admitted(is) && !admitted(was) {
			t.Fatalf("%+v is %+v, and without the run %+v", req, is, was)
		}
	})
}

// TestApprovalsBeatNoDeny: what is admitted with approvals and not without is
// denied by no deny rule.
func TestApprovalsBeatNoDeny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list, req := scoped(t, someLists.Draw(t, "rules")), someRequests.Draw(t, "request")
		src := source(t, list)
		p, err := rules.Compile(src)
		if err != nil {
			t.SkipNow()
		}
		src.Rules = slices.DeleteFunc(slices.Clone(list), func(r rules.Rule) bool { return r.Scope == rules.ApprovalScope })
		without, err := rules.Compile(src)
		if err != nil {
			t.SkipNow()
		}
		is, was := p.Decide(req), without.Decide(req)
		if !admitted(is) || admitted(was) {
			return
		}
		if was.Reason == rules.DeniedByRule || was.Reason == rules.PathAmbiguous && is.Rule == "" {
			t.Fatalf("%+v is %+v, and without approvals %+v", req, is, was)
		}
		if is.Scope != "approval" || is.Credential != "" {
			t.Fatalf("%+v is admitted as %+v", req, is)
		}
	})
}

// TestScopesKeepTheLaws: removing an allow rule of the policy or an approval
// admits no more, nor does adding a deny rule to any scope, and order is nothing.
func TestScopesKeepTheLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list, req := scoped(t, someLists.Draw(t, "rules")), someRequests.Draw(t, "request")
		src := source(t, list)
		p, err := rules.Compile(src)
		if err != nil {
			t.SkipNow()
		}
		src.Rules = rapid.Permutation(list).Draw(t, "order")
		q, err := rules.Compile(src)
		if err != nil {
			t.Fatal(err)
		}
		got := p.Decide(req)
		if other := q.Decide(req); fmt.Sprintf("%+v", bare(got)) != fmt.Sprintf("%+v", bare(other)) {
			t.Fatalf("%+v is %+v, and in another order %+v", req, got, other)
		}
		extra := someRules.Draw(t, "extra")
		if extra.Action == rules.AllowAction || admitted(got) {
			return
		}
		extra.ID = "extra"
		extra.Scope = rapid.SampledFrom([]rules.Scope{rules.PolicyScope, rules.FloorScope}).Draw(t, "scope")
		src.Rules = append(slices.Clone(list), extra)
		more, err := rules.Compile(src)
		if err != nil {
			return
		}
		if d := more.Decide(req); admitted(d) {
			t.Fatalf("with %+v, %+v is %+v", extra, req, d)
		}
	})
}

// bare leaves out the pointers, which differ between compilations.
func bare(d rules.Decision) rules.Decision {
	d.Limits, d.Totals = nil, nil
	return d
}

func TestBodyLimits(t *testing.T) {
	rule := rules.Rule{ID: "r", Action: rules.AllowAction, Hosts: hosts(t, "a.test"), Ports: []uint16{443}, Limits: rules.Limits{Body: 100}}
	tests := []struct {
		name   string
		src    rules.Source
		length int64
		reason rules.Reason
	}{
		{"at the limit", rules.Source{Rules: []rules.Rule{rule}}, 100, rules.Allowed},
		{"over it", rules.Source{Rules: []rules.Rule{rule}}, 101, rules.BodyTooLarge},
		{"undeclared: counted as it comes", rules.Source{Rules: []rules.Rule{rule}}, -1, rules.Allowed},
		{"over the floor's", rules.Source{Rules: []rules.Rule{rule}, Totals: rules.Totals{Floor: rules.Limits{Body: 50}}}, 51, rules.BodyTooLarge},
		{"over the run's", rules.Source{Rules: []rules.Rule{rule}, Totals: rules.Totals{Run: rules.Limits{Body: 50}}}, 51, rules.BodyTooLarge},
		{"over the floor's, observed", rules.Source{Observe: true, Totals: rules.Totals{Floor: rules.Limits{Body: 50}}}, 51, rules.HostNotAllowed},
		{"under the floor's, observed", rules.Source{Observe: true, Totals: rules.Totals{Floor: rules.Limits{Body: 50}}}, 50, rules.Allowed},
	}
	for _, tt := range tests {
		req := fetchOf(t, "POST", "a.test", "/")
		req.Length = tt.length
		if got := compile(t, tt.src).Decide(req); got.Reason != tt.reason {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

// EX-04: what a head carries has a limit of its own, by whoever sets it.
func TestHeadLimits(t *testing.T) {
	rule := rules.Rule{ID: "r", Action: rules.AllowAction, Hosts: hosts(t, "a.test"), Ports: []uint16{443}, Limits: rules.Limits{Head: 100}}
	only := func(totals rules.Totals) rules.Source {
		plain := rule
		plain.Limits = rules.Limits{}
		return rules.Source{Rules: []rules.Rule{plain}, Totals: totals}
	}
	own := rules.Source{Rules: []rules.Rule{rule}}
	fifty := rules.Limits{Head: 50}
	tests := []struct {
		name                string
		src                 rules.Source
		path, query, fields int // octets of each
		reason              rules.Reason
	}{
		{"at the limit", own, 40, 30, 27, rules.Allowed}, // and GET
		{"over it by a field", own, 40, 30, 28, rules.HeadTooLarge},
		{"over it by the query", own, 40, 31, 27, rules.HeadTooLarge},
		{"over it by the path", own, 41, 30, 27, rules.HeadTooLarge},
		{"over the floor's", only(rules.Totals{Floor: fifty}), 1, 0, 47, rules.HeadTooLarge},
		{"at the floor's", only(rules.Totals{Floor: fifty}), 1, 0, 46, rules.Allowed},
		{"over the policy's", only(rules.Totals{Policy: fifty}), 1, 47, 0, rules.HeadTooLarge},
		{"over the run's", rules.Source{Rules: []rules.Rule{rule}, Totals: rules.Totals{Run: fifty}}, 48, 0, 0, rules.HeadTooLarge},
		{"over the floor's, observed", rules.Source{Observe: true, Totals: rules.Totals{Floor: fifty}}, 48, 0, 0, rules.HostNotAllowed},
		{"at the floor's, observed", rules.Source{Observe: true, Totals: rules.Totals{Floor: fifty}}, 47, 0, 0, rules.Allowed},
		{"no limit", only(rules.Totals{}), 1000, 1000, 1000, rules.Allowed},
	}
	for _, tt := range tests {
		req := fetchOf(t, "GET", "a.test", "/"+strings.Repeat("p", tt.path-1))
		req.Query = strings.Repeat("q", tt.query)
		if tt.fields > 0 {
			req.Header = map[string][]string{"X-A": {strings.Repeat("v", tt.fields-3)}}
		}
		if got := compile(t, tt.src).Decide(req); got.Reason != tt.reason {
			t.Errorf("%s: %+v, want %s", tt.name, got, tt.reason)
		}
	}
}

// TestRemovingAnAllowOfAnyScope: without an allow rule of the policy or an approval,
// nothing is admitted that was not: neither enforced nor by what rules observe.
// Those of a run narrow, and one that is taken out may be the last that does.
func TestRemovingAnAllowOfAnyScope(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list, req := scoped(t, someLists.Draw(t, "rules")), someRequests.Draw(t, "request")
		at := slices.IndexFunc(list, func(r rules.Rule) bool { return r.Action == rules.AllowAction && r.Scope != rules.RunScope })
		if at < 0 || len(req.Carries) > 0 {
			t.SkipNow() // with a credential's rule goes what it says of callers' keys
		}
		src := source(t, list)
		p, err := rules.Compile(src)
		if err != nil {
			t.SkipNow()
		}
		src.Rules = slices.Delete(slices.Clone(list), at, at+1)
		less, err := rules.Compile(src)
		if err != nil {
			t.SkipNow()
		}
		if is, was := less.Enforced().Decide(req), p.Enforced().Decide(req); admitted(is) && !admitted(was) {
			t.Fatalf("without %+v, %+v is %+v, and was %+v", list[at], req, is, was)
		}
	})
}
