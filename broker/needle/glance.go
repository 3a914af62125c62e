package needle

// Nearly all escapes of a text are of one layer, and stand for octets of no needle.
// What is known of them at a glance spares undoing them in every way.

// kind is what is known at a glance of what may introduce an escape.
type kind uint8

const (
	unclear kind = iota
	itself       // it introduces nothing
	escaped      // it is an escape of one layer
)

// glance tells what stands at i, where an octet is that may introduce an escape: n
// octets that stand for c, however many layers of escapes are undone.
func glance[T Text](text T, i int) (c byte, n int, k kind) {
	if i+6 > len(text) { // the longest that is known at a glance
		return 0, 0, unclear
	}
	switch text[i] {
	case '%', '=':
		c, n, k = twoDigits(text, i)
	case '\\':
		c, n, k = backslashed(text, i)
	case '&':
		c, n, k = reference(text, i)
	}
	if k == escaped && (introduces[c] || c == 0) {
		return 0, 0, unclear
	}
	return c, n, k
}

func twoDigits[T Text](text T, i int) (c byte, n int, k kind) {
	switch hi, lo := digit(text[i+1]), digit(text[i+2]); {
	case hi < 16 && lo < 16:
		return byte(hi<<4 | lo), 3, escaped
	case introduces[text[i+1]] || text[i] == '%' && text[i+1] == 'u' || hi < 16 && introduces[text[i+2]]:
		return 0, 0, unclear
	default:
		return text[i], 1, itself
	}
}

func backslashed[T Text](text T, i int) (c byte, n int, k kind) {
	c = text[i+1]
	switch {
	case c == 'u':
		lo0, lo1 := digit(text[i+4]), digit(text[i+5])
		if text[i+2] == '0' && text[i+3] == '0' && lo0 < 8 && lo1 < 16 {
			return byte(lo0<<4 | lo1), 6, escaped
		}
		return 0, 0, unclear
	case introduces[c], c == 'x', c == 'U', '0' <= c && c <= '7', controls[c] != 0:
		return 0, 0, unclear
	default:
		return c, 2, escaped
	}
}

func reference[T Text](text T, i int) (c byte, n int, k kind) {
	at := i + 1
	for at < len(text) && at < i+12 && isAlnum(text[at]) {
		at++
	}
	if at < len(text) && (at == i+1 && text[at] == '#' || text[at] == ';' || introduces[text[at]]) || at == len(text) {
		return 0, 0, unclear
	}
	return '&', 1, itself
}

func isAlnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// passes reports at a glance that no needle has its first escape, or line break, at p.
func passes[T Text](l *layers, text T, from, p int) bool {
	q := behindLine(l, text, p)
	if q == p {
		c, _, k := glance(text, p)
		return k == itself || k == escaped && l.firsts[c] == 0 && apart(l, text, from, p, c)
	}
	if q >= len(text) || introduces[text[q]] || text[q] == ' ' || text[q] == '\t' {
		return false
	}
	return (text[p] != '\\' || l.firsts[text[q]] == 0) && apart(l, text, from, p, text[q])
}

// behindLine returns where the text goes on behind a line break at p, p if there is none.
func behindLine[T Text](l *layers, text T, p int) int {
	next := byte(0)
	if p+1 < len(text) {
		next = text[p+1]
	}
	switch c := text[p]; {
	case c == '\\' && (next == 'n' || next == 'r') && !l.lines, c == '\r' && next == '\n':
		return p + 2
	case c == '\r', c == '\n':
		return p + 1
	}
	return p
}

// apart reports that no needle goes on with c behind what stands before p.
func apart[T Text](l *layers, text T, from, p int, c byte) bool {
	return p == from || l.head[pair(text[p-1], c)] == 0
}
