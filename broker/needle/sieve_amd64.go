package needle

import "golang.org/x/sys/cpu"

// sieveAVX2 is sift with 32 octets at a time.
//
//go:noescape
func sieveAVX2(text []byte, t *sieve, masks []uint64) (n int)

// passBMI2 is fours.passPlainly.
//
//go:noescape
func passBMI2(text []byte, words []uint32, shift uint, p, stride, last int) int

// hasVectors tells whether sieveAVX2 and passBMI2 can run here.
var hasVectors = cpu.X86.HasAVX2 && cpu.X86.HasBMI2
