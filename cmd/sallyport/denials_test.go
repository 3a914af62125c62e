package main

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"sallyport/audit"
	"sallyport/launcher"
)

// fullLog takes records until its disk is full.
type fullLog struct{ full bool }

func (l *fullLog) Append(context.Context, *audit.Record) error {
	if l.full {
		return syscall.ENOSPC
	}
	return nil
}

// TestRunIsToldWhatCouldNotBeRecorded: what is refused because it cannot be
// recorded is in no record, so the run's result is all that tells of it. What
// was over, and what belongs to no run, is not counted.
func TestRunIsToldWhatCouldNotBeRecorded(t *testing.T) {
	var log fullLog
	r := newRecorder(&log, newMetrics(func() int { return 0 }, func() error { return nil }))
	admit := func() *audit.Record {
		return &audit.Record{Kind: audit.Admit, Run: "r", Verdict: "inspect", Reason: "allowed", Rule: "x", Host: "a.example", Port: 443, Method: "GET", Path: "/p"}
	}
	if err := r.Append(t.Context(), admit()); err != nil {
		t.Fatal(err)
	}
	if list, n := r.recent("r", -1); n != 0 {
		t.Fatalf("an admission counts as refused: %v", list)
	}
	log.full = true
	for _, rec := range []*audit.Record{
		admit(),
		{Kind: audit.Refuse, Run: "r", Verdict: "deny", Reason: "host_not_allowed", Host: "b.example"},
		{Kind: audit.DNS, Run: "r", Host: "c.example", QType: "AAAA", Verdict: "inspect"}, // A is asked for as well
		{Kind: audit.Done, Run: "r", Ref: "x"},
		{Kind: audit.Refuse, Verdict: "deny"},
	} {
		if err := r.Append(t.Context(), rec); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("Append(%s) = %v, want ENOSPC", rec.Kind, err)
		}
	}
	list, n := r.recent("r", -1)
	if n != 2 || list[0].Reason != "audit_unavailable" || list[0].Host != "a.example" || list[0].Rule != "" || list[0].Time.IsZero() ||
		list[1].Reason != "audit_unavailable" || list[1].Host != "b.example" {
		t.Errorf("the run is told of %d refusals: %+v", n, list)
	}
}

// TestRunSaysWhereItsRefusalsAre: what could not be recorded is in no record, and the
// run's timeline has the gap.
func TestRunSaysWhereItsRefusalsAre(t *testing.T) {
	lost, kept := launcher.Denial{Reason: "audit_unavailable"}, launcher.Denial{Reason: "host_not_allowed", Record: "01JJX0000000000000000000H0"}
	for _, tt := range []struct {
		denials []launcher.Denial
		want    string
	}{
		{nil, ""},
		{[]launcher.Denial{kept}, "sallyport: 1 request was refused: sallyport audit query --verdict deny --run RUN\n"},
		{[]launcher.Denial{lost, kept}, "sallyport: 2 requests were refused: sallyport audit query --verdict deny --run RUN\n"},
		{[]launcher.Denial{lost, lost}, "sallyport: 2 requests were refused: sallyport audit timeline RUN\n"},
	} {
		var b strings.Builder
		summarize(&b, instance{defaultInstance}, &launcher.Result{Run: "RUN", Denied: len(tt.denials), Denials: tt.denials}, false)
		if b.String() != tt.want {
			t.Errorf("%v: %q, want %q", tt.denials, b.String(), tt.want)
		}
	}
}
