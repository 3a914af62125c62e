// Package bound counts what cells hold and how fast they ask, so that one cell
// cannot take what the others need.
//
// A cell is a string that its caller trusts; "" stands for all sources that are
// no cell. The zero Count lets nothing through, and neither does the zero Rate.
package bound

import (
	"math"
	"sync"
	"time"
)

// Count bounds how many of something are held at once. It is safe for use by
// many goroutines.
type Count struct {
	Each int // of one cell
	All  int // of all cells together

	mu    sync.Mutex // guards n and total
	n     map[string]int
	total int
}

// Take reports whether a cell may have another one; who got it gives it back.
func (c *Count) Take(cell string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.total >= c.All || c.n[cell] >= c.Each {
		return false
	}
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.total++
	c.n[cell]++
	return true
}

// Give gives back one that Take let through.
func (c *Count) Give(cell string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	if c.n[cell]--; c.n[cell] <= 0 {
		delete(c.n, cell)
	}
}

// Rate bounds how many of something may begin, by a token bucket for each cell.
// It is safe for use by many goroutines.
type Rate struct {
	PerSecond float64
	Burst     float64 // at once, after a pause

	mu sync.Mutex // guards m and what it holds
	m  map[string]*bucket
}

type bucket struct {
	tokens float64 // below 0: as many wait
	last   time.Time
}

// maxBuckets bounds the memory: full buckets are as good as none.
const maxBuckets = 4096

// Take takes one and returns how long to wait before it begins. If that were
// longer than most, nothing is taken.
func (r *Rate) Take(cell string, now time.Time, most time.Duration) (wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.m[cell]
	if b == nil {
		r.pruneLocked(now)
		b = &bucket{tokens: r.Burst, last: now}
		if r.m == nil {
			r.m = map[string]*bucket{}
		}
		r.m[cell] = b
	}
	if d := now.Sub(b.last); d > 0 {
		b.tokens, b.last = min(r.Burst, b.tokens+d.Seconds()*r.PerSecond), now
	}
	if b.tokens < 1 {
		wait = r.until(1 - b.tokens)
	}
	if wait <= most {
		b.tokens--
	}
	return wait
}

// until returns how long it takes for so many tokens to come.
func (r *Rate) until(tokens float64) time.Duration {
	s := tokens / r.PerSecond
	if !(s < math.MaxInt64/float64(time.Second)) { // nor for a rate of 0
		return math.MaxInt64
	}
	return max(1, time.Duration(s*float64(time.Second)))
}

func (r *Rate) pruneLocked(now time.Time) {
	if len(r.m) < maxBuckets {
		return
	}
	for cell, b := range r.m {
		if b.tokens+now.Sub(b.last).Seconds()*r.PerSecond >= r.Burst {
			delete(r.m, cell)
		}
	}
}
