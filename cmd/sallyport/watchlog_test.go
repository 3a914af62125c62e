package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestStreamsAreCutOnceTheLogIsDownForLong: a fault that is over soon cuts
// nothing, and a long one cuts once.
func TestStreamsAreCutOnceTheLogIsDownForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cut, done := make(chan struct{}), make(chan error)
		var fault error
		go func() { done <- watchLog(ctx, func() error { return fault }, cut) }()
		after := func(d time.Duration, err error) {
			time.Sleep(d) // of the bubble's clock
			synctest.Wait()
			fault = err
		}
		cuts := 0
		take := func() {
			select {
			case <-cut:
				cuts++
			default:
			}
		}
		down := errors.New("no space left on device")
		for _, step := range []struct {
			wait time.Duration
			then error // from then on
			want int   // cuts by then
		}{
			{1500 * time.Millisecond, down, 0},
			{4 * time.Second, nil, 0}, // over soon
			{time.Minute, down, 0},
			{openWithoutLog + time.Second, down, 1},
			{time.Minute, nil, 1}, // once
			{time.Second, down, 1},
			{openWithoutLog + time.Second, nil, 2}, // and again
		} {
			after(step.wait, step.then)
			if take(); cuts != step.want {
				t.Errorf("%d cuts by then, want %d", cuts, step.want)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
