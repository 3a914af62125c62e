package proxy

import (
	"sync"
	"sync/atomic"
)

// maxIdleCrew is how many goroutines wait for another job. Their stacks shrink
// meanwhile like any other's.
const maxIdleCrew = 64

// crew runs jobs on goroutines that have done others before. A stream's goroutine
// needs a stack of some depth: to grow it anew each time was a tenth of what a
// tunnel cost (docs/performance.md).
type crew struct {
	jobs chan func()   // taken by who is idle, and only then
	quit chan struct{} // closed when there will be no more
	idle atomic.Int32
	all  sync.WaitGroup

	mu    sync.Mutex // guards ended, and all from more after it
	ended bool
}

func newCrew() *crew { return &crew{jobs: make(chan func()), quit: make(chan struct{})} }

// run has job done, and does not wait for it.
func (c *crew) run(job func()) {
	select {
	case c.jobs <- job:
	default:
		c.hire(job)
	}
}

// hire has job done by somebody new.
func (c *crew) hire(job func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		go job() // part of an HTTP/2 request that is being cut; who handles it waits
		return
	}
	c.all.Go(func() { c.work(job) })
}

func (c *crew) work(job func()) {
	for job != nil {
		job()
		job = c.next()
	}
}

// next waits for another job; nil: there are enough who do.
func (c *crew) next() func() {
	defer c.idle.Add(-1)
	if c.idle.Add(1) > maxIdleCrew {
		return nil
	}
	select {
	case job := <-c.jobs:
		return job
	case <-c.quit:
		return nil
	}
}

// dismiss waits for the last job.
func (c *crew) dismiss() {
	c.mu.Lock()
	c.ended = true
	close(c.quit)
	c.mu.Unlock()
	c.all.Wait()
}
