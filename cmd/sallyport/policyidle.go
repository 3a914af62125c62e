package main

import (
	"fmt"
	"io"
	"slices"

	"sallyport/rules"
	"sallyport/rules/plural"
	"sallyport/rules/prove"
)

// idleRule is a deny rule that came or went, and makes no difference as things are:
// nothing else allows what it denies. It would make one to whoever allows that later.
type idleRule struct {
	Rule  string `json:"rule"`
	Where string `json:"where"`
	Gone  bool   `json:"gone"` // of the old policy; else of the new one
	Text  string `json:"text"`
}

// mostIdle bounds the rules that are looked at, each of which costs a comparison.
const mostIdle = 50

// idleRules returns the deny rules that one policy has, the other has not, and that
// take nothing from what the new policy allows.
func idleRules(before, after *rules.Policy, stop func() error) ([]idleRule, error) {
	list := []idleRule{}
	gone, come := differentRules(before, after, func(r *rules.Rule) bool { return r.Action == rules.DenyAction && !r.Observe })
	for i := range gone[:min(len(gone), mostIdle)] {
		r := &gone[i]
		idle, err := takesNothing(r, after.Rules(), stop)
		if err != nil {
			return nil, err
		}
		if idle {
			list = append(list, idleRule{r.ID, r.Where, true, fmt.Sprintf("Without %s nothing more is allowed: no rule of the new policy allows what it denied (%s). "+
				"A later rule that does will not be held back.", ruleWords(r), reach(r))})
		}
	}
	for i := range come[:min(len(come), mostIdle)] {
		r := &come[i]
		rest := slices.DeleteFunc(after.Rules(), func(x rules.Rule) bool { return x.ID == r.ID })
		idle, err := takesNothing(r, rest, stop)
		if err != nil {
			return nil, err
		}
		if idle {
			list = append(list, idleRule{r.ID, r.Where, false, fmt.Sprintf("%s denies nothing that would be allowed without it: %s.", upperFirst(ruleWords(r)), reach(r))})
		}
	}
	if more := max(0, len(gone)-mostIdle) + max(0, len(come)-mostIdle); more > 0 {
		list = append(list, idleRule{Text: fmt.Sprintf("Of %d more deny %s that came or went it was not asked whether %s anything: a difference that %s is told above.", more,
			plural.Of(more, "rule", "rules"), plural.Of(more, "it takes", "they take"), plural.Of(more, "it makes", "they make"))})
	}
	return list, nil
}

// takesNothing reports whether a deny rule denies nothing that rules allow without it.
func takesNothing(r *rules.Rule, rest []rules.Rule, stop func() error) (bool, error) {
	own := *r
	own.ID = "the-deny-rule-in-question"
	without, err := rules.Compile(rules.Source{Rules: rest})
	if err != nil {
		return false, fmt.Errorf("rule %q: %w", r.ID, err)
	}
	with, err := rules.Compile(rules.Source{Rules: append(slices.Clone(rest), own)})
	if err != nil {
		return false, fmt.Errorf("rule %q: %w", r.ID, err)
	}
	changes, err := prove.Compare(without, with, stop)
	if err != nil {
		return false, fmt.Errorf("rule %q: %w", r.ID, err)
	}
	return len(changes) == 0, nil
}

func printIdle(w io.Writer, list []idleRule) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintln(w, "Without effect")
	for _, r := range list {
		printWrapped(w, "  ", r.Text)
	}
}
