package gate_test

import (
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/limit/ledger"
)

// limited gives the rule about api.test limits.
func limited(t *testing.T, h *house, l rules.Limits) {
	t.Helper()
	list := h.id.Policy.Rules()
	for i := range list {
		if list[i].ID == "api" {
			list[i].Limits = l
		}
	}
	p, err := rules.Compile(rules.Source{Digest: "sha256:aa", Rules: list})
	if err != nil {
		t.Fatal(err)
	}
	h.id.Policy = p
}

func deniedBy(tb testing.TB, err error) *gate.DeniedError {
	tb.Helper()
	var d *gate.DeniedError
	if !errors.As(err, &d) {
		tb.Fatalf("%v is no refusal", err)
	}
	return d
}

// TestLimitIsExact: 64 clients are admitted as often as the limit says; the
// others are refused, recorded, and told when to come again.
func TestLimitIsExact(t *testing.T) {
	h := newHouse(t)
	h.now = time.Unix(1_700_000_010, 0)
	limited(t, h, rules.Limits{Requests: rules.Rate{N: 100, Period: 60}})
	req := request(t, rules.Fetch, "api.test")
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 5 {
				p, err := h.Admit(t.Context(), req)
				if err != nil {
					if d := deniedBy(t, err); d.Reason != rules.Limit || d.Wait != 61*time.Second || d.Decision.Rule != "api" {
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
	kinds := map[audit.Kind]int{}
	for _, r := range h.log.all() {
		kinds[r.Kind]++
		if r.Kind == audit.Refuse && (r.Reason != "limit" || r.Verdict != "deny" || r.Error != "the limit of 100 requests in 60 seconds is reached") {
			t.Fatalf("%+v", r)
		}
	}
	if admitted.Load() != 100 || kinds[audit.Admit] != 100 || kinds[audit.Refuse] != 220 {
		t.Errorf("%d admitted, %v recorded", admitted.Load(), kinds)
	}
}

// restarted returns a house that counts again what the log of another says, and that.
func restarted(t *testing.T, h *house, l rules.Limits) (again *house, before []audit.Record) {
	t.Helper()
	before = h.log.all()
	for i := range before {
		before[i].Time = h.now
	}
	again = newHouse(t)
	limited(t, again, l)
	if err := again.Recount(each(before, nil)); err != nil {
		t.Fatal(err)
	}
	return again, before
}

// TestLimitSurvivesARestart: a new gate counts what the log says.
func TestLimitSurvivesARestart(t *testing.T) {
	h := newHouse(t)
	l := rules.Limits{Requests: rules.Rate{N: 3, Period: 3600}, Received: rules.Rate{N: 1000, Period: 86400}}
	limited(t, h, l)
	req := request(t, rules.Fetch, "api.test")
	for range 2 {
		p, err := h.Admit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Done(t.Context(), gate.Outcome{Received: 400}); err != nil {
			t.Fatal(err)
		}
	}
	again, before := restarted(t, h, l)
	p, err := again.Admit(t.Context(), req)
	if err != nil {
		t.Fatalf("the third: %v", err)
	}
	if err := p.Done(t.Context(), gate.Outcome{Received: 200}); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Admit(t.Context(), req); deniedBy(t, err).Reason != rules.Limit {
		t.Error(err)
	}
	again.now = again.now.Add(time.Hour)
	if _, err := again.Admit(t.Context(), req); deniedBy(t, err).Reason != rules.Limit {
		t.Errorf("what was received today: %v", err)
	}
	again.Forget("run")
	if _, err := again.Admit(t.Context(), req); err != nil {
		t.Error(err)
	}
	if err := newHouse(t).Recount(each(before, errDisk)); !errors.Is(err, errDisk) {
		t.Errorf("a log that cannot be read: %v", err)
	}
}

func each(recs []audit.Record, err error) iter.Seq2[audit.Record, error] {
	return func(yield func(audit.Record, error) bool) {
		for _, r := range recs {
			if !yield(r, nil) {
				return
			}
		}
		if err != nil {
			yield(audit.Record{}, err)
		}
	}
}

// TestWhatIsNotRecordedIsNotCounted: the log was full, so nothing was done.
func TestWhatIsNotRecordedIsNotCounted(t *testing.T) {
	h := newHouse(t)
	limited(t, h, rules.Limits{Requests: rules.Rate{N: 1, Period: 60}, Concurrent: 1})
	req := request(t, rules.Fetch, "api.test")
	h.log.failBefore = true
	if _, err := h.Admit(t.Context(), req); deniedBy(t, err).Reason != rules.AuditUnavailable {
		t.Fatal(err)
	}
	h.log.failBefore = false
	if _, err := h.Admit(t.Context(), req); err != nil {
		t.Error(err)
	}
}

// TestConcurrentIsExact: of 64 clients as many are admitted at once as the limit says,
// and as many again when those have ended.
func TestConcurrentIsExact(t *testing.T) {
	h := newHouse(t)
	limited(t, h, rules.Limits{Concurrent: 16})
	req := request(t, rules.Fetch, "api.test")
	for range 3 {
		passes := make(chan gate.Pass, 64)
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				p, err := h.Admit(t.Context(), req)
				if err == nil {
					passes <- p
				} else if d := deniedBy(t, err); d.Reason != rules.Limit || d.Wait != 5*time.Second || d.Decision.Rule != "api" {
					t.Errorf("%+v", d)
				}
			})
		}
		wg.Wait()
		if len(passes) != 16 {
			t.Fatalf("%d at once", len(passes))
		}
		for range 16 {
			if err := (<-passes).Done(t.Context(), gate.Outcome{Status: 200}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestUnknownOctetsCountInFull: what a gateway had admitted when it was killed may have
// carried all that its limits let through; what has a record of its end counts as that
// says.
func TestUnknownOctetsCountInFull(t *testing.T) {
	for _, ended := range []bool{true, false} {
		h := newHouse(t)
		l := rules.Limits{Requests: rules.Rate{N: 10, Period: 3600}, Received: rules.Rate{N: 1000, Period: 3600}}
		limited(t, h, l)
		req := request(t, rules.Fetch, "api.test")
		p, err := h.Admit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := p.Receive(900); n != 900 || err != nil {
			t.Fatal(n, err)
		}
		if ended {
			if err := p.Done(t.Context(), gate.Outcome{Received: 900}); err != nil {
				t.Fatal(err)
			}
		}
		again, _ := restarted(t, h, l)
		p, err = again.Admit(t.Context(), req)
		if !ended {
			if d := deniedBy(t, err); d.Reason != rules.Limit || d.Wait < time.Hour || d.Decision.Rule != "api" {
				t.Errorf("%+v", d)
			}
			again.now = again.now.Add(2 * time.Hour)
			if _, err := again.Admit(t.Context(), req); err != nil {
				t.Errorf("when the hour is over: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		n, err := p.Receive(900)
		if d := deniedBy(t, err); n != 100 || d.Reason != rules.Limit || d.Wait < time.Hour {
			t.Errorf("%d more, %+v", n, d)
		}
	}
}

// TestWhatCannotBeSetAsideIsRefused: where it cannot be written down how much crosses
// under a limit of octets, nothing does; what no such limit is about goes on.
func TestWhatCannotBeSetAsideIsRefused(t *testing.T) {
	h := newHouse(t)
	aside, err := ledger.Open(t.TempDir() + "/aside")
	if err != nil {
		t.Fatal(err)
	}
	h.recordAside(h.log, aside)
	limited(t, h, rules.Limits{Received: rules.Rate{N: 1 << 30, Period: 86400}})
	req := request(t, rules.Fetch, "api.test")
	p, err := h.Admit(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := p.Receive(100); n != 100 || err != nil {
		t.Fatal(n, err)
	}
	if err := aside.Close(); err != nil {
		t.Fatal(err)
	}
	n, err := p.Receive(1 << 20)
	if wantDenied(t, err, rules.AuditUnavailable); n != 0 {
		t.Errorf("%d crossed", n)
	}
	_, err = h.Admit(t.Context(), req)
	wantDenied(t, err, rules.AuditUnavailable)
	if _, err := h.Admit(t.Context(), request(t, rules.Connect, "raw.test:443")); err != nil {
		t.Errorf("without limits of octets: %v", err)
	}
	wantRecords(t, h, "admit allowed inspect api", "refuse audit_unavailable deny api", "admit allowed tunnel raw")
}

// TestAReloadKeepsTheCounts: what was used before a policy changed is used after it, and
// what is open goes on under the new limits, if it is counted.
func TestAReloadKeepsTheCounts(t *testing.T) {
	h := newHouse(t)
	req := request(t, rules.Fetch, "api.test")
	limited(t, h, rules.Limits{Requests: rules.Rate{N: 100, Period: 60}, Received: rules.Rate{N: 1 << 20, Period: 3600}})
	p, err := h.Admit(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := p.Receive(500); n != 500 || err != nil {
		t.Fatal(n, err)
	}
	limited(t, h, rules.Limits{Requests: rules.Rate{N: 1, Period: 86400}, Received: rules.Rate{N: 600, Period: 86400}})
	if !h.Recheck(p) {
		t.Error("what is counted is cut")
	}
	n, err := p.Receive(500)
	if wantDenied(t, err, rules.Limit); n != 100 {
		t.Errorf("%d of 100 that are left", n)
	}
	_, err = h.Admit(t.Context(), req)
	if d := wantDenied(t, err, rules.Limit); d.Error() != "denied: limit: the limit of 1 request in 86400 seconds is reached" {
		t.Error(d)
	}
	limited(t, h, rules.Limits{Sent: rules.Rate{N: 1 << 30, Period: 86400}})
	if h.Recheck(p) {
		t.Error("what nobody counts goes on under a limit")
	}
}
