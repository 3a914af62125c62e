package policyfile_test

import (
	"net/netip"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sallyport/rules"
	"sallyport/rules/policyfile"
)

// everything has every key of a policy that stands alone, after head.
const everything = `dns: {denied: nxdomain, resolve: [{host: _postgresql._tcp.db.example, types: [SRV]}, {host: api.stripe.com, types: [TXT, MX, AAAA]}]}
defaults: {ports: [8443, 443], methods: [PUT], log: request, limits: {sent: 1GiB/day}}
rules:
  - id: api
    reason: "quotes \" and \\ and \u200b and é\n"
    ticket: T-1
    owner: "a: b"
    expires: 2030-02-28
    allow: {host: api.stripe.com, ports: [443], methods: [POST, GET], paths: ["/v1/charges", "/v1/*/**"]}
    credential: stripe-test
    callers_key: allow
    log: request_response
    limits: {requests: 60/min, sent: 20MiB/day, received: 1025KiB/hour, concurrent: 8, request_body: 3KiB}
  - id: wide
    reason: |
      two
      lines
    allow: {hosts: ["*.github.io", "bücher.example", 192.0.2.7], access: write, cidrs: [192.0.2.0/24, "fd00::/8"]}
    multi_tenant: acknowledged
  - {id: pinned, reason: x, allow: {host: pinned.example}, tls: passthrough}
  - {id: odd, reason: x, log: none, mode: learn, allow: {host: odd.example, headers: [{name: X-Mode, equals: "a \"b\""}, {name: X-Debug, present: false}], query: [{name: "q[]", present: true}, {name: é, equals: ö}]}}
  - {id: db, reason: x, allow: {host: db.example, protocol: tcp, ports: [5432]}}
  - {id: no, reason: x, deny: {host: api.stripe.com, methods: [DELETE], paths: ["/**"]}}
  - {id: none, reason: x, deny: {cidrs: [10.0.0.0/8]}, mode: observe, log: metadata}
never:
  - {credential: stripe-test, methods: [DELETE, PATCH], reason: "it must not"}
  - {hosts: ["*.corp.example", b.example], ports: [22, 21], paths: ["/x/**"]}
limits: {requests: 1000/hour, request_body: 5MiB}
`

// checkRoundTrip reads an effective policy back: it means the same, and is its
// own effective form.
func checkRoundTrip(t *testing.T, f *policyfile.PolicyFile, creds []policyfile.Credential) {
	t.Helper()
	again, err := policyfile.ReadPolicy(policyfile.Input{Name: "elsewhere/x.yaml", Data: f.Effective}, creds)
	if err != nil {
		t.Fatalf("%v\n%s", err, f.Effective)
	}
	if string(again.Effective) != string(f.Effective) || again.Policy.Digest() != f.Policy.Digest() {
		t.Errorf("the effective form of\n%s is\n%s", f.Effective, again.Effective)
	}
	if again.Name != f.Name || again.Owner != f.Owner || again.Description != f.Description {
		t.Errorf("%q %q %q became %q %q %q", f.Name, f.Owner, f.Description, again.Name, again.Owner, again.Description)
	}
	same := cmp.Options{
		cmp.Comparer(func(a, b rules.HostPattern) bool { return a == b }),
		cmp.Comparer(func(a, b rules.PathPattern) bool { return a.String() == b.String() }),
		cmpopts.IgnoreFields(rules.Rule{}, "Where"), cmpopts.EquateComparable(netip.Prefix{}),
		cmpopts.SortSlices(func(a, b rules.HostPattern) bool { return a.String() < b.String() }),
		cmpopts.SortSlices(func(a, b rules.PathPattern) bool { return a.String() < b.String() }),
		cmpopts.SortSlices(func(a, b uint16) bool { return a < b }),
		cmpopts.SortSlices(func(a, b netip.Prefix) bool { return a.String() < b.String() }),
		cmpopts.EquateEmpty(),
	}
	if diff := cmp.Diff(f.Policy.Rules(), again.Policy.Rules(), same); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	if len(f.Never) != len(again.Never) {
		t.Errorf("%d statements became %d", len(f.Never), len(again.Never))
	}
}

func TestEffective(t *testing.T) {
	f, err := policyfile.ReadPolicy(policyfile.Input{Name: "dir/p.yaml", Data: []byte(head + everything)}, stripe(t))
	if err != nil {
		t.Fatal(err)
	}
	checkRoundTrip(t, f, stripe(t))
	golden(t, "effective.yaml", f.Effective)
	again, err := policyfile.ReadPolicy(policyfile.Input{Name: "x.yaml", Data: f.Effective}, stripe(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range again.Policy.Rules() {
		if r.ID == "api" && r.Where != "p.yaml:7" {
			t.Errorf("where = %q, want the origin", r.Where)
		}
	}
}

// TestEffectiveHasOneSpelling: a hand that changes it changes its digest or
// breaks it.
func TestEffectiveHasOneSpelling(t *testing.T) {
	f, err := policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: []byte(head + everything)}, stripe(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, edit := range [][2]string{
		{"\nrules:\n", "\nrules:\n# a remark\n"},
		{"        - 443\n", "        -  443\n"},
		{"\nnever:\n", "\ntests: []\nnever:\n"},
		{"\nrules:\n", "\ninclude: [{file: x.yaml}]\nrules:\n"},
		{"    origin: \"p.yaml:7\"\n", ""},
		{"\nrules:\n", "\ndefaults: {log: request}\nrules:\n"},
	} {
		text := strings.Replace(string(f.Effective), edit[0], edit[1], 1)
		if text == string(f.Effective) {
			t.Fatalf("%q is not in\n%s", edit[0], text)
		}
		if _, err := policyfile.ParsePolicy("p.yaml", []byte(text), stripe(t)); err == nil {
			t.Errorf("with %q it loads", edit[1])
		}
	}
	if _, err := policyfile.ParsePolicy("p.yaml", []byte(rule("{host: a.test}", "origin: \"x:1\"\n")), nil); err == nil {
		t.Error("a policy file says the origin of its rule")
	}
}

func files(list map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for name, text := range list {
		out[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return out
}

func include(rest string, names ...string) string {
	s := head + "include:\n"
	for _, n := range names {
		s += "  - {file: " + n + "}\n"
	}
	return s + rest
}

func one(id, host string) string {
	return "rules:\n  - {id: " + id + ", reason: x, allow: {host: " + host + "}}\n"
}

func TestInclude(t *testing.T) {
	fsys := files(map[string]string{
		"llm.yaml":         head + "defaults: {methods: [POST]}\n" + one("llm", "llm.test") + "tests: [{request: \"GET https://llm.test/\", expect: deny, reason: method_not_allowed}]\n",
		"team/git.yaml":    include(one("git", "git.test"), "more/x.yaml"),
		"team/more/x.yaml": head + one("x", "x.test"),
		"again.yaml":       include("", "llm.yaml"),
	})
	text := include(one("own", "own.test")+"tests: [{request: \"POST https://llm.test/\", expect: allow, rule: llm}]\n", "llm.yaml", "team/git.yaml", "again.yaml")
	f, err := policyfile.ReadPolicy(policyfile.Input{Name: "/etc/p/p.yaml", Data: []byte(text), Files: fsys}, nil)
	if err != nil {
		t.Fatal(err)
	}
	where := map[string]string{}
	for _, r := range f.Policy.Rules() {
		where[r.ID] = r.Where
		if r.ID == "own" && cmp.Diff(r.Methods, []string{"GET", "HEAD"}) != "" {
			t.Errorf("the defaults of an included file reach %v", r.Methods)
		}
	}
	want := map[string]string{"own": "/etc/p/p.yaml:9", "llm": "/etc/p/llm.yaml:6", "git": "/etc/p/team/git.yaml:7", "x": "/etc/p/team/more/x.yaml:5"}
	if diff := cmp.Diff(want, where); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	if len(f.Tests) != 2 || !f.Tests[0].OK() || !f.Tests[1].OK() {
		t.Errorf("tests: %+v", f.Tests)
	}
	checkRoundTrip(t, f, nil)
	// The digest covers what is included.
	before := f.Policy.Digest()
	fsys["team/more/x.yaml"].Data = []byte(head + one("x", "y.test"))
	f, err = policyfile.ReadPolicy(policyfile.Input{Name: "/etc/p/p.yaml", Data: []byte(text), Files: fsys}, nil)
	if err != nil || f.Policy.Digest() == before {
		t.Errorf("an included file changed and the digest did not: %v", err)
	}
}

func TestIncludeRefuses(t *testing.T) {
	deep := map[string]string{}
	for i := range 12 {
		deep["d"+strings.Repeat("d", i)+".yaml"] = include("rules: []\n", "d"+strings.Repeat("d", i+1)+".yaml")
	}
	tests := []struct {
		name, text, want string
		files            map[string]string
	}{
		{"above", include("rules: []\n", "../x.yaml"), "lies in or below", nil},
		{"absolute", include("rules: []\n", "/etc/x.yaml"), "lies in or below", nil},
		{"dots inside", include("rules: []\n", "a/../../x.yaml"), "lies in or below", nil},
		{"missing", include("rules: []\n", "x.yaml"), "including \"x.yaml\"", nil},
		{"a directory", include("rules: []\n", "d"), "not a regular file", map[string]string{"d/x": ""}},
		{"itself", include("rules: []\n", "p.yaml"), "go in a circle: p.yaml → p.yaml", map[string]string{"p.yaml": ""}},
		{"a circle", include("rules: []\n", "a.yaml"), "b/c.yaml → b/a.yaml → b/c.yaml", map[string]string{
			"a.yaml": include("", "b/c.yaml"), "b/c.yaml": include("", "a.yaml"), "b/a.yaml": include("", "c.yaml"),
		}},
		{"too deep", include("rules: []\n", "d.yaml"), "more than 8 deep", deep},
		{"twice", include("rules: []\n", "a.yaml", "a.yaml"), "stands twice", map[string]string{"a.yaml": head + "rules: []\n"}},
		{"another kind", include("rules: []\n", "a.yaml"), "a.yaml:2:7: kind is \"Credential\"", map[string]string{"a.yaml": "apiVersion: sallyport/v1\nkind: Credential\n"}},
		{"its errors have their place", include("rules: []\n", "a.yaml"), "a.yaml:4:1: unknown key \"rulez\"", map[string]string{"a.yaml": head + "rulez: []\n"}},
		{"an id of two files", include(one("a", "a.test"), "a.yaml"), "id \"a\" is taken by the rule at p.yaml:7", map[string]string{"a.yaml": head + one("a", "b.test")}},
		{"rules that clash", include("rules: [{id: n, reason: x, deny: {host: a.test, methods: [PUT]}}]\n", "a.yaml"), "one denies by method, path, header or query", map[string]string{
			"a.yaml": head + "rules: [{id: a, reason: x, allow: {host: a.test}, tls: passthrough}]\n",
		}},
		{"dns of an included file", include("rules: []\n", "a.yaml"), "said by the file that includes", map[string]string{"a.yaml": head + "dns: {denied: nxdomain}\nrules: []\n"}},
		{"its own test fails", include("rules: []\n", "a.yaml"), "a.yaml:6:50: test fails", map[string]string{
			"a.yaml": head + one("a", "a.test") + "tests: [{request: \"GET https://b.test/\", expect: allow}]\n",
		}},
		{"a statement of an included file", include(one("a", "a.test"), "a.yaml"), "a.yaml:4:9: this does not hold: rule \"a\" (p.yaml:7) allows GET https://a.test/", map[string]string{
			"a.yaml": head + "never: [{host: a.test}]\nrules: []\n",
		}},
		{"a preset", head + "include: [{preset: x}]\n", `there is no preset "x"`, nil},
	}
	for _, tt := range tests {
		_, err := policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: []byte(tt.text), Files: files(tt.files)}, nil)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.want)
		}
	}
	if _, err := policyfile.ParsePolicy("p.yaml", []byte(include("rules: []\n", "x.yaml")), nil); err == nil || !strings.Contains(err.Error(), "stands alone") {
		t.Errorf("without files: %v", err)
	}
}

func TestNever(t *testing.T) {
	tests := []struct{ statement, want string }{
		{"{credential: stripe-test, methods: [DELETE]}", ""},
		{"{credential: stripe-tset}", "did you mean \"stripe-test\"?"},
		{"{credential: stripe-test, methods: [POST]}", "this does not hold: rule \"r\" (p.yaml:5) allows POST https://api.stripe.com/v1/charges"},
		{"{host: \"*.stripe.com\", ports: [22]}", ""},
		{"{host: api.stripe.com, paths: [\"/V1/**\"]}", "GET https://api.stripe.com/v1/charges"},
		{"{host: api.stripe.com, paths: [\"/v2/**\"]}", ""},
		{"{}", "is about everything"},
		{"{reason: x}", "is about everything"},
		{"{host: a.test, hosts: [b.test]}", "write one of them"},
		{"{hots: a.test}", "did you mean \"host\"?"},
		{"api.stripe.com", "a statement is text"},
	}
	for _, tt := range tests {
		text := rule(`{host: api.stripe.com, methods: [GET, POST], paths: ["/v1/charges"]}`, "credential: stripe-test\n") + "never:\n  - " + tt.statement + "\n"
		f, err := policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: []byte(text)}, stripe(t))
		if tt.want == "" {
			if err != nil || len(f.Never) != 1 || f.Never[0].Failure != "" {
				t.Errorf("%s: %v", tt.statement, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", tt.statement, err, tt.want)
		}
	}
}
