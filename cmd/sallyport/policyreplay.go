package main

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/audit/query"
	"sallyport/rules"
	"sallyport/rules/policyfile"
	"sallyport/rules/prove"
	"sallyport/rules/target"
)

// replay is what two policies say about what a log recorded.
type replay struct {
	Log      string   `json:"log"`
	Old      policyID `json:"old"`
	New      policyID `json:"new"`
	Replayed int      `json:"replayed"`
	Same     int      `json:"same"`
	// Changes are what both decide in different ways, the most frequent first.
	Changes []replayChange `json:"changes"`
	// Undecided depends on what a record does not hold.
	Undecided []replayChange `json:"undecided"`
	// Beside counts, by reason, refusals that no policy decided.
	Beside map[string]int `json:"beside"`
	// Unreadable counts, by cause, records that cannot be asked again.
	Unreadable map[string]int `json:"unreadable"`
	// Otherwise counts records that were decided in another way than the old
	// policy decides now: they were made under another one.
	Otherwise int `json:"otherwise"`

	at     map[string]int       // of Changes and Undecided, by what they say
	unseen map[target.Host]bool // hosts at which headers or a query decide
}

// replayChange is one question, with every record that asked it.
type replayChange struct {
	Kind  string    `json:"kind"` // newly_allowed newly_denied credential undecided
	Asked string    `json:"asked"`
	Count int       `json:"count"`
	IDs   []string  `json:"ids"` // at most 1000
	Old   judgement `json:"old"`
	New   judgement `json:"new"`
	Why   string    `json:"why,omitempty"` // it is undecided
}

const (
	maxReplayIDs   = 1000
	maxReplayKinds = 100_000 // different questions that change, before it is given up
	shownIDs       = 3
)

// replayDiff puts a log to two policies, and reports whether they decide all of it
// in the same way.
func replayDiff(c *cobra.Command, dir string, before, after *policyfile.PolicyFile, asJSON bool) (same bool, err error) {
	args := c.Flags().Args()
	r := &replay{
		Log: dir, Old: policyID{args[0], before.Name, before.Unproven().Digest()}, New: policyID{args[1], after.Name, after.Unproven().Digest()},
		Changes: []replayChange{}, Undecided: []replayChange{}, Beside: map[string]int{}, Unreadable: map[string]int{}, at: map[string]int{},
		unseen: map[target.Host]bool{},
	}
	if err := r.read(query.Records(dir, query.Filter{}), before.Unproven(), after.Unproven()); err != nil {
		return false, usage(hint(err, "%s OLD NEW --replay DIR, where DIR holds segments of a log", c.CommandPath()))
	}
	for _, list := range [][]replayChange{r.Changes, r.Undecided} {
		slices.SortStableFunc(list, func(a, b replayChange) int { return b.Count - a.Count })
	}
	same = len(r.Changes)+len(r.Undecided) == 0
	if asJSON {
		return same, printSafe(c.OutOrStdout(), r)
	}
	printReplay(c.OutOrStdout(), r)
	return same, nil
}

// read puts every record that tells of a decision to both policies.
func (r *replay) read(recs iter.Seq2[audit.Record, error], before, after *rules.Policy) error {
	for rec, err := range recs {
		if _, bad := errors.AsType[*query.LineError](err); bad {
			r.Unreadable["a line is no record"]++
			continue
		}
		if err != nil {
			return err
		}
		if rec.Kind != audit.Admit && rec.Kind != audit.Refuse && rec.Kind != audit.DNS {
			continue
		}
		if rec.Kind == audit.Refuse && !decidedByPolicy(rules.Reason(rec.Reason)) {
			r.Beside[rec.Reason]++
			continue
		}
		req, err := requestOf(&rec)
		if err != nil {
			r.Unreadable[err.Error()]++
			continue
		}
		r.put(&rec, req, before, after)
		if len(r.at) > maxReplayKinds {
			return fmt.Errorf("more than %d different requests change; narrow the policies down first", maxReplayKinds)
		}
	}
	return nil
}

// decidedByPolicy reports the reasons of refusals that a policy gives by itself.
func decidedByPolicy(r rules.Reason) bool {
	switch r {
	case rules.Allowed, rules.HostNotAllowed, rules.AddressNotAllowed, rules.PortNotAllowed, rules.ProtocolNotAllowed, rules.MethodNotAllowed,
		rules.PathNotAllowed, rules.PathAmbiguous, rules.QueryNotAllowed, rules.QueryAmbiguous, rules.HeaderNotAllowed,
		rules.DeniedByRule, rules.RuleExpired, rules.TypeNotAllowed, rules.CredentialNeedsTLS:
		return true
	default:
		return false
	}
}

// put asks both policies one question, in TLS and without where a record could
// be either.
func (r *replay) put(rec *audit.Record, req rules.Request, before, after *rules.Policy) {
	r.Replayed++
	old, now := decideAgain(before, req), decideAgain(after, req)
	if (old.Verdict != rules.Deny) != (rec.Verdict != rules.Deny.String()) {
		r.Otherwise++
	}
	kind := replayKind(&old, &now)
	if req.Question == rules.Fetch && r.unseenAt(req.Endpoint.Host, before, after) {
		r.add("undecided", rec, old, now, "rules about this host ask for headers or a query, which a record does not hold")
		return
	}
	if req.Question == rules.Fetch {
		other := req
		other.Secure = !req.Secure
		if was, is := decideAgain(before, other), decideAgain(after, other); replayKind(&was, &is) != kind {
			r.add("undecided", rec, old, now, "a record does not say whether the request was in TLS")
			return
		}
	}
	if kind == "" {
		r.Same++
		return
	}
	r.add(kind, rec, old, now, "")
}

func (r *replay) unseenAt(h target.Host, before, after *rules.Policy) bool {
	unseen, known := r.unseen[h]
	if !known {
		unseen = prove.Unseen(before, after, h)
		r.unseen[h] = unseen
	}
	return unseen
}

func (r *replay) add(kind string, rec *audit.Record, old, now rules.Decision, why string) {
	x := replayChange{Kind: kind, Asked: asked(rec), Old: judgementOf(old), New: judgementOf(now), Why: why}
	list := &r.Changes
	if why != "" {
		list = &r.Undecided
	}
	key := fmt.Sprintf("%s %s %v %v", kind, x.Asked, x.Old, x.New)
	i, known := r.at[key]
	if !known {
		i = len(*list)
		r.at[key] = i
		*list = append(*list, x)
	}
	at := &(*list)[i]
	if at.Count++; len(at.IDs) < maxReplayIDs {
		at.IDs = append(at.IDs, rec.ID)
	}
}

// decideAgain asks what the gateway asked. A stream that would be terminated to
// be told why is denied.
func decideAgain(p *rules.Policy, req rules.Request) rules.Decision {
	d := p.Follow(req)
	if d.Explain {
		d.Verdict, d.Explain = rules.Deny, false
	}
	return d
}

// replayKind says in what two decisions differ, "" for nothing that counts.
func replayKind(old, now *rules.Decision) string {
	was, is := old.Verdict != rules.Deny, now.Verdict != rules.Deny
	switch {
	case !was && is:
		return "newly_allowed"
	case was && !is:
		return "newly_denied"
	case is && old.Credential != now.Credential:
		return "credential"
	default:
		return ""
	}
}

func printReplay(w io.Writer, r *replay) {
	counts := map[string]int{}
	for _, x := range append(slices.Clone(r.Changes), r.Undecided...) {
		counts[x.Kind] += x.Count
	}
	for _, h := range []struct{ kind, text string }{
		{"newly_allowed", "Newly allowed"},
		{"newly_denied", "Newly denied"},
		{"credential", "With another credential"},
		{"undecided", "Undecided"},
	} {
		if counts[h.kind] == 0 {
			continue
		}
		fmt.Fprintln(w, h.text)
		for _, x := range append(slices.Clone(r.Changes), r.Undecided...) {
			if x.Kind == h.kind {
				printReplayChange(w, &x)
			}
		}
	}
	fmt.Fprintf(w, "%d recorded requests: %d the same, %d newly allowed, %d newly denied, %d with another credential, %d undecided\n",
		r.Replayed, r.Same, counts["newly_allowed"], counts["newly_denied"], counts["credential"], counts["undecided"])
	if r.Otherwise > 0 {
		printWrapped(w, "", fmt.Sprintf("%d of them were decided in another way than %s decides now: another policy was in force.", r.Otherwise, r.Old.File))
	}
	printCounts(w, "Not asked again, since no policy refused them", r.Beside)
	printCounts(w, "Not asked again, since their records do not hold enough", r.Unreadable)
	printWrapped(w, "", "A record holds no headers, no query and no body, and addresses are not judged again.")
}

func printReplayChange(w io.Writer, x *replayChange) {
	printWrapped(w, "  ", query.Printable(fmt.Sprintf("%d × %s", x.Count, x.Asked)))
	if x.Why != "" {
		printWrapped(w, "    ", x.Why)
	}
	printWrapped(w, "    ", "was "+x.Old.String())
	printWrapped(w, "    ", "is  "+x.New.String())
	ids := strings.Join(x.IDs[:min(len(x.IDs), shownIDs)], ", ")
	if more := x.Count - shownIDs; more > 0 {
		ids += fmt.Sprintf(" and %d more", more)
	}
	printWrapped(w, "    ", query.Printable("records "+ids))
}

func printCounts(w io.Writer, text string, counts map[string]int) {
	if len(counts) == 0 {
		return
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", query.Printable(k), counts[k]))
	}
	printWrapped(w, "", text+": "+strings.Join(parts, ", ")+".")
}
