package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"sallyport/control"
)

func newPolicyReload() *cobra.Command {
	c := &cobra.Command{
		Use:   "reload",
		Short: "Read the policies of running sandboxes again, and the credential files",
		Long: `Reload has up read the credential files, and the policy files of all running sandboxes with what
they include. Each is read, checked and tested as for a new run. What is in order comes into force
at once, and what is open is judged again within a second; of what is not, the policy before stays
in force, and the error is told here, at up, by status and in the log (policy.refuse).
The same happens by itself when a file changes, and on SIGHUP to up.
Exit codes: 0 everything that was read is in force; 1 something was refused; 2 usage.`,
		Example: "  sallyport policy reload\n  sallyport policy reload -o json",
		Args:    exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			inst, asJSON, err := rootCommand(c)
			if err != nil {
				return err
			}
			if err := inst.mustBeUp(); err != nil {
				return err
			}
			var out reloadOut
			if err := callUp(c.Context(), inst, "/v1/reload", &out); err != nil {
				return err
			}
			if asJSON {
				err = printJSON(c.OutOrStdout(), out)
			} else {
				err = printReload(c.OutOrStdout(), c.ErrOrStderr(), inst, out)
			}
			if err == nil && !out.ok() {
				err = &exitError{code: exitFailed}
			}
			return err
		},
	}
	addOutput(c)
	return c
}

// ok reports whether everything that was read is in force.
func (o *reloadOut) ok() bool {
	for _, r := range o.Runs {
		if r.Outcome == refused {
			return false
		}
	}
	return o.Credentials == "ok"
}

func printReload(w, errw io.Writer, inst instance, out reloadOut) error {
	rows := [][]string{{"CELL", "OUTCOME", "POLICY", "FILE"}}
	for _, r := range out.Runs {
		rows = append(rows, []string{r.Cell, r.Outcome, short(r.Policy), r.File})
		if r.Error != "" {
			fmt.Fprintf(errw, "sallyport: error: cell %s keeps its policy: %s\n", r.Cell, r.Error)
			fmt.Fprintf(errw, "sallyport: hint: %s\n", inst.typed("policy lint "+cmp.Or(r.Lint, r.File, "FILE")))
		}
	}
	if out.Credentials != "ok" {
		fmt.Fprintf(errw, "sallyport: error: the credentials stay as they were: %s\n", out.Credentials)
		fmt.Fprintln(errw, "sallyport: hint: "+inst.typed("credential ls"))
	} else {
		fmt.Fprintln(w, "credentials: ok")
	}
	if len(out.Runs) == 0 {
		_, err := fmt.Fprintln(w, "no sandbox is running")
		return err
	}
	return printFit(w, rows)
}

// short is a digest as far as a person compares it.
func short(digest string) string {
	const shown = len("sha256:") + 12
	return digest[:min(shown, len(digest))]
}

// reloadTimeout bounds one reload; policies of thousands of rules take their time.
const reloadTimeout = time.Minute

// callUp calls the supervisor's control socket.
func callUp(ctx context.Context, inst instance, op string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	c := control.NewClient(inst.upSocket())
	defer c.Close()
	return explainCall(inst, c.Call(ctx, op, empty{}, out))
}
