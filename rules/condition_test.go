package rules_test

import (
	"testing"

	"sallyport/rules"
)

func header(name string, test rules.Test, value string) rules.Condition {
	return rules.Condition{In: rules.InHeader, Name: name, Test: test, Value: value}
}

func param(name string, test rules.Test, value string) rules.Condition {
	return rules.Condition{In: rules.InQuery, Name: name, Test: test, Value: value}
}

// TestConditions holds each condition against requests, in an allow rule, which
// takes it narrowly, and in a deny rule, which takes it widely.
func TestConditions(t *testing.T) {
	tests := []struct {
		name   string
		c      rules.Condition
		query  string
		header map[string][]string
		// met by an allow rule, and by a deny rule
		allow, deny bool
	}{
		{"header present", header("X-Mode", rules.Present, ""), "", map[string][]string{"X-Mode": {"a"}}, true, true},
		{"header missing", header("X-Mode", rules.Present, ""), "", nil, false, false},
		{"header in the spelling of CGI", header("X-Mode", rules.Present, ""), "", map[string][]string{"X_mode": {"a"}}, false, true},
		{"header equal", header("X-Mode", rules.Equals, "a"), "", map[string][]string{"X-Mode": {"a"}}, true, true},
		{"header in another case", header("X-Mode", rules.Equals, "a"), "", map[string][]string{"X-Mode": {"A"}}, false, true},
		{"header in a list", header("X-Mode", rules.Equals, "a"), "", map[string][]string{"X-Mode": {"b, a"}}, false, true},
		{"header twice", header("X-Mode", rules.Equals, "a"), "", map[string][]string{"X-Mode": {"a", "b"}}, false, true},
		{"header twice the same", header("X-Mode", rules.Equals, "a"), "", map[string][]string{"X-Mode": {"a", "a"}}, true, true},
		{"header with another value", header("X-Mode", rules.Equals, "a"), "", map[string][]string{"X-Mode": {"ab"}}, false, false},
		{"header absent", header("X-Mode", rules.Absent, ""), "", nil, true, true},
		{"header not absent", header("X-Mode", rules.Absent, ""), "", map[string][]string{"X-Mode": {""}}, false, false},
		{"header perhaps absent", header("X-Mode", rules.Absent, ""), "", map[string][]string{"X_mode": {"a"}}, false, true},

		{"parameter present", param("q", rules.Present, ""), "a=1&q", nil, true, true},
		{"parameter missing", param("q", rules.Present, ""), "a=q", nil, false, false},
		{"no query", param("q", rules.Present, ""), "", nil, false, false},
		{"parameter in another case", param("q", rules.Present, ""), "Q=1", nil, false, true},
		{"parameter of a list", param("q", rules.Present, ""), "q[]=1", nil, false, true},
		{"parameter of a list, escaped", param("q", rules.Present, ""), "q%5b0%5D=1", nil, false, true},
		{"parameter, escaped", param("q", rules.Present, ""), "%71=1", nil, true, true},
		{"parameter equal", param("q", rules.Equals, "a b"), "q=a%20b", nil, true, true},
		{"parameter with a plus", param("q", rules.Equals, "a b"), "q=a+b", nil, false, true},
		{"parameter that is a plus", param("q", rules.Equals, "a+b"), "q=a%2Bb", nil, true, true},
		{"parameter that may be a plus", param("q", rules.Equals, "a+b"), "q=a+b", nil, false, true},
		{"parameter twice", param("q", rules.Equals, "a"), "q=b&q=a", nil, false, true},
		{"parameter twice the same", param("q", rules.Equals, "a"), "q=a&x=1&q=%61", nil, true, true},
		{"parameter and another like it", param("q", rules.Equals, "a"), "q=a&Q=b", nil, false, true},
		{"parameter with another value", param("q", rules.Equals, "a"), "q=ab", nil, false, false},
		{"parameter without a value", param("q", rules.Equals, "a"), "q", nil, false, false},
		{"parameter absent", param("q", rules.Absent, ""), "a=q", nil, true, true},
		{"parameter not absent", param("q", rules.Absent, ""), "q=", nil, false, false},
		{"parameter perhaps absent", param("q", rules.Absent, ""), "Q=1", nil, false, true},
	}
	for _, tt := range tests {
		for _, action := range []rules.Action{rules.AllowAction, rules.DenyAction} {
			want := tt.deny
			list := []rules.Rule{{
				ID: "r", Where: "p:1", Action: action, Hosts: hosts(t, "a.test"), Ports: []uint16{443}, Conditions: []rules.Condition{tt.c},
			}}
			if action == rules.AllowAction {
				want = tt.allow
			} else {
				list = append(list, rules.Rule{ID: "all", Where: "p:2", Action: rules.AllowAction, Hosts: hosts(t, "a.test"), Ports: []uint16{443}})
			}
			p := compile(t, rules.Source{Rules: list})
			req := rules.Request{
				Question: rules.Fetch, Secure: true, Method: "GET", Endpoint: endpoint(t, "a.test"), Path: pathOf(t, "/"),
				Query: tt.query, Header: tt.header,
			}
			got := p.Decide(req)
			if (got.Rule == "r") != want {
				t.Errorf("%s, %v: %+v", tt.name, action, got)
			}
			reason := rules.Reason("")
			switch {
			case action == rules.DenyAction && want:
				reason = rules.DeniedByRule
			case action == rules.DenyAction || want:
				reason = rules.Allowed
			case tt.c.In == rules.InQuery:
				reason = rules.QueryNotAllowed
			default:
				reason = rules.HeaderNotAllowed
			}
			if got.Reason != reason {
				t.Errorf("%s, %v: %s, want %s", tt.name, action, got.Reason, reason)
			}
			// A stream is opened all the same: what is in it is judged later.
			if d := p.Decide(rules.Request{Question: rules.Hello, Protocol: rules.TLS, Endpoint: req.Endpoint}); d.Verdict != rules.Inspect || d.Explain {
				t.Errorf("%s, %v: the stream is %+v", tt.name, action, d)
			}
		}
	}
}

// TestQueryWithTwoReadings: no condition of an allow rule is met by it, and a
// deny rule that would have to judge it refuses.
func TestQueryWithTwoReadings(t *testing.T) {
	allow := rules.Rule{ID: "open", Where: "p:1", Action: rules.AllowAction, Hosts: hosts(t, "a.test"), Ports: []uint16{443}}
	deny := rules.Rule{ID: "no", Where: "p:2", Hosts: hosts(t, "a.test"), Paths: patterns(t, "/admin"), Conditions: []rules.Condition{param("q", rules.Equals, "x")}}
	only := allow
	only.ID, only.Conditions = "only", []rules.Condition{param("q", rules.Absent, "")}
	for _, q := range []string{"a=1;b=2", "a=%", "a=%z1", "a=%00"} {
		ask := func(path string, list ...rules.Rule) rules.Reason {
			return compile(t, rules.Source{Rules: list}).Decide(rules.Request{
				Question: rules.Fetch, Secure: true, Method: "GET", Endpoint: endpoint(t, "a.test"), Path: pathOf(t, path), Query: q,
			}).Reason
		}
		if got := ask("/admin", only); got != rules.QueryAmbiguous {
			t.Errorf("%q, allowed on a condition: %s", q, got)
		}
		if got := ask("/admin", allow, deny); got != rules.QueryAmbiguous {
			t.Errorf("%q, denied on a condition: %s", q, got)
		}
		if got := ask("/other", allow, deny); got != rules.Allowed {
			t.Errorf("%q, where nobody has to judge it: %s", q, got)
		}
	}
}

func TestConditionsThatCannotBeJudged(t *testing.T) {
	allow := func(r rules.Rule) rules.Rule {
		r.ID, r.Action, r.Hosts = "r", rules.AllowAction, hosts(t, "a.test")
		if r.Ports == nil {
			r.Ports = []uint16{443}
		}
		return r
	}
	equal := []rules.Condition{header("X-Mode", rules.Equals, "a")}
	tests := []struct {
		name string
		list []rules.Rule
		want string
	}{
		{"tcp", []rules.Rule{allow(rules.Rule{Raw: true, Conditions: equal})}, `rule "r": protocol: protocol: tcp does not look at requests, so headers and queries cannot be judged`},
		{"passthrough", []rules.Rule{allow(rules.Rule{TLS: rules.PassthroughTLS, Conditions: equal})}, `rule "r": tls: tls: passthrough does not look at requests, so headers and queries cannot be judged`},
		{"beside tcp", []rules.Rule{allow(rules.Rule{Raw: true}), {ID: "no", Hosts: hosts(t, "a.test"), Conditions: equal}}, `rule "no": hosts: meets rule "r" on one host and port: one denies by method, path, header or query what the other carries unseen`},
		{"a body of a stream", []rules.Rule{allow(rules.Rule{Raw: true, Limits: rules.Limits{Body: 1}})}, `rule "r": protocol: protocol: tcp does not look at requests, so the size of their bodies cannot be limited: say sent`},
		{"HT-16 a header that is taken out", []rules.Rule{allow(rules.Rule{Conditions: []rules.Condition{header("X-Forwarded-Uri", rules.Equals, "a")}})}, `rule "r": headers: X-Forwarded-Uri cannot be a condition: the gateway takes it out of every request`},
		{"HT-16 another", []rules.Rule{allow(rules.Rule{Conditions: []rules.Condition{header("X-Host", rules.Equals, "a")}})}, `rule "r": headers: X-Host cannot be a condition: the gateway takes it out of every request`},
		{"host", []rules.Rule{allow(rules.Rule{Conditions: []rules.Condition{header("Host", rules.Equals, "a")}})}, `rule "r": headers: Host cannot be a condition: it is the authority: say host`},
		{"a secret", []rules.Rule{allow(rules.Rule{Conditions: []rules.Condition{header("Authorization", rules.Equals, "Bearer x")}})}, `rule "r": headers: the value of Authorization is a secret, and a policy holds none: ask whether it is present`},
		{"not canonical", []rules.Rule{allow(rules.Rule{Conditions: []rules.Condition{header("x-mode", rules.Present, "")}})}, `rule "r": headers: "x-mode" is not how this header is spelled; write "X-Mode"`},
		{"twice", []rules.Rule{allow(rules.Rule{Conditions: []rules.Condition{param("q", rules.Present, ""), param("q", rules.Equals, "a")}})}, `rule "r": query: q stands twice`},
		{"nothing", []rules.Rule{allow(rules.Rule{Conditions: []rules.Condition{{}}})}, `rule "r": query: a condition that says nothing`},
	}
	for _, tt := range tests {
		_, err := rules.Compile(rules.Source{Rules: tt.list})
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}

// TestConditionsTellRulesApart: rules that no request can match both may differ
// in what they grant.
func TestConditionsTellRulesApart(t *testing.T) {
	rule := func(id, credential string, c rules.Condition) rules.Rule {
		return rules.Rule{
			ID: id, Action: rules.AllowAction, Hosts: hosts(t, "a.test"), Ports: []uint16{443}, Credential: credential,
			Conditions: []rules.Condition{c},
		}
	}
	tests := []struct {
		a, b rules.Condition
		ok   bool
	}{
		{header("X-Mode", rules.Equals, "a"), header("X-Mode", rules.Equals, "b"), true},
		{header("X-Mode", rules.Present, ""), header("X-Mode", rules.Absent, ""), true},
		{header("X-Mode", rules.Equals, "a"), header("X-Mode", rules.Absent, ""), true},
		{param("q", rules.Equals, "a"), param("q", rules.Equals, "b"), true},
		{header("X-Mode", rules.Equals, "a"), header("X-Mode", rules.Present, ""), false},
		{header("X-Mode", rules.Equals, "a"), header("X-Mode", rules.Equals, "a"), false},
		{header("X-Mode", rules.Equals, "a"), header("X-Other", rules.Absent, ""), false},
		{header("Q", rules.Equals, "a"), param("Q", rules.Equals, "b"), false},
	}
	for _, tt := range tests {
		_, err := rules.Compile(rules.Source{Rules: []rules.Rule{rule("one", "x", tt.a), rule("two", "y", tt.b)}})
		if (err == nil) != tt.ok {
			t.Errorf("%v, %v: %v", tt.a, tt.b, err)
		}
	}
}

// TestExplainNamesConditions, with what they ask for, and never what was sent.
func TestExplainNamesConditions(t *testing.T) {
	p := compile(t, rules.Source{Rules: []rules.Rule{
		{ID: "api", Action: rules.AllowAction, Hosts: hosts(t, "a.test"), Ports: []uint16{443}, Conditions: []rules.Condition{header("X-Mode", rules.Equals, "wanted")}},
		{ID: "no", Hosts: hosts(t, "a.test"), Conditions: []rules.Condition{param("debug", rules.Present, "")}},
	}})
	notes := p.Explain(rules.Request{
		Question: rules.Fetch, Secure: true, Method: "GET", Endpoint: endpoint(t, "a.test"), Path: pathOf(t, "/"),
		Header: map[string][]string{"X-Mode": {"sent"}},
	})
	if len(notes) != 2 || notes[1].Text != "denies requests with parameter debug present" || notes[0].Text != "asks for header X-Mode with the value \"wanted\"" || notes[0].Reason != rules.HeaderNotAllowed {
		t.Errorf("%+v", notes)
	}
}
