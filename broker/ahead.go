package broker

import (
	"context"
	"sync"
	"time"

	"sallyport/broker/sign"
)

const (
	// maxAhead is how many credentials have tokens made ahead at once.
	maxAhead = 8
	// aheadRest is kept after a failure: neither a source nor a token endpoint that
	// is down is asked in a loop.
	aheadRest = 5 * time.Second
)

// ahead is what [Server.Refresh] knows of a credential.
type ahead struct {
	busy bool
	rest time.Time // until here it is left alone
}

// Refresh makes the tokens that are in use anew ahead of their end, so that no
// request waits for one, until ctx ends. It is the only one who does so, for all
// credentials: those of one are made one after the other.
func (s *Server) Refresh(ctx context.Context) {
	var children sync.WaitGroup
	defer children.Wait()
	known, done := map[*bound]*ahead{}, make(chan *bound, maxAhead)
	for {
		due, next := s.dueAhead(known)
		for _, b := range due {
			known[b].busy = true
			children.Go(func() {
				s.renew(ctx, b)
				done <- b
			})
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-s.wake:
		case b := <-done:
			known[b].busy, known[b].rest = false, s.cfg.Now().Add(aheadRest)
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// aheadIdle is how long Refresh waits where nothing is due: it is woken when
// something changes.
const aheadIdle = time.Hour

// dueAhead returns the credentials whose tokens are due, as many as may begin now, and
// how long to wait for the next. It forgets credentials that are no longer in force.
func (s *Server) dueAhead(known map[*bound]*ahead) (due []*bound, wait time.Duration) {
	wait = aheadIdle
	now, creds, busy := s.cfg.Now(), *s.creds.Load(), 0
	for b, a := range known {
		switch {
		case a.busy:
			busy++
		case creds[b.name] != b:
			delete(known, b)
		}
	}
	for _, b := range creds {
		r, ok := b.scheme.(sign.Renewer)
		if !ok || b.revoked {
			continue
		}
		if known[b] == nil {
			known[b] = &ahead{}
		}
		at := r.Due()
		switch {
		case at.IsZero() || known[b].busy:
			continue
		case known[b].rest.After(at):
			at = known[b].rest
		}
		switch {
		case at.After(now):
			wait = min(wait, at.Sub(now))
		case busy+len(due) < maxAhead: // the others are looked at when one is done
			due = append(due, b)
		}
	}
	return due, wait
}

// renew makes the tokens of a credential that are due. A request that needs one says
// why there is none; here it is told as long as nobody has noticed.
func (s *Server) renew(ctx context.Context, b *bound) {
	v, err := b.usable(ctx)
	if err == nil {
		err = b.scheme.(sign.Renewer).Renew(ctx, v) //nolint:forcetypeassert // dueAhead looked
		v.Wipe()
	}
	if err != nil && ctx.Err() == nil {
		s.cfg.Log.WarnContext(ctx, "a token could not be made ahead; the one in use serves until its end", "credential", b.name, "cause", err)
	}
}

// tokensChanged tells Refresh that other tokens are due.
func (s *Server) tokensChanged() {
	select {
	case s.wake <- struct{}{}:
	default: // it has been told
	}
}
