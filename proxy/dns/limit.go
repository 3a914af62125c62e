package dns

import (
	"sync"
	"time"

	"sallyport/proxy/bound"
)

// rates bounds how fast cells ask, and tells of what it drops: a flood of queries
// must not become a flood of records.
type rates struct {
	bound.Rate

	mu sync.Mutex // guards m and what it holds
	m  map[string]*drops
}

type drops struct {
	n    int       // since it was last told
	told time.Time // when they were last recorded
}

// tellEvery is how often the drops of one cell are recorded.
const tellEvery = time.Second

// maxDrops bounds the memory for cells that are gone.
const maxDrops = 4096

// take reports whether a query may be answered. If not, dropped is the number
// of refused ones to record now, 0 for most.
func (r *rates) take(cell string, now time.Time) (ok bool, dropped int) {
	if r.Take(cell, now, 0) == 0 {
		return true, 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.m[cell]
	if d == nil {
		d = r.newDropsLocked(cell, now)
	}
	d.n++
	if now.Sub(d.told) < tellEvery {
		return false, 0
	}
	dropped = d.n
	d.n, d.told = 0, now
	return false, dropped
}

func (r *rates) newDropsLocked(cell string, now time.Time) *drops {
	if len(r.m) >= maxDrops {
		for c, d := range r.m {
			if now.Sub(d.told) >= tellEvery {
				delete(r.m, c)
			}
		}
	}
	if r.m == nil {
		r.m = map[string]*drops{}
	}
	d := new(drops)
	r.m[cell] = d
	return d
}
