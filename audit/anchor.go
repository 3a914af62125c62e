package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
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
		l.marks.mu.Lock()
		msg := l.marks.msg
		l.marks.mu.Unlock()
		err := l.take(a, msg)
		switch {
		case err != nil && behind.IsZero() && !l.stopping():
			behind = l.cfg.Now()
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
// replaced whole.
func AnchorFile(path string) AnchorTo {
	return AnchorTo{"file " + path, func(_ context.Context, checkpoint []byte) error {
		tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
		if err != nil {
			return fmt.Errorf("writing the anchor: %w", err)
		}
		defer os.Remove(tmp.Name()) //nolint:errcheck // gone already once it is renamed
		_, err = tmp.Write(checkpoint)
		if err := errors.Join(err, tmp.Chmod(modeFile), tmp.Sync(), tmp.Close()); err != nil {
			return fmt.Errorf("writing the anchor: %w", err)
		}
		if err := os.Rename(tmp.Name(), path); err != nil {
			return fmt.Errorf("writing the anchor: %w", err)
		}
		return nil
	}}
}
