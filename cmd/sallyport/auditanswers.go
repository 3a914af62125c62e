package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/audit/answer"
	"sallyport/audit/index"
	"sallyport/audit/query"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/plural"
)

func newAuditShow() *cobra.Command {
	return answerCommand(&cobra.Command{
		Use:   "show ID",
		Short: "Tell all that belongs to one record: its outcome, its run, its policy",
		Long: `Show tells all that belongs to one record. ID is the id that a sandbox is told of when it is
refused (Sallyport-Request), or any other of the log; its beginning is enough if it is unique.
A record's number is taken too.`,
		Example: "  sallyport audit show 01JJX0000000000000000000F0\n  sallyport audit show 01JJX -o json",
		Args:    exactArgs(1),
	}, func(c *cobra.Command, args []string, x *index.Index) (*answer.Story, error) {
		return answer.Show(c.Context(), x, args[0])
	}, printStory)
}

func printStory(w io.Writer, s *answer.Story) error {
	rows := [][2]string{
		{"record", fmt.Sprintf("%s (number %d)", s.ID, s.Seq)},
		{"time", stamp(s.Time)},
		{"what", strings.TrimSpace(fmt.Sprintf("%s %s %s", s.Kind, s.Verdict, s.Reason))},
		{"about", query.Fit(query.Printable(query.What(&s.Step.Record)), mostAbout)},
		{"path", wholePath(&s.Step.Record)},
		{"rule", join(" at ", s.Rule, s.Where)},
		{"approved", approvedBy(s)},
		{"credential", s.Credential},
		{"event", s.Event},
		{"query", s.Query},
		{"values", s.Values},
		{"from", join(" in cell ", s.Client, s.Cell)},
		{"error", s.Error},
	}
	if s.Done != nil {
		rows = append(rows, [2]string{"outcome", join(" ", denial(s.Done), query.Outcome(s.Done))},
			[2]string{"", join(" ", "record "+s.Done.ID, join("to ", "", s.Done.Addr))}, [2]string{"", s.Done.Error})
	} else if s.Kind == audit.Admit {
		rows = append(rows, [2]string{"outcome", "not recorded: still going on, or cut off by a crash"})
	}
	rows = append(rows, dataRows(s.Step.Record.Data)...)
	if s.Done != nil {
		rows = append(rows, dataRows(s.Done.Data)...)
	}
	if s.Of == nil && s.Ref != "" {
		rows = append(rows, [2]string{"of", s.Ref + ", which is not in the log"})
	}
	if s.Of != nil {
		rows = append(rows, [2]string{"of", join(" ", join(" ", s.Of.ID+" "+string(s.Of.Kind), denial(s.Of)), query.What(s.Of))})
	}
	for i := range s.Others {
		rows = append(rows, [2]string{"also", fmt.Sprintf("%s %s", s.Others[i].ID, query.What(&s.Others[i]))})
	}
	if s.Lookup != nil {
		rows = append(rows, [2]string{"look-up", fmt.Sprintf("%s (record %s)", query.What(s.Lookup), s.Lookup.ID)})
	}
	if s.Step.Record.Run != "" {
		began := ""
		if s.Run != nil {
			began = "began " + stamp(s.Run.Time)
		}
		rows = append(rows, [2]string{"run", join(", ", s.Step.Record.Run, began)})
	}
	if s.Step.Record.Policy != "" {
		since := ""
		if s.Policy != nil {
			since = "in force since " + stamp(s.Policy.Time)
		}
		rows = append(rows, [2]string{"policy", s.Step.Record.Policy}, [2]string{"", since})
	}
	return printFields(w, rows)
}

// dataRows are the members of a record's data, a row each.
func dataRows(data json.RawMessage) (rows [][2]string) {
	var members map[string]json.RawMessage
	if len(data) == 0 {
		return nil
	}
	if json.Unmarshal(data, &members) != nil {
		return [][2]string{{"data", string(data)}}
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		rows = append(rows, [2]string{[]string{"data", ""}[min(len(rows), 1)], name + ": " + member(members[name])})
	}
	return rows
}

// member is a value as people read it: text, and lists of text, without quotes.
func member(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil {
		return text
	}
	var list []string
	if json.Unmarshal(value, &list) == nil && len(list) > 0 {
		return strings.Join(list, " ")
	}
	return breakable(value)
}

// breakable puts a blank behind each member and element, so that lines end there and
// not in the middle of a number.
func breakable(value json.RawMessage) string {
	out := make([]byte, 0, len(value)+8)
	quoted, escaped := false, false
	for _, c := range value {
		out = append(out, c)
		switch {
		case escaped:
			escaped = false
		case c == '"':
			quoted = !quoted
		case quoted:
			escaped = c == '\\'
		case c == ',':
			out = append(out, ' ')
		}
	}
	return string(out)
}

// approvedBy says which approval let a request in, "" if none did.
func approvedBy(s *answer.Story) string {
	if s.Scope != rules.ApprovalScope.String() || s.Kind == audit.AccessDecided {
		return ""
	}
	if s.Approval == nil {
		return "by an approval that the log does not tell of"
	}
	return join(", ", query.What(s.Approval), "record "+s.Approval.ID)
}

// mostAbout is how much of what a record is about stands in one row: three lines.
const mostAbout = 3 * 88

// wholePath is a path that other lines shorten: of keyed hashes, or a long one.
func wholePath(r *audit.Record) string {
	if !gate.Hashed(r) && len(query.What(r)) <= mostAbout {
		return ""
	}
	return r.Path
}

// printFields writes names and values; those without a value are left out.
func printFields(w io.Writer, rows [][2]string) error {
	var b strings.Builder
	width := max(min(columnsOf(w), maxColumns)-12, 40)
	for _, r := range rows {
		if r[1] != "" {
			for i, line := range wrap(query.Printable(r[1]), width) {
				fmt.Fprintf(&b, "%-11s %s\n", []string{r[0], ""}[min(i, 1)], line)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// stampMinute is a time in a table: logs are read when it is another year.
const stampMinute = "2006-01-02 15:04"

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000Z") }

// join puts between two texts what belongs there if both are given.
func join(between, a, b string) string {
	switch {
	case b == "":
		return a
	case a == "":
		return strings.TrimLeft(between, ", ") + b
	}
	return a + between + b
}

func newAuditTimeline() *cobra.Command {
	c := &cobra.Command{
		Use:   "timeline RUN",
		Short: "Tell what a run did, from its start to its end",
		Long: `Timeline tells what a run did, in order, each request with its outcome. The first column is
the time since the run began. The beginning of a run's id is enough if it is unique.
-o json is one object a line, with the outcome in done.`,
		Example: "  sallyport audit timeline 01JJX0000000000000000000R1\n  sallyport audit timeline 01JJX -o json",
		Args:    exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			asJSON, err := outputJSON(c)
			if err != nil {
				return err
			}
			return withIndex(c, func(x *index.Index) error { return timeline(c, x, args[0], asJSON) })
		},
	}
	addOutput(c)
	return c
}

func timeline(c *cobra.Command, x *index.Index, asked string, asJSON bool) error {
	run, steps, err := answer.Timeline(c.Context(), x, asked)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(c.OutOrStdout())
	width := max(columnsOf(c.OutOrStdout()), 40) - 11
	var began time.Time
	started := false
	for s, err := range steps {
		if err != nil {
			return err
		}
		started = started || s.Kind == audit.RunStart
		if asJSON {
			if err := query.Object(w, s); err != nil {
				return err
			}
			continue
		}
		if began.IsZero() {
			began = s.Time
			fmt.Fprintf(w, "run %s, from %s\n", query.Printable(run), stamp(began))
		}
		fmt.Fprintf(w, "%10.3f %s\n", s.Time.Sub(began).Seconds(), query.Fit(query.Printable(stepLine(&s)), width))
	}
	if dir, _, err := auditDirOf(c); err == nil && !started {
		if b := beginOf(c, dir); b.seq > 0 {
			fmt.Fprintf(c.ErrOrStderr(), "sallyport: this run's start is not in the log: %v\n", b)
		}
	}
	return w.Flush()
}

// stepLine is what a line of a timeline says. A refusal that came after the
// admission stands where every other does: before the request.
func stepLine(s *answer.Step) string {
	said, what := denial(&s.Record), query.What(&s.Record)
	if s.Done != nil {
		said = or(said, denial(s.Done))
		what = join(" ", what+" => "+query.Outcome(s.Done), s.Done.Error)
	}
	return join(" ", join(" ", string(s.Kind), said), what)
}

func denial(r *audit.Record) string {
	if query.Denied(r) {
		return "DENIED " + r.Reason
	}
	return ""
}

func newAuditTop() *cobra.Command {
	c := &cobra.Command{
		Use:   "top",
		Short: "Count requests by host, rule, run or credential, the most first",
		Long: `Top counts what the log tells, the most first. --by takes host, rule, run, credential, reason,
bytes (hosts by octets in both directions), sent (hosts by octets sent) or denied (hosts by
refusals). Denied are refused requests and names, and what failed after it was admitted, but not
names of a type that clients ask for beside A, as AAAA.`,
		Example: `  sallyport audit top
  sallyport audit top --by sent --since 7d
  sallyport audit top --by run -n 50 -o json`,
		Args: exactArgs(0),
	}
	type result struct {
		By   string         `json:"by"`
		Of   int            `json:"of"` // how many there are
		List []answer.Total `json:"list"`
	}
	addSpan(c, "")
	c.Flags().String("by", "host", strings.Join(answer.Orders(), ", "))
	c.Flags().IntP("number", "n", 20, "how many")
	return answerCommand(c, func(c *cobra.Command, _ []string, x *index.Index) (result, error) {
		by, _ := c.Flags().GetString("by")
		n, _ := c.Flags().GetInt("number")
		if n < 1 {
			return result{}, usage(hint(fmt.Errorf("-n %d: at least 1", n), "sallyport audit top -n 20"))
		}
		span, err := spanOf(c)
		if err != nil {
			return result{}, err
		}
		list, of, err := answer.Top(c.Context(), x, span, by, n)
		if errors.Is(err, answer.ErrOrder) {
			err = usage(hint(err, "sallyport audit top --by host"))
		}
		if err == nil && of == 0 {
			fmt.Fprintln(c.ErrOrStderr(), "sallyport: nothing was counted in that time")
		}
		return result{by, of, append([]answer.Total{}, list...)}, err
	}, func(w io.Writer, r result) error {
		rows := [][]string{{strings.ToUpper(r.By), "REQUESTS", "DENIED", "LOOK-UPS", "SENT", "RECEIVED", "LAST (UTC)"}}
		for _, t := range r.List {
			rows = append(rows, []string{
				query.Fit(query.Printable(t.Key), 34), number(t.Requests), number(t.Denied), number(t.Lookups),
				query.Size(t.Sent), query.Size(t.Received), t.Last.Format(stampMinute),
			})
		}
		if err := printTable(w, rows); err != nil {
			return err
		}
		if more := r.Of - len(r.List); more > 0 {
			fmt.Fprintf(w, "and %d more: -n %d\n", more, r.Of)
		}
		return nil
	})
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func newAuditNew() *cobra.Command {
	c := &cobra.Command{
		Use:   "new",
		Short: "List hosts and methods that were not seen before",
		Long: `New lists the hosts that were asked for since a time and never in the baseline before it, and
methods that are new at a host which is known. The baseline is all of the log before that
time, or with --baseline as much of it. Names and requests are counted together.`,
		Example: "  sallyport audit new --since 24h\n  sallyport audit new --since 2h --baseline 30d -o json",
		Args:    exactArgs(0),
	}
	addSpans(c, "")
	return answerCommand(c, func(c *cobra.Command, _ []string, x *index.Index) ([]answer.First, error) {
		span, base, err := spansOf(c)
		if err != nil {
			return nil, err
		}
		if err := tellEmpty(c, x, span, base, "every host is new"); err != nil {
			return nil, err
		}
		list, err := answer.New(c.Context(), x, span, base)
		if err == nil && len(list) == 0 {
			fmt.Fprintln(c.ErrOrStderr(), "sallyport: no host and no method is new")
		}
		return append([]answer.First{}, list...), err
	}, func(w io.Writer, list []answer.First) error {
		rows := [][]string{{"FIRST (UTC)", "NEW", "HOST", "ADMITTED", "REFUSED", "ID"}}
		for _, f := range list {
			what := "host"
			if f.Method != "" {
				what = f.Method
			}
			rows = append(rows, []string{
				f.Time.Format(stampMinute), query.Fit(query.Printable(what), 9), query.Fit(query.Printable(f.Host), 24),
				number(f.Admitted), number(f.Refused), query.Printable(f.ID),
			})
		}
		return printTable(w, rows)
	})
}

func newAuditDiff() *cobra.Command {
	return answerCommand(&cobra.Command{
		Use:   "diff RUN1 RUN2",
		Short: "Compare two runs: what they were, and what each asked for",
		Long: `Diff compares what two runs were (image, policy, limits, result) and what each asked for how
often. A line that begins with - is of the first run alone, with + of the second alone, with ~
of both, not equally often. The beginning of a run's id is enough if it is unique.`,
		Example: "  sallyport audit diff 01JJX0000000000000000000R1 01JJY0000000000000000000R2\n  sallyport audit diff 01JJX 01JJY -o json",
		Args:    exactArgs(2),
	}, func(c *cobra.Command, args []string, x *index.Index) (*answer.Comparison, error) {
		return answer.Diff(c.Context(), x, args[0], args[1])
	}, printComparison)
}

func printComparison(w io.Writer, d *answer.Comparison) error {
	var b strings.Builder
	fmt.Fprintf(&b, "- %s\n+ %s\n", query.Printable(d.A), query.Printable(d.B))
	for _, s := range d.Settings {
		one, other := query.Printable(or(s.A, "(none)")), query.Printable(or(s.B, "(none)"))
		fmt.Fprintf(&b, "%s:\n  - %s\n  + %s\n", query.Printable(s.Name), query.FitBeside(one, other, 96), query.FitBeside(other, one, 96))
	}
	const limit = 64
	lines := make([]string, len(d.Places))
	for i, p := range d.Places {
		r := audit.Record{Kind: p.Kind, Host: p.Host, Port: p.Port, Method: p.Method, Path: p.Path, QType: p.QType, Credential: p.Credential}
		lines[i] = query.Printable(fmt.Sprintf("%s %s %s", p.Kind, or(p.Reason, "-"), query.What(&r)))
	}
	for i, p := range d.Places {
		sign, times := "~", ""
		switch {
		case p.A == nil:
			sign, times = "+", fmt.Sprintf("%dx %s", p.B.Count, p.B.ID)
		case p.B == nil:
			sign, times = "-", fmt.Sprintf("%dx %s", p.A.Count, p.A.ID)
		default:
			times = fmt.Sprintf("%dx, then %dx", p.A.Count, p.B.Count)
		}
		line := query.Fit(lines[i], limit)
		for _, near := range lines[max(0, i-1):min(len(lines), i+2)] { // they are sorted
			if near != lines[i] && query.Fit(near, limit) == line {
				line = query.FitBeside(lines[i], near, limit)
				break
			}
		}
		fmt.Fprintf(&b, "%s %s (%s)\n", sign, line, query.Printable(times))
	}
	fmt.Fprintf(&b, "%s, %d %s not\n", plural.Of(len(d.Places), "1 place differs", fmt.Sprintf("%d places differ", len(d.Places))), d.Same, plural.Of(d.Same, "does", "do"))
	_, err := io.WriteString(w, b.String())
	return err
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// tellEmpty says that there is nothing in a span, or nothing to compare it with.
func tellEmpty(c *cobra.Command, x *index.Index, span, base answer.Span, so string) error {
	none, err := answer.Unasked(c.Context(), x, span)
	if err != nil {
		return err
	}
	if none { // of a copy, the last day was long ago
		last, err := answer.Last(c.Context(), x)
		if err == nil && !last.IsZero() {
			_, err = fmt.Fprintf(c.ErrOrStderr(), "sallyport: the log tells of no host %s; its last record is of %s: --since\n", spelled(span), last.UTC().Format(time.DateTime))
		}
		return err
	}
	if none, err = answer.Unasked(c.Context(), x, base); err == nil && none {
		_, err = fmt.Fprintf(c.ErrOrStderr(), "sallyport: the log tells of no host %s to compare with: %s\n", spelled(base), so)
	}
	return err
}

// spelled is a span as people read it.
func spelled(s answer.Span) string {
	until := "up to " + s.Until.UTC().Format(time.DateTime)
	if !s.From.After(time.Unix(0, 0)) {
		return until
	}
	return "from " + s.From.UTC().Format(time.DateTime) + " " + until
}

func newAuditAnomalies() *cobra.Command {
	c := &cobra.Command{
		Use:   "anomalies",
		Short: "Point at what is odd, with the reason and the records",
		Long: `Anomalies points at what a reviewer may want to look at, against the time before: domains
that were never asked for, uploads larger than ever, names and paths that look random, bursts
of refusals, requests as regular as a clock, leaked placeholders, clients that reject the
gateway's certificate, packets that went for another way out, gaps. Each is a hint, not a verdict.`,
		Example: "  sallyport audit anomalies\n  sallyport audit anomalies --since 7d --baseline 90d -o json",
		Args:    exactArgs(0),
	}
	addSpans(c, "30d")
	return answerCommand(c, func(c *cobra.Command, _ []string, x *index.Index) ([]answer.Anomaly, error) {
		span, base, err := spansOf(c)
		if err != nil {
			return nil, err
		}
		if err := tellEmpty(c, x, span, base, "domains are not judged, and of uploads each of a MiB an hour is told"); err != nil {
			return nil, err
		}
		list, err := answer.Anomalies(c.Context(), x, span, base)
		return append([]answer.Anomaly{}, list...), err
	}, func(w io.Writer, list []answer.Anomaly) error {
		var b strings.Builder
		for _, a := range list {
			fmt.Fprintf(&b, "%s  %s\n", a.First.UTC().Format("2006-01-02 15:04:05Z"), a.Kind)
			for _, line := range wrap(query.Printable(a.Why), 96) {
				fmt.Fprintf(&b, "    %s\n", line)
			}
			for _, line := range wrap("ids: "+query.Printable(strings.Join(a.IDs, " ")), 96) {
				fmt.Fprintf(&b, "    %s\n", line)
			}
		}
		fmt.Fprintln(&b, plural.Count(len(list), "anomaly"))
		_, err := io.WriteString(w, b.String())
		return err
	})
}

// wrap breaks text at blanks, and a word that is longer than a line where the
// line ends.
func wrap(text string, limit int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > limit {
			lines, line = append(lines, line), ""
		}
		for utf8.RuneCountInString(word) > limit {
			head := string([]rune(word)[:limit])
			lines, word = append(lines, head), word[len(head):]
		}
		line = join(" ", line, word)
	}
	return append(lines, line)
}

func newAuditHash() *cobra.Command {
	var key string
	c := &cobra.Command{
		Use:   "hash VALUE",
		Short: "Find the records in which a value stands as a keyed hash",
		Long: `Hash makes the keyed hash of a value and prints the records that hold it: a query string as a
whole, or what one of its parameters held; a path, or a segment of one, a method, and the name of
a host in which a placeholder was leaked; a value that was too long for its field. What a parameter
held is found as it reads and as it was sent, in percent-encoding. It needs the key of the hash,
which is beside the key that signs the log. A VALUE of - is read from the standard input, so that
no other process sees it.`,
		Example: "  sallyport audit hash 'token=abc&page=2'\n  sallyport audit hash abc\n  sallyport audit hash SEGMENT\n  sallyport audit hash --key ./audit-key/key - < value",
		Args:    exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			dir, inst, err := auditDirOf(c)
			if err != nil {
				return err
			}
			if key == "" {
				key = inst.auditKey()
			}
			h, err := audit.LoadHasher(key)
			if err != nil {
				return usage(hint(err, "sallyport audit hash --key FILE VALUE, where FILE.hmac is the key of the hash"))
			}
			value := args[0]
			if value == "-" {
				if value, err = readValue(c.InOrStdin()); err != nil {
					return err
				}
			}
			if value == "" {
				return usage(hint(errors.New("no value: nothing is hashed"), "printf %%s VALUE | sallyport audit hash -"))
			}
			sum := h.Hash(value)
			fmt.Fprintf(c.ErrOrStderr(), "sallyport: looking for %s\n", sum)
			sums := []string{sum}
			if read, err := url.QueryUnescape(value); err == nil && read != value {
				sums = append(sums, h.Hash(read))
			}
			if strings.HasPrefix(value, "/") {
				sums = append(sums, gate.HashPath(value, h.Hash))
			}
			_, err = indexed(c, dir, func(x *index.Index) error {
				return printRecords(c, dir, query.Filter{}, answer.Holding(c.Context(), x, sums...))
			})
			return err
		},
	}
	c.Flags().StringVar(&key, "key", "", "the log's key file; default: the instance's")
	addOutput(c)
	return c
}

// readValue reads a value without the newline that ends it.
func readValue(r io.Reader) (string, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxConfig+1))
	if err != nil {
		return "", fmt.Errorf("reading the value: %w", err)
	}
	if len(text) > maxConfig {
		return "", usage(errors.New("the value is longer than 1 MiB"))
	}
	return strings.TrimSuffix(string(text), "\n"), nil
}
