package audit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sallyport/control/durable"
)

// AnchorTo is a place where checkpoints are kept.
type AnchorTo struct {
	Name string // for records: what it is and where
	// Keep takes a checkpoint there. One goroutine calls it; it must return
	// soon after ctx is done.
	Keep func(ctx context.Context, checkpoint []byte) error
}

const (
	// anchorTimeout bounds one try, and what Close waits for the last one.
	anchorTimeout = 20 * time.Second
	// anchorPause is the longest time between two tries.
	anchorPause = 5 * time.Minute
)

// anchor is an AnchorTo of an open log.
type anchor struct {
	AnchorTo
	fresh chan struct{} // cap 1: there is a checkpoint that it has not got

	mu    sync.Mutex // guards state
	state AnchorState
}

// AnchorState tells how an anchor fares.
type AnchorState struct {
	Name    string     `json:"name"`
	Records uint64     `json:"records"`           // that the newest checkpoint there covers; 0 if it got none yet
	Kept    *time.Time `json:"kept,omitempty"`    // when it got that one
	Waiting uint64     `json:"waiting,omitempty"` // records that are signed and that it does not cover yet
	Behind  *time.Time `json:"behind,omitempty"`  // since when it fails
	Error   string     `json:"error,omitempty"`   // why
}

// Anchors tells of each anchor, in their order.
func (l *Log) Anchors() []AnchorState {
	signed := l.Signed()
	out := make([]AnchorState, 0, len(l.anchors))
	for _, a := range l.anchors {
		a.mu.Lock()
		s := a.state
		a.mu.Unlock()
		if signed > s.Records {
			s.Waiting = signed - s.Records
		}
		out = append(out, s)
	}
	return out
}

// newest returns the newest checkpoint, and how many records it covers.
func (l *Log) newest() (msg []byte, records uint64) {
	l.marks.mu.Lock()
	defer l.marks.mu.Unlock()
	return l.marks.msg, uint64(l.marks.last.Tree.N)
}

// tried notes what became of a try to bring a checkpoint over so many records.
func (a *anchor) tried(now time.Time, records uint64, behind time.Time, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.state = AnchorState{Name: a.Name, Records: records, Kept: &now}
		return
	}
	a.state.Behind, a.state.Error = &behind, err.Error()
}

// ship brings checkpoints to an anchor: the newest one, when there is a new
// one. While that fails it is tried again after pauses that double.
func (l *Log) ship(a *anchor) {
	var behind time.Time // since when it fails
	pause := l.cfg.Interval
	for {
		if behind.IsZero() {
			select {
			case <-l.stop:
				return
			case <-a.fresh:
			}
		} else {
			retry := time.NewTimer(pause)
			select {
			case <-l.stop:
				retry.Stop()
				return
			case <-retry.C:
			}
			pause = min(2*pause, max(anchorPause, l.cfg.Interval))
		}
		msg, records := l.newest()
		err := l.take(a, msg)
		now := l.cfg.Now().UTC()
		if !l.stopping() {
			since := behind
			if since.IsZero() {
				since = now
			}
			a.tried(now, records, since, err)
		}
		switch {
		case err != nil && behind.IsZero() && !l.stopping():
			behind = now
			l.tellAnchor(a, "a checkpoint did not reach the anchor "+a.Name+": "+err.Error(), behind)
		case err == nil && !behind.IsZero():
			l.tellAnchor(a, "", behind)
			behind, pause = time.Time{}, l.cfg.Interval
		}
	}
}

// take makes one try, which ends with the log.
func (l *Log) take(a *anchor, msg []byte) error {
	ctx, cancel := context.WithTimeout(l.life, anchorTimeout)
	defer cancel()
	return a.Keep(ctx, msg)
}

// shipLast brings the last checkpoint to every anchor.
func (l *Log) shipLast(msg []byte) error {
	errs := make([]error, len(l.anchors))
	var all sync.WaitGroup
	for i, a := range l.anchors {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(l.life), anchorTimeout)
			defer cancel()
			if err := a.Keep(ctx, msg); err != nil {
				errs[i] = fmt.Errorf("the log is whole, but its last checkpoint did not reach the anchor %s: %w", a.Name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// freshMark tells every anchor that there is a new checkpoint.
func (l *Log) freshMark() {
	for _, a := range l.anchors {
		select {
		case a.fresh <- struct{}{}:
		default: // ship will find the newest
		}
	}
}

// anchorData is what the data of an anchor record holds.
type anchorData struct {
	Anchor string    `json:"anchor"`
	Since  time.Time `json:"behind_since"`
	Behind bool      `json:"behind"`
}

// tellAnchor records that an anchor fell behind, or is up to date again. If it
// cannot, the log has a fault that tells more.
func (l *Log) tellAnchor(a *anchor, text string, since time.Time) {
	_ = l.write(&Record{Kind: Anchor, Error: text, Data: mustJSON(anchorData{a.Name, since.UTC(), text != ""})})
}

// AnchorFile keeps the newest checkpoint in a file: on another file system, or a
// share that this machine may write to but whose history is kept. The file is
// replaced whole, and anybody may read it: checkpoints are public.
func AnchorFile(path string) AnchorTo {
	return AnchorTo{"file " + path, func(_ context.Context, checkpoint []byte) error {
		if err := durable.Write(path, checkpoint, 0o644, durable.Writer); err != nil {
			return fmt.Errorf("writing the anchor: %w", err)
		}
		return nil
	}}
}
