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
				h, err := c.Take("run", noon, 0, rule(l))
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
		h, err := c.Take("run", noon, 0, rule(l))
		if err != nil {
			t.Fatalf("after %d: %v", got.Load(), err)
		}
		h.End(noon, 0, 0)
		got.Add(1)
	}
	if _, err := c.Take("run", noon, 0, rule(l)); reached(t, err).Wait != time.Minute+time.Second {
		t.Errorf("%v", err)
	}
}

func TestLimits(t *testing.T) {
	var c limit.Counter
	l := &rules.Limits{Requests: rules.Rate{N: 2, Period: 60}, Sent: rules.Rate{N: 100, Period: 3600}, Concurrent: 2}
	take := func(run, rule string, at time.Time) (*limit.Hold, error) {
		return c.Take(run, at, 0, limit.Claim{Key: rule, Limits: l})
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
	if h, err := c.Take("r", noon, 0, limit.Claim{Key: "x"}); h != nil || err != nil {
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
				h, err := c.Take("run", now, 0, rule(&rules.Limits{Requests: r}))
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
				if _, err := c.Take("other", now, 0, rule(&rules.Limits{Requests: r})); err != nil {
					t.Fatal(err)
				}
				c.Forget("other")
				now = now.Add(full.Wait)
				h, err = c.Take("run", now, 0, rule(&rules.Limits{Requests: r}))
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
		if _, err := c.Take("r", noon, 0, one, all); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		if _, err := c.Take("r", noon, 0, one, all); reached(t, err).Scope != "floor" ||
			err.Error() != "the limit of 2 requests in 60 seconds, which the floor sets for all of a run, is reached" {
			t.Fatal(err)
		}
	}
	for range 3 {
		if _, err := c.Take("r", noon, 0, one); err != nil {
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
	if _, err := c.Take("r", noon, 0, l); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Take("r", noon, 0, l); reached(t, err).Limit != "2 requests in 60 seconds" {
		t.Error(err)
	}
	c.Recount("r", noon, 0, 0, 1, l)
	if _, err := c.Take("r", noon.Add(62*time.Second), 0, l); reached(t, err).Limit != "10 octets received in 86400 seconds" {
		t.Error(err)
	}
}

// octets limits both directions.
func octets(n int64) *rules.Limits {
	return &rules.Limits{Sent: rules.Rate{N: n, Period: 86400}, Received: rules.Rate{N: n, Period: 86400}}
}

// TestOctetsAreExact: 64 clients carry as many octets as there are, whatever the
// pieces and under however many limits, and not one more; what they had set aside is
// there for the next.
func TestOctetsAreExact(t *testing.T) {
	const most = 3_000_001
	var c limit.Counter
	all := limit.Claim{Key: "all of floor", Limits: octets(most), Scope: "floor"}
	for name, cross := range map[string]func(*limit.Hold, time.Time, int) (int, error){"sent": (*limit.Hold).Send, "received": (*limit.Hold).Receive} {
		t.Run(name, func(t *testing.T) {
			var total atomic.Int64
			var wg sync.WaitGroup
			for i := range 64 {
				wg.Go(func() {
					h, err := c.Take("run "+name, noon, 0, rule(octets(most+1)), all)
					if err != nil {
						return // the others had taken all
					}
					own := int64(0)
					for j := 0; err == nil && own < 100_000; j++ {
						n := 0
						n, err = cross(h, noon, 1+(i*7919+j*104729)%9000)
						own += int64(n)
						total.Add(int64(n))
					}
					if err != nil && (reached(t, err).Scope != "floor" || reached(t, err).Wait <= 0) {
						t.Errorf("%+v", err)
					}
					if name == "sent" {
						h.End(noon, own, 0) // which is not counted again
					} else {
						h.End(noon, 0, own)
					}
				})
			}
			wg.Wait()
			h, err := c.Take("run "+name, noon, 0, all)
			if rest := int64(most) - total.Load(); rest < 0 {
				t.Fatalf("%d octets crossed, over %d", total.Load(), most)
			} else if rest > 0 {
				if err != nil {
					t.Fatalf("%d are left: %v", rest, err)
				}
				if n, err := cross(h, noon, most); int64(n) != rest || reached(t, err).Wait < 23*time.Hour {
					t.Errorf("%d of %d that were left, %v", n, rest, err)
				}
				h.End(noon, 0, 0)
			}
			if _, err := c.Take("run "+name, noon, 0, all); err == nil {
				t.Error("there is room after all")
			}
		})
	}
}

// TestDeclaredOctets: of 32 that declare 2,000 octets at once, two get into 4 KiB; what
// one of them does not send, the next may.
func TestDeclaredOctets(t *testing.T) {
	var c limit.Counter
	l := octets(4096)
	var held []*limit.Hold
	for range 32 {
		h, err := c.Take("r", noon, 2000, rule(l))
		if err == nil {
			held = append(held, h)
			continue
		}
		if e := reached(t, err); e.Wait != 5*time.Second || e.Declared != 2000 ||
			e.Error() != "the limit of 4096 octets sent in 86400 seconds has no room for the 2000 that are declared" {
			t.Fatalf("%+v", e)
		}
	}
	if len(held) != 2 {
		t.Fatalf("%d were admitted", len(held))
	}
	if n, err := held[0].Send(noon, 2000); n != 2000 || err != nil {
		t.Error(n, err)
	}
	held[0].End(noon, 2000, 0)
	held[1].End(noon, 0, 0)
	h, err := c.Take("r", noon, 2096, rule(l))
	if err != nil {
		t.Fatal("what was not sent is free:", err)
	}
	if n, err := h.Send(noon, 3000); n != 2096 || err == nil {
		t.Errorf("%d of 2096, %v", n, err)
	}
	h.End(noon, 2096, 0)
	if _, err := c.Take("r", noon, 0, rule(l)); reached(t, err).Wait < 23*time.Hour || reached(t, err).Declared != 0 {
		t.Errorf("%+v", err)
	}
	if _, err := c.Take("other", noon, 4097, rule(l)); reached(t, err).Declared != 4097 {
		t.Errorf("more than the limit: %v", err)
	}
	h, err = c.Take("other", noon, 0, rule(l))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Expect(noon, 4097); reached(t, err).Limit != "4096 octets received in 86400 seconds" {
		t.Error(err)
	}
	if err := h.Expect(noon, 4096); err != nil {
		t.Errorf("nothing was set aside for what has no room: %v", err)
	}
}

// TestOctetsSetAsideGrowOld: what is set aside and used only later counts when it
// crosses, and no period has more than the limit.
func TestOctetsSetAsideGrowOld(t *testing.T) {
	var c limit.Counter
	l := octets(1 << 20)
	idle, err := c.Take("r", noon, 1<<19, rule(l))
	if err != nil {
		t.Fatal(err)
	}
	later := noon.Add(25 * time.Hour)
	other, err := c.Take("r", later, 0, rule(l))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := other.Send(later, 1<<20); n != 1<<20 || err != nil {
		t.Fatalf("a day later: %d, %v", n, err)
	}
	if n, err := idle.Send(later, 1<<19); n != 0 || reached(t, err).Limit == "" {
		t.Errorf("%d more in the same day, %v", n, err)
	}
	other.End(later, 1<<20, 0)
	later = later.Add(25 * time.Hour)
	if n, err := idle.Send(later, 1<<19); n != 1<<19 || err != nil {
		t.Errorf("another day later: %d, %v", n, err)
	}
}

// TestUnknownIsAllThatThereIs: what nobody knows counts as all that the limits let through.
func TestUnknownIsAllThatThereIs(t *testing.T) {
	var c limit.Counter
	l := rule(octets(100))
	c.Recount("r", noon, 1, 40, 0, l)
	c.Recount("r", noon, 0, limit.Unknown, 0, l)
	if _, err := c.Take("r", noon, 0, l); reached(t, err).Limit != "100 octets sent in 86400 seconds" {
		t.Error(err)
	}
	c.Recount("other", noon, 1, 40, 0, l)
	if _, err := c.Take("other", noon, 60, l); err != nil {
		t.Error(err)
	}
	if _, err := c.Take("r", noon.Add(25*time.Hour), 0, l); err != nil {
		t.Error(err)
	}
}

// TestCrossingAllocatesNothing, and asks the counter that all share once in many pieces.
func TestCrossingAllocatesNothing(t *testing.T) {
	var c limit.Counter
	h, err := c.Take("r", noon, 0, rule(octets(1<<50)))
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() {
		if n, err := h.Send(noon, 32<<10); n != 32<<10 || err != nil {
			t.Fatal(n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkSend has all goroutines carry pieces under one limit.
func BenchmarkSend(b *testing.B) {
	var c limit.Counter
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		h, err := c.Take("r", noon, 0, rule(octets(1<<60)))
		if err != nil {
			b.Error(err)
			return
		}
		for pb.Next() {
			if _, err := h.Send(noon, 16<<10); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
