package policyfile

import (
	"cmp"
	"slices"
	"strings"

	"sallyport/rules"
)

// Untested returns the rules that decide none of the policy's tests, in the
// order of their ids.
func (p *PolicyFile) Untested() []rules.Rule {
	touched := map[string]bool{}
	for _, t := range p.Tests {
		touched[t.Decision.Rule] = true
	}
	var out []rules.Rule
	for _, r := range p.doc.allRules() {
		if !touched[r.ID] && r.doc.preset == nil && !r.found { // a preset has tests of its own; which hosts are found, no test knows
			out = append(out, r.Rule)
		}
	}
	slices.SortFunc(out, func(a, b rules.Rule) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// Coverage says of what rules ask of requests, how much is tested.
type Coverage struct {
	Terms    int // of all rules that the file and what it includes say themselves
	Untested []UntestedTerm
}

// UntestedTerm is a group or condition of a rule that alone decides no test.
type UntestedTerm struct {
	Rule rules.Rule
	Term string // see [rules.Rule.Terms]
}

// Covered looks for a test of each thing that rules ask of a request, their methods,
// paths, conditions and the size of a body: one that an allow rule turns away, or a
// deny rule lets past, for that alone. What only a default says is not counted.
func (p *PolicyFile) Covered() Coverage {
	var c Coverage
	for _, r := range p.doc.allRules() {
		if r.doc.preset != nil || r.found {
			continue
		}
		terms := slices.DeleteFunc(r.Terms(), func(term string) bool { return !r.says(term) })
		c.Terms += len(terms)
		for _, t := range p.Tests {
			unmet, about := r.Unmet(&t.request)
			if about && len(unmet) == 1 && (t.Decision.Verdict == rules.Deny) == (r.Action == rules.AllowAction) {
				terms = slices.DeleteFunc(terms, func(term string) bool { return term == unmet[0] })
			}
		}
		for _, term := range terms {
			c.Untested = append(c.Untested, UntestedTerm{r.Rule, term})
		}
	}
	slices.SortFunc(c.Untested, func(a, b UntestedTerm) int {
		return cmp.Or(strings.Compare(a.Rule.ID, b.Rule.ID), strings.Compare(a.Term, b.Term))
	})
	return c
}

// says reports whether the rule itself says a term, and not a default, and it is
// one that can be missed.
func (r *ruleDoc) says(term string) bool {
	switch term {
	case rules.MethodsTerm:
		return r.fields["methods"] != nil || r.fields["access"] != nil
	case rules.PathsTerm: // /** turns nothing away
		return !slices.ContainsFunc(r.Paths, func(p rules.PathPattern) bool { return p.String() == "/**" })
	case rules.BodyTerm:
		return r.fields["limits"] != nil
	default:
		return true
	}
}
