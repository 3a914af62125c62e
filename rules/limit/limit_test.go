package limit_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sallyport/rules"
	"sallyport/rules/limit"
)

var noon = time.Date(2027, 1, 31, 12, 0, 30, 0, time.UTC)

func rule(l *rules.Limits) limit.Claim { return limit.Claim{Key: "rule", Limits: l} }

func reached(tb testing.TB, err error) *limit.ReachedError {
	tb.Helper()
	var r *limit.ReachedError
	if !errors.As(err, &r) {
		tb.Fatalf("%v is not *limit.ReachedError", err)
	}
	return r
}

// TestExactUnderConcurrency: 64 clients get as many as there are, and not one more.
func TestExactUnderConcurrency(t *testing.T) {
	const clients, each, most = 64, 50, 1000
	var c limit.Counter
	l := &rules.Limits{Requests: rules.Rate{N: most, Period: 60}, Concurrent: 16}
	var got, busy, open, peak atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for range each {
				h, err := c.Take("run", noon, rule(l))
				if err != nil {
					if reached(t, err).Wait == 5*time.Second {
						busy.Add(1)
					}
					continue
				}
				got.Add(1)
				n := open.Add(1)
				for p := peak.Load(); n > p && !peak.CompareAndSwap(p, n); p = peak.Load() {
				}
				open.Add(-1)
				h.End(noon, 0, 0)
			}
		})
	}
	wg.Wait()
	if peak.Load() > 16 || got.Load() > most || got.Load()+busy.Load() < most {
		t.Errorf("%d admitted, %d at once, %d found all taken", got.Load(), peak.Load(), busy.Load())
	}
	for got.Load() < most { // those that found all taken left some over
		if _, err := c.Take("run", noon, rule(&rules.Limits{Requests: l.Requests})); err != nil {
			t.Fatalf("after %d: %v", got.Load(), err)
		}
		got.Add(1)
	}
	if _, err := c.Take("run", noon, rule(l)); reached(t, err).Wait != time.Minute+time.Second {
		t.Errorf("%v", err)
	}
}

func TestLimits(t *testing.T) {
	var c limit.Counter
	l := &rules.Limits{Requests: rules.Rate{N: 2, Period: 60}, Sent: rules.Rate{N: 100, Period: 3600}, Concurrent: 2}
	take := func(run, rule string, at time.Time) (*limit.Hold, error) {
		return c.Take(run, at, limit.Claim{Key: rule, Limits: l})
	}
	a, err := take("r", "x", noon)
	if err != nil {
		t.Fatal(err)
	}
	b, err := take("r", "x", noon)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := take("r", "x", noon); reached(t, err).Limit != "2 at once" {
		t.Error(err)
	}
	if _, err := take("other", "x", noon); err != nil {
		t.Errorf("another run: %v", err)
	}
	if _, err := take("r", "y", noon); err != nil {
		t.Errorf("another rule: %v", err)
	}
	a.End(noon, 60, 0)
	b.Undo()
	if b, err = take("r", "x", noon); err != nil {
		t.Errorf("what was taken back is free: %v", err)
	}
	b.End(noon, 39, 0)
	if _, err := take("r", "x", noon); reached(t, err).Limit != "2 requests in 60 seconds" || reached(t, err).Wait != 61*time.Second {
		t.Error(err, reached(t, err).Wait)
	}
	next := noon.Add(61 * time.Second)
	h, err := take("r", "x", next)
	if err != nil {
		t.Fatalf("a minute later: %v", err)
	}
	h.End(next, 1, 0)
	if _, err := take("r", "x", next); reached(t, err).Limit != "100 octets sent in 3600 seconds" || reached(t, err).Wait < 59*time.Minute {
		t.Errorf("%+v", reached(t, err))
	}
	if _, err := take("r", "x", next.Add(-time.Hour)); err == nil {
		t.Error("a clock that goes back brings a period back")
	}
	c.Forget("r")
	if _, err := take("r", "x", next); err != nil {
		t.Error(err)
	}
	var none *limit.Hold
	none.End(noon, 1, 1)
	none.Undo()
	if h, err := c.Take("r", noon, limit.Claim{Key: "x"}); h != nil || err != nil {
		t.Errorf("no limits: %v, %v", h, err)
	}
}

// TestNoPeriodHasMore: whatever the rhythm of requests, no period of its length
// admits more than a limit, round the turn of a minute neither.
func TestNoPeriodHasMore(t *testing.T) {
	for _, r := range []rules.Rate{{N: 5, Period: 60}, {N: 7, Period: 3600}, {N: 3, Period: 86400}} {
		rapid.Check(t, func(t *rapid.T) {
			var c limit.Counter
			now := noon
			var admitted []time.Time
			for range 60 {
				gap := rapid.Int64Range(0, r.Period*int64(time.Second)/4).Draw(t, "gap")
				now = now.Add(time.Duration(gap))
				h, err := c.Take("run", now, rule(&rules.Limits{Requests: r}))
				if err == nil {
					h.End(now, 0, 0)
					admitted = append(admitted, now)
					continue
				}
				var full *limit.ReachedError
				if !errors.As(err, &full) {
					t.Fatal(err)
				}
				// After the wait that was said, and not before, there is room.
				if _, err := c.Take("other", now, rule(&rules.Limits{Requests: r})); err != nil {
					t.Fatal(err)
				}
				c.Forget("other")
				now = now.Add(full.Wait)
				h, err = c.Take("run", now, rule(&rules.Limits{Requests: r}))
				if err != nil {
					t.Fatalf("after the wait of %v: %v", full.Wait, err)
				}
				h.End(now, 0, 0)
				admitted = append(admitted, now)
			}
			period := time.Duration(r.Period) * time.Second
			for i := range admitted {
				if j := i + int(r.N); j < len(admitted) && admitted[j].Sub(admitted[i]) < period {
					t.Fatalf("%d within %v: %v … %v", r.N+1, period, admitted[i], admitted[j])
				}
			}
		})
	}
}

// TestAllOrNothing: what one claim refuses is counted under no other.
func TestAllOrNothing(t *testing.T) {
	var c limit.Counter
	one := limit.Claim{Key: "rule", Limits: &rules.Limits{Requests: rules.Rate{N: 5, Period: 60}, Concurrent: 5}}
	all := limit.Claim{Key: "all of floor", Limits: &rules.Limits{Requests: rules.Rate{N: 2, Period: 60}}, Scope: "floor"}
	for range 2 {
		if _, err := c.Take("r", noon, one, all); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		if _, err := c.Take("r", noon, one, all); reached(t, err).Scope != "floor" ||
			err.Error() != "the limit of 2 requests in 60 seconds, which the floor sets for all of a run, is reached" {
			t.Fatal(err)
		}
	}
	for range 3 {
		if _, err := c.Take("r", noon, one); err != nil {
			t.Fatalf("what was refused was counted: %v", err)
		}
	}
}

// TestRecount: what came before a restart counts, if its period is not over.
func TestRecount(t *testing.T) {
	var c limit.Counter
	l := rule(&rules.Limits{Requests: rules.Rate{N: 2, Period: 60}, Received: rules.Rate{N: 10, Period: 86400}})
	c.Recount("r", noon.Add(-62*time.Second), 2, 0, 9, l)
	c.Recount("r", noon, 1, 0, 0, l)
	if _, err := c.Take("r", noon, l); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Take("r", noon, l); reached(t, err).Limit != "2 requests in 60 seconds" {
		t.Error(err)
	}
	c.Recount("r", noon, 0, 0, 1, l)
	if _, err := c.Take("r", noon.Add(62*time.Second), l); reached(t, err).Limit != "10 octets received in 86400 seconds" {
		t.Error(err)
	}
}
