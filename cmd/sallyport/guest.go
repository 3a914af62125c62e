package main

import (
	"time"

	"github.com/spf13/cobra"

	"sallyport/launcher/guest"
)

func newGuest() *cobra.Command {
	return &cobra.Command{
		Use:    "guest",
		Short:  "The first process of a sandbox; started by run",
		Hidden: true,
		Args:   exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if code := guest.Main(c.Context(), guest.Config{Stdin: c.InOrStdin(), Stdout: c.OutOrStdout(), Stderr: c.ErrOrStderr(), Now: time.Now}); code != 0 {
				return &exitError{code: code}
			}
			return nil
		},
	}
}
