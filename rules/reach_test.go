package rules_test

import (
	"testing"

	"sallyport/rules"
)

func TestDecideReach(t *testing.T) {
	tests := []struct {
		id, in, addr string
		verdict      rules.Verdict
		reason       rules.Reason
		rule         string
	}{
		{"IP-12", "GET https://ok.test/", "10.0.0.5", rules.Deny, rules.PrivateIP, "ok"},
		{"IP-19", "GET https://ok.test/", "10.1.2.3", rules.Deny, rules.PrivateIP, "ok"},
		{"IP-19", "GET https://evil.test/", "93.184.216.34", rules.Deny, rules.HostNotAllowed, ""},
		{"NM-22", "GET https://ok.test/", "93.184.216.65", rules.Deny, rules.DeniedByRule, "no-net"},
		{"NM-22", "tls pass.test:443", "93.184.216.65", rules.Deny, rules.DeniedByRule, "no-net"},
		{"NM-22", "connect db.test:5432", "93.184.216.65", rules.Deny, rules.DeniedByRule, "no-net"},
		{"", "POST https://ok.test/", "93.184.216.34", rules.Deny, rules.MethodNotAllowed, ""},
		{"", "connect evil.test:443", "93.184.216.34", rules.Deny, rules.HostNotAllowed, ""},
		{"", "connect db.test:5432", "10.21.0.1", rules.Deny, rules.PrivateIP, "db"},
		{"", "GET http://sallyport.internal/", "93.184.216.34", rules.Deny, rules.PrivateIP, ""},
		{"", "connect sallyport.internal:80", "198.18.0.1", rules.Deny, rules.PrivateIP, ""},
		{"", "connect 192.0.2.7:443", "192.0.2.8", rules.Deny, rules.BadRequest, ""},

		{"", "GET https://ok.test/", "93.184.216.34", rules.Inspect, rules.Allowed, "ok"},
		{"", "tls pass.test:443", "93.184.216.34", rules.Tunnel, rules.Allowed, "pinned"},
		{"", "connect db.test:5432", "10.20.0.1", rules.Tunnel, rules.Allowed, "db"},
		{"", "connect db.test:5432", "::ffff:10.20.0.1", rules.Tunnel, rules.Allowed, "db"},
		{"", "GET https://192.0.2.7/", "192.0.2.7", rules.Inspect, rules.Allowed, "literal"},
		{"", "GET https://10.1.2.3/", "10.1.2.3", rules.Inspect, rules.Allowed, "range"},
	}
	p := house(t)
	for _, tt := range tests {
		req := ask(t, tt.in)
		req.Question, req.Addr = rules.Reach, addr(tt.addr)
		got := p.Decide(req)
		if got.Verdict != tt.verdict || got.Reason != tt.reason || got.Rule != tt.rule || got.Explain {
			t.Errorf("%s: Reach(%s at %s) = %v %s by %q, want %v %s by %q",
				tt.id, tt.in, tt.addr, got.Verdict, got.Reason, got.Rule, tt.verdict, tt.reason, tt.rule)
		}
	}
}

func TestFollow(t *testing.T) {
	p := house(t)
	tests := []struct {
		in     string
		want   rules.Verdict
		reason rules.Reason
	}{
		{"GET https://evil.test/", rules.Deny, rules.HostNotAllowed},
		{"POST https://ok.test/", rules.Deny, rules.MethodNotAllowed},
		{"GET http://pass.test:443/", rules.Deny, rules.ProtocolNotAllowed},
		{"connect evil.test:443", rules.Deny, rules.HostNotAllowed},
		{"A evil.test", rules.Deny, rules.HostNotAllowed},
		{"GET https://ok.test/", rules.Inspect, rules.Allowed},
		{"GET https://pass.test/x", rules.Tunnel, rules.Allowed},
		{"GET https://db.test:5432/", rules.Tunnel, rules.Allowed},
		{"connect ok.test:443", rules.Inspect, rules.Allowed},
	}
	for _, tt := range tests {
		if got := p.Follow(ask(t, tt.in)); got.Verdict != tt.want || got.Reason != tt.reason || got.Explain {
			t.Errorf("Follow(%s) = %v %s (explain %v), want %v %s", tt.in, got.Verdict, got.Reason, got.Explain, tt.want, tt.reason)
		}
	}
}

// TestReachRefusesAPathThatARangeCannotJudge: a deny rule about addresses is no
// more to be walked round by a second reading of a path than one about names.
func TestReachRefusesAPathThatARangeCannotJudge(t *testing.T) {
	p := compile(t, rules.Source{Rules: []rules.Rule{
		{ID: "any", Action: rules.AllowAction, Hosts: hosts(t, "any.test"), Ports: []uint16{443}},
		{ID: "no", Private: cidrs("93.184.216.0/24"), Paths: patterns(t, "/admin/**")},
	}})
	for in, want := range map[string]rules.Verdict{
		"GET https://any.test/x/../admin/y": rules.Deny,
		"GET https://any.test//admin":       rules.Deny,
		"GET https://any.test/admin/y":      rules.Deny,
		"GET https://any.test/other":        rules.Inspect,
	} {
		req := ask(t, in)
		req.Question, req.Addr = rules.Reach, addr("93.184.216.34")
		if got := p.Decide(req); got.Verdict != want {
			t.Errorf("Reach(%s) = %v (%s), want %v", in, got.Verdict, got.Reason, want)
		}
		if req.Addr = addr("1.1.1.1"); p.Decide(req).Verdict != rules.Inspect {
			t.Errorf("Reach(%s) elsewhere is refused", in)
		}
	}
}
