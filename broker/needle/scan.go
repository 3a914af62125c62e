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
type around struct{ before, behind [256]uint8 }

func newAround(l *layers) *around {
	t := new(around)
	for i := range t.behind {
		c := byte(i)
		if introduces[c] {
			t.behind[c] |= percent | equals | ampersand | backslash
		}
		if digit(c) < 16 || c == 'u' {
			t.behind[c] |= percent
		}
		if digit(c) < 16 {
			t.behind[c] |= equals
		}
		if isAlnum(c) || c == '#' || c == ';' {
			t.behind[c] |= ampersand
		}
		if special(c) || c == 0 || l.firsts[c] != 0 {
			t.behind[c] |= backslash
		}
	}
	for _, n := range l.needles {
		for j := 1; j < len(n.Text); j++ {
			t.before[n.Text[j-1]] |= lineEnd
			t.behind[n.Text[j]] |= backslash
		}
	}
	return t
}

// suspect returns the first place from p on, and before end, at which a needle may have
// its first escape, or line break; end if there is none.
func suspect[T Text](l *layers, text T, from, p, end int) int {
	if p >= end {
		return end
	}
	for p+8 <= end {
		k, m := skim(text[p:end])
		if p += k; m == 0 {
			break
		}
		for ; m != 0; m &= m - 1 {
			if q := p + bits.TrailingZeros64(m)/8; !innocent(l, text, from, q) {
				return q
			}
		}
		p += 8
	}
	for p < end && innocent(l, text, from, p) {
		p++
	}
	return p
}

// innocent reports from its neighbors that an octet introduces no escape of a needle.
func innocent[T Text](l *layers, text T, from, p int) bool {
	what := introducer[text[p]]
	if p > from && p+1 < len(text) {
		what &= l.around.behind[text[p+1]] | l.around.before[text[p-1]]
	}
	switch what {
	case 0: // how the text goes on, where it may be cut off inside of an escape, is not known
		return p+atGlance <= len(text) || introducer[text[p]]&^lineEnd == 0
	case lineEnd:
		return p == from || goesOnApart(l, text, p)
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

// skim returns the first eight octets of a text that has as many, counted in eights, of
// which any introduces something, and a bit for each of these; or where less than eight
// are left, and none.
func skim[T Text](text T) (at int, m uint64) {
	i := 0
	for ; i <= len(text)-8; i += 8 {
		x := uint64(text[i]) | uint64(text[i+1])<<8 | uint64(text[i+2])<<16 | uint64(text[i+3])<<24 |
			uint64(text[i+4])<<32 | uint64(text[i+5])<<40 | uint64(text[i+6])<<48 | uint64(text[i+7])<<56
		if m = introducers(x); m != 0 {
			return i, m
		}
	}
	return i, 0
}

// introducers returns the highest bit of each of eight octets that introduces something.
// For the method see Warren, Hacker's Delight, 6-1.
func introducers(x uint64) uint64 {
	const each, low = 0x0101010101010101, 0x7f7f7f7f7f7f7f7f
	y := x & low
	others := ((y ^ '%'*each) + low) & ((y ^ '\\'*each) + low) & ((y ^ '&'*each) + low) &
		((y ^ '='*each) + low) & ((y ^ '\r'*each) + low) & ((y ^ '\n'*each) + low)
	return ^(others | x) &^ low
}
