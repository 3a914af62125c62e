package broker

import (
	"context"
	"time"

	"sallyport/broker/sign"
)

// lineOp is where the gateway opens the line that the answers it holds hang on
// (ADR-0023).
const lineOp = "/v1/line"

// holdOf returns for how long the gateway may hold an answer.
func (s *Server) holdOf(b *bound) time.Duration {
	if _, ok := b.scheme.(sign.Steady); !ok {
		return 0
	}
	return max(s.cfg.Hold, 0)
}

// usesReport tells how often an answer was used that was held.
type usesReport struct {
	Credential string `json:"credential"`
	Uses       int64  `json:"uses"`
}

// used counts the requests that were not asked about.
func (s *Server) used(_ context.Context, in usesReport) (struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.uses[in.Credential]; u != nil && in.Uses > 0 {
		u.last = s.cfg.Now()
		u.count += in.Uses
	}
	return struct{}{}, nil
}
