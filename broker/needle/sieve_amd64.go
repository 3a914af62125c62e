package needle

import "golang.org/x/sys/cpu"

// sieveAVX2 is sift with 32 octets at a time.
//
//go:noescape
func sieveAVX2(text []byte, t *sieve) (at int, mask uint32)

// hasVectors tells whether sieveAVX2 can run here.
var hasVectors = cpu.X86.HasAVX2
