package needle

import "math/bits"

// Most octets of a text introduce no escape, and most of those that might are followed,
// or for the break of a line preceded, by what rules it out. These are told here, eight
// octets at a time and then from two; only what is left is read.

// What an octet may introduce.
const (
	percent uint8 = 1 << iota
	equals
	ampersand
	backslash
	lineEnd
)

// introducer tells what an octet may introduce.
var introducer = [256]uint8{
	'%': percent, '=': equals, '&': ampersand, '\\': backslash, '\r': lineEnd, '\n': lineEnd,
}

// around is what may stand before and behind what introduces an escape, or breaks a
// line, inside of a needle.
type around struct {
	before, behind [256]uint8
	// behindLine is what may stand behind the end of a line.
	behindLine [256]uint8
	marks      marks
	sieve      *sieve // nil: there is none
}

func newAround(l *layers) *around {
	t := &around{marks: newMarks()}
	for c := range introduces {
		if introduces[c] {
			t.behind[c] |= percent | equals | ampersand | backslash
			t.behindLine[c] |= lineEnd
		}
	}
	t.behindLine[' '], t.behindLine['\t'] = lineEnd, lineEnd
	t.behindEscapes(l)
	for _, n := range l.needles {
		for j := 1; j < len(n.Text); j++ {
			t.before[n.Text[j-1]] |= lineEnd
			t.behind[n.Text[j]] |= backslash
			t.behindLine[n.Text[j]] |= lineEnd
		}
	}
	t.sieve = newSieve(t)
	return t
}

// behindEscapes adds what may go on with what introduces an escape.
func (t *around) behindEscapes(l *layers) {
	for i := range t.behind {
		c := byte(i)
		if digit(c) < 16 || c == 'u' {
			t.behind[c] |= percent
		}
		if digit(c) < 16 {
			t.behind[c] |= equals
		}
		if isAlnum(c) || c == '#' {
			t.behind[c] |= ampersand
		}
		if special(c) || c == 0 || l.firsts[c] != 0 {
			t.behind[c] |= backslash
		}
	}
}

// suspect returns the first place from p on, and before end, at which a needle may have
// its first escape, or line break; end if there is none.
func suspect[T Text](l *layers, text T, from, p, end int) int {
	if p == from && p < end {
		if !innocent(l, text, from, p) {
			return p
		}
		p++
	}
	limit, found := min(end, len(text)-atGlance+1), false
	if b, ok := any(text).([]byte); ok && hasVectors && l.around.sieve != nil {
		p, found = sieved(l, b, p, limit)
	}
	if !found {
		p, found = skim(l, text, p, limit)
	}
	for !found && p < end && innocent(l, text, from, p) {
		p++
	}
	return min(p, end)
}

// sieved goes on from p while there are blocks before limit. It reports whether it has
// found a suspect.
func sieved(l *layers, text []byte, p, limit int) (at int, found bool) {
	t := l.around
	var room [32]uint64
	// Where one suspect is the next may be near: what was looked at beyond it is looked
	// at again.
	for most := 1; p < limit; most = min(2*most, len(room)) {
		n := sieveAVX2(text[p:limit+1], t.sieve, room[:most])
		for _, m := range room[:n] {
			for ; m != 0; m &= m - 1 {
				q := p + bits.TrailingZeros64(m)
				what := introducer[text[q]] & (t.behind[text[q+1]] | t.before[text[q-1]])
				if what != 0 && !harmless(l, text, q, what) {
					return q, true
				}
			}
			p += block
		}
		if n < most {
			break
		}
	}
	return p, false
}

// skim is as sieved, for eight octets at a time. For the method see Warren, Hacker's
// Delight, 6-1.
func skim[T Text](l *layers, text T, p, limit int) (at int, found bool) {
	t, k := l.around, &l.around.marks
	low, lines, aboveLines, percents, aboveAmps, equal, back := k.low, k.lines, k.aboveLines, k.percents, k.aboveAmps, k.equal, k.back
	w := text[:max(p, limit)]
	for ; p <= len(w)-8; p += 8 {
		x := uint64(w[p]) | uint64(w[p+1])<<8 | uint64(w[p+2])<<16 | uint64(w[p+3])<<24 |
			uint64(w[p+4])<<32 | uint64(w[p+5])<<40 | uint64(w[p+6])<<48 | uint64(w[p+7])<<56
		y := x & low
		within := (y + lines) ^ (y + aboveLines) ^ (y + percents) ^ (y + aboveAmps)
		others := ((y ^ equal) + low) & ((y ^ back) + low)
		for m := (within | ^others) &^ (x | low); m != 0; m &= m - 1 {
			q := p + bits.TrailingZeros64(m)/8
			what := introducer[text[q]] & (t.behind[text[q+1]] | t.before[text[q-1]])
			if what != 0 && !harmless(l, text, q, what) {
				return q, true
			}
		}
	}
	return p, false
}

// innocent reports from its neighbors that an octet introduces no escape of a needle.
func innocent[T Text](l *layers, text T, from, p int) bool {
	what := introducer[text[p]]
	if p > from && p+1 < len(text) {
		what &= l.around.behind[text[p+1]] | l.around.before[text[p-1]]
	}
	switch {
	case p+atGlance > len(text): // how the text goes on, where it may be cut off inside of an escape, is not known
		return introducer[text[p]]&^lineEnd == 0 && (what == 0 || p == from || goesOnApart(l, text, p))
	case p == from:
		return what == 0 || what == lineEnd
	default:
		return what == 0 || harmless(l, text, p, what)
	}
}

// harmless looks closer at what may introduce an escape at p, where it is not the first
// octet of a text.
func harmless[T Text](l *layers, text T, p int, what uint8) bool {
	next, after := text[p+1], text[p+2]
	switch what {
	case lineEnd:
		return goesOnApart(l, text, p)
	case percent, equals: // a single digit makes no escape
		return !introduces[next] && digit(after) > 15 && !introduces[after]
	case ampersand: // nor does a letter or a number sign
		return !introduces[next] && !isAlnum(after) && after != ';' && !introduces[after]
	case backslash: // what stands for itself behind it
		return next != 0 && !special(next) && !introduces[next] && l.firsts[next] == 0 && !l.has(text[p-1], next)
	default:
		return false
	}
}

// goesOnApart reports that no needle goes on behind the end of a line at p.
func goesOnApart[T Text](l *layers, text T, p int) bool {
	q := p + 1
	if text[p] == '\r' && q < len(text) && text[q] == '\n' {
		q++
	}
	return q < len(text) && text[q] != ' ' && text[q] != '\t' && !introduces[text[q]] && !l.has(text[p-1], text[q])
}

// marks are what skim compares eight octets with at once. They are variables, for the
// processor to hold them: constants of this size are loaded anew each time.
type marks struct{ low, lines, aboveLines, percents, aboveAmps, equal, back uint64 }

func newMarks() marks {
	const each = 0x0101010101010101
	from := func(c uint64) uint64 { return (0x80 - c) * each } // takes c, and no less, to the highest bit
	return marks{
		low: 0x7f * each, lines: from('\n'), aboveLines: from('\r' + 1), percents: from('%'), aboveAmps: from('&' + 1),
		equal: '=' * each, back: '\\' * each,
	}
}
