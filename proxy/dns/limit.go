package dns

import (
	"sync"
	"time"
)

// rates holds a token bucket for each cell; "" stands for every source that is
// no cell.
type rates struct {
	rate, burst float64

	mu sync.Mutex // guards m and what it holds
	m  map[string]*bucket
}

type bucket struct {
	tokens  float64
	last    time.Time
	dropped int       // since it was last told
	told    time.Time // when dropped queries were last recorded
}

// maxBuckets bounds the memory: full buckets are as good as none.
const maxBuckets = 4096

// take reports whether a query may be answered. If not, dropped is the number
// of refused ones to record now, 0 for most: a flood of queries must not
// become a flood of records.
func (r *rates) take(cell string, now time.Time) (ok bool, dropped int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.m[cell]
	if b == nil {
		r.pruneLocked(now)
		b = &bucket{tokens: r.burst, last: now}
		if r.m == nil {
			r.m = map[string]*bucket{}
		}
		r.m[cell] = b
	}
	if d := now.Sub(b.last); d > 0 {
		b.tokens, b.last = min(r.burst, b.tokens+d.Seconds()*r.rate), now
	}
	if b.tokens >= 1 {
		b.tokens--
		return true, 0
	}
	b.dropped++
	if now.Sub(b.told) < time.Second {
		return false, 0
	}
	dropped = b.dropped
	b.dropped, b.told = 0, now
	return false, dropped
}

func (r *rates) pruneLocked(now time.Time) {
	if len(r.m) < maxBuckets {
		return
	}
	for cell, b := range r.m {
		if b.tokens+now.Sub(b.last).Seconds()*r.rate >= r.burst {
			delete(r.m, cell)
		}
	}
}

// conns counts by cell what is going on: open TCP connections, or look-ups.
type conns struct {
	each, all int

	mu    sync.Mutex // guards n and total
	n     map[string]int
	total int
}

// open reports whether a cell may have another one; done gives it back.
func (c *conns) open(cell string) (done func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.total >= c.all || c.n[cell] >= c.each {
		return nil, false
	}
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.total++
	c.n[cell]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.total--
		if c.n[cell]--; c.n[cell] == 0 {
			delete(c.n, cell)
		}
	}, true
}
