package main

import (
	"io"
	"sync"
	"time"
)

// lingering is how long the end of a run waits for whoever reads its output,
// from the last octet that was read.
const lingering = 5 * time.Second

// detachedWriter takes what is written without waiting for whoever reads it:
// a run must end in time whatever its output is connected to. What it holds is
// bounded by the run's limit of output.
type detachedWriter struct {
	w io.Writer

	mu   sync.Mutex // guards the rest
	held []byte
	done bool

	wake  chan struct{} // something is held, or it is done
	moved chan struct{} // something was read
	ended chan struct{} // all is written, or nobody reads any more
}

// detached returns writers that never wait, and what waits for them at the end.
func detached(stdout, stderr io.Writer) (out, err io.Writer, flush func()) {
	o, e := newDetached(stdout), newDetached(stderr)
	return o, e, func() {
		o.finish()
		e.finish()
	}
}

func newDetached(w io.Writer) *detachedWriter {
	d := &detachedWriter{w: w, wake: make(chan struct{}, 1), moved: make(chan struct{}, 1), ended: make(chan struct{})}
	go d.copy()
	return d
}

// Write implements io.Writer.
func (d *detachedWriter) Write(p []byte) (int, error) {
	d.mu.Lock()
	d.held = append(d.held, p...)
	d.mu.Unlock()
	signalTo(d.wake)
	return len(p), nil
}

func signalTo(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (d *detachedWriter) copy() {
	defer close(d.ended)
	for range d.wake {
		for {
			d.mu.Lock()
			next, done := d.held, d.done
			d.held = nil
			d.mu.Unlock()
			if len(next) == 0 {
				if done {
					return
				}
				break
			}
			if !d.pass(next) {
				return // nobody reads any more; the result has it all
			}
		}
	}
}

// pass writes in pieces, so that a slow reader is told from one that is gone.
func (d *detachedWriter) pass(p []byte) bool {
	for len(p) > 0 {
		n := min(len(p), 32<<10)
		if _, err := d.w.Write(p[:n]); err != nil {
			return false
		}
		p = p[n:]
		signalTo(d.moved)
	}
	return true
}

// finish waits until everything is written, or nobody has read for a while.
func (d *detachedWriter) finish() {
	d.mu.Lock()
	d.done = true
	d.mu.Unlock()
	signalTo(d.wake)
	for {
		t := time.NewTimer(lingering)
		select {
		case <-d.ended:
			t.Stop()
			return
		case <-d.moved:
			t.Stop()
		case <-t.C:
			return
		}
	}
}
