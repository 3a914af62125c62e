package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/audit/query"
	"sallyport/rules"
	"sallyport/rules/plural"
	"sallyport/rules/policyfile"
	"sallyport/rules/suggest"
)

func newPolicySuggest() *cobra.Command {
	var from, path, filter, run string
	c := &cobra.Command{
		Use:   "suggest --from LOG",
		Short: "Suggest rules for what a log says was denied, or only observed",
		Long: `Suggest prints a policy with the smallest rules that admit what was denied, or let through by
mode: observe or learn: hosts, ports, methods, and paths in which ids are stars. Each reason is
TODO, so that policy lint --strict refuses the file until a person has written why. Nobody but
the sandbox chose what it asked for: read each rule as if it were an attacker's wish.
What a deny rule, a floor or a guard refused on purpose is never suggested, and told. With -p
only what that policy does not admit now is suggested, and what it refuses on purpose is told.
Exit codes: 0 done, be it that there is nothing to suggest; 2 usage, or a file that is wrong.`,
		Example: `  sallyport policy suggest --from /var/lib/sallyport/audit
  sallyport policy suggest --from ./audit -p policy.yaml --run 01JJX0000000000000000000H0
  sallyport policy suggest --from ./audit --filter 'since=2h host~example'`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			asJSON, err := outputJSON(c)
			if err != nil {
				return err
			}
			if from == "" {
				return noLogNamed(c)
			}
			f, err := suggestedFrom(c, filter, query.Spell("run", run))
			if err != nil {
				return err
			}
			var p *policyfile.PolicyFile
			if path != "" {
				if p, err = readPolicyFile(c, path); err != nil {
					return usage(err)
				}
			}
			s := &suggestion{Log: from, Rules: []suggestedRule{}, Left: []leftOut{}, run: query.Spell("run", run), policy: p, at: map[string]int{}}
			if s.Holes, err = readLog(c, from, f, s.read); err != nil {
				return unreadLog(err, "%s --from DIR, where DIR holds segments of a log", c.CommandPath())
			}
			if run != "" && !s.runSeen {
				return usage(hint(fmt.Errorf("no record that is asked for is of run %q", run), "sallyport audit top --by run --dir %s", from))
			}
			if err := s.suggest(); err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), s)
			}
			_, err = io.WriteString(c.OutOrStdout(), s.Policy)
			return err
		},
	}
	c.Flags().StringVar(&from, "from", "", "directory of the log")
	c.Flags().StringVarP(&path, "policy", "p", "", "policy file that the rules are to go into")
	c.Flags().StringVar(&run, "run", "", "only what this run asked for")
	c.Flags().StringVar(&filter, "filter", "", "only records that match, as for audit query")
	addOutput(c)
	return c
}

// suggestion is what suggest answers.
type suggestion struct {
	Log   string          `json:"log"`
	Rules []suggestedRule `json:"rules"`
	// Left is what no rule is suggested for, with why.
	Left []leftOut `json:"not_suggested"`
	// Allowed counts what the policy of -p admits by now.
	Allowed int `json:"allowed_by_now"`
	// Unreadable counts records that do not hold enough to be asked again.
	Unreadable int `json:"unreadable"`
	// Holes are where the log lacks records.
	Holes []query.Hole `json:"holes,omitempty"`
	// Policy is a policy file with the rules.
	Policy string `json:"policy"`

	run     string
	runSeen bool // a record of it was there
	policy  *policyfile.PolicyFile
	seen    []suggest.Seen
	at      map[string]int
}

type suggestedRule struct {
	Rule    string   `json:"rule"`
	Host    string   `json:"host"`
	Port    uint16   `json:"port"`
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`
	Raw     bool     `json:"any_bytes,omitempty"`
	Count   int      `json:"count"`
	First   string   `json:"first"`
}

type leftOut struct {
	Asked string `json:"asked"`
	// More counts further questions that are left out for the same reason.
	More  int    `json:"more,omitempty"`
	Count int    `json:"count"`
	First string `json:"first"`
	Why   string `json:"why"`
}

const maxSeen = 50_000

// noLogNamed says how to name the instance's.
func noLogNamed(c *cobra.Command) error {
	inst, err := instanceOf(c)
	if err != nil {
		return err
	}
	return usage(hint(errors.New("no log is named"), "%s --from %s", c.CommandPath(), inst.auditDir()))
}

// suggestedFrom finds the records that rules are suggested from: all of a run, which may have
// none that counts, or those that [query.Denied] reports, and what was observed.
func suggestedFrom(c *cobra.Command, filter, run string) (query.Filter, error) {
	f, err := query.Parse(filter, time.Now())
	if err != nil {
		return f, usage(hint(err, "%s --from DIR --filter 'since=2h'", c.CommandPath()))
	}
	if run != "" {
		return f.And(query.Where("run", run)), nil
	}
	observed, err := query.Parse(`would_deny!=""`, time.Time{})
	return f.And(query.AnyOf(query.Where("kind", string(audit.Refuse)), query.Where("verdict", rules.Deny.String()), observed)), err
}

// read collects what was refused or observed, each question once.
func (s *suggestion) read(recs iter.Seq2[audit.Record, error]) error {
	for rec, err := range recs {
		if _, bad := errors.AsType[*query.LineError](err); bad {
			s.Unreadable++
			continue
		}
		if err != nil {
			return err
		}
		s.runSeen = s.runSeen || rec.Run == s.run
		if s.run != "" && rec.Run != s.run || !query.Denied(&rec) && rec.WouldDeny == "" || rec.Kind == audit.Done && rec.Verdict != rules.Deny.String() || reflex(&rec) {
			continue
		}
		req, err := requestOf(&rec)
		if err != nil {
			s.Unreadable++
			continue
		}
		s.add(&rec, req)
		if len(s.seen) > maxSeen {
			return fmt.Errorf("more than %d different requests were refused; narrow the log down with --run or --filter", maxSeen)
		}
	}
	return nil
}

func (s *suggestion) add(rec *audit.Record, req rules.Request) {
	reason := rec.Reason
	if rec.WouldDeny != "" {
		reason = rec.WouldDeny
	}
	key := fmt.Sprintf("%s %s %s %s", asked(rec), reason, rec.Rule, rec.Scope)
	if i, ok := s.at[key]; ok {
		s.seen[i].Count++
		return
	}
	seen := suggest.Seen{
		Request: req, Reason: rules.Reason(reason), Rule: rec.Rule, Where: rec.Where, Scope: rec.Scope, Count: 1, First: rec.ID,
	}
	if rec.Ref != "" {
		seen.First = rec.Ref
	}
	s.at[key] = len(s.seen)
	s.seen = append(s.seen, seen)
}

// suggest makes rules of what was seen, and the file that they stand in.
func (s *suggestion) suggest() error {
	var taken []string
	s.heedFloor()
	if s.policy != nil {
		s.judgeNow()
		for _, r := range s.policy.Policy.Rules() {
			taken = append(taken, r.ID)
		}
	}
	list, left := suggest.Rules(s.seen, taken)
	list, more := s.fitting(list, taken)
	left = append(left, more...)
	for i := range list {
		r := &list[i]
		s.Rules = append(s.Rules, suggestedRule{r.ID, r.Host.String(), r.Port, r.Methods, r.Paths, r.Raw, r.Count(), r.Seen[0].First})
	}
	for i := range left {
		l := &left[i]
		s.Left = append(s.Left, leftOut{questionText(&l.Request), l.More, l.Count, l.First, l.Why})
	}
	text, err := s.text(list)
	if err != nil {
		return fmt.Errorf("what is suggested does not load: %w", err)
	}
	s.Policy = s.head() + string(text)
	return nil
}

// text writes the rules as a policy file, whose tests hold by itself and beside the
// policy that the rules are to go into.
func (s *suggestion) text(list []suggest.Rule) ([]byte, error) {
	text := suggestedText(list, s.credentials(), nil)
	read := func() (*policyfile.PolicyFile, error) {
		return policyfile.ReadPolicy(policyfile.Input{Name: "suggested.yaml", Data: text}, nil)
	}
	alone, err := read()
	if err != nil {
		return nil, err
	}
	beside := alone.Policy
	if s.policy != nil {
		if beside, err = s.policy.With(alone.Policy.Rules()); err != nil {
			return nil, err
		}
	}
	text = suggestedText(list, s.credentials(), func(r *rules.Request) bool {
		return decideAgain(alone.Policy, *r).Verdict == rules.Deny && decideAgain(beside.Enforced(), *r).Verdict == rules.Deny
	})
	_, err = read()
	return text, err
}

func byFloor(seen *suggest.Seen) bool { return seen.Scope == rules.FloorScope.String() }

// heedFloor has what a floor refused once count as refused by it, whatever else
// refused it at other times.
func (s *suggestion) heedFloor() {
	by := map[string]*suggest.Seen{}
	for i := range s.seen {
		if byFloor(&s.seen[i]) {
			by[questionText(&s.seen[i].Request)] = &s.seen[i]
		}
	}
	for i := range s.seen {
		seen := &s.seen[i]
		if floor := by[questionText(&seen.Request)]; floor != nil {
			seen.Reason, seen.Rule, seen.Where, seen.Scope = floor.Reason, floor.Rule, floor.Where, floor.Scope
		}
	}
}

// judgeNow asks the policy that the rules are to go into about what was seen.
func (s *suggestion) judgeNow() {
	kept := s.seen[:0]
	now := time.Now().Unix()
	for _, seen := range s.seen {
		req := seen.Request
		req.Now = now
		p := s.policy.Policy.Enforced()
		switch d := decideAgain(p, req); {
		case byFloor(&seen):
			kept = append(kept, seen) // whether or not the policy of -p is read under that floor here
		case d.Verdict != rules.Deny && seen.Reason == rules.PrivateIP:
			kept = append(kept, seen) // the policy admitted the name before, too
		case d.Verdict != rules.Deny:
			s.Allowed += seen.Count
		default:
			seen.Reason, seen.Rule, seen.Where, seen.Scope = d.Reason, d.Rule, d.Where, d.Scope
			kept = append(kept, seen)
		}
	}
	s.seen = kept
}

// fitting leaves out rules that cannot stand beside those of the policy, or that a
// statement under never forbids. Of one that is for several things, those are kept
// that can. taken are ids that there are.
func (s *suggestion) fitting(list []suggest.Rule, taken []string) (fit []suggest.Rule, left []suggest.Left) {
	for i := range list {
		taken = append(taken, list[i].ID)
	}
	var beside []rules.Rule
	for ; len(list) > 0; list = list[1:] {
		r := list[0]
		one, err := policyfile.ParsePolicy("suggested.yaml", suggestedText(list[:1], nil, nil), nil)
		var with []rules.Rule
		if err == nil {
			with = append(slices.Clone(beside), one.Rules()...)
			if s.policy != nil {
				_, err = s.policy.With(with)
			}
		}
		requests := byRequest(r.Seen)
		switch {
		case err == nil:
			beside, fit = with, append(fit, r)
		case len(requests) > 1:
			for _, seen := range requests {
				alone, none := suggest.Rules(seen, taken)
				left = append(left, none...)
				for i := range alone {
					taken = append(taken, alone[i].ID)
				}
				list = append(list, alone...)
			}
		default:
			for _, seen := range r.Seen {
				left = append(left, suggest.Left{Seen: seen, Why: whyNotFitting(err)})
			}
		}
	}
	return fit, left
}

// byRequest puts together what is the same request, refused for one reason and then for
// another: two rules for it would be one too many.
func byRequest(list []suggest.Seen) (out [][]suggest.Seen) {
	at := map[string]int{}
	for i := range list {
		asked := questionText(&list[i].Request)
		n, ok := at[asked]
		if !ok {
			n = len(out)
			at[asked], out = n, append(out, nil)
		}
		out[n] = append(out[n], list[i])
	}
	return out
}

// whyNotFitting says why a rule cannot be one of the policy's: it would not load at all,
// or not beside the others.
func whyNotFitting(err error) string {
	if bad, ok := errors.AsType[policyfile.Errors](err); ok && len(bad) > 0 && bad[0].File == "suggested.yaml" {
		return "no rule can say it: " + bad[0].Text
	}
	return "a rule for it cannot stand beside the others: " + strings.ReplaceAll(err.Error(), "\n", "; ")
}

// credentials are those that the policy grants, by host.
func (s *suggestion) credentials() map[string]string {
	if s.policy == nil {
		return nil
	}
	out := map[string]string{}
	for _, r := range s.policy.Policy.Rules() {
		for _, h := range r.Hosts {
			if r.Credential != "" {
				out[h.String()] = r.Credential
			}
		}
	}
	return out
}

// head says in comments where the rules are from and what is left out.
func (s *suggestion) head() string {
	var b bytes.Buffer
	line := func(format string, args ...any) {
		printWrapped(&b, "# ", query.Printable(fmt.Sprintf(format, args...)))
	}
	line("Suggested from %s. Nobody has reviewed it: write each reason, or take the rule out.", s.Log)
	if s.Allowed > 0 {
		line("%s %s allowed by now.", plural.Count(s.Allowed, "request"), plural.Of(s.Allowed, "is", "are"))
	}
	if s.Unreadable > 0 {
		line("%s not hold enough to be looked at.", plural.Count(s.Unreadable, "record")+plural.Of(s.Unreadable, " does", " do"))
	}
	if len(s.Left) > 0 {
		line("Not suggested:")
	}
	for _, l := range s.Left {
		asked := l.Asked
		if l.More > 0 {
			asked += fmt.Sprintf(" and %d more", l.More)
		}
		line("- %s (%s, first %s): %s", asked, times(l.Count), l.First, l.Why)
	}
	b.WriteByte('\n')
	return b.String()
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// questionText writes what was asked as a policy's tests do.
func questionText(r *rules.Request) string {
	switch r.Question {
	case rules.Resolve:
		return "name " + r.Endpoint.Host.String()
	case rules.Fetch:
		scheme, port := "https", uint16(443)
		if !r.Secure {
			scheme, port = "http", 80
		}
		return fmt.Sprintf("%s %s://%s%s", r.Method, scheme, r.Endpoint.Authority(port), r.Path)
	default:
		return "stream " + r.Endpoint.String()
	}
}

// suggestedText writes rules as a policy file. Its tests are one of the requests that
// were seen for each method and path of a rule and, of those beside what a rule allows,
// some that are denied; nil denies none.
func suggestedText(list []suggest.Rule, credentials map[string]string, denied func(*rules.Request) bool) []byte {
	var b, tests bytes.Buffer
	b.WriteString("apiVersion: " + policyfile.APIVersion + "\nkind: Policy\nmetadata: {name: suggested}\nrules:")
	if len(list) == 0 {
		b.WriteString(" []")
	}
	b.WriteByte('\n')
	for i := range list {
		r := &list[i]
		fmt.Fprintf(&b, "- id: %s\n", r.ID)
		fmt.Fprintf(&b, "  reason: %q\n", fmt.Sprintf("TODO say why; asked for %s, first in %s (%s)", times(r.Count()), r.Seen[0].First, r.Seen[0].Reason))
		if c := credentials[r.Host.String()]; c != "" {
			fmt.Fprintf(&b, "  # other rules grant credential %s on this host; this one grants none\n", c)
		}
		fmt.Fprintf(&b, "  allow: {host: %q, ports: [%d]", r.Host, r.Port)
		if r.Raw {
			b.WriteString(", protocol: tcp}\n")
			fmt.Fprintf(&tests, "- {connect: %q, expect: allow, rule: %q}\n", r.Seen[0].Request.Endpoint, r.ID)
			writeDenied(&tests, r, denied)
			continue
		}
		fmt.Fprintf(&b, ", methods: %s, paths: %s}\n", quotedList(r.Methods), quotedList(r.Paths))
		for _, s := range oneOfEach(r) {
			fmt.Fprintf(&tests, "- {request: %q, expect: allow, rule: %q}\n", questionText(&s.Request), r.ID)
		}
		writeDenied(&tests, r, denied)
	}
	if tests.Len() > 0 {
		b.WriteString("tests:\n")
		b.Write(tests.Bytes())
	}
	out, err := policyfile.Format("suggested.yaml", b.Bytes())
	if err != nil {
		return b.Bytes() // reading it tells what is wrong
	}
	return out
}

// writeDenied writes tests of what a rule just does not allow.
func writeDenied(w io.Writer, r *suggest.Rule, denied func(*rules.Request) bool) {
	if denied == nil {
		return
	}
	for _, beside := range r.Beside() {
		i := slices.IndexFunc(beside, func(q rules.Request) bool { return denied(&q) })
		switch {
		case i < 0:
		case r.Raw:
			fmt.Fprintf(w, "- {connect: %q, expect: deny}\n", beside[i].Endpoint)
		default:
			fmt.Fprintf(w, "- {request: %q, expect: deny}\n", questionText(&beside[i]))
		}
	}
}

// oneOfEach returns, of what a rule is for, the first with each method and path pattern.
func oneOfEach(r *suggest.Rule) (list []suggest.Seen) {
	patterns := make([]rules.PathPattern, len(r.Paths))
	for i, p := range r.Paths {
		patterns[i], _ = rules.ParsePathPattern(p) // one that is none matches nothing
	}
	type part struct {
		method string
		path   int
	}
	had := map[part]bool{}
	for _, s := range r.Seen {
		first := false
		for i := range patterns {
			if p := (part{s.Request.Method, i}); patterns[i].Match(s.Request.Path) && !had[p] {
				had[p], first = true, true
			}
		}
		if first {
			list = append(list, s)
		}
	}
	return list
}

func quotedList(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = fmt.Sprintf("%q", s)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}
