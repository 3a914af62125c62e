package policyfile_test

import (
	"errors"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/rules"
	"sallyport/rules/policyfile"
)

var update = flag.Bool("update", false, "write the golden files")

// head begins every policy of these tests.
const head = `apiVersion: sallyport/v1
kind: Policy
metadata: {name: p}
`

// rule is a policy with one rule; allow is the value of its allow key, and
// rest are further lines of the rule.
func rule(allow, rest string) string {
	s := head + "rules:\n  - id: r\n    reason: because\n    allow: " + allow + "\n"
	for line := range strings.Lines(rest) {
		s += "    " + line
	}
	return s + "\n"
}

func readFile(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func stripe(tb testing.TB) []policyfile.Credential {
	tb.Helper()
	c, err := policyfile.ParseCredential("stripe.yaml", readFile(tb, "stripe.yaml"))
	if err != nil {
		tb.Fatal(err)
	}
	return []policyfile.Credential{*c}
}

func errorsOf(tb testing.TB, err error) policyfile.Errors {
	tb.Helper()
	var all policyfile.Errors
	if err != nil && !errors.As(err, &all) {
		tb.Fatalf("%T is not policyfile.Errors: %v", err, err)
	}
	return all
}

func TestReadPolicy(t *testing.T) {
	text := readFile(t, "payments.yaml")
	f, err := policyfile.ReadPolicy(policyfile.Input{Name: "payments.yaml", Data: text}, stripe(t))
	if err != nil {
		t.Fatal(err)
	}
	if f.Name != "payments-agent" || f.Owner != "team-payments" || f.Description != "Stripe test integration" {
		t.Errorf("metadata: %q %q %q", f.Name, f.Owner, f.Description)
	}
	if f.Policy.Digest() != policyfile.Digest(f.Effective) || !strings.HasPrefix(f.Policy.Digest(), "sha256:") {
		t.Errorf("digest %s", f.Policy.Digest())
	}
	got := map[string]rules.Rule{}
	for _, r := range f.Policy.Rules() {
		got[r.ID] = r
	}
	charges, warehouse := got["stripe-charges"], got["warehouse"]
	if charges.Where != "payments.yaml:8" || charges.Purpose != "create and read test charges" || charges.Ticket != "PAY-1421" ||
		charges.Owner != "alice" || charges.Log != rules.LogRequest || charges.Expires != 1801353600 || charges.Credential != "stripe-test" {
		t.Errorf("stripe-charges: %+v", charges)
	}
	if !warehouse.Raw || len(warehouse.Methods) != 0 || warehouse.Log != rules.LogMetadata {
		t.Errorf("warehouse: %+v", warehouse)
	}
	if len(f.Tests) != 6 {
		t.Errorf("%d tests, want 6", len(f.Tests))
	}
	for _, r := range f.Tests {
		if !r.OK() {
			t.Errorf("%s: %s: %v", r.Where, r.Asked, r.Failures)
		}
	}
}

// TestDigestIsOfTheMeaning: layout and order make no difference to it, and
// whatever a decision or a record depends on does.
func TestDigestIsOfTheMeaning(t *testing.T) {
	const rules = "rules:\n  - {id: a, reason: x, allow: {hosts: [a.test, b.test], ports: [443, 80]}}\n"
	digest := func(s string) string {
		p, err := policyfile.ParsePolicy("dir/p.yaml", []byte(s), nil)
		if err != nil {
			t.Fatal(err)
		}
		return p.Digest()
	}
	plain := head + rules
	for _, s := range []string{
		plain + "# x\n", strings.ReplaceAll(plain, "\n", "\r\n"), strings.Replace(plain, "a.test, b.test", "b.test,   a.test", 1),
		strings.Replace(plain, "443, 80", "80, 443", 1), strings.Replace(plain, "ports:", "methods: [HEAD, GET], ports:", 1),
		plain + "tests: [{request: \"GET https://c.test/\", expect: deny}]\n",
	} {
		if digest(s) != digest(plain) {
			t.Errorf("%q has another digest", s)
		}
	}
	for _, s := range []string{
		"# x\n" + plain, strings.Replace(plain, "id: a", "id: b", 1), strings.Replace(plain, "reason: x", "reason: y", 1),
		strings.Replace(plain, "443, 80", "443", 1), strings.Replace(plain, "allow:", "log: request, allow:", 1),
		plain + "dns: {denied: nxdomain}\n", plain + "never: [{host: c.test}]\n", head + "rules: []\n",
	} {
		if digest(s) == digest(plain) {
			t.Errorf("%q has the same digest", s)
		}
	}
}

func TestDefaults(t *testing.T) {
	tests := []struct {
		name, text string
		want       rules.Rule // the fields that defaults fill in
	}{
		{"built in", rule("{host: a.test}", ""), rules.Rule{Ports: []uint16{443}, Methods: []string{"GET", "HEAD"}}},
		{
			"of the file", strings.Replace(rule("{host: a.test}", ""), "rules:", "defaults: {ports: [8443, 80], methods: [PUT, GET], log: request_response}\nrules:", 1),
			rules.Rule{Ports: []uint16{8443, 80}, Methods: []string{"GET", "PUT"}, Log: rules.LogRequestResponse},
		},
		{
			"after the rules", rule("{host: a.test}", "") + "defaults: {tls: passthrough}\n",
			rules.Rule{Ports: []uint16{443}, TLS: rules.PassthroughTLS},
		},
		{
			"of the rule", rule("{host: a.test, ports: [1], methods: [POST]}", "tls: inspect\nlog: request\n") + "defaults: {tls: passthrough}\n",
			rules.Rule{Ports: []uint16{1}, Methods: []string{"POST"}, Log: rules.LogRequest},
		},
		{"read", rule("{host: a.test, access: read}", ""), rules.Rule{Ports: []uint16{443}, Methods: []string{"GET", "HEAD"}}},
		{"write", rule("{host: a.test, access: write}", ""), rules.Rule{Ports: []uint16{443}}},
		{"tcp", rule("{host: a.test, protocol: tcp}", "") + "defaults: {tls: passthrough}\n", rules.Rule{Ports: []uint16{443}, Raw: true}},
	}
	for _, tt := range tests {
		p, err := policyfile.ParsePolicy("p.yaml", []byte(tt.text), nil)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		r := p.Rules()[0]
		got := rules.Rule{Ports: r.Ports, Methods: r.Methods, Log: r.Log, TLS: r.TLS, Raw: r.Raw}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	p, err := policyfile.ParsePolicy("p.yaml", []byte(head+"rules: [{id: d, reason: x, deny: {host: a.test}}]\ndefaults: {tls: passthrough}\n"), nil)
	if err != nil || p.Rules()[0].Ports != nil || p.Rules()[0].Methods != nil {
		t.Errorf("a deny rule is about every port and method: %v", err)
	}
}

// place is where an error is expected and what it says.
type place struct {
	line, col int
	text      string
}

func TestPolicyErrors(t *testing.T) {
	tests := []struct {
		id, text string
		want     []place
	}{
		// The file as a whole.
		{"CF-01", "", []place{{1, 1, "empty"}}},
		{"CF-01", "\n\n  \n", []place{{1, 1, "empty"}}},
		{"CF-01", "# only a comment\n", []place{{1, 1, "empty"}}},
		{"CF-01", "---\n", []place{{1, 1, "empty"}}},
		{"CF-01", "null\n", []place{{1, 1, "not a mapping"}}},
		{"CF-01", head, []place{{1, 1, "rules: []"}}},
		{"CF-01", head + "rules:\n", []place{{4, 1, "no value"}}},
		{"CF-01", head + "rules: null\n", []place{{4, 1, "no value"}}},
		{"CF-01", head + "rules: {}\n", []place{{4, 8, "a mapping; it has to be a list"}}},
		{"CF-01", rule("[]", ""), []place{{7, 12, "a list; it has to be a mapping"}}},
		{"CF-01", rule("{}", ""), []place{{7, 12, "needs a host"}}},
		{"CF-01", rule("", ""), []place{{7, 5, `"allow" has no value`}}},
		{"CF-01", rule("{hosts: []}", ""), []place{{7, 20, "empty list"}}},
		{"CF-09", "\ufeff" + head + "rules: []\n", []place{{1, 1, "byte order mark"}}},
		{"CF-09", head + "rules: [] # \xff\n", []place{{4, 13, "not UTF-8"}}},
		{"CF-09", head + "rules: [] # a\rb\n", []place{{4, 14, "carriage return"}}},
		{"LG-02", head + "rules: [] # \u202e\n", []place{{4, 13, "U+202E"}}},
		{"LG-02", head + "rules: [] # \u3164\ufe0f\n", []place{{4, 13, "U+3164"}, {4, 14, "U+FE0F"}}},
		{"LG-02", head + "rules: [] # a\u00a0b\n", []place{{4, 14, "U+00A0"}}},
		{"LG-02", head + "rules: [] # \U000e0100\n", []place{{4, 13, "U+E0100"}}},
		{"LG-02", head + "rules: [] # \u200b\u2066\n", []place{{4, 13, "U+200B"}, {4, 14, "U+2066"}}},
		{"", "- a\n", []place{{1, 1, "not a mapping"}}},
		{"", "just text\n", []place{{1, 1, "not a mapping"}}},
		{"", "kind: Policy\n", []place{{1, 1, "no apiVersion"}}},
		{"", "apiVersion: sallyport/v1\n", []place{{1, 1, "no kind"}}},
		{"", "apiVersion: sallyport/v2\nkind: Credential\n", []place{{1, 13, `apiVersion is "sallyport/v2"`}, {2, 7, `kind is "Credential"`}}},
		{"", "apiVersion: 1\nkind: [Policy]\n", []place{{1, 13, "a number"}, {2, 7, "a list"}}},
		{"", head + "rules: [\n", []place{{4, 8, "not YAML"}}},
		{"", head + "rules: []\n bad: x\n", []place{{5, 2, "not YAML"}}},

		// The parts of YAML that are not part of the language.
		{"", head + "rules: []\n---\nrules: []\n", []place{{6, 1, "second document"}}},
		{"", head + "rules: &a []\nmode: *a\n", []place{{4, 8, "anchors"}, {5, 7, "aliases"}}},
		{"", head + "rules: !!seq []\n", []place{{4, 8, "tags"}}},
		{"", head + "<<: {mode: enforce}\nrules: []\n", []place{{4, 1, "merge keys"}}},
		{"", head + "? rules\n: []\n", []place{{4, 1, "complex keys"}}},
		{"", "%YAML 1.2\n---\n" + head + "rules: []\n", []place{{1, 1, "directives"}}},
		{"", rule("{host: *.ok.test}", ""), []place{{7, 19, `needs quotes: "*.ok.test"`}}},
		{"", head + "rules: " + strings.Repeat("[", 17) + "\n", []place{{4, 24, "nested too deeply"}}},
		{"", head + "rules:\n" + strings.Repeat("- ", 20) + "a\n", []place{{5, 33, "nested too deeply"}}},
		{"", strings.Repeat("#", 4<<20) + "\n", []place{{1, 1, "4 MiB"}}},
		{"", head + "rules: [] #" + strings.Repeat("x", 989) + "\n", []place{{4, 1000, "would not be seen"}}},

		// Keys and types.
		{"CF-02", head + "rulse: []\n", []place{{4, 1, `unknown key "rulse" in a policy; did you mean "rules"?`}}},
		{"", head + "rulse: [{id: a, reason: x, alow: {hots: a.test, metods: [TRACE]}}, {id: b, reason: \"\", allow: {host: a.test, access: all}}]\n", []place{
			{4, 1, `mean "rules"?`}, {4, 28, `mean "allow"?`}, {4, 35, `mean "host"?`}, {4, 49, `mean "methods"?`}, {4, 84, "empty text"}, {4, 118, "none of read, write"},
		}},
		{"", head + "rules: [{id: a, reason: \"\", log: all, allow: {host: a.test, metods: [TRACE]}}]\n", []place{
			{4, 25, "empty text"}, {4, 34, "none of metadata"}, {4, 61, `mean "methods"?`}, {4, 70, "TRACE cannot be allowed"},
		}},
		{"", head + "rules: [{id: a, allow: {host: a.test, protocol: tcp, methods: [GET]}}]\n", []place{
			{4, 9, "has no reason"}, {4, 49, "so methods cannot be judged"},
		}},
		{"CF-02", head + "rules: []\nrules: []\n", []place{{5, 1, `"rules" stands twice`}}},
		{"CF-02", rule("{host: a.test, host: b.test}", ""), []place{{7, 27, `"host" stands twice`}}},
		{"CF-02", rule("{host: a.test, zzz: 1}", ""), []place{{7, 27, `unknown key "zzz" in allow; it has host, hosts, ports`}}},
		{"CF-02", rule("{host: a.test, ports: [\"443\"]}", ""), []place{{7, 35, "text; a port is"}}},
		{"CF-02", rule("{host: a.test, ports: 443}", ""), []place{{7, 34, "a number; it has to be a list"}}},
		{"CF-02", rule("{host: a.test, ports: [0x1bb, 0443, 443.0, 65536, 0, -1, 443, 443]}", ""), []place{
			{7, 35, "plain number"},
			{7, 42, "plain number"},
			{7, 48, "plain number"},
			{7, 55, "plain number"},
			{7, 62, "plain number"},
			{7, 65, "plain number"},
			{7, 74, "port 443 stands twice"},
		}},
		{"CF-02", rule("{host: a.test}", "tls: false\n"), []place{{8, 10, "true or false; it has to be text"}}},
		{"CF-02", rule("{host: true}", ""), []place{{7, 19, "true or false"}}},
		{"CF-02", rule("{host: a.test, methods: GET}", ""), []place{{7, 36, "text; it has to be a list"}}},
		{"CF-02", rule("{host: a.test, methods: [null]}", ""), []place{{7, 37, "nothing; it has to be text"}}},
		{"CF-02", rule("{host: a.test, paths: [\"\"]}", ""), []place{{7, 35, "empty text"}}},
		{"CF-03", head + "mode: denny\nrules: []\n", []place{{4, 7, `"denny" is none of enforce, observe`}}},
		{"CF-03", head + "mode: Enforce\nrules: []\n", []place{{4, 7, `did you mean "enforce"?`}}},
		{"CF-03", head + "mode: \"enforce \"\nrules: []\n", []place{{4, 7, `did you mean "enforce"?`}}},
		{"CF-03", head + "mode: \"\"\nrules: []\n", []place{{4, 7, "empty text"}}},
		{"CF-03", head + "dns: {denied: refuse}\nrules: []\n", []place{{4, 15, "none of explain, nxdomain"}}},
		{"CF-03", rule("{host: a.test}", "tls: passthru\n"), []place{{8, 10, "none of inspect, passthrough"}}},
		{"CF-03", rule("{host: a.test}", "log: Request\n"), []place{{8, 10, `did you mean "request"?`}}},

		// What this version does not build.
		{"", head + "include: [{preset: x}]\nrules: []\nscopes: {}\nlimits: {}\n", []place{
			{4, 20, `there is no preset "x"`}, {6, 1, `unknown key "scopes"`}, {7, 9, "limit nothing"},
		}},
		{"", head + "defaults: {limits: {}}\ndns: {resolve: []}\nrules: []\n", []place{{4, 20, "limit nothing"}, {5, 16, "an empty list"}}},
		{"DN-01", rule("{hosts: [a.test, \"*.b.test\"]}", "") + `dns:
  resolve:
    - {host: "*.b.test", types: [TXT]}
    - {host: A.test, types: [TXT]}
    - {host: 192.0.2.1, types: [TXT]}
    - {host: sallyport.internal, types: [TXT]}
    - {host: a.test, types: [A, txt, HTTPS, MX, MX]}
    - {host: a.test}
    - {types: [TXT], name: a.test}
    - {host: x.b.test, types: []}
    - {host: b.b.test, types: [TXT]}
    - {host: b.b.test, types: [MX]}
    - TXT a.test
`, []place{
			{11, 14, "list the names"},
			{12, 14, `write "a.test"`},
			{13, 14, "only names"},
			{14, 14, "is reserved"},
			{15, 30, "A is always answered"},
			{15, 33, `did you mean "TXT"?`},
			{15, 38, "none of AAAA, CAA, CNAME, MX, SRV, TXT"},
			{15, 49, "MX stands twice"},
			{16, 7, "has no types"},
			{17, 7, "has no host"},
			{17, 22, `unknown key "name"`},
			{18, 31, "an empty list"},
			{20, 14, "b.b.test stands twice"},
			{21, 7, "it has to be a mapping with host, types"},
		}},
		{"", rule("{host: a.test}", "") + "dns: {resolve: [{host: a.test, types: [TXT]}, {host: _x._tcp.b.test, types: [SRV]}]}\n", []place{
			{9, 54, "no allow rule is about b.test"},
		}},
		{"", rule("{host: a.test}", "limits: {request_body: 1MB}\n"), []place{{8, 28, `"1MB" is no size; write it like 1MiB`}}},
		{"", rule("{host: a.test}", "limits: {request_body: 0KiB, requests: -1/min, concurrent: 0}\n"), []place{
			{8, 28, "is no size"}, {8, 44, "is no limit"}, {8, 64, "a plain number from 1"},
		}},
		{"", rule("{host: a.test}", "limits: {}\n"), []place{{8, 13, "limit nothing"}}},
		{"", rule("{host: a.test}", "limits: {requests: 0/min}\n"), []place{{8, 24, "write it like 60/min"}}},
		{"", rule("{host: a.test}", "limits: {requests: -1/min}\n"), []place{{8, 24, "write it like 60/min"}}},
		{"", rule("{host: a.test}", "limits: {requests: 060/min}\n"), []place{{8, 24, "write it like 60/min"}}},
		{"", rule("{host: a.test}", "limits: {requests: 60/second}\n"), []place{{8, 24, "a min, an hour or a day"}}},
		{"", rule("{host: a.test}", "limits: {sent: 20MB/day}\n"), []place{{8, 20, "write it like 20MiB/day"}}},
		{"", rule("{host: a.test}", "limits: {received: 99999999TiB/day}\n"), []place{{8, 24, "write it like 1GiB/hour"}}},
		{"", rule("{host: a.test}", "limits: {concurrent: 0}\n"), []place{{8, 26, "a plain number from 1"}}},
		{"", rule("{host: a.test}", "limits: {concurrent: 1.5}\n"), []place{{8, 26, "a plain number from 1"}}},
		{"", head + "rules: [{id: a, reason: x, deny: {host: a.test}, limits: {concurrent: 1}}]\n", []place{{4, 58, "admits nothing that could be counted"}}},
		{
			"", head + "rules:\n- {id: a, reason: x, allow: {host: b.a.test}, limits: {concurrent: 1}}\n- {id: b, reason: x, allow: {host: \"*.a.test\", methods: [GET]}}\n",
			[]place{{6, 29, "would be counted once"}},
		},
		{"", rule("{host: a.test}", "log: off\n"), []place{{8, 10, `"off" is none of metadata, request, request_response, none`}}},

		// Rules.
		{"", head + "rules: [{id: a}]\n", []place{{4, 9, "has no reason"}, {4, 9, "allow or deny"}}},
		{"", head + "rules: [a]\n", []place{{4, 9, "a rule is text"}}},
		{"", head + "rules: [{id: A, reason: x, allow: {host: a.test}}]\n", []place{{4, 14, "not a name"}}},
		{"", head + "rules: [{id: 1, reason: x, allow: {host: a.test}}]\n", []place{{4, 14, "a number"}}},
		{"", head + "rules: [{id: a, reason: \"\", allow: {host: a.test}}]\n", []place{{4, 25, "empty text"}}},
		{"", head + "rules: [{id: a, reason: x, allow: {host: a.test}, deny: {host: b.test}}]\n", []place{{4, 57, "not both"}}},
		{"", head + "rules:\n- {id: a, reason: x, allow: {host: a.test}}\n- {id: a, reason: x, allow: {host: b.test}}\n", []place{{6, 8, `"a" is taken by the rule at p.yaml:5`}}},
		{"", rule("{host: a.test, hosts: [b.test]}", ""), []place{{7, 34, "host and hosts"}}},
		{"", rule("{hosts: [a.test, a.test]}", ""), []place{{7, 29, "stands twice"}}},
		{"", rule("{host: a.test, access: read, methods: [GET]}", ""), []place{{7, 35, "access and methods"}}},
		{"", rule("{host: a.test, access: all}", ""), []place{{7, 35, "none of read, write"}}},
		{"HT-16", rule("{host: a.test, methods: [get, \"*\", \"A B\", GET, GET, TRACE]}", ""), []place{
			{7, 37, `write "GET"`}, {7, 42, "access: write"}, {7, 47, "not a method"}, {7, 59, "GET stands twice"},
		}},
		{"HT-16", rule("{host: a.test, methods: [GET, TRACE]}", ""), []place{{7, 42, "TRACE cannot be allowed"}}},
		{"HT-13", rule("{host: a.test, paths: [v1, /a/../b, \"/a?b\", /v1/ch*, /%41]}", ""), []place{
			{7, 35, "slash"}, {7, 39, "two ways"}, {7, 48, "no query"}, {7, 56, "whole segment"}, {7, 65, `write "/A"`},
		}},
		{"", rule("{host: a.test, protocol: udp}", ""), []place{{7, 37, "none of tcp"}}},
		{"", rule("{host: a.test, protocol: tcp, methods: [GET]}", ""), []place{{7, 37, "methods cannot be judged"}}},
		{"", rule("{host: a.test, protocol: tcp, access: read}", ""), []place{{7, 50, "access cannot be judged"}}},
		{"", rule("{host: a.test, paths: [/a]}", "tls: passthrough\n"), []place{{8, 10, "paths cannot be judged"}}},
		{"", rule("{host: a.test, cidrs: [10.0.0.1/8, 10.0.0.1, x, \"::ffff:10.0.0.0/104\"]}", ""), []place{
			{7, 35, `write "10.0.0.0/8"`}, {7, 47, `as a range it is "10.0.0.1/32"`}, {7, 57, "not an address range"}, {7, 60, "IPv4 in an IPv6"},
		}},
		{"", rule("{host: a.test, cidrs: [0.0.0.0/0]}", ""), []place{{7, 35, "too wide"}}},
		{"", rule("{host: a.test}", "expires: 2027-02-29\n"), []place{{8, 14, "not a date"}}},
		{"", rule("{host: a.test}", "expires: tomorrow\n"), []place{{8, 14, "not a date"}}},
		{"", head + "rules: [{id: a, reason: x, expires: 2027-01-31, deny: {host: a.test}}]\n", []place{{4, 37, "does not expire"}}},
		{"", head + "rules: [{id: a, reason: x, deny: {host: a.test, access: write}}]\n", []place{{4, 57, "lists its methods"}}},
		{"", head + "rules: [{id: a, reason: x, multi_tenant: acknowledged, deny: {host: a.test}}]\n", []place{{4, 42, "for allow rules"}}},
		{"CR-14", head + "rules: [{id: a, reason: x, callers_key: allow, deny: {host: a.test}}]\n", []place{{4, 41, "for allow rules"}}},
		{"CR-14", head + "rules: [{id: a, reason: x, callers_key: yes, allow: {host: a.test}}]\n", []place{{4, 41, "refuse, allow"}}},
		{"", head + "rules: [{id: a, reason: x, credential: stripe-test, deny: {host: a.test}}]\n", []place{{4, 40, "grants nothing"}}},
		{
			"", head + "rules:\n- {id: a, reason: x, allow: {host: a.test, ports: [22], protocol: tcp}}\n- {id: b, reason: x, allow: {host: a.test, ports: [22]}}\n",
			[]place{{6, 29, "before the first byte"}},
		},

		// Tests.
		{"", head + "rules: []\ntests: []\n", []place{{5, 8, "empty list"}}},
		{"", head + "rules: []\ntests: [{expect: deny}, {request: \"GET https://a.test/\"}, {request: \"x\", expect: deny}]\n", []place{
			{5, 9, "request, connect or dns"}, {5, 25, "has no expect"}, {5, 69, "METHOD URL"},
		}},
		{"", head + "rules: []\ntests: [{dns: \"A a.test\", connect: \"a.test:1\", expect: deny}]\n", []place{{5, 36, "asks one thing"}}},
		{"", head + "rules: []\ntests: [{request: \"GET https://a.test/\", expect: allow}]\n", []place{{5, 50, "got deny (host_not_allowed)"}}},
		{"", head + "rules: []\ntests: [{request: \"GET https://a.test/\", expect: deny, reason: path_not_allow}]\n", []place{{5, 64, `did you mean "path_not_allowed"?`}}},
		{"", rule("{host: a.test}", "") + "tests:\n- {request: \"POST https://a.test/\", expect: deny, rule: r, reason: host_not_allowed}\n", []place{
			{10, 57, "the rule is none, the reason is method_not_allowed"},
		}},
	}
	for _, tt := range tests {
		p, err := policyfile.ParsePolicy("p.yaml", []byte(tt.text), stripe(t))
		if p != nil || err == nil {
			t.Errorf("%s: %.200q loads", tt.id, tt.text)
			continue
		}
		checkPlaces(t, tt.id+" "+tt.text, errorsOf(t, err), tt.want)
	}
}

func checkPlaces(t *testing.T, name string, got policyfile.Errors, want []place) {
	t.Helper()
	ok := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		g, w := got[i], want[i]
		ok = ok && g.Line == w.line && g.Column == w.col && strings.Contains(g.Text, w.text) && g.File != ""
	}
	if !ok {
		t.Errorf("%.400s\ngives\n%.2000v\nwant %v", name, got, want)
	}
}

func TestGrants(t *testing.T) {
	grant := func(allow string) string { return rule(allow, "credential: stripe-test\n") }
	tests := []struct {
		id, text string
		want     []place
	}{
		{"CR-21", grant(`{host: "*.stripe.com"}`), []place{{7, 19, "none of its endpoints is *.stripe.com"}, {8, 17, "exact hosts only"}}},
		{"", grant("{host: api.stripe.co, paths: [/v1/x]}"), []place{{7, 19, "none of its endpoints is api.stripe.co"}}},
		{"", grant("{host: api.stripe.com, ports: [8443], paths: [/v1/x]}"), []place{{7, 43, "no endpoint is api.stripe.com:8443"}}},
		{"", grant("{host: api.stripe.com, methods: [GET, DELETE], paths: [/v1/x]}"), []place{{7, 50, "no endpoint has DELETE"}}},
		{"", grant("{host: api.stripe.com, access: write, paths: [/v1/x]}"), []place{{7, 43, "every method"}}},
		{"", grant("{host: api.stripe.com, methods: [GET]}"), []place{{7, 12, "with every path"}}},
		{"", grant("{host: api.stripe.com, methods: [GET], paths: [/v1/x, /v2/x]}"), []place{{7, 66, "GET api.stripe.com/v2/x"}}},
		{"", grant("{host: api.stripe.com, methods: [GET], paths: [/**]}"), []place{{7, 59, "GET api.stripe.com/**"}}},
		{"CR-22", rule("{host: api.stripe.com}", "credential: stripe-test\ntls: passthrough\n"), []place{{8, 17, "tls: passthrough"}}},
		{"", rule("{host: api.stripe.com, paths: [/v1/x]}", "credential: strip-test\n"), []place{{8, 17, `no credential is named "strip-test"; did you mean "stripe-test"?`}}},
		{"", rule("{host: api.stripe.com, paths: [/v1/x]}", "credential: other\n"), []place{{8, 17, `no credential is named "other"; there is stripe-test`}}},
	}
	for _, tt := range tests {
		_, err := policyfile.ParsePolicy("p.yaml", []byte(tt.text), stripe(t))
		checkPlaces(t, tt.id+" "+tt.text, errorsOf(t, err), tt.want)
	}
	ok := grant("{host: api.stripe.com, methods: [GET, POST], paths: [/v1/charges, \"/v1/charges/*\", \"/v1/**\"]}")
	if _, err := policyfile.ParsePolicy("p.yaml", []byte(ok), stripe(t)); err != nil {
		t.Error(err)
	}
	if _, err := policyfile.ParsePolicy("p.yaml", []byte(ok), nil); err == nil || !strings.Contains(err.Error(), "no credential is known here") {
		t.Errorf("without credentials: %v", err)
	}
}

// TestEveryErrorAtOnce is also what docs/policy.md shows.
func TestEveryErrorAtOnce(t *testing.T) {
	_, err := policyfile.ParsePolicy("bad.yaml", readFile(t, "bad.yaml"), stripe(t))
	golden(t, "bad.txt", []byte(err.Error()+"\n"))
}

// golden compares with a file of testdata; -update writes it.
func golden(tb testing.TB, name string, got []byte) {
	tb.Helper()
	if *update {
		if err := os.WriteFile("testdata/"+name, got, 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(readFile(tb, name)), string(got)); diff != "" {
		tb.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestReadPolicyGivesTheResultsOfFailingTests(t *testing.T) {
	text := head + "rules: []\ntests:\n- {request: \"GET https://a.test/\", expect: allow}\n- {dns: \"A a.test\", expect: deny}\n"
	f, err := policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: []byte(text)}, nil)
	if err == nil || f == nil || f.Policy != nil || len(f.Tests) != 2 || f.Tests[0].OK() || !f.Tests[1].OK() {
		t.Fatalf("ReadPolicy = %+v, %v", f, err)
	}
	if got := f.Tests[0].Failures[0]; got != "got deny (host_not_allowed)" {
		t.Errorf("failure: %s", got)
	}
}

func TestErrorShowsTheLine(t *testing.T) {
	bare := policyfile.Error{File: "f", Line: 1, Column: 1, Text: "no"}
	if got := bare.Error(); got != "f:1:1: no" {
		t.Errorf("Error = %q", got)
	}
	for _, before := range []int{0, 1, 40, 60, 100, 300, 900} {
		text := head + "x: {a: \"" + strings.Repeat("é", before) + "\", X: 1}\n"
		_, err := policyfile.ParsePolicy("p.yaml", []byte(text), nil)
		lines := strings.Split(errorsOf(t, err)[1].Error(), "\n")
		at := strings.Index(lines[2], "^")
		if shown := []rune(lines[1]); len(shown) > 120 || at < 0 || shown[at] != 'x' {
			t.Errorf("after %d characters, the caret of\n%s\nis at %d", before, strings.Join(lines, "\n"), at)
		}
	}
}

func TestManyErrorsAreCut(t *testing.T) {
	_, err := policyfile.ParsePolicy("p.yaml", []byte(head+strings.Repeat("x: y\n", 300)), nil)
	all := errorsOf(t, err)
	if n := len(all); n != 201 || !strings.Contains(all[n-1].Text, "more than 200") {
		t.Errorf("%d errors, the last %v", len(all), all[len(all)-1])
	}
}

func TestParseQuestion(t *testing.T) {
	for in, want := range map[string]rules.Question{
		"GET https://a.test/x?y#z": rules.Fetch, "POST http://a.test:8080": rules.Fetch, "A a.test": rules.Resolve, "a.test:443": rules.Connect, "[::1]:1": rules.Connect,
	} {
		if got, err := policyfile.ParseQuestion(in); err != nil || got.Question != want {
			t.Errorf("ParseQuestion(%q) = %v, %v, want %v", in, got.Question, err, want)
		}
	}
	for _, in := range []string{"", "a.test", "GET ftp://a.test/", "GET https:///x", "G(T https://a.test/", "GET https://u@a.test/", "GET https://a.test/%", "FOO a.test", "A a..test", "https://a.test/"} {
		if got, err := policyfile.ParseQuestion(in); err == nil {
			t.Errorf("ParseQuestion(%q) = %+v, want an error", in, got)
		}
	}
	got, err := policyfile.ParseQuestion("GET https://a.test/x?y=1#z")
	if err != nil || got.Path.String() != "/x" || got.Query != "y=1" || !got.Secure || got.Endpoint.String() != "a.test:443" {
		t.Errorf("ParseQuestion = %+v, %v", got, err)
	}
}

func FuzzParsePolicy(f *testing.F) {
	f.Add(readFile(f, "payments.yaml"))
	f.Add(readFile(f, "bad.yaml"))
	f.Add([]byte(head + "rules: []\n"))
	f.Add([]byte(head + everything))
	for _, s := range []string{team, orgFloor, narrow} {
		f.Add([]byte(s))
	}
	f.Add([]byte(head + "mode: learn\nlimits: {sent: 1MiB/day}\nrules: [{id: r, reason: x, log: none, allow: {host: a.test, headers: [{name: X-A, equals: b}], query: [{name: q, present: false}]}}]\n"))
	f.Add([]byte("a: [b, {c: d}]\n? x\n: y\n<<: *z\n"))
	creds := stripe(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := policyfile.ParsePolicy("p.yaml", data, creds)
		if (p == nil) == (err == nil) {
			t.Fatalf("ParsePolicy = %v, %v", p, err)
		}
		if err != nil {
			if len(errorsOf(t, err)) == 0 || err.Error() == "" {
				t.Fatal("no error in the errors")
			}
			return
		}
		f, err := policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: data}, creds)
		if err != nil || p.Digest() != policyfile.Digest(f.Effective) {
			t.Fatalf("the digest is of something else: %v", err)
		}
		checkRoundTrip(t, f, creds)
	})
}
