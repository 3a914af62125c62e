package limit_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/rules"
	"sallyport/rules/limit"
)

var noon = time.Date(2027, 1, 31, 12, 0, 30, 0, time.UTC)

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
				h, err := c.Take("run", "rule", l, noon)
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
		if _, err := c.Take("run", "rule", &rules.Limits{Requests: l.Requests}, noon); err != nil {
			t.Fatalf("after %d: %v", got.Load(), err)
		}
		got.Add(1)
	}
	if _, err := c.Take("run", "rule", l, noon); reached(t, err).Wait != 30*time.Second {
		t.Errorf("%v", err)
	}
}

func TestLimits(t *testing.T) {
	var c limit.Counter
	l := &rules.Limits{Requests: rules.Rate{N: 2, Period: 60}, Sent: rules.Rate{N: 100, Period: 3600}, Concurrent: 2}
	take := func(run, rule string, at time.Time) (*limit.Hold, error) { return c.Take(run, rule, l, at) }
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
	if _, err := take("r", "x", noon); reached(t, err).Limit != "2 requests in 60 seconds" || reached(t, err).Wait != 30*time.Second {
		t.Error(err)
	}
	next := noon.Add(30 * time.Second)
	h, err := take("r", "x", next)
	if err != nil {
		t.Fatalf("a new minute: %v", err)
	}
	h.End(next, 1, 0)
	if _, err := take("r", "x", next); reached(t, err).Limit != "100 octets sent in 3600 seconds" || reached(t, err).Wait != 59*time.Minute {
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
	if h, err := c.Take("r", "x", nil, noon); h != nil || err != nil {
		t.Errorf("no limits: %v, %v", h, err)
	}
}

// TestRecount: what came before a restart counts, if its period is not over.
func TestRecount(t *testing.T) {
	var c limit.Counter
	l := &rules.Limits{Requests: rules.Rate{N: 2, Period: 60}, Received: rules.Rate{N: 10, Period: 86400}}
	c.Recount("r", "x", l, noon.Add(-time.Minute), 2, 0, 9)
	c.Recount("r", "x", l, noon, 1, 0, 0)
	if _, err := c.Take("r", "x", l, noon); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Take("r", "x", l, noon); reached(t, err).Limit != "2 requests in 60 seconds" {
		t.Error(err)
	}
	c.Recount("r", "x", l, noon, 0, 0, 1)
	if _, err := c.Take("r", "x", l, noon.Add(time.Minute)); reached(t, err).Limit != "10 octets received in 86400 seconds" {
		t.Error(err)
	}
}
