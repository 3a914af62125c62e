package policyfile_test

import (
	"strings"
	"testing"

	"sallyport/rules"
	"sallyport/rules/policyfile"
)

const (
	orgFloor = `apiVersion: sallyport/v1
kind: Policy
metadata: {name: org}
limits: {requests: 1000/hour, request_body: 1MiB}
rules:
  - {id: org-no-paste, reason: data leaves here, deny: {host: paste.example}}
  - {id: org-no-refunds, reason: money, deny: {host: api.example, paths: ["/refunds/**"]}}
never:
  - {host: "*.corp.example"}
tests:
  - {request: "GET https://paste.example/", expect: deny, rule: org-no-paste}
  - {request: "GET https://other.example/", expect: allow}
`
	team = `apiVersion: sallyport/v1
kind: Policy
metadata: {name: team}
limits: {concurrent: 8}
rules:
  - {id: api, reason: x, allow: {hosts: [api.example, paste.example], access: write}}
tests:
  - {request: "POST https://api.example/refunds/1", expect: allow}
`
	narrow = `apiVersion: sallyport/v1
kind: Policy
metadata: {name: one-run}
limits: {sent: 1MiB/day}
rules:
  - {id: run-read, reason: x, allow: {host: api.example, access: read}}
`
)

func input(name, text string) *policyfile.Input {
	return &policyfile.Input{Name: name, Data: []byte(text)}
}

func scopedPolicy(t *testing.T) *policyfile.PolicyFile {
	t.Helper()
	p, err := policyfile.ReadPolicy(policyfile.Input{
		Name: "team.yaml", Data: []byte(team), Floor: input("org.yaml", orgFloor), Run: input("run.yaml", narrow),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func follow(t *testing.T, p *rules.Policy, asked string) rules.Decision {
	t.Helper()
	r, err := policyfile.ParseRequest(asked)
	if err != nil {
		t.Fatal(err)
	}
	return p.Follow(r)
}

func TestScopesOfAPolicy(t *testing.T) {
	p := scopedPolicy(t)
	for asked, want := range map[string]string{
		"GET https://api.example/x":         "policy allowed api",
		"POST https://api.example/x":        "run method_not_allowed ",
		"GET https://api.example/refunds/1": "floor denied_by_rule org-no-refunds",
		"GET https://paste.example/":        "floor denied_by_rule org-no-paste",
		"GET https://unheard-of.example/":   "policy host_not_allowed ",
	} {
		if d := follow(t, p.Policy, asked); d.Scope+" "+string(d.Reason)+" "+d.Rule != want {
			t.Errorf("%s: %+v, want %s", asked, d, want)
		}
	}
	want := rules.Totals{
		Floor:  rules.Limits{Requests: rules.Rate{N: 1000, Period: 3600}, Body: 1 << 20},
		Policy: rules.Limits{Concurrent: 8},
		Run:    rules.Limits{Sent: rules.Rate{N: 1 << 20, Period: 86400}},
	}
	if got := p.Policy.Totals(); got == nil || *got != want {
		t.Errorf("totals %+v", got)
	}
	checkRoundTrip(t, p, nil)
	golden(t, "scopes.yaml", p.Effective)
}

// TestFloorCannotBeLeftOut: an effective policy stands under the floor that it
// was made with, and no other.
func TestFloorCannotBeLeftOut(t *testing.T) {
	p := scopedPolicy(t)
	floor, err := policyfile.ReadFloor(*input("org.yaml", orgFloor), nil)
	if err != nil {
		t.Fatal(err)
	}
	staged, err := policyfile.ReadFloor(policyfile.Input{Name: "staged.yaml", Data: floor.Effective}, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, floor.Effective)
	}
	if p.Floor == "" || p.Floor != floor.Floor || p.Floor != staged.Floor || string(staged.Effective) != string(floor.Effective) {
		t.Errorf("floor %q, by itself %q, staged %q", p.Floor, floor.Floor, staged.Floor)
	}
	read := func(text []byte, f *policyfile.Input) (*policyfile.PolicyFile, error) {
		return policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: text, Floor: f}, nil)
	}
	if again, err := read(p.Effective, input("staged.yaml", string(floor.Effective))); err != nil || again.Floor != floor.Floor {
		t.Errorf("under the same floor: %v", err)
	}
	other := strings.Replace(orgFloor, "paste.example", "pastes.example", 1)
	for name, text := range map[string]string{"without a floor": team, "under another": string(p.Effective)} {
		f := input("org.yaml", other)
		q, err := read([]byte(text), f)
		if name == "under another" && (err == nil || !strings.Contains(err.Error(), "does not stand under the floor \"org\" as it is now")) {
			t.Errorf("%s: %v", name, err)
		}
		if q != nil && q.Floor == floor.Floor {
			t.Errorf("%s: the floor of one is that of the other", name)
		}
	}
	// Rules that are taken out of the text, or said to be of the floor, are seen.
	cut := strings.Replace(string(p.Effective), "/refunds/**", "/refund/**", 1)
	if q, err := read([]byte(cut), nil); err != nil || q.Floor == floor.Floor {
		t.Errorf("changed: %v", err)
	}
}

func TestScopeErrors(t *testing.T) {
	head := "apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: x}\n"
	tests := []struct{ name, floor, run, want string }{
		{"a floor that allows", head + "rules: [{id: a, reason: x, allow: {host: a.example}}]\n", "", "a floor denies and limits; it allows nothing"},
		{"a floor with a mode", head + "mode: observe\nrules: []\n", "", "mode is for the policy to say, not for the floor"},
		{"a floor with defaults", head + "defaults: {log: request}\nrules: []\n", "", "defaults is for the policy to say, not for the floor"},
		{"a floor that observes", head + "rules: [{id: a, reason: x, mode: observe, deny: {host: a.example}}]\n", "", "a rule of the floor is enforced"},
		{"a floor with an id of the policy's", head + "rules: [{id: api, reason: x, deny: {host: a.example}}]\n", "", `id "api" is taken by the rule at`},
		{"a floor that is no floor", "nonsense", "", "not a mapping"},
		{"a statement that the policy breaks", head + "rules: []\nnever: [{host: api.example, methods: [PUT]}]\n", "", "does not hold: rule \"api\""},
		{"a run that grants", "", head + "rules: [{id: a, reason: x, allow: {host: api.example, methods: [GET]}, limits: {requests: 1/min}}]\n", "a limit that narrows a run is one of the whole run"},
		{"a run with dns", "", head + "dns: {denied: nxdomain}\nrules: []\n", "dns is for the policy to say, not for the run"},
		{"a run with statements", "", head + "rules: []\nnever: [{host: a.example}]\n", "never is for the policy to say, not for the run"},
	}
	for _, tt := range tests {
		in := policyfile.Input{Name: "team.yaml", Data: []byte(team)}
		if tt.floor != "" {
			in.Floor = input("org.yaml", tt.floor)
		}
		if tt.run != "" {
			in.Run = input("run.yaml", tt.run)
		}
		if p, err := policyfile.ReadPolicy(in, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, %v; want %q", tt.name, p, err, tt.want)
		}
	}
	effective := "apiVersion: sallyport/v1\nkind: EffectivePolicy\nmetadata:\n  name: \"x\"\nrules:\n  - id: \"a\"\n    origin: \"a:1\"\n    scope: \"floor\"\n    reason: \"x\"\n    deny:\n      hosts:\n        - \"a.example\"\n    log: \"metadata\"\n"
	if _, err := policyfile.ReadPolicy(*input("p.yaml", effective), nil); err == nil || !strings.Contains(err.Error(), "there is no floor here") {
		t.Errorf("a rule of a floor that is not there: %v", err)
	}
}

// TestApprovals are held against the rules that there are and the statements
// of all scopes.
func TestApprovals(t *testing.T) {
	p := scopedPolicy(t)
	approve := func(host string) (*rules.Policy, error) {
		r, err := policyfile.ParseRequest("GET https://" + host + "/")
		if err != nil {
			t.Fatal(err)
		}
		return p.With([]rules.Rule{{
			ID: "access-1", Where: "access:1", Action: rules.AllowAction, Scope: rules.ApprovalScope, Expires: 100,
			Hosts: []rules.HostPattern{{Host: r.Endpoint.Host}}, Ports: []uint16{443}, Methods: []string{"GET"},
		}})
	}
	q, err := approve("docs.example")
	if err != nil {
		t.Fatal(err)
	}
	if d := follow(t, q, "GET https://docs.example/"); d.Scope != "approval" || d.Rule != "access-1" || d.Verdict == rules.Deny || d.Policy != p.Policy.Digest() {
		t.Errorf("%+v", d)
	}
	if d := follow(t, p.Policy, "GET https://docs.example/"); d.Verdict != rules.Deny {
		t.Errorf("the policy itself changed: %+v", d)
	}
	if _, err := approve("db.corp.example"); err == nil || !strings.Contains(err.Error(), "would break: never") {
		t.Errorf("what must never be admitted: %v", err)
	}
	if q, err := approve("paste.example"); err != nil || follow(t, q, "GET https://paste.example/").Scope != "floor" {
		t.Errorf("what the floor denies: %v", err)
	}
}

func TestConditionsInFiles(t *testing.T) {
	ok := rule(`{host: a.test, headers: [{name: X-Mode, equals: safe}], query: [{name: debug, present: false}]}`, "") + `tests:
  - {request: "GET https://a.test/?x=1", headers: {X-Mode: safe}, expect: allow, rule: r}
  - {request: "GET https://a.test/?debug=1", headers: {X-Mode: safe}, expect: deny, reason: query_not_allowed}
  - {request: "GET https://a.test/", expect: deny, reason: header_not_allowed}
`
	if _, err := policyfile.ParsePolicy("p.yaml", []byte(ok), nil); err != nil {
		t.Error(err)
	}
	body := rule("{host: a.test, access: write}", "limits: {request_body: 1MiB}\n") + `tests:
  - {request: "POST https://a.test/", body: 1MiB, expect: allow}
  - {request: "POST https://a.test/", body: 1025KiB, expect: deny, reason: body_too_large}
`
	if _, err := policyfile.ParsePolicy("p.yaml", []byte(body), nil); err != nil {
		t.Error(err)
	}
	for text, want := range map[string]string{
		`{host: a.test, headers: [{name: x-mode, equals: safe}]}`:                 `write "X-Mode"`,
		`{host: a.test, headers: [{name: "X Mode", equals: safe}]}`:               `is not the name of a header`,
		`{host: a.test, headers: [{name: X-Mode}]}`:                               `a condition says equals or present`,
		`{host: a.test, headers: [{name: X-Mode, equals: a, present: true}]}`:     `a condition says equals or present`,
		`{host: a.test, headers: [{name: X-Mode, present: "true"}]}`:              `this is text; it has to be true or false`,
		`{host: a.test, headers: [{name: X-Mode, present: yes}]}`:                 `it has to be true or false`,
		`{host: a.test, headers: [{name: X-Mode, equals: 1}]}`:                    `has to be text`,
		`{host: a.test, headers: [{name: Host, present: true}]}`:                  `it is the authority: say host`,
		`{host: a.test, headers: [{name: Cookie, equals: a}]}`:                    `is a secret, and a policy holds none`,
		`{host: a.test, headers: {X-Mode: a}}`:                                    `it has to be a list`,
		`{host: a.test, headers: []}`:                                             `an empty list`,
		`{host: a.test, query: [{name: q, present: true}, {name: q, equals: a}]}`: `q stands twice`,
		`{host: a.test, protocol: tcp, query: [{name: q, present: true}]}`:        `so headers and queries cannot be judged`,
	} {
		if _, err := policyfile.ParsePolicy("p.yaml", []byte(rule(text, "")), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestNeverUnderAMode: a policy that observes stands under a floor with
// statements, which take their part away from what the mode lets through; so do
// the policy's own. What the rules admit is still proved.
func TestNeverUnderAMode(t *testing.T) {
	head := "apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: team}\n"
	rulesOf := "rules:\n  - {id: api, reason: x, allow: {host: api.example, access: write}}\nnever:\n  - {host: own.example, paths: [\"/secret/**\"], reason: ours}\n"
	for _, mode := range []string{"observe", "learn"} {
		p, err := policyfile.ReadPolicy(policyfile.Input{Name: "team.yaml", Data: []byte(head + "mode: " + mode + "\n" + rulesOf), Floor: input("org.yaml", orgFloor)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for asked, want := range map[string]string{
			"GET https://db.corp.example/":       "deny floor denied_by_rule never:org.yaml:9",
			"GET https://own.example/secret/1":   "deny policy denied_by_rule never:team.yaml:8",
			"GET https://own.example/":           "inspect policy " + map[string]string{"observe": "allowed", "learn": "learned"}[mode] + " ",
			"GET https://corp.example/":          "inspect policy " + map[string]string{"observe": "allowed", "learn": "learned"}[mode] + " ",
			"DELETE https://api.example/charges": "inspect policy allowed api",
		} {
			if d := follow(t, p.Policy, asked); strings.Join([]string{d.Verdict.String(), d.Scope, string(d.Reason), d.Rule}, " ") != want && !(d.Explain && strings.HasPrefix(want, "deny")) {
				t.Errorf("%s, %s: %+v, want %s", mode, asked, d, want)
			}
		}
		checkRoundTrip(t, p, nil)
		again, err := policyfile.ReadPolicy(*input("effective.yaml", string(p.Effective)), nil)
		if err != nil {
			t.Fatal(err)
		}
		if d := follow(t, again.Policy, "GET https://db.corp.example/"); d.Rule != "never:org.yaml:9" {
			t.Errorf("%s, read back: %+v", mode, d)
		}
		breaks := strings.Replace(rulesOf, "api.example", "own.example", 1)
		if _, err := policyfile.ReadPolicy(*input("team.yaml", head+"mode: "+mode+"\n"+breaks), nil); err == nil || !strings.Contains(err.Error(), "does not hold: rule \"api\"") {
			t.Errorf("%s, broken by a rule: %v", mode, err)
		}
	}
}

// TestErrorsNameTheFloorsOwnFile: of a floor that was staged as its effective
// text, a broken statement is told where a person wrote it.
func TestErrorsNameTheFloorsOwnFile(t *testing.T) {
	floor, err := policyfile.ReadFloor(*input("/etc/org.yaml", orgFloor), nil)
	if err != nil {
		t.Fatal(err)
	}
	breaks := "apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: team}\nrules:\n  - {id: api, reason: x, allow: {host: db.corp.example}}\n"
	for from, want := range map[string]string{
		"/etc/org.yaml": "/etc/org.yaml:9: this does not hold: rule \"api\"",
		"":              "/run/floor.yaml:",
	} {
		staged := &policyfile.Input{Name: "/run/floor.yaml", Data: floor.Effective, From: from}
		if _, err := policyfile.ReadPolicy(policyfile.Input{Name: "team.yaml", Data: []byte(breaks), Floor: staged}, nil); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("made of %q: %v", from, err)
		} else if !strings.Contains(err.Error(), "\"*.corp.example\"") {
			t.Errorf("made of %q, the statement is not shown: %v", from, err)
		} else if strings.HasSuffix(err.Error(), "^") != (from == "") || strings.Contains(err.Error(), "    9 |") {
			t.Errorf("made of %q: what stands in the effective text is shown as of a line of the file, or the other way round: %v", from, err)
		}
	}
}

// TestTestsOfWhatNarrows are asked of what comes of both, and must hold.
func TestTestsOfWhatNarrows(t *testing.T) {
	ask := func(tests string) (*policyfile.PolicyFile, error) {
		return policyfile.ReadPolicy(policyfile.Input{Name: "team.yaml", Data: []byte(team), Run: input("run.yaml", narrow+"tests:\n"+tests)}, nil)
	}
	holds := `  - {request: "GET https://api.example/x", expect: allow, rule: api}` + "\n" +
		`  - {request: "POST https://api.example/x", expect: deny, reason: method_not_allowed}` + "\n"
	if p, err := ask(holds); err != nil || len(p.Tests) != 3 {
		t.Errorf("tests that hold: %+v, %v", p, err)
	}
	if _, err := ask(`  - {request: "POST https://api.example/x", expect: allow}` + "\n"); err == nil || !strings.HasPrefix(err.Error(), "run.yaml:8:53: test fails") {
		t.Errorf("one that does not: %v", err)
	}
}
