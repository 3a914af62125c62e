package policyfile_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"sallyport/rules/policyfile"
)

// TestBadInput keeps what is printed about every kind of bad file: none loads,
// each says where and what, and the right spelling if there is one.
func TestBadInput(t *testing.T) {
	const head = "apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: p}\n"
	one := func(allow, rest string) string {
		return head + "rules:\n  - id: r\n    reason: x\n    allow: " + allow + "\n" + rest
	}
	bomb := "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n"
	files := fstest.MapFS{
		"a.yaml": {Data: []byte(head + "include: [{file: b.yaml}]\nrules: []\n")},
		"b.yaml": {Data: []byte(strings.Replace(head, "name: p", "name: q", 1) + "include: [{file: p.yaml}]\nrules: []\n")},
	}
	tests := []struct{ name, text string }{
		{"an empty file", ""},
		{"an unknown key", one("{host: a.test, prots: [443]}", "")},
		{"a duplicate key", head + "rules: []\nrules: []\n"},
		{"an alias", head + "rules: []\nnever: *x\n"},
		{"a bomb", head + bomb},
		{"a hundred megabytes", head + "# " + strings.Repeat("x", 100<<20)},
		{"includes in a circle", head + "include: [{file: a.yaml}]\nrules: []\n"},
		{"an include from outside", head + "include: [{file: ../b.yaml}]\nrules: []\n"},
		{"an include that is not there", head + "include: [{file: c.yaml}]\nrules: []\n"},
		{"a wildcard for everything", one(`{host: "*"}`, "")},
		{"a wildcard in the middle", one(`{host: "a.*.test"}`, "")},
		{"a wildcard in a label", one(`{host: "*a.test"}`, "")},
		{"a wildcard of a public suffix", one(`{host: "*.co.uk"}`, "")},
		{"a wildcard of many tenants", one(`{host: "*.github.io"}`, "")},
		{"a wildcard before an address", one(`{host: "*.192.0.2.1"}`, "")},
		{"two stars", one(`{host: "**.a.test"}`, "")},
		{"a leading dot", one("{host: .a.test}", "")},
		{"a host in upper case", one("{host: A.test}", "")},
		{"a host that is a URL", one("{host: \"https://a.test/\"}", "")},
		{"not UTF-8", head + "rules: []\n# \xff\xfe\n"},
		{"a byte order mark", "\ufeff" + head + "rules: []\n"},
		{"a lone carriage return", head + "rules: []\r# x\n"},
		{"a tab for a blank", head + "rules:\n\t- id: r\n"},
		{"a character that does not show", head + "rules: []\n# a\u202eb\n"},
		{"a credential wider than its endpoints", one("{host: api.stripe.com, methods: [DELETE], paths: [/v1/x]}", "    credential: stripe-test\n")},
		{"a credential on a wildcard", one(`{host: "*.stripe.com"}`, "    credential: stripe-test\n")},
		{"a limit of nothing", one("{host: a.test}", "    limits: {requests: 0/min, concurrent: 0}\n")},
		{"a limit of less", one("{host: a.test}", "    limits: {requests: -1/min, request_body: -1KiB}\n")},
		{"a limit in no period", one("{host: a.test}", "    limits: {sent: 1MiB}\n")},
		{"an id twice", one("{host: a.test}", "  - {id: r, reason: x, allow: {host: b.test}}\n")},
		{"a second document", head + "rules: []\n---\nrules: []\n"},
		{"no rules", head},
	}
	var out strings.Builder
	for _, tt := range tests {
		in := policyfile.Input{Name: "p.yaml", Data: []byte(tt.text), Files: files}
		p, err := policyfile.ReadPolicy(in, stripe(t))
		if err == nil || p != nil && p.Policy != nil {
			t.Errorf("%s: it loads", tt.name)
			continue
		}
		fmt.Fprintf(&out, "== %s\n%v\n\n", tt.name, err)
	}
	golden(t, "badinput.txt", []byte(out.String()))
	// What only looks bad: Windows line ends load, and so does a policy in which
	// everything has expired; it denies, with that as its reason.
	if _, err := policyfile.ParsePolicy("p.yaml", []byte(strings.ReplaceAll(head+"rules: []\n", "\n", "\r\n")), nil); err != nil {
		t.Errorf("CRLF: %v", err)
	}
	expired := one("{host: a.test}", "    expires: 2020-01-01\n") + "tests: [{request: \"GET https://a.test/\", expect: deny, reason: rule_expired, at: 2026-01-01}]\n"
	if _, err := policyfile.ParsePolicy("p.yaml", []byte(expired), nil); err != nil {
		t.Errorf("everything has expired: %v", err)
	}
}
