package needle

import "golang.org/x/sys/cpu"

// sieveAVX2 is sift with 32 octets at a time.
//
//go:noescape
func sieveAVX2(text []byte, t *sieve, masks []uint32) (n int)

// hasVectors tells whether sieveAVX2 can run here.
var hasVectors = cpu.X86.HasAVX2
