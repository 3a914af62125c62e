package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagValues says, by the type of a flag, what it takes, and an example.
var flagValues = map[string][2]string{
	"int":      {"a whole number, or too large a one", "20"},
	"duration": {"a time such as 90s, 10m or 2h", "10m"},
	"bool":     {"true or false", "true"},
}

// ofFlag is an error about a flag with what to type instead.
func ofFlag(c *cobra.Command, err error) error {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return hint(err, "%s --help", c.CommandPath())
	}
	f := bad.GetFlag()
	want, known := flagValues[f.Value.Type()]
	if !known {
		return hint(err, "%s --help", c.CommandPath())
	}
	flag, between := "--"+f.Name, " "
	if f.NoOptDefVal != "" { // a value that stands apart would be an argument
		between = "="
	}
	return hint(fmt.Errorf("%s %s: not %s", flag, quoteArgs([]string{bad.GetValue()})[0], want[0]), "%s %s%s%s", c.CommandPath(), flag, between, want[1])
}
