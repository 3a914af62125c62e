package broker

import (
	"io"
	"net/http"
)

// Unframe takes the signatures of chunks out of a body, as for a request that is
// signed anew.
func Unframe(r *http.Request, trailer bool) (io.ReadCloser, int64, error) {
	m, err := message{}.signedChunks(r, trailer)
	return m.body, m.length, err
}
