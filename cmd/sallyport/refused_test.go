package main

import (
	"os"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"sallyport/audit"
)

// killed leaves the log of a gateway that was killed after it had written records.
func (st *stage) killed(recs ...audit.Record) {
	st.t.Helper()
	l, err := audit.Open(audit.Config{Dir: st.path("before/audit"), KeyFile: st.path("before/key/key"), Now: time.Now})
	st.must(err)
	for i := range recs {
		st.must(l.Append(st.t.Context(), &recs[i]))
	}
	_, err = l.Checkpoint(st.t.Context())
	st.must(err)
	for from, to := range map[string]string{"before/audit": st.inst.auditDir(), "before/key": st.inst.state("audit-key")} {
		st.must(os.RemoveAll(to))
		st.must(os.CopyFS(to, os.DirFS(st.path(from))))
	}
	st.must(os.Chmod(st.inst.state("audit-key", "key"), 0o600))
	st.must(os.Chmod(st.inst.state("audit-key", "key.hmac"), 0o600))
	st.must(l.Close())
}

func runID(at time.Time) string {
	return ulid.MustNew(ulid.Timestamp(at), ulid.DefaultEntropy()).String()
}

// TestRefusalsAreCountedAcrossARestart: what the gateway before refused is in the
// log, and counts for a run that outlives it; that there may be more, which it
// could not record before it was killed, is told.
func TestRefusalsAreCountedAcrossARestart(t *testing.T) {
	old := runID(time.Now())
	st := newStageWith(t, func(st *stage) {
		deny := audit.Record{Kind: audit.Refuse, Run: old, Verdict: "deny", Reason: "host_not_allowed", Host: "a.example"}
		other, reflex := deny, deny
		other.Run = runID(time.Now())
		reflex.Kind, reflex.QType = audit.DNS, "AAAA"
		st.killed(deny, other, reflex, deny, audit.Record{Kind: audit.Done, Run: old, Verdict: "inspect"})
	})
	st.write("p.yaml", policyText(askedPolicy))
	const wanted = "GET https://docs.example.com/guide"
	want := func(when, run string, count uint64, more bool, listed int) {
		t.Helper()
		out, err := st.gateway.refused(run, 10)
		if err != nil || out.Count != count || out.More != more || len(out.Denials) != listed {
			t.Errorf("%s: %d refusals (%d listed), more %v, %v; want %d (%d), %v", when, out.Count, len(out.Denials), out.More, err, count, listed, more)
		}
	}
	want("before it is attached", old, 2, true, 2)
	st.attach("aaaaaaaa", old, "p.yaml")
	id := st.refused("aaaaaaaa", wanted)
	want("after one more", old, 3, true, 3)
	if out, err := st.gateway.refused(old, 1); err != nil || len(out.Denials) != 1 || out.Denials[0].ID != id {
		t.Errorf("the newest is %+v, %v; want %s", out.Denials, err, id)
	}
	young := runID(time.Now())
	st.attach("bbbbbbbb", young, "p.yaml")
	st.refused("bbbbbbbb", wanted)
	want("a run that began later", young, 1, false, 1)
	for _, cell := range []string{"aaaaaaaa", "bbbbbbbb"} {
		st.gateway.detach(t.Context(), cell)
	}
	want("detached", old, 3, true, 3)
	want("a run that began later, detached", young, 1, false, 1)
	want("no run", "x", 0, false, 0)
}
