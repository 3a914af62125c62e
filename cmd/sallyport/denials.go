package main

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/audit"
	"sallyport/proxy"
	"sallyport/rules"
	"sallyport/rules/gate"
)

// maxDenials is how many refusals a run is told of; the log has them all.
const maxDenials = 100

// recorder writes records and remembers the last refusals of each run, so
// that a sandbox and its launcher can be told why.
type recorder struct {
	log     gate.Recorder
	metrics *metrics
	n       atomic.Uint64 // records written since this process began

	mu     sync.Mutex // guards the rest; both are by run
	last   map[string][]proxy.Denied
	counts map[string]uint64
}

func newRecorder(log gate.Recorder, m *metrics) *recorder {
	return &recorder{log: log, metrics: m, last: map[string][]proxy.Denied{}, counts: map[string]uint64{}}
}

// Append implements [gate.Recorder].
func (r *recorder) Append(ctx context.Context, rec *audit.Record) error {
	if err := r.log.Append(ctx, rec); err != nil {
		r.unrecorded(rec)
		return err
	}
	r.note(rec)
	return nil
}

// AppendAll implements [gate.AllRecorder].
func (r *recorder) AppendAll(ctx context.Context, recs []*audit.Record) error {
	if err := gate.AppendAll(ctx, r.log, recs); err != nil {
		for _, rec := range recs {
			r.unrecorded(rec)
		}
		return err
	}
	for _, rec := range recs {
		r.note(rec)
	}
	return nil
}

// note counts and remembers what was written.
func (r *recorder) note(rec *audit.Record) {
	r.n.Add(1)
	r.metrics.count(rec)
	if refusal(rec) {
		r.remember(rec)
	}
}

// refusal reports whether a run is told of a record.
func refusal(rec *audit.Record) bool {
	return rec.Verdict == rules.Deny.String() && rec.Run != "" && rec.Kind != audit.Bypass && !reflex(rec)
}

// unrecorded remembers what was refused because it could not be recorded: the
// log has a gap there, so nobody else will tell the run.
func (r *recorder) unrecorded(rec *audit.Record) {
	asked := rec.Kind == audit.Admit || rec.Kind == audit.Refuse || rec.Kind == audit.DNS
	if !asked || rec.Run == "" || reflex(rec) {
		return
	}
	lost := *rec
	lost.Reason, lost.Rule, lost.ID, lost.Ref = string(rules.AuditUnavailable), "", "", ""
	r.remember(&lost)
}

// reflex reports a refused query that is no refusal to whoever asked: clients
// ask for further types beside A for every name, and a denied name that is
// answered all the same is followed by a connection, whose refusal counts.
func reflex(rec *audit.Record) bool {
	if rec.Kind != audit.DNS {
		return false
	}
	switch rec.QType {
	case "AAAA", "HTTPS", "SVCB", "SRV":
		return true
	case "A":
		_, err := netip.ParseAddr(rec.Answer)
		return err == nil
	default:
		return false
	}
}

// deniedOf is a record as a run is told of it.
func deniedOf(rec *audit.Record) proxy.Denied {
	d := proxy.Denied{
		Time: rec.Time, ID: rec.ID, Reason: rec.Reason, Rule: rec.Rule, Method: rec.Method,
		Host: rec.Host, Port: rec.Port, Path: rec.Path,
	}
	if d.Time.IsZero() { // not written, or not yet
		d.Time = time.Now().UTC()
	}
	if rec.Ref != "" {
		d.ID = rec.Ref
	}
	if rec.QType != "" {
		d.Method = "DNS " + rec.QType
	}
	return d
}

func (r *recorder) remember(rec *audit.Record) {
	d := deniedOf(rec)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[rec.Run]++
	r.last[rec.Run] = newest(append(r.last[rec.Run], d), maxDenials)
}

// newest keeps the last n of a list.
func newest(list []proxy.Denied, n int) []proxy.Denied {
	if len(list) > n {
		list = append(list[:0], list[len(list)-n:]...)
	}
	return list
}

// recent returns up to n refusals of a run, oldest first, and how many there were.
func (r *recorder) recent(run string, n int) (list []proxy.Denied, count uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.last[run]
	if n >= 0 && len(all) > n {
		all = all[len(all)-n:]
	}
	return append([]proxy.Denied{}, all...), r.counts[run]
}

// forget drops what is remembered of a run.
func (r *recorder) forget(run string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, run)
	delete(r.counts, run)
}

// written returns how many records this process has written.
func (r *recorder) written() uint64 { return r.n.Load() }
