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
	"sallyport/rules/plural"
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

	// OwnKey counts requests that the new policy adds a credential to, and would refuse if
	// they had carried a key of the caller's own in its place.
	OwnKey int `json:"assumed_without_own_key"`
	// Holes are where the log lacks records.
	Holes []query.Hole `json:"holes,omitempty"`

	at    map[string]int                  // of Changes and Undecided, by what they say
	kinds map[target.Host][]rules.Request // what headers and queries tell apart
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
		kinds: map[target.Host][]rules.Request{},
	}
	decisions := query.AnyOf(query.Where("kind", string(audit.Admit)), query.Where("kind", string(audit.Refuse)), query.Where("kind", string(audit.DNS)))
	r.Holes, err = readLog(c, dir, decisions, func(recs iter.Seq2[audit.Record, error]) error {
		return r.read(recs, before.Unproven(), after.Unproven())
	})
	if err != nil {
		return false, unreadLog(err, "%s OLD NEW --replay DIR, where DIR holds segments of a log", c.CommandPath())
	}
	for _, list := range [][]replayChange{r.Changes, r.Undecided} {
		slices.SortStableFunc(list, func(a, b replayChange) int { return b.Count - a.Count })
	}
	same = len(r.Changes)+len(r.Undecided) == 0
	if asJSON {
		return same, printJSON(c.OutOrStdout(), r)
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
		if err := r.put(&rec, req, before, after); err != nil {
			return err
		}
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

// put asks both policies one question, in each of the ways in which the record may have
// been asked.
func (r *replay) put(rec *audit.Record, req rules.Request, before, after *rules.Policy) error {
	r.Replayed++
	if old := decideAgain(before, req); (old.Verdict != rules.Deny) != (rec.Verdict != rules.Deny.String()) {
		r.Otherwise++
	}
	ways, err := r.ways(rec, req, before, after)
	if err != nil {
		return err
	}
	kinds := map[string]bool{}
	for i := range ways {
		kinds[ways[i].kind] = true
	}
	first := ways[0] // the one that is likeliest
	switch {
	case len(kinds) > 1:
		r.add("undecided", rec, first.old, first.now, whyUndecided(ways))
	case first.kind == "":
		r.Same++
	default:
		r.add(first.kind, rec, first.old, first.now, "")
	}
	if d := first.now; rec.Credential == "" && d.Verdict != rules.Deny && d.Credential != "" && d.Credential != first.old.Credential {
		r.OwnKey++
	}
	return nil
}

// way is how a record may have been asked, and what comes of it.
type way struct {
	secure   bool
	kind     string
	old, now rules.Decision
}

// ways puts a record in each way in which it may have been asked: with the headers and
// queries that rules tell apart, and in TLS or not. What the record says leaves some
// out: that it had no query, that it was HTTP/2, the credential that was added to it,
// and what the old policy said of it, if that was in force.
func (r *replay) ways(rec *audit.Record, req rules.Request, before, after *rules.Policy) ([]way, error) {
	if req.Question != rules.Fetch {
		old, now := decideAgain(before, req), decideAgain(after, req)
		return []way{{false, replayKind(&old, &now), old, now}}, nil
	}
	kinds, err := r.kindsAt(req.Endpoint.Host, before, after)
	if err != nil {
		return nil, err
	}
	var all, fit []way
	for i := range kinds {
		if rec.Query == "" && kinds[i].Query != "" {
			continue
		}
		for _, secure := range []bool{req.Secure, !req.Secure} {
			if !secure && inTLS(rec) {
				continue
			}
			one := req
			one.Header, one.Query, one.Secure = kinds[i].Header, kinds[i].Query, secure
			w := way{secure: secure, old: decideAgain(before, one), now: decideAgain(after, one)}
			w.kind = replayKind(&w.old, &w.now)
			if all = append(all, w); rec.Policy == before.Digest() && sameDecision(rec, &w.old) {
				fit = append(fit, w)
			}
		}
	}
	if len(fit) > 0 {
		return fit, nil
	}
	return all, nil
}

// inTLS reports records of which it is known that the request was in TLS: HTTP/2 is
// spoken nowhere else, and no credential is added outside of it.
func inTLS(rec *audit.Record) bool {
	return rec.Proto == "h2" || rec.Credential != "" && rec.Verdict != rules.Deny.String()
}

// sameDecision reports whether a record is of a decision.
func sameDecision(rec *audit.Record, d *rules.Decision) bool {
	credential := d.Credential
	if d.Verdict == rules.Deny || rec.Verdict == rules.Deny.String() {
		credential = rec.Credential // a refusal names one that it is about
	}
	return rec.Verdict == d.Verdict.String() && rec.Reason == string(d.Reason) && rec.Rule == d.Rule && rec.WouldDeny == string(d.Observed) &&
		rec.Credential == credential
}

// Why a record is undecided.
const (
	unknownFields = "rules about this host ask for headers or a query, which a record does not hold"
	unknownTLS    = "a record does not say whether the request was in TLS"
)

// whyUndecided says on what it depends which of several ways a record was asked in.
func whyUndecided(ways []way) string {
	var in, out []string
	for i := range ways {
		list := &out
		if ways[i].secure {
			list = &in
		}
		if !slices.Contains(*list, ways[i].kind) {
			*list = append(*list, ways[i].kind)
		}
	}
	switch {
	case len(in) < 2 && len(out) < 2:
		return unknownTLS
	case len(in) == 0 || len(out) == 0 || slices.Equal(in, out):
		return unknownFields
	default:
		return unknownFields + ", and " + unknownTLS
	}
}

func (r *replay) kindsAt(h target.Host, before, after *rules.Policy) ([]rules.Request, error) {
	if kinds, known := r.kinds[h]; known {
		return kinds, nil
	}
	kinds, err := prove.Kinds(before, after, h)
	if err != nil {
		return nil, fmt.Errorf("rules about %s: %w", h, err)
	}
	r.kinds[h] = kinds
	return kinds, nil
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
	printWrapped(w, "", fmt.Sprintf("%s: %d the same, %d newly allowed, %d newly denied, %d with another credential, %d undecided",
		plural.Count(r.Replayed, "recorded request"), r.Same, counts["newly_allowed"], counts["newly_denied"], counts["credential"], counts["undecided"]))
	if r.Otherwise > 0 {
		printWrapped(w, "", fmt.Sprintf("%d of them %s decided in another way than %s decides now: another policy was in force, or an approval.", r.Otherwise, plural.Of(r.Otherwise, "was", "were"), r.Old.File))
	}
	whys := map[string]int{}
	for _, x := range r.Undecided {
		whys[x.Why] += x.Count
	}
	for _, why := range slices.Sorted(maps.Keys(whys)) {
		printWrapped(w, "", fmt.Sprintf("%d undecided: %s.", whys[why], why))
	}
	if r.OwnKey > 0 {
		printWrapped(w, "", fmt.Sprintf("To %d of them %s adds a credential: it would refuse those that carried a key of the caller's own in its place, "+
			"which a record does not say.", r.OwnKey, r.New.File))
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
