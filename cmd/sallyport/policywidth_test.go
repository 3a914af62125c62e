package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/rules/preset"
)

// TestPolicyFitsAPage: whatever names people take, what policy and preset commands
// print has at most 100 columns, and a program gets JSON.
func TestPolicyFitsAPage(t *testing.T) {
	long := strings.Repeat("n", 56)
	dir := filepath.Join(t.TempDir(), long)
	must(t, os.Mkdir(dir, 0o755))
	t.Chdir(dir)
	must(t, os.Mkdir("creds", 0o755))
	writeTutorialLog(t, "log")
	for _, name := range []string{"short", long} {
		text := fmt.Sprintf(`apiVersion: sallyport/v1
kind: Policy
metadata: {name: %[1]s}
rules:
  - id: %[1]s
    reason: because of something that takes a sentence to be said, and a second half of one to be believed
    expires: 2027-01-31
    allow: {host: api.example.com, access: write, paths: ["/%[1]s", "/b"]}
never: [{hosts: [%[1]s.example.com, "*.b.example.com"], methods: [DELETE, PATCH], reason: nothing is ever deleted there}]
`, name)
		must(t, os.WriteFile(name+".yaml", []byte(text), 0o600))
		for _, args := range [][]string{
			{"show", name + ".yaml"},
			{"prove", name + ".yaml"},
			{"test", name + ".yaml"},
			{"lint", name + ".yaml"},
			{"suggest", "--from", "log", "-p", name + ".yaml"},
			{"explain", "-p", name + ".yaml", "https://api.example.com/b"},
		} {
			args = append([]string{"policy", args[0], "--credentials", "creds"}, args[1:]...)
			fits(t, args)
			isJSON(t, append(args, "-o", "json"))
		}
	}
	fits(t, []string{"policy", "diff", "--credentials", "creds", "short.yaml", "short.yaml"})
	fitsWith(t, 1, []string{"policy", "diff", "--credentials", "creds", "short.yaml", long + ".yaml"})
	fits(t, []string{"policy", "diff", "--credentials", "creds", "short.yaml", long + ".yaml", "--replay", "log"})
	fits(t, []string{"preset", "ls"})
	for _, ref := range preset.Refs() {
		fits(t, []string{"preset", "show", ref})
	}
}

// TestPrintFit: a table stays one as long as it can.
func TestPrintFit(t *testing.T) {
	tests := map[string]struct {
		rows [][]string
		want string
	}{
		"it fits": {[][]string{{"A", "B"}, {"a", "b"}}, "A  B\na  b\n"},
		"the last column is long": {
			[][]string{{"A", "B"}, {"a", strings.Repeat("word ", 30)}, {"c", "d"}},
			"A  B\na  " + strings.TrimSpace(strings.Repeat("word ", 19)) + "\n   " + strings.TrimSpace(strings.Repeat("word ", 11)) + "\nc  d\n",
		},
		"the others leave nothing": {
			[][]string{{"A", "B", "LAST"}, {strings.Repeat("a", 70), strings.Repeat("b", 30), "text"}, {"c", "", "d"}},
			strings.Repeat("a", 70) + "\n  b: " + strings.Repeat("b", 30) + "\n  last: text\nc\n  last: d\n",
		},
	}
	for name, tt := range tests {
		var b strings.Builder
		must(t, printFit(&b, tt.rows))
		if b.String() != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, b.String(), tt.want)
		}
	}
}

// TestReloadHintsWhatToType: of what was refused, reload tells the file to lint, or, of
// an effective policy that has none, that one has to be named; of what is in force, nothing.
func TestReloadHintsWhatToType(t *testing.T) {
	tests := map[string]struct {
		out  reloadOut
		want string
	}{
		"in force": {reloadOut{Credentials: "ok", Runs: []reloadedRun{{Cell: "c1", Outcome: kept, File: "p.yaml"}}}, ""},
		"refused": {
			reloadOut{Credentials: "ok", Runs: []reloadedRun{{Cell: "c1", Outcome: refused, File: "p.yaml", Error: "p.yaml:1:1: empty"}}},
			"sallyport: error: cell c1 keeps its policy: p.yaml:1:1: empty\nsallyport: hint: sallyport --instance lab policy lint p.yaml\n",
		},
		"refused under a floor": {
			reloadOut{Credentials: "ok", Runs: []reloadedRun{{Cell: "c1", Outcome: refused, File: "p.yaml", Error: "no", Lint: "--floor org.yaml p.yaml"}}},
			"sallyport: error: cell c1 keeps its policy: no\nsallyport: hint: sallyport --instance lab policy lint --floor org.yaml p.yaml\n",
		},
		"refused without a file": {
			reloadOut{Credentials: "ok", Runs: []reloadedRun{{Cell: "c1", Outcome: refused, Error: "gone"}}},
			"sallyport: error: cell c1 keeps its policy: gone\nsallyport: hint: sallyport --instance lab policy lint FILE\n",
		},
		"credentials": {
			reloadOut{Credentials: "c.yaml:1:1: empty"},
			"sallyport: error: the credentials stay as they were: c.yaml:1:1: empty\nsallyport: hint: sallyport --instance lab credential ls\n",
		},
	}
	for name, tt := range tests {
		var out, errs strings.Builder
		must(t, printReload(&out, &errs, instance{"lab"}, tt.out))
		if errs.String() != tt.want {
			t.Errorf("%s: %s\nwant %s", name, errs.String(), tt.want)
		}
		if tt.out.ok() != (tt.want == "") {
			t.Errorf("%s: ok is %v", name, tt.out.ok())
		}
	}
}
