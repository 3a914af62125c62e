package rules_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"sallyport/rules"
)

func observing(list []rules.Rule, on func(i int) bool) []rules.Rule {
	out := slices.Clone(list)
	for i := range out {
		out[i].Observe = on(i)
	}
	return out
}

// TestObserveAdmitsASuperset: what is enforced is admitted in the same way,
// what is let through says why it would not be, and no guard is widened.
func TestObserveAdmitsASuperset(t *testing.T) {
	guards := []rules.Reason{
		rules.PrivateIP, rules.PlaceholderLeak, rules.ForeignCredential, rules.CredentialNeedsTLS, rules.BadRequest, rules.TypeNotAllowed,
	}
	rapid.Check(t, func(t *rapid.T) {
		list, req := someLists.Draw(t, "rules"), someRequests.Draw(t, "request")
		enforced := compiled(t, list)
		mask := rapid.IntRange(0, 63).Draw(t, "observed rules")
		some := observing(list, func(i int) bool { return mask>>i&1 == 1 })
		whole := rapid.Bool().Draw(t, "whole")
		p, err := rules.Compile(rules.Source{Digest: "sha256:00", Rules: some, Observe: whole})
		if err != nil {
			t.Fatal(err)
		}
		was, is := enforced.Decide(req), p.Decide(req)
		if p.Enforced().Decide(req) != was {
			t.Fatalf("%+v: Enforced is not what is enforced", req)
		}
		switch {
		case admitted(was) && is != was:
			t.Fatalf("%+v is admitted as %+v, and observed as %+v", req, was, is)
		case admitted(was):
		case admitted(is) && (is.Observed != was.Reason || slices.Contains(guards, was.Reason)):
			t.Fatalf("%+v is denied (%+v) and let through (%+v)", req, was, is)
		case !admitted(is) && is != was:
			t.Fatalf("%+v is denied as %+v, and observed as %+v", req, was, is)
		case admitted(is) && !whole && p.Loosest().Decide(req).Verdict != is.Verdict:
			t.Fatalf("%+v is let through (%+v), and not by the loosest", req, is)
		case admitted(is) && is.Credential != "" && !slices.ContainsFunc(list, func(r rules.Rule) bool {
			return r.Credential == is.Credential && (len(r.Methods) == 0 || slices.Contains(r.Methods, req.Method)) &&
				(len(r.Paths) == 0 || slices.ContainsFunc(r.Paths, func(q rules.PathPattern) bool { return q.Match(req.Path) }))
		}):
			t.Fatalf("%+v is granted %q, which no rule grants to it", req, is.Credential)
		}
	})
}

func TestObserve(t *testing.T) {
	api := rules.Rule{
		ID: "api", Where: "p:1", Action: rules.AllowAction, Hosts: hosts(t, "api.test"), Ports: []uint16{443},
		Methods: []string{"GET"}, Paths: patterns(t, "/v1/**"), Credential: "key", Observe: true,
	}
	deny := rules.Rule{ID: "no", Where: "p:2", Hosts: hosts(t, "api.test"), Paths: patterns(t, "/v1/admin"), Observe: true}
	fetch := func(method, at, path string) rules.Request {
		return rules.Request{Question: rules.Fetch, Secure: true, Method: method, Endpoint: endpoint(t, at), Path: pathOf(t, path)}
	}
	tests := []struct {
		name     string
		whole    bool
		req      rules.Request
		verdict  rules.Verdict
		observed rules.Reason
		rule     string
		grant    string
	}{
		{"as the rule says", false, fetch("GET", "api.test", "/v1/x"), rules.Inspect, "", "api", "key"},
		{"another method", false, fetch("POST", "api.test", "/v1/x"), rules.Inspect, rules.MethodNotAllowed, "api", ""},
		{"another path", false, fetch("GET", "api.test", "/v2"), rules.Inspect, rules.PathNotAllowed, "api", ""},
		{"what the deny rule would deny", false, fetch("GET", "api.test", "/v1/admin"), rules.Inspect, rules.DeniedByRule, "no", "key"},
		{"a path that it would have to read", false, fetch("GET", "api.test", "/v1/x/../admin"), rules.Inspect, rules.PathAmbiguous, "api", ""},
		{"another port", false, fetch("GET", "api.test:8443", "/v1/x"), rules.Deny, "", "", ""},
		{"another port, as a whole", true, fetch("GET", "api.test:8443", "/v1/x"), rules.Inspect, rules.PortNotAllowed, "", ""},
		{"another host", false, fetch("GET", "b.test", "/"), rules.Deny, "", "", ""},
		{"another host, as a whole", true, fetch("GET", "b.test", "/"), rules.Inspect, rules.HostNotAllowed, "", ""},
		{"a method that nobody has", true, fetch("TRACE", "b.test", "/"), rules.Deny, "", "", ""},
		{"the gateway's own name", true, fetch("GET", "sallyport.internal:443", "/"), rules.Deny, "", "", ""},
		{"any bytes", true, rules.Request{Question: rules.Hello, Protocol: rules.Opaque, Endpoint: endpoint(t, "b.test")}, rules.Tunnel, rules.HostNotAllowed, "", ""},
		{"a private address", true, rules.Request{Question: rules.Reach, Method: "GET", Path: pathOf(t, "/"), Endpoint: endpoint(t, "b.test"), Addr: addr("169.254.169.254")}, rules.Deny, "", "", ""},
		{"a public address", true, rules.Request{Question: rules.Reach, Method: "GET", Path: pathOf(t, "/"), Endpoint: endpoint(t, "b.test"), Addr: addr("8.8.8.8")}, rules.Inspect, rules.HostNotAllowed, "", ""},
		{"a TXT record", true, rules.Request{Question: rules.Resolve, Type: 16, Endpoint: rules.Request{}.Endpoint}, rules.Deny, "", "", ""},
	}
	for _, tt := range tests {
		p := compile(t, rules.Source{Rules: []rules.Rule{api, deny}, Observe: tt.whole})
		got := p.Decide(tt.req)
		if got.Verdict != tt.verdict || got.Observed != tt.observed || got.Rule != tt.rule || got.Credential != tt.grant {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

func TestObservingDoesNotAllocate(t *testing.T) {
	p := compile(t, rules.Source{Observe: true})
	req := rules.Request{Question: rules.Fetch, Secure: true, Method: "GET", Endpoint: endpoint(t, "b.test"), Path: pathOf(t, "/")}
	if n := testing.AllocsPerRun(100, func() { p.Decide(req) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
