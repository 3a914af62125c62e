package main

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/audit/query"
	"sallyport/audit/verify"
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
  sallyport audit verify
  sallyport audit verify --dir ./copy --key ./audit.pub --anchor ./checkpoint`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.PersistentFlags().String("dir", "", "directory of the log; default: the instance's")
	c.AddCommand(newAuditQuery(), newAuditTail(), newAuditVerify())
	return c
}

// auditDirOf returns the directory of the log that a command is about.
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
	if err == nil && !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return strings.HasSuffix(e.Name(), ".jsonl") }) {
		err = fmt.Errorf("there are no segments in %s", dir)
	}
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return "", inst, hint(err, "the log is for root and the group %s: sudo %s", sharedGroup, commandLine())
		}
		return "", inst, hint(fmt.Errorf("no log: %w", err), "sallyport audit --dir DIR, or start one: sallyport up")
	}
	return dir, inst, nil
}

const filterHelp = `A filter is a row of terms that must all hold: field, operator, value.
  = !=        the whole value; alternatives after commas: kind=admit,refuse
  ~ !~        a part of it, in any case: host~stripe
  < <= > >=   numbers: status>=400
  since= until=   2h, 7d, a date, or an RFC 3339 time
A word alone is looked for in host, path, rule, reason and error.`

// filterOf reads a filter from arguments and the flags that people reach for first.
func filterOf(c *cobra.Command, args []string) (query.Filter, error) {
	terms := args
	for _, name := range []string{"run", "host", "verdict"} {
		if v, _ := c.Flags().GetString(name); v != "" {
			terms = append(terms, fmt.Sprintf("%s=%q", name, v))
		}
	}
	f, err := query.Parse(strings.Join(terms, " "), time.Now())
	if err != nil {
		return f, usage(hint(err, "the fields are: %s", strings.Join(query.Fields(), " ")))
	}
	return f, nil
}

func addFilter(c *cobra.Command) {
	c.Flags().String("run", "", "of this run")
	c.Flags().String("host", "", "about this host")
	c.Flags().String("verdict", "", "deny, tunnel or inspect")
	addOutput(c)
}

func newAuditQuery() *cobra.Command {
	c := &cobra.Command{
		Use:   "query [FILTER...]",
		Short: "Print the records that match",
		Long:  "Query prints the records that match.\n\n" + filterHelp,
		Example: `  sallyport audit query 'host~stripe verdict=deny since=2h'
  sallyport audit query --run 01J... -o json | jq .reason`,
		RunE: func(c *cobra.Command, args []string) error {
			dir, _, err := auditDirOf(c)
			if err != nil {
				return err
			}
			f, err := filterOf(c, args)
			if err != nil {
				return err
			}
			return printRecords(c, query.Records(dir, f))
		},
	}
	addFilter(c)
	return c
}

func newAuditTail() *cobra.Command {
	c := &cobra.Command{
		Use:     "tail [FILTER...]",
		Short:   "Print records as they are written, until ^C",
		Long:    "Tail prints the records that match as they are written.\n\n" + filterHelp,
		Example: "  sallyport audit tail verdict=deny",
		RunE: func(c *cobra.Command, args []string) error {
			dir, _, err := auditDirOf(c)
			if err != nil {
				return err
			}
			f, err := filterOf(c, args)
			if err != nil {
				return err
			}
			return printRecords(c, query.Follow(c.Context(), dir, f))
		},
	}
	addFilter(c)
	return c
}

func printRecords(c *cobra.Command, recs iter.Seq2[audit.Record, error]) error {
	asJSON, err := outputJSON(c)
	if err != nil {
		return err
	}
	found := 0
	counted := func(yield func(audit.Record, error) bool) {
		for r, err := range recs {
			found++
			if !yield(r, err) {
				return
			}
		}
	}
	if asJSON {
		err = query.JSON(c.OutOrStdout(), counted) // one record a line, as in the log
	} else {
		err = query.Table(c.OutOrStdout(), counted)
	}
	if err == nil && found == 0 {
		fmt.Fprintln(c.ErrOrStderr(), "sallyport: no record matches")
	}
	return err
}

func newAuditVerify() *cobra.Command {
	var key string
	var anchors []string
	c := &cobra.Command{
		Use:   "verify",
		Short: "Check that nothing in the log was changed, added, left out, moved or cut off",
		Long: `Verify reads the whole log and checks it against the public key that signed it. Checkpoints
that were kept elsewhere (--anchor) show in addition that no old copy was put in its place.
Exit codes: 0 the log is good; 1 it is not, and the first bad record is named; 2 usage.`,
		Example: `  sallyport audit verify
  sallyport audit verify --anchor /mnt/elsewhere/checkpoint
  sallyport audit verify --dir ./copy --key ./audit.pub -o json`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			asJSON, err := outputJSON(c)
			if err != nil {
				return err
			}
			dir, inst, err := auditDirOf(c)
			if err != nil {
				return err
			}
			if key == "" {
				key = inst.auditPublicKey()
			}
			r, err := verifyLog(dir, key, anchors)
			return reportVerify(c, r, err, asJSON)
		},
	}
	c.Flags().StringVar(&key, "key", "", "file with the public key; default: the instance's")
	c.Flags().StringArrayVar(&anchors, "anchor", nil, "file with a checkpoint that was kept elsewhere")
	addOutput(c)
	return c
}

func verifyLog(dir, keyFile string, anchorFiles []string) (verify.Report, error) {
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return verify.Report{}, usage(hint(fmt.Errorf("reading the public key: %w", err), "sallyport audit verify --key FILE"))
	}
	var o verify.Options
	for _, f := range anchorFiles {
		text, err := os.ReadFile(f)
		if err != nil {
			return verify.Report{}, usage(fmt.Errorf("reading an anchor: %w", err))
		}
		o.Anchors = append(o.Anchors, text)
	}
	return verify.Verify(dir, strings.TrimSpace(string(key)), o)
}

// reportVerify prints what was found; a log that is not good is exit code 1.
func reportVerify(c *cobra.Command, r verify.Report, err error, asJSON bool) error {
	var bad *verify.Problem
	if err != nil && !errors.As(err, &bad) {
		return err
	}
	if asJSON {
		out := struct {
			OK      bool            `json:"ok"`
			Problem *verify.Problem `json:"problem,omitempty"`
			Report  verify.Report   `json:"report"`
		}{bad == nil, bad, r}
		err = printJSON(c.OutOrStdout(), out)
		if err == nil && bad != nil {
			err = &exitError{code: exitFailed}
		}
		return err
	}
	if bad != nil {
		return hint(bad, "keep the directory as it is, and compare it with a copy")
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "audit verify: ok: %s\n", r)
	return err
}
