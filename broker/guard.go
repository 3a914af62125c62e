package broker

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"sallyport/broker/needle"
	"sallyport/rules"
	"sallyport/rules/gate"
)

// guard has the body of r fail where a placeholder is in it: no credential is
// bound to a body, so one there is a leak (CR-16). The read that would complete
// the placeholder gives nothing more and a [*gate.DeniedError]; the transport
// then breaks the request off. Trailers are looked at when the body ends. What a
// field of a credential of type body held has been replaced by then.
//
// The error is the refusal of a body that cannot be looked into.
func (cc *clientCell) guard(p gate.Pass, r *http.Request) error {
	if cc == nil || cc.finder == nil {
		return nil
	}
	// What is compressed cannot be looked at, in either direction.
	delete(r.Header, "Sec-Websocket-Extensions")
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	r.Body = &guarded{ReadCloser: r.Body, finder: cc.finder, r: r, pass: p}
	return cc.unpack(p, r)
}

// guarded searches a body as it is read. It never holds octets back: a part of a
// placeholder is of no use to anybody.
type guarded struct {
	io.ReadCloser
	finder *finder
	r      *http.Request
	pass   gate.Pass
	last   []byte // the end of what was read before, where a placeholder may begin
	err    error  // of the refusal, told again
}

// Read implements [io.Reader].
func (g *guarded) Read(p []byte) (int, error) {
	if g.err != nil {
		return 0, g.err
	}
	n, err := g.ReadCloser.Read(p)
	if name, leaked := g.look(p[:n]); leaked {
		return 0, g.refuse(name, "body")
	}
	if errors.Is(err, io.EOF) {
		if err := g.trailers(); err != nil {
			return 0, err
		}
	}
	return n, err
}

// trailers looks at what came behind the body, each line by itself and all of a field
// together.
func (g *guarded) trailers() error {
	for key, values := range g.r.Trailer {
		for _, v := range append(slices.Clip(values), strings.Join(values, "")) {
			if h, ok := needle.Next(g.finder.set, v, 0); ok {
				return g.refuse(g.finder.credential(h.Needle), "trailer "+http.CanonicalHeaderKey(key))
			}
		}
	}
	return nil
}

func (g *guarded) refuse(credential, where string) error {
	clear(g.r.Trailer)
	d := g.pass.Decision()
	d.Credential = credential // which the request need not be granted
	g.err = &gate.DeniedError{
		Reason: rules.PlaceholderLeak, ID: g.pass.ID(), Decision: d,
		Err: fmt.Errorf("the placeholder of %q is in the %s", credential, where),
	}
	return g.err
}

// look searches b and the border between it and what came before.
func (g *guarded) look(b []byte) (credential string, leaked bool) {
	text := b
	if n := len(g.last); n > 0 {
		near := min(len(b), border)
		g.last = append(g.last, b[:near]...)
		if near == len(b) || g.begins(n) {
			g.last = append(g.last, b[near:]...)
			text = g.last
		}
	}
	keep := len(text) // from where one may begin that has not ended
	for from := 0; ; {
		h, ok := g.finder.set.NextPart(text, from)
		switch {
		case !ok:
			g.last = append(g.last[:0], text[keep:]...)
			return "", false
		case h.Whole:
			return g.finder.credential(h.Needle), true
		}
		keep, from = min(keep, h.At), h.At+1
	}
}

// begins reports whether a placeholder begins in the first n octets of last.
func (g *guarded) begins(n int) bool {
	h, ok := g.finder.set.NextPart(g.last, 0)
	return ok && h.At < n
}

// border is how much of what comes next is looked at for how that goes on which began
// before. Where that does not say, all of it is.
const border = 512
