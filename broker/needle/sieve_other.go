//go:build !amd64

package needle

const hasVectors = false

func sieveAVX2(text []byte, t *sieve, masks []uint32) (n int) { return sift(text, t, masks) }
