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

// Work bounds what searches for paths may do together. It is not safe for
// concurrent use.
type Work struct {
	// Left is how many steps of one pattern over one segment are left: some ten
	// millions a second. Once they are spent, searches return [ErrTooManyPaths].
	Left int
	// Stop, if not nil, is asked again and again: its error ends a search.
	Stop func() error
}

// Spend takes steps off what is left, which is enough for them if there is no error.
func (w *Work) Spend(steps int) error {
	if w == nil {
		return nil
	}
	if w.Stop != nil {
		if err := w.Stop(); err != nil {
			return err
		}
	}
	if w.Left -= steps; w.Left < 0 {
		return ErrTooManyPaths
	}
	return nil
}

// PathQuestion asks for a path. An empty list in In or Within stands for every
// path.
type PathQuestion struct {
	In     [][]PathPattern // of each list, one matches as that of an allow rule does
	Within [][]PathPattern // of each list, one matches as that of a deny rule does
	NotIn  []PathPattern   // none matches as that of an allow rule does
	Out    []PathPattern   // none matches as that of a deny rule does
	Work   *Work           // nil for no bound beside that of one search
}

// Find returns a path that is as q asks. Where there is none, found is false; it
// is exact. Only paths with one reading are looked at.
//
// Patterns are walked side by side, one segment a step, over the segments that
// some pattern can tell apart: its literals, their other spellings, and one
// that none of them names.
func (q PathQuestion) Find() (p target.Path, found bool, err error) {
	var s pathSearch
	for _, list := range q.In {
		s.group(list, true)
	}
	for _, list := range q.Within {
		s.group(list, false)
	}
	s.none = len(s.patterns)
	s.add(q.NotIn, true)
	s.add(q.Out, false)
	text, err := s.run(q.Work)
	if text == "" || err != nil {
		return target.Path{}, false, err
	}
	if p, err = target.ParsePath(text); err != nil {
		return p, false, fmt.Errorf("a path that patterns ask for: %w", err)
	}
	return p, true, nil
}

// pathSearch walks patterns side by side: first groups of which one has to
// match, then those that must not.
type pathSearch struct {
	patterns [][]string
	exact    []bool   // matched as those of allow rules are
	groups   [][2]int // from, to
	none     int      // patterns from here on must not match
}

func (s *pathSearch) add(list []PathPattern, exact bool) {
	for _, x := range list {
		segments := x.loose
		if exact {
			segments = x.segments
		}
		s.patterns, s.exact = append(s.patterns, segments), append(s.exact, exact)
	}
}

func (s *pathSearch) group(list []PathPattern, exact bool) {
	if len(list) > 0 {
		from := len(s.patterns)
		s.add(list, exact)
		s.groups = append(s.groups, [2]int{from, len(s.patterns)})
	}
}

// places are the positions in a pattern that a path so far may have come to,
// one bit each. maxSegments keeps them within 64.
type places uint64

type pathNode struct {
	at     []places // one for each pattern
	parent int
	seg    string
}

func (s *pathSearch) run(work *Work) (string, error) {
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
		if err := work.Spend(len(letters) * len(s.patterns)); err != nil {
			return "", err
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
	if s.exact[i] {
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
	for _, g := range s.groups {
		if !slices.ContainsFunc(at[g[0]:g[1]], func(p places) bool { return p != 0 }) {
			return false
		}
	}
	return true
}

// ends returns how a path can end here, plainly or with a slash. A path is at
// least a slash.
func (s *pathSearch) ends(at []places, begun bool) (end string, ok bool) {
	switch {
	case begun && s.accepts(at, false):
		return "", true
	case s.accepts(at, true):
		return "/", true
	default:
		return "", false
	}
}

// accepts reports whether a path that ends here is as it is asked for. A final
// slash is a segment to those that match exactly, and nothing to the others.
func (s *pathSearch) accepts(at []places, slash bool) bool {
	done := func(from, to int) bool {
		for i := from; i < to; i++ {
			p := at[i]
			if slash && s.exact[i] {
				p = s.step(i, s.patterns[i], p, "")
			}
			if p>>len(s.patterns[i])&1 == 1 {
				return true
			}
		}
		return false
	}
	for _, g := range s.groups {
		if !done(g[0], g[1]) {
			return false
		}
	}
	return !done(s.none, len(s.patterns))
}

// letters are the segments that matter: no two others are told apart.
func (s *pathSearch) letters() []string {
	exact, folded := map[string]bool{}, map[string]bool{}
	for i, pattern := range s.patterns {
		for _, seg := range pattern {
			switch {
			case seg == star, seg == stars, seg == "", seg == literal && !s.exact[i]: // an exact one is a segment of its own
			case s.exact[i]:
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
