package proxy

import (
	"errors"
	"fmt"
)

// headBoundError says which bound a request head is beyond: the same head never passes,
// so nobody is told to wait.
type headBoundError struct{ most string }

// Error implements error.
func (e *headBoundError) Error() string { return "the request head is over a bound: " + e.most }

// beyondHead returns the bound that an error says a head is beyond, "" for none.
func beyondHead(err error) string {
	if over, ok := errors.AsType[*headBoundError](err); ok {
		return over.most
	}
	return ""
}

// largeHead is the bound of all of a head's octets.
func (s *Server) largeHead() error {
	return &headBoundError{fmt.Sprintf("%d octets at most", s.cfg.Limits.HeaderBytes)}
}

// linesBound is the bound of a head's lines.
func linesBound(most int) error {
	return &headBoundError{fmt.Sprintf("%d header lines at most", most)}
}
