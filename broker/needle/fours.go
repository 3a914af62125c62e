package needle

import (
	"encoding/binary"
	"math/bits"
)

// fours tells which four octets in a row may be in a needle: there is a bit for each hash.
type fours struct {
	words []uint32
	shift uint // of the hash, to the number of words
}

const (
	// Of the bits few are set: each that is costs a closer look at some texts.
	perFour     = 24
	minFourBits = 13
	maxFourBits = 20
)

// newFours makes room for n fours.
func newFours(n int) fours {
	size := min(max(bits.Len(uint(perFour*n)), minFourBits), maxFourBits)
	return fours{make([]uint32, 1<<size/32), uint(32 + 5 - size)}
}

// spread is as in hash.
const spread = 2654435769

// product hashes four octets: its highest bits tell a word, and its lowest a bit in it.
func product[T Text](text T, at int) uint32 {
	return (uint32(text[at]) | uint32(text[at+1])<<8 | uint32(text[at+2])<<16 | uint32(text[at+3])<<24) * spread
}

func (f *fours) add(text []byte, at int) {
	h := product(text, at)
	f.words[h>>(f.shift&31)] |= 1 << (h & 31)
}

// holds reports whether the four octets at a place may be in a needle.
func holds[T Text](f *fours, text T, at int) bool {
	h := product(text, at)
	return f.words[h>>(f.shift&31)]>>(h&31)&1 != 0
}

// pass goes from p on over places, a stride apart and up to last, at which holds says no.
// It may stop before one: then a few are left to be looked at, or one of the next four says yes.
func (f *fours) pass(text []byte, p, stride, last int) int {
	if hasVectors {
		return passBMI2(text, f.words, f.shift, p, stride, last)
	}
	return f.passPlainly(text, p, stride, last)
}

// passPlainly is pass with four looks for each branch.
func (f *fours) passPlainly(text []byte, p, stride, last int) int {
	words, shift := f.words, f.shift&31
	for ; p+3*stride <= last; p += 4 * stride {
		h0 := binary.LittleEndian.Uint32(text[p:]) * spread
		h1 := binary.LittleEndian.Uint32(text[p+stride:]) * spread
		h2 := binary.LittleEndian.Uint32(text[p+2*stride:]) * spread
		h3 := binary.LittleEndian.Uint32(text[p+3*stride:]) * spread
		if (words[h0>>shift]>>(h0&31)|words[h1>>shift]>>(h1&31)|words[h2>>shift]>>(h2&31)|words[h3>>shift]>>(h3&31))&1 != 0 {
			break
		}
	}
	return p
}
