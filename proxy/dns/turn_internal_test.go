package dns

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestOneTurnAtATime: the next worker reads when the one before gives its turn away,
// or has taken too long; never before, and no two for one turn that was given twice.
func TestOneTurnAtATime(t *testing.T) {
	tests := []struct {
		name string
		do   func(w *turn)
		next bool
	}{
		{"waits for a datagram", func(*turn) {}, false},
		{"answers", func(w *turn) { w.begin() }, false},
		{"is done", func(w *turn) { w.begin(); w.end(); time.Sleep(2 * patience) }, false},
		{"waits for somebody", func(w *turn) { w.begin(); w.end(); w.give() }, true},
		{"takes too long", func(w *turn) { w.begin(); time.Sleep(2 * patience) }, true},
		{"takes too long, and waits", func(w *turn) { w.begin(); time.Sleep(2 * patience); w.give() }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := newTurns()
				first, got := all.worker(), 0
				first.take()
				tt.do(first)
				others := []*turn{all.worker(), all.worker()}
				for _, w := range others {
					go func() {
						w.take()
						got++
					}()
				}
				synctest.Wait()
				if want := map[bool]int{true: 1}[tt.next]; got != want {
					t.Errorf("%d others have a turn, want %d", got, want)
				}
				for range len(others) + 1 { // twin: in the end everybody gets one
					for _, w := range append(others, first) {
						w.give()
						synctest.Wait()
					}
				}
				if got != len(others) {
					t.Errorf("%d of %d got a turn in the end", got, len(others))
				}
			})
		})
	}
}
