package policyfile_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"sallyport/rules"
	"sallyport/rules/policyfile"
	"sallyport/rules/preset"
)

func readPreset(t *testing.T, ref string) *policyfile.Preset {
	t.Helper()
	text, ok := preset.Read(ref)
	if !ok {
		t.Fatalf("there is no preset %q", ref)
	}
	p, err := policyfile.ReadPreset(ref, text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Every preset loads, its tests hold and touch every rule; it refuses something
// near what it admits; it says what could leak.
func TestEveryPresetHolds(t *testing.T) {
	for _, ref := range preset.Refs() {
		t.Run(ref, func(t *testing.T) {
			p := readPreset(t, ref)
			touched, denied := map[string]bool{}, 0
			for _, r := range p.Tests {
				if !r.OK() {
					t.Errorf("%s: %v", r.Where, r.Failures)
				}
				touched[r.Decision.Rule] = true
				if r.Decision.Verdict == rules.Deny {
					denied++
				}
			}
			for i := range p.Rules {
				r := &p.Rules[i]
				if !touched[r.ID] {
					t.Errorf("no test touches rule %s", r.ID)
				}
				if r.Action == rules.AllowAction && len(r.Methods) == 0 {
					t.Errorf("rule %s allows every method", r.ID)
				}
				if r.Action == rules.AllowAction && len(r.Paths) == 0 && slices.ContainsFunc(r.Methods, func(m string) bool { return m != "GET" && m != "HEAD" }) {
					t.Errorf("rule %s sends to any path", r.ID)
				}
				for _, h := range r.Hosts {
					if h.Wildcard {
						t.Errorf("rule %s has the wildcard %s", r.ID, h)
					}
				}
			}
			if denied < 2 || len(p.Leaks) < 80 || p.Description == "" {
				t.Errorf("%d refusals tested; leaks %q; description %q", denied, p.Leaks, p.Description)
			}
		})
	}
}

// registries are the beginnings of the SHA-256 of hosts from which package managers
// read, and of domains that they lie below: so their names stand nowhere here.
const registries = `
00a7dc5a0cc38858 0dc11026ac75c015 0e10f3b8bb2a1ef3 0fd460f0568e29c1 271dacc9f4d0caf8 2c77714df232b07f
317d2d52829b7812 344aa72d23ae6fdb 3530c4415dd857fb 386c042daaf7f1eb 3ca29e55be4befa4 3d01f3609be82d98
3e5e3daccbe99b1e 4189e62695dc2b69 43c04ed1dabe979b 4445b86dcaaff098 4db460c55b85212e 4f247acdba6480ea
51c6b9f69c48a75b 66394d5952c288e4 695d37582d557540 70bb4000cd2fab03 70cca582c4895337 7117c828d2afa4e2
71741fe2460a6150 75adac515f0bd3db 75c5f478b8eabe83 789e46d79514e280 826cd146d6478a29 8400b8bd0d6e064d
8454fabc8b630901 85b03f9a57d95879 8743857e3ea00fd1 87d14f070cb96869 8b5bb5eb9d758455 9da5f32d96412512
a0f007d863a0ed19 a4aa2ac280bb8d1a be549aaf28b65cd0 c3db8466ffcd8589 c899567ee9068517 dcb6cc3991f9799e
e41a0296d2409bbc e680c440a2e92079 e7fbfb5eb8b891d5 eb7e11c7f9ecbcf4 f483c1237e51a1fa f5c653675ede2254
f65219c547f9c032
`

func registryHost(host string) bool {
	for labels := strings.Split(host, "."); len(labels) > 1; labels = labels[1:] {
		sum := sha256.Sum256([]byte(strings.Join(labels, ".")))
		if slices.Contains(strings.Fields(registries), hex.EncodeToString(sum[:8])) {
			return true
		}
	}
	return false
}

// Which registry a machine reads from is in its own configuration: no preset knows.
func TestNoPresetNamesARegistry(t *testing.T) {
	// The check itself: a domain of the list is found, and whatever is below it.
	sum := sha256.Sum256([]byte("docs.example"))
	if slices.Contains(strings.Fields(registries), hex.EncodeToString(sum[:8])) || len(strings.Fields(registries)) < 40 {
		t.Fatal("the list is not what it says")
	}
	seen := 0
	for _, ref := range preset.Refs() {
		p := readPreset(t, ref)
		for i := range p.Rules {
			for _, h := range p.Rules[i].Hosts {
				if seen++; registryHost(h.Host.String()) {
					t.Errorf("%s: rule %s names a registry", ref, p.Rules[i].ID)
				}
			}
		}
	}
	if seen < 30 {
		t.Errorf("only %d hosts were looked at", seen)
	}
}

func policyWith(include string) policyfile.Input {
	return policyfile.Input{
		Name: "p.yaml", Data: []byte("apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: p}\ninclude:\n" + include),
		Files: fstest.MapFS{"sub.yaml": {Data: []byte(
			"apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: sub}\ninclude: [{preset: git-github-read@1, with: {repositories: [acme/site]}}]\n")}},
	}
}

func TestPresetIncludesAreRefused(t *testing.T) {
	for name, tt := range map[string]struct{ include, want string }{
		"unknown":             {"  - preset: opennai@1\n", `p.yaml:5:13: there is no preset "opennai@1"; did you mean "openai@1"?`},
		"unknown, not near":   {"  - preset: nothing-like-it@1\n", "sallyport preset ls lists them"},
		"no version":          {"  - preset: openai\n", `there is no preset "openai"; there is openai@1`},
		"another version":     {"  - preset: openai@7\n", `there is no preset "openai@7"; there is openai@1`},
		"a path":              {"  - preset: ../files/openai@1\n", "there is no preset"},
		"no values":           {"  - preset: git-github-read@1\n", "needs values: with: {repositories: [acme/site, acme/docs]}"},
		"values for none":     {"  - {preset: openai@1, with: {models: [x]}}\n", "has no parameters"},
		"unknown parameter":   {"  - {preset: git-github-read@1, with: {repository: [acme/site]}}\n", `unknown key "repository" in the values of preset git-github-read@1; it has repositories`},
		"no list":             {"  - {preset: git-github-read@1, with: {repositories: acme/site}}\n", "it has to be a list"},
		"an empty list":       {"  - {preset: git-github-read@1, with: {repositories: []}}\n", "an empty list"},
		"twice":               {"  - {preset: git-github-read@1, with: {repositories: [a/b, a/b]}}\n", `"a/b" stands twice`},
		"a star":              {"  - {preset: git-github-read@1, with: {repositories: [\"acme/*\"]}}\n", "OWNER/NAME of letters"},
		"two stars":           {"  - {preset: git-github-read@1, with: {repositories: [\"**/x\"]}}\n", "OWNER/NAME of letters"},
		"an owner alone":      {"  - {preset: git-github-read@1, with: {repositories: [acme]}}\n", "OWNER/NAME of letters"},
		"going up":            {"  - {preset: git-github-read@1, with: {repositories: [acme/..]}}\n", "OWNER/NAME of letters"},
		"an escape":           {"  - {preset: git-github-read@1, with: {repositories: [\"acme/%2e\"]}}\n", "OWNER/NAME of letters"},
		"with .git":           {"  - {preset: git-github-read@1, with: {repositories: [acme/site.git]}}\n", "without .git"},
		"a parameter":         {"  - {preset: git-github-read@1, with: {repositories: [\"{repositories}/x\"]}}\n", "OWNER/NAME of letters"},
		"a dot in a label":    {"  - {preset: azure-openai@1, with: {resources: [evil.example]}}\n", "letters, digits and hyphens"},
		"a wildcard host":     {"  - {preset: git-read@1, with: {hosts: [\"*.example.com\"], projects: [a/b]}}\n", "hosts is a name"},
		"an address":          {"  - {preset: git-read@1, with: {hosts: [10.0.0.1], projects: [a/b]}}\n", "hosts is a name"},
		"a host that is none": {"  - {preset: git-read@1, with: {hosts: [\"https://git.example.com\"], projects: [a/b]}}\n", "is not how this host is spelled"},
		"two kinds":           {"  - {preset: openai@1, file: sub.yaml}\n", "one of file, preset"},
		"no kind":             {"  - {with: {a: [b]}}\n", "one of file, preset"},
		"with for a file":     {"  - {file: sub.yaml, with: {a: [b]}}\n", "with is for a preset"},
		"the same twice":      {"  - preset: openai@1\n  - preset: openai@1\n", "stands twice"},
		"other values": {
			"  - {file: sub.yaml}\n  - {preset: git-github-read@1, with: {repositories: [acme/docs]}}\n",
			"included with other values at sub.yaml:4; put all of them into one include",
		},
		"an unknown credential":   {"  - {preset: openai@1, credential: key}\n", `no credential is named "key"`},
		"a credential too narrow": {"  - {preset: openai@1, credential: narrow}\n", `credential "narrow" (narrow.yaml) does not go that far`},
		"its rules' ids":          {"  - preset: openai@1\nrules: [{id: openai-infer, reason: r, allow: {host: a.example.com}}]\n", "is taken by the rule at"},
	} {
		t.Run(name, func(t *testing.T) {
			narrow := policyfile.Credential{Name: "narrow", Where: "narrow.yaml"}
			_, err := policyfile.ReadPolicy(policyWith(tt.include), []policyfile.Credential{narrow})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ReadPolicy = %v, want it to say %q", err, tt.want)
			}
		})
	}
}

// What a preset gives is what its values say, and its digest is in the policy's.
func TestPresetIncluded(t *testing.T) {
	cred, err := policyfile.ParseCredential("key.yaml", []byte(`apiVersion: sallyport/v1
kind: Credential
metadata: {name: key}
type: bearer
endpoints: [{host: api.openai.com, ports: [443], methods: [GET, HEAD, POST], paths: ["/v1/**"]}]
source: {file: /key}
`))
	if err != nil {
		t.Fatal(err)
	}
	src := policyWith(`  - {preset: git-read@1, with: {hosts: [a.example.com, b.example.com], projects: [x/y, x/y/z]}}
  - {preset: openai@1, credential: key}
  - {preset: git-github-read@1, with: {repositories: [acme/site]}}
  - {file: sub.yaml}
tests:
  - {request: "POST https://a.example.com/x/y/z.git/git-upload-pack", expect: allow, rule: git-read-fetch}
  - {request: "GET https://b.example.com/x/y/info/refs", expect: allow, rule: git-read-refs}
  - {request: "GET https://b.example.com/x/q/info/refs", expect: deny, reason: path_not_allowed}
  - {request: "POST https://api.openai.com/v1/responses", expect: allow, rule: openai-infer, credential: key}
  - {request: "GET https://github.com/acme/site.git/info/refs", expect: allow, rule: git-github-read-refs}
  - {request: "GET https://github.com/acme/docs.git/info/refs", expect: deny, reason: path_not_allowed}
`)
	p, err := policyfile.ReadPolicy(src, []policyfile.Credential{*cred})
	if err != nil {
		t.Fatal(err)
	}
	text, _ := preset.Read("openai@1")
	for _, want := range []string{
		fmt.Sprintf("- {ref: \"openai@1\", digest: %q}", policyfile.Digest(text)),
		`origin: "preset:openai@1:`,
	} {
		if !bytes.Contains(p.Effective, []byte(want)) {
			t.Errorf("the effective policy does not say %s:\n%s", want, p.Effective)
		}
	}
	if n := bytes.Count(p.Effective, []byte("git-github-read@1\", digest")); n != 1 {
		t.Errorf("a preset that is included twice is told %d times", n)
	}
	again, err := policyfile.ReadPolicy(policyfile.Input{Name: "e.yaml", Data: p.Effective}, []policyfile.Credential{*cred})
	if err != nil || again.Policy.Digest() != p.Policy.Digest() {
		t.Errorf("the effective policy reads back as %v, %v", again, err)
	}
	if list := p.Untested(); len(list) != 0 {
		t.Errorf("untested: %v", list)
	}
	// Without a credential there is none.
	p, err = policyfile.ReadPolicy(policyWith("  - preset: openai@1\n"), nil)
	if err != nil || len(p.Policy.Credentials()) != 0 {
		t.Errorf("without a credential: %v, %v", p, err)
	}
}

func TestBrokenPresets(t *testing.T) {
	const head = "apiVersion: sallyport/v1\nkind: Preset\nmetadata: {name: x}\nversion: 1\nleaks: l\n"
	const body = "rules: [{id: x, reason: r, allow: {host: a.example.com}}]\ntests: [{request: \"GET https://a.example.com/\", expect: allow}]\n"
	for name, tt := range map[string]struct{ text, want string }{
		"kept under another name": {strings.Replace(head, "version: 1", "version: 2", 1) + body, "kept as x@1"},
		"a version that is none":  {strings.Replace(head, "version: 1", "version: one", 1) + body, "plain number from 1"},
		"no leaks":                {strings.Replace(head, "leaks: l\n", "", 1) + body, "no leaks"},
		"includes":                {head + body + "include: [{file: x}]\n", "unknown key"},
		"a failing test":          {head + strings.Replace(body, "expect: allow", "expect: deny", 1), "test fails"},
		"an unknown parameter":    {head + strings.Replace(body, "host: a.example.com", `hosts: ["{a}.example.com"]`, 1), `no parameter "a"`},
		"a credential of its own": {head + strings.Replace(body, "allow:", "credential: key, allow:", 1), "none of {credential}"},
		"an unknown type":         {head + "parameters: [{name: p, type: word, description: d, example: [x]}]\n" + body, "none of host, label"},
		"an example that is none": {head + "parameters: [{name: p, type: label, description: d, example: [X]}]\n" + body, "letters, digits and hyphens"},
	} {
		if _, err := policyfile.ReadPreset("x@1", []byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	if _, err := policyfile.ReadPreset("x@1", []byte(head+body)); err != nil {
		t.Errorf("twin: %v", err)
	}
}

// The page of presets is generated: -update writes it.
func TestPresetPageIsUpToDate(t *testing.T) {
	const page = "../../docs/presets.md"
	const mark = "<!-- generated from the presets: make golden -->\n"
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, _, ok := strings.Cut(string(have), mark)
	if !ok {
		t.Fatalf("docs/presets.md has no line %q", mark)
	}
	var b strings.Builder
	b.WriteString(head + mark)
	for _, ref := range preset.Refs() {
		writePreset(&b, readPreset(t, ref))
	}
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(have), b.String()); diff != "" {
		t.Errorf("docs/presets.md is old: make golden\n%s", diff)
	}
}

func writePreset(b *strings.Builder, p *policyfile.Preset) {
	fmt.Fprintf(b, "\n### %s\n\n", p.Ref)
	fmt.Fprintf(b, "%s.\n\n", strings.ToUpper(p.Description[:1])+p.Description[1:])
	for _, x := range p.Parameters {
		fmt.Fprintf(b, "- `%s`: %s; such as `[%s]`\n", x.Name, x.Description, strings.Join(x.Example, ", "))
	}
	if len(p.Parameters) > 0 {
		b.WriteString("\n")
	}
	b.WriteString("| rule | hosts | methods | paths |\n|---|---|---|---|\n")
	for i := range p.Rules {
		r := &p.Rules[i]
		var hosts, paths []string
		for _, h := range r.Hosts {
			hosts = append(hosts, "`"+h.String()+"`")
		}
		for _, x := range r.Paths {
			paths = append(paths, "`"+x.String()+"`")
		}
		if len(paths) == 0 {
			paths = []string{"any"}
		}
		id := "`" + r.ID + "`"
		if r.Action == rules.DenyAction {
			id += " (deny)"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", id, strings.Join(hosts, " "), strings.Join(r.Methods, " "), strings.Join(paths, " "))
	}
	fmt.Fprintf(b, "\nWhat could leak: %s\n", strings.ReplaceAll(p.Leaks, "\n", " "))
}
