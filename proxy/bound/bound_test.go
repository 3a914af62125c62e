package bound_test

import (
	"math"
	"strconv"
	"sync"
	"testing"
	"time"

	"sallyport/proxy/bound"
)

func TestZeroRefuses(t *testing.T) {
	if new(bound.Count).Take("a") {
		t.Error("a count without bounds let one through")
	}
	if w := new(bound.Rate).Take("a", time.Unix(0, 0), time.Hour); w <= time.Hour {
		t.Errorf("a rate of nothing let one through after %v", w)
	}
}

func TestCount(t *testing.T) {
	c := bound.Count{Each: 2, All: 3}
	for i, step := range []struct {
		cell string
		want bool
	}{{"a", true}, {"a", true}, {"a", false}, {"b", true}, {"b", false}, {"c", false}} {
		if got := c.Take(step.cell); got != step.want {
			t.Errorf("step %d: Take(%s) = %v", i, step.cell, got)
		}
	}
	c.Give("a")
	if !c.Take("c") || c.Take("a") {
		t.Error("what was given back is not for the next, or twice")
	}
}

func TestCountAtOnce(t *testing.T) {
	c := bound.Count{Each: 8, All: 1000}
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 1000 {
				if c.Take("a") {
					c.Give("a")
				}
			}
		})
	}
	wg.Wait()
	for i := range 8 {
		if !c.Take("a") {
			t.Fatalf("only %d are left", i)
		}
	}
}

func TestRate(t *testing.T) {
	now := time.Unix(1, 0)
	r := bound.Rate{PerSecond: 10, Burst: 2}
	want := func(cell string, most, wait time.Duration) {
		t.Helper()
		if got := r.Take(cell, now, most).Round(time.Millisecond); got != wait {
			t.Errorf("at %v: wait %v, want %v", now.Sub(time.Unix(1, 0)), got, wait)
		}
	}
	want("a", 0, 0)
	want("a", 0, 0)
	want("a", 0, 100*time.Millisecond) // refused: nothing was taken
	want("a", 0, 100*time.Millisecond)
	want("b", 0, 0)
	want("a", time.Second, 100*time.Millisecond) // taken: the next waits for longer
	want("a", time.Second, 200*time.Millisecond)
	want("a", 250*time.Millisecond, 300*time.Millisecond)
	now = now.Add(300 * time.Millisecond)
	want("a", 0, 0)
	want("a", 0, 100*time.Millisecond)
	now = now.Add(-time.Hour) // a clock that is set back gives nothing
	want("a", 0, 100*time.Millisecond)
	now = now.Add(2 * time.Hour)
	want("a", 0, 0)
	want("a", 0, 0)
	want("a", 0, 100*time.Millisecond)
}

// TestRateForgets: cells that come and go leave nothing, and one that has used
// its tokens up is not among those that are forgotten.
func TestRateForgets(t *testing.T) {
	now := time.Unix(1, 0)
	r := bound.Rate{PerSecond: 1, Burst: 1}
	for i := range 100_000 {
		now = now.Add(10 * time.Millisecond)
		if w := r.Take(strconv.Itoa(i), now, 0); w != 0 {
			t.Fatalf("cell %d waits %v", i, w)
		}
		if i%10 == 0 {
			r.Take("greedy", now, 0)
		}
	}
	if w := r.Take("greedy", now, math.MaxInt64); w == 0 {
		t.Error("the cell that asks all the time was forgotten")
	}
}
