package answer

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/audit/index"
	"sallyport/audit/query"
)

// Anomaly is something that a reviewer may want to look at, with the reason in
// a sentence. It is a hint, not a verdict.
type Anomaly struct {
	Kind  string    `json:"kind"`
	Why   string    `json:"why"`
	Host  string    `json:"host,omitempty"`
	Run   string    `json:"run,omitempty"`
	First time.Time `json:"first"`
	IDs   []string  `json:"ids"` // of at most ten records, the first ones
}

// The kinds of anomaly.
const (
	NewDomain   = "new_domain"
	Upload      = "upload"
	RandomName  = "random_name"
	RandomPath  = "random_path"
	DenyBurst   = "deny_burst"
	Beacon      = "beacon"
	Leak        = "placeholder_leak"
	RejectedCA  = "client_rejected_ca"
	BypassTried = "bypass"
	LogGap      = "gap"
)

// maxIDs is how many records an anomaly names.
const maxIDs = 10

// Anomalies returns what is odd in a span, against a baseline before it, by
// time.
func Anomalies(ctx context.Context, x *index.Index, span, baseline Span) ([]Anomaly, error) {
	h := hunt{ctx: ctx, x: x, span: span, baseline: baseline}
	for _, look := range []func() error{h.domains, h.uploads, h.random, h.bursts, h.beacons, h.marked} {
		if err := look(); err != nil {
			return nil, fmt.Errorf("looking for anomalies: %w", err)
		}
	}
	slices.SortStableFunc(h.found, func(a, b Anomaly) int { return a.First.Compare(b.First) })
	return h.found, nil
}

// hunt is one search.
type hunt struct {
	ctx            context.Context //nolint:containedctx // lives as long as one call
	x              *index.Index
	span, baseline Span
	found          []Anomaly
}

func (h *hunt) add(kind, host, run string, first int64, ids []string, format string, args ...any) {
	if len(ids) > maxIDs {
		ids = ids[:maxIDs]
	}
	h.found = append(h.found, Anomaly{
		Kind: kind, Why: fmt.Sprintf(format, args...), Host: host, Run: run,
		First: time.Unix(0, first).UTC(), IDs: ids,
	})
}

func (h *hunt) each(question string, args []any, into []any, use func() error) error {
	return each(h.ctx, h.x, question, args, into, use)
}

// each calls use with the scanned columns of every row of a question.
func each(ctx context.Context, x *index.Index, question string, args []any, into []any, use func() error) error {
	rows, err := x.DB().QueryContext(ctx, question, args...)
	if err != nil {
		return fmt.Errorf("asking the index: %w", err)
	}
	return scan(rows, into, use)
}

// scan calls use with the scanned columns of every row.
func scan(rows *sql.Rows, into []any, use func() error) error {
	defer rows.Close() //nolint:errcheck // it was only read
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		if err := use(); err != nil {
			return err
		}
	}
	return rows.Err()
}

// domains finds registrable domains that were never asked for before.
func (h *hunt) domains() error {
	old, args := h.baseline.facts()
	known := map[string]bool{}
	var host string
	err := h.each("SELECT DISTINCT host FROM "+old+" WHERE host <> ''", args, []any{&host}, func() error {
		known[domainOf(host)] = true
		return nil
	})
	if err != nil || len(known) == 0 {
		return err // without a past everything would be new
	}
	firsts, err := New(h.ctx, h.x, h.span, h.baseline)
	if err != nil {
		return err
	}
	addresses := map[string][]First{} // by run
	for _, f := range firsts {
		d := domainOf(f.Host)
		if f.Method != "" || known[d] {
			continue
		}
		known[d] = true
		if _, err := netip.ParseAddr(d); err == nil {
			addresses[f.Run] = append(addresses[f.Run], f)
			continue
		}
		h.newPlace(f, "no name below "+d+" is")
	}
	for _, run := range slices.Sorted(maps.Keys(addresses)) {
		h.newAddresses(run, addresses[run])
	}
	return nil
}

// newPlace tells of a host that was never asked for.
func (h *hunt) newPlace(f First, before string) {
	h.add(NewDomain, f.Host, f.Run, f.Time.UnixNano(), []string{f.ID}, "%s was asked for, and %s, for the first time; %s in the log of the %s before.",
		f.Host, verdictOf(f.Admitted, f.Refused), before, span(h.baseline.Until.Sub(h.baseline.From)))
}

// shownAddresses is how many addresses of a run are named.
const shownAddresses = 3

// newAddresses tells of addresses that a run asked for, and nobody before, at once: one that
// looks for machines asks for hundreds.
func (h *hunt) newAddresses(run string, list []First) {
	if len(list) == 1 {
		h.newPlace(list[0], "it is not")
		return
	}
	var ids, names []string
	var admitted, refused int64
	for i, f := range list { // they are in the order of their times
		if i < maxIDs {
			ids = append(ids, f.ID)
		}
		if i < shownAddresses {
			names = append(names, f.Host)
		}
		admitted, refused = admitted+f.Admitted, refused+f.Refused
	}
	which := strings.Join(names, ", ")
	if len(list) > shownAddresses {
		which += ", …"
	}
	asked := who(run, "") + " asked for"
	if run == "" {
		asked = "Somebody asked for"
	}
	h.add(NewDomain, "", run, list[0].Time.UnixNano(), ids, "%s %d addresses (%s), and was %s, for the first time; none of them is in the log of the %s before.",
		asked, len(list), which, verdictOf(admitted, refused), span(h.baseline.Until.Sub(h.baseline.From)))
}

// verdictOf says what became of requests.
func verdictOf(admitted, refused int64) string {
	switch {
	case admitted > 0 && refused > 0:
		return fmt.Sprintf("admitted %d times and refused %d times", admitted, refused)
	case refused > 0:
		return "refused"
	}
	return "admitted"
}

// An upload stands out if an hour's is a MiB at least and four times the
// largest hour of the past.
const (
	leastUpload  = 1 << 20
	uploadFactor = 4
)

func (h *hunt) uploads() error {
	old, args := h.baseline.facts()
	now, nowArgs := h.span.facts()
	var host, ids string
	var hour, sent, most, first int64
	return h.each(`WITH past AS MATERIALIZED (SELECT host, max(sent) AS most FROM
			(SELECT host, hour, sum(sent) AS sent FROM `+old+` WHERE host <> '' AND kind = 'done' GROUP BY host, hour) GROUP BY host),
		here AS (SELECT host, hour, sum(sent) AS sent, min(first) AS first FROM `+now+`
			WHERE host <> '' AND kind = 'done' GROUP BY host, hour)
		SELECT here.host, hour, sent, ifnull(most, 0), first, (SELECT group_concat(id) FROM (SELECT id FROM records r
			WHERE r.host = here.host AND r.host <> '' AND r.kind = 'done' AND r.time >= here.hour * 3600000000000
			AND r.time < (here.hour + 1) * 3600000000000 ORDER BY r.sent DESC LIMIT 10))
		FROM here LEFT JOIN past ON past.host = here.host
		WHERE sent >= ? AND sent >= ? * ifnull(most, 0) ORDER BY first`,
		slices.Concat(args, nowArgs, []any{leastUpload, uploadFactor}),
		[]any{&host, &hour, &sent, &most, &first, &ids}, func() error {
			past := "nothing was sent there before"
			if most > 0 {
				past = fmt.Sprintf("no hour before had more than %s", size(most))
			}
			h.add(Upload, host, "", first, list(ids), "%s were sent to %s in the hour from %s; %s.",
				size(sent), host, time.Unix(hour*3600, 0).UTC().Format("2006-01-02 15:04"), past)
			return nil
		})
}

// burstOf refusals within burstIn make a burst.
const (
	burstOf = 20
	burstIn = time.Minute
)

// burst is what is known of the refusals of a run, or a cell.
type burst struct {
	times []int64 // of the last minute
	ids   []string
	told  int64 // end of the burst that was told; 0 for none

	who         string
	found       int   // where hunt.found has it
	count       int   // of all its refusals
	most        int   // within a minute
	first, last int64 // times
}

// goesOn counts a refusal in the burst that was told, if it is still going on.
func (b *burst) goesOn(at int64) bool {
	if b.told == 0 || at-b.told > int64(burstIn) {
		return false
	}
	b.count++
	b.last, b.most = at, max(b.most, len(b.times))
	if len(b.times) >= burstOf {
		b.told = at
	}
	return true
}

// String is the sentence about it.
func (b *burst) String() string {
	in := "within a minute"
	if took := time.Duration(b.last - b.first); took > burstIn {
		in = fmt.Sprintf("in %v, up to %d times within a minute", took.Round(time.Second), b.most)
	}
	return fmt.Sprintf("%s was refused %d times %s: somebody tries doors, or a tool retries blindly.", b.who, b.count, in)
}

// bursts finds runs, or cells, that were refused again and again. How often is
// known when all was read. That stub resolvers ask for more beside an address, and are
// told that there is none, is no door that was tried.
func (h *hunt) bursts() error {
	open := map[string]*burst{}
	var all []burst
	var run, cell, id string
	var at int64
	rare, args := h.rare(isDenied + " AND NOT " + byHabit)
	err := h.each("SELECT run, cell, id, time FROM "+rare+" ORDER BY seq", args, []any{&run, &cell, &id, &at}, func() error {
		b := open[run+" "+cell]
		if b == nil {
			b = &burst{who: who(run, cell)}
			open[run+" "+cell] = b
		}
		b.times, b.ids = append(b.times, at), append(b.ids, id)
		for at-b.times[0] > int64(burstIn) {
			b.times, b.ids = b.times[1:], b.ids[1:]
		}
		if b.goesOn(at) || len(b.times) < burstOf {
			return nil
		}
		if b.count > 0 { // an earlier one
			all = append(all, *b)
		}
		b.told, b.first, b.last = at, b.times[0], at
		b.found, b.count, b.most = len(h.found), len(b.times), len(b.times)
		h.add(DenyBurst, "", run, b.first, slices.Clone(b.ids), "%s", "")
		return nil
	})
	for _, b := range open {
		if b.count > 0 {
			all = append(all, *b)
		}
	}
	for _, b := range all {
		h.found[b.found].Why = b.String()
	}
	return err
}

// rare is a table expression, with its arguments, of the records of the span
// whose shapes are of a kind that few are: the shapes of the span's hours are
// looked through first, and then their records.
func (h *hunt) rare(condition string) (expr string, args []any) {
	from, until := h.span.From.UnixNano(), h.span.Until.UnixNano()
	return `(SELECT DISTINCT shape FROM counts WHERE hour BETWEEN ? AND ?) here
		CROSS JOIN shapes ON shapes.shape = here.shape CROSS JOIN entries ON entries.shape = here.shape
		WHERE (` + condition + `) AND time >= ? AND time < ?`,
		[]any{index.HourOf(from), index.HourOf(until), from, until}
}

// long is a table expression of the records with a long path, in the order of their
// time: few are, and have an index of their own.
const long = "entries INDEXED BY entries_long CROSS JOIN shapes ON shapes.shape = entries.shape"

// marked finds what the gateway itself gave a name to.
func (h *hunt) marked() error {
	var kind, reason, run, cell, host, credential, fault, data, id, ref string
	var at int64
	leaks := map[string]int{} // where found has those of a request: its own record tells of one, and its credential's
	rare, args := h.rare(`kind IN ('bypass', 'gap') OR reason IN ('placeholder_leak', 'client_rejected_ca')`)
	return h.each("SELECT kind, reason, run, cell, host, credential, error, data, id, ref, time FROM "+rare+" ORDER BY seq", args,
		[]any{&kind, &reason, &run, &cell, &host, &credential, &fault, &data, &id, &ref, &at}, func() error {
			ids := []string{id}
			switch {
			case reason == "placeholder_leak":
				request := or(ref, id)
				if i, told := leaks[request]; told {
					h.found[i].IDs = append(h.found[i].IDs, id)
					return nil
				}
				leaks[request] = len(h.found)
				h.add(Leak, host, run, at, ids, "%s sent the placeholder of %s where it does not belong, to %s: "+
					"something read it and sent it on.", who(run, cell), or(credential, "a credential"), or(host, "an unnamed host"))
			case reason == "client_rejected_ca":
				h.add(RejectedCA, host, run, at, ids, "A client of %s would not trust the gateway's certificate for %s: "+
					"it pins its own, or was not told of ours.", who(run, cell), or(host, "a host"))
			case kind == "bypass":
				h.add(BypassTried, host, run, at, ids, "%s sent packets for another way out; %s.",
					who(run, cell), query.What(&audit.Record{Kind: audit.Bypass, Data: []byte(data)}))
			default:
				h.add(LogGap, "", run, at, ids, "Records are missing here, or may be: %s.", or(fault, data))
			}
			return nil
		})
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func who(run, cell string) string {
	switch {
	case run != "":
		return "Run " + run
	case cell != "":
		return "Cell " + cell
	}
	return "An unknown cell"
}

func list(ids string) []string { return strings.Split(ids, ",") }
