package proxy

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"

	"sallyport/rules/gate"
)

// Keeper takes copies of what one exchange carries, where the rule says to.
// Request is called by the goroutine that sends the request, the others by the
// one that answers; what is handed over must not be kept after the call.
type Keeper interface {
	// Request takes a piece of the request's body, as the sandbox sent it.
	Request(p []byte)
	// Answer takes the head of upstream's answer, without its secrets.
	Answer(status int, head http.Header)
	// Body takes a piece of its body, likewise.
	Body(p []byte)
	// Done ends it, and returns what the closing record says of it.
	Done() json.RawMessage
}

// keep begins to take copies of an admitted request, if its rule says so.
func (x *exchange) keep() {
	if x.cfg.Keep != nil && x.pass.Decision().Log.Bodies() {
		x.kept = x.cfg.Keep(x.pass, x.in)
	}
}

// keepSent hands over a piece of the request's body.
func (x *exchange) keepSent(p []byte) {
	if x.kept != nil && len(p) > 0 {
		x.kept.Request(p)
	}
}

// keptBody hands over what is read of upstream's answer.
type keptBody struct {
	io.ReadCloser
	kept Keeper
}

// Read implements [io.Reader].
func (b *keptBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.kept.Body(p[:n])
	}
	return n, err
}

// outcome is what the closing record says.
func (x *exchange) outcome() gate.Outcome {
	out := gate.Outcome{Status: x.status, Sent: x.sent.Load(), Received: x.received, Reason: cmp.Or(x.reason, x.st.boundedBy()), Err: x.st.because(x.err)}
	x.mu.Lock()
	out.Addr = x.addr
	x.mu.Unlock()
	if x.kept != nil {
		out.Data = x.kept.Done()
	}
	return out
}
