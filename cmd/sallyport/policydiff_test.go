package main

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"sallyport/rules"
	"sallyport/rules/policyfile"
)

// readPolicyText reads a policy whose text follows its name.
func readPolicyText(t *testing.T, name, body string, creds ...policyfile.Credential) *policyfile.PolicyFile {
	t.Helper()
	text := "apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: p}\n" + body + "\n"
	p, err := policyfile.ReadPolicy(policyfile.Input{Name: name, Data: []byte(text)}, creds)
	if err != nil {
		t.Fatalf("%s:\n%v", body, err)
	}
	return p
}

func diffTexts(t *testing.T, before, after string) *policyDiff {
	t.Helper()
	d, err := diffPolicies([]string{"old", "new"}, readPolicyText(t, "old", before), readPolicyText(t, "new", after), nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func diffWords(d *policyDiff) string {
	var b strings.Builder
	for _, c := range d.Changes {
		fmt.Fprintf(&b, "%s: %s\n", c.Kind, c.Text)
	}
	return b.String()
}

func TestDiffTellsModes(t *testing.T) {
	in := func(mode string) string {
		return "mode: " + mode + "\nrules: [{id: q, reason: x, deny: {host: other.example.com}}]"
	}
	for pair, want := range map[[2]string]string{
		{"enforce", "observe"}: "what its own rules deny is let through",
		{"enforce", "learn"}:   "what its deny rules deny stays denied",
		{"observe", "enforce"}: "enforces what the old one only observed",
		{"observe", "learn"}:   "what its deny rules deny is denied now",
		{"learn", "enforce"}:   "what no rule allows is denied now",
		{"learn", "observe"}:   "its deny rules hold no longer",
	} {
		if d := diffTexts(t, in(pair[0]), in(pair[1])); d.Same || len(d.Changes) != 1 || !strings.Contains(d.Changes[0].Text, want) {
			t.Errorf("%s: want %q\n%s", pair, want, diffWords(d))
		}
	}
	for _, mode := range []string{"enforce", "observe", "learn"} {
		if d := diffTexts(t, in(mode), in(mode)); !d.Same {
			t.Errorf("%s to itself:\n%s", mode, diffWords(d))
		}
	}
	with, without := in("learn"), "mode: learn\nrules: []"
	if d := diffTexts(t, with, without); d.Same || !strings.Contains(diffWords(d), "no longer denied as by rule q") {
		t.Errorf("a deny rule less under learn:\n%s", diffWords(d))
	}
	if d := diffTexts(t, without, with); d.Same || !strings.Contains(diffWords(d), "what rule q (new:5) denies is not let through") {
		t.Errorf("a deny rule more under learn:\n%s", diffWords(d))
	}
}

func TestDiffTellsLogs(t *testing.T) {
	in := func(level string) string {
		return "rules: [{id: a, reason: x, allow: {host: a.example.com}, log: " + level + "}]"
	}
	levels := []string{"none", "metadata", "request", "request_response"}
	for _, was := range levels {
		for _, is := range levels {
			d := diffTexts(t, in(was), in(is))
			if was == is && !d.Same {
				t.Errorf("log %s to itself:\n%s", was, diffWords(d))
			}
			if was != is && (len(d.Changes) != 1 || d.Changes[0].Kind != "log_changed" || !strings.Contains(d.Changes[0].Text, "log was "+was+" (") || !strings.Contains(d.Changes[0].Text, " and is "+is+" (")) {
				t.Errorf("log %s to %s:\n%s", was, is, diffWords(d))
			}
		}
	}
	// A rule that another one comes before records nothing of what that one admits.
	both := func(rest string) string {
		return `rules:
- {id: a, reason: x, allow: {host: a.example.com, paths: ["/a"]}, log: none}
- {id: b, reason: x, allow: {host: a.example.com, paths: ["/a"` + rest + `]}, log: request}`
	}
	if d := diffTexts(t, both(""), both(`, "/b"`)); len(d.Changes) != 1 || d.Changes[0].Kind != "newly_allowed" {
		t.Errorf("a path more beside a rule that logs in another way:\n%s", diffWords(d))
	}
}

// TestDiffTellsEveryField changes each field of a rule in turn. A field that is
// added to rules has to be added here: to what diff tells, or to what is only
// written about a rule.
func TestDiffTellsEveryField(t *testing.T) {
	allow := func(match, rest string) string {
		return "rules: [{id: a, reason: x, allow: {host: a.example.com" + match + "}" + rest + "}]"
	}
	plain := allow("", "")
	observing := allow(", paths: [/x]", ", mode: observe")
	tests := map[string][2]string{
		"Action":     {plain, "rules: [{id: a, reason: x, deny: {host: a.example.com}}]"},
		"Hosts":      {plain, "rules: [{id: a, reason: x, allow: {host: b.example.com}}]"},
		"Ports":      {plain, allow(", ports: [8443]", "")},
		"Raw":        {allow(", ports: [5432]", ""), allow(", ports: [5432], protocol: tcp", "")},
		"TLS":        {plain, allow("", ", tls: passthrough")},
		"Methods":    {plain, allow(", methods: [GET]", "")},
		"Paths":      {plain, allow(", paths: [/x]", "")},
		"Conditions": {plain, allow(", headers: [{name: X-Mode, equals: dry}]", "")},
		"Private":    {plain, allow(", cidrs: [10.0.0.0/8]", "")},
		"Observe":    {allow(", paths: [/x]", ""), observing},
		"Learn":      {observing, allow(", paths: [/x]", ", mode: learn")},
		"Limits":     {plain, allow("", ", limits: {requests: 5/min}")},
		"Log":        {plain, allow("", ", log: none")},
		"Expires":    {plain, allow("", ", expires: 2099-01-31")},
	}
	written := []string{"ID", "Where", "Purpose", "Ticket", "Owner"}
	elsewhere := []string{"Credential", "CallersKey", "Scope"} // in the tests of prove.Compare; no file chooses its scope
	for name := range reflect.TypeFor[rules.Rule]().Fields() {
		pair, known := tests[name.Name]
		if !known {
			if !strings.Contains(fmt.Sprint(written, elsewhere), name.Name) {
				t.Errorf("nothing says whether diff tells of %s", name.Name)
			}
			continue
		}
		if d := diffTexts(t, pair[0], pair[1]); d.Same || len(d.Changes) == 0 {
			t.Errorf("%s: a change of it is called the same", name.Name)
		}
		if d := diffTexts(t, pair[1], pair[0]); d.Same || len(d.Changes) == 0 {
			t.Errorf("%s: a change back of it is called the same", name.Name)
		}
		if d := diffTexts(t, pair[1], pair[1]); !d.Same {
			t.Errorf("%s: the same is told as\n%s", name.Name, diffWords(d))
		}
	}
}
