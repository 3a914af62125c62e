package needle

// sieve tells by the halves of two octets, which are indexes of 16 entries each, whether
// the first may introduce an escape of a needle, and the second go on with it: there is
// a bit then that is in all four entries. It lets more through than around does, and
// looks at many octets with one instruction where there are such instructions.
type sieve struct{ low, high, nextLow, nextHigh [16]uint8 }

// newSieve returns nil if there is none: octets above 0x7f never pass it.
func newSieve(t *around) *sieve {
	s := new(sieve)
	for i := range 256 {
		c := byte(i)
		s.low[c&15] |= introducer[c]
		s.high[c>>4] |= introducer[c]
		next := t.behind[c] | t.behindLine[c]
		if next != 0 && c > 0x7f {
			return nil
		}
		s.nextLow[c&15] |= next
		s.nextHigh[c>>4] |= next
	}
	return s
}

// block is how many octets are looked at together.
const block = 32

// sift returns the first place, counted in blocks, of a text with octets that pass a
// sieve together with the one behind, and a bit for each of these; or where the text has
// no whole block left, with an octet behind it.
func sift(text []byte, t *sieve) (at int, mask uint32) {
	for ; at+block < len(text); at += block {
		for i, c := range text[at : at+block] {
			next := text[at+i+1]
			if c < 0x80 && next < 0x80 && t.low[c&15]&t.high[c>>4]&t.nextLow[next&15]&t.nextHigh[next>>4] != 0 {
				mask |= 1 << i
			}
		}
		if mask != 0 {
			break
		}
	}
	return at, mask
}
