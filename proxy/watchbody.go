package proxy

import (
	"errors"
	"io"
	"net/http"

	"sallyport/rules/gate"
)

// watchedBody is a body as it is sent. Who looks into it may refuse the rest. That is
// noted, whatever becomes of what was sent: upstream may have answered before, or answer
// to the part that it got before its connection is closed.
type watchedBody struct {
	io.ReadCloser
	x *exchange
}

func (x *exchange) watchBody(out *http.Request) {
	if out.Body != nil && out.Body != http.NoBody {
		out.Body = &watchedBody{out.Body, x}
	}
}

// Read implements [io.Reader].
func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if denied, ok := errors.AsType[*gate.DeniedError](err); ok {
		b.x.refused.CompareAndSwap(nil, denied)
	}
	return n, err
}
