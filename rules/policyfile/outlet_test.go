package policyfile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sallyport/rules"
	"sallyport/rules/policyfile"
	"sallyport/rules/preset"
)

// hostOf returns the one host of a preset's rule.
func hostOf(t *testing.T, ref, rule string) string {
	t.Helper()
	p := readPreset(t, ref)
	i := slices.IndexFunc(p.Rules, func(r rules.Rule) bool { return r.ID == rule })
	if i < 0 || len(p.Rules[i].Hosts) != 1 {
		t.Fatalf("%s has no rule %s with one host", ref, rule)
	}
	return p.Rules[i].Hosts[0].Host.String()
}

// expectation is a request under a policy's tests. rule is of what is allowed, reason
// of what is not.
type expectation struct{ request, rule, reason string }

// holds fails for each expectation that does not come out.
func holds(t *testing.T, in policyfile.Input, all []expectation) {
	t.Helper()
	text := string(in.Data) + "tests:\n"
	for _, e := range all {
		if e.rule != "" {
			text += fmt.Sprintf("  - {request: %q, expect: allow, rule: %s}\n", e.request, e.rule)
		} else {
			text += fmt.Sprintf("  - {request: %q, expect: deny, reason: %s}\n", e.request, e.reason)
		}
	}
	in.Data = []byte(text)
	p, err := policyfile.ReadPolicy(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	own := 0
	for _, r := range p.Tests {
		if !r.OK() {
			t.Errorf("%s: %v", r.Where, r.Failures)
		}
		if strings.HasPrefix(r.Where, in.Name) {
			own++
		}
	}
	if own < len(all) {
		t.Errorf("%d tests ran, want %d", own, len(all))
	}
}

// EX-02: with all that the presets allow of a code host for one repository, what could be
// dropped anywhere else on it is refused, by git and by its API.
func TestCodeHostIsNoDropBox(t *testing.T) {
	git, api := hostOf(t, "git-github-push@1", "git-github-push-push"), hostOf(t, "github-issues-write@1", "github-issues-create")
	with := "with: {repositories: [acme/site]}}\n"
	in := policyWith("  - {preset: git-github-push@1, " + with + "  - {preset: github-api-read@1, " + with + "  - {preset: github-issues-write@1, " + with)
	const path, method = "path_not_allowed", "method_not_allowed"
	holds(t, in, []expectation{
		// By git (smart HTTP): another's repository, one that only begins or ends so, the wiki.
		{"GET https://" + git + "/mallory/drop.git/info/refs?service=git-receive-pack", "", path},
		{"POST https://" + git + "/mallory/drop.git/git-receive-pack", "", path},
		{"POST https://" + git + "/mallory/drop/git-receive-pack", "", path},
		{"POST https://" + git + "/acme/site2.git/git-receive-pack", "", path},
		{"POST https://" + git + "/mallory/acme/site.git/git-receive-pack", "", path},
		{"POST https://" + git + "/acme/site.wiki.git/git-receive-pack", "", path},
		{"POST https://" + git + "/acme/site.git.git/git-receive-pack", "", path},
		{"POST https://" + git + "/ACME/site.git/git-receive-pack", "", path},
		{"POST https://" + git + "/acme/site.git/../../mallory/drop.git/git-receive-pack", "", "path_ambiguous"},
		{"POST https://" + git + "/acme%2Fsite.git/git-receive-pack", "", "path_ambiguous"},
		{"PUT https://" + git + "/acme/site.git/git-receive-pack", "", method},
		{"POST https://" + git + "/acme/site.git/info/lfs/objects/batch", "", path},
		// By the API.
		{"POST https://" + api + "/gists", "", path},
		{"PATCH https://" + api + "/gists/1", "", path},
		{"POST https://" + api + "/user/repos", "", path},
		{"POST https://" + api + "/orgs/mallory/repos", "", path},
		{"POST https://" + api + "/repos/acme/site/forks", "", path},
		{"POST https://" + api + "/repos/mallory/drop/issues", "", path},
		{"POST https://" + api + "/repos/mallory/drop/issues/1/comments", "", path},
		{"POST https://" + api + "/repos/mallory/drop/pulls", "", path},
		{"POST https://" + api + "/repos/acme/site/releases", "", path},
		{"POST https://" + api + "/repos/acme/site/dispatches", "", path},
		{"POST https://" + api + "/repos/acme/site/actions/workflows/1/dispatches", "", path},
		{"PUT https://" + api + "/repos/acme/site/contents/x", "", method},
		{"PUT https://" + api + "/repos/acme/site/pulls/7/merge", "", method},
		{"POST https://" + api + "/repos/acme/site/git/blobs", "", path},
		{"POST https://" + api + "/repos/acme/site/keys", "", path},
		{"POST https://" + api + "/repos/acme/site/hooks", "", path},
		{"POST https://" + api + "/markdown", "", path},
		{"POST https://" + api + "/graphql", "", path},
		{"PUT https://" + api + "/user/starred/mallory/drop", "", method},
		// Release assets go to a host of their own.
		{"POST https://uploads." + git + "/repos/acme/site/releases/1/assets?name=x", "", "host_not_allowed"},
		// The twins, on the same paths.
		{"GET https://" + git + "/acme/site.git/info/refs?service=git-receive-pack", "git-github-push-refs", ""},
		{"POST https://" + git + "/acme/site.git/git-receive-pack", "git-github-push-push", ""},
		{"POST https://" + git + "/acme/site/git-receive-pack", "git-github-push-push", ""},
		{"POST https://" + api + "/repos/acme/site/issues", "github-issues-create", ""},
		{"POST https://" + api + "/repos/acme/site/issues/1/comments", "github-issues-create", ""},
		{"PATCH https://" + api + "/repos/acme/site/issues/1", "github-issues-edit", ""},
		{"GET https://" + api + "/repos/acme/site/issues/1", "github-api-read", ""},
	})
}

// EX-02 for every preset: what is named for reading does not write, but for the POST of a
// git fetch; and none that reaches repositories reaches one that is not named.
func TestPresetsForReadingDoNotWrite(t *testing.T) {
	readers := 0
	for _, ref := range preset.Refs() {
		p := readPreset(t, ref)
		if !strings.Contains(ref, "-read@") {
			continue
		}
		readers++
		for i := range p.Rules {
			for _, m := range p.Rules[i].Methods {
				fetch := m == "POST" && !slices.ContainsFunc(p.Rules[i].Paths, func(path rules.PathPattern) bool {
					return !strings.HasSuffix(path.String(), "/git-upload-pack")
				})
				if m != "GET" && m != "HEAD" && !fetch {
					t.Errorf("%s: rule %s allows %s", ref, p.Rules[i].ID, m)
				}
			}
		}
	}
	if readers < 6 {
		t.Errorf("only %d presets are for reading", readers)
	}
}

// EX-03: from the servers of every package manager, whatever its configuration names,
// packages are read and nothing else: what is published, or asked by POST, is refused.
// What is left is told in policy.md: the path of a GET, which the log has in full.
func TestRegistriesAreReadOnly(t *testing.T) {
	in := policyWith("  - detect: [pip]\n  - {detect: [npm], cidrs: [10.1.0.0/16]}\ndefaults: {methods: [GET, POST, PUT]}\n")
	in.Detect = found
	const pip, npm, method = "https://pip.example.com", "http://10.1.2.3:4873", "method_not_allowed"
	holds(t, in, []expectation{
		{"PUT " + npm + "/pkg", "", method},
		{"PUT " + npm + "/-/user/org.couchdb.user:a", "", method},
		{"POST " + npm + "/-/npm/v1/security/audits", "", method},
		{"POST " + npm + "/-/npm/v1/security/advisories/bulk", "", method},
		{"DELETE " + npm + "/pkg/-/pkg-1.0.0.tgz/-rev/1", "", method},
		{"POST " + pip + "/legacy/", "", method},
		{"POST " + pip + "/xmlrpc", "", method},
		{"PATCH " + pip + "/simple/x/", "", method},
		{"MKCOL " + pip + "/simple/x/", "", method},
		{"GET http://pip.example.com/simple/x/", "", "port_not_allowed"},
		{"GET https://upload.pip.example.com/simple/x/", "", "host_not_allowed"},
		{"GET " + npm + "/pkg", "detect-npm-1", ""},
		{"HEAD " + npm + "/pkg/-/pkg-1.0.0.tgz", "detect-npm-1", ""},
		{"GET " + pip + "/simple/x/", "detect-pip-1", ""},
		{"GET " + npm + "/@mfzwizltoq2gk3tbn5xgk43u/pkg", "detect-npm-1", ""}, // the residue
	})
}
