package proxy

import (
	"errors"
	"fmt"
	"net/http"
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

// overHead says which bound the head of a request is beyond, nil for none. The
// octets of one of HTTP/1 were counted as they came.
func (s *Server) overHead(r *http.Request) error {
	l := s.cfg.Limits
	switch {
	case r.ProtoMajor == 2 && headSize(r) > l.HeaderBytes:
		return s.largeHead()
	case lines(r.Header) > l.HeaderLines:
		return &headBoundError{fmt.Sprintf("%d header lines at most", l.HeaderLines)}
	}
	return nil
}

// headSize is the size of a request head as HTTP/2 counts it (RFC 9113 section
// 6.5.2).
func headSize(r *http.Request) (n int) {
	const each = 32
	n = 4*each + len(r.Method) + len(r.Host) + len(r.RequestURI)
	for name, values := range r.Header {
		for _, v := range values {
			n += each + len(name) + len(v)
		}
	}
	return n
}
