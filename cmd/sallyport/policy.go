package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"sallyport/rules/plural"
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
		Args: oneOfCommands,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.PersistentFlags().String("floor", "", "policy file that the policy stands under")
	c.PersistentFlags().String("narrow", "", "policy file that narrows the policy, as that of run --narrow")
	c.PersistentFlags().String("credentials", "", "directory of credential files; default: those of the instance, or /etc/sallyport/credentials")
	c.PersistentFlags().String("detect-root", "", detectRootUsage)
	c.AddCommand(newPolicyLint(), newPolicyTest(), newPolicyExplain(), newPolicyProve(), newPolicyShow(), newPolicyReload())
	c.AddCommand(newPolicyDiff(), newPolicyFmt(), newPolicySuggest(), newPolicySchema())
	return c
}

func newPolicyLint() *cobra.Command {
	var strict bool
	c := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Report everything that is wrong with policy files",
		Long: `Lint reads policy files as a run would, and reports everything that is wrong, each with its
place. Of a rule that has expired, or will within 14 days, it warns on standard error, and of one
that lets people sign in without the credential of type oauth2-user that keeps their tokens. With
--strict it also reports what should not go into production: such rules, a mode that
enforces nothing, reasons that are still to be written, and more that docs/policy.md lists.
-o sarif is SARIF 2.1.0, for tools that show it beside the lines under review.
Exit codes: 0 nothing is wrong; 2 something is.`,
		Example: `  sallyport policy lint policy.yaml
  sallyport policy lint --strict policy.yaml
  sallyport policy lint -o json *.yaml
  sallyport policy lint -o sarif policy.yaml > policy.sarif`,
		Args: someArgs,
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
			case len(found) > 0: // each line begins with its place, which editors look for
				fmt.Fprintln(c.ErrOrStderr(), found.Error())
			default:
				fmt.Fprintf(c.OutOrStdout(), "ok: %s\n", plural.Count(len(files), "file"))
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

// lintFiles returns everything that is wrong with files, one that is not there
// among it; the error is about the command line.
func lintFiles(c *cobra.Command, files []string, strict bool) (policyfile.Errors, error) {
	found := policyfile.Errors{}
	reader, err := newPolicyFiles(c)
	if _, ok := errors.AsType[policyfile.Errors](err); ok {
		return problems("", err), nil // of credential files
	} else if err != nil {
		return nil, err
	}
	for _, f := range files {
		p, err := reader.read(f)
		switch now := time.Now().Unix(); {
		case err != nil:
		case strict:
			err = p.Strict(now)
		default:
			warn(c, p, now)
		}
		if c.Context().Err() != nil {
			return nil, err // it was not looked at to its end
		}
		for _, e := range problems(f, err) {
			if !slices.Contains(found, e) { // what several files include or stand under is told once
				found = append(found, e)
			}
		}
	}
	return found, nil
}

// warn says on standard error what of a policy that loads nobody should miss.
func warn(c *cobra.Command, p *policyfile.PolicyFile, now int64) {
	warnings, _ := errors.AsType[policyfile.Errors](p.Warnings(now))
	for _, e := range warnings {
		fmt.Fprintf(c.ErrOrStderr(), "warning: %v\n", e)
	}
}
