//go:build !amd64

package needle

const hasVectors = false

func sieveAVX2(text []byte, t *sieve, masks []uint64) (n int) { return sift(text, t, masks) }

func passBMI2(text []byte, words []uint32, shift uint, p, stride, last int) int {
	return (&fours{words, shift}).passPlainly(text, p, stride, last)
}
