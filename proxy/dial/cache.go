package dial

import (
	"net/netip"
	"sync"
	"time"

	"sallyport/rules/target"
)

// The bounds of what is kept. A TTL of zero, or of years, is the answering
// server's wish; these are ours.
const (
	minTTL         = 5 * time.Second
	maxTTL         = 5 * time.Minute
	maxNegativeTTL = time.Minute
	maxCached      = 1024 // names
)

func clamp(ttl, most time.Duration) time.Duration { return max(minTTL, min(ttl, most)) }

// cache keeps answers for a while. The zero cache is empty and ready. What it
// hands out is vetted again for each pass.
type cache struct {
	mu sync.Mutex // guards m
	m  map[target.Name]cached
}

type cached struct {
	addrs []netip.Addr
	err   error
	until time.Time
}

func (c *cache) get(name target.Name, now time.Time) (addrs []netip.Addr, err error, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.m[name]
	if !ok || !now.Before(e.until) {
		return nil, nil, false
	}
	return e.addrs, e.err, true
}

func (c *cache) put(name target.Name, addrs []netip.Addr, err error, now time.Time, ttl time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		c.m = map[target.Name]cached{}
	}
	if len(c.m) >= maxCached {
		c.evictLocked(now)
	}
	c.m[name] = cached{addrs, err, now.Add(ttl)}
}

// evictLocked makes room: what has expired, else whatever comes first.
func (c *cache) evictLocked(now time.Time) {
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
