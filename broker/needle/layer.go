package needle

import (
	"bytes"
	"html"
	"slices"
)

// Programs escape what they write, some of them more than they need to, and one
// after another. A value of which only some octets are escaped has no spelling
// that could be looked for. It has a first escape, though, and what stands before
// that is plain: at every octet that may introduce an escape, a value is followed
// in both directions, octet by octet, undoing escapes on the way.

const (
	// maxLayers is how many escapes may lie over one another.
	maxLayers = 2
	// mixed is a further reading: what introduces an escape is not escaped, and what
	// follows is escaped once. Otherwise \% would be read as a percent sign.
	mixed = maxLayers + 1
	// maxUnit is how long one octet may be when it is escaped: \u0073 of which
	// every character is written so again.
	maxUnit = 48
	// maxSpan is how long a value that is escaped in part may be, beyond its own
	// length: this much is held back where an answer stops inside of it.
	maxSpan = 4 << 10
)

// introduces tells the octets with which escapes and line breaks begin.
var introduces = [256]bool{'%': true, '\\': true, '&': true, '=': true, '\r': true, '\n': true}

// state is how far something could be read.
type state uint8

const (
	none  state = iota
	part        // the text ends first
	whole       // all of it
)

// layers finds needles of which some octets are escaped. It is immutable.
type layers struct {
	needles []*Needle
	longest int
	lines   bool // needles of several lines are among them
	// head and next chain the places in needles by the octet there and the one
	// before, as in a Set; firsts chain their first octets.
	firsts [256]uint16
	head   [1 << pairBits]uint16
	next   []uint16
	places []inside
	// pairs has a bit for each two octets that follow one another in a needle: no text
	// can be made of pairs that only look like these.
	pairs [1 << 10]uint64
	// around tells apart, from one octet, most of what introduces no escape of a needle.
	around *around
}

func (l *layers) has(a, b byte) bool { return l.pairs[uint(a)<<2|uint(b)>>6]>>(b&63)&1 != 0 }

// inside is a place in a needle.
type inside struct{ needle, at uint16 }

const (
	pairBits  = 11
	maxPlaces = 1<<16 - 1
)

func pair(a, b byte) uint32 { return (uint32(a) | uint32(b)<<8) * 2654435769 >> (32 - pairBits) }

// newLayers returns nil if no needle may be escaped in part.
func newLayers(needles []Needle) *layers {
	l, octets := new(layers), 0
	for i := range needles {
		if n := &needles[i]; n.Escapable && octets+len(n.Text) <= maxPlaces {
			l.needles = append(l.needles, n)
			octets += len(n.Text)
		}
	}
	if len(l.needles) == 0 {
		return nil
	}
	l.places, l.next = make([]inside, 0, octets), make([]uint16, 0, octets)
	for i, n := range l.needles {
		l.longest = max(l.longest, len(n.Text))
		l.lines = l.lines || bytes.ContainsAny(n.Text, "\r\n")
		for j := range n.Text {
			chain := &l.firsts[n.Text[0]]
			if j > 0 {
				a, b := n.Text[j-1], n.Text[j]
				l.pairs[uint(a)<<2|uint(b)>>6] |= 1 << (b & 63)
				chain = &l.head[pair(a, b)]
			}
			l.places, l.next = append(l.places, inside{uint16(i), uint16(j)}), append(l.next, *chain)
			*chain = uint16(len(l.places))
		}
	}
	l.around = newAround(l)
	return l
}

// before returns the better of h, which may be none, and the first needle at or after
// from that is escaped in part: the one that begins first, then the one that has not
// ended, then the longest. A text that is final ends no needle that has begun.
func before[T Text](l *layers, text T, from int, final bool, h Hit, ok bool) (Hit, bool) {
	if l == nil {
		return h, ok
	}
	end := len(text)
	if ok {
		end = min(end, h.At+l.longest+1)
	}
	for p := suspect(l, text, from, from, end); p < end; p = suspect(l, text, from, p+1, end) {
		if passes(l, text, from, p) {
			p = pastRun(l, text, p)
			continue
		}
		if g, found := at(l, text, from, p, final); found && (!ok || g.better(h)) {
			h, ok, end = g, true, min(len(text), g.At+l.longest+1)
		}
	}
	return h, ok
}

func (h Hit) better(than Hit) bool {
	switch {
	case h.At != than.At:
		return h.At < than.At
	case h.Whole != than.Whole:
		return !h.Whole
	default:
		return h.Len > than.Len
	}
}

// at returns the needle whose first escape, or line break, is at p.
func at[T Text](l *layers, text T, from, p int, final bool) (Hit, bool) {
	s := search[T]{text: text, from: from, p: p, final: final}
	if c, _, k := glance(text, p); k == escaped {
		s.tryAll(l, c)
		return s.best, s.found
	}
	last := -1
	for depth := 1; depth <= mixed; depth++ {
		switch c, n, st := unit(text, p, depth); {
		case st == part && !final:
			for i := range l.places {
				s.try(l, l.places[i])
			}
			return s.best, s.found
		case st != whole, n == 1, int(c) == last: // no escape, or the same again
		default:
			last = int(c)
			s.tryAll(l, c)
		}
	}
	return s.best, s.found
}

// search is a search around what may be the first escape of a needle, at p.
type search[T Text] struct {
	text    T
	from, p int
	final   bool
	best    Hit
	found   bool
}

// tryAll has all places stand at p that hold c.
func (s *search[T]) tryAll(l *layers, c byte) {
	if s.p > s.from {
		for i := l.head[pair(s.text[s.p-1], c)]; i != 0; i = l.next[i-1] {
			if x := l.places[i-1]; l.needles[x.needle].Text[x.at] == c {
				s.try(l, x)
			}
		}
	}
	for i := l.firsts[c]; i != 0; i = l.next[i-1] {
		s.try(l, l.places[i-1])
	}
}

// try has place x of a needle stand at p.
func (s *search[T]) try(l *layers, x inside) {
	n, at := l.needles[x.needle], int(x.at)
	start := s.p - at
	// A line that is broken before a needle is none of its own.
	if start < s.from || at == 0 && (s.text[s.p] == '\r' || s.text[s.p] == '\n') || !begins(s.text[:s.p], start, n.Text[:at]) {
		return
	}
	end, st := follow(n, s.text, s.p, at, s.final)
	if st == none {
		return
	}
	if h := (Hit{At: start, Len: end - start, Needle: n, Whole: st == whole}); !s.found || h.better(s.best) {
		s.best, s.found = h, true
	}
}

// places is where readings of a text stand that differ in which escapes they undo.
type places struct {
	at [4 * (mixed + 1)]int
	n  int
}

func (s *places) add(p int) {
	if s.n < len(s.at) && !slices.Contains(s.at[:s.n], p) {
		s.at[s.n] = p
		s.n++
	}
}

// follow reads the rest of a needle, from its octet j on, which is escaped at p.
func follow[T Text](x *Needle, text T, p, j int, final bool) (end int, st state) {
	limit, first := p+len(x.Text)+maxSpan, 1
	for ; j < len(x.Text) && p+atGlance <= len(text); j++ {
		want := x.Text[j]
		c, n, k := text[p], 1, itself
		if introduces[c] {
			c, n, k = glance(text, p)
		}
		if k == unclear {
			if outer, d, m, ok := glanceTwice(text, p); ok && m > 0 && want != outer {
				c, n, k = d, m, escaped
			}
		}
		if k == unclear || k == escaped && text[p] == want {
			break
		}
		if p += n; c != want || p > limit {
			return 0, none
		}
		first = 0
	}
	return followAll(x.Text[j:], text, p, first, limit, final)
}

// followAll follows all readings of a text for the rest of a needle.
func followAll[T Text](rest []byte, text T, p, first, limit int, final bool) (end int, st state) {
	var cur places
	cur.add(p)
	for _, want := range rest {
		var next places
		for k := 0; k < cur.n; k++ { //nolint:intrange // it grows on the way
			i := cur.at[k]
			for depth := range breaksAt(text, i) {
				if q := behindBreak(text, i, depth); q > i {
					cur.add(q)
				}
			}
			if step(want, text, i, first, &next) && !final && len(text) <= limit {
				return len(text), part
			}
		}
		if next.n == 0 || next.at[0] > limit {
			return 0, none
		}
		cur, first = next, 0
	}
	return slices.Max(cur.at[:cur.n]), whole
}

// breaksAt returns under how many layers of escapes a line may be broken at i.
func breaksAt[T Text](text T, i int) int {
	if i >= len(text) || !introduces[text[i]] {
		return 0
	}
	if _, _, k := glance(text, i); k != unclear {
		return 0
	}
	return maxLayers
}

// behindBreak returns where text goes on behind the break of a line at i, if there is
// one when as many layers of escapes as depth says are undone.
func behindBreak[T Text](text T, i, depth int) int {
	start := i
	for last := byte(0); i < len(text) && introduces[text[i]] || last != 0; {
		if i-start > maxUnit { // nobody indents so much
			return start
		}
		c, n, st := unit(text, i, depth)
		if st != whole {
			return i
		}
		skip, next := fold(text, i+n, depth, c, last)
		if skip < 0 {
			return i
		}
		i, last = i+n+skip, next
	}
	return i
}

// step notes where text goes on behind an octet that is wanted at i. It reports
// whether the text ends before that is known.
func step[T Text](want byte, text T, i, depth int, next *places) (ends bool) {
	if i >= len(text) {
		return true
	}
	if !introduces[text[i]] {
		if text[i] == want {
			next.add(i + 1)
		}
		return false
	}
	if c, n, k := glance(text, i); k == itself || k == escaped && text[i] != want {
		if c == want {
			next.add(i + n)
		}
		return false
	}
	for ; depth <= mixed; depth++ {
		switch c, n, st := unit(text, i, depth); {
		case st == part:
			ends = true
		case c == want:
			next.add(i + n)
		}
	}
	return ends
}

// unit reads the octet that text stands for at i when as many layers of escapes as
// depth says are undone, and n octets on the way. Breaks of lines before it are
// passed over.
func unit[T Text](text T, i, depth int) (c byte, n int, st state) {
	if i >= len(text) {
		return 0, 0, part
	}
	if depth == 0 || !introduces[text[i]] {
		return text[i], 1, whole
	}
	head, rest := depth-1, depth-1
	if depth == mixed {
		head, rest = 0, 1
	}
	c, n, at, st := behindFold(text, i, head)
	if st == part {
		return 0, 0, part
	}
	e, m, st := escape(text, at+n, rest, c)
	switch st {
	case part:
		return 0, 0, part
	case whole:
		return e, at + n + m - i, whole
	default:
		return c, at + n - i, whole
	}
}

// behindFold returns the octet at i or, behind the break of a line there, at a later
// place, as unit does.
func behindFold[T Text](text T, i, depth int) (c byte, n, at int, st state) {
	at = i
	for last := byte(0); ; {
		if last != 0 && at < len(text) && (text[at] == '\r' || text[at] == '\n' && last != '\r') { // an empty line
			c, n, st = unit(text, i, depth)
			return c, n, i, st
		}
		c, n, st = unit(text, at, depth)
		if st == part {
			return 0, 0, 0, part
		}
		skip, next := fold(text, at+n, depth, c, last)
		switch {
		case skip == ended:
			return 0, 0, 0, part
		case skip < 0, at+n+skip-i > maxUnit:
			return c, n, at, whole
		}
		at, last = at+n+skip, next
	}
}

// fold tells how much behind an octet c belongs to the break of a line that c begins,
// or goes on with behind last: one CR, LF, or both, also behind an equals sign (RFC
// 2045 section 6.7) or a backslash, and the blanks behind them. An empty line is no
// break inside of anything. Skip is less than 0 if c is no part of a break, and ended
// if the text ends before that is known.
func fold[T Text](text T, i, depth int, c, last byte) (skip int, next byte) {
	switch {
	case c == '\r' && last == 0, c == '\n' && (last == 0 || last == '\r'), (c == ' ' || c == '\t') && last != 0:
		return 0, c
	case (c == '=' || c == '\\') && last == 0:
		next, n, st := unit(text, i, depth)
		switch {
		case st == part:
			return ended, 0
		case next == '\n' || next == '\r':
			return n, next
		}
	}
	return -1, 0
}

const ended = -2

// escape reads what follows the octet c that introduces an escape.
func escape[T Text](text T, i, depth int, c byte) (e byte, n int, st state) {
	r := runes8[T]{text: text, at: i, depth: depth}
	switch c {
	case '%':
		if r.peek() == 'u' {
			r.skip()
			return r.code(16, 4, 4, i)
		}
		return r.code(16, 2, 2, i)
	case '=':
		return r.code(16, 2, 2, i)
	case '\\':
		return r.backslash(i)
	case '&':
		return r.entity(i)
	default:
		return 0, 0, none
	}
}

// runes8 reads octets one by one, below the layer that is being undone.
type runes8[T Text] struct {
	text  T
	at    int
	depth int
	next  byte
	n     int // how long next is; 0 before it was read
	st    state
}

// peek returns the next octet; 0 where the text has ended.
func (r *runes8[T]) peek() byte {
	if r.n == 0 && r.st == none {
		r.next, r.n, r.st = unit(r.text, r.at, r.depth)
	}
	return r.next
}

func (r *runes8[T]) ended() bool { r.peek(); return r.st == part }

func (r *runes8[T]) skip() {
	r.peek()
	r.at += r.n
	r.next, r.n, r.st = 0, 0, none
}

// done is what a reading comes to that began at start.
func (r *runes8[T]) done(v, start int) (byte, int, state) {
	if v <= 0 || v > 0xff || r.at-start > maxUnit {
		return 0, 0, none
	}
	return byte(v), r.at - start, whole
}

// code reads the digits of an octet, if there may be no more than three, or of a code
// point, which is of ASCII.
func (r *runes8[T]) code(base, least, most, start int) (byte, int, state) {
	v, digits := 0, 0
	for ; digits < most; digits++ {
		if r.ended() {
			return 0, 0, part
		}
		d := digit(r.peek())
		if d >= base {
			break
		}
		v = min(v*base+d, 1<<20)
		r.skip()
	}
	if digits < least || most > 3 && v > 0x7f {
		return 0, 0, none
	}
	return r.done(v, start)
}

// digit returns the value of a hexadecimal digit, 16 for anything else.
func digit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	default:
		return 16
	}
}

// controls are the characters that have a letter of their own behind a backslash.
var controls = map[byte]int{'n': '\n', 'r': '\r', 't': '\t', 'b': '\b', 'f': '\f', 'v': '\v'}

// backslash reads an escape of JSON, JavaScript, C, Python or a shell.
func (r *runes8[T]) backslash(start int) (byte, int, state) {
	if r.ended() {
		return 0, 0, part
	}
	c := r.peek()
	switch {
	case c == 'u':
		r.skip()
		if r.ended() {
			return 0, 0, part
		}
		if r.peek() != '{' {
			return r.code(16, 4, 4, start)
		}
		r.skip()
		return r.closed(16, '}', start)
	case c == 'U':
		r.skip()
		return r.code(16, 8, 8, start)
	case c == 'x':
		r.skip()
		return r.code(16, 2, 2, start)
	case '0' <= c && c <= '7':
		return r.code(8, 1, 3, start)
	}
	r.skip()
	if v, ok := controls[c]; ok {
		return r.done(v, start)
	}
	return r.done(int(c), start)
}

// closed reads digits up to what closes them.
func (r *runes8[T]) closed(base int, end byte, start int) (byte, int, state) {
	v, _, st := r.code(base, 1, 8, start)
	switch {
	case st != whole:
		return 0, 0, st
	case r.ended():
		return 0, 0, part
	case r.peek() != end:
		return 0, 0, none
	}
	r.skip()
	return r.done(int(v), start)
}

// entity reads a character reference of HTML. Browsers let the semicolon of a number
// be left out.
func (r *runes8[T]) entity(start int) (byte, int, state) {
	if r.ended() {
		return 0, 0, part
	}
	if r.peek() != '#' {
		return r.named(start)
	}
	r.skip()
	base := 10
	if c := r.peek(); c == 'x' || c == 'X' {
		r.skip()
		base = 16
	}
	v, _, st := r.code(base, 1, 8, start)
	if st != whole {
		return 0, 0, st
	}
	if r.ended() {
		return 0, 0, part
	}
	if r.peek() == ';' {
		r.skip()
	}
	return r.done(int(v), start)
}

// named reads a character reference by name.
func (r *runes8[T]) named(start int) (byte, int, state) {
	const longest = 10 // of the names of characters of ASCII
	name := make([]byte, 0, longest+2)
	for name = append(name, '&'); ; {
		if r.ended() {
			return 0, 0, part
		}
		c := r.peek()
		r.skip()
		if name = append(name, c); c == ';' {
			break
		}
		if len(name) > longest || (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') {
			return 0, 0, none
		}
	}
	if s := html.UnescapeString(string(name)); len(s) == 1 {
		return r.done(int(s[0]), start)
	}
	return 0, 0, none
}

// Cover writes what stands in a hit's place over text, which is the hit, from octet
// from of it on. Breaks of lines stay where they are.
func (h Hit) Cover(text []byte, from int) {
	if h.Len == len(h.Needle.Text) && string(text[from:]) == string(h.Needle.Text[from:]) {
		copy(text[from:], h.Needle.Instead[from:])
		return
	}
	k := 0
	for i := 0; i < len(text); {
		if n := breaks(text[i:]); n > 0 {
			i += n
			continue
		}
		if i >= from {
			text[i] = plain(h.Needle.Instead, k)
		}
		i, k = i+1, k+1
	}
}

// breaks tells how long a break of a line at the beginning of text is.
func breaks(text []byte) int {
	switch c := text[0]; {
	case c == '\r' || c == '\n':
		return 1
	case (c == '=' || c == '\\') && len(text) > 1 && (text[1] == '\r' || text[1] == '\n'):
		return 1
	case c == '\\' && len(text) > 1 && (text[1] == 'r' || text[1] == 'n'):
		return 2
	default:
		return 0
	}
}

// plain returns octet k of b if it means itself wherever it stands, and x otherwise.
func plain(b []byte, k int) byte {
	if k >= len(b) {
		return 'x'
	}
	c := b[k]
	if '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || c == '-' || c == '.' || c == '+' || c == '/' {
		return c
	}
	return 'x'
}

// settled is [Set.Settled] for needles that are escaped in part: octets before the
// first escape that are the same in what stands in their place.
func (l *layers) settled(text []byte, at, n int) int {
	if l == nil {
		return n
	}
	m := slices.IndexFunc(text[at:], func(c byte) bool { return introduces[c] })
	if m < 0 {
		return n
	}
	for _, x := range l.needles {
		if m >= len(x.Text) || !bytes.HasPrefix(text[at:], x.Text[:m]) {
			continue
		}
		k := 0
		for k < m && x.Text[k] == plain(x.Instead, k) {
			k++
		}
		n = min(n, k)
	}
	return n
}
