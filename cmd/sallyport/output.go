package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sallyport/audit/query"
	"sallyport/rules/visible"
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

// printJSON writes v for a program, indented for the person who looks too: what a
// terminal could obey, or hide, is escaped.
func printJSON(w io.Writer, v any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(escapeHidden(text.Bytes()))
	return err
}

// escapeHidden returns JSON with what does not show as \u escapes. Such characters can
// only stand inside strings.
func escapeHidden(in []byte) []byte {
	out := make([]byte, 0, len(in))
	for _, r := range string(in) {
		switch {
		case r < 0x7f || visible.Rune(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, hi, lo)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

// onTerminal reports whether what is written to w is shown at once.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// shown returns text of several lines with nothing in it that a terminal could obey.
func shown(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		cells := strings.Split(strings.TrimSuffix(line, "\r"), "\t")
		for j, cell := range cells {
			cells[j] = query.Printable(cell)
		}
		lines[i] = strings.Join(cells, "\t")
	}
	return strings.Join(lines, "\n")
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

// maxColumns is how wide tables and texts are, but for words that are longer.
const maxColumns = 100

// printFit is printTable in lines of at most 100 columns. Where they would be wider,
// the last column is broken into lines; where too little is left for that, each row
// becomes lines of its own, with the headings before what is in it.
func printFit(w io.Writer, rows [][]string) error {
	last := len(rows[0]) - 1
	before, widest := 0, 0
	for i := range last {
		column := 0
		for _, row := range rows {
			column = max(column, utf8.RuneCountInString(row[i]))
		}
		before += column + 2
	}
	for _, row := range rows {
		widest = max(widest, utf8.RuneCountInString(row[last]))
	}
	const least = 24 // columns that are worth breaking text into
	switch {
	case before+widest <= maxColumns:
		return printTable(w, rows)
	case before+least <= maxColumns:
		return printTable(w, breakLast(rows, maxColumns-before))
	}
	for _, row := range rows[1:] {
		fmt.Fprintln(w, row[0])
		for i, cell := range row[1:] {
			if cell != "" {
				printWrapped(w, "  ", strings.ToLower(rows[0][i+1])+": "+cell)
			}
		}
	}
	return nil
}

// breakLast breaks the cells of the last column into rows of at most limit columns.
func breakLast(rows [][]string, limit int) (out [][]string) {
	for _, row := range rows {
		last := len(row) - 1
		for i, line := range wrap(row[last], limit) {
			one := make([]string, len(row))
			if i == 0 {
				copy(one, row)
			}
			one[last] = line
			out = append(out, one)
		}
	}
	return out
}

// integer is what things are counted in.
