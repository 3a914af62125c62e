package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// apart refuses flags that say nothing where another is given: one that is passed over
// in silence makes an answer to another question than was asked.
func apart(c *cobra.Command, with, next string, flags ...string) error {
	if !c.Flags().Changed(with) {
		return nil
	}
	for _, f := range flags {
		if c.Flags().Changed(f) {
			return usage(hint(fmt.Errorf("--%s and --%s do not go together", f, with), "%s", next))
		}
	}
	return nil
}

// onlyWith refuses flags that say nothing where none of others is given.
func onlyWith(c *cobra.Command, others []string, flags ...string) error {
	for _, o := range others {
		if c.Flags().Changed(o) {
			return nil
		}
	}
	for _, f := range flags {
		if c.Flags().Changed(f) {
			return usage(hint(fmt.Errorf("--%s is for --%s", f, strings.Join(others, " and --")), "%s --help", c.CommandPath()))
		}
	}
	return nil
}

// noneEmpty refuses flags that are given without a value, as --run "$RUN" is of a shell
// that has none: all records would be taken for those of a run, or another log for the
// one that was to be checked.
func noneEmpty(c *cobra.Command) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && f.Value.Type() == "string" && f.Value.String() == "" {
			err = usage(hint(fmt.Errorf("--%s is given without a value", f.Name), "%s --help", c.CommandPath()))
		}
	})
	return err
}
