package policyfile_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"sallyport/rules/policyfile"
)

// strictly returns the findings about a policy on 1 December 2026.
func strictly(t *testing.T, text string, creds ...policyfile.Credential) policyfile.Errors {
	t.Helper()
	f, err := policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: []byte(text)}, creds)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if err = f.Strict(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC).Unix()); err == nil {
		return nil
	}
	return errorsOf(t, err)
}

// TestEveryFindingHasItsID: each kind of finding is told of a policy that has it alone,
// with its ID, and not of the twin that has been mended.
func TestEveryFindingHasItsID(t *testing.T) {
	idp := signInCredential(t)
	const good = "{host: a.test}"
	with := func(match, rest string) string {
		return head + "rules: [{id: a, reason: x, allow: " + match + rest + "}]\n"
	}
	owned := func(rest string) string { return with(good, ", owner: eve, "+rest) }
	tests := map[string]struct{ has, twin string }{
		"policy-observes":           {head + "mode: observe\nrules: []\n", head + "mode: enforce\nrules: []\n"},
		"reason-unwritten":          {strings.Replace(with(good, ""), "reason: x", "reason: TODO", 1), with(good, "")},
		"expired":                   {owned("expires: 2026-12-01"), owned("expires: 2026-12-16")},
		"expires-soon":              {owned("expires: 2026-12-15"), owned("expires: 2026-12-16")},
		"expires-without-owner":     {with(good, ", expires: 2027-06-01"), owned("expires: 2027-06-01")},
		"observes-without-end":      {owned("mode: observe"), owned("mode: enforce")},
		"observes-long":             {owned("mode: observe, expires: 2027-03-02"), owned("mode: observe, expires: 2027-03-01")},
		"callers-key-without-owner": {with(good, ", callers_key: allow"), owned("callers_key: allow")},
		"log-none-without-owner":    {with(good, ", log: none"), owned("log: none")},
		"admits-nothing": {
			head + "rules: [{id: a, reason: x, allow: {host: a.test}}, {id: b, reason: x, deny: {host: a.test}}]\n",
			head + "rules: [{id: a, reason: x, allow: {host: a.test}}, {id: b, reason: x, deny: {host: a.test, paths: [/x]}}]\n",
		},
		"public-resolver":         {with("{host: \"*.quad9.net\"}", ""), with("{host: quad9.net}", "")},
		"anybodys-host":           {with("{host: api.telegram.org}", ""), with("{host: telegram.org}", "")},
		"lookalike-host":          {with("{host: pаypal.com}", ""), with("{host: paypal.com}", "")}, // the first a is Cyrillic
		"sign-in-past-credential": {with("{host: id.test, methods: [POST], paths: [/token]}", ""), with("{host: id.test}", "")},
	}
	for _, x := range policyfile.Findings() {
		tt, ok := tests[x.ID]
		if !ok || !regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`).MatchString(x.ID) || x.Means == "" {
			t.Errorf("%+v has no test, or no good name", x)
			continue
		}
		found := strictly(t, tt.has, *idp)
		if len(found) != 1 || found[0].ID != x.ID || !strings.Contains(found[0].Error(), " ["+x.ID+"]") {
			t.Errorf("%s: %v", x.ID, found)
		}
		if found := strictly(t, tt.twin, *idp); len(found) > 0 {
			t.Errorf("%s, mended: %v", x.ID, found)
		}
	}
	if len(tests) != len(policyfile.Findings()) {
		t.Errorf("%d tests for %d findings", len(tests), len(policyfile.Findings()))
	}
}

// TestLookalikes: names that can be taken for others are told of, in whatever form
// they are written; those that their script writes so are not.
func TestLookalikes(t *testing.T) {
	for host, want := range map[string]string{
		"pаypal.com":          "mixes letters of Cyrillic and Latin", // the first a is Cyrillic
		"xn--pypal-4ve.com":   "pаypal.com",
		"api.pаypal.com":      "mixes letters",
		"*.pаypal.com":        "mixes letters",
		"gοοgle.com":          "mixes letters of Greek and Latin", // both o are Greek
		"аррӏе.com":           "is made of Cyrillic letters that look like Latin ones",
		"аррӏе.test":          "is made of Cyrillic letters",
		"paypal.com":          "",
		"пример.com":          "",
		"сахар.рф":            "", // Russian sugar, under a Russian domain
		"münchen.de":          "",
		"日本語とkana.jp":         "",
		"例え.jp":               "",
		"한국-korea.kr":         "",
		"xn--r8jz45g.example": "",
	} {
		found := strictly(t, head+"rules: [{id: a, reason: x, allow: {host: \""+host+"\"}}]\n")
		if want == "" && len(found) > 0 || want != "" && (len(found) != 1 || !strings.Contains(found[0].Text, want)) {
			t.Errorf("%s: %v, want %q", host, found, want)
		}
	}
}
