package audit

import (
	"errors"
	"time"
)

// Nobody acts upon a record of kind done, so nobody waits for it: it is left in
// the queue, and who writes next writes it as well (ADR-0024). If nobody comes, a
// timer does.

const (
	// leftFor is how long a record is left for the next to write.
	leftFor = 5 * time.Millisecond
	// leftMany is how many are left before whoever comes with another writes.
	leftMany = 64
)

var errTooManyLeft = errors.New("too many records wait for a write that does not end")

// leave has e written soon, without waiting for a write that is under way. While
// records are refused it tries at once, and tells whether it could.
func (l *Log) leave(e *entry) error {
	l.mu.Lock()
	switch {
	case l.closed:
		l.mu.Unlock()
		entries.Put(e)
		return ErrClosed
	case !l.leading && (l.fault != nil || l.left >= leftMany):
		leading := l.enqueueLocked(e)
		l.mu.Unlock()
		return l.await(nil, e, leading)
	case l.left >= maxOwed || l.leftBytes+len(e.rest) > maxOwedBytes:
		l.mu.Unlock()
		entries.Put(e)
		l.failed(errTooManyLeft, 1)
		return errTooManyLeft
	}
	e.left = true
	l.queue = append(l.queue, e)
	l.left++
	l.leftBytes += len(e.rest)
	l.flushLaterLocked()
	l.mu.Unlock()
	return nil
}

// flushLaterLocked starts the timer, if records are left and nobody is at it.
func (l *Log) flushLaterLocked() {
	if l.left == 0 || l.leading || l.flushing {
		return
	}
	l.flushing = true
	if l.flusher == nil {
		l.flusher = time.AfterFunc(leftFor, l.flush)
	} else {
		l.flusher.Reset(leftFor)
	}
}

func (l *Log) flush() {
	l.mu.Lock()
	l.flushing = false
	l.mu.Unlock()
	_ = l.settle() // a failure is a fault now
}

// settle returns once everything is written that was appended before.
func (l *Log) settle() error {
	l.mu.Lock()
	busy := l.leading || l.left > 0
	l.mu.Unlock()
	if !busy {
		return nil
	}
	return l.submit(nil, l.probe())
}
