// Package limit counts what rules admit, for each run, and says when a limit is
// reached.
//
// A limit holds for any period of its length, wherever it begins, and not for
// calendar minutes or days: round the turn of one of those, twice as much would
// pass. A period is counted in 60 slots, and the oldest is forgotten as a whole
// once all of it has passed, so that a limit may hold for up to a 60th longer
// than it says and never for less. Requests are counted when they are admitted,
// octets before they cross: what a request declares when it is admitted, and the
// rest in pieces that are set aside as it flows. So both are exact however many
// come at once. Under a key that has limits everything is counted, in every period,
// so that a limit which is changed finds what there was before. It trusts its caller
// for the time, and to carry no octet that was not counted. It keeps nothing over a
// restart: the caller counts again what its log says, and what was set aside in an
// [Entry].
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
	open     int64
	requests measure
	octets   [directions]measure
	aside    [directions]int64 // of these, set aside for what has not ended
}

// Direction is one of the two ways of octets.
type Direction int

// The directions, as the sandbox sees them.
const (
	Sent Direction = iota
	Received
	directions
)

// of returns the limit of a direction.
func (d Direction) of(l *rules.Limits) rules.Rate {
	if d == Sent {
		return l.Sent
	}
	return l.Received
}

func (d Direction) String() string { return [directions]string{" sent", " received"}[d] }

// Unknown is an amount of octets that nobody knows.
const Unknown = -1

// ReachedError says which limit was reached. The caller may try again after Wait.
type ReachedError struct {
	Limit string // as a policy names it
	Scope string // whose it is, "" for the rule's
	// Declared is how many octets there is no room for, 0 where there is room for none.
	Declared int64
	Wait     time.Duration
}

// Error implements error.
func (e *ReachedError) Error() string {
	what := "is reached"
	if e.Declared > 0 {
		what = fmt.Sprintf("has no room for the %d that are declared", e.Declared)
	}
	if e.Scope != "" {
		return "the limit of " + e.Limit + ", which the " + e.Scope + " sets for all of a run, " + what
	}
	return "the limit of " + e.Limit + " " + what
}

// concurrentWait is said where nobody knows when something will end.
const concurrentWait = 5 * time.Second

type held struct {
	t      *tally
	key    string
	limits rules.Limits
	scope  string
}

// Take counts one request or stream under all claims at once, and sets aside the
// octets that it declares to send, or says which limit is reached: then it is a
// [*ReachedError], and nothing was counted.
func (c *Counter) Take(run string, now time.Time, declared int64, claims ...Claim) (*Hold, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var h *Hold
	for _, x := range claims {
		if x.Limits == nil || x.Limits.IsZero() {
			continue
		}
		t := c.tallyLocked(run, x.Key)
		if err := t.reachedLocked(x.Limits, now, declared); err != nil {
			err.Scope = x.Scope
			return nil, err
		}
		if h == nil {
			h = &Hold{c: c, run: run, at: now, claims: make([]held, 0, len(claims))}
		}
		h.claims = append(h.claims, held{t, x.Key, *x.Limits, x.Scope})
	}
	if h == nil {
		return nil, nil
	}
	for _, x := range h.claims {
		x.t.open++
		x.t.requests.add(now, 1)
	}
	for d := range directions {
		h.flows[d].begin(h, d, now)
	}
	if declared > 0 && h.flows[Sent].limited {
		h.flows[Sent].setLocked(now, declared)
	}
	return h, nil
}

// reachedLocked needs the counter's mu.
func (t *tally) reachedLocked(l *rules.Limits, now time.Time, declared int64) *ReachedError {
	if l.Concurrent > 0 && t.open >= l.Concurrent {
		return &ReachedError{Limit: fmt.Sprintf("%d at once", l.Concurrent), Wait: concurrentWait}
	}
	if wait := t.requests.wait(now, l.Requests, 1); wait > 0 {
		return &ReachedError{Limit: words(l.Requests, "request", ""), Wait: wait}
	}
	if err := t.fullLocked(Sent, l, now, max(declared, 1)); err != nil {
		return err
	}
	return t.fullLocked(Received, l, now, 1)
}

// fullLocked says that there is no room for n octets, if that is so. It needs the
// counter's mu.
func (t *tally) fullLocked(d Direction, l *rules.Limits, now time.Time, n int64) *ReachedError {
	r, m := d.of(l), &t.octets[d]
	wait := m.wait(now, r, n)
	if wait == 0 {
		return nil
	}
	e := &ReachedError{Limit: words(r, "octet", d.String()), Wait: wait}
	room := m.room(now, r)
	if room > 0 {
		e.Declared = n
	}
	if t.aside[d] > 0 && n <= min(r.N, room+t.aside[d]) {
		e.Wait = min(wait, concurrentWait) // what is under way may leave some over
	}
	return e
}

// words writes a limit of things, such as 100 octets sent in 60 seconds.
func words(r rules.Rate, thing, done string) string {
	if r.N != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s%s in %d seconds", r.N, thing, done, r.Period)
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

// Recount adds what was counted before a restart; nothing of it is open. Of an amount
// that is [Unknown] it counts as many octets as the limits let through.
func (c *Counter) Recount(run string, at time.Time, requests, sent, received int64, claims ...Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range claims {
		if x.Limits == nil || x.Limits.IsZero() {
			continue
		}
		t := c.tallyLocked(run, x.Key)
		t.requests.add(at, requests)
		for d, n := range [directions]int64{sent, received} {
			m, r := &t.octets[d], Direction(d).of(x.Limits)
			if n == Unknown {
				n = min(r.N, m.room(at, r))
			}
			m.add(at, n)
		}
	}
}

// Forget drops the counts of a run that has ended.
func (c *Counter) Forget(run string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.runs, run)
}
