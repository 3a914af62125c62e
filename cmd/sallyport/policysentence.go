package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sallyport/rules"
	"sallyport/rules/plural"
	"sallyport/rules/policyfile"
	"sallyport/rules/prove"
)

// day writes a time as a policy file does.
func day(seconds int64) string { return time.Unix(seconds, 0).UTC().Format(time.DateOnly) }

// sentence tells a change.
func sentence(c *prove.Change) string {
	switch c.Kind {
	case prove.NewlyAllowed:
		return fmt.Sprintf("%s: allowed by %s%s.%s", about(c), untilWords(&c.Rule), butWords(c), sameWords(c, "Not new of it is", "allowed", "denied"))
	case prove.NewlyDenied:
		return fmt.Sprintf("%s: allowed by %s before%s.%s", about(c), untilWords(&c.Rule), butWords(c), sameWords(c, "Still allowed of it is", "allows", "denies"))
	case prove.CredentialGranted:
		return fmt.Sprintf("Credential %s is added to %s, by %s%s.%s", c.Credential, about(c), untilWords(&c.Rule), butWords(c),
			sameWords(c, "Not new of it is", "added it to", "denied"))
	case prove.CredentialWithdrawn:
		return fmt.Sprintf("Credential %s is no longer added to %s, as it was by %s%s.%s", c.Credential, about(c), untilWords(&c.Rule), butWords(c),
			sameWords(c, "It is added still to", "adds it to", "denies"))
	case prove.OwnKeyAllowed:
		return fmt.Sprintf("A caller's own key in the place of credential %s on %s: it was refused, since the old policy grants the credential there.",
			c.Credential, strings.Join(c.Hosts, ", "))
	case prove.OwnKeyDenied:
		return fmt.Sprintf("A caller's own key in the place of credential %s on %s: the new policy grants the credential there, and so refuses it.",
			c.Credential, strings.Join(c.Hosts, ", "))
	case prove.LogChanged:
		return logSentence(c)
	default:
		return limitSentence(c)
	}
}

// butWords are the deny rules that take something from what a change is about.
func butWords(c *prove.Change) string {
	word := "denies"
	if c.Kind == prove.NewlyDenied || c.Kind == prove.CredentialWithdrawn {
		word = "denied"
	}
	return lessWords(c.But, word)
}

// lessWords are what deny rules take away.
func lessWords(list []*rules.Rule, word string) string {
	if len(list) == 0 {
		return ""
	}
	return ", but for what " + reaches(list, word)
}

// sameWords say what of a change is no difference: what the other policy does, by its
// own rules.
func sameWords(c *prove.Change, lead, does, denies string) string {
	if len(c.Same) == 0 {
		return ""
	}
	return fmt.Sprintf(" %s what %s%s.", lead, reaches(c.Same, does), lessWords(c.SameBut, denies))
}

// shownRules bounds the rules that one sentence names.
const shownRules = 8

// reaches names rules, each with all that it is about.
func reaches(list []*rules.Rule, does string) string {
	var parts []string
	for _, r := range list[:min(len(list), shownRules)] {
		parts = append(parts, fmt.Sprintf("%s %s (%s)", untilWords(r), does, reach(r)))
	}
	text := strings.Join(parts, " and ")
	if more := len(list) - shownRules; more > 0 {
		text += fmt.Sprintf(" and %s more", plural.Count(more, "rule"))
	}
	return text
}

// reach says what a rule is about, whatever else there is.
func reach(r *rules.Rule) string {
	c := prove.Change{Rule: *r, Carrying: prove.Requests, Ports: r.Ports, Methods: r.Methods}
	for _, h := range r.Hosts {
		c.Hosts = append(c.Hosts, h.String())
	}
	if len(r.Hosts) == 0 {
		for _, p := range r.Private {
			c.Hosts = append(c.Hosts, p.String())
		}
	}
	for _, p := range r.Paths {
		c.Paths = append(c.Paths, p.String())
	}
	switch {
	case r.Raw:
		c.Carrying = prove.AnyBytes
	case r.Action == rules.AllowAction && r.TLS == rules.PassthroughTLS:
		c.Carrying = prove.UnopenedTLS
	}
	return lowerFirst(about(&c))
}

// untilWords are ruleWords with the day on which the rule expires.
func untilWords(r *rules.Rule) string {
	words := ruleWords(r)
	if r.Expires == 0 {
		return words
	}
	until := "until " + day(r.Expires)
	if bare, ok := strings.CutSuffix(words, ")"); ok {
		return bare + ", " + until + ")"
	}
	return words + " (" + until + ")"
}

func ruleWords(r *rules.Rule) string {
	if r.Where == "" {
		return "rule " + r.ID
	}
	return fmt.Sprintf("rule %s (%s)", r.ID, r.Where)
}

// about says which requests a change is about.
func about(c *prove.Change) string {
	var b strings.Builder
	switch c.Carrying {
	case prove.AnyBytes:
		b.WriteString("Any bytes, which nobody looks into,")
	case prove.UnopenedTLS:
		b.WriteString("TLS, which nobody looks into,")
	default:
		b.WriteString(methodWords(c))
	}
	b.WriteString(" to " + strings.Join(c.Hosts, ", "))
	switch ports := portWords(c.Ports); {
	case len(c.Ports) > 1:
		b.WriteString(" on ports " + ports)
	case len(c.Ports) == 1 && c.Ports[0] != 443:
		b.WriteString(" on port " + ports)
	}
	switch {
	case c.TwoReadings:
		b.WriteString(", paths that servers read in two ways")
	case len(c.Paths) == 1:
		b.WriteString(", path " + c.Paths[0])
	case len(c.Paths) > 1:
		b.WriteString(", paths " + strings.Join(c.Paths, " "))
	}
	b.WriteString(conditionWords(c))
	if c.Plain {
		b.WriteString(", over plain HTTP")
	}
	if len(c.Into) > 0 {
		b.WriteString(", where it resolves to an address in")
		for _, p := range c.Into {
			b.WriteString(" " + p.String())
		}
	}
	if c.From > 0 {
		b.WriteString(", from " + day(c.From) + " on")
	}
	return b.String()
}

// conditionWords say what headers and query a change is about.
func conditionWords(c *prove.Change) string {
	var asked []string
	for i := range c.Rule.Conditions {
		asked = append(asked, c.Rule.Conditions[i].Asked())
	}
	text := ""
	if len(asked) > 0 {
		text = ", with " + strings.Join(asked, " and ")
	}
	if c.Facts && !conditional(c) {
		text += ", with headers or a query like those of the example"
	}
	return text
}

// conditional reports whether the rules that a change names say on which headers and
// query it depends.
func conditional(c *prove.Change) bool {
	asks := func(r *rules.Rule) bool { return len(r.Conditions) > 0 }
	return len(c.Rule.Conditions) > 0 || slices.ContainsFunc(slices.Concat(c.But, c.Same, c.SameBut), asks)
}

func lowerFirst(s string) string {
	if strings.HasPrefix(s, "Every ") || strings.HasPrefix(s, "Any ") {
		return strings.ToLower(s[:1]) + s[1:]
	}
	return s
}

func methodWords(c *prove.Change) string {
	switch list := strings.Join(c.Methods, ", "); {
	case len(c.Methods) == 0:
		return "Every method"
	case c.Except:
		return "Every method but " + list
	default:
		return list
	}
}

func portWords(list []uint16) string {
	words := make([]string, len(list))
	for i, p := range list {
		words[i] = strconv.Itoa(int(p))
	}
	return strings.Join(words, ", ")
}

// logWords say what is kept of what is admitted, by the word of a policy file.
var logWords = map[rules.LogLevel]string{
	rules.LogNone:            "none (path and query are left out)",
	rules.LogMetadata:        "metadata (path and query are recorded, bodies are not)",
	rules.LogRequest:         "request (bodies of requests are kept)",
	rules.LogRequestResponse: "request_response (bodies of requests and responses are kept)",
}

func logSentence(c *prove.Change) string {
	was := ""
	if c.Was.ID != c.Rule.ID {
		was = ", which was under " + ruleWords(c.Was)
	}
	return fmt.Sprintf("log was %s and is %s, for %s%s.", logWords[c.Was.Log], logWords[c.Rule.Log], ruleWords(&c.Rule), was)
}

func limitSentence(c *prove.Change) string {
	word := map[prove.Kind]string{
		prove.LimitLoosened: "looser", prove.LimitTightened: "tighter", prove.LimitChanged: "looser in one way and tighter in another",
	}[c.Kind]
	if c.With != nil && c.Kind == prove.LimitLoosened {
		return fmt.Sprintf("Looser: what %s counted, %s and %s count apart.", ruleWords(c.Was), ruleWords(c.With), ruleWords(&c.Rule))
	}
	if c.With != nil {
		return fmt.Sprintf("Tighter: what %s and %s counted apart, %s counts.", ruleWords(c.With), ruleWords(c.Was), ruleWords(&c.Rule))
	}
	var parts []string
	for _, l := range c.Limits {
		parts = append(parts, fmt.Sprintf("%s %s → %s", l.Name, rateWords(l.Name, l.Old), rateWords(l.Name, l.New)))
	}
	if c.Run {
		return fmt.Sprintf("%s: %s, for all rules of a run together.", upperFirst(word), strings.Join(parts, ", "))
	}
	was := ""
	if c.Was.ID != c.Rule.ID {
		was = ", which was under " + ruleWords(c.Was)
	}
	return fmt.Sprintf("%s: %s, for %s%s.", upperFirst(word), strings.Join(parts, ", "), ruleWords(&c.Rule), was)
}

func rateWords(name string, r rules.Rate) string {
	if r.N == 0 {
		return "no limit"
	}
	return policyfile.LimitText(name, r)
}

func upperFirst(s string) string {
	if s == "" {
		return s
	}
	return string(s[0]-'a'+'A') + s[1:]
}
