package dial

import (
	"sync"
	"time"
)

// The bounds of what is kept. A TTL of zero, or of years, is the answering
// server's wish; these are ours.
const (
	minTTL         = 5 * time.Second
	maxTTL         = 5 * time.Minute
	maxNegativeTTL = time.Minute
	maxCached      = 1024 // questions
)

func clamp(ttl, most time.Duration) time.Duration { return max(minTTL, min(ttl, most)) }

// cache keeps the answers to questions Q for a while. The zero cache is empty
// and ready. What it hands out is vetted again for each pass.
type cache[Q comparable, A any] struct {
	mu sync.Mutex // guards m
	m  map[Q]cached[A]
}

type cached[A any] struct {
	answer A
	err    error
	until  time.Time
}

func (c *cache[Q, A]) get(ask Q, now time.Time) (answer A, err error, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.m[ask]
	if !ok || !now.Before(e.until) {
		return answer, nil, false
	}
	return e.answer, e.err, true
}

func (c *cache[Q, A]) put(ask Q, answer A, err error, now time.Time, ttl time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		c.m = map[Q]cached[A]{}
	}
	if len(c.m) >= maxCached {
		c.evictLocked(now)
	}
	c.m[ask] = cached[A]{answer, err, now.Add(ttl)}
}

// evictLocked makes room: what has expired, else whatever comes first.
func (c *cache[Q, A]) evictLocked(now time.Time) {
	for n, e := range c.m {
		if !now.Before(e.until) {
			delete(c.m, n)
		}
	}
	for n := range c.m {
		if len(c.m) < maxCached {
			return
		}
		delete(c.m, n)
	}
}
