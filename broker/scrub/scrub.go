// Package scrub keeps secrets out of what comes back from an upstream.
//
// A [Scrubber] replaces each secret, in the spellings of package needle, by as
// many other octets, in headers, trailers and bodies that are still streaming.
// Where an answer is cut into reads makes no difference to what comes out.
//
// It is best effort. It trusts the upstream not to help a thief: one that
// encrypts, splits or twice encodes what it was sent gets through. It never
// looks at the secret of a request, only at what it was made with.
package scrub

import (
	"net/http"

	"sallyport/broker/needle"
)

// Secret is a value that must not be seen, and what is seen instead.
type Secret struct{ Value, Instead string }

// Scrubber replaces secrets. It is immutable. The nil and the zero Scrubber
// replace nothing.
type Scrubber struct {
	set    *needle.Set
	folded *needle.Set // the spellings in lower case, as names of fields are compared
}

// New returns a Scrubber for some secrets. One shorter than [needle.MinLen] is
// left out: it would be found everywhere.
func New(secrets ...Secret) *Scrubber {
	var all []needle.Needle
	for i, s := range secrets {
		all = append(all, needle.Spellings([]byte(s.Value), []byte(s.Instead), i)...)
		all = append(all, beginnings(s, i)...)
	}
	var folded []needle.Needle
	for _, n := range all {
		if !n.Escapable { // names hold no escapes, and nothing that was encoded twice
			continue
		}
		low := lowered(nil, string(n.Text))
		folded = append(folded, needle.Needle{Text: low, Instead: low, Value: n.Value})
	}
	return &Scrubber{needle.NewSet(all), needle.NewSet(folded)}
}

// maxCut is the length above which a beginning of a secret is not looked for: that of
// a long token says who made it, and for whom.
const maxCut = 128

// beginnings are the first half of a secret, and more: messages are cut short, also
// where they repeat what was sent. Each has eight octets at least that its stand-in
// does not begin with.
func beginnings(s Secret, id int) (out []needle.Needle) {
	if len(s.Value) > maxCut {
		return nil
	}
	known := 0
	for known < min(len(s.Value), len(s.Instead)) && s.Value[known] == s.Instead[known] {
		known++
	}
	for eighths := 4; eighths < 8; eighths++ {
		n := max((len(s.Value)*eighths+7)/8, known+needle.MinLen)
		if n >= len(s.Value) {
			break
		}
		by := make([]byte, n)
		for i := range by {
			by[i] = 'x'
		}
		copy(by, s.Instead)
		out = append(out, needle.Needle{Text: []byte(s.Value[:n]), Instead: by, Value: id})
	}
	return out
}

// idle reports that there is nothing to look for.
func (s *Scrubber) idle() bool { return s == nil || s.set == nil || s.set.Len() == 0 }

// Text returns text without secrets, and text itself if it has none.
func (s *Scrubber) Text(text string) string {
	if s.idle() {
		return text
	}
	h, ok := needle.Next(s.set, text, 0)
	if !ok {
		return text
	}
	out := []byte(text)
	for ok {
		h.Cover(out[h.At:h.At+h.Len], 0)
		h, ok = needle.Next(s.set, text, h.At+h.Len)
	}
	return string(out)
}

// Header takes the secrets out of the values of h. A field whose name holds one
// in any case is dropped: a server has no reason to name a field so, and names are
// written anew on the way (RFC 9113 section 8.2).
func (s *Scrubber) Header(h http.Header) {
	if s.idle() {
		return
	}
	var room [64]byte
	for name, values := range h {
		if _, ok := needle.Next(s.folded, lowered(room[:0], name), 0); ok {
			delete(h, name)
			continue
		}
		for i, v := range values {
			values[i] = s.Text(v)
		}
	}
}

// lowered appends s to dst with the letters of ASCII in lower case.
func lowered(dst []byte, s string) []byte {
	for i := range len(s) {
		c := s[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		dst = append(dst, c)
	}
	return dst
}
