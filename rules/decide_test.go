package rules_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/rules"
)

const jan2027 = 1_800_000_000 // some second after the expired rule's last

// house is the policy that most cases are asked of.
func house(tb testing.TB) *rules.Policy {
	tb.Helper()
	return compile(tb, rules.Source{Name: "house", Digest: "sha256:aa", Rules: houseRules(tb)})
}

func houseRules(tb testing.TB) []rules.Rule {
	tb.Helper()
	allow := func(id, hostList string, f func(*rules.Rule)) rules.Rule {
		r := rules.Rule{
			ID: id, Where: id + ".yaml:1", Action: rules.AllowAction,
			Hosts: hosts(tb, strings.Fields(hostList)...), Ports: []uint16{443},
		}
		f(&r)
		return r
	}
	return []rules.Rule{
		allow("api", "api.test", func(r *rules.Rule) {
			r.Methods, r.Paths, r.Credential = []string{"GET", "POST"}, patterns(tb, "/v1/charges", "/v1/charges/*"), "key"
			r.Log = rules.LogRequest
		}),
		allow("api-status", "api.test", func(r *rules.Rule) {
			r.Methods, r.Paths = []string{"GET"}, patterns(tb, "/status")
		}),
		allow("ok", "ok.test", func(r *rules.Rule) { r.Ports, r.Methods = []uint16{80, 443}, []string{"GET", "HEAD"} }),
		allow("any", "any.test", func(*rules.Rule) {}),
		allow("wild", "*.wild.test", func(*rules.Rule) {}),
		allow("public", "files.test", func(r *rules.Rule) { r.Paths = patterns(tb, "/public/*") }),
		allow("old", "old.test", func(r *rules.Rule) { r.Expires = jan2027 - 1 }),
		allow("pinned", "pass.test", func(r *rules.Rule) { r.TLS = rules.PassthroughTLS }),
		allow("db", "db.test", func(r *rules.Rule) {
			r.Ports, r.Raw, r.Private = []uint16{5432}, true, cidrs("10.20.0.0/16")
		}),
		allow("literal", "192.0.2.7", func(r *rules.Rule) { r.Private = cidrs("192.0.2.7/32") }),
		allow("range", "", func(r *rules.Rule) { r.Private = cidrs("93.184.216.0/24", "10.1.0.0/16") }),
		{ID: "no-secret", Where: "no-secret.yaml:1", Hosts: hosts(tb, "secret.wild.test", "*.secret.wild.test")},
		{ID: "no-write", Hosts: hosts(tb, "any.test"), Methods: []string{"DELETE"}},
		{ID: "no-admin", Hosts: hosts(tb, "any.test"), Paths: patterns(tb, "/admin/**", "/a=b")},
		{ID: "no-port", Hosts: hosts(tb, "ok.test"), Ports: []uint16{80}, Methods: []string{"HEAD"}},
		{ID: "no-net", Private: cidrs("93.184.216.64/26")},
	}
}

// ask builds a request from words: "fetch GET https://host/path", "connect
// host:port", "tls host:port", "http host:port", "opaque host:port",
// "A name", "AAAA name".
func ask(tb testing.TB, s string) rules.Request {
	tb.Helper()
	words := strings.Fields(s)
	r := rules.Request{Now: jan2027, Cell: "cell"}
	stream := func(q rules.Question, p rules.Protocol) rules.Request {
		r.Question, r.Protocol, r.Endpoint = q, p, endpoint(tb, words[1])
		return r
	}
	switch words[0] {
	case "A", "AAAA", "TXT", "HTTPS":
		r.Question, r.Endpoint = rules.Resolve, endpoint(tb, words[1])
		r.Endpoint.Port = 0
		r.Type = map[string]uint16{"A": 1, "AAAA": 28, "TXT": 16, "HTTPS": 65}[words[0]]
	case "connect":
		return stream(rules.Connect, 0)
	case "tls":
		return stream(rules.Hello, rules.TLS)
	case "http":
		return stream(rules.Hello, rules.HTTP)
	case "opaque":
		return stream(rules.Hello, rules.Opaque)
	default:
		r.Question, r.Method = rules.Fetch, words[0]
		scheme, rest, _ := strings.Cut(words[1], "://")
		authority, path, _ := strings.Cut(rest, "/")
		r.Secure = scheme == "https"
		if !r.Secure && !strings.Contains(authority, ":") {
			authority += ":80"
		}
		r.Endpoint, r.Path = endpoint(tb, authority), pathOf(tb, "/"+path)
	}
	return r
}

func TestDecide(t *testing.T) {
	tests := []struct {
		in      string
		verdict rules.Verdict
		reason  rules.Reason
		rule    string
		explain bool
	}{
		// Resolve.
		{"A evil.test", rules.Deny, rules.HostNotAllowed, "", false},
		{"A wild.test", rules.Deny, rules.HostNotAllowed, "", false},
		{"A evilwild.test", rules.Deny, rules.HostNotAllowed, "", false},
		{"A secret.wild.test", rules.Deny, rules.DeniedByRule, "no-secret", false},
		{"A a.secret.wild.test", rules.Deny, rules.DeniedByRule, "no-secret", false},
		{"A old.test", rules.Deny, rules.RuleExpired, "old", false},
		{"AAAA ok.test", rules.Deny, rules.TypeNotAllowed, "", false},
		{"TXT aGVsbG8.evil.test", rules.Deny, rules.TypeNotAllowed, "", false},
		{"HTTPS ok.test", rules.Deny, rules.TypeNotAllowed, "", false},
		{"A ok.test", rules.Inspect, rules.Allowed, "ok", false},
		{"A a.b.wild.test", rules.Inspect, rules.Allowed, "wild", false},
		{"A db.test", rules.Tunnel, rules.Allowed, "db", false},
		{"A pass.test", rules.Tunnel, rules.Allowed, "pinned", false},

		// Connect.
		{"connect evil.test:443", rules.Inspect, rules.HostNotAllowed, "", true},
		{"connect ok.test.evil.test:443", rules.Inspect, rules.HostNotAllowed, "", true},
		{"connect ok.test:8443", rules.Inspect, rules.PortNotAllowed, "", true},
		{"connect old.test:443", rules.Inspect, rules.RuleExpired, "old", true},
		{"connect secret.wild.test:443", rules.Inspect, rules.DeniedByRule, "no-secret", true},
		{"connect 203.0.113.9:443", rules.Inspect, rules.AddressNotAllowed, "", true},
		{"connect 93.184.216.65:443", rules.Inspect, rules.DeniedByRule, "no-net", true},
		{"connect 10.1.2.3:22", rules.Inspect, rules.PortNotAllowed, "", true},
		{"connect [2606:4700::1]:443", rules.Inspect, rules.AddressNotAllowed, "", true},
		{"connect ok.test:443", rules.Inspect, rules.Allowed, "ok", false},
		{"connect ok.test:80", rules.Inspect, rules.Allowed, "ok", false},
		{"connect pass.test:443", rules.Inspect, rules.Allowed, "pinned", false},
		{"connect 192.0.2.7:443", rules.Inspect, rules.Allowed, "literal", false},
		{"connect 93.184.216.34:443", rules.Inspect, rules.Allowed, "range", false},
		{"connect db.test:5432", rules.Tunnel, rules.Allowed, "db", false},

		// Hello.
		{"tls evil.test:443", rules.Inspect, rules.HostNotAllowed, "", true},
		{"http evil.test:80", rules.Inspect, rules.HostNotAllowed, "", true},
		{"opaque evil.test:443", rules.Deny, rules.HostNotAllowed, "", false},
		{"opaque ok.test:8443", rules.Deny, rules.PortNotAllowed, "", false},
		{"opaque ok.test:443", rules.Deny, rules.ProtocolNotAllowed, "", false},
		{"opaque pass.test:443", rules.Deny, rules.ProtocolNotAllowed, "", false},
		{"http pass.test:443", rules.Inspect, rules.ProtocolNotAllowed, "", true},
		{"tls ok.test:443", rules.Inspect, rules.Allowed, "ok", false},
		{"http ok.test:80", rules.Inspect, rules.Allowed, "ok", false},
		{"tls pass.test:443", rules.Tunnel, rules.Allowed, "pinned", false},
		{"opaque db.test:5432", rules.Tunnel, rules.Allowed, "db", false},
		{"tls db.test:5432", rules.Tunnel, rules.Allowed, "db", false},

		// Fetch: hosts, ports, protocols.
		{"GET https://evil.test/", rules.Deny, rules.HostNotAllowed, "", false},
		{"GET https://api.test.evil.test/v1/charges", rules.Deny, rules.HostNotAllowed, "", false},
		{"GET https://203.0.113.9/", rules.Deny, rules.AddressNotAllowed, "", false},
		{"GET https://ok.test:8443/", rules.Deny, rules.PortNotAllowed, "", false},
		{"GET http://any.test/", rules.Deny, rules.PortNotAllowed, "", false},
		{"GET https://old.test/", rules.Deny, rules.RuleExpired, "old", false},
		{"GET https://pass.test/", rules.Deny, rules.ProtocolNotAllowed, "", false},
		{"GET https://db.test:5432/", rules.Deny, rules.ProtocolNotAllowed, "", false},
		{"GET https://secret.wild.test/", rules.Deny, rules.DeniedByRule, "no-secret", false},
		{"GET https://ok.test/", rules.Inspect, rules.Allowed, "ok", false},
		{"GET http://ok.test/", rules.Inspect, rules.Allowed, "ok", false},
		{"GET https://a.wild.test/", rules.Inspect, rules.Allowed, "wild", false},
		{"GET https://93.184.216.34/", rules.Inspect, rules.Allowed, "range", false},

		// Fetch: methods (HT-16).
		{"POST https://ok.test/", rules.Deny, rules.MethodNotAllowed, "", false},
		{"get https://ok.test/", rules.Deny, rules.BadRequest, "", false},
		{"delete https://any.test/", rules.Deny, rules.BadRequest, "", false},
		{"GETX https://ok.test/", rules.Deny, rules.MethodNotAllowed, "", false},
		{"PROPFIND https://ok.test/", rules.Deny, rules.MethodNotAllowed, "", false},
		{"TRACE https://ok.test/", rules.Deny, rules.MethodNotAllowed, "", false},
		{"TRACE https://any.test/", rules.Deny, rules.MethodNotAllowed, "", false},
		{"CONNECT https://any.test/", rules.Deny, rules.MethodNotAllowed, "", false},
		{"DELETE https://any.test/", rules.Deny, rules.DeniedByRule, "no-write", false},
		{"HEAD http://ok.test/", rules.Deny, rules.DeniedByRule, "no-port", false},
		{"HEAD https://ok.test/", rules.Inspect, rules.Allowed, "ok", false},
		{"PURGE https://any.test/", rules.Inspect, rules.Allowed, "any", false},

		// Fetch: paths (HT-13).
		{"POST https://api.test/v1/refunds", rules.Deny, rules.PathNotAllowed, "", false},
		{"POST https://api.test/v1/charges/", rules.Deny, rules.PathNotAllowed, "", false},
		{"POST https://api.test/v1/charges/1/2", rules.Deny, rules.PathNotAllowed, "", false},
		{"DELETE https://api.test/v1/charges", rules.Deny, rules.MethodNotAllowed, "", false},
		{"GET https://files.test/secret", rules.Deny, rules.PathNotAllowed, "", false},
		{"GET https://files.test/PUBLIC/x", rules.Deny, rules.PathNotAllowed, "", false},
		{"GET https://files.test/public/../secret", rules.Deny, rules.PathAmbiguous, "", false},
		{"GET https://files.test/public/%2e%2e/secret", rules.Deny, rules.PathAmbiguous, "", false},
		{"GET https://files.test/public/..%2fsecret", rules.Deny, rules.PathAmbiguous, "", false},
		{"GET https://files.test//public/x", rules.Deny, rules.PathAmbiguous, "", false},
		{"GET https://files.test/public/x;y", rules.Deny, rules.PathAmbiguous, "", false},
		{"GET https://files.test/public\\..\\secret", rules.Deny, rules.PathAmbiguous, "", false},
		{"GET https://files.test/public/./x", rules.Deny, rules.PathAmbiguous, "", false},
		{"GET https://any.test/x/../admin", rules.Deny, rules.PathAmbiguous, "", false},
		{"GET https://any.test/admin;x", rules.Deny, rules.PathAmbiguous, "", false},
		{"GET https://any.test/admin", rules.Deny, rules.DeniedByRule, "no-admin", false},
		{"GET https://any.test/admin/", rules.Deny, rules.DeniedByRule, "no-admin", false},
		{"GET https://any.test/ADMIN/x", rules.Deny, rules.DeniedByRule, "no-admin", false},
		{"GET https://any.test/%61dmin/x", rules.Deny, rules.DeniedByRule, "no-admin", false},
		{"GET https://any.test/a%3Db", rules.Deny, rules.DeniedByRule, "no-admin", false},
		{"GET https://any.test/a=b/", rules.Deny, rules.DeniedByRule, "no-admin", false},
		{"GET https://any.test/administrator", rules.Inspect, rules.Allowed, "any", false},
		{"GET https://files.test/%70ublic/x", rules.Inspect, rules.Allowed, "public", false},
		{"GET https://ok.test/a/../b", rules.Inspect, rules.Allowed, "ok", false}, // no rule about paths here
		{"POST https://api.test/v1/charges", rules.Inspect, rules.Allowed, "api", false},
		{"GET https://api.test/v1/charges/ch_1", rules.Inspect, rules.Allowed, "api", false},
		{"GET https://api.test/status", rules.Inspect, rules.Allowed, "api-status", false},

		// sallyport.internal.
		{"A sallyport.internal", rules.Inspect, rules.Allowed, "", false},
		{"AAAA sallyport.internal", rules.Deny, rules.TypeNotAllowed, "", false},
		{"A x.sallyport.internal", rules.Deny, rules.HostNotAllowed, "", false},
		{"connect sallyport.internal:80", rules.Inspect, rules.Allowed, "", false},
		{"connect sallyport.internal:443", rules.Inspect, rules.PortNotAllowed, "", true},
		{"connect x.sallyport.internal:80", rules.Inspect, rules.HostNotAllowed, "", true},
		{"http sallyport.internal:80", rules.Inspect, rules.Allowed, "", false},
		{"tls sallyport.internal:80", rules.Inspect, rules.ProtocolNotAllowed, "", true},
		{"opaque sallyport.internal:80", rules.Deny, rules.ProtocolNotAllowed, "", false},
		{"GET http://sallyport.internal/v1/policy", rules.Inspect, rules.Allowed, "", false},
		{"GET https://sallyport.internal:80/", rules.Deny, rules.ProtocolNotAllowed, "", false},
		{"TRACE http://sallyport.internal/", rules.Deny, rules.MethodNotAllowed, "", false},
	}
	p := house(t)
	for _, tt := range tests {
		got := p.Decide(ask(t, tt.in))
		if got.Verdict != tt.verdict || got.Reason != tt.reason || got.Rule != tt.rule || got.Explain != tt.explain {
			t.Errorf("Decide(%s) = %v %s by %q (explain %v), want %v %s by %q (explain %v)", tt.in,
				got.Verdict, got.Reason, got.Rule, got.Explain, tt.verdict, tt.reason, tt.rule, tt.explain)
		}
		if got.Policy != "sha256:aa" || got.Scope == "" {
			t.Errorf("Decide(%s): policy %q, scope %q: a decision explains itself", tt.in, got.Policy, got.Scope)
		}
		if got.Verdict == rules.Deny && got.Credential != "" {
			t.Errorf("Decide(%s) refuses and names credential %q", tt.in, got.Credential)
		}
	}
}

func TestDecisionOfARule(t *testing.T) {
	got := house(t).Decide(ask(t, "POST https://api.test/v1/charges"))
	want := rules.Decision{
		Verdict: rules.Inspect, Reason: rules.Allowed, Rule: "api", Where: "api.yaml:1", Scope: "policy",
		Credential: "key", Log: rules.LogRequest, Policy: "sha256:aa",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Decide (-want +got):\n%s", diff)
	}
	if got := house(t).Decide(ask(t, "connect api.test:443")); got.Credential != "" {
		t.Errorf("a stream is granted credential %q; only a request is", got.Credential)
	}
}

func TestDecideCarries(t *testing.T) {
	const (
		bound, foreign, leaked = rules.Bound, rules.Foreign, rules.Leaked
		charges                = "POST https://api.test/v1/charges"
	)
	tests := []struct {
		id, in     string
		carries    []rules.Carry
		reason     rules.Reason
		credential string
	}{
		{"CR-04", charges, []rules.Carry{{"key", leaked}}, rules.PlaceholderLeak, "key"},
		{"CR-04", charges, []rules.Carry{{"key", bound}, {"key", leaked}}, rules.PlaceholderLeak, "key"},
		{"CR-05", "GET https://ok.test/", []rules.Carry{{"key", bound}}, rules.PlaceholderLeak, "key"},
		{"CR-05", "GET https://evil.test/", []rules.Carry{{"key", bound}}, rules.PlaceholderLeak, "key"},
		{"CR-05", "GET https://evil.test/", []rules.Carry{{"key", leaked}}, rules.PlaceholderLeak, "key"},
		{"CR-05", "GET https://api.test/status", []rules.Carry{{"key", bound}}, rules.PlaceholderLeak, "key"},
		{"CR-05", charges, []rules.Carry{{"key", bound}, {"other", bound}}, rules.PlaceholderLeak, "other"},
		{"CR-05", charges, []rules.Carry{{"other", leaked}}, rules.PlaceholderLeak, "other"},
		{"CR-05", charges, []rules.Carry{{"key", 0}}, rules.PlaceholderLeak, "key"}, // a state nobody knows
		{"CR-05", "GET http://sallyport.internal/", []rules.Carry{{"key", bound}}, rules.PlaceholderLeak, "key"},
		{"CR-14", charges, []rules.Carry{{"key", foreign}}, rules.ForeignCredential, "key"},
		{"CR-14", charges, []rules.Carry{{"key", bound}, {"key", foreign}}, rules.ForeignCredential, "key"},
		{"EX-01", "GET https://api.test/status", []rules.Carry{{"key", foreign}}, rules.ForeignCredential, "key"},
		{"", "DELETE https://api.test/v1/charges", []rules.Carry{{"key", bound}}, rules.MethodNotAllowed, ""},
		{"", "GET https://evil.test/", []rules.Carry{{"key", foreign}}, rules.HostNotAllowed, ""},

		{"", charges, nil, rules.Allowed, "key"},
		{"", charges, []rules.Carry{{"key", bound}}, rules.Allowed, "key"},
		{"", charges, []rules.Carry{{"other", foreign}}, rules.Allowed, "key"},
		{"", "GET https://ok.test/", []rules.Carry{{"key", foreign}}, rules.Allowed, ""},
		{"", "GET http://sallyport.internal/", []rules.Carry{{"key", foreign}}, rules.Allowed, ""},
	}
	for _, tt := range tests {
		req := ask(t, tt.in)
		req.Carries = tt.carries
		got := house(t).Decide(req)
		if got.Reason != tt.reason || got.Credential != tt.credential || (got.Verdict == rules.Inspect) != (tt.reason == rules.Allowed) {
			t.Errorf("%s: Decide(%s, %v) = %v %s, credential %q, want %s, credential %q",
				tt.id, tt.in, tt.carries, got.Verdict, got.Reason, got.Credential, tt.reason, tt.credential)
		}
	}
}

// TestLeakInTheNameOfAStream: of a stream that is carried as it is, the name is all that
// can be looked at. Where requests are inspected they are judged.
func TestLeakInTheNameOfAStream(t *testing.T) {
	tests := []struct {
		in      string
		carries []rules.Carry
		verdict rules.Verdict
		reason  rules.Reason
	}{
		{"tls pass.test:443", []rules.Carry{{"key", rules.Leaked}}, rules.Deny, rules.PlaceholderLeak},
		{"tls pass.test:443", nil, rules.Tunnel, rules.Allowed},
		{"connect pass.test:443", nil, rules.Inspect, rules.Allowed},
		{"connect api.test:443", []rules.Carry{{"key", rules.Leaked}}, rules.Inspect, rules.Allowed},
	}
	for _, tt := range tests {
		req := ask(t, tt.in)
		req.Carries = tt.carries
		if got := house(t).Decide(req); got.Verdict != tt.verdict || got.Reason != tt.reason || got.Verdict == rules.Deny && got.Credential != "key" {
			t.Errorf("Decide(%s, %v) = %v %s of %q, want %v %s", tt.in, tt.carries, got.Verdict, got.Reason, got.Credential, tt.verdict, tt.reason)
		}
	}
}

// TestCallersKey: CR-14. A rule may let a caller's own key through, for what it
// matches and nothing else; a leak stays one.
func TestCallersKey(t *testing.T) {
	p := compile(t, rules.Source{Rules: []rules.Rule{
		{ID: "api", Action: rules.AllowAction, Hosts: hosts(t, "api.test"), Ports: []uint16{443}, Methods: []string{"GET"}, Credential: "key"},
		{ID: "own", Action: rules.AllowAction, Hosts: hosts(t, "api.test"), Ports: []uint16{443}, Methods: []string{"POST"}, CallersKey: true},
	}})
	tests := []struct {
		in    string
		state rules.CarryState
		want  rules.Reason
	}{
		{"GET https://api.test/", rules.Foreign, rules.ForeignCredential},
		{"POST https://api.test/", rules.Foreign, rules.Allowed},
		{"POST https://api.test/", rules.Leaked, rules.PlaceholderLeak},
		{"POST https://api.test/", rules.Bound, rules.PlaceholderLeak}, // this rule does not grant it
		{"GET https://api.test/", rules.Bound, rules.Allowed},
	}
	for _, tt := range tests {
		req := ask(t, tt.in)
		req.Carries = []rules.Carry{{Credential: "key", State: tt.state}}
		if got := p.Decide(req); got.Reason != tt.want {
			t.Errorf("Decide(%s, %v) = %v %s, want %s", tt.in, tt.state, got.Verdict, got.Reason, tt.want)
		}
	}
}

// TestCR03CredentialNeedsTLS: a request that would be given a credential is
// refused in the clear, with a placeholder or without, and not sent bare.
func TestCR03CredentialNeedsTLS(t *testing.T) {
	p := compile(t, rules.Source{Rules: []rules.Rule{{
		ID: "api", Action: rules.AllowAction, Hosts: hosts(t, "api.test"), Ports: []uint16{80, 443}, Credential: "key",
	}}})
	for _, carries := range [][]rules.Carry{nil, {{"key", rules.Bound}}} {
		req := ask(t, "GET http://api.test/v1/me")
		req.Carries = carries
		if got := p.Decide(req); got.Verdict != rules.Deny || got.Reason != rules.CredentialNeedsTLS || got.Rule != "api" {
			t.Errorf("Decide(plain, %v) = %v %s by %q, want credential_needs_tls by api", carries, got.Verdict, got.Reason, got.Rule)
		}
	}
	if got := p.Decide(ask(t, "GET https://api.test/v1/me")); got.Verdict != rules.Inspect || got.Credential != "key" {
		t.Errorf("Decide(TLS) = %v %s, credential %q", got.Verdict, got.Reason, got.Credential)
	}
}

func TestNilZeroAndEmptyPoliciesDeny(t *testing.T) {
	empty := compile(t, rules.Source{Digest: "sha256:00"})
	for _, in := range []string{"A ok.test", "connect ok.test:443", "tls ok.test:443", "GET https://ok.test/", "GET http://sallyport.internal/"} {
		for _, p := range []*rules.Policy{nil, {}} {
			if got := p.Decide(ask(t, in)); got != (rules.Decision{Reason: rules.NoPolicy}) {
				t.Errorf("no policy: Decide(%s) = %+v, want no_policy", in, got)
			}
		}
		got := empty.Decide(ask(t, in))
		if admitted := got.Verdict != rules.Deny && !got.Explain; admitted != strings.Contains(in, "sallyport.internal") {
			t.Errorf("empty policy: Decide(%s) = %+v", in, got)
		}
	}
	var p *rules.Policy
	if p.Name() != "" || p.Digest() != "" || p.Rules() != nil || p.Explain(rules.Request{}) != nil {
		t.Error("a nil policy says something")
	}
}

// TestCR19CredentialIsNoAllowance: a credential that no rule grants opens nothing.
func TestCR19CredentialIsNoAllowance(t *testing.T) {
	empty := compile(t, rules.Source{})
	req := ask(t, "GET https://api.test/")
	req.Carries = []rules.Carry{{"key", rules.Bound}}
	if got := empty.Decide(req); got.Verdict != rules.Deny || got.Reason != rules.PlaceholderLeak {
		t.Errorf("Decide = %v %s, want a leak", got.Verdict, got.Reason)
	}
}

func TestBadRequestsAreDenied(t *testing.T) {
	ok := endpoint(t, "ok.test:443")
	get := rules.Request{Question: rules.Fetch, Endpoint: ok, Method: "GET", Path: pathOf(t, "/"), Secure: true}
	mend := func(f func(*rules.Request)) rules.Request { r := get; f(&r); return r }
	tests := map[string]rules.Request{
		"zero":             {},
		"no question":      mend(func(r *rules.Request) { r.Question = 0 }),
		"unknown question": mend(func(r *rules.Request) { r.Question = 99 }),
		"no host": mend(func(r *rules.Request) {
			r.Endpoint.Host = ask(t, "A a.test").Endpoint.Host
			r.Endpoint = rules.Request{}.Endpoint
		}),
		"no port":            mend(func(r *rules.Request) { r.Endpoint.Port = 0 }),
		"no method":          mend(func(r *rules.Request) { r.Method = "" }),
		"method with space":  mend(func(r *rules.Request) { r.Method = "GET /" }),
		"method with CR":     mend(func(r *rules.Request) { r.Method = "GET\r\n" }),
		"HT-16 lower case":   mend(func(r *rules.Request) { r.Method = "get" }),
		"HT-16 mixed case":   mend(func(r *rules.Request) { r.Method = "gET" }),
		"HT-16 of no RFC":    mend(func(r *rules.Request) { r.Method = "BaselineControl" }),
		"long method":        mend(func(r *rules.Request) { r.Method = strings.Repeat("A", 33) }),
		"no path":            mend(func(r *rules.Request) { r.Path = rules.Request{}.Path }),
		"hello, no protocol": {Question: rules.Hello, Endpoint: ok},
		"unknown protocol":   {Question: rules.Hello, Endpoint: ok, Protocol: 9},
		"resolve an address": {Question: rules.Resolve, Endpoint: endpoint(t, "1.2.3.4:443"), Type: 1},
		"reach nothing":      mend(func(r *rules.Request) { r.Question = rules.Reach }),
		"reach a zone":       mend(func(r *rules.Request) { r.Question, r.Addr = rules.Reach, addr("fe80::1%eth0") }),
		"reach without path": mend(func(r *rules.Request) {
			r.Question, r.Addr, r.Path = rules.Reach, addr("93.184.216.34"), rules.Request{}.Path
		}),
	}
	p := house(t)
	for name, req := range tests {
		if got := p.Decide(req); got.Verdict != rules.Deny || got.Reason != rules.BadRequest || got.Explain {
			t.Errorf("%s: Decide = %+v, want bad_request", name, got)
		}
	}
	if got := p.Decide(get); got.Verdict != rules.Inspect {
		t.Errorf("the request that they are made from: %+v", got)
	}
}

func TestDeniedNames(t *testing.T) {
	for _, denied := range []rules.DeniedNames{rules.ExplainDenied, rules.NameErrorDenied} {
		p := compile(t, rules.Source{Rules: houseRules(t), Denied: denied})
		for in, wantError := range map[string]bool{
			"A evil.test": true, "AAAA evil.test": true, "TXT x.evil.test": true, "A secret.wild.test": true, "A x.sallyport.internal": true,
			"A ok.test": false, "AAAA ok.test": false, "A sallyport.internal": false, "AAAA sallyport.internal": false,
		} {
			if got := p.Decide(ask(t, in)); got.NameError != (wantError && denied == rules.NameErrorDenied) {
				t.Errorf("dns.denied %v: Decide(%s).NameError = %v", denied, in, got.NameError)
			}
		}
	}
}

// TestExpiry: a rule holds until the second before its expiry.
func TestExpiry(t *testing.T) {
	p := house(t)
	req := ask(t, "GET https://old.test/")
	for now, want := range map[int64]rules.Reason{
		jan2027 - 2: rules.Allowed, jan2027 - 1: rules.RuleExpired, jan2027: rules.RuleExpired, 0: rules.Allowed,
	} {
		req.Now = now
		if got := p.Decide(req); got.Reason != want {
			t.Errorf("Decide at %d = %s, want %s", now, got.Reason, want)
		}
	}
	req = ask(t, "GET https://old.test:444/")
	if got := p.Decide(req); got.Reason != rules.PortNotAllowed || got.Rule != "" {
		t.Errorf("an expired rule that would not match anyway: %s by %q", got.Reason, got.Rule)
	}
}

// TestWhichRuleSpeaks: of several that match, one speaks whatever their order.
func TestWhichRuleSpeaks(t *testing.T) {
	allow := func(id, hostText string, f func(*rules.Rule)) rules.Rule {
		r := rules.Rule{ID: id, Action: rules.AllowAction, Hosts: hosts(t, hostText), Ports: []uint16{443}}
		f(&r)
		return r
	}
	list := []rules.Rule{
		allow("a-wild", "*.x.test", func(*rules.Rule) {}),
		allow("b-exact", "a.x.test", func(*rules.Rule) {}),
		allow("c-methods", "a.x.test", func(r *rules.Rule) { r.Methods = []string{"GET"} }),
		allow("d-paths", "a.x.test", func(r *rules.Rule) { r.Paths = patterns(t, "/**") }),
		allow("e-paths", "a.x.test", func(r *rules.Rule) { r.Paths = patterns(t, "/p") }),
	}
	tests := map[string]string{
		"GET https://a.x.test/p": "d-paths", "PUT https://a.x.test/p": "d-paths", "GET https://b.x.test/p": "a-wild",
		"GET https://a.x.test/q/../p": "c-methods", "PUT https://a.x.test/q/../p": "b-exact",
	}
	for turn := range list {
		turned := append(append([]rules.Rule{}, list[turn:]...), list[:turn]...)
		p := compile(t, rules.Source{Rules: turned})
		for in, want := range tests {
			if got := p.Decide(ask(t, in)); got.Rule != want || got.Verdict != rules.Inspect {
				t.Errorf("turned by %d: Decide(%s) = %v by %q, want %q", turn, in, got.Verdict, got.Rule, want)
			}
		}
	}
}

func TestFirstConstantsRefuse(t *testing.T) {
	if rules.Deny != 0 || rules.DenyAction != 0 || rules.InspectTLS != 0 || rules.Resolve == 0 || rules.Opaque == 0 || rules.Bound == 0 {
		t.Error("a zero value lets through")
	}
}
