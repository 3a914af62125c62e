package gate_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"sallyport/audit"
	"sallyport/rules"
	"sallyport/rules/gate"
)

// under puts a house under rules and limits of its whole run.
func under(t *testing.T, h *house, totals rules.Totals, log rules.LogLevel) {
	t.Helper()
	list := h.id.Policy.Rules()
	for i := range list {
		list[i].Log = log
	}
	p, err := rules.Compile(rules.Source{Digest: "sha256:aa", Rules: list, Totals: totals})
	if err != nil {
		t.Fatal(err)
	}
	h.id.Policy = p
}

// TestTotalsAreExact: 64 clients are admitted as often as the floor says for all
// of a run, and the refusals name its scope, not a rule.
func TestTotalsAreExact(t *testing.T) {
	h := newHouse(t)
	under(t, h, rules.Totals{Floor: rules.Limits{Requests: rules.Rate{N: 50, Period: 3600}}, Run: rules.Limits{Concurrent: 64}}, rules.LogMetadata)
	req := request(t, rules.Fetch, "api.test")
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 2 {
				p, err := h.Admit(t.Context(), req)
				if err != nil {
					if d := deniedBy(t, err); d.Reason != rules.Limit || d.Decision.Scope != "floor" || d.Decision.Rule != "" || d.Wait <= 0 {
						t.Errorf("%+v", d)
					}
					continue
				}
				admitted.Add(1)
				if err := p.Done(t.Context(), gate.Outcome{Status: 200}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if admitted.Load() != 50 {
		t.Errorf("%d admitted", admitted.Load())
	}
	recs := h.log.all()
	for i := range recs {
		recs[i].Time = h.now
	}
	again := newHouse(t)
	under(t, again, rules.Totals{Floor: rules.Limits{Requests: rules.Rate{N: 50, Period: 3600}}}, rules.LogMetadata)
	if err := again.Recount(each(recs, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Admit(t.Context(), req); deniedBy(t, err).Reason != rules.Limit {
		t.Errorf("after a restart: %v", err)
	}
}

// TestLogNone: what is admitted is recorded without path and query, what is
// refused in full.
func TestLogNone(t *testing.T) {
	for _, level := range []rules.LogLevel{rules.LogNone, rules.LogMetadata} {
		h := newHouse(t)
		under(t, h, rules.Totals{}, level)
		req := request(t, rules.Fetch, "api.test")
		req.Query = "q=1"
		p, err := h.Admit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Done(t.Context(), gate.Outcome{Status: 200}); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Admit(t.Context(), request(t, rules.Fetch, "other.test")); err == nil {
			t.Fatal("admitted")
		}
		recs := h.log.all()
		if len(recs) != 3 {
			t.Fatalf("%+v", recs)
		}
		for _, r := range recs {
			shown := r.Path != ""
			if want := level == rules.LogMetadata || r.Kind == audit.Refuse; shown != want {
				t.Errorf("level %d, %s: path %q", level, r.Kind, r.Path)
			}
			if r.Kind != audit.Refuse && (r.Query != "") != (level == rules.LogMetadata) || r.Host == "" || r.Method == "" || r.Reason == "" {
				t.Errorf("level %d: %+v", level, r)
			}
		}
	}
}
