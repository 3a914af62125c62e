package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/rules"
	"sallyport/rules/plural"
	"sallyport/rules/policyfile"
	"sallyport/rules/prove"
	"sallyport/rules/target"
)

func newPolicyDiff() *cobra.Command {
	var replay string
	c := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Say in what two policies differ in meaning",
		Long: `Diff tells what the new policy newly allows and newly denies, which credentials are newly
reachable, which limits are looser or tighter, and what is recorded in another way: over all
rules and all that is included, in sentences, with a request that was put to both. Names, reasons,
tests, order and layout do not count. Hosts, ports, methods, paths, addresses and days are sets,
so that no difference is left out. A sentence is about all that it names, less what the rules say
that it names for that. A deny rule that comes or goes without effect is told, and is no
difference. A change of mode is told; else a policy that observes or learns is compared by its
rules.
With --replay it asks both what a log recorded, and lists the records that change verdict. A
record holds no headers and no query, nor whether a request was in TLS: what depends on those,
and the record does not say in another way, is counted as undecided, with why.
Of a test or a statement under never that does not hold it warns, and compares all the same.
Exit codes: 0 they are the same; 1 they differ, a record is undecided, or a test or statement
does not hold; 2 usage, a file that is wrong otherwise, or policies that cannot be compared.`,
		Example: `  sallyport policy diff old.yaml new.yaml
  sallyport policy diff old.yaml new.yaml -o json
  sallyport policy diff old.yaml new.yaml --replay /var/lib/sallyport/audit`,
		Args: exactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			asJSON, err := outputJSON(c)
			if err != nil {
				return err
			}
			files, err := newPolicyFiles(c)
			if err != nil {
				return err
			}
			before, failing, err := readAnyway(files, args[0])
			after, failingNew, afterErr := readAnyway(files, args[1])
			if err := errors.Join(err, afterErr); err != nil {
				return usage(err)
			}
			for _, e := range failingNew {
				if !slices.Contains(failing, e) { // of what both include
					failing = append(failing, e)
				}
			}
			for _, e := range failing {
				fmt.Fprintf(c.ErrOrStderr(), "warning: %v\n", e)
			}
			same := false
			if replay != "" {
				same, err = replayDiff(c, replay, before, after, asJSON)
			} else {
				same, err = plainDiff(c, before, after, failing, asJSON)
			}
			if err == nil && (!same || len(failing) > 0) {
				err = &exitError{code: exitFailed}
			}
			return err
		},
	}
	c.Flags().StringVar(&replay, "replay", "", "directory of a log whose requests are put to both")
	addOutput(c)
	return c
}

// readAnyway reads a policy of which tests, or statements under never, may not
// hold: those are failing, and a reviewer has to see what it means all the same.
func readAnyway(files *policyFiles, path string) (p *policyfile.PolicyFile, failing policyfile.Errors, err error) {
	p, err = files.read(path)
	if err != nil && p != nil && fails(p) {
		return p, problems(path, err), nil
	}
	return p, nil, noFile(err)
}

// plainDiff compares what two policies mean, and reports whether it is the same.
func plainDiff(c *cobra.Command, before, after *policyfile.PolicyFile, failing policyfile.Errors, asJSON bool) (same bool, err error) {
	args := c.Flags().Args()
	d, err := diffPolicies(args, before, after, c.Context().Err)
	if err != nil {
		return false, usage(fmt.Errorf("comparing %s and %s: %w", args[0], args[1], err))
	}
	d.Failing = failing
	if asJSON {
		return d.Same, printJSON(c.OutOrStdout(), d)
	}
	printDiff(c.OutOrStdout(), d)
	return d.Same, nil
}

// policyDiff is what diff answers.
type policyDiff struct {
	Same    bool           `json:"same"`
	Old     policyID       `json:"old"`
	New     policyID       `json:"new"`
	Changes []policyChange `json:"changes"`
	// Idle are deny rules that came or went, and make no difference as things are.
	Idle []idleRule `json:"without_effect"`
	// Failing are tests and statements of either that do not hold.
	Failing policyfile.Errors `json:"failing,omitempty"`
}

// policyID says which policy is meant.
type policyID struct {
	File   string `json:"file"`
	Name   string `json:"name"`
	Digest string `json:"digest"`
}

// policyChange is one difference: see [prove.Change].
type policyChange struct {
	Kind       string   `json:"kind"`
	Text       string   `json:"text"`
	Rule       string   `json:"rule,omitempty"`
	Where      string   `json:"where,omitempty"`
	Hosts      []string `json:"hosts,omitempty"`
	Ports      []uint16 `json:"ports,omitempty"`
	Methods    []string `json:"methods,omitempty"`
	AllBut     bool     `json:"all_methods_but,omitempty"`
	Paths      []string `json:"paths,omitempty"`
	Carrying   string   `json:"carrying,omitempty"`
	Addresses  []string `json:"addresses,omitempty"`
	From       string   `json:"from,omitempty"`
	Until      string   `json:"until,omitempty"`      // the day on which the rule expires
	Conditions []string `json:"conditions,omitempty"` // of the rule
	// But, Same and SameBut are what is no difference: see [prove.Change].
	But        []ruleReach    `json:"but,omitempty"`
	Same       []ruleReach    `json:"same,omitempty"`
	SameBut    []ruleReach    `json:"same_but,omitempty"`
	Credential string         `json:"credential,omitempty"`
	Example    *changeExample `json:"example,omitempty"`
}

// ruleReach is a rule with all that it is about.
type ruleReach struct {
	Rule  string `json:"rule"`
	Where string `json:"where"`
	About string `json:"about"`
}

func reachesOf(list []*rules.Rule) (out []ruleReach) {
	for _, r := range list {
		out = append(out, ruleReach{r.ID, r.Where, reach(r)})
	}
	return out
}

// changeExample is a request that was put to both policies.
type changeExample struct {
	Request string    `json:"request"`
	Address string    `json:"address,omitempty"` // that its host resolves to
	At      string    `json:"at,omitempty"`
	Old     judgement `json:"old"`
	New     judgement `json:"new"`
}

// judgement is a decision in few words.
type judgement struct {
	Verdict    string `json:"verdict"`
	Reason     string `json:"reason"`
	Rule       string `json:"rule,omitempty"`
	Where      string `json:"where,omitempty"`
	Credential string `json:"credential,omitempty"`
}

func judgementOf(d rules.Decision) judgement {
	j := judgement{Verdict: d.Verdict.String(), Reason: string(d.Reason), Rule: d.Rule, Where: d.Where}
	if d.Verdict != rules.Deny {
		j.Credential = d.Credential
	}
	return j
}

// String says it in a few words.
func (j judgement) String() string {
	word := "allowed"
	if j.Verdict == rules.Deny.String() {
		word = "denied (" + j.Reason + ")"
	}
	if j.Rule != "" {
		word += fmt.Sprintf(" by rule %s, %s", j.Rule, j.Where)
	}
	if j.Credential != "" {
		word += ", with credential " + j.Credential
	}
	return word
}

func diffPolicies(files []string, before, after *policyfile.PolicyFile, stop func() error) (*policyDiff, error) {
	d := &policyDiff{
		Old: policyID{files[0], before.Name, before.Unproven().Digest()}, New: policyID{files[1], after.Name, after.Unproven().Digest()},
		Changes: settingChanges(before, after),
	}
	list, err := prove.Compare(before.Unproven(), after.Unproven(), stop)
	if err != nil {
		return nil, err
	}
	for i := range list {
		d.Changes = append(d.Changes, changeOf(&list[i]))
	}
	d.Same = len(d.Changes) == 0
	d.Idle, err = idleRules(before.Unproven(), after.Unproven(), stop)
	return d, err
}

// settingChanges tells of what a policy says beside its rules.
func settingChanges(before, after *policyfile.PolicyFile) []policyChange {
	list := []policyChange{}
	add := func(kind, format string, args ...any) {
		list = append(list, policyChange{Kind: kind, Text: fmt.Sprintf(format, args...)})
	}
	list = append(list, modeChanges(before.Unproven(), after.Unproven())...)
	if was, is := nameErrors(before.Unproven()), nameErrors(after.Unproven()); was != is {
		word := map[bool]string{true: "nxdomain", false: "explain"}
		add("dns", "A denied name is answered in another way: dns.denied was %s and is %s.", word[was], word[is])
	}
	gone, come := differ(neverTexts(before), neverTexts(after))
	for _, s := range gone {
		add("never", "No longer promised: never %s.", s)
	}
	for _, s := range come {
		add("never", "Newly promised: never %s.", s)
	}
	gone, come = differ(before.Lookups, after.Lookups)
	for _, s := range come {
		add("dns", "Newly looked up for a sandbox: %s.", s)
	}
	for _, s := range gone {
		add("dns", "No longer looked up for a sandbox: %s.", s)
	}
	return list
}

// modeTexts say what a change of mode means, by the old one and the new.
var modeTexts = map[[2]string]string{
	{"enforce", "observe"}: "The new policy only observes: what its own rules deny is let through and recorded.",
	{"enforce", "learn"}:   "The new policy learns: what no rule allows is let through and recorded; what its deny rules deny stays denied.",
	{"observe", "enforce"}: "The new policy enforces what the old one only observed.",
	{"observe", "learn"}:   "The new policy learns where the old one only observed: what its deny rules deny is denied now; what no rule allows is let through still.",
	{"learn", "enforce"}:   "The new policy enforces where the old one learned: what no rule allows is denied now.",
	{"learn", "observe"}:   "The new policy only observes where the old one learned: its deny rules hold no longer, and what they deny is let through and recorded.",
}

func modeOf(p *rules.Policy) string {
	switch {
	case p.Learns():
		return "learn"
	case p.Observes():
		return "observe"
	default:
		return "enforce"
	}
}

// modeChanges tells of what is let through although rules do not allow it, which
// is no part of what [prove.Compare] compares.
func modeChanges(before, after *rules.Policy) (list []policyChange) {
	add := func(r *rules.Rule, format string, args ...any) {
		c := policyChange{Kind: "mode", Text: fmt.Sprintf(format, args...)}
		if r != nil {
			c.Rule, c.Where = r.ID, r.Where
		}
		list = append(list, c)
	}
	was, is := modeOf(before), modeOf(after)
	if text := modeTexts[[2]string{was, is}]; text != "" {
		add(nil, "%s The rest is about what the rules say.", text)
	}
	if was == "learn" && is == "learn" {
		gone, come := differentRules(before, after, func(r *rules.Rule) bool { return r.Action == rules.DenyAction })
		for i := range gone {
			add(&gone[i], "Under mode: learn, no longer denied as by %s: what no other rule denies of it is let through.", ruleWords(&gone[i]))
		}
		for i := range come {
			add(&come[i], "Under mode: learn, what %s denies is not let through.", ruleWords(&come[i]))
		}
	}
	gone, come := differentRules(before, after, func(r *rules.Rule) bool { return r.Observe })
	for i := range gone {
		add(&gone[i], "Of the old policy, %s only observes, and no rule of the new one does so in the same way.", ruleWords(&gone[i]))
	}
	for i := range come {
		word := map[bool]string{true: "learns", false: "only observes"}[come[i].Learn]
		add(&come[i], "Of the new policy, %s %s: what it denies, or does not allow of its hosts and ports, is let through and recorded.", ruleWords(&come[i]), word)
	}
	return list
}

// differentRules returns those rules that count of either policy which the other has
// not, whatever is written about them.
func differentRules(before, after *rules.Policy, counts func(*rules.Rule) bool) (gone, come []rules.Rule) {
	pick := func(p *rules.Policy) map[string]rules.Rule {
		out := map[string]rules.Rule{}
		for _, r := range p.Rules() {
			if counts(&r) {
				key := r
				key.ID, key.Where, key.Purpose, key.Ticket, key.Owner = "", "", "", "", ""
				out[fmt.Sprintf("%+v", key)] = r
			}
		}
		return out
	}
	was, is := pick(before), pick(after)
	for _, key := range slices.Sorted(maps.Keys(was)) {
		if _, both := is[key]; !both {
			gone = append(gone, was[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(is)) {
		if _, both := was[key]; !both {
			come = append(come, is[key])
		}
	}
	return gone, come
}

// differ returns what is in one list alone.
func differ(was, is []string) (gone, come []string) {
	without := func(list, other []string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(other, s) })
	}
	return without(was, is), without(is, was)
}

// nameErrors reports whether denied names are answered with NXDOMAIN.
func nameErrors(p *rules.Policy) bool {
	n, err := target.ParseName("denied." + rules.Reserved)
	if err != nil {
		return false
	}
	return p.Decide(rules.Request{Question: rules.Resolve, Type: 1, Endpoint: target.Endpoint{Host: target.HostOf(n)}}).NameError
}

var neverOrigin = regexp.MustCompile(`(, )?(origin|reason): "([^"\\]|\\.)*"`)

// neverTexts are the statements of a policy without where they stand and why.
func neverTexts(p *policyfile.PolicyFile) []string {
	out := make([]string, 0, len(p.Never))
	for _, n := range p.Never {
		out = append(out, neverOrigin.ReplaceAllString(n.Text, ""))
	}
	return out
}

func changeOf(c *prove.Change) policyChange {
	out := policyChange{
		Kind: string(c.Kind), Rule: c.Rule.ID, Where: c.Rule.Where, Hosts: c.Hosts, Ports: c.Ports, Methods: c.Methods, AllBut: c.Except,
		Paths: c.Paths, Credential: c.Credential, Text: sentence(c),
		But: reachesOf(c.But), Same: reachesOf(c.Same), SameBut: reachesOf(c.SameBut),
	}
	for i := range c.Rule.Conditions {
		out.Conditions = append(out.Conditions, c.Rule.Conditions[i].Asked())
	}
	if c.Run {
		return out
	}
	out.Example = &changeExample{
		Request: prove.Example{Request: c.Example.Request}.String(),
		Old:     judgementOf(c.Example.Before), New: judgementOf(c.Example.After),
	}
	if c.Carrying != prove.Requests {
		out.Carrying = string(c.Carrying)
	}
	for _, p := range c.Into {
		out.Addresses = append(out.Addresses, p.String())
	}
	if _, isName := c.Example.Request.Endpoint.Host.Name(); isName && c.Example.Addr.IsValid() {
		out.Example.Address = c.Example.Addr.String()
	}
	if c.From > 0 {
		out.From = day(c.From)
	}
	if c.Rule.Expires > 0 {
		out.Until = day(c.Rule.Expires)
	}
	if now := c.Example.Request.Now; now > 0 {
		out.Example.At = day(now)
	}
	return out
}

// diffHeadings are the kinds of change as a reviewer reads them.
var diffHeadings = []struct {
	kinds []string
	text  string
}{
	{[]string{"mode", "dns", "never"}, "Of the policy as a whole"},
	{[]string{string(prove.NewlyAllowed), string(prove.OwnKeyAllowed)}, "Newly allowed"},
	{[]string{string(prove.CredentialGranted)}, "Credentials newly reachable"},
	{[]string{string(prove.LimitLoosened), string(prove.LimitChanged), string(prove.LimitTightened)}, "Limits"},
	{[]string{string(prove.LogChanged)}, "Recorded in another way"},
	{[]string{string(prove.NewlyDenied), string(prove.OwnKeyDenied)}, "Newly denied"},
	{[]string{string(prove.CredentialWithdrawn)}, "Credentials no longer reachable"},
}

func printDiff(w io.Writer, d *policyDiff) {
	if d.Same {
		text := "Both policies admit, grant, limit and record the same."
		if d.Old.Digest != d.New.Digest {
			text += " They differ in how that is written (names, reasons, tests, the order and places of rules), and so in their digests."
		}
		printWrapped(w, "", text)
		printIdle(w, d.Idle)
		return
	}
	for _, h := range diffHeadings {
		first := true
		for _, c := range d.Changes {
			if !slices.Contains(h.kinds, c.Kind) {
				continue
			}
			if first {
				fmt.Fprintf(w, "%s\n", h.text)
				first = false
			}
			printWrapped(w, "  ", c.Text)
			if c.Example != nil {
				printExample(w, c.Example)
			}
		}
	}
	printIdle(w, d.Idle)
	fmt.Fprintln(w, plural.Count(len(d.Changes), "difference"))
}

func printExample(w io.Writer, e *changeExample) {
	text := "for example " + e.Request
	if e.Address != "" {
		text += ", resolved to " + e.Address
	}
	if e.At != "" {
		text += ", on " + e.At
	}
	printWrapped(w, "    ", text)
	printWrapped(w, "      ", "was "+e.Old.String())
	printWrapped(w, "      ", "is  "+e.New.String())
}

// printWrapped writes text in lines of at most 100 columns, unless a word is
// longer.
func printWrapped(w io.Writer, indent, text string) {
	line := indent
	for word := range strings.SplitSeq(text, " ") {
		if line != indent && len([]rune(line))+1+len([]rune(word)) > maxColumns {
			fmt.Fprintln(w, line)
			line = indent + "  "
		} else if line != indent {
			line += " "
		}
		line += word
	}
	fmt.Fprintln(w, line)
}
