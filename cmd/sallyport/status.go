package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sallyport/audit"
	"sallyport/audit/query"
	"sallyport/audit/ship"
	"sallyport/broker"
	"sallyport/rules/plural"
)

// report is what status prints.
type statusReport struct {
	Instance    string          `json:"instance"`
	Supervisor  int             `json:"supervisor_pid"`
	Gateway     statusOut       `json:"gateway"`
	Broker      string          `json:"broker"` // "ok" or what is wrong
	Credentials []broker.Status `json:"credentials"`
	Reload      followOut       `json:"reload"`
	Shippers    []shipperOut    `json:"shippers"`
}

// shipperOut is how far a collector is.
type shipperOut struct {
	Collector string     `json:"collector"`
	State     string     `json:"state"`   // "ok", "behind", or "unknown" if its bookmark cannot be read
	Next      uint64     `json:"next"`    // number of the record that it gets next
	Waiting   uint64     `json:"waiting"` // signed records that it has not got yet
	Dropped   int64      `json:"dropped"` // records that it did not get and will not
	Behind    *time.Time `json:"behind,omitempty"`
	Error     string     `json:"error,omitempty"`
}

func newStatus() *cobra.Command {
	c := &cobra.Command{
		Use:     "status",
		Short:   "Say whether gateway, broker, shippers and anchors work, and what they hold",
		Example: "  sallyport status\n  sallyport status -o json",
		Args:    exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			inst, asJSON, err := rootCommand(c)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), 10*time.Second)
			defer cancel()
			r, err := status(ctx, inst)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(c.OutOrStdout(), r)
			} else {
				err = printStatus(c.OutOrStdout(), r)
			}
			return errors.Join(err, r.fault())
		},
	}
	addOutput(c)
	return c
}

func status(ctx context.Context, inst instance) (*statusReport, error) {
	r := &statusReport{Instance: inst.name}
	if err := inst.mustBeUp(); err != nil {
		return nil, err
	}
	r.Supervisor, _ = supervisorPID(inst)
	if err := callGateway(ctx, inst, "/v1/status", empty{}, &r.Gateway); err != nil {
		return nil, explainNoLog(inst, err)
	}
	if err := callUp(ctx, inst, "/v1/status", &r.Reload); err != nil {
		return nil, err
	}
	r.Shippers = shippers(inst, r.Reload.Ships, r.Gateway.Signed)
	// What the gateway says stands, whatever is with the broker.
	var creds broker.Statuses
	r.Broker = "ok"
	if err := callBroker(ctx, inst, "/v1/credentials", empty{}, &creds); err != nil {
		r.Broker = err.Error()
	}
	r.Credentials = append([]broker.Status{}, creds.Credentials...)
	return r, nil
}

// shippers reads the bookmarks of collectors; signed is how many records there are.
func shippers(inst instance, collectors []string, signed uint64) []shipperOut {
	out := make([]shipperOut, 0, len(collectors))
	for _, text := range collectors {
		s := shipperOut{Collector: text, State: "ok"}
		c, err := parseCollector(text)
		var at ship.State
		if err == nil {
			s.Collector = c.String()
			at, err = ship.ReadState(inst.state("ship", c.bookmark()))
		}
		s.Next, s.Dropped, s.Behind, s.Error = at.Next, at.Dropped, at.Behind, at.Error
		if signed > at.Next {
			s.Waiting = signed - at.Next
		}
		switch {
		case err != nil:
			s.State, s.Error, s.Waiting = "unknown", err.Error(), 0
		case at.Behind != nil:
			s.State = "behind"
		}
		out = append(out, s)
	}
	return out
}

// fault returns the first thing that is wrong, for the exit code.
func (r *statusReport) fault() error {
	if r.Gateway.Ready != "ok" {
		return hint(fmt.Errorf("the log cannot be written: %s", r.Gateway.Ready), "%s", mendLog(instance{r.Instance}, r.Gateway.Ready))
	}
	if r.Broker != "ok" {
		return fmt.Errorf("the broker does not answer: %s", r.Broker)
	}
	if len(r.Reload.Refused) > 0 {
		run := r.Reload.Refused[0]
		return hint(fmt.Errorf("cell %s: %s is refused, the policy before stays in force: %s", run.Cell, run.File, run.Error),
			"sallyport policy lint %s", run.Lint)
	}
	if bad := r.Reload.Credentials; bad != "ok" {
		return hint(fmt.Errorf("the credential files in %s are refused, those before stay in force: %s", r.Reload.CredentialDir, firstLine(bad)),
			"mend it: it is read again by itself; all of the error: %s", instance{r.Instance}.typed("policy reload"))
	}
	if r.Reload.Watch != "ok" {
		return fmt.Errorf("changes of files are not seen: %s", r.Reload.Watch)
	}
	for _, c := range r.Credentials {
		if c.Error != "" {
			return fmt.Errorf("credential %q: %s", c.Name, c.Error)
		}
	}
	for _, a := range r.Gateway.Anchors {
		if a.Behind != nil {
			return fmt.Errorf("the anchor %s gets no checkpoints: %s", a.Name, a.Error)
		}
	}
	for _, s := range r.Shippers {
		if s.State != "ok" {
			return fmt.Errorf("the collector %s gets no records: %s", s.Collector, s.Error)
		}
	}
	return nil
}

func firstLine(s string) string {
	first, _, _ := strings.Cut(s, "\n")
	return first
}

// line says in one line how the collector fares.
func (s *shipperOut) line() string {
	return fmt.Sprintf("%s, %d waiting, %d dropped: %s", s.State+moment(" since ", s.Behind), s.Waiting, s.Dropped, s.Collector)
}

func anchorLine(a *audit.AnchorState) string {
	state, kept := "ok", moment(" at ", a.Kept)
	switch {
	case a.Behind != nil:
		state, kept = "behind"+moment(" since ", a.Behind), ""
	case a.Kept == nil:
		state = "nothing yet"
	}
	return fmt.Sprintf("%s, %s kept%s, %d waiting: %s", state, plural.Count(a.Records, "record"), kept, a.Waiting, a.Name)
}

// moment is a time after a word, nothing for none.
func moment(word string, t *time.Time) string {
	if t == nil {
		return ""
	}
	return word + t.UTC().Format("01-02 15:04")
}

func printStatus(w io.Writer, r *statusReport) error {
	g := r.Gateway
	rows := [][]string{
		{"instance", r.Instance},
		{"supervisor", "pid " + strconv.Itoa(r.Supervisor)},
		{"gateway", fmt.Sprintf("pid %d since %s, %s", g.PID, g.Since.UTC().Format(time.RFC3339), g.Version)},
		{"broker", r.Broker},
		{"log", fmt.Sprintf("%s, %s since the gateway started", g.Ready, plural.Count(g.Records, "record"))},
		{"cells", strconv.Itoa(len(g.Cells))},
	}
	if last := r.Reload.Last; last != nil {
		word := "everything is in force"
		if !last.ok() {
			word = "something was refused"
		}
		rows = append(rows, []string{"last reload", fmt.Sprintf("%s by %s: %s", last.Time.Format(time.RFC3339), last.Trigger, word)})
	}
	if bad := r.Reload.Credentials; bad != "ok" {
		rows = append(rows, []string{"refused", query.Printable(firstLine(bad))})
	}
	for _, run := range r.Reload.Refused {
		rows = append(rows, []string{"refused", query.Printable(fmt.Sprintf("cell %s: %s", run.Cell, firstLine(run.Error)))})
	}
	for _, c := range r.Credentials {
		rows = append(rows, []string{"credential", fmt.Sprintf("%s (%s) %s, used %s", c.Name, c.Type, c.Status, plural.Count(c.Uses, "time"))})
	}
	for i := range g.Anchors {
		rows = append(rows, []string{"anchor", query.Printable(anchorLine(&g.Anchors[i]))})
	}
	for i := range r.Shippers {
		rows = append(rows, []string{"shipper", query.Printable(r.Shippers[i].line())})
	}
	return printFit(w, rows)
}

func newPS() *cobra.Command {
	c := &cobra.Command{
		Use:     "ps",
		Short:   "List the sandboxes that run",
		Example: "  sallyport ps\n  sallyport ps -o json",
		Args:    exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			inst, asJSON, err := rootCommand(c)
			if err != nil {
				return err
			}
			if err := inst.mustBeUp(); err != nil {
				return err
			}
			var st statusOut
			if err := callGateway(c.Context(), inst, "/v1/status", empty{}, &st); err != nil {
				return err
			}
			if asJSON {
				if st.Cells == nil {
					st.Cells = []cellOut{}
				}
				return printJSON(c.OutOrStdout(), st.Cells)
			}
			rows := [][]string{{"CELL", "RUN", "SINCE", "ADDRESS", "DENIALS", "POLICY"}}
			for _, cell := range st.Cells {
				rows = append(rows, []string{
					cell.Cell, cell.Run, cell.Since.UTC().Format("01-02 15:04:05"), cell.Address,
					strconv.FormatUint(cell.Denials, 10), cell.Policy,
				})
			}
			return printTable(c.OutOrStdout(), rows)
		},
	}
	addOutput(c)
	return c
}

func newDown() *cobra.Command {
	return &cobra.Command{
		Use:     "down",
		Short:   "End running sandboxes and take everything down, as ^C at up does",
		Example: "  sallyport down",
		Args:    exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			inst, err := instanceOf(c)
			if err != nil {
				return err
			}
			if err := mustRoot("down"); err != nil {
				return err
			}
			return down(c.Context(), inst, c.OutOrStdout())
		},
	}
}

// down asks the supervisor to end and waits until it has given its lock back,
// which is the last thing that it does.
func down(ctx context.Context, inst instance, out io.Writer) error {
	pid, ok := supervisorPID(inst)
	if !ok {
		return hint(fmt.Errorf("instance %q is not up", inst.name), "to clear what a killed one left: %s", inst.typed("reconcile"))
	}
	fmt.Fprintf(out, "stopping %s (pid %d)\n", inst.name, pid)
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return fmt.Errorf("stopping pid %d: %w", pid, err)
	}
	f, err := os.Open(inst.run("supervisor.lock"))
	if err != nil {
		return ignoreMissing(err)
	}
	defer f.Close()
	locked := make(chan error, 1)
	go func() { locked <- unix.Flock(int(f.Fd()), unix.LOCK_SH) }()
	select {
	case err := <-locked:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// supervisorPID returns the process that holds an instance's lock. A file
// without a lock is an old one: its number means nothing.
func supervisorPID(inst instance) (pid int, ok bool) {
	f, err := os.Open(inst.run("supervisor.lock"))
	if err != nil {
		return 0, false
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
		return 0, false
	}
	data := make([]byte, 32)
	n, _ := f.Read(data)
	pid, err = strconv.Atoi(strings.TrimSpace(string(data[:n])))
	return pid, err == nil && pid > 1
}
