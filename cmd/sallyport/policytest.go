package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"sallyport/rules"
	"sallyport/rules/plural"
	"sallyport/rules/policyfile"
)

func newPolicyTest() *cobra.Command {
	var cover, verbose bool
	c := &cobra.Command{
		Use:   "test FILE...",
		Short: "Run the policies' own tests",
		Long: `Test runs the tests of policies and of the files that they include, and prints as go test does:
what fails, a statement under never that does not hold among it, and a line for each file; with -v
each test. With --cover it names the rules that decide no test, and those methods, paths, headers,
parameters, request_body and request_head of a rule for which alone no test is turned away (of a
deny rule: let past). These leave the exit code as it is.
Exit codes: 0 all hold, and with --cover every rule is tested; 1 not so; 2 a file is wrong.`,
		Example: `  sallyport policy test policy.yaml
  sallyport policy test -v --cover policy.yaml
  sallyport policy test -o json *.yaml`,
		Args: someArgs,
		RunE: func(c *cobra.Command, files []string) error {
			asJSON, err := outputJSON(c)
			if err != nil {
				return err
			}
			all, err := testFiles(c, files)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(c.OutOrStdout(), all)
			} else {
				for i := range all {
					printTested(c.OutOrStdout(), &all[i], cover, verbose)
				}
			}
			if err != nil {
				return err
			}
			return testsVerdict(all, cover, asJSON)
		},
	}
	c.Flags().BoolVar(&cover, "cover", false, "name the rules, and what they ask for, that decide no test")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "print each test")
	addOutput(c)
	return c
}

// testFiles asks every file's tests. A file that is wrong beside its tests keeps
// no other from being asked.
func testFiles(c *cobra.Command, files []string) ([]testedFile, error) {
	reader, err := newPolicyFiles(c)
	if err != nil {
		return nil, err
	}
	all := make([]testedFile, 0, len(files))
	for _, name := range files {
		p, err := reader.read(name)
		if c.Context().Err() != nil {
			return nil, err // it was not read to its end
		}
		if p == nil || err != nil && !fails(p) {
			all = append(all, testedFile{File: name, Tests: []testOut{}, Untested: []untestedAt{}, Errors: problems(name, err)})
			continue
		}
		all = append(all, testedFileOf(name, p))
	}
	return all, nil
}

// fails reports a policy of which a test or a statement under never does not hold.
func fails(p *policyfile.PolicyFile) bool {
	return slices.ContainsFunc(p.Tests, func(t policyfile.TestResult) bool { return !t.OK() }) || slices.ContainsFunc(p.Never, broken)
}

func broken(n policyfile.NeverResult) bool { return n.Failure != "" }

// testsVerdict is how the command ends. What is wrong with files is in the answer
// already if that is JSON.
func testsVerdict(all []testedFile, cover, told bool) error {
	var wrong policyfile.Errors
	ok := true
	for _, t := range all {
		wrong = append(wrong, t.Errors...)
		ok = ok && t.Failed+len(t.Never) == 0 && (!cover || len(t.Untested) == 0)
	}
	return verdict(wrong, ok, told)
}

// testedFile is a policy and how its tests came out.
type testedFile struct {
	File     string       `json:"file"`
	Passed   int          `json:"passed"`
	Failed   int          `json:"failed"`
	Rules    int          `json:"rules"`
	Tests    []testOut    `json:"tests"`
	Untested []untestedAt `json:"untested"`
	// Conditions counts what rules ask of requests; Uncovered is what of it decides
	// no test alone.
	Conditions int           `json:"conditions,omitempty"`
	Uncovered  []uncoveredAt `json:"uncovered,omitempty"`
	// Never are the statements that do not hold.
	Never []policyfile.NeverResult `json:"never,omitempty"`
	// Errors are why its tests cannot be asked.
	Errors policyfile.Errors `json:"errors,omitempty"`
}

// testOut is one test: what was asked, what came out, and what was expected and
// is not so.
type testOut struct {
	Where    string    `json:"where"`
	Asked    string    `json:"asked"`
	OK       bool      `json:"ok"`
	Decision judgement `json:"decision"`
	Failures []string  `json:"failures"`
}

// untestedAt is a rule that decides no test.
type untestedAt struct {
	Rule  string `json:"rule"`
	Where string `json:"where"`
}

// uncoveredAt is a condition of a rule that alone decides no test.
type uncoveredAt struct {
	Rule      string `json:"rule"`
	Where     string `json:"where"`
	Action    string `json:"action"`
	Condition string `json:"condition"`
}

func testedFileOf(name string, p *policyfile.PolicyFile) testedFile {
	out := testedFile{File: name, Tests: []testOut{}, Untested: []untestedAt{}}
	for _, t := range p.Tests {
		if t.OK() {
			out.Passed++
		} else {
			out.Failed++
		}
		out.Tests = append(out.Tests, testOut{t.Where, t.Asked, t.OK(), judgementOf(t.Decision), append([]string{}, t.Failures...)})
	}
	for _, n := range p.Never {
		if broken(n) {
			out.Never = append(out.Never, n)
		}
	}
	for _, r := range p.Untested() {
		out.Untested = append(out.Untested, untestedAt{r.ID, r.Where})
	}
	out.Rules = p.Count()
	cover := p.Covered()
	out.Conditions = cover.Terms
	for _, u := range cover.Untested {
		action := map[bool]string{true: "allow", false: "deny"}[u.Rule.Action == rules.AllowAction]
		out.Uncovered = append(out.Uncovered, uncoveredAt{u.Rule.ID, u.Rule.Where, action, u.Term})
	}
	return out
}

func printTested(w io.Writer, t *testedFile, cover, verbose bool) {
	for _, x := range t.Tests {
		switch {
		case !x.OK:
			fmt.Fprintf(w, "--- FAIL: %s\n", x.Asked)
		case verbose:
			fmt.Fprintf(w, "--- PASS: %s\n", x.Asked)
		}
		for _, f := range x.Failures {
			fmt.Fprintf(w, "    %s: %s\n", x.Where, f)
		}
	}
	for _, n := range t.Never {
		fmt.Fprintf(w, "--- FAIL: never %s\n    %s: %s\n", neverOrigin.ReplaceAllString(n.Text, ""), n.Where, n.Failure)
	}
	if len(t.Errors) > 0 {
		fmt.Fprintf(w, "FAIL  %s  [does not load]\n", t.File)
		return
	}
	word := "ok  "
	switch {
	case t.Failed+len(t.Never) > 0:
		word = "FAIL"
	case len(t.Tests) == 0:
		word = "?   "
	}
	fmt.Fprintf(w, "%s  %s  %d passed, %d failed", word, t.File, t.Passed, t.Failed)
	if len(t.Tests) == 0 {
		fmt.Fprint(w, " [no tests]")
	}
	if cover {
		printCover(w, t)
	}
	fmt.Fprintln(w)
	if cover {
		printUncovered(w, t)
	}
}

// printCover ends a file's line with how much of it is tested.
func printCover(w io.Writer, t *testedFile) {
	if t.Rules > 0 {
		tested := t.Rules - len(t.Untested)
		fmt.Fprintf(w, "  coverage: %.1f%% of rules", 100*float64(tested)/float64(t.Rules))
	}
	if t.Conditions > 0 {
		fmt.Fprintf(w, ", %d of %s", t.Conditions-len(t.Uncovered), plural.Count(t.Conditions, "condition"))
	}
}

// printUncovered names what is not tested. Of a rule that decides no test its
// conditions are not told as well.
func printUncovered(w io.Writer, t *testedFile) {
	whole := map[string]bool{}
	for _, u := range t.Untested {
		whole[u.Rule] = true
		fmt.Fprintf(w, "untested  %s  rule %s\n", u.Where, u.Rule)
	}
	for _, u := range t.Uncovered {
		if whole[u.Rule] {
			continue
		}
		what := map[string]string{"allow": "turned away", "deny": "let past"}[u.Action]
		fmt.Fprintf(w, "untested  %s  rule %s: no test is %s for its %s alone\n", u.Where, u.Rule, what, u.Condition)
	}
}
