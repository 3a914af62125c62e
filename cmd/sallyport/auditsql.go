package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit/index"
	"sallyport/audit/query"
)

const sqlHelp = `the tables are records, log (records with a readable time) and hours: --sql .schema`

// printSQL answers a question of the asker's own.
func printSQL(c *cobra.Command, question string, limit time.Duration) error {
	asJSON, err := outputJSON(c)
	if err != nil {
		return err
	}
	if strings.TrimSpace(question) == ".schema" {
		_, err := io.WriteString(c.OutOrStdout(), index.Tables())
		return err
	}
	return withIndex(c, func(x *index.Index) error {
		ctx, cancel := context.WithTimeout(c.Context(), limit)
		defer cancel()
		w := bufio.NewWriter(c.OutOrStdout())
		err := writeRows(ctx, w, x, question, asJSON)
		switch flushed := w.Flush(); {
		case errors.Is(err, context.DeadlineExceeded), err != nil && ctx.Err() != nil && c.Context().Err() == nil:
			return hint(fmt.Errorf("the question took longer than %v", limit), "narrow it down, or --timeout 1h")
		case c.Context().Err() != nil:
			return interrupted()
		case err != nil:
			return err
		default:
			return flushed
		}
	})
}

func writeRows(ctx context.Context, w io.Writer, x *index.Index, question string, asJSON bool) error {
	var heads []string
	for row, err := range x.SQL(ctx, question) {
		switch {
		case err != nil:
			return usage(hint(err, sqlHelp))
		case heads == nil:
			heads = cells(row)
			err = headings(w, heads, asJSON)
		case asJSON:
			object := map[string]any{}
			for i, v := range row {
				if octets, ok := v.([]byte); ok {
					v = literal(octets)
				}
				object[heads[i]] = v
			}
			err = query.Object(w, object)
		default:
			_, err = fmt.Fprintln(w, strings.Join(cells(row), "\t"))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// headings writes the columns' names, or makes sure that an object can have them.
func headings(w io.Writer, heads []string, asJSON bool) error {
	if !asJSON {
		_, err := fmt.Fprintln(w, strings.Join(heads, "\t"))
		return err
	}
	seen := map[string]bool{}
	for _, h := range heads {
		if seen[h] {
			return usage(hint(fmt.Errorf("two columns are called %q", h), "SELECT a.%s AS one, b.%s AS other", h, h))
		}
		seen[h] = true
	}
	return nil
}

// cells are values as people read them, one to a cell.
func cells(row []any) []string {
	out := make([]string, len(row))
	for i, v := range row {
		switch v := v.(type) {
		case nil:
			out[i] = "NULL"
		case []byte:
			out[i] = literal(v)
		default:
			out[i] = query.Printable(fmt.Sprint(v))
		}
	}
	return out
}

// literal is a blob as SQL spells it.
func literal(octets []byte) string { return fmt.Sprintf("x'%x'", octets) }
