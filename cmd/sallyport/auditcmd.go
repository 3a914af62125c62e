package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sallyport/audit"
	"sallyport/audit/index"
	"sallyport/audit/query"
	"sallyport/audit/segment"
)

func newAudit() *cobra.Command {
	c := &cobra.Command{
		Use:   "audit",
		Short: "Search the log and check that it is whole",
		Long: `Audit reads the log's files; nothing has to run for it. Those who review logs elsewhere
name a copy with --dir and the public key with --key.`,
		Example: `  sallyport audit query 'verdict=deny since=2h'
  sallyport audit query --run 01J... -o json
  sallyport audit tail
  sallyport audit timeline 01J...
  sallyport audit anomalies --since 24h
  sallyport audit verify
  sallyport audit verify --dir ./copy --key ./audit.pub --anchor ./checkpoint`,
		Args:              oneOfCommands,
		RunE:              func(c *cobra.Command, _ []string) error { return c.Help() },
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { return noneEmpty(c) },
	}
	c.PersistentFlags().String("dir", "", "directory of the log; default: the instance's")
	c.PersistentFlags().String("index", "", "file of the index; default: one in the user's cache directory")
	c.AddCommand(newAuditQuery(), newAuditTail(), newAuditVerify(), newAuditShow(), newAuditTimeline(), newAuditTop(),
		newAuditNew(), newAuditDiff(), newAuditAnomalies(), newAuditHash(), newAuditWhy(), newAuditProve(),
		newAuditExport(), newAuditIndex(), newAuditRetain(), newAuditBody())
	return c
}

// isSegment reports whether a file is a segment, packed or not.
func isSegment(name string) bool {
	_, _, ok := segment.Parse(name)
	return ok
}

// errNoLog is wrapped when a directory is not there, or holds no segment.
var errNoLog = errors.New("no log")

// auditDirOf returns the directory of the log that a command is about, also
// with errNoLog.
func auditDirOf(c *cobra.Command) (string, instance, error) {
	inst, err := instanceOf(c)
	if err != nil {
		return "", inst, err
	}
	dir, err := c.Flags().GetString("dir")
	if err != nil {
		return "", inst, err
	}
	if dir == "" {
		dir = inst.auditDir()
	}
	entries, err := os.ReadDir(dir)
	if err == nil && !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return isSegment(e.Name()) }) {
		err = fmt.Errorf("there are no segments in %s", dir)
	}
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return "", inst, hint(err, "the log is for root and the group %s: sudo %s", auditGroup, commandLine())
		}
		return dir, inst, hint(fmt.Errorf("%w: %w", errNoLog, err), "sallyport audit --dir DIR, or start one: sallyport up")
	}
	return dir, inst, nil
}

const filterHelp = `A filter is a row of terms that must all hold: field, operator, value.
  = !=        the whole value; alternatives after commas: kind=admit,refuse
  ~ !~        a part of it, in any case: host~stripe
  < <= > >=   numbers: status>=400
  since= until=   2h, 7d, a date, or a date and a time of day, in UTC where no zone stands
A word alone is looked for in host, path, rule, reason and error.`

// filterOf reads a filter from arguments and the flags that people reach for first.
func filterOf(c *cobra.Command, args []string) (query.Filter, error) {
	terms := args
	for _, name := range []string{"run", "host", "verdict"} {
		v, _ := c.Flags().GetString(name)
		if v == "" {
			continue
		}
		term := fmt.Sprintf("%s=%q", name, v)
		if _, err := query.Parse(term, time.Now()); err != nil { // it has no column that was typed
			text, next := err.Error(), c.CommandPath()+" --help"
			if bad, ok := errors.AsType[*query.ParseError](err); ok {
				text = bad.Text
				field, value, ok := strings.Cut(bad.Try, "=")
				switch {
				case ok && field == name && !strings.Contains(value, ","):
					next = c.CommandPath() + " --" + name + " " + value
				case bad.Try != "": // no flag takes that
					next = fmt.Sprintf("%s '%s'", c.CommandPath(), bad.Try)
				}
			}
			return query.Filter{}, usage(hint(fmt.Errorf("--%s %s: %s", name, v, text), "%s", next))
		}
		terms = append(terms, term)
	}
	f, err := query.Parse(strings.Join(terms, " "), time.Now())
	if err != nil {
		return f, usage(hint(err, "%s", tryInstead(c, err)))
	}
	return f, nil
}

// tryInstead is what to type instead of a filter that is none: the first term that is
// wrong, put right, or else the fields that there are.
func tryInstead(c *cobra.Command, err error) string {
	if bad, ok := errors.AsType[*query.ParseError](err); ok && bad.Try != "" {
		return fmt.Sprintf("%s '%s'", c.CommandPath(), bad.Try)
	}
	return "the fields are: " + strings.Join(query.Fields(), " ")
}

func addFilter(c *cobra.Command) {
	c.Flags().String("run", "", "of this run")
	c.Flags().String("host", "", "about this host")
	c.Flags().String("verdict", "", "deny, tunnel or inspect")
	addOutput(c)
}

// columnsOf is how wide a terminal is, and for everything else [query.Columns].
func columnsOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return query.Columns
}

func newAuditQuery() *cobra.Command {
	var question string
	var limit time.Duration
	c := &cobra.Command{
		Use:   "query [FILTER...]",
		Short: "Print the records that match",
		Long: "Query prints the records that match.\n\n" + filterHelp + `
With --sql it answers a question in SQLite's language instead, out of the index: records has a
column for every field of a record, log adds the time as text (at), hours holds counts by hour;
--sql .schema lists the columns.
With --jq each record that matches goes through a program in the language of jq, as it stands in
the log; text that it makes is printed as text, tabs and lines too, or with -o json as JSON.`,
		Example: `  sallyport audit query 'host~stripe verdict=deny since=2h'
  sallyport audit query --run 01J... --jq 'select(.status >= 500) | .host + .path'
  sallyport audit query --sql "SELECT at, host, path FROM log WHERE status >= 500 LIMIT 20"`,
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("sql") {
				if err := besideSQL(c, args, limit); err != nil {
					return err
				}
				return printSQL(c, question, limit)
			}
			if err := onlyWith(c, []string{"sql"}, "timeout"); err != nil {
				return err
			}
			dir, _, err := auditDirOf(c)
			if err != nil {
				return err
			}
			f, err := filterOf(c, args)
			if err != nil {
				return err
			}
			tellBegin(c, dir, f.Since)
			var n notices
			err = printRecords(c, dir, f, recordsOf(c, dir, f, &n))
			n.tell(c, dir)
			return err
		},
	}
	c.Flags().StringVar(&question, "sql", "", "a question to the index, which can change nothing")
	c.Flags().DurationVar(&limit, "timeout", 10*time.Minute, "with --sql: how long it may take")
	addJQ(c, "print what a program in jq's language makes of each record")
	addFilter(c)
	return c
}

// besideSQL refuses what says nothing to a question in SQL.
func besideSQL(c *cobra.Command, args []string, limit time.Duration) error {
	const where = "put it into the question: WHERE host LIKE '%stripe%'"
	if len(args) > 0 {
		return usage(hint(errors.New("a filter and --sql do not go together"), "%s", where))
	}
	if limit <= 0 {
		return usage(hint(fmt.Errorf("--timeout %v is no time to answer in", limit), "%s --timeout 1m --sql ...", c.CommandPath()))
	}
	return errors.Join(apart(c, "sql", "--sql ... -o json | jq ...", "jq"), apart(c, "sql", where, "run", "host", "verdict"))
}

func newAuditTail() *cobra.Command {
	c := &cobra.Command{
		Use:     "tail [FILTER...]",
		Short:   "Print records as they are written, until ^C",
		Long:    "Tail prints the records that match as they are written.\n\n" + filterHelp,
		Example: "  sallyport audit tail -f verdict=deny\n  sallyport audit tail kind=refuse --jq '.host + \" \" + .reason'",
		RunE: func(c *cobra.Command, args []string) error {
			dir, _, err := auditDirOf(c)
			if err != nil {
				return err
			}
			f, err := filterOf(c, args)
			if err != nil {
				return err
			}
			if follow, _ := c.Flags().GetBool("follow"); !follow {
				return usage(hint(errors.New("tail follows the log"), "what is there already: sallyport audit query since=1h"))
			}
			if !f.Until.IsZero() && !f.Until.After(time.Now()) {
				return usage(hint(errors.New("tail follows the log: nothing that is still to come is from before now"), "sallyport audit query %s", strings.Join(quoteArgs(args), " ")))
			}
			err = printRecords(c, dir, f, query.Follow(c.Context(), dir, f))
			if c.Context().Err() != nil && errors.Is(err, errInterrupted) {
				return nil // told to end while a program ran
			}
			return err
		},
	}
	c.Flags().BoolP("follow", "f", true, "as with tail -f: it always goes on until ^C")
	addJQ(c, "print what a program in jq's language makes of each record")
	addFilter(c)
	return c
}

// addJQ gives a command --jq; programOf reads it, nil if there is none.
func addJQ(c *cobra.Command, text string) {
	c.Flags().String("jq", "", text)
}

func programOf(c *cobra.Command) (*query.JQ, error) {
	text, _ := c.Flags().GetString("jq")
	if text == "" {
		return nil, nil
	}
	j, err := query.ParseJQ(text)
	if err != nil {
		return nil, usage(hint(err, "%s --jq 'select(.status >= 500) | .host'", c.CommandPath()))
	}
	return j, nil
}

// errInterrupted is wrapped where ^C came before the end of an answer.
var errInterrupted = errors.New("interrupted")

func interrupted() error { return &exitError{exitInterrupted, errInterrupted} }

// unreadLog makes a usage error, with what to type, of a log that could not be read to its end.
func unreadLog(err error, format string, args ...any) error {
	if errors.Is(err, errInterrupted) {
		return err
	}
	return usage(hint(err, format, args...))
}

// orInterrupted makes errInterrupted of ^C.
func orInterrupted(recs iter.Seq2[audit.Record, error]) iter.Seq2[audit.Record, error] {
	return func(yield func(audit.Record, error) bool) {
		for r, err := range recs {
			if errors.Is(err, context.Canceled) {
				err = interrupted()
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// explainJQ makes usage errors of those that are about the program.
func explainJQ(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	if _, ok := errors.AsType[*query.JQError](err); ok || errors.Is(err, query.ErrNoRecord) {
		return usage(hint(err, "fields that a record does not have are null: .path // \"\""))
	}
	return err
}

// printValues prints what a program makes of records: text as it is, or as
// JSON, and everything else as JSON.
func printValues(c *cobra.Command, values iter.Seq2[any, error], asJSON bool) error {
	w := c.OutOrStdout()
	var bad []error
	for v, err := range values {
		if _, ok := errors.AsType[*query.LineError](err); ok {
			if len(bad) < 10 {
				bad = append(bad, err)
			}
			continue
		}
		if err != nil {
			return explainJQ(err)
		}
		if text, ok := v.(string); ok && !asJSON {
			_, err = fmt.Fprintln(w, query.PrintableText(text))
		} else {
			err = query.Object(w, v)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(bad...)
}

// printRecords prints records of the log in dir.
func printRecords(c *cobra.Command, dir string, f query.Filter, recs iter.Seq2[audit.Record, error]) error {
	asJSON, err := outputJSON(c)
	if err != nil {
		return err
	}
	j, err := programOf(c)
	if err != nil {
		return err
	}
	found := 0
	counted := func(yield func(audit.Record, error) bool) {
		for r, err := range ofKnownSchema(c, recs) {
			found++
			if !yield(r, err) {
				return
			}
		}
	}
	switch {
	case j != nil:
		err = printValues(c, j.Values(c.Context(), counted), asJSON)
	case asJSON:
		err = query.JSON(c.OutOrStdout(), counted) // one record a line, as in the log
	default:
		err = query.Table(c.OutOrStdout(), columnsOf(c.OutOrStdout()), counted)
	}
	if errors.Is(err, context.Canceled) && c.Context().Err() != nil {
		return interrupted()
	}
	if err != nil || found > 0 || c.Context().Err() != nil {
		return err
	}
	return tellNone(c, dir, f)
}

// tellNone says why nothing was found.
func tellNone(c *cobra.Command, dir string, f query.Filter) error {
	why, err := whyNone(c, dir, f)
	if err != nil {
		return err
	}
	fmt.Fprintln(c.ErrOrStderr(), "sallyport: "+why)
	if b := beginOf(c, dir); b.seq > 0 && f.Since.IsZero() { // else it is told already
		fmt.Fprintf(c.ErrOrStderr(), "sallyport: %v\n", b)
	}
	return nil
}

// recordsOf returns the records of the log in dir that f matches, with the help of an
// index if there is one. n, unless it is nil, takes what shows that the log is not whole.
func recordsOf(c *cobra.Command, dir string, f query.Filter, n *notices) iter.Seq2[audit.Record, error] {
	var tell func(error)
	if n != nil {
		tell = n.take
	}
	path, own, err := indexPath(c, dir)
	if err != nil { // nowhere to keep one
		return query.RecordsFrom(c.Context(), dir, f, 0, tell)
	}
	return index.Records(c.Context(), index.Config{Dir: dir, Path: path, Own: own, Tell: tell}, f)
}

// readLog gives use the records of the log in dir that f matches, until ^C, tells what shows
// that the log is not whole, and returns where it lacks records.
func readLog(c *cobra.Command, dir string, f query.Filter, use func(iter.Seq2[audit.Record, error]) error) ([]query.Hole, error) {
	var n notices
	err := use(func(yield func(audit.Record, error) bool) {
		for r, err := range orInterrupted(recordsOf(c, dir, f, &n)) {
			if _, bad := errors.AsType[*query.LineError](err); bad {
				n.lines++
			}
			if !yield(r, err) {
				return
			}
		}
	})
	n.tell(c, dir)
	return n.holes, err
}

// ofKnownSchema tells once that records are of a later schema than this program's: they
// are read all the same, and may say more than is shown.
func ofKnownSchema(c *cobra.Command, recs iter.Seq2[audit.Record, error]) iter.Seq2[audit.Record, error] {
	return func(yield func(audit.Record, error) bool) {
		told := false
		for r, err := range recs {
			if err == nil && r.Schema > audit.Schema && !told {
				told = true
				tellLater(c, int64(r.Seq), r.Schema)
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

func tellLater(c *cobra.Command, seq int64, schema int) {
	fmt.Fprintf(c.ErrOrStderr(), "sallyport: record %d is of schema version %d, and this program knows %d: it may say more than is shown; use a newer sallyport\n",
		seq, schema, audit.Schema)
}

// whyNone says why no record of the log in dir was found: the id, or the run, that
// was asked for may be none, or the beginning of one.
func whyNone(c *cobra.Command, dir string, f query.Filter) (string, error) {
	for _, field := range []string{"run", "id", "ref"} {
		asked := f.Only(field)
		if asked == "" {
			continue
		}
		begin, err := beginning(c, dir, field, asked)
		if err != nil {
			return "", err
		}
		switch {
		case begin == asked:
		case begin != "":
			return fmt.Sprintf("the log has no %s %q: this is the beginning of %s", field, asked, query.Printable(begin)), nil
		case field == "run":
			return fmt.Sprintf("the log has no record of a run %q; its runs: %s", asked, hintedAt(c, "sallyport audit top --by run")), nil
		default:
			return fmt.Sprintf("the log has no record with the %s %q", field, asked), nil
		}
	}
	return "no record matches", nil
}

// beginning returns asked if a record has it in a field, else the first value that
// begins so, "" if none does.
func beginning(c *cobra.Command, dir, field, asked string) (found string, err error) {
	f, err := query.Parse(fmt.Sprintf("%s~%q", field, asked), time.Now())
	if err != nil {
		return "", err
	}
	for r, err := range recordsOf(c, dir, f, nil) {
		v := map[string]string{"run": r.Run, "id": r.ID, "ref": r.Ref}[field]
		switch {
		case errors.Is(err, context.Canceled):
			return "", interrupted()
		case err != nil: // its lines are told elsewhere
		case v == asked:
			return v, nil
		case found == "" && len(v) > len(asked) && strings.EqualFold(v[:len(asked)], asked):
			found = v
		}
	}
	return found, nil
}
