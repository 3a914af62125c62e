package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/rules"
	"sallyport/rules/policyfile"
)

func newPolicyProve() *cobra.Command {
	c := &cobra.Command{
		Use:   "prove FILE",
		Short: "Prove what a policy says that must never be admitted",
		Long: `Prove looks, for each statement under never, for a request that the policy admits although it
must not: over all rules, and all that is included. Hosts, ports, methods and paths are sets that
can be intersected, so the answer is exact. Each statement is answered with "ok" or with a request;
-o json is an array with one object for each, and "ok" in it says whether it holds.
The same is done whenever a policy is read; one that breaks a statement does not load.
Exit codes: 0 every statement holds; 1 one does not; 2 the file or the command line is wrong.`,
		Example: "  sallyport policy prove policy.yaml\n  sallyport policy prove -o json policy.yaml",
		Args:    exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			asJSON, err := outputJSON(c)
			if err != nil {
				return err
			}
			p, err := readPolicyFile(c, args[0])
			if p == nil {
				return err
			}
			if asJSON {
				if err := printJSON(c.OutOrStdout(), provedOf(p.Never)); err != nil {
					return err
				}
			} else {
				printNever(c.OutOrStdout(), p.Never)
			}
			if slices.ContainsFunc(p.Never, broken) {
				return &exitError{code: exitFailed}
			}
			return err // failing tests are no less an error here
		},
	}
	addOutput(c)
	return c
}

// proved is a statement as prove -o json prints it.
type proved struct {
	OK bool `json:"ok"`
	policyfile.NeverResult
}

func provedOf(list []policyfile.NeverResult) []proved {
	out := make([]proved, 0, len(list))
	for _, n := range list {
		out = append(out, proved{!broken(n), n})
	}
	return out
}

func printNever(w io.Writer, list []policyfile.NeverResult) {
	failed := 0
	for _, n := range list {
		if n.Failure == "" {
			fmt.Fprintf(w, "ok    %s\n", neverText(n))
			continue
		}
		failed++
		fmt.Fprintf(w, "FAIL  %s\n", neverText(n))
		printWrapped(w, "      ", n.Failure)
	}
	fmt.Fprintf(w, "%d proved, %d not\n", len(list)-failed, failed)
}

// neverText is a statement after its place, in lines to stand after a word of four
// letters.
func neverText(n policyfile.NeverResult) string {
	const indent = "        "
	text := "never " + neverOrigin.ReplaceAllString(n.Text, "")
	if lead := n.Where + "  "; len(indent)+len(lead)+len(text) <= maxColumns {
		return lead + text
	}
	return n.Where + "\n" + indent + strings.Join(wrap(text, maxColumns-len(indent)), "\n"+indent)
}

func newPolicyShow() *cobra.Command {
	var effective bool
	c := &cobra.Command{
		Use:   "show FILE",
		Short: "Show the rules of a policy, or what a run is under",
		Long: `Show lists the rules of a policy and of all that it includes, each with its origin.
With --effective it prints the one document that a run is under, with everything written out.
The digest in the records of a run is that of this document, to the byte.`,
		Example: "  sallyport policy show policy.yaml\n  sallyport policy show --effective policy.yaml | sha256sum",
		Args:    exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			asJSON, err := outputJSON(c)
			if err != nil {
				return err
			}
			if asJSON && effective {
				return usage(hint(errors.New("--effective has one spelling: leave -o json out"), "%s --effective %s", c.CommandPath(), args[0]))
			}
			p, err := readPolicyFile(c, args[0])
			if err != nil {
				return err
			}
			switch {
			case effective:
				_, err = c.OutOrStdout().Write(p.Effective)
				return err
			case asJSON:
				return printJSON(c.OutOrStdout(), summary{p.Name, p.Policy.Digest(), ruleLines(p.Policy.Rules())})
			default:
				return printRules(c.OutOrStdout(), p)
			}
		},
	}
	c.Flags().BoolVar(&effective, "effective", false, "print the effective policy")
	addOutput(c)
	return c
}

// summary is a policy as show -o json prints it.
type summary struct {
	Name   string     `json:"name"`
	Digest string     `json:"digest"`
	Rules  []ruleLine `json:"rules"`
}

// ruleLine is one rule in a list.
type ruleLine struct {
	Rule       string `json:"rule"`
	Action     string `json:"action"`
	Where      string `json:"where"`
	Credential string `json:"credential,omitempty"`
	Reason     string `json:"reason"`
}

func ruleLines(list []rules.Rule) []ruleLine {
	out := make([]ruleLine, 0, len(list))
	for i := range list {
		r := &list[i]
		line := ruleLine{Rule: r.ID, Action: "deny", Where: r.Where, Credential: r.Credential, Reason: r.Purpose}
		if r.Action == rules.AllowAction {
			line.Action = "allow"
		}
		out = append(out, line)
	}
	return out
}

func printRules(w io.Writer, p *policyfile.PolicyFile) error {
	printWrapped(w, "", p.Name+" "+p.Policy.Digest())
	rows := [][]string{{"RULE", "ACTION", "CREDENTIAL", "WHERE", "REASON"}}
	for _, r := range ruleLines(p.Policy.Rules()) {
		rows = append(rows, []string{r.Rule, r.Action, r.Credential, r.Where, r.Reason})
	}
	return printFit(w, rows)
}
