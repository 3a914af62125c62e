package rules_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/rules"
)

func TestExplain(t *testing.T) {
	tests := []struct {
		in   string
		want []string // "rule: reason: text", "rule+: …" for one that matches
	}{
		{"POST https://api.test/v1/refunds", []string{
			"api: path_not_allowed: path /v1/refunds matches none of /v1/charges, /v1/charges/*",
			"api-status: method_not_allowed: method \"POST\" is none of GET",
		}},
		{"GET https://api.test:8443/status", []string{
			"api: port_not_allowed: port 8443 is none of 443", "api-status: port_not_allowed: port 8443 is none of 443",
		}},
		{"GET https://any.test/x/../y", []string{
			"no-admin: : the path has two readings, and the rule has to judge paths", "no-write: : denies other methods: DELETE", "any+: : matches",
		}},
		{"GET https://any.test/x", []string{
			"no-admin: : denies other paths: /admin/**, /a=b", "no-write: : denies other methods: DELETE", "any+: : matches",
		}},
		{"DELETE https://any.test/x", []string{
			"no-admin: : denies other paths: /admin/**, /a=b", "no-write+: : denies this", "any+: : matches",
		}},
		{"TRACE https://any.test/x", []string{
			"no-admin: : denies other paths: /admin/**, /a=b", "no-write: : denies other methods: DELETE", "any: method_not_allowed: TRACE cannot be allowed",
		}},
		{"connect any.test:443", []string{
			"no-admin: : denies some requests to this host only", "no-write: : denies some requests to this host only", "any+: : matches",
		}},
		{"GET https://files.test/public/;x", []string{"public: path_ambiguous: path /public/;x has two readings"}},
		{"GET https://old.test/", []string{"old: rule_expired: would match, but has expired"}},
		{"GET https://pass.test/", []string{"pinned: protocol_not_allowed: carries streams without looking into them, and this is a request"}},
		{"A ok.test", []string{"no-port: : denies some ports of this host only: 80", "ok+: : matches"}},
		{"HEAD https://ok.test/", []string{"no-port: : denies other ports: 80", "ok+: : matches"}},
		{"GET https://wild.test/", []string{
			"no-secret: : secret.wild.test is below wild.test",
			"wild: host_not_allowed: *.wild.test is every name below wild.test, not wild.test itself",
		}},
		{"GET https://www.ok.test/", []string{
			"no-port: : ok.test is that name alone, not the names below it",
			"ok: host_not_allowed: ok.test is that name alone, not the names below it",
		}},
		{"GET https://ap.test/", []string{
			"api: host_not_allowed: api.test is spelled like it, but is another name",
			"api-status: host_not_allowed: api.test is spelled like it, but is another name",
		}},
		{"GET https://evil.example/", nil},
		{"GET https://203.0.113.9/", nil},
	}
	p := house(t)
	for _, tt := range tests {
		var got []string
		for _, n := range p.Explain(ask(t, tt.in)) {
			mark := ""
			if n.Matches {
				mark = "+"
			}
			got = append(got, n.Rule+mark+": "+string(n.Reason)+": "+n.Text)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("Explain(%s) (-want +got):\n%s", tt.in, diff)
		}
	}
	notes := p.Explain(ask(t, "GET https://old.test/"))
	want := []rules.RuleNote{{Rule: "old", Where: "old.yaml:1", Action: "allow", Scope: "policy", Reason: rules.RuleExpired, Text: "would match, but has expired"}}
	if diff := cmp.Diff(want, notes); diff != "" {
		t.Errorf("Explain (-want +got):\n%s", diff)
	}
}
