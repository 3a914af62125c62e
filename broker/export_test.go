package broker

import (
	"io"
	"net/http"
)

// StandIn is what a sandbox gets for a secret.
func StandIn(secret string) (text string, parts []string, err error) {
	s, err := newStandIn([]byte(secret))
	return s.text, s.parts, err
}

// Unframe takes the signatures of chunks out of a body, as for a request that is
// signed anew.
func Unframe(r *http.Request, trailer bool) (io.ReadCloser, int64, error) {
	m, err := message{}.signedChunks(r, trailer)
	return m.body, m.length, err
}
