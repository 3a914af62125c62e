// Package limit counts what rules admit, for each run, and says when a limit is
// reached.
//
// A limit holds for any period of its length, wherever it begins, and not for
// calendar minutes or days: round the turn of one of those, twice as much would
// pass. A period is counted in 60 slots, and the oldest is forgotten as a whole
// once all of it has passed, so that a limit may hold for up to a 60th longer
// than it says and never for less. Requests are counted when they are admitted,
// so that their limit is exact however many come at once; octets when what
// carried them has ended, since nobody knows them before. It trusts its caller
// for the time, and keeps nothing over a restart: the caller counts again what
// its log says.
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

// Claim is what is counted once, under a key of its run, such as a rule's id.
// Nil limits bound nothing.
type Claim struct {
	Key    string
	Limits *rules.Limits
	// Scope is whose limits they are, where they are not the rule's.
	Scope string
}

// tally counts under one key of one run.
type tally struct {
	open                     int64
	requests, sent, received window
}

const slots = 60

// window counts in the slots of the last period, and the one before them.
type window struct {
	last int64 // the newest slot, by its number since the Unix epoch
	n    [slots + 1]int64
}

// slot returns the number of a time's slot, and how many make a period.
func slot(now time.Time, period int64) (at, span, length int64) {
	length = max(period/slots, 1)
	return now.Unix() / length, min(max(period/length, 1), slots), length
}

// moveTo makes a slot the newest. A clock that goes back moves nothing.
func (w *window) moveTo(at int64) {
	if at-w.last > slots {
		w.n, w.last = [slots + 1]int64{}, at
	}
	for w.last < at {
		w.last++
		w.n[w.last%(slots+1)] = 0
	}
}

// add counts at a time; what is older than the window is past counting.
func (w *window) add(now time.Time, r rules.Rate, n int64) {
	if r.N == 0 {
		return
	}
	at, span, _ := slot(now, r.Period)
	if w.moveTo(at); at >= w.last-span {
		w.n[at%(slots+1)] += n
	}
}

// full tells after how long there is room for one more, 0 for now.
func (w *window) full(now time.Time, r rules.Rate) time.Duration {
	if r.N == 0 {
		return 0
	}
	at, span, length := slot(now, r.Period)
	w.moveTo(at)
	sum := int64(0)
	for i := w.last - span; i <= w.last; i++ {
		sum += w.n[max(i, 0)%(slots+1)]
	}
	for i := w.last - span; sum >= r.N; i++ {
		if sum -= w.n[max(i, 0)%(slots+1)]; sum < r.N || i == w.last {
			return max(time.Unix((i+span+1)*length, 0).Sub(now), 1)
		}
	}
	return 0
}

// ReachedError says which limit was reached. The caller may try again after Wait.
type ReachedError struct {
	Limit string // as a policy names it
	Scope string // whose it is, "" for the rule's
	Wait  time.Duration
}

// Error implements error.
func (e *ReachedError) Error() string {
	if e.Scope != "" {
		return "the limit of " + e.Limit + ", which the " + e.Scope + " sets for all of a run, is reached"
	}
	return "the limit of " + e.Limit + " is reached"
}

// concurrentWait is said where nobody knows when something will end.
const concurrentWait = 5 * time.Second

// Hold is one thing that was counted and has not ended.
type Hold struct {
	c      *Counter
	at     time.Time
	claims []held
}

type held struct {
	t      *tally
	limits rules.Limits
}

// Take counts one request or stream under all claims at once, or says which
// limit is reached: then it is a [*ReachedError], and nothing was counted.
func (c *Counter) Take(run string, now time.Time, claims ...Claim) (*Hold, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := &Hold{c: c, at: now}
	for _, x := range claims {
		if x.Limits == nil || x.Limits.IsZero() {
			continue
		}
		t := c.tallyLocked(run, x.Key)
		if err := t.reachedLocked(x.Limits, now); err != nil {
			err.Scope = x.Scope
			return nil, err
		}
		h.claims = append(h.claims, held{t, *x.Limits})
	}
	if len(h.claims) == 0 {
		return nil, nil
	}
	for _, x := range h.claims {
		x.t.open++
		x.t.addLocked(&x.limits, now, 1, 0, 0)
	}
	return h, nil
}

// reachedLocked needs the counter's mu.
func (t *tally) reachedLocked(l *rules.Limits, now time.Time) *ReachedError {
	if l.Concurrent > 0 && t.open >= l.Concurrent {
		return &ReachedError{Limit: fmt.Sprintf("%d at once", l.Concurrent), Wait: concurrentWait}
	}
	for _, x := range []struct {
		name string
		w    *window
		r    rules.Rate
	}{{"requests", &t.requests, l.Requests}, {"octets sent", &t.sent, l.Sent}, {"octets received", &t.received, l.Received}} {
		if wait := x.w.full(now, x.r); wait > 0 {
			return &ReachedError{Limit: fmt.Sprintf("%d %s in %d seconds", x.r.N, x.name, x.r.Period), Wait: wait}
		}
	}
	return nil
}

// tallyLocked needs mu.
func (c *Counter) tallyLocked(run, key string) *tally {
	if c.runs == nil {
		c.runs = map[string]map[string]*tally{}
	}
	if c.runs[run] == nil {
		c.runs[run] = map[string]*tally{}
	}
	t := c.runs[run][key]
	if t == nil {
		t = &tally{}
		c.runs[run][key] = t
	}
	return t
}

// addLocked needs the counter's mu.
func (t *tally) addLocked(l *rules.Limits, at time.Time, requests, sent, received int64) {
	t.requests.add(at, l.Requests, requests)
	t.sent.add(at, l.Sent, sent)
	t.received.add(at, l.Received, received)
}

// End says that what was taken has ended, and what it carried. A nil Hold is
// nothing. It is called once.
func (h *Hold) End(now time.Time, sent, received int64) {
	h.over(now, 0, sent, received)
}

// Undo takes back what was not done after all.
func (h *Hold) Undo() {
	if h != nil {
		h.over(h.at, -1, 0, 0)
	}
}

func (h *Hold) over(at time.Time, requests, sent, received int64) {
	if h == nil {
		return
	}
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	for _, x := range h.claims {
		x.t.open--
		x.t.addLocked(&x.limits, at, requests, sent, received)
	}
}

// Recount adds what was counted before a restart; nothing of it is open.
func (c *Counter) Recount(run string, at time.Time, requests, sent, received int64, claims ...Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range claims {
		if x.Limits != nil {
			c.tallyLocked(run, x.Key).addLocked(x.Limits, at, requests, sent, received)
		}
	}
}

// Forget drops the counts of a run that has ended.
func (c *Counter) Forget(run string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.runs, run)
}
