package proxy

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"

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
	out := gate.Outcome{Status: x.status, Sent: x.sent.Load(), Received: x.received, Reason: cmp.Or(x.reason, x.st.boundedBy()), Err: x.st.because(x.hidden(x.err))}
	x.mu.Lock()
	out.Addr = x.addr
	x.mu.Unlock()
	if x.kept != nil {
		var err error
		if out.Data, err = x.endKeeping(); err != nil {
			out.Err = errors.Join(out.Err, err)
		}
	}
	return out
}

// endKeeping survives what it breaks on, which a sandbox or an upstream wrote: the request
// is over, and the record of that is due.
func (x *exchange) endKeeping() (data json.RawMessage, err error) {
	defer func() {
		if v := recover(); v != nil {
			x.cfg.Log.Error("panic while a body was kept", "panic", v, "cell", x.st.cell, "host", x.form.endpoint.String())
			data, err = nil, errNotKept
		}
	}()
	return x.kept.Done(), nil
}

var errNotKept = errors.New("panic while what was said was kept")

// hidden is an error as records may have it: what an upstream sent may stand in it (the
// last words of an HTTP/2 connection, the name of a field), and so what it was sent.
func (x *exchange) hidden(err error) error {
	if err == nil || x.cfg.Hide == nil {
		return err
	}
	text := err.Error()
	shown := x.cfg.Hide(x.st.cell, text)
	if shown == "" { // nothing is known of the cell any more
		shown = cited.ReplaceAllString(text, `"…"`)
	}
	if shown == text {
		return err
	}
	return &hiddenError{shown, err}
}

// cited is what errors cite.
var cited = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// hiddenError is an error with another text.
type hiddenError struct {
	text string
	err  error
}

// Error implements error.
func (e *hiddenError) Error() string { return e.text }

// Unwrap returns the error itself.
func (e *hiddenError) Unwrap() error { return e.err }
