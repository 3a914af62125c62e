package needle

import (
	"bytes"
	"math/bits"
	"slices"
)

// Set finds any of its needles in one pass over a text. It is immutable.
//
// A window as long as the shortest needle moves over the text. Each place of it that a
// needle may take holds one of the fours of octets that are looked at, a window apart:
// where such a four is in no needle, which is nearly everywhere, none is near. What is
// looked at next does not depend on what was found, so that the processor looks ahead.
// Elsewhere the method is Wu and Manber's (A Fast Algorithm for Multi-Pattern Searching,
// 1994): a table says for the last three octets of the window how far it may jump. The
// cost falls with the length of the needles and hardly rises with their number. Needles
// that are escaped in part are looked for at the octets that introduce escapes.
type Set struct {
	needles []Needle
	window  int // at least MinLen, at most maxWindow
	layers  *layers
	fours   fours // of the needles' windows
	stride  int   // how many there are in a window
	shift   uint  // of the hash, to the size of the table
	// less is how much shorter a jump is than the longest: a fresh table is right for
	// what is in no needle.
	less []uint8
	// head and next chain the needles whose window ends alike, the longest first: at
	// one place it wins. An entry is an index plus one, 0 ends a chain.
	head, next []uint16
	// first and alike chain the needles by their first octet, as they came.
	first [256]uint16
	alike []uint16
}

const (
	minBits = 10 // of an index of the table
	maxBits = 16
	// maxWindow is the longest jump. Longer ones would save little, and the table is
	// made for all octets of all windows.
	maxWindow = 40
	headBits  = 10
)

// hash maps three octets to a place in tables of 1<<(32-shift) entries
// (multiplicative hashing; Knuth, The Art of Computer Programming, 6.4).
func hash(a, b, c byte, shift uint) uint32 {
	return (uint32(a) | uint32(b)<<8 | uint32(c)<<16) * spread >> (shift & 31)
}

// NewSet makes a Set. Needles shorter than [MinLen] are left out, as are more
// than 65,535.
func NewSet(needles []Needle) *Set {
	s := &Set{window: maxWindow, needles: make([]Needle, 0, len(needles))}
	order := make([]uint64, 0, len(needles)) // by length, then as they came, the last first
	for _, n := range needles {
		if len(n.Text) >= MinLen && len(s.needles) < 1<<16-1 {
			order = append(order, uint64(len(n.Text))<<16|uint64(1<<16-1-len(s.needles)))
			s.needles = append(s.needles, n)
			s.window = min(s.window, len(n.Text))
		}
	}
	slices.Sort(order)
	s.layers = newLayers(s.needles)
	// A table in which most entries are free: then most jumps are whole windows.
	size := min(max(bits.Len(uint(8*s.window*len(s.needles))), minBits), maxBits)
	s.shift = uint(32 - size)
	s.less, s.head, s.next = make([]uint8, 1<<size), make([]uint16, 1<<headBits), make([]uint16, len(s.needles))
	s.alike = make([]uint16, len(s.needles))
	s.stride = s.window - 3
	s.fours = newFours(s.stride * len(s.needles))
	for i := len(s.needles) - 1; i >= 0; i-- {
		c := s.needles[i].Text[0]
		s.alike[i], s.first[c] = s.first[c], uint16(i+1)
	}
	for _, o := range order {
		i := 1<<16 - 1 - int(o&(1<<16-1))
		text, h := s.needles[i].Text[:s.window], uint32(0)
		for end := 2; end < len(text); end++ {
			h = hash(text[end-2], text[end-1], text[end], s.shift)
			s.less[h] = max(s.less[h], uint8(end-1))
		}
		for at := range s.stride {
			s.fours.add(text, at)
		}
		s.next[i], s.head[h%(1<<headBits)] = s.head[h%(1<<headBits)], uint16(i+1)
	}
	return s
}

// Len returns the number of needles.
func (s *Set) Len() int { return len(s.needles) }

// Hit is where a needle is. Whole is false where the text ends before the
// needle does.
type Hit struct {
	At, Len int // Len is more than that of the needle where octets of it are escaped
	Needle  *Needle
	Whole   bool
}

// Text is what can be searched.
type Text interface{ ~string | ~[]byte }

// Next returns the first whole needle in text at or after from, the longest of
// those that begin there; ok is false if there is none.
func Next[T Text](s *Set, text T, from int) (h Hit, ok bool) {
	if s == nil || len(s.needles) == 0 {
		return Hit{}, false
	}
	h, ok = plainly(s, text, from)
	return before(s.layers, text, from, true, h, ok)
}

// plainly is Next for needles of which nothing is escaped.
func plainly[T Text](s *Set, text T, from int) (h Hit, ok bool) {
	for at := candidate(s, text, from); at >= 0; at = candidate(s, text, at+1) {
		for i := s.chain(text[at+s.window-3], text[at+s.window-2], text[at+s.window-1]); i != 0; i = s.next[i-1] {
			if n := &s.needles[i-1]; len(text)-at >= len(n.Text) && begins(text, at, n.Text) {
				return Hit{at, len(n.Text), n, true}, true
			}
		}
	}
	return Hit{}, false
}

// chain returns the first of the needles whose window may end in three octets.
func (s *Set) chain(a, b, c byte) uint16 { return s.head[hash(a, b, c, s.shift)%(1<<headBits)] }

// candidate returns the first place from at on at which a needle may begin of which the
// text holds a whole window; -1 if there is none.
func candidate[T Text](s *Set, text T, at int) int {
	for last := len(text) - s.window; at <= last; {
		// A needle that begins at one of the next places holds the four at this one.
		p := strange(s, text, at+s.stride-1, last)
		at = p - s.stride + 1
		p = min(p, last)
		if at = jump(s, text, at, p); at <= p {
			return at
		}
	}
	return -1
}

// strange returns the first of the places p, a stride apart and up to last, at which a
// four is that is in a needle; or the first behind last.
func strange[T Text](s *Set, text T, p, last int) int {
	if b, ok := any(text).([]byte); ok {
		p = s.fours.pass(b, p, s.stride, last)
	}
	for p <= last && !holds(&s.fours, text, p) {
		p += s.stride
	}
	return p
}

// jump returns the first place from at to last at which a window may be one of a
// needle's, or some place behind last before which there is none.
func jump[T Text](s *Set, text T, at, last int) int {
	for at <= last {
		end := at + s.window
		j := s.window - 2 - int(s.less[hash(text[end-3], text[end-2], text[end-1], s.shift)])
		if j <= 0 {
			break
		}
		at += j
	}
	return at
}

// NextPart is Next for a text that goes on: a needle that begins here and may
// end in what follows is a hit that is not Whole. Nothing that follows changes
// what stands before it.
func (s *Set) NextPart(text []byte, from int) (h Hit, ok bool) {
	if s == nil || len(s.needles) == 0 {
		return Hit{}, false
	}
	h, ok = s.plainPart(text, from)
	return before(s.layers, text, from, false, h, ok)
}

// plainPart is NextPart for needles of which nothing is escaped.
func (s *Set) plainPart(text []byte, from int) (h Hit, ok bool) {
	for at := candidate(s, text, from); at >= 0; at = candidate(s, text, at+1) {
		for i := s.chain(text[at+s.window-3], text[at+s.window-2], text[at+s.window-1]); i != 0; i = s.next[i-1] {
			n := &s.needles[i-1]
			if begins(text, at, n.Text) {
				return Hit{at, min(len(n.Text), len(text)-at), n, len(text)-at >= len(n.Text)}, true
			}
		}
	}
	// What is left is shorter than the window: it can only begin a needle.
	for at := max(from, len(text)-s.window+1); at < len(text); at++ {
		for i := s.first[text[at]]; i != 0; i = s.alike[i-1] {
			if n := &s.needles[i-1]; bytes.HasPrefix(n.Text, text[at:]) {
				return Hit{at, len(text) - at, n, false}, true
			}
		}
	}
	return Hit{}, false
}

// Settled returns how many octets of text from at, where NextPart found a
// needle that is not whole, are the same whatever follows: as many as every
// needle that begins there has in common with what would replace it, and none
// that may begin another needle.
func (s *Set) Settled(text []byte, at int) int {
	n := len(text) - at
	for i := range s.needles {
		if x := &s.needles[i]; begins(text, at, x.Text) {
			n = min(n, shared(x.Text, x.Instead))
		}
	}
	n = s.layers.settled(text, at, n)
	if h, ok := s.NextPart(text, at+1); ok {
		n = min(n, h.At-at)
	}
	return n
}

func shared(a, b []byte) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// begins reports whether text at a place is the needle, as far as text goes.
func begins[T Text](text T, at int, needle []byte) bool {
	n := min(len(needle), len(text)-at)
	for i := range n {
		if text[at+i] != needle[i] {
			return false
		}
	}
	return true
}
