package broker

import "time"

// A sandbox that asks again and again is refused again and again: the gateway's log
// has each of them, the broker's tells of one a minute.

const (
	tellEvery = time.Minute
	// maxTold bounds what is remembered of what was told.
	maxTold = 1024
)

// refusal is what refusals have in common of which one is told.
type refusal struct{ cell, credential, reason string }

// told is what became of the refusals of a kind.
type told struct {
	last  time.Time
	since int // how many were not told
}

// toldLocked counts a refusal. It reports whether it is to be told, and how many were
// not told since the last that was.
func (s *Server) toldLocked(r refusal) (since int, tell bool) {
	now := s.cfg.Now()
	t, known := s.told[r]
	if known && now.Sub(t.last) < tellEvery {
		t.since++
		s.told[r] = t
		return 0, false
	}
	if s.told == nil || len(s.told) >= maxTold {
		s.told = map[refusal]told{}
	}
	s.told[r] = told{last: now}
	return t.since, true
}
