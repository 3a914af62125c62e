package main

import (
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"sallyport/launcher"
)

func newEnv() *cobra.Command {
	c := &cobra.Command{
		Use:   "env",
		Short: "Print the environment that a sandbox gets, to debug a client with",
		Long: `Env prints the variables that every sandbox gets: proxy and trust settings for some forty
families of clients. Placeholders of credentials come in addition, by the policy.`,
		Example: "  sallyport env\n  sallyport env -o json",
		Args:    exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			asJSON, err := outputJSON(c)
			if err != nil {
				return err
			}
			vars := launcher.Environment(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 213, 0, 1}), 3128))
			if asJSON {
				return printJSON(c.OutOrStdout(), vars)
			}
			for _, v := range vars {
				fmt.Fprintln(c.OutOrStdout(), v)
			}
			return nil
		},
	}
	addOutput(c)
	return c
}
