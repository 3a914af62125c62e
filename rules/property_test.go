package rules_test

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"sallyport/rules"
	"sallyport/rules/target"
)

// nil2 lets helpers that take a testing.TB be used in a rapid check, which is
// not one: they fail by panicking there, which rapid reports.
func nil2(*rapid.T) testing.TB { return panicTB{} }

type panicTB struct{ testing.TB }

func (panicTB) Helper()           {}
func (panicTB) Fatal(args ...any) { panic(args) }

// The world of the properties is small, so that rules and requests meet.
var (
	someHosts = []string{"a.test", "b.test", "x.a.test", "y.x.a.test", "8.8.8.8", "10.0.0.1"}
	someRules = rapid.Custom(drawRule)
	someLists = rapid.SliceOfNDistinct(someRules, 0, 6, func(r rules.Rule) string { return r.ID })
)

var someConditions = []rules.Condition{
	{In: rules.InHeader, Name: "X-Mode", Test: rules.Present},
	{In: rules.InHeader, Name: "X-Mode", Test: rules.Absent},
	{In: rules.InHeader, Name: "X-Mode", Test: rules.Equals, Value: "a"},
	{In: rules.InQuery, Name: "q", Test: rules.Present},
	{In: rules.InQuery, Name: "q", Test: rules.Absent},
	{In: rules.InQuery, Name: "q", Test: rules.Equals, Value: "a b"},
}

func drawRule(t *rapid.T) rules.Rule {
	tb := nil2(t)
	r := rules.Rule{
		ID:    rapid.SampledFrom([]string{"r1", "r2", "r3", "r4", "r5", "r6", "r7"}).Draw(t, "id"),
		Where: "p.yaml:1",
		Hosts: hosts(tb, rapid.SliceOfN(rapid.SampledFrom([]string{
			"a.test", "b.test", "x.a.test", "*.a.test", "*.x.a.test", "8.8.8.8",
		}), 1, 2).Draw(t, "hosts")...),
		Ports:   rapid.SliceOfN(rapid.SampledFrom([]uint16{80, 443}), 1, 2).Draw(t, "ports"),
		Methods: rapid.SliceOfN(rapid.SampledFrom([]string{"GET", "POST"}), 0, 1).Draw(t, "methods"),
		Paths:   rapid.SliceOfN(drawPattern, 0, 2).Draw(t, "paths"),
	}
	if rapid.IntRange(0, 2).Draw(t, "conditional") == 0 {
		r.Conditions = []rules.Condition{rapid.SampledFrom(someConditions).Draw(t, "condition")}
	}
	if rapid.Bool().Draw(t, "deny") {
		if rapid.Bool().Draw(t, "all ports") {
			r.Ports = nil
		}
		if rapid.IntRange(0, 4).Draw(t, "by range") == 0 {
			r.Hosts, r.Private = nil, cidrs("8.8.0.0/16")
		}
		return r
	}
	r.Action = rules.AllowAction
	r.Expires = rapid.SampledFrom([]int64{0, 0, 50}).Draw(t, "expires")
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0:
		r.Raw, r.Methods, r.Paths, r.Conditions = true, nil, nil, nil
	case 1:
		r.TLS, r.Methods, r.Paths, r.Conditions = rules.PassthroughTLS, nil, nil, nil
	case 2:
		r.Private = cidrs("10.0.0.0/8")
	case 3:
		r.Hosts, r.Private = nil, cidrs("8.8.8.0/24", "10.0.0.0/8")
	case 4:
		r.Credential = rapid.SampledFrom([]string{"one", "two"}).Draw(t, "credential")
	}
	return r
}

var someRequests = rapid.Custom(func(t *rapid.T) rules.Request {
	h, err := target.ParseHost(rapid.SampledFrom(someHosts).Draw(t, "host"))
	if err != nil {
		panic(err)
	}
	r := rules.Request{
		Question: rules.Question(rapid.IntRange(0, 6).Draw(t, "question")),
		Endpoint: target.Endpoint{Host: h, Port: rapid.SampledFrom([]uint16{0, 80, 443, 443}).Draw(t, "port")},
		Type:     rapid.SampledFrom([]uint16{1, 28}).Draw(t, "type"),
		Protocol: rules.Protocol(rapid.IntRange(0, 4).Draw(t, "protocol")),
		Secure:   rapid.Bool().Draw(t, "secure"),
		Method:   rapid.SampledFrom([]string{"GET", "POST", "TRACE", "", "g t"}).Draw(t, "method"),
		Path:     drawPath.Draw(t, "path"),
		Now:      rapid.SampledFrom([]int64{0, 49, 50}).Draw(t, "now"),
	}
	r.Query = rapid.SampledFrom([]string{"", "q=a%20b", "q=a+b", "Q=1", "q=%", "x;q=a%20b"}).Draw(t, "query")
	if v := rapid.SampledFrom([]string{"", "a", "A", "b"}).Draw(t, "header"); v != "" {
		r.Header = map[string][]string{rapid.SampledFrom([]string{"X-Mode", "X_mode"}).Draw(t, "name"): {v}}
	}
	if a := rapid.SampledFrom([]string{"", "8.8.8.8", "10.0.0.1", "127.0.0.1", "fe80::1%z"}).Draw(t, "addr"); a != "" {
		r.Addr = addr(a)
	}
	r.Carries = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) rules.Carry {
		return rules.Carry{
			Credential: rapid.SampledFrom([]string{"one", "two", ""}).Draw(t, "carried"),
			State:      rules.CarryState(rapid.IntRange(0, 4).Draw(t, "state")),
		}
	}), 0, 2).Draw(t, "carries")
	return r
})

// admitted reports whether a decision lets anything happen.
func admitted(d rules.Decision) bool { return d.Verdict != rules.Deny && !d.Explain }

// compiled draws rules that compile together.
func compiled(t *rapid.T, list []rules.Rule) *rules.Policy {
	p, err := rules.Compile(rules.Source{Digest: "sha256:00", Rules: list})
	if err != nil {
		t.SkipNow()
	}
	return p
}

// TestRemovingAnAllowNeverAdmitsMore. There is one thing that an allow rule
// refuses: on the hosts of a credential, a caller's own key in its place. Who
// takes the credential away takes that guard away with it, so such requests
// are left out; a placeholder is refused more, not less.
func TestRemovingAnAllowNeverAdmitsMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := someLists.Draw(t, "rules")
		full, req := compiled(t, list), someRequests.Draw(t, "request")
		if slices.ContainsFunc(req.Carries, func(c rules.Carry) bool { return c.State == rules.Foreign }) {
			return
		}
		if admitted(full.Decide(req)) {
			return
		}
		for i := range list {
			if list[i].Action != rules.AllowAction {
				continue
			}
			less := compiled(t, slices.Delete(slices.Clone(list), i, i+1))
			if got := less.Decide(req); admitted(got) {
				t.Fatalf("without %s, %+v is %v by %q", list[i].ID, req, got.Verdict, got.Rule)
			}
		}
	})
}

func TestAddingADenyNeverAdmitsMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := someLists.Draw(t, "rules")
		before, req := compiled(t, list), someRequests.Draw(t, "request")
		extra := someRules.Draw(t, "extra")
		if extra.Action == rules.AllowAction {
			return
		}
		extra.ID = "extra"
		after := compiled(t, append(slices.Clone(list), extra))
		was, is := before.Decide(req), after.Decide(req)
		if admitted(is) && !admitted(was) {
			t.Fatalf("with %+v, %+v is %v by %q", extra, req, is.Verdict, is.Rule)
		}
		if admitted(is) && was != is {
			t.Fatalf("a deny rule that does not match changed %+v to %+v", was, is)
		}
	})
}

func TestOrderNeverMatters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := someLists.Draw(t, "rules")
		p, req := compiled(t, list), someRequests.Draw(t, "request")
		q := compiled(t, rapid.Permutation(list).Draw(t, "order"))
		if a, b := p.Decide(req), q.Decide(req); a != b {
			t.Fatalf("%+v is %+v, and in another order %+v", req, a, b)
		}
	})
}

// TestDecideMeansWhatItSays compares the index with a walk over all rules, and
// holds every decision to what any decision must be.
func TestDecideMeansWhatItSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := someLists.Draw(t, "rules")
		p, req := compiled(t, list), someRequests.Draw(t, "request")
		got := p.Decide(req)
		if got.Reason == "" || !slices.Contains(rules.Reasons(), got.Reason) {
			t.Fatalf("%+v: reason %q", req, got.Reason)
		}
		if admitted(got) != (got.Reason == rules.Allowed) || got.Explain && got.Verdict != rules.Inspect {
			t.Fatalf("%+v is %+v: verdict and reason differ", req, got)
		}
		if got.Verdict == rules.Tunnel && req.Question == rules.Fetch {
			t.Fatalf("%+v: a request is tunnelled", req)
		}
		if !admitted(got) {
			return
		}
		var speaker *rules.Rule
		for i := range list {
			r := &list[i]
			about := slices.ContainsFunc(r.Hosts, func(h rules.HostPattern) bool { return h.Match(req.Endpoint.Host) })
			if a, ok := req.Endpoint.Host.Addr(); ok && len(r.Hosts) == 0 && slices.ContainsFunc(r.Private, func(p netip.Prefix) bool { return p.Contains(a) }) {
				about = true
			}
			if r.ID == got.Rule && about {
				speaker = r
			}
			if about && r.Action == rules.DenyAction && r.Ports == nil && r.Methods == nil && r.Paths == nil && r.Conditions == nil {
				t.Fatalf("%+v is admitted, and %s denies its host", req, r.ID)
			}
		}
		if speaker == nil || speaker.Action != rules.AllowAction || speaker.Expires != 0 && req.Now >= speaker.Expires {
			t.Fatalf("%+v is admitted by %q, which is not about it", req, got.Rule)
		}
		if req.Question != rules.Resolve && !slices.Contains(speaker.Ports, req.Endpoint.Port) {
			t.Fatalf("%+v is admitted by %q, on another port", req, got.Rule)
		}
	})
}

func TestNoPolicyAdmitsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		req := someRequests.Draw(t, "request")
		var none *rules.Policy
		for _, p := range []*rules.Policy{none, {}, compiled(t, nil)} {
			if got := p.Decide(req); admitted(got) {
				t.Fatalf("%+v is %+v", req, got)
			}
			p.Explain(req)
			p.Follow(req)
		}
	})
}

// TestReachIsNarrower: an address is reached only for what is admitted.
func TestReachIsNarrower(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, req := compiled(t, someLists.Draw(t, "rules")), someRequests.Draw(t, "request")
		req.Question = rules.Reach
		got := p.Decide(req)
		if got.Explain {
			t.Fatalf("%+v: an address is explained", req)
		}
		if !admitted(got) {
			return
		}
		stream := req
		switch {
		case req.Method != "":
			stream.Question = rules.Fetch
		case req.Protocol != 0:
			stream.Question = rules.Hello
		default:
			stream.Question = rules.Connect
		}
		if was := p.Decide(stream); was != got {
			t.Fatalf("%+v is reached as %+v and was admitted as %+v", req, got, was)
		}
	})
}
