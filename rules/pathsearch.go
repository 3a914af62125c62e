package rules

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sallyport/rules/target"
)

// ErrTooManyPaths says that a question about path patterns has more cases than
// are looked at: it has no answer, and must be taken as a refusal.
var ErrTooManyPaths = errors.New("too many path patterns meet here to be told apart")

// maxPathStates bounds a search. Patterns without "**" need few states, and
// each "**" multiplies them.
const maxPathStates = 1 << 15

// FindPath returns a path that a pattern of in matches, as an allow rule does,
// that one of within matches and none of out matches, as deny rules do. Empty
// in and within stand for every path. Where there is none, found is false; it
// is exact. Only paths with one reading are looked at.
//
// Patterns are walked side by side, one segment a step, over the segments that
// some pattern can tell apart: its literals, their other spellings, and one
// that none of them names.
func FindPath(in, within, out []PathPattern) (p target.Path, found bool, err error) {
	s := pathSearch{in: len(in), within: len(within)}
	for _, x := range in {
		s.patterns = append(s.patterns, x.segments)
	}
	for _, x := range slices.Concat(within, out) {
		s.patterns = append(s.patterns, x.loose)
	}
	text, err := s.run()
	if text == "" || err != nil {
		return target.Path{}, false, err
	}
	if p, err = target.ParsePath(text); err != nil {
		return p, false, fmt.Errorf("a path that patterns ask for: %w", err)
	}
	return p, true, nil
}

// pathSearch walks patterns side by side: first those of in, then of within,
// the rest are of out.
type pathSearch struct {
	patterns   [][]string
	in, within int
}

// places are the positions in a pattern that a path so far may have come to,
// one bit each. maxSegments keeps them within 64.
type places uint64

type pathNode struct {
	at     []places // one for each pattern
	parent int
	seg    string
}

func (s *pathSearch) run() (string, error) {
	first := make([]places, len(s.patterns))
	for i, p := range s.patterns {
		first[i] = spreadPlaces(p, 1)
	}
	nodes := []pathNode{{at: first, parent: -1}}
	seen := map[string]bool{keyOfPlaces(first): true}
	letters := s.letters()
	for n := 0; n < len(nodes); n++ {
		if end, ok := s.ends(nodes[n].at, n > 0); ok {
			return pathTo(nodes, n) + end, nil
		}
		for _, seg := range letters {
			next := make([]places, len(s.patterns))
			for i, p := range s.patterns {
				next[i] = s.step(i, p, nodes[n].at[i], seg)
			}
			if key := keyOfPlaces(next); s.alive(next) && !seen[key] {
				seen[key] = true
				nodes = append(nodes, pathNode{next, n, seg})
			}
		}
		if len(nodes) > maxPathStates {
			return "", ErrTooManyPaths
		}
	}
	return "", nil
}

func pathTo(nodes []pathNode, n int) string {
	var b strings.Builder
	var segs []string
	for ; n > 0; n = nodes[n].parent {
		segs = append(segs, nodes[n].seg)
	}
	for _, seg := range slices.Backward(segs) {
		b.WriteString("/" + seg)
	}
	return b.String()
}

func keyOfPlaces(list []places) string {
	b := make([]byte, 0, 8*len(list))
	for _, p := range list {
		for ; p >= 0x80; p >>= 7 {
			b = append(b, byte(p)|0x80)
		}
		b = append(b, byte(p))
	}
	return string(b)
}

func (s *pathSearch) step(i int, pattern []string, at places, seg string) places {
	equal := looseSegment
	if i < s.in {
		equal = exactSegment
	}
	var next places
	for k, p := range pattern {
		switch {
		case at>>k&1 == 0:
		case p == stars:
			next |= 1 << k
		case equal(p, seg):
			next |= 1 << (k + 1)
		}
	}
	return spreadPlaces(pattern, next)
}

// spreadPlaces adds where "**" leads when it stands for nothing.
func spreadPlaces(pattern []string, at places) places {
	for k, p := range pattern {
		if p == stars && at>>k&1 == 1 {
			at |= 1 << (k + 1)
		}
	}
	return at
}

// alive reports whether what has to match still can.
func (s *pathSearch) alive(at []places) bool {
	some := func(list []places) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(p places) bool { return p != 0 })
	}
	return some(at[:s.in]) && some(at[s.in:s.in+s.within])
}

// ends returns how a path can end here, plainly or with a slash. A final slash
// is a segment to those that match exactly, and nothing to the others.
func (s *pathSearch) ends(at []places, begun bool) (end string, ok bool) {
	done := func(from, to int, slash bool) (yes bool) {
		for i := from; i < to && !yes; i++ {
			p := at[i]
			if slash {
				p = s.step(i, s.patterns[i], p, "")
			}
			yes = p>>len(s.patterns[i])&1 == 1
		}
		return yes
	}
	mid := s.in + s.within
	if s.within > 0 && !done(s.in, mid, false) || done(mid, len(s.patterns), false) {
		return "", false
	}
	switch {
	case begun && (s.in == 0 || done(0, s.in, false)):
		return "", true
	case s.in == 0 || done(0, s.in, true):
		return "/", true
	default:
		return "", false
	}
}

// letters are the segments that matter: no two others are told apart.
func (s *pathSearch) letters() []string {
	exact, folded := map[string]bool{}, map[string]bool{}
	for i, pattern := range s.patterns {
		for _, seg := range pattern {
			switch {
			case seg == star, seg == stars, seg == "", seg == literal:
			case i < s.in:
				exact[seg] = true
			default:
				folded[seg] = true
			}
		}
	}
	fresh := "any"
	for exact[fresh] || folded[fold(fresh)] {
		fresh += "-"
	}
	out := append([]string{fresh}, slices.Sorted(maps.Keys(exact))...)
	for _, seg := range slices.Sorted(maps.Keys(folded)) {
		if other, ok := otherSpelling(seg[len(literal):], exact); ok {
			out = append(out, other)
		}
	}
	return out
}

// otherSpelling returns a canonical segment that folds to s and is none of
// those that are taken.
func otherSpelling(s string, taken map[string]bool) (string, bool) {
	for n := range len(taken) + 1 {
		spelled, more := spell(s, n)
		if !more {
			return "", false
		}
		if !taken[spelled] {
			return spelled, true
		}
	}
	return "", false
}

// spell writes s in its n-th spelling: bits of n say which letters are in upper
// case and which signs are escaped. more is false once all were shown.
func spell(s string, n int) (spelled string, more bool) {
	const signs = "!$&'()*+,=:@" // RFC 3986 section 3.3, in either form
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		letter, sign := 'a' <= c && c <= 'z', strings.IndexByte(signs, c) >= 0
		plain := letter || sign || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
		other := false
		if letter || sign {
			other, n = n&1 == 1, n>>1
		}
		switch {
		case letter && other:
			b.WriteByte(c - 'a' + 'A')
		case plain && !other:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String(), n == 0
}
