// Package limit counts what rules admit, for each run and rule, and says when
// a limit is reached.
//
// Periods are whole minutes, hours and days of UTC: a count begins anew with
// each. Requests are counted when they are admitted, so that their limit is
// exact however many come at once; octets when what carried them has ended,
// since nobody knows them before. It trusts its caller for the time, and keeps
// nothing over a restart: the caller counts again what its log says.
package limit

import (
	"fmt"
	"sync"
	"time"

	"sallyport/rules"
)

// Counter is safe for use by many goroutines. The zero Counter is ready.
type Counter struct {
	mu   sync.Mutex // guards runs and all that is in it
	runs map[string]map[string]*tally
}

// tally counts one rule of one run.
type tally struct {
	open                     int64
	requests, sent, received window
}

// window counts within one period.
type window struct{ start, n int64 }

// at returns the count in the period of a time, which it moves on to. A clock
// that goes back does not bring a period back.
func (w *window) at(now, period int64) *int64 {
	if start := now - now%max(period, 1); start > w.start {
		w.start, w.n = start, 0
	}
	return &w.n
}

// ReachedError says which limit was reached. The caller may try again after Wait.
type ReachedError struct {
	Limit string // as a policy names it
	Wait  time.Duration
}

// Error implements error.
func (e *ReachedError) Error() string { return "the limit of " + e.Limit + " is reached" }

// concurrentWait is said where nobody knows when something will end.
const concurrentWait = 5 * time.Second

// Hold is one thing that was counted and has not ended.
type Hold struct {
	c      *Counter
	t      *tally
	limits rules.Limits
	at     time.Time
}

// Take counts one request or stream, or says which limit is reached: then it is
// a [*ReachedError], and nothing was counted. Nil limits bound nothing.
func (c *Counter) Take(run, rule string, l *rules.Limits, now time.Time) (*Hold, error) {
	if l == nil {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tallyLocked(run, rule)
	if l.Concurrent > 0 && t.open >= l.Concurrent {
		return nil, &ReachedError{fmt.Sprintf("%d at once", l.Concurrent), concurrentWait}
	}
	for _, x := range []struct {
		name string
		w    *window
		r    rules.Rate
	}{{"requests", &t.requests, l.Requests}, {"octets sent", &t.sent, l.Sent}, {"octets received", &t.received, l.Received}} {
		sec := now.Unix()
		if x.r.N > 0 && *x.w.at(sec, x.r.Period) >= x.r.N {
			end := time.Unix(x.w.start+x.r.Period, 0)
			return nil, &ReachedError{fmt.Sprintf("%d %s in %d seconds", x.r.N, x.name, x.r.Period), end.Sub(now)}
		}
	}
	t.open++
	t.addLocked(l, now, 1, 0, 0)
	return &Hold{c, t, *l, now}, nil
}

// tallyLocked needs mu.
func (c *Counter) tallyLocked(run, rule string) *tally {
	if c.runs == nil {
		c.runs = map[string]map[string]*tally{}
	}
	if c.runs[run] == nil {
		c.runs[run] = map[string]*tally{}
	}
	t := c.runs[run][rule]
	if t == nil {
		t = &tally{}
		c.runs[run][rule] = t
	}
	return t
}

// addLocked needs the counter's mu. What belongs to a period that is over is
// not counted.
func (t *tally) addLocked(l *rules.Limits, at time.Time, requests, sent, received int64) {
	sec := at.Unix()
	add := func(w *window, r rules.Rate, n int64) {
		if count := w.at(sec, r.Period); r.N > 0 && sec >= w.start {
			*count += n
		}
	}
	add(&t.requests, l.Requests, requests)
	add(&t.sent, l.Sent, sent)
	add(&t.received, l.Received, received)
}

// End says that what was taken has ended, and what it carried. A nil Hold is
// nothing. It is called once.
func (h *Hold) End(now time.Time, sent, received int64) {
	if h == nil {
		return
	}
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	h.t.open--
	h.t.addLocked(&h.limits, now, 0, sent, received)
}

// Undo takes back what was not done after all.
func (h *Hold) Undo() {
	if h == nil {
		return
	}
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	h.t.open--
	h.t.addLocked(&h.limits, h.at, -1, 0, 0)
}

// Recount adds what was counted before a restart; nothing of it is open.
func (c *Counter) Recount(run, rule string, l *rules.Limits, at time.Time, requests, sent, received int64) {
	if l == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tallyLocked(run, rule).addLocked(l, at, requests, sent, received)
}

// Forget drops the counts of a run that has ended.
func (c *Counter) Forget(run string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.runs, run)
}
