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
	"math"
	"net/http"
	"sync"

	"sallyport/broker/needle"
)

// Secret is a value that must not be seen, and what is seen instead.
type Secret struct{ Value, Instead string }

// Scrubber replaces secrets. It is immutable. The nil and the zero Scrubber
// replace nothing.
type Scrubber struct {
	set *needle.Set
	// folded finds the spellings in lower case, as names of fields are compared. Most
	// names are shorter than any: then it need not be made.
	folded   func() *needle.Set
	shortest int
}

// New returns a Scrubber for some secrets. One shorter than [needle.MinLen] is
// left out: it would be found everywhere.
func New(secrets ...Secret) *Scrubber {
	known := make([]Known, len(secrets))
	for i, s := range secrets {
		known[i] = Know(s)
	}
	return Of(known...)
}

// Known is a secret of which the spellings were made. They are most of the work of
// making a Scrubber, and are kept as long as the secret is.
type Known struct {
	Secret
	needles []needle.Needle
}

// Know makes the spellings of a secret.
func Know(s Secret) Known {
	return Known{s, append(needle.Spellings([]byte(s.Value), []byte(s.Instead), 0), beginnings(s)...)}
}

// Of is [New] for secrets that are known.
func Of(secrets ...Known) *Scrubber {
	out, n := &Scrubber{shortest: math.MaxInt}, 0
	for _, s := range secrets {
		n += len(s.needles)
		if len(s.needles) > 0 {
			out.shortest = min(out.shortest, len(s.Value))
		}
	}
	all := make([]needle.Needle, 0, n)
	for _, s := range secrets {
		all = append(all, s.needles...)
	}
	out.set, out.folded = needle.NewSet(all), sync.OnceValue(func() *needle.Set { return folded(all) })
	return out
}

// folded makes the set for names: they hold no escapes, and nothing that was encoded
// twice.
func folded(all []needle.Needle) *needle.Set {
	var out []needle.Needle
	for _, n := range all {
		if n.Escapable {
			low := lowered(nil, string(n.Text))
			out = append(out, needle.Needle{Text: low, Instead: low})
		}
	}
	return needle.NewSet(out)
}

// maxCut is the length above which a beginning of a secret is not looked for: that of
// a long token says who made it, and for whom.
const maxCut = 128

// beginnings are the first half of a secret, and more: messages are cut short, also
// where they repeat what was sent. Each has eight octets at least that its stand-in
// does not begin with.
func beginnings(s Secret) (out []needle.Needle) {
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
		out = append(out, needle.Needle{Text: []byte(s.Value[:n]), Instead: by})
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
		if len(name) >= s.shortest {
			if _, ok := needle.Next(s.folded(), lowered(room[:0], name), 0); ok {
				delete(h, name)
				continue
			}
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
