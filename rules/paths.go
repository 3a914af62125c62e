package rules

import (
	"fmt"
	"slices"
	"strings"

	"sallyport/rules/target"
)

// PathPattern is a compiled path pattern: see [ParsePathPattern]. The zero
// PathPattern matches nothing.
type PathPattern struct {
	text     string
	segments []string // as written; star and stars stand for themselves
	loose    []string // star, stars or "=" and a folded literal; no final empty segment
}

const (
	star  = "*"
	stars = "**"
	// literal begins a literal in loose form, where an escaped star is decoded.
	literal = "="

	maxPattern  = 1024
	maxSegments = 32 // keeps a match linear in the path: DS-15
)

// ParsePathPattern reads a pattern of canonical path segments in which "*"
// stands for one segment that is not empty, and "**" for any number of
// segments, none included. A star is a whole segment; a literal one is %2A.
//
// A pattern that no canonical path can match, because it is spelled in another
// way or has two readings, is an error, which gives the right spelling.
func ParsePathPattern(s string) (PathPattern, error) {
	switch {
	case len(s) > maxPattern:
		return PathPattern{}, fmt.Errorf("path pattern longer than %d octets", maxPattern)
	case strings.ContainsAny(s, "?#"):
		return PathPattern{}, fmt.Errorf("path pattern %q: a pattern has no query or fragment; queries are not judged", s)
	}
	path, err := target.ParsePath(s)
	if err != nil {
		return PathPattern{}, err
	}
	if path.String() != s {
		return PathPattern{}, fmt.Errorf("path pattern %q: not in canonical form; write %q", s, path.String())
	}
	if path.Ambiguous() {
		return PathPattern{}, fmt.Errorf("path pattern %q: servers read it in two ways (dot or empty segment, encoded slash, backslash, semicolon)", s)
	}
	p := PathPattern{text: s, segments: strings.Split(s[1:], "/")}
	if len(p.segments) > maxSegments {
		return PathPattern{}, fmt.Errorf("path pattern %q: more than %d segments", s, maxSegments)
	}
	for i, seg := range p.segments {
		switch {
		case seg == stars && i > 0 && p.segments[i-1] == stars:
			return PathPattern{}, fmt.Errorf("path pattern %q: write ** once", s)
		case seg != star && seg != stars && strings.Contains(seg, star):
			return PathPattern{}, fmt.Errorf("path pattern %q: a star stands for a whole segment; write a literal one as %%2A", s)
		}
		p.loose = append(p.loose, fold(seg))
	}
	if n := len(p.loose); p.loose[n-1] == literal {
		p.loose = p.loose[:n-1]
	}
	return p, nil
}

// String returns the pattern as it was written.
func (p PathPattern) String() string { return p.text }

// Match reports whether an allow rule or a lock with p covers path: segment by
// segment, exactly. An ambiguous path and the zero Path match nothing.
func (p PathPattern) Match(path target.Path) bool {
	if p.text == "" || path.IsZero() || path.Ambiguous() {
		return false
	}
	return match(p.segments, path.String()[1:], false, exactSegment)
}

// matchLoosely is Match for a deny rule, which must not be walked round by
// another spelling of the same place: the case of ASCII letters, escapes and a
// final slash make no difference, since they make none to many servers.
func (p PathPattern) matchLoosely(path target.Path) bool {
	if p.text == "" || path.IsZero() {
		return false
	}
	rest := strings.TrimRight(path.String()[1:], "/")
	return match(p.loose, rest, rest == "", looseSegment)
}

// match walks the segments of rest, a path without its first slash; none says
// that it has no segment at all. When a literal fails, the last "**" takes one
// segment more: earlier ones need no second try.
func match(pattern []string, rest string, none bool, equal func(pattern, seg string) bool) bool {
	const end = -1
	at, i := 0, 0
	if none {
		at = end
	}
	backI, backAt := -1, 0
	for {
		if i < len(pattern) && pattern[i] == stars {
			backI, backAt = i, at
			i++
			continue
		}
		if at == end {
			return i == len(pattern) // a "**" left over was taken above
		}
		seg, next := rest[at:], end
		if n := strings.IndexByte(seg, '/'); n >= 0 {
			seg, next = seg[:n], at+n+1
		}
		if i < len(pattern) && equal(pattern[i], seg) {
			i, at = i+1, next
			continue
		}
		if backI < 0 || backAt == end {
			return false
		}
		if n := strings.IndexByte(rest[backAt:], '/'); n >= 0 {
			backAt += n + 1
		} else {
			backAt = end
		}
		i, at = backI+1, backAt
	}
}

func exactSegment(pattern, seg string) bool {
	return pattern == seg || pattern == star && seg != ""
}

// looseSegment compares a folded pattern with a segment as it came.
func looseSegment(pattern, seg string) bool {
	if pattern == star {
		return true
	}
	n := len(literal)
	for i := 0; i < len(seg); i++ {
		c := seg[i]
		if c == '%' && i+2 < len(seg) {
			c = unhex(seg[i+1])<<4 | unhex(seg[i+2])
			i += 2
		}
		if n == len(pattern) || pattern[n] != lower(c) {
			return false
		}
		n++
	}
	return n == len(pattern)
}

// fold decodes a canonical segment and lowers its ASCII letters.
func fold(seg string) string {
	if seg == star || seg == stars {
		return seg
	}
	b := append(make([]byte, 0, len(seg)+1), literal...)
	for i := 0; i < len(seg); i++ {
		c := seg[i]
		if c == '%' {
			c = unhex(seg[i+1])<<4 | unhex(seg[i+2])
			i += 2
		}
		b = append(b, lower(c))
	}
	return string(b)
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

func unhex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c <= 'F':
		return c - 'A' + 10
	default:
		return c - 'a' + 10
	}
}

// Covers reports whether every path that q matches is matched by p. It never
// says yes wrongly; it may say no to patterns that differ in the order of
// stars only.
func (p PathPattern) Covers(q PathPattern) bool {
	return p.text != "" && q.text != "" && covers(p.segments, q.segments)
}

// covers fills a table from the end: ok[j] says whether what is left of p
// covers q[j:].
func covers(p, q []string) bool {
	ok := make([]bool, len(q)+1)
	ok[len(q)] = true
	for _, seg := range slices.Backward(p) {
		next := make([]bool, len(q)+1)
		for j := len(q); j >= 0; j-- {
			switch {
			case seg == stars:
				next[j] = ok[j] || j < len(q) && next[j+1]
			case j == len(q) || q[j] == stars:
			default:
				next[j] = ok[j+1] && (seg == q[j] || seg == star && q[j] != "")
			}
		}
		ok = next
	}
	return ok[0]
}

// overlaps reports whether some path is matched by both patterns.
func (p PathPattern) overlaps(q PathPattern) bool { return overlaps(p.segments, q.segments) }

func overlaps(p, q []string) bool {
	// reach[j]: what is left of q is q[j:] and may still meet what is left of p.
	reach := make([]bool, len(q)+1)
	reach[0] = true
	spread := func() { // "**" in q may stand for nothing
		for j := range q {
			if reach[j] && q[j] == stars {
				reach[j+1] = true
			}
		}
	}
	spread()
	for _, seg := range p {
		next := make([]bool, len(q)+1)
		if seg == stars { // takes any number of q's segments
			on := false
			for j := range reach {
				on = on || reach[j]
				next[j] = on
			}
		} else {
			for j := range q {
				switch {
				case !reach[j]:
				case q[j] == stars:
					next[j] = true // the star takes seg and goes on
				case seg == q[j], seg == star && q[j] != "", q[j] == star && seg != "":
					next[j+1] = true
				}
			}
		}
		reach = next
		spread()
	}
	return reach[len(q)]
}
