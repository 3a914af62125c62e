//go:build !amd64

package needle

const hasVectors = false

func sieveAVX2(text []byte, t *sieve) (at int, mask uint32) { return sift(text, t) }
