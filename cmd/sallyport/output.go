package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// addOutput gives a command -o; outputJSON reads it.
func addOutput(c *cobra.Command) {
	c.Flags().StringP("output", "o", "text", "text or json")
}

// outputJSON reports whether -o json was asked for.
func outputJSON(c *cobra.Command) (bool, error) {
	switch o, _ := c.Flags().GetString("output"); o {
	case "text":
		return false, nil
	case "json":
		return true, nil
	default:
		return false, usage(hint(fmt.Errorf("output %q: want text or json", o), "%s -o json", c.CommandPath()))
	}
}

// printJSON writes v for a program, indented for the person who looks too.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printTable writes rows in aligned columns; the first row is the heading.
func printTable(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(tw, "\t")
			}
			fmt.Fprint(tw, cell)
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

// counted says how many there are of what a word names.
func counted(n int, word string) string {
	if n != 1 {
		word += "s"
	}
	return fmt.Sprintf("%d %s", n, word)
}
