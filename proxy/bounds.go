package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"

	"sallyport/rules"
)

// What a bound says to the log when it is reached.
var (
	errConns      = errors.New("too many connections")
	errHandshakes = errors.New("too many handshakes under way")
	errRequests   = errors.New("too many requests under way")
	errH2Conns    = errors.New("too many HTTP/2 connections, and the client speaks nothing else")
	errQuiet      = errors.New("nothing was sent either way for too long")
	errLifetime   = errors.New("open for as long as a connection may be")
)

// maxWait is how long what comes too fast is held back before it is refused: a
// client that waits for its answers is slowed down, and never refused.
const maxWait = time.Second

// paced holds a request or a stream of a cell back while there are too many. The
// error says that it is to be refused, and why.
func (s *Server) paced(ctx context.Context, cell string) error {
	wait := s.rate.Take(cell, s.cfg.Now(), maxWait)
	if wait == 0 {
		return nil
	}
	timer := time.NewTimer(min(wait, maxWait))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done(): // gone; the gate says so
	}
	if wait > maxWait {
		return fmt.Errorf("more than %d requests a second", s.cfg.Limits.RequestRate)
	}
	return nil
}

// boundedBy returns the reason for which a stream was cut, if that was a bound, or
// the log that is down.
func (st *stream) boundedBy() rules.Reason {
	switch err := st.because(nil); {
	case errors.Is(err, errQuiet), errors.Is(err, errLifetime):
		return rules.Limit
	case errors.Is(err, errUnrecorded):
		return rules.AuditUnavailable
	}
	return ""
}

// offer is the GetConfigForClient of all streams: who cannot have another HTTP/2
// connection is not offered one.
func (s *Server) offer(h *tls.ClientHelloInfo) (*tls.Config, error) {
	st := streamOf(h.Conn)
	if st.run.draining.Load() {
		return s.tlsH1, nil // HTTP/2 takes no connection any more
	}
	if !slices.Contains(h.SupportedProtos, "h2") {
		return nil, nil //nolint:nilnil // the configuration at hand
	}
	if st.takeH2() {
		st.hand()
		return nil, nil //nolint:nilnil // as above
	}
	if !slices.ContainsFunc(h.SupportedProtos, func(p string) bool { return slices.Contains(s.tlsH1.NextProtos, p) }) {
		return nil, errH2Conns
	}
	return s.tlsH1, nil
}

// takeH2 counts the stream among the HTTP/2 connections of its cell; false: there
// are enough.
func (st *stream) takeH2() bool {
	st.countsH2 = st.countsH2 || st.run.h2Conns.Take(st.cell)
	return st.countsH2
}

// hand has the end of the server wait until the stream is HTTP/2's, or handed says
// that it will not be.
func (st *stream) hand() {
	st.run.handing.RLock()
	st.handing.Store(true)
}

func (st *stream) handed() {
	if st.handing.CompareAndSwap(true, false) {
		st.run.handing.RUnlock()
	}
}

// giveH2 gives back what takeH2 took.
func (st *stream) giveH2() {
	if st.countsH2 {
		st.countsH2 = false
		st.run.h2Conns.Give(st.cell)
	}
}
