package main

import (
	"github.com/spf13/cobra"

	"sallyport/rules/policyfile"
)

func newPolicySchema() *cobra.Command {
	c := &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of policy and credential files",
		Long: `Schema prints a JSON Schema (draft 2020-12) of policy and credential files, for editors that check
and complete while one writes. Whether a policy loads is for policy lint to say: a schema sees one
value at a time. It is JSON with and without -o json.`,
		Example: `  sallyport policy schema > sallyport.schema.json
  # in a policy file, for editors that read it:
  # yaml-language-server: $schema=sallyport.schema.json`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if _, err := outputJSON(c); err != nil {
				return err
			}
			text, err := policyfile.Schema()
			if err == nil {
				_, err = c.OutOrStdout().Write(text)
			}
			return err
		},
	}
	addOutput(c)
	return c
}
