package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// A log never holds old records that no checkpoint covers, or else who can
// write its files could cut the checkpoints off and write what they like.
const (
	// SignWithin is the longest time between the oldest record that is not
	// covered and the next record: its writer signs in between.
	SignWithin = 1500 * time.Millisecond
	// Young is the longest time that the records beyond the last checkpoint may
	// span. A record that brings its own time may be late by the difference.
	Young = 2 * time.Second
)

// After reports whether an anchor was signed after the last checkpoint of a
// log, nil for none. A checkpoint is in the log before it is anywhere else, so
// the log was then cut back, or is an old copy.
func (c Checkpoint) After(last *Checkpoint) bool {
	return last == nil || c.Number > last.Number || c.Tree.N > last.Tree.N
}

// ErrUncovered is wrapped by what [Tail.End] returns.
var ErrUncovered = errors.New("the checkpoints were cut, or the records are not the log's")

// Tail is what is known of the records beyond the last checkpoint. Nothing is
// signed over them, so they must be what a log can hold there: the records of a
// moment, or what opens it after a crash.
type Tail struct {
	First  int64 // number of the first of them
	Signed bool  // there is a checkpoint before them
	Closed bool  // the record before them, or the last of them, is log.close

	n            int64
	since        time.Time // of the first of them
	opened       bool      // a log.open is among them: what follows it is signed first
	oldest, last time.Time
	fault        string
}

// Add takes the next line.
func (t *Tail) Add(line []byte) error {
	var r struct {
		Kind string
		Time time.Time
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return fmt.Errorf("this is not a record: %w", err)
	}
	t.n++
	if t.n == 1 {
		t.since = r.Time
	}
	opens := r.Kind == "log.open"
	t.opened = t.opened || opens
	switch own := opens || r.Kind == "gap"; {
	case t.Closed && !opens:
		t.wrong("record %d follows the end of a closed log", t.First+t.n-1)
	case !own && !t.Signed:
		t.wrong("a log is signed before its first record of that kind, %q", r.Kind)
	case !own && t.opened:
		t.wrong("a log is signed when it is opened, before record %d", t.First+t.n-1)
	case !t.opened:
		t.span(r.Time)
	}
	t.Closed = r.Kind == "log.close"
	return nil
}

// Since is the time of the first record, zero if there is none.
func (t *Tail) Since() time.Time { return t.since }

func (t *Tail) span(at time.Time) {
	if t.oldest.IsZero() || at.Before(t.oldest) {
		t.oldest = at
	}
	if at.After(t.last) {
		t.last = at
	}
	if d := t.last.Sub(t.oldest); d > Young {
		t.wrong("they span %v, and a checkpoint is signed every half second", d.Round(time.Millisecond))
	}
}

func (t *Tail) wrong(format string, args ...any) {
	if t.fault == "" {
		t.fault = fmt.Sprintf(format, args...)
	}
}

// End returns nil if the records are such that a log may end with them.
// anchored tells that the last checkpoint is known to be the newest that was
// signed: then the process may have died while it closed the log.
func (t *Tail) End(anchored bool) error {
	if t.n > 0 && t.Closed && !anchored {
		t.wrong("a log that was closed is signed to its end")
	}
	if t.fault == "" {
		return nil
	}
	which := fmt.Sprintf("%d records from %d on are", t.n, t.First)
	if t.n == 1 {
		which = fmt.Sprintf("record %d is", t.First)
	}
	return fmt.Errorf("%s covered by no checkpoint (%s): %w", which, t.fault, ErrUncovered)
}
