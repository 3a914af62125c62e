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

// atGlance is how long the longest escape is that is known at a glance.
const atGlance = 6

// glance tells what stands at i, where an octet is that may introduce an escape: n
// octets that stand for c, however many layers of escapes are undone.
func glance[T Text](text T, i int) (c byte, n int, k kind) {
	if i+atGlance > len(text) {
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
	case c == 'x':
		if hi, lo := digit(text[i+2]), digit(text[i+3]); hi < 16 && lo < 16 {
			return byte(hi<<4 | lo), 4, escaped
		}
		return 0, 0, unclear
	case '0' <= c && c <= '3':
		if isOctal(text[i+2]) && isOctal(text[i+3]) {
			return (c-'0')<<6 | (text[i+2]-'0')<<3 | (text[i+3] - '0'), 4, escaped
		}
		return 0, 0, unclear
	case introduces[c], special(c):
		return 0, 0, unclear
	default:
		return c, 2, escaped
	}
}

func isOctal(c byte) bool { return '0' <= c && c <= '7' }

// special reports whether c does not stand for itself behind a backslash.
func special(c byte) bool {
	switch c {
	case 'u', 'x', 'U', 'n', 'r', 't', 'b', 'f', 'v':
		return true
	}
	return isOctal(c)
}

// reference looks at a character reference of HTML that is whole, or is none.
func reference[T Text](text T, i int) (c byte, n int, k kind) {
	if text[i+1] == '#' {
		return numbered(text, i)
	}
	at := i + 1
	for at < len(text) && at < i+12 && isAlnum(text[at]) {
		at++
	}
	switch {
	case at == len(text):
		return 0, 0, unclear
	case text[at] != ';':
		if !introduces[text[at]] || meansItself(text, at) {
			return '&', 1, itself
		}
		return 0, 0, unclear
	}
	switch n = at + 1 - i; string(text[i+1 : at]) {
	case "lt":
		return '<', n, escaped
	case "gt":
		return '>', n, escaped
	case "quot":
		return '"', n, escaped
	case "apos":
		return '\'', n, escaped
	case "nbsp":
		return '&', 1, itself // no octet of ASCII
	default:
		return 0, 0, unclear
	}
}

// meansItself reports whether a percent or equals sign at i ends a name.
func meansItself[T Text](text T, i int) bool {
	if text[i] != '%' && text[i] != '=' || i+atGlance > len(text) {
		return false
	}
	c, _, k := twoDigits(text, i)
	return k == itself || k == escaped && !introduces[c] && !isAlnum(c) && c != ';' && c != '#'
}

// numbered looks at a decimal reference.
func numbered[T Text](text T, i int) (c byte, n int, k kind) {
	v, at := 0, i+2
	for at < len(text) && at < i+7 && '0' <= text[at] && text[at] <= '9' {
		v = 10*v + int(text[at]-'0')
		at++
	}
	switch {
	case at == i+2, at == len(text), at == i+7, v == 0, v > 0x7f, introduces[text[at]]:
		return 0, 0, unclear
	case text[at] == ';':
		at++
	}
	return byte(v), at - i, escaped
}

func isAlnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// passes reports at a glance that no needle has its first escape, or line break, at p.
func passes[T Text](l *layers, text T, from, p int) bool {
	if q := behindLine(l, text, p); q > p {
		return breakPasses(l, text, from, p, q)
	}
	switch c, n, k := glance(text, p); k {
	case itself:
		return true
	case escaped:
		return cannot(l, text, from, p, c, n)
	default:
		outer, c, n, ok := glanceTwice(text, p)
		return ok && cannot(l, text, from, p, outer, 0) && (n == 0 || cannot(l, text, from, p, c, n))
	}
}

// breakPasses is passes for the break of a line, behind which text goes on at q.
func breakPasses[T Text](l *layers, text T, from, p, q int) bool {
	for most := p + maxUnit/2; q < len(text) && q < most && (text[q] == ' ' || text[q] == '\t'); {
		q++
	}
	switch {
	case q >= len(text), text[q] == ' ', text[q] == '\t':
		return false
	case text[q] == '\r' || text[q] == '\n': // an empty line is no break
		return text[p] != '\\' && (text[q-1] == '\r' || text[q-1] == '\n')
	case introduces[text[q]]:
		return false
	}
	return (text[p] != '\\' || l.firsts[text[q]] == 0) && apart(l, text, from, p, text[q])
}

// run is how many times in a row what introduces an escape stands for nothing but
// itself, as often as it is there: all of an escape of two layers is in it.
const run = 8

// pastRun returns the last place of a run from p on, where nothing was found, at which
// that is as true.
func pastRun[T Text](l *layers, text T, p int) int {
	c, end := text[p], p+1
	if c == '\r' || c == '\n' || c == '\\' && (l.firsts[c] != 0 || l.has(c, c)) {
		return p
	}
	for end < len(text) && text[end] == c {
		end++
	}
	return max(p, end-run)
}

// glanceTwice is glance for two layers of escapes: either something that introduces one
// stands at i, or n octets that stand for c, if n is not 0.
func glanceTwice[T Text](text T, i int) (outer, c byte, n int, ok bool) {
	if i+run+2*atGlance > len(text) {
		return 0, 0, 0, false
	}
	times := 1
	for times < run && text[i+times] == text[i] {
		times++
	}
	outer = text[i]
	switch {
	case times == run:
		return outer, 0, 0, true
	case outer == '\\' && times > 1:
		c, n, ok = behindBackslash(text, i+times-1)
		n += times - 1
	case (outer == '%' || outer == '=') && times == 1:
		outer, c, n, ok = digitsTwice(text, i)
	case outer == '&':
		c, n, ok = behindAmpersand(text, i)
	}
	return outer, c, n, ok && (n == 0 || c != 0 && !introduces[c])
}

// behindBackslash reads behind the last of several backslashes.
func behindBackslash[T Text](text T, i int) (c byte, n int, ok bool) {
	if c = text[i+1]; !special(c) {
		return c, 2, true
	}
	c, n, k := backslashed(text, i)
	return c, n, k == escaped && !special(c)
}

func digitsTwice[T Text](text T, i int) (outer, c byte, n int, ok bool) {
	hi, lo := digit(text[i+1]), digit(text[i+2])
	if hi > 15 || lo > 15 {
		return text[i], 0, 0, noDigit(text, i+1) || hi < 16 && noDigit(text, i+2)
	}
	outer = byte(hi<<4 | lo)
	if outer != '%' && outer != '=' {
		return 0, 0, 0, false
	}
	if hi, lo = digit(text[i+3]), digit(text[i+4]); hi < 16 && lo < 16 {
		return outer, byte(hi<<4 | lo), 5, true
	}
	return outer, 0, 0, !introduces[text[i+3]] && text[i+3] != 'u' && !introduces[text[i+4]]
}

// noDigit reports that an ampersand at i stands for no digit, nor for what may introduce
// one.
func noDigit[T Text](text T, i int) bool {
	if text[i] != '&' {
		return false
	}
	switch c, _, k := glance(text, i); k {
	case itself:
		return true
	case escaped:
		return digit(c) > 15
	default:
		c, n, ok := behindAmpersand(text, i)
		return ok && (n == 0 || digit(c) > 15 && !introduces[c])
	}
}

func behindAmpersand[T Text](text T, i int) (c byte, n int, ok bool) {
	const name = "&amp;"
	if string(text[i:i+len(name)]) != name {
		return 0, 0, false
	}
	switch c, n, k := reference(text, i+len(name)-1); k {
	case itself:
		return 0, 0, true
	case escaped:
		return c, n + len(name) - 1, true
	default:
		return 0, 0, false
	}
}

// cannot reports at a glance that no needle has its first escape at p if that stands
// for c and is n octets long; 0 for nobody knows.
func cannot[T Text](l *layers, text T, from, p int, c byte, n int) bool {
	return apart(l, text, from, p, c) && (l.firsts[c] == 0 || n > 0 && beginsNone(l, text, p+n, c))
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
	return p == from || !l.has(text[p-1], c)
}

// beginsNone reports at a glance that no needle begins with c and goes on at p.
func beginsNone[T Text](l *layers, text T, p int, c byte) bool {
	if p+atGlance > len(text) || l.has(c, text[p]) {
		return false
	}
	if !introduces[text[p]] {
		return true
	}
	if next, _, k := glance(text, p); k != unclear {
		return !l.has(c, next)
	}
	outer, next, n, ok := glanceTwice(text, p)
	return ok && !l.has(c, outer) && (n == 0 || !l.has(c, next))
}
