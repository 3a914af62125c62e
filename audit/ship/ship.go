// Package ship hands the records of a log to collectors while they are written.
//
// The files are the truth and the queue: a shipper follows the segments from a
// bookmark on, so that nothing of it is in the way of whoever writes the log,
// and a collector that is down misses nothing but what retention removes
// meanwhile. What could not be handed over is told, to be recorded. It trusts
// neither the text of the log nor a collector's answers, and dials nobody
// itself.
package ship

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"sallyport/audit"
	"sallyport/audit/query"
	"sallyport/control/durable"
)

// Config is what a shipper needs. Dir, Bookmark, Target, Send, Tell and Now are required.
type Config struct {
	Dir      string // of the log
	Bookmark string // file that keeps how far it is; only one shipper may have it
	Target   string // how records name the collector; no secret

	// Send hands records over, all or none, and returns when the collector has
	// them. A [*RejectedError] means that it will never take them; any other
	// error that it may later. It is not called by two goroutines at once.
	Send func(context.Context, []audit.Record) error
	// Tell records that something was dropped, that the collector is out of
	// reach, or that it is back.
	Tell func(context.Context, audit.Record) error

	Now      func() time.Time
	Batch    int           // records handed over at once; default 500
	Linger   time.Duration // how long a batch waits to be full; default 1 s
	Retry    time.Duration // after a failure, doubled up to 60 times it; default 1 s
	Patience time.Duration // until failing is told; default 1 min
	Grace    time.Duration // for what is left when it is to stop; default 5 s
}

// RejectedError says that a collector will not take what it was sent, however
// often. If Count is not 0 it took the rest.
type RejectedError struct {
	Count int64
	Err   error
}

// Error implements error.
func (e *RejectedError) Error() string { return "the collector refuses records: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *RejectedError) Unwrap() error { return e.Err }

// LaterError says when to try again.
type LaterError struct {
	After time.Duration
	Err   error
}

// Error implements error.
func (e *LaterError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *LaterError) Unwrap() error { return e.Err }

// Notice is the data of a record of kind ship.
type Notice struct {
	Target  string     `json:"target"`
	Cause   string     `json:"cause"`             // missing rejected behind back
	Dropped int64      `json:"dropped,omitempty"` // records that the collector does not get
	First   uint64     `json:"first,omitempty"`   // their numbers, or those among which they are
	Last    uint64     `json:"last,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
}

// The causes of a notice.
const (
	Missing  = "missing"  // no longer in the log (retention), or no records
	Rejected = "rejected" // by the collector
	Behind   = "behind"   // the collector has been out of reach since then
	Back     = "back"     // and takes records again
)

// Run ships until ctx ends, and then for the time of grace what is left. Its
// error is about the log, the bookmark or a notice, never about the collector.
func Run(ctx context.Context, cfg Config) error {
	setDefaults(&cfg)
	s := &shipper{Config: cfg, queue: make(chan audit.Record, cfg.Batch)}
	var err error
	if s.state, err = ReadState(cfg.Bookmark); err != nil {
		return err
	}
	s.state.Target, s.state.Behind, s.state.Error = cfg.Target, nil, "" // in the file until it is known anew
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	both, hard := errgroup.WithContext(hard)
	ended := make(chan struct{})
	from := s.state.Next
	both.Go(func() error {
		defer close(s.queue)
		return s.read(ctx, hard, from)
	})
	both.Go(func() error {
		defer close(ended)
		return s.send(hard)
	})
	both.Go(func() error {
		select {
		case <-ctx.Done():
		case <-ended:
			return nil
		}
		t := time.NewTimer(cfg.Grace)
		defer t.Stop()
		select {
		case <-ended:
		case <-t.C:
			cancel()
		}
		return nil
	})
	err = both.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // what is left is for the next time
	}
	return err
}

func setDefaults(cfg *Config) {
	if cfg.Batch == 0 {
		cfg.Batch = 500
	}
	for _, d := range []struct {
		of    *time.Duration
		value time.Duration
	}{{&cfg.Linger, time.Second}, {&cfg.Retry, time.Second}, {&cfg.Patience, time.Minute}, {&cfg.Grace, 5 * time.Second}} {
		if *d.of == 0 {
			*d.of = d.value
		}
	}
}

type shipper struct {
	Config
	queue chan audit.Record // between the files and the collector; bounded
	state State
	down  time.Time // since when the collector has failed; zero if it does not
	told  bool      // that it does

	refused refused // of the batch that is handed over
}

// read fills the queue with what is there from a record on, until ctx ends and
// the log has been read.
func (s *shipper) read(ctx, hard context.Context, from uint64) error {
	for r, err := range query.FollowFrom(ctx, s.Dir, from) {
		if _, bad := errors.AsType[*query.LineError](err); bad {
			continue // its number will be missed
		}
		if err != nil {
			return fmt.Errorf("shipping to %s: %w", s.Target, err)
		}
		select {
		case s.queue <- r:
		case <-hard.Done():
			return hard.Err()
		}
	}
	return nil
}

// send empties the queue, in batches.
func (s *shipper) send(ctx context.Context) error {
	for {
		batch, more := s.gather(ctx)
		if len(batch) > 0 {
			if err := s.deliver(ctx, batch); err != nil {
				return err
			}
		}
		if !more {
			return ctx.Err()
		}
	}
}

// gather waits for a record, and a while for others; more is false at the end.
func (s *shipper) gather(ctx context.Context) (batch []audit.Record, more bool) {
	var full <-chan time.Time
	for len(batch) < s.Batch {
		select {
		case r, ok := <-s.queue:
			if !ok {
				return batch, false
			}
			batch = append(batch, r)
			if full == nil {
				t := time.NewTimer(s.Linger)
				defer t.Stop()
				full = t.C
			}
		case <-full:
			return batch, true
		case <-ctx.Done():
			return nil, false
		}
	}
	return batch, true
}

// deliver hands a batch over, telling first what is missing before or in it.
func (s *shipper) deliver(ctx context.Context, batch []audit.Record) error {
	next := s.state.Next
	for _, r := range batch {
		if r.Seq > next {
			n := Notice{Cause: Missing, Dropped: int64(r.Seq - next), First: next, Last: r.Seq - 1}
			if err := s.tell(ctx, n, "records were removed from the log before they could be shipped"); err != nil {
				return err
			}
			s.state.Dropped += n.Dropped
		}
		next = r.Seq + 1
	}
	s.refused = refused{}
	if err := s.hand(ctx, batch); err != nil {
		return err
	}
	if err := s.tellRefused(ctx); err != nil {
		return err
	}
	s.state.Next = next
	return s.mark(ctx)
}

// mark writes the bookmark. It waits for room on a full disk: whoever begins again hands
// over again what he has no mark of.
func (s *shipper) mark(ctx context.Context) error {
	for delay := s.Retry; ; delay = min(2*delay, 60*s.Retry) {
		err := s.state.write(s.Bookmark)
		if !durable.NoRoom(err) {
			return err
		}
		if stopped := pause(ctx, delay); stopped != nil {
			return err
		}
	}
}

// hand tries until the collector has taken or refused every record.
func (s *shipper) hand(ctx context.Context, batch []audit.Record) error {
	for delay := s.Retry; ; delay = min(2*delay, 60*s.Retry) {
		err := s.Send(ctx, batch)
		if no, rejected := errors.AsType[*RejectedError](err); rejected {
			return s.rejected(ctx, batch, no)
		}
		if err == nil {
			return s.reached(ctx)
		}
		if err := s.failing(ctx, err); err != nil {
			return err
		}
		wait := delay
		if later, ok := errors.AsType[*LaterError](err); ok {
			wait = max(wait, min(later.After, 60*s.Retry))
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// rejected finds out which records of a batch are refused by halving it, so
// that one odd record does not keep back others.
func (s *shipper) rejected(ctx context.Context, batch []audit.Record, no *RejectedError) error {
	if no.Count == 0 && len(batch) > 1 {
		half := len(batch) / 2
		if err := s.hand(ctx, batch[:half]); err != nil {
			return err
		}
		return s.hand(ctx, batch[half:])
	}
	if err := s.reached(ctx); err != nil {
		return err
	}
	s.refused.add(batch, no)
	return nil
}

// refused is what a collector did not take of a batch.
type refused struct {
	records     int64
	first, last uint64
	notices     int64  // apart from those: what was a notice itself
	notice      uint64 // the first of them
	lastNotice  uint64
	why         error
}

func (f *refused) add(batch []audit.Record, no *RejectedError) {
	n, first, last := min(max(no.Count, 1), int64(len(batch))), batch[0].Seq, batch[len(batch)-1].Seq
	if !slices.ContainsFunc(batch, func(r audit.Record) bool { return r.Kind != audit.Ship }) {
		if f.notices == 0 {
			f.notice = first
		}
		f.notices, f.lastNotice = f.notices+n, last
		return
	}
	if f.records == 0 {
		f.first, f.why = first, no.Err
	}
	f.records, f.last = f.records+n, last
}

// tellRefused tells once what was refused of a batch, however many records it is. A notice
// about each notice would never end: those are told with the next of other records.
func (s *shipper) tellRefused(ctx context.Context) error {
	f := s.refused
	if f.notices > 0 && s.state.Untold == 0 {
		s.state.UntoldFirst = f.notice
	}
	s.state.Untold += f.notices
	s.state.Dropped += f.notices + f.records
	if f.records == 0 {
		return nil
	}
	n := Notice{Cause: Rejected, Dropped: f.records, First: f.first, Last: f.last}
	if s.state.Untold > 0 {
		n.Dropped, n.First, n.Last = n.Dropped+s.state.Untold, min(n.First, s.state.UntoldFirst), max(n.Last, f.lastNotice)
	}
	if err := s.tell(ctx, n, f.why.Error()); err != nil {
		return err
	}
	s.state.Untold, s.state.UntoldFirst = 0, 0
	return nil
}

// failing tells, once, that the collector has been out of reach for a while.
func (s *shipper) failing(ctx context.Context, cause error) error {
	now := s.Now()
	if s.down.IsZero() {
		s.down = now
	}
	if s.told || now.Sub(s.down) < s.Patience {
		return nil
	}
	s.told = true
	since := s.down.UTC()
	s.state.Behind, s.state.Error = &since, cause.Error()
	if err := s.mark(ctx); err != nil {
		return err
	}
	return s.tell(ctx, Notice{Cause: Behind, Since: &since}, cause.Error())
}

// reached tells, if the contrary was told, that the collector takes records.
func (s *shipper) reached(ctx context.Context) error {
	since, told := s.down.UTC(), s.told
	s.down, s.told = time.Time{}, false
	if !told {
		return nil
	}
	s.state.Behind, s.state.Error = nil, ""
	return s.tell(ctx, Notice{Cause: Back, Since: &since}, "")
}

// tell has a notice recorded. It goes on trying: who records may start later.
func (s *shipper) tell(ctx context.Context, n Notice, text string) error {
	n.Target = s.Target
	data, err := json.Marshal(n)
	if err != nil {
		return err
	}
	for delay := s.Retry; ; delay = min(2*delay, 60*s.Retry) {
		if err := s.Tell(ctx, audit.Record{Kind: audit.Ship, Error: text, Data: data}); err == nil {
			return nil
		}
		if err := pause(ctx, delay); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// State is what a bookmark keeps: how far a shipper is, and how it fares.
type State struct {
	Target  string     `json:"target,omitempty"`
	Next    uint64     `json:"next"`              // number of the record that is to be handed over next
	Dropped int64      `json:"dropped,omitempty"` // records that the collector did not get, since the bookmark began
	Behind  *time.Time `json:"behind,omitempty"`  // since when the collector has been out of reach, once that was told
	Error   string     `json:"error,omitempty"`   // why
	// Untold of the dropped were notices, from a number on: the next notice tells.
	Untold      int64  `json:"untold,omitempty"`
	UntoldFirst uint64 `json:"untold_first,omitempty"`
}

// ReadState reads a bookmark. Where there is none, nothing was shipped yet.
func ReadState(path string) (State, error) {
	var s State
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return State{}, fmt.Errorf("reading the bookmark %s: %w", path, err)
	}
	return s, nil
}

// write replaces the file whole. Its name is not synced: after a crash of the machine
// records are handed over again, not left out.
func (s *State) write(path string) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = f.Write(append(data, '\n'))
		err = errors.Join(err, f.Sync(), f.Close()) // one that is renamed before could be empty
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return fmt.Errorf("writing the bookmark: %w", err)
	}
	return nil
}
