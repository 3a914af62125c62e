package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/rules/plural"
)

// retainIn asks the gateway to remove old segments.
type retainIn struct {
	Keep int64 // seconds
}

func newAuditRetain() *cobra.Command {
	var keep string
	c := &cobra.Command{
		Use:   "retain --keep TIME",
		Short: "Remove old segments of the log, and leave a signed note of what was removed",
		Long: `Retain removes the segments whose records are all older than --keep, whole and the oldest
first; the one that is written to stays. Each is read before: if its records are not those that
were signed, nothing is removed. What goes is told in a record and in a signed note, and audit
verify still checks all that is left, and names the removal.
The gateway does it, so it has to run. up --audit-keep, or log: {keep: 90d} in its configuration,
does the same every hour.
Exit codes: 0 removed, or nothing is so old; 1 something is wrong, nothing was removed; 2 usage.`,
		Example: `  sallyport audit retain --keep 90d
  sallyport audit retain --keep 400d -o json`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if keep == "" {
				return usage(hint(errors.New("--keep is required"), "sallyport audit retain --keep 90d"))
			}
			seconds, err := readKeep("--keep", keep)
			if err != nil {
				return err
			}
			inst, asJSON, err := rootCommand(c)
			if err != nil {
				return err
			}
			var out audit.Removed
			if err := callGateway(c.Context(), inst, "/v1/retain", retainIn{seconds}, &out); err != nil {
				return err
			}
			if asJSON {
				out.Segments = append([]string{}, out.Segments...)
				return printJSON(c.OutOrStdout(), out)
			}
			if out.Records == 0 {
				_, err = fmt.Fprintf(c.OutOrStdout(), "audit retain: nothing is older than %s\n", keep)
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "audit retain: removed %s in %s, %s to %s\n    the log begins with record %d now; audit verify says so\n",
				plural.Count(out.Records, "record"), plural.Count(len(out.Segments), "segment"), out.From.UTC().Format(time.DateOnly), out.Until.UTC().Format(time.DateOnly), out.First)
			return err
		},
	}
	c.Flags().StringVar(&keep, "keep", "", "for how long records are kept, such as 90d or 36h; a day at least")
	addOutput(c)
	return c
}
