package limit

import (
	"math"
	"sync"
	"time"
)

// Hold is one thing that was counted and has not ended. A nil Hold counts nothing.
type Hold struct {
	c      *Counter
	at     time.Time
	claims []held
	flows  [directions]flow
}

const (
	// firstStep is how much is set aside for what begins to flow, beyond what is
	// asked for; each further step is twice as much, up to lastStep.
	firstStep = 4 << 10
	lastStep  = 1 << 20
	// share is the part of what is left that one step may take at most: what is set
	// aside and idle is little of it.
	share = 16
)

// flow counts the octets of one direction, before they cross. It sets some aside,
// and asks its counter, which all flows share, again only when these are used up.
type flow struct {
	h       *Hold
	d       direction
	limited bool

	mu    sync.Mutex // guards the rest; taken before the counter's
	ended bool
	left  int64 // set aside, and not used
	taken int64 // set aside in all
	used  int64
	step  int64
	at    time.Time // when left was set aside
	until int64     // when the slot is over in which it is counted, in seconds since the epoch
}

func (f *flow) begin(h *Hold, d direction) {
	f.h, f.d, f.step = h, d, firstStep
	for i := range h.claims {
		f.limited = f.limited || d.of(&h.claims[i].limits).N > 0
	}
}

// take counts n octets that are about to cross, and returns how many of them may.
func (f *flow) take(now time.Time, n int64) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return 0, nil
	}
	var err error
	if n > f.left || now.Unix() >= f.until {
		err = f.refill(now, n, false)
	}
	n = min(n, f.left)
	f.left -= n
	f.used += n
	return n, err
}

// declare sets aside n octets, or none.
func (f *flow) declare(now time.Time, n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || n <= f.left {
		return nil
	}
	return f.refill(now, n, true)
}

// refill sets aside n octets, or as many of them as there are unless it is to be all;
// and some more, for what comes next. What was set aside before its slot ended is
// counted as of now: it crosses now.
func (f *flow) refill(now time.Time, n int64, all bool) error {
	f.h.c.mu.Lock()
	defer f.h.c.mu.Unlock()
	f.returnLocked()
	room, least := int64(math.MaxInt64), (*held)(nil)
	for i := range f.h.claims {
		x := &f.h.claims[i]
		if r := x.t.octets[f.d].room(now, f.d.of(&x.limits)); r < room {
			room, least = r, x
		}
	}
	if n > room {
		err := least.t.fullLocked(f.d, &least.limits, now, n)
		err.Scope = least.scope
		if !all {
			err.Declared = 0
			f.setLocked(now, room)
		}
		return err
	}
	f.setLocked(now, max(n, min(f.step, room/share)))
	f.step = min(2*f.step, lastStep)
	return nil
}

// setLocked sets n octets aside. It needs the counter's mu.
func (f *flow) setLocked(now time.Time, n int64) {
	f.at, f.left, f.until = now, n, math.MaxInt64
	f.taken += n
	for i := range f.h.claims {
		x := &f.h.claims[i]
		r := f.d.of(&x.limits)
		if r.N == 0 {
			continue
		}
		x.t.octets[f.d].add(now, r, n)
		x.t.aside[f.d] += n
		at, _, length := slot(now, r.Period)
		f.until = min(f.until, (at+1)*length)
	}
}

// returnLocked gives back what is set aside and not used. It needs the counter's mu.
func (f *flow) returnLocked() {
	for i := range f.h.claims {
		x := &f.h.claims[i]
		if r := f.d.of(&x.limits); r.N > 0 {
			x.t.octets[f.d].add(f.at, r, -f.left)
			x.t.aside[f.d] -= f.left
		}
	}
	f.taken -= f.left
	f.left = 0
}

// end gives back what was not used, and counts what crossed without having been asked
// for.
func (f *flow) end(now time.Time, crossed int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	f.h.c.mu.Lock()
	defer f.h.c.mu.Unlock()
	f.returnLocked()
	for i := range f.h.claims {
		x := &f.h.claims[i]
		if r := f.d.of(&x.limits); r.N > 0 {
			x.t.octets[f.d].add(now, r, max(0, crossed-f.used))
			x.t.aside[f.d] -= f.taken
		}
	}
}

// Limits reports whether octets are bounded, sent or received.
func (h *Hold) Limits() (sends, receives bool) {
	if h == nil {
		return false, false
	}
	return h.flows[sent].limited, h.flows[received].limited
}

// Send counts n octets that are about to go upstream. It returns how many of them
// may: if not all, the rest is over a limit, and the error is a [*ReachedError].
func (h *Hold) Send(now time.Time, n int) (int, error) { return h.cross(sent, now, n) }

// Receive is Send for what comes from upstream.
func (h *Hold) Receive(now time.Time, n int) (int, error) { return h.cross(received, now, n) }

func (h *Hold) cross(d direction, now time.Time, n int) (int, error) {
	if h == nil || !h.flows[d].limited {
		return n, nil
	}
	k, err := h.flows[d].take(now, int64(n))
	return int(k), err
}

// Expect sets aside n octets that upstream declares to send, or says with a
// [*ReachedError] which limit has no room for them.
func (h *Hold) Expect(now time.Time, n int64) error {
	if h == nil || !h.flows[received].limited || n <= 0 {
		return nil
	}
	return h.flows[received].declare(now, n)
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
		x.t.requests.add(h.at, x.limits.Requests, -1)
	}
}

func (h *Hold) closeFlows(now time.Time, crossed ...int64) {
	for d := range h.flows {
		if h.flows[d].limited {
			h.flows[d].end(now, crossed[d])
		}
	}
}
