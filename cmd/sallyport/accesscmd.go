package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/rules/live"
)

func newAccess() *cobra.Command {
	c := &cobra.Command{
		Use:   "access",
		Short: "Answer what running sandboxes ask for",
		Long: `A sandbox that was refused something can ask for it. An approval is an allow rule for that one
run: exactly the host and port, method and path that were refused, unless others are named. It
expires. It beats no deny rule, of the policy, the run or the floor, and no statement under never;
it grants no credential. Asking and decision are in the log (access.asked, access.decided).`,
		Example: `  sallyport access ls
  sallyport access approve 01JJX0000000000000000000H0 --for 1h
  sallyport access deny 01JJX0000000000000000000H0 --note "use the mirror"`,
		Args: oneOfCommands,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newAccessLs(), newAccessApprove(), newAccessDeny())
	return c
}

func newAccessLs() *cobra.Command {
	var all bool
	var run string
	c := &cobra.Command{
		Use:     "ls",
		Short:   "List what sandboxes ask for",
		Example: "  sallyport access ls\n  sallyport access ls --all -o json",
		Args:    exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			inst, asJSON, err := rootCommand(c)
			if err != nil {
				return err
			}
			var list []live.Ask
			if err := callGateway(c.Context(), inst, "/v1/access", accessIn{run}, &list); err != nil {
				if run != "" {
					err = hint(err, "%s", inst.typed("ps"))
				}
				return err
			}
			shown := []live.Ask{}
			for i := range list {
				if all || list[i].State == live.Asked {
					shown = append(shown, list[i])
				}
			}
			if asJSON {
				out := make([]askOut, len(shown))
				for i := range shown {
					out[i] = askOutOf(&shown[i])
				}
				return printJSON(c.OutOrStdout(), out)
			}
			if len(shown) == 0 {
				fmt.Fprintln(c.OutOrStdout(), "nobody waits for an answer")
				return nil
			}
			for i := range shown {
				printAsk(c.OutOrStdout(), &shown[i], time.Now())
			}
			return nil
		},
	}
	c.Flags().BoolVar(&all, "all", false, "those that are decided too")
	c.Flags().StringVar(&run, "run", "", "of this run only")
	addOutput(c)
	return c
}

// askOut is a request with the rule that an approval of it is.
type askOut struct {
	live.Ask
	Rule string `json:"rule,omitempty"`
}

func askOutOf(a *live.Ask) askOut {
	out := askOut{Ask: *a}
	if r, err := a.Rule(); err == nil && a.State == live.Approved {
		out.Rule, out.Methods, out.Paths = r.ID, r.Methods, nil
		for _, p := range r.Paths {
			out.Paths = append(out.Paths, p.String())
		}
	}
	return out
}

// printAsk tells of one request on a few lines: paths and reasons are long.
func printAsk(w io.Writer, a *live.Ask, now time.Time) {
	fmt.Fprintf(w, "%s  %s  asked at %s\n", a.ID, a.State, clock(a.Time))
	fmt.Fprintf(w, "  %s %s:%d%s\n", a.Method, a.Host, a.Port, a.Path)
	fmt.Fprintf(w, "  run %s, refused with %s (record %s)\n", a.Run, a.Reason, a.Record)
	fmt.Fprintf(w, "  it says: %q\n", a.Why)
	if a.State == live.Asked {
		return
	}
	fmt.Fprintf(w, "  %s by %s at %s\n", a.State, a.By, clock(a.Decided))
	if a.Note != "" {
		fmt.Fprintf(w, "  note: %q\n", a.Note)
	}
	if a.State == live.Approved {
		printApproval(w, a, now)
	}
}

// printApproval tells what an approval lets through and for how long.
func printApproval(w io.Writer, a *live.Ask, now time.Time) {
	if left := a.Until.Sub(now); left > 0 {
		fmt.Fprintf(w, "  holds until %s, for another %v, and no longer than the run\n", clock(a.Until), left.Truncate(time.Second))
	} else {
		fmt.Fprintf(w, "  ended at %s\n", clock(a.Until))
	}
	r, err := a.Rule()
	if err != nil {
		return // it could not have been approved
	}
	fmt.Fprintf(w, "  rule %s: allow %s on %s:%d\n", r.ID, strings.Join(r.Methods, ", "), a.Host, a.Port)
	for _, p := range r.Paths {
		fmt.Fprintf(w, "    %s\n", p)
	}
	fmt.Fprintln(w, "  an address that is private is refused all the same (private_ip): only a rule with cidrs opens it")
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func newAccessApprove() *cobra.Command {
	in := decideIn{Approve: true}
	var held time.Duration
	c := &cobra.Command{
		Use:   "approve ID",
		Short: "Let a sandbox do what it asked for, for a while",
		Example: `  sallyport access approve 01JJX0000000000000000000H0
  sallyport access approve 01JJX0000000000000000000H0 --for 8h --path "/v1/items/**" --method GET`,
		Args: exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if held < time.Second || held > live.MaxApproval {
				return usage(hint(fmt.Errorf("--for %v: an approval holds for 1s to %v", held, live.MaxApproval), "--for 1h"))
			}
			in.ID, in.Seconds = args[0], int64(held/time.Second)
			return decideAccess(c, in)
		},
	}
	c.Flags().DurationVar(&held, "for", time.Hour, "how long it holds, at most 168h")
	c.Flags().StringArrayVar(&in.Methods, "method", nil, "a method; default: the one that was refused")
	c.Flags().StringArrayVar(&in.Paths, "path", nil, "a path pattern; default: the path that was refused")
	c.Flags().StringVar(&in.Note, "note", "", "for the sandbox and the log")
	addOutput(c)
	return c
}

func newAccessDeny() *cobra.Command {
	var in decideIn
	c := &cobra.Command{
		Use:     "deny ID",
		Short:   "Refuse what a sandbox asked for, or take an approval back",
		Example: `  sallyport access deny 01JJX0000000000000000000H0 --note "use the mirror"`,
		Args:    exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			in.ID = args[0]
			return decideAccess(c, in)
		},
	}
	c.Flags().StringVar(&in.Note, "note", "", "for the sandbox and the log")
	addOutput(c)
	return c
}

func decideAccess(c *cobra.Command, in decideIn) error {
	inst, asJSON, err := rootCommand(c)
	if err != nil {
		return err
	}
	who := asker()
	in.By = fmt.Sprintf("%s (uid %d)", who.User, who.UID)
	var a live.Ask
	if err := callGateway(c.Context(), inst, "/v1/access/decide", in, &a); err != nil {
		return hint(err, "%s", inst.typed("access ls --all"))
	}
	if asJSON {
		return printJSON(c.OutOrStdout(), askOutOf(&a))
	}
	printAsk(c.OutOrStdout(), &a, time.Now())
	return nil
}
