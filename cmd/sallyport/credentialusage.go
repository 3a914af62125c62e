package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/audit/query"
	"sallyport/launcher"
	"sallyport/rules/plural"
)

// usageOut tells who used a credential, from the log.
type usageOut struct {
	Credential string `json:"credential"`
	Since      string `json:"since,omitempty"`
	Counts
	Runs  []usedByIn   `json:"runs"`            // the last first
	Holes []query.Hole `json:"holes,omitempty"` // of the log
}

// Counts are of what the log calls use, mint, unsaved, refusal and leak.
type Counts struct {
	Uses    int64 `json:"uses"`    // it went out with a request
	Mints   int64 `json:"mints"`   // a token was made with it
	Unsaved int64 `json:"unsaved"` // the refresh token that came with one is in memory only
	Refused int64 `json:"refused"` // it was asked for, and not given
	Leaks   int64 `json:"leaks"`   // its placeholder was sent where it does not belong
}

func (c *Counts) add(event string) {
	switch event {
	case "use":
		c.Uses++
	case "mint":
		c.Mints++
	case "unsaved":
		c.Unsaved++
	case "refusal":
		c.Refused++
	case "leak":
		c.Leaks++
	}
}

// usedByIn is the use by one run.
type usedByIn struct {
	Run   string `json:"run"`
	Cell  string `json:"cell"`
	Asker string `json:"asker,omitempty"` // who started the run; of a test of the credential, who tested
	Counts
	Hosts []string  `json:"hosts"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

func newCredentialUsage() *cobra.Command {
	c := &cobra.Command{
		Use:   "usage NAME",
		Short: "Tell from the log which runs used a credential, when and how often",
		Long: `Usage counts, by run, the requests that a credential went out with, the tokens that were made
with it, and what was refused because of it, leaks of its placeholder apart. It reads the log's
files; nothing has to run for it.`,
		Example: `  sallyport credential usage stripe-test
  sallyport credential usage stripe-test --since 7d -o json`,
	}
	c.Flags().String("since", "", "from then on: 2h, 7d, a date, or a date and a time of day")
	c.Flags().String("dir", "", "directory of the log; default: the instance's")
	return credentialCommand(c, 1, func(c *cobra.Command, args []string) (usageOut, error) {
		if err := noneEmpty(c); err != nil {
			return usageOut{}, err
		}
		dir, _, err := auditDirOf(c)
		if err != nil {
			return usageOut{}, err
		}
		since, _ := c.Flags().GetString("since")
		f := usageOf(args[0])
		if since != "" {
			f.Since, err = query.ParseTime(since, time.Now())
		}
		if err != nil {
			return usageOut{}, usage(hint(fmt.Errorf("--since: %w", err), "sallyport credential usage %s --since 7d", args[0]))
		}
		tellBegin(c, dir, f.Since)
		out := usageOut{Credential: args[0], Since: since}
		out.Holes, err = readLog(c, dir, f, out.count)
		if err == nil && len(out.Runs) == 0 {
			fmt.Fprintf(c.ErrOrStderr(), "sallyport: no use of %q is recorded\n", args[0])
		}
		return out, err
	}, printUsage)
}

// usageOf finds the records that tell of the use of a credential, and those that tell who asked for
// runs, and for tests.
func usageOf(name string) query.Filter {
	uses := query.AnyOf(query.Where("kind", string(audit.Admit)), query.Where("kind", string(audit.Credential)))
	return query.AnyOf(query.Where("credential", name).And(uses),
		query.Where("kind", string(audit.RunStart)), query.Where("kind", string(audit.CredentialChange)))
}

func (u *usageOut) count(recs iter.Seq2[audit.Record, error]) error {
	runs, askers := map[string]*usedByIn{}, map[string]string{}
	for r, err := range recs {
		if _, bad := errors.AsType[*query.LineError](err); bad {
			continue // it is told
		}
		if err != nil {
			return err
		}
		switch {
		case r.Kind == audit.RunStart || r.Kind == audit.CredentialChange:
			askers[r.Run] = askerOf(&r)
			continue
		case r.Event == "" || r.Credential != u.Credential:
			continue
		}
		by := runs[r.Run+"\x00"+r.Cell]
		if by == nil {
			by = &usedByIn{Run: r.Run, Cell: r.Cell, First: r.Time, Hosts: []string{}}
			runs[r.Run+"\x00"+r.Cell] = by
		}
		by.add(r.Event)
		u.add(r.Event)
		by.Last = r.Time
		if !slices.Contains(by.Hosts, r.Host) && len(by.Hosts) < maxUsageHosts {
			by.Hosts = append(by.Hosts, r.Host)
		}
	}
	u.Runs = []usedByIn{}
	for _, by := range runs {
		if by.Asker = askers[by.Run]; by.Asker == "" && strings.HasPrefix(by.Cell, testCells) {
			by.Asker = "(test)"
		}
		u.Runs = append(u.Runs, *by)
	}
	slices.SortFunc(u.Runs, func(a, b usedByIn) int { return b.Last.Compare(a.Last) })
	return nil
}

// askerOf tells who asked for a run, or for the test of a credential.
func askerOf(r *audit.Record) string {
	var m struct {
		Asker *launcher.Asker
		By    string
	}
	switch err := json.Unmarshal(r.Data, &m); {
	case err != nil || r.Run == "": // a change of the credential is no use
		return ""
	case r.Kind == audit.CredentialChange:
		return m.By + " (test)"
	case m.Asker == nil:
		return ""
	case m.Asker.User != "":
		return m.Asker.User
	default:
		return fmt.Sprintf("uid %d", m.Asker.UID)
	}
}

// maxUsageHosts bounds a list that a sandbox can lengthen by being refused.
const maxUsageHosts = 16

func printUsage(w io.Writer, u usageOut) error {
	rows := [][]string{{"RUN", "BY", "USES", "REFUSED", "LEAKS", "LAST", "HOST"}}
	for _, r := range u.Runs {
		rows = append(rows, []string{
			query.Printable(r.Run), query.Fit(query.Printable(r.Asker), 12), strconv.FormatInt(r.Uses, 10), strconv.FormatInt(r.Refused, 10), strconv.FormatInt(r.Leaks, 10),
			r.Last.UTC().Format(stampMinute), firstOf(r.Hosts, 19),
		})
	}
	if err := printFit(w, rows); err != nil {
		return err
	}
	unsaved := ""
	if u.Unsaved > 0 {
		unsaved = ", " + plural.Count(u.Unsaved, "refresh token") + " not kept on disk"
	}
	_, err := fmt.Fprintf(w, "%s: used %s, refused %s, %s, %s made%s\n", u.Credential, plural.Count(u.Uses, "time"), plural.Count(u.Refused, "time"), plural.Count(u.Leaks, "leak"), plural.Count(u.Mints, "token"), unsaved)
	return err
}
