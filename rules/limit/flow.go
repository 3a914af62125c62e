package limit

import (
	"math"
	"sync"
	"time"
)

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
	d       Direction
	limited bool // when it began

	mu    sync.Mutex // guards the rest; taken before the counter's
	ended bool
	left  int64 // set aside, and not used
	taken int64 // set aside in all
	used  int64
	step  int64
	at    time.Time // when left was set aside
	until int64     // when the slot is over in which it is counted, in seconds since the epoch
}

func (f *flow) begin(h *Hold, d Direction, now time.Time) {
	f.h, f.d, f.step, f.at = h, d, firstStep, now
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

// refill sets octets aside, and notes how many there are in all before one of them
// crosses. What cannot be noted is not set aside.
func (f *flow) refill(now time.Time, n int64, all bool) error {
	err := f.setAside(now, n, all)
	if f.h.entry == nil || f.left == 0 {
		return err
	}
	if noted := f.h.entry.Note(f.d, now, f.taken); noted != nil {
		f.h.c.mu.Lock()
		defer f.h.c.mu.Unlock()
		f.returnLocked()
		return noted
	}
	return err
}

// setAside sets aside n octets, or as many of them as there are unless it is to be all;
// and some more, for what comes next. What was set aside before its slot ended is
// counted as of now: it crosses now.
func (f *flow) setAside(now time.Time, n int64, all bool) error {
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
		x.t.octets[f.d].add(now, n)
		x.t.aside[f.d] += n
		if r := f.d.of(&x.limits); r.N > 0 {
			at, _, length := slot(now, r.Period)
			f.until = min(f.until, (at+1)*length)
		}
	}
}

// returnLocked gives back what is set aside and not used. It needs the counter's mu.
func (f *flow) returnLocked() {
	for i := range f.h.claims {
		x := &f.h.claims[i]
		x.t.octets[f.d].add(f.at, -f.left)
		x.t.aside[f.d] -= f.left
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
		x.t.octets[f.d].add(now, max(0, crossed-f.used))
		x.t.aside[f.d] -= f.taken
	}
}
