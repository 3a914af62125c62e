package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/audit/export"
	"sallyport/audit/query"
	"sallyport/audit/verify"
	"sallyport/control/durable"
	"sallyport/rules/plural"
)

func newAuditExport() *cobra.Command {
	var format, file, bundle, key string
	var anchors []string
	var covered bool
	c := &cobra.Command{
		Use:   "export [FILTER...]",
		Short: "Convert records for other programs, or bundle them with their proofs",
		Long: `Export writes the records that match in another form: jsonl, csv, har (HTTP Archive 1.2), ocsf
(1.4: HTTP 4002 and DNS 4003 activity), ecs (Elastic Common Schema), cef, otlp (OTLP/HTTP JSON,
a request a line) or parquet. These are views, and prove nothing. With --bundle it writes a ZIP
archive instead that can be checked without the log: records, how their runs began and ended,
proofs, policies, checkpoints, anchors, the public key, and a README that says how. What goes
in is checked first, and of the rest of the log nothing: that no record was taken out of it is
what sallyport audit verify tells.

` + filterHelp,
		Example: `  sallyport audit export --format csv --run 01J... > run.csv
  sallyport audit export --format parquet --file log.parquet since=30d
  sallyport audit export --format har --jq 'select(.status >= 500)' since=1d > failed.har
  sallyport audit export --bundle case.zip --run 01J...
  sallyport audit verify --key ./audit.pub --bundle case.zip`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := besideBundle(c); err != nil {
				return err
			}
			dir, inst, err := auditDirOf(c)
			if err != nil {
				return err
			}
			f, err := filterOf(c, args)
			if err != nil {
				return err
			}
			if bundle == "" {
				j, err := programOf(c)
				if err != nil {
					return err
				}
				return exportTo(c, dir, file, format, f, j)
			}
			return exportBundle(c, bundle, key, anchors, export.BundleConfig{
				Dir: dir, Policies: keptPolicies(c, inst), Filter: f, Covered: covered, Now: time.Now(),
				Tell: tellWhole(c),
			})
		},
	}
	c.Flags().StringVar(&format, "format", "jsonl", strings.Join(export.Formats(), ", "))
	c.Flags().StringVar(&file, "file", "", "write to this new file, not to the standard output")
	c.Flags().StringVar(&bundle, "bundle", "", "write a bundle to this new file")
	c.Flags().StringVar(&key, "key", "", "with --bundle: file with the public key; default: the instance's")
	c.Flags().StringArrayVar(&anchors, "anchor", nil, "with --bundle: file with a checkpoint that was kept elsewhere, which the log is checked against, and which goes in")
	addPolicies(c)
	c.Flags().BoolVar(&covered, "covered", false, "with --bundle: leave out records that no checkpoint covers yet")
	addJQ(c, "a program in jq's language that selects records, or changes them: select(.status >= 500), del(.path)")
	addFilter(c)
	return c
}

// besideBundle refuses what says nothing to a bundle, or to anything else.
func besideBundle(c *cobra.Command) error {
	return errors.Join(apart(c, "bundle", "a bundle holds records as they were signed: use a filter", "jq", "format"),
		apart(c, "bundle", "--bundle FILE names the file", "file"),
		onlyWith(c, []string{"bundle"}, "anchor", "covered", "key", "policies"))
}

// create makes a new file for records: they are private.
func create(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		next := "name a file that is not there yet"
		if !errors.Is(err, fs.ErrExist) {
			next = "name a file in a directory that you may write to"
		}
		return nil, usage(hint(fmt.Errorf("exporting: %w", err), "%s", next))
	}
	return f, nil
}

// selected are the records that a program makes of those that there are.
func selected(c *cobra.Command, recs iter.Seq2[audit.Record, error], j *query.JQ) iter.Seq2[audit.Record, error] {
	if j == nil {
		return recs
	}
	return j.Records(c.Context(), recs)
}

func exportTo(c *cobra.Command, dir, file, format string, f query.Filter, j *query.JQ) error {
	tellBegin(c, dir, f.Since)
	asJSON, err := outputJSON(c)
	if err != nil {
		return err
	}
	var holes notices
	defer holes.tell(c, dir)
	recs := selected(c, ofKnownSchema(c, recordsOf(c, dir, f, &holes)), j)
	cfg := export.Config{Version: version(), Host: machineOf(c), LeftOut: map[audit.Kind]int64{}}
	n, err := writeExport(c, file, format, recs, cfg)
	if errors.Is(err, context.Canceled) && c.Context().Err() != nil {
		return interrupted()
	}
	if err != nil {
		return err
	}
	if err := tellExported(c, exported{format, n, cfg.LeftOut, holes.holes}, file != "", asJSON); err != nil || n > 0 || asJSON {
		return err
	}
	return tellNone(c, dir, f)
}

// writeExport writes records to a new file, or to the standard output if its name is "".
func writeExport(c *cobra.Command, file, format string, recs iter.Seq2[audit.Record, error], cfg export.Config) (n int64, err error) {
	if err := notShown(c, format, file); err != nil {
		return 0, err
	}
	w := c.OutOrStdout()
	var out *os.File
	if file != "" {
		if out, err = create(file); err != nil {
			return 0, err
		}
		w = out
	}
	n, err = export.Write(w, format, recs, cfg)
	if errors.Is(err, export.ErrFormat) {
		err = usage(hint(err, "the formats are: %s", strings.Join(export.Formats(), " ")))
	}
	err = explainJQ(err)
	if out != nil {
		err = closeExport(c, out, n, err)
	}
	return n, err
}

// closeExport closes the file of an export of n records that ended with an error, or
// did not. Of what is damaged, what can be read stays.
func closeExport(c *cobra.Command, out *os.File, n int64, err error) error {
	err = errors.Join(err, out.Close())
	full := durable.NoRoom(err)
	if full {
		err = hint(err, "%s --file FILE, on a disk with room", c.CommandPath())
	}
	if err != nil && (n == 0 || full) {
		err = errors.Join(err, os.Remove(out.Name()))
	}
	return err
}

// notShown refuses to write octets that are no text to a terminal.
func notShown(c *cobra.Command, format, file string) error {
	if file != "" || !export.Binary(format) || !onTerminal(c.OutOrStdout()) {
		return nil
	}
	return usage(hint(fmt.Errorf("%s is no text for a terminal", format), "%s --format %s --file log.%s, or > log.%s", c.CommandPath(), format, format, format))
}

// machineOf is the machine that a log is of, "" if it is a copy: nobody knows where that
// comes from.
func machineOf(c *cobra.Command) string {
	host, err := os.Hostname()
	if err != nil || c.Flags().Changed("dir") {
		return ""
	}
	return host
}

// tellExported says what an export holds, beside the export if that is what the standard
// output holds.
func tellExported(c *cobra.Command, e exported, inFile, asJSON bool) error {
	if asJSON {
		to := c.ErrOrStderr()
		if inFile {
			to = c.OutOrStdout()
		}
		return printJSON(to, e)
	}
	fmt.Fprintf(c.ErrOrStderr(), "sallyport: %s read\n", plural.Count(e.Records, "record"))
	if len(e.LeftOut) > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "sallyport: %s has no place for all: left out %s; --format jsonl, csv, ecs, cef, otlp and parquet hold every record\n",
			e.Format, byKind(e.LeftOut))
	}
	return nil
}

// exported tells what an export read, and what of that is not in it.
type exported struct {
	Format  string               `json:"format"`
	Records int64                `json:"records"` // read
	LeftOut map[audit.Kind]int64 `json:"left_out"`
	Holes   []query.Hole         `json:"holes,omitempty"` // of the log
}

// byKind lists counts, as in 3 dns, 1 gap.
func byKind(counts map[audit.Kind]int64) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[k], k))
	}
	return query.Printable(strings.Join(parts, ", "))
}

func exportBundle(c *cobra.Command, path, keyFile string, anchorFiles []string, cfg export.BundleConfig) error {
	key, asJSON, err := checking(c, keyFile)
	if err != nil {
		return err
	}
	anchors, err := readAnchors(anchorFiles, key)
	if err != nil {
		return err
	}
	cfg.Key, cfg.Anchors = key, anchors.Anchors
	var holes notices
	asked := &holes
	cfg.Find = func(f query.Filter) iter.Seq2[audit.Record, error] {
		n := asked
		asked = nil // what follows looks for what explains the records
		return recordsOf(c, cfg.Dir, f, n)
	}
	tellBegin(c, cfg.Dir, cfg.Filter.Since)
	f, err := create(path)
	if err != nil {
		return err
	}
	r, err := export.Bundle(c.Context(), f, cfg)
	holes.tell(c, cfg.Dir)
	if err == nil && r.Records == 0 {
		err = emptyBundle(c, cfg, r)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(explainBundle(c, err), os.Remove(path))
	}
	if asJSON {
		out, err := withHoles(r, holes.holes)
		if err != nil {
			return err
		}
		return printJSON(c.OutOrStdout(), out)
	}
	fmt.Fprintf(c.OutOrStdout(), "audit export: %s: %s %s, %s, %s%s\n", path, plural.Count(r.Records, "record"), plural.Of(r.Records, "with its proof", "with their proofs"), plural.Count(r.Policies, "policy"), plural.Count(r.Runs, "run"), anchorsIn(r))
	if r.Uncovered > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "sallyport: %s left out, since no checkpoint covers %s yet: %s\n", plural.Count(r.Uncovered, "record")+plural.Of(r.Uncovered, " was", " were"), plural.Of(r.Uncovered, "it", "them"), byKind(r.LeftOut))
	}
	fmt.Fprintf(c.ErrOrStderr(), "sallyport: checked is what is in it; that no other record was changed or taken out of the log: %s\n", hintedAt(c, "sallyport audit verify"))
	for _, d := range r.Absent {
		fmt.Fprintf(c.ErrOrStderr(), "sallyport: policy %s was not found: --policies DIR\n", query.Printable(d))
	}
	return nil
}

// explainBundle says what to do where no bundle was made.
func explainBundle(c *cobra.Command, err error) error {
	switch {
	case errors.Is(err, export.ErrTooMany):
		return usage(hint(err, "narrow it down: --run RUN, since= until="))
	case c.Context().Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, verify.ErrStopped)):
		return interrupted()
	case errors.Is(err, export.ErrUncovered):
		return hint(err, "a checkpoint is signed every half second: try again with until=, or leave them out with --covered")
	case errors.Is(err, export.ErrNotAsFound):
		return hint(err, "%s --index FILE, which is not there yet", c.CommandPath())
	}
	return err
}

// emptyBundle says why there is nothing to prove: an archive without a record would
// verify, and say that all is good.
func emptyBundle(c *cobra.Command, cfg export.BundleConfig, r export.BundleReport) error {
	if r.Uncovered > 0 {
		return hint(errors.New("no checkpoint covers any of the records yet"), "a checkpoint is signed every half second while the gateway runs: try again")
	}
	why, err := whyNone(c, cfg.Dir, cfg.Filter)
	if err != nil {
		return err
	}
	return usage(hint(errors.New(why), "sallyport audit query lists records, sallyport audit top --by run lists runs"))
}

// anchorsIn says how many anchors a bundle holds.
func anchorsIn(r export.BundleReport) string {
	if r.Anchors == 0 {
		return ""
	}
	return ", " + plural.Count(r.Anchors, "anchor")
}

// verifyBundle checks what export --bundle wrote.
func verifyBundle(c *cobra.Command, path, keyFile string, anchorFiles []string) error {
	key, asJSON, err := checking(c, keyFile)
	if err != nil {
		return err
	}
	anchors, err := readAnchors(anchorFiles, key)
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return usage(hint(fmt.Errorf("bundle: %w", err), "%s --bundle FILE", c.CommandPath())) // it was never looked at
	}
	r, err := export.CheckBundle(c.Context(), path, key, anchors.Anchors...)
	if c.Context().Err() != nil && errors.Is(err, context.Canceled) {
		return interrupted()
	}
	if asJSON {
		out := struct {
			OK      bool   `json:"ok"`
			Problem string `json:"problem,omitempty"`
			export.BundleReport
		}{OK: err == nil, BundleReport: r}
		if err != nil {
			out.Problem = err.Error()
		}
		if printErr := printJSON(c.OutOrStdout(), out); printErr != nil || err == nil {
			return printErr
		}
		return &exitError{code: exitFailed}
	}
	if errors.Is(err, export.ErrNotAnchored) {
		return hint(err, "have it made with this one: sallyport audit export --bundle FILE --anchor CHECKPOINT")
	}
	if err != nil {
		return hint(fmt.Errorf("the bundle is not good: %w", err), "ask for it again, and compare the keys")
	}
	fmt.Fprintf(c.OutOrStdout(), "audit verify: ok: %s of the log that was signed with this key, %s, %s%s\n", plural.Count(r.Records, "record"), plural.Count(r.Policies, "policy"), plural.Count(r.Runs, "run"), anchorsIn(r))
	if n := len(anchorFiles); n < r.Anchors {
		fmt.Fprintf(c.ErrOrStderr(), "sallyport: checked against %d of the %s in it: name yours with --anchor FILE\n", n, plural.Count(r.Anchors, "anchor"))
	}
	for _, d := range r.Absent {
		fmt.Fprintf(c.ErrOrStderr(), "sallyport: policy %s is named and not in the bundle\n", query.Printable(d))
	}
	return nil
}
