package slack_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sallyport/control/slack"
)

// slacks returns what each thread of this process has, in nanoseconds.
func slacks(t *testing.T) map[string]string {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, th := range threads {
		text, err := os.ReadFile(filepath.Join("/proc", th.Name(), "timerslack_ns"))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) { // has ended meanwhile
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		out[th.Name()] = strings.TrimSpace(string(text))
	}
	return out
}

// TestTake: the threads that there are have it, among them the runtime's own, and those
// that come later.
func TestTake(t *testing.T) {
	err := slack.Take(slack.Late)
	if errors.Is(err, syscall.ENOTSUP) {
		return // built with cgo, which the program is not: test/e2e looks at that
	}
	if err != nil {
		t.Fatal(err)
	}
	before := slacks(t)
	stay := make(chan struct{})
	started := make(chan struct{})
	for range 4 {
		go func() {
			runtime.LockOSThread() // a thread for each
			defer runtime.UnlockOSThread()
			started <- struct{}{}
			<-stay
		}()
	}
	for range 4 {
		<-started
	}
	after := slacks(t)
	close(stay)
	if len(before) < 2 || len(after) <= 4 {
		t.Errorf("%d threads, then %d", len(before), len(after))
	}
	want := strconv.FormatInt(slack.Late.Nanoseconds(), 10)
	for thread, got := range after {
		if got != want {
			t.Errorf("thread %s has a slack of %s ns, want %s", thread, got, want)
		}
	}
}
