package needle

// sieve tells by the halves of octets, which are indexes of 16 entries each, whether one
// may introduce an escape of a needle, from the one behind it: there is a bit then that is
// in all four entries. It lets more through than innocent does, and looks at many octets
// with one instruction where there are such instructions.
type sieve struct{ low, high, nextLow, nextHigh [16]uint8 }

// What a bit of a sieve stands for. Halves of octets that belong to one bit make others as
// well, for which it stands too. So each has what has few of these, or rare ones: an equals
// sign before a quote, or a backslash, are common.
const (
	byPercent     uint8 = 1 << iota
	byEquals            // before a digit
	overEquals          // where something else introduces what comes behind it
	byAmper             // before octets from 0x30 on, or the end of a line
	overAmper           // before others
	byBackslash         // before what does not stand for itself there, or is in a needle
	overBackslash       // where something else introduces what comes behind it
	acrossLine
)

// newSieve returns nil if there is none: octets above 0x7f never pass it.
func newSieve(t *around) *sieve {
	s := new(sieve)
	for i := range 256 {
		c := byte(i)
		next := t.next(c)
		if next != 0 && c > 0x7f {
			return nil
		}
		set(&s.low, &s.high, c, opening[introducer[c]])
		set(&s.nextLow, &s.nextHigh, c, next)
	}
	return s
}

func set(low, high *[16]uint8, c byte, bits uint8) {
	low[c&15] |= bits
	high[c>>4] |= bits
}

// opening tells which bits are for what an octet introduces.
var opening = map[uint8]uint8{
	percent: byPercent, equals: byEquals | overEquals, ampersand: byAmper | overAmper,
	backslash: byBackslash | overBackslash, lineEnd: acrossLine,
}

// next tells which bits are for what may go on with an octet.
func (t *around) next(c byte) (bits uint8) {
	escapes, over := t.behind[c], introduces[c]
	if escapes&percent != 0 {
		bits |= byPercent
	}
	switch {
	case over:
		bits |= overEquals | overBackslash
	case escapes&equals != 0:
		bits |= byEquals
	}
	switch {
	case escapes&ampersand == 0:
	case c>>4 == '#'>>4:
		bits |= overAmper
	default:
		bits |= byAmper
	}
	if escapes&backslash != 0 && !over {
		bits |= byBackslash
	}
	if t.behindLine[c] != 0 {
		bits |= acrossLine
	}
	return bits
}

// block is how many octets are looked at together.
const block = 64

// sift looks at as many blocks of a text as there are masks, or as the text has whole ones
// with an octet behind them, and returns how many. A mask has a bit for each octet that
// passes the sieve together with the one behind it.
func sift(text []byte, t *sieve, masks []uint64) (n int) {
	for ; n < len(masks) && (n+1)*block < len(text); n++ {
		masks[n] = 0
		for i, c := range text[n*block:][:block] {
			next := text[n*block+i+1]
			if c < 0x80 && next < 0x80 && t.low[c&15]&t.high[c>>4]&t.nextLow[next&15]&t.nextHigh[next>>4] != 0 {
				masks[n] |= 1 << i
			}
		}
	}
	return n
}
