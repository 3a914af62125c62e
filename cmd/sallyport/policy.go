package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/rules"
	"sallyport/rules/policyfile"
)

func newPolicy() *cobra.Command {
	c := &cobra.Command{
		Use:   "policy",
		Short: "Check, test and question policy files",
		Example: `  sallyport policy lint policy.yaml
  sallyport policy test policy.yaml
  sallyport policy prove policy.yaml
  sallyport policy explain -p policy.yaml POST https://api.example.com/v1/charges
  sallyport policy show --effective policy.yaml`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.PersistentFlags().String("credentials", "", "directory of credential files; default: those of the instance, or /etc/sallyport/credentials")
	c.AddCommand(newPolicyLint(), newPolicyTest(), newPolicyExplain(), newPolicyProve(), newPolicyShow(), newPolicyReload())
	return c
}

// policyCredentials finds the credential files that a policy may grant.
func policyCredentials(c *cobra.Command) ([]policyfile.Credential, error) {
	dir, err := c.Flags().GetString("credentials")
	if err != nil {
		return nil, err
	}
	if dir != "" {
		if !exists(dir) {
			return nil, usage(fmt.Errorf("credentials: %s does not exist", dir))
		}
		return loadCredentials(dir)
	}
	inst, err := instanceOf(c)
	if err != nil {
		return nil, err
	}
	if creds, err := loadCredentials(inst.credentials()); err != nil || len(creds) > 0 {
		return creds, err
	}
	return loadCredentials(defaultCredentials)
}

// readPolicyFile reads a policy with everything that its file says.
func readPolicyFile(c *cobra.Command, path string) (*policyfile.PolicyFile, error) {
	creds, err := policyCredentials(c)
	if err != nil {
		return nil, err
	}
	p, err := readPolicy(path, creds)
	if err != nil {
		return p, usage(err)
	}
	return p, nil
}

func newPolicyLint() *cobra.Command {
	var strict bool
	c := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Report everything that is wrong with policy files",
		Long: `Lint reads policy files as a run would, and reports everything that is wrong, each with its
place. With --strict it also reports what should not go into production: a reason that begins
with TODO, a rule that has expired or will within 14 days, a rule of which deny rules leave
nothing. -o sarif is SARIF 2.1.0, for tools that show it beside the lines under review.
Exit codes: 0 nothing is wrong; 2 something is.`,
		Example: `  sallyport policy lint policy.yaml
  sallyport policy lint --strict policy.yaml
  sallyport policy lint -o json *.yaml
  sallyport policy lint -o sarif policy.yaml > policy.sarif`,
		Args: atLeast(1),
		RunE: func(c *cobra.Command, files []string) error {
			output, _ := c.Flags().GetString("output")
			if !slices.Contains([]string{"text", "json", "sarif"}, output) {
				return usage(hint(fmt.Errorf("output %q: want text, json or sarif", output), "%s -o sarif", c.CommandPath()))
			}
			found, err := lintFiles(c, files, strict)
			if err != nil {
				return err
			}
			switch {
			case output == "json":
				err = printJSON(c.OutOrStdout(), found)
			case output == "sarif":
				err = printSARIF(c.OutOrStdout(), found)
			case len(found) > 0:
				return usage(found)
			default:
				fmt.Fprintf(c.OutOrStdout(), "ok: %d files\n", len(files))
			}
			if err == nil && len(found) > 0 {
				err = &exitError{code: exitUsage}
			}
			return err
		},
	}
	c.Flags().BoolVar(&strict, "strict", false, "report too what should not go into production")
	c.Flags().StringP("output", "o", "text", "text, json or sarif")
	return c
}

// lintFiles returns everything that is wrong with files; the error is about
// something else, such as a file that is not there.
func lintFiles(c *cobra.Command, files []string, strict bool) (policyfile.Errors, error) {
	found := policyfile.Errors{}
	for _, f := range files {
		p, err := readPolicyFile(c, f)
		if err == nil && strict {
			err = p.Strict(time.Now().Unix())
		}
		if errs, ok := errors.AsType[policyfile.Errors](err); ok {
			found = append(found, errs...)
		} else if err != nil {
			return nil, err
		}
	}
	return found, nil
}

func newPolicyTest() *cobra.Command {
	var cover bool
	c := &cobra.Command{
		Use:   "test FILE",
		Short: "Run a policy's own tests",
		Long: `Test runs the tests of a policy and of the files that it includes. With --cover it names the
rules that decide none of them.
Exit codes: 0 all hold, and with --cover every rule is tested; 1 not so; 2 the file is wrong.`,
		Example: "  sallyport policy test policy.yaml\n  sallyport policy test --cover policy.yaml",
		Args:    exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			asJSON, err := outputJSON(c)
			if err != nil {
				return err
			}
			p, err := readPolicyFile(c, args[0])
			if p == nil {
				return usage(err)
			}
			if asJSON {
				if err := printJSON(c.OutOrStdout(), p.Tests); err != nil {
					return err
				}
			} else {
				printTests(c.OutOrStdout(), p.Tests)
			}
			if cover && !printUntested(c, p, asJSON) || err != nil {
				return &exitError{code: exitFailed}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&cover, "cover", false, "name the rules that decide no test")
	addOutput(c)
	return c
}

// printUntested names the rules that decide no test; true means that there is
// none. With JSON it goes to where errors go.
func printUntested(c *cobra.Command, p *policyfile.PolicyFile, asJSON bool) bool {
	list, w := p.Untested(), c.OutOrStdout()
	if asJSON {
		w = c.ErrOrStderr()
	}
	for i := range list {
		fmt.Fprintf(w, "untested  %s  rule %s\n", list[i].Where, list[i].ID)
	}
	return len(list) == 0
}

func printTests(w io.Writer, tests []policyfile.TestResult) {
	failed := 0
	for _, t := range tests {
		word := "ok  "
		if !t.OK() {
			word = "FAIL"
			failed++
		}
		fmt.Fprintf(w, "%s  %s  %s\n", word, t.Where, t.Asked)
		for _, f := range t.Failures {
			fmt.Fprintf(w, "      %s\n", f)
		}
	}
	fmt.Fprintf(w, "%d passed, %d failed\n", len(tests)-failed, failed)
}

// explanation is what explain answers.
type explanation struct {
	Request    string           `json:"request"`
	Question   string           `json:"question"`
	Verdict    string           `json:"verdict"`
	Reason     string           `json:"reason"`
	WouldDeny  string           `json:"would_deny,omitempty"`
	Rule       string           `json:"rule,omitempty"`
	Where      string           `json:"where,omitempty"`
	Credential string           `json:"credential,omitempty"`
	Policy     string           `json:"policy"`
	Near       []rules.RuleNote `json:"near"`
}

func newPolicyExplain() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:   "explain {[METHOD] URL | HOST:PORT | TYPE NAME}",
		Short: "Say what a policy decides about a request, a stream or a DNS query, and why",
		Long: `Explain asks a policy what a sandbox would ask, question after question: may the stream be
opened, may its first bytes be what they are, may the request be sent. It prints the decision,
the rule that spoke, and of each rule near it why it does not match.
Exit codes: 0 it is allowed; 1 it is denied; 2 usage.`,
		Example: `  sallyport policy explain -p policy.yaml https://api.example.com/v1/charges
  sallyport policy explain -p policy.yaml DELETE https://api.example.com/v1/charges/1
  sallyport policy explain -p policy.yaml db.example.com:5432
  sallyport policy explain -p policy.yaml A api.example.com`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			asJSON, err := outputJSON(c)
			if err != nil {
				return err
			}
			if path == "" {
				return usage(hint(errors.New("no policy is named"), "%s -p policy.yaml URL", c.CommandPath()))
			}
			asked := strings.Join(args, " ")
			if len(args) == 1 && strings.Contains(asked, "://") {
				asked = "GET " + asked
			}
			e, err := explain(c, path, asked)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(c.OutOrStdout(), e)
			} else {
				printExplanation(c.OutOrStdout(), e)
			}
			if err == nil && e.Verdict == rules.Deny.String() {
				return &exitError{code: exitFailed}
			}
			return err
		},
	}
	c.Flags().StringVarP(&path, "policy", "p", "", "policy file")
	addOutput(c)
	return c
}

func explain(c *cobra.Command, path, asked string) (*explanation, error) {
	p, err := readPolicyFile(c, path)
	if err != nil {
		return nil, usage(err)
	}
	req, err := policyfile.ParseQuestion(asked)
	if err != nil {
		return nil, usage(err)
	}
	req.Now = time.Now().Unix()
	d := p.Policy.Follow(req)
	if d.Verdict == rules.Tunnel && req.Question == rules.Fetch {
		req.Question = rules.Connect // the stream is carried unopened: no rule judges what is in it
	}
	return &explanation{
		Request: asked, Question: req.Question.String(), Verdict: d.Verdict.String(), Reason: string(d.Reason), WouldDeny: string(d.Observed),
		Rule: d.Rule, Where: d.Where,
		Credential: d.Credential, Policy: p.Policy.Digest(), Near: p.Policy.Explain(req),
	}, nil
}

func printExplanation(w io.Writer, e *explanation) {
	word := "allowed"
	if e.Verdict == rules.Deny.String() {
		word = "denied"
	}
	fmt.Fprintf(w, "%s: %s (%s)\n", e.Request, word, e.Reason)
	if e.Verdict == rules.Tunnel.String() && e.Question != rules.Resolve.String() {
		fmt.Fprintln(w, "  the stream is carried unopened: nobody looks at what is in it")
	}
	if e.WouldDeny != "" {
		fmt.Fprintf(w, "  it is only observed: enforced, it would be denied (%s)\n", e.WouldDeny)
	}
	if e.Rule != "" {
		fmt.Fprintf(w, "  by rule %s at %s\n", e.Rule, e.Where)
	}
	if e.Credential != "" {
		fmt.Fprintf(w, "  with credential %s\n", e.Credential)
	}
	for _, n := range e.Near {
		fmt.Fprintf(w, "  near: rule %s at %s: %s\n", n.Rule, n.Where, n.Text)
	}
}
