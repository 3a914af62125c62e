package main

import (
	"encoding/json"
	"time"

	"github.com/oklog/ulid/v2"

	"sallyport/audit"
	"sallyport/audit/query"
)

// A run may have begun before this process did, and may be detached before its
// end is recorded: then the log tells what was refused to it.

// clockStep is how far the clock may have been set back since a run began.
const clockStep = time.Minute

// refused returns what was refused to a run, the last of it and how much in all.
func (g *gateway) refused(run string, last int) (denialsOut, error) {
	id, err := ulid.ParseStrict(run)
	if err != nil {
		return denialsOut{}, nil // no run has such an id
	}
	began, until := ulid.Time(id.Time()), g.first
	list, n := g.recent.recent(run, last)
	attached := g.attached(run)
	if !attached {
		// What was remembered is forgotten, or was never known.
		list, n, until = nil, 0, ^uint64(0)
	}
	out := denialsOut{Count: n, Denials: list}
	if attached && began.After(g.since.Add(clockStep)) {
		return out, nil
	}
	before, err := g.refusedBefore(run, began.Add(-clockStep), until)
	if err != nil {
		return denialsOut{}, err
	}
	out.Count += before.Count
	out.Denials = newest(append(before.Denials, list...), max(last, 0))
	out.More = before.More
	return out, nil
}

// attached reports whether a cell of a run is in force.
func (g *gateway) attached(run string) bool {
	for _, c := range g.table.Cells() {
		if c.Run == run {
			return true
		}
	}
	return false
}

// refusedBefore counts in the log what was refused to a run, in records before a
// number. What was refused while nothing could be recorded was counted by the
// process that refused it, which has forgotten it by now.
func (g *gateway) refusedBefore(run string, since time.Time, until uint64) (denialsOut, error) {
	var out denialsOut
	err := g.recordsBefore(query.Where("run", run), since, until, func(rec *audit.Record) {
		if refusal(rec) {
			out.Count++
			out.Denials = newest(append(out.Denials, deniedOf(rec)), maxDenials)
		}
	})
	if err != nil {
		return out, err
	}
	err = g.recordsBefore(query.Where("kind", string(audit.Gap)), since, until, func(rec *audit.Record) {
		// The one that this process began with tells of the one before: of a run
		// that began later it tells nothing.
		out.More = out.More || !rec.Time.Before(since.Add(clockStep)) && uncounted(rec)
	})
	return out, err
}

// recordsBefore calls f with the records of the log that match, before a number.
func (g *gateway) recordsBefore(match query.Filter, since time.Time, until uint64, f func(*audit.Record)) error {
	match.Since = since
	for rec, err := range query.Records(g.inst.auditDir(), match) {
		if err != nil {
			return err
		}
		if rec.Seq >= until {
			break
		}
		f(&rec)
	}
	return nil
}

// uncounted reports whether refusals of that time are in no record.
func uncounted(gap *audit.Record) bool {
	var data struct{ Cause string }
	err := json.Unmarshal(gap.Data, &data)
	return err != nil || data.Cause != "anchor"
}
