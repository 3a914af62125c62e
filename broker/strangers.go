package broker

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"sallyport/broker/needle"
	"sallyport/control"
	"sallyport/rules"
)

// strangers knows the placeholders of every cell, so that one which turns up in
// another cell's request is recognised: it was carried over, whatever the host. It
// is immutable.
//
// A rolling hash over windows of markLen octets finds candidates; a map tells. That
// costs the same for one placeholder and for ten thousand.
type strangers struct {
	seen  [bloomBits / 64]uint64 // one bit for each hash of a mark
	marks map[string]mark        // the last markLen octets of a placeholder, also as names of hosts have it
	alone string                 // the only cell that has any, "" for several
}

// mark says whose a placeholder is.
type mark struct{ cell, credential string }

func (m mark) carry(state rules.CarryState) rules.Carry {
	return rules.Carry{Credential: m.credential, State: state}
}

const (
	markLen   = 16
	bloomBits = 1 << 16
	prime     = 0x100000001b3 // of FNV-1, 64 bits
)

// primeOut is prime to the power of markLen: what the oldest octet of a window has
// been multiplied by when it leaves.
var primeOut = func() uint64 {
	out := uint64(1)
	for range markLen {
		out *= prime
	}
	return out
}()

func bit(hash uint64) (word int, mask uint64) {
	n := hash >> 48 & (bloomBits - 1)
	return int(n / 64), 1 << (n % 64)
}

// newStrangers returns nil if there is nothing to tell apart.
func newStrangers(cells map[string]*clientCell) *strangers {
	s := &strangers{marks: map[string]mark{}}
	having := 0
	for cell, cc := range cells {
		if cc.finder == nil {
			continue
		}
		having++
		s.alone = cell
		for _, g := range cc.finder.grants {
			s.add(cell, g.Credential, g.Placeholder)
			for _, v := range g.More {
				s.add(cell, g.Credential, valueText(v))
			}
		}
	}
	if having == 0 {
		return nil
	}
	if having > 1 {
		s.alone = ""
	}
	return s
}

// valueText is what a value is recognised by: a document by its id.
func valueText(v control.Value) string {
	if v.ID != "" {
		return v.ID
	}
	return v.Placeholder
}

// add notes a placeholder. Documents and connection strings end in what is not
// theirs alone; their parts are noted instead.
func (s *strangers) add(cell, credential, placeholder string) {
	if len(placeholder) < markLen || !isTokenText(placeholder) {
		return
	}
	s.addEnd(placeholder, mark{cell, credential})
	s.addEnd(string(needle.AppendName(nil, placeholder)), mark{cell, credential})
}

func (s *strangers) addEnd(placeholder string, of mark) {
	if len(placeholder) < markLen {
		return
	}
	end := placeholder[len(placeholder)-markLen:]
	s.marks[end] = of
	var h uint64
	for i := range markLen {
		h = h*prime + uint64(end[i])
	}
	word, mask := bit(h)
	s.seen[word] |= mask
}

// isTokenText reports whether s is of the characters of tokens alone.
func isTokenText(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isAlnum(c) && !strings.ContainsRune("-_.+/=", rune(c)) {
			return false
		}
	}
	return true
}

// find tells what the head of a request of a cell holds of other cells'
// placeholders: plain, and in HTTP basic authentication.
func (s *strangers) find(cell string, r *http.Request) (out []rules.Carry) {
	if s == nil || s.alone == cell {
		return nil
	}
	add := func(c rules.Carry) {
		if !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	look := func(text string) {
		if m, ok := marked(s, cell, text); ok {
			add(m.carry(rules.Leaked))
		}
	}
	look(r.RequestURI)
	if m, ok := s.inHost(cell, r.Host); ok {
		add(m.carry(rules.LeakedInHost))
	}
	if r.URL != nil {
		look(r.URL.Path)
		look(r.URL.RawQuery)
	}
	for name, values := range r.Header {
		look(name)
		for _, v := range values {
			look(v)
			if scheme, rest, ok := strings.Cut(v, " "); ok && strings.EqualFold(scheme, "basic") {
				if pair, err := base64.StdEncoding.DecodeString(strings.TrimSpace(rest)); err == nil {
					look(string(pair))
				}
			}
		}
	}
	return out
}

// marked returns a placeholder of another cell in a text.
func marked[T needle.Text](s *strangers, cell string, text T) (mark, bool) {
	var h uint64
	for i := range len(text) {
		h = h*prime + uint64(text[i])
		if i >= markLen {
			h -= uint64(text[i-markLen]) * primeOut
		}
		if i < markLen-1 {
			continue
		}
		if word, mask := bit(h); s.seen[word]&mask == 0 {
			continue
		}
		if m, ok := s.marks[string(text[i-markLen+1:i+1])]; ok && m.cell != cell {
			return m, true
		}
	}
	return mark{}, false
}
