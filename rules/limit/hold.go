package limit

import (
	"slices"
	"time"

	"sallyport/rules"
)

// Hold is one thing that was counted and has not ended. A nil Hold counts nothing.
type Hold struct {
	c      *Counter
	run    string
	at     time.Time
	claims []held // guarded by the counter's mu
	flows  [directions]flow
	entry  Entry // nil: none
}

// Entry is where it outlives the process how many octets were set aside for a Hold.
// Its two directions are noted by several goroutines at once.
type Entry interface {
	// Note writes how many octets were set aside in a direction so far, the newest of
	// them at a time. It returns once they are written, or an error: then none of what
	// is new crosses.
	Note(d Direction, at time.Time, n int64) error
}

// Keep notes in e all that is set aside from now on. It is called once, before anything
// crosses.
func (h *Hold) Keep(e Entry) { h.entry = e }

// Aside returns how many octets are set aside in each direction, or [Unknown] of one
// that is not limited: there nobody knows until the end how many crossed.
func (h *Hold) Aside() (amounts [2]int64) {
	for d := range h.flows {
		f := &h.flows[d]
		f.mu.Lock()
		if amounts[d] = f.taken; !f.limited {
			amounts[d] = Unknown
		}
		f.mu.Unlock()
	}
	return amounts
}

// Limits reports whether octets are bounded, sent or received.
func (h *Hold) Limits() (sends, receives bool) {
	if h == nil {
		return false, false
	}
	return h.flows[Sent].limited, h.flows[Received].limited
}

// Send counts n octets that are about to go upstream. It returns how many of them
// may: if not all, the rest is over a limit, and the error is a [*ReachedError]; or it
// could not be noted, and none may.
func (h *Hold) Send(now time.Time, n int) (int, error) { return h.cross(Sent, now, n) }

// Receive is Send for what comes from upstream.
func (h *Hold) Receive(now time.Time, n int) (int, error) { return h.cross(Received, now, n) }

func (h *Hold) cross(d Direction, now time.Time, n int) (int, error) {
	if h == nil || !h.flows[d].limited {
		return n, nil
	}
	k, err := h.flows[d].take(now, int64(n))
	return int(k), err
}

// Expect sets aside n octets that upstream declares to send, or says with a
// [*ReachedError] which limit has no room for them.
func (h *Hold) Expect(now time.Time, n int64) error {
	if h == nil || !h.flows[Received].limited || n <= 0 {
		return nil
	}
	return h.flows[Received].declare(now, n)
}

// End says that what was taken has ended, and what it carried. It is called once.
func (h *Hold) End(now time.Time, sent, received int64) {
	if h == nil {
		return
	}
	h.closeFlows(now, sent, received)
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	for _, x := range h.claims {
		x.t.open--
	}
}

// Undo takes back what was not done after all.
func (h *Hold) Undo() {
	if h == nil {
		return
	}
	h.closeFlows(h.at, 0, 0)
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	for _, x := range h.claims {
		x.t.open--
		x.t.requests.add(h.at, -1)
	}
}

func (h *Hold) closeFlows(now time.Time, crossed ...int64) {
	for d := range h.flows {
		h.flows[d].end(now, crossed[d])
	}
}

// Relimit puts what is open under other limits, of the same run. It reports false if
// these bound octets that nobody counts as they cross, since nothing bounded them when
// it began: that has to end.
func (h *Hold) Relimit(claims ...Claim) bool {
	if h == nil {
		return !bounds(Sent, claims) && !bounds(Received, claims)
	}
	for d := range h.flows {
		if !h.flows[d].limited && bounds(Direction(d), claims) {
			return false
		}
	}
	if h.under(claims) {
		return true
	}
	for d := range h.flows { // nobody else takes both
		f := &h.flows[d]
		f.mu.Lock()
		defer f.mu.Unlock()
	}
	if h.flows[Sent].ended {
		return true
	}
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	for d := range h.flows {
		h.flows[d].returnLocked() // the next piece asks again
	}
	for i := range h.claims {
		h.claims[i].limits = rules.Limits{}
	}
	for _, x := range claims {
		if x.Limits == nil || x.Limits.IsZero() {
			continue
		}
		i := slices.IndexFunc(h.claims, func(c held) bool { return c.key == x.Key })
		if i < 0 {
			i = len(h.claims)
			h.claims = append(h.claims, h.joinLocked(x.Key))
		}
		h.claims[i].limits, h.claims[i].scope = *x.Limits, x.Scope
	}
	return true
}

// joinLocked counts what is open under a further key. It needs the mu of the flows and
// of the counter.
func (h *Hold) joinLocked(key string) held {
	t := h.c.tallyLocked(h.run, key)
	t.open++
	t.requests.add(h.at, 1)
	for d := range h.flows {
		t.octets[d].add(h.flows[d].at, h.flows[d].taken)
		t.aside[d] += h.flows[d].taken
	}
	return held{t: t, key: key}
}

// under reports whether the claims are those that it has.
func (h *Hold) under(claims []Claim) bool {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	n := 0
	for _, x := range claims {
		if x.Limits == nil || x.Limits.IsZero() {
			continue
		}
		n++
		if !slices.ContainsFunc(h.claims, func(c held) bool { return c.key == x.Key && c.limits == *x.Limits }) {
			return false
		}
	}
	return n == len(slices.DeleteFunc(slices.Clone(h.claims), func(c held) bool { return c.limits.IsZero() }))
}

func bounds(d Direction, claims []Claim) bool {
	return slices.ContainsFunc(claims, func(x Claim) bool { return x.Limits != nil && d.of(x.Limits).N > 0 })
}
