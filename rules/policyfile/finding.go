package policyfile

import (
	"fmt"

	"github.com/goccy/go-yaml/ast"
)

// Finding is a kind of thing that keeps a policy out of production though it loads.
// Its ID is for those who count findings, or look one up, and stays what it is.
type Finding struct {
	ID string
	// Means says when it is told, as half a sentence.
	Means string
}

// Findings are the kinds of finding that [PolicyFile.Strict] tells, in the order of
// their names.
func Findings() []Finding {
	return []Finding{
		{admitsNothingID, "deny rules take all that an allow rule admits"},
		{anybodysHost, "a rule allows a place where anybody can leave and fetch data, or have a name lead anywhere"},
		{callersKeyNoOwner, "`callers_key: allow`, and nobody answers for it"},
		{expiredID, "a rule has expired"},
		{expiresSoon, fmt.Sprintf("a rule expires within %d days", soon/86400)},
		{expiresNoOwner, "a rule expires, and nobody is named who could renew it"},
		{logNoOwner, "`log: none`, and nobody answers for it"},
		{lookalike, "a host's name mixes letters of several scripts, or is made of letters that look like Latin ones"},
		{observesLong, fmt.Sprintf("a rule with `mode: observe` or `learn` ends more than %d days from now", longest/86400)},
		{observesEndless, "a rule with `mode: observe` or `learn` has no end"},
		{policyObserves, "the policy has `mode: observe` or `learn`"},
		{publicResolver, "a rule allows a public DNS resolver"},
		{reasonUnwritten, "a reason has no letter, or begins with `TODO`, `FIXME`, `TBD` or `XXX`"},
		{openSignInID, "people can sign in past the credential of type `oauth2-user` that keeps their tokens"},
	}
}

// The IDs of findings.
const (
	admitsNothingID   = "admits-nothing"
	anybodysHost      = "anybodys-host"
	callersKeyNoOwner = "callers-key-without-owner"
	expiredID         = "expired"
	expiresNoOwner    = "expires-without-owner"
	expiresSoon       = "expires-soon"
	logNoOwner        = "log-none-without-owner"
	lookalike         = "lookalike-host"
	observesEndless   = "observes-without-end"
	observesLong      = "observes-long"
	policyObserves    = "policy-observes"
	publicResolver    = "public-resolver"
	reasonUnwritten   = "reason-unwritten"
	openSignInID      = "sign-in-past-credential"
)

// find tells a finding: an error with an ID.
func (f *file) find(id string, n ast.Node, format string, args ...any) {
	before := len(f.errs)
	f.errorf(n, format, args...)
	if len(f.errs) > before {
		f.errs[before].ID = id
	}
}

// findings writes the table of the kinds of finding.
func (w *reference) findings() {
	w.WriteString("\n## Findings of `policy lint --strict`\n\n" +
		"Each stands in brackets after its text, as `id` in JSON and as `ruleId` in SARIF. What does not load at all has no id, and\n" +
		"the `ruleId` `policy`.\n\n| id | told when |\n|---|---|\n")
	for _, x := range Findings() {
		fmt.Fprintf(w, "| `%s` | %s |\n", x.ID, x.Means)
	}
}
