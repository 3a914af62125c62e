package proxy_test

import (
	"sync"
	"testing"

	"go.uber.org/goleak"

	"sallyport/proxy"
)

// TestCrew: no job waits for another to end, those who are idle do most of the
// next ones, and who dismisses them waits for the last.
func TestCrew(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	const jobs = 3 * proxy.MaxIdleCrew
	c := proxy.NewCrew()
	for range 2 {
		release := make(chan struct{})
		var begun, ended sync.WaitGroup
		begun.Add(jobs)
		ended.Add(jobs)
		for range jobs {
			c.Run(func() {
				begun.Done()
				<-release
				ended.Done()
			})
		}
		begun.Wait() // all at the same time
		close(release)
		ended.Wait()
	}
	last := false
	begun := make(chan struct{})
	c.Run(func() { close(begun); last = true })
	<-begun
	c.Dismiss()
	if !last {
		t.Error("the last job was not waited for")
	}
	late := make(chan struct{})
	c.Run(func() { close(late) })
	<-late
	if n := c.Idle(); n != 0 {
		t.Errorf("%d are idle after all", n)
	}
}
