package policyfile_test

import (
	"strings"
	"testing"

	"sallyport/rules/policyfile"
)

// TestStrictOwner: a rule that ends has somebody who can say whether it should.
func TestStrictOwner(t *testing.T) {
	for owner, want := range map[string]bool{"{name: p}": true, "{name: p, owner: team}": false} {
		text := "apiVersion: sallyport/v1\nkind: Policy\nmetadata: " + owner + "\nrules: [{id: a, reason: x, allow: {host: a.test}, expires: 2027-01-31}]\n"
		f, err := policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: []byte(text)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = f.Strict(0)
		if got := err != nil && strings.Contains(err.Error(), `rule "a" expires, and neither it nor its file has an owner`); got != want {
			t.Errorf("%s: %v", owner, err)
		}
	}
}

func TestStrict(t *testing.T) {
	const day = 86400
	text := head + `rules:
  - {id: fine, reason: x, owner: eve, allow: {host: a.test}, expires: 2027-01-31}
  - {id: todo, reason: "TODO say why", allow: {host: b.test}}
  - {id: dead, reason: x, allow: {host: c.test, paths: ["/v1/*"]}}
  - {id: half, reason: x, allow: {host: d.test, methods: [GET, PUT]}}
  - {id: dns, reason: x, allow: {host: dns.google}}
  - {id: no-c, reason: x, deny: {host: c.test, paths: ["/V1/**"]}}
  - {id: no-d, reason: x, deny: {host: d.test, methods: [PUT]}}
tests:
  - {request: "GET https://a.test/", expect: allow}
  - {request: "PUT https://d.test/", expect: deny, rule: no-d}
`
	f, err := policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: []byte(text)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var untested []string
	for _, r := range f.Untested() {
		untested = append(untested, r.ID)
	}
	if got := strings.Join(untested, " "); got != "dead dns half no-c todo" {
		t.Errorf("untested: %s", got)
	}
	const end = 1801353600 // 2027-01-31
	tests := []struct {
		now  int64
		want string
	}{
		{end - 15*day, ""},
		{end - 14*day, "p.yaml:5:71: rule \"fine\" expires in 14 days; ask eve"},
		{end - 1, "expires in 1 day; ask eve"},
		{end, "p.yaml:5:71: rule \"fine\" has expired: take it out, or renew it; ask eve"},
	}
	for _, tt := range tests {
		f, err := policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: []byte(text)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ending := ""
		again, err := policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: []byte(text)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Warnings(tt.now); err != nil {
			ending = err.Error()
		}
		if strings.Contains(ending, "TODO") || strings.Contains(ending, "dead") || (ending == "") != (tt.want == "") || !strings.Contains(ending, tt.want) {
			t.Errorf("at %d these end:\n%s\nwant %q", tt.now, ending, tt.want)
		}
		got := f.Strict(tt.now).Error()
		for _, want := range []string{
			tt.want, "p.yaml:6:24: rule \"todo\": the reason is still to be written", "p.yaml:7:5: rule \"dead\" admits nothing",
			"p.yaml:9:40: rule \"dns\" allows dns.google, a public resolver",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("at %d:\n%s\nwant %q", tt.now, got, want)
			}
		}
		if strings.Contains(got, "half") || tt.want == "" && strings.Contains(got, "fine") {
			t.Errorf("at %d:\n%s", tt.now, got)
		}
	}
}

// signInCredential returns a credential by way of which people sign in.
func signInCredential(t *testing.T) *policyfile.Credential {
	t.Helper()
	cred, err := policyfile.ParseCredential("idp.yaml", []byte(`apiVersion: sallyport/v1
kind: Credential
metadata: {name: idp}
type: oauth2-user
oauth2-user: {token_url: "https://id.test/token", device_url: "https://id.test/device", client_id: x, auth: none, grants: [device_code], scopes: [a]}
endpoints: [{host: id.test, methods: [POST], paths: [/token, /device]}, {host: api.test}]
source: {none: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	return cred
}

// TestOpenSignIn: a rule that lets a program ask where people sign in, and not by way
// of the broker, is told of, with its place.
func TestOpenSignIn(t *testing.T) {
	cred := signInCredential(t)
	const with = ", credential: idp}"
	tests := []struct{ name, rules, want string }{
		{"without", `{id: a, reason: x, allow: {host: id.test, methods: [POST], paths: [/token]}}`, `p.yaml:4:9: rule "a" lets people sign in at https://id.test/token without credential "idp"`},
		{"the device's alone", `{id: a, reason: x, allow: {host: id.test, methods: [POST], paths: [/token]}` + with + `, {id: b, reason: x, allow: {host: id.test, methods: [POST], paths: [/device]}}`, `rule "b" lets people sign in at https://id.test/device`},
		{"reads", `{id: a, reason: x, allow: {host: id.test, methods: [GET]}}`, ""},
		{"another host", `{id: a, reason: x, allow: {host: www.id.test, methods: [POST]}}`, ""},
		{"denied", `{id: a, reason: x, allow: {host: id.test, access: write}}, {id: b, reason: x, deny: {host: id.test, methods: [POST]}}`, ""},
		{"twin, with it", `{id: a, reason: x, allow: {host: id.test, methods: [POST], paths: [/token, /device]}` + with, ""},
	}
	for _, tt := range tests {
		for what, ask := range map[string]func(*policyfile.PolicyFile) error{
			"warnings": func(f *policyfile.PolicyFile) error { return f.Warnings(0) },
			"strict":   func(f *policyfile.PolicyFile) error { return f.Strict(0) },
		} {
			f, err := policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: []byte(head + "rules: [" + tt.rules + "]\n")}, []policyfile.Credential{*cred})
			if err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			err = ask(f)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%s, %s: %v, want %q", tt.name, what, err, tt.want)
			}
		}
	}
}

// TestStrictRefusesWhatLetsOut: a policy that enforces nothing, or for which nobody
// answers yet, does not go into production; one that says who answers, or until
// when, does.
func TestStrictRefusesWhatLetsOut(t *testing.T) {
	const head = "apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: p}\n"
	withReason := func(reason string) string {
		return head + "rules: [{id: a, reason: \"" + reason + "\", allow: {host: a.test}}]\n"
	}
	with := func(rest string) string {
		return head + "rules: [{id: a, reason: x, allow: {host: a.test}, " + rest + "}]\n"
	}
	const nothing, unwritten, endless = "p.yaml:4:7: the policy enforces nothing", `rule "a": the reason is still to be written`, `rule "a" only observes, and has no end`
	for text, want := range map[string]string{
		head + "mode: observe\nrules: []\n":                          nothing,
		head + "mode: learn\nrules: []\n":                            nothing,
		head + "mode: enforce\nrules: []\n":                          "",
		head + "rules: []\n":                                         "",
		withReason("todo"):                                           unwritten,
		withReason(" TODO later"):                                    unwritten,
		withReason("(Todo: say why)"):                                unwritten,
		withReason("TODO_later"):                                     unwritten,
		withReason("FIXME"):                                          unwritten,
		withReason("fixme: who needs it?"):                           unwritten,
		withReason("tbd."):                                           unwritten,
		withReason("..."):                                            unwritten,
		withReason("."):                                              unwritten,
		withReason("12"):                                             unwritten,
		withReason("支付"):                                             "",
		withReason("todos are kept there"):                           "",
		withReason("Todoist holds the team's list"):                  "",
		withReason("lists what is TODO"):                             "",
		with("mode: observe"):                                        endless,
		with("mode: learn"):                                          endless,
		with("mode: observe, expires: 2999-01-01, owner: eve"):       `rule "a" only observes for 375835 days more`,
		with("mode: enforce"):                                        "",
		with("callers_key: allow"):                                   "lets keys of the caller's own through",
		with("callers_key: allow, owner: eve"):                       "",
		with("log: none"):                                            "keeps paths out of the log",
		with("log: none, owner: eve"):                                "",
		with("log: metadata"):                                        "",
		strings.ReplaceAll(with("owner: eve"), "a.test", "paste.ee"): `rule "a" allows paste.ee: anybody can leave and fetch data`,
		strings.ReplaceAll(with("owner: eve"), "a.test", "x.webhook.site"):                                        `at webhook.site`,
		strings.ReplaceAll(with("owner: eve"), "a.test", "notpaste.ee"):                                           "",
		head + "rules: [{id: a, reason: x, deny: {host: paste.ee}}, {id: b, reason: x, allow: {host: a.test}}]\n": "",
		head + "rules: [{id: a, reason: x, deny: {host: a.test}, mode: observe}]\n":                               endless,
	} {
		f, err := policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: []byte(text)}, nil)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		err = f.Strict(0)
		if (want == "") != (err == nil) || err != nil && (len(errorsOf(t, err)) != 1 || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want one finding %q", text, err, want)
		}
	}
}
