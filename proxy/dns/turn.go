package dns

import (
	"sync/atomic"
	"time"
)

// One worker at a time reads and answers what needs nobody else, so that what comes
// meanwhile is taken together with the next read. It gives its turn away before it
// waits for anybody, and loses it when the recorder keeps it for too long.

// patience is how long a worker may take for its batch before the next one reads.
// A write takes a hundredth of it; a disk that is waited for takes longer.
const patience = time.Millisecond

// turns is who may take a turn: there is room for one in it.
type turns chan struct{}

func newTurns() turns { return make(turns, 1) }

// turn is one worker's.
type turn struct {
	all   turns
	held  atomic.Bool
	timer *time.Timer
}

func (t turns) worker() *turn {
	w := &turn{all: t}
	w.timer = time.AfterFunc(patience, w.give)
	w.timer.Stop()
	return w
}

// take returns once it is the worker's turn, at once if it still is.
func (w *turn) take() {
	if w.held.Load() {
		return
	}
	w.all <- struct{}{}
	w.held.Store(true)
}

// begin says that the worker has read something; the next one reads when it gives
// its turn away, or in a while.
func (w *turn) begin() { w.timer.Reset(patience) }

// end says that the worker is done, before its time if it still has its turn. A timer
// that was late ends the next turn, which costs that a short batch.
func (w *turn) end() { w.timer.Stop() }

// give lets the next worker read.
func (w *turn) give() {
	if w.held.CompareAndSwap(true, false) {
		<-w.all
	}
}
