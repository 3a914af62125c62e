package needle

// sieve tells by the halves of octets, which are indexes of 16 entries each, whether one
// may introduce an escape of a needle, from the two behind it and the one before it:
// there is a bit then that is in all eight entries. It lets more through than innocent
// does, and looks at many octets with one instruction where there are such instructions.
type sieve struct {
	low, high, nextLow, nextHigh       [16]uint8
	afterLow, afterHigh, preLow, preHi [16]uint8
}

// What a bit of a sieve stands for.
const (
	byDigits   uint8 = 1 << iota // an escape of two digits: both have to be there
	byName                       // a character reference, of two octets at least
	byMark                       // either of these, where something else introduces what comes first
	bySpecial                    // a backslash before what does not stand for itself there, or begins a needle
	within                       // a backslash inside of a needle
	acrossLine                   // the end of a line inside of a needle
)

// newSieve returns nil if there is none: octets above 0x7f never pass it.
func newSieve(l *layers, t *around) *sieve {
	s := new(sieve)
	for i := range 256 {
		c := byte(i)
		next := t.next(l, c)
		if next != 0 && c > 0x7f {
			return nil
		}
		set(&s.low, &s.high, c, opening(c))
		set(&s.nextLow, &s.nextHigh, c, next)
		after := ^(byDigits | byName)
		if digit(c) < 16 || introduces[c] {
			after |= byDigits
		}
		if isAlnum(c) || c == ';' || introduces[c] {
			after |= byName
		}
		set(&s.afterLow, &s.afterHigh, c, after)
		before := ^(within | acrossLine)
		if t.before[c] != 0 {
			before |= within | acrossLine
		}
		set(&s.preLow, &s.preHi, c, before)
	}
	return s
}

func set(low, high *[16]uint8, c byte, bits uint8) {
	low[c&15] |= bits
	high[c>>4] |= bits
}

// opening tells which escapes an octet may introduce.
func opening(c byte) uint8 {
	switch introducer[c] {
	case percent, equals:
		return byDigits | byMark
	case ampersand:
		return byName | byMark
	case backslash:
		return bySpecial | within
	case lineEnd:
		return acrossLine
	default:
		return 0
	}
}

// next tells which escapes may go on with an octet.
func (t *around) next(l *layers, c byte) (bits uint8) {
	if introduces[c] {
		bits |= byMark | bySpecial
	}
	if digit(c) < 16 || c == 'u' {
		bits |= byDigits
	}
	if isAlnum(c) || c == '#' {
		bits |= byName
	}
	if special(c) || c == 0 || l.firsts[c] != 0 {
		bits |= bySpecial
	}
	if t.behind[c]&backslash != 0 {
		bits |= within
	}
	if t.behindLine[c] != 0 {
		bits |= acrossLine
	}
	return bits
}

// block is how many octets are looked at together.
const block = 32

// sift looks at as many blocks of a text, from its second octet on, as there are masks, or
// as the text has whole ones with two octets behind them, and returns how many. A mask
// has a bit for each octet that passes the sieve together with those around.
func sift(text []byte, t *sieve, masks []uint32) (n int) {
	for ; n < len(masks) && n*block+block+2 < len(text); n++ {
		masks[n] = 0
		for i := range block {
			around := text[n*block+i:]
			c, next, after, pre := around[1], around[2], around[3], around[0]
			if c < 0x80 && next < 0x80 && t.low[c&15]&t.high[c>>4]&t.nextLow[next&15]&t.nextHigh[next>>4]&
				t.afterLow[after&15]&t.afterHigh[after>>4]&t.preLow[pre&15]&t.preHi[pre>>4] != 0 {
				masks[n] |= 1 << i
			}
		}
	}
	return n
}
