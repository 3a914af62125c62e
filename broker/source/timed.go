package source

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"sallyport/broker/secret"
)

// timedKeep is how long an answer of a slow store is used before it is asked
// again: what takes a second must not be part of every request.
const timedKeep = time.Minute

// timed asks a slow store for all who wait at once, and keeps the answer for
// timedKeep, never longer, whatever the next one says.
type timed struct {
	ask  func(context.Context) ([]byte, error)
	now  func() time.Time
	turn chan struct{} // holds one token: who has it may ask

	mu    sync.Mutex // guards what follows
	kept  []byte
	until time.Time
	gone  int // how often forget was called
}

func newTimed(now func() time.Time, ask func(context.Context) ([]byte, error)) *timed {
	t := &timed{ask: ask, now: now, turn: make(chan struct{}, 1)}
	t.turn <- struct{}{}
	return t
}

// get returns the secret, for the caller to wipe.
func (t *timed) get(ctx context.Context) (secret.Value, error) {
	if v, ok := t.fresh(); ok {
		return v, nil
	}
	select {
	case <-t.turn:
		defer func() { t.turn <- struct{}{} }()
	case <-ctx.Done():
		return secret.Value{}, fmt.Errorf("waiting for another's turn: %w", context.Cause(ctx))
	}
	if v, ok := t.fresh(); ok { // the one before us asked
		return v, nil
	}
	t.mu.Lock()
	gone := t.gone
	t.mu.Unlock()
	b, err := t.ask(ctx)
	if err != nil {
		return secret.Value{}, err
	}
	v, err := finish(b)
	if err != nil {
		return secret.Value{}, fmt.Errorf("what it gave: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if gone == t.gone {
		clear(t.kept)
		t.kept, t.until = bytes.Clone(v.Reveal()), t.now().Add(timedKeep)
	}
	return v, nil
}

// fresh returns a copy of an answer that is not too old.
func (t *timed) fresh() (secret.Value, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kept == nil || !t.now().Before(t.until) {
		clear(t.kept)
		t.kept = nil
		return secret.Value{}, false
	}
	return secret.New(bytes.Clone(t.kept)), true
}

func (t *timed) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.kept)
	t.kept = nil
	t.gone++
}
