package needle

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// Four looks at once pass over what a look at each place passes over, and over nothing else.
func FuzzFours(f *testing.F) {
	f.Add([]byte("abcdefgh"), bytes.Repeat([]byte("xyz"), 40), uint8(3), uint8(7))
	f.Add([]byte("\x00\x01\xfe\xff"), bytes.Repeat([]byte("\x00\x01\xfe\xff"), 9), uint8(0), uint8(1))
	f.Fuzz(func(t *testing.T, held, text []byte, p, stride uint8) {
		checkFours(t, held, text, int(p), 1+int(stride))
	})
}

func TestFoursArePassedAsEachIs(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 3000 {
		held, text := letters(r, 4+r.IntN(30)), letters(r, r.IntN(400))
		checkFours(t, held, text, r.IntN(20), 1+r.IntN(40))
	}
}

// letters are few, so that fours come again.
func letters(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = "abc\x00\xff"[r.IntN(5)]
	}
	return b
}

func checkFours(t *testing.T, held, text []byte, p, stride int) {
	t.Helper()
	f := newFours(len(held))
	for i := range len(held) - 3 {
		f.add(held, i)
		if !holds(&f, held, i) {
			t.Fatalf("%q at %d was added, and is not held", held, i)
		}
	}
	for _, last := range []int{len(text) - 4, len(text) - 9} {
		want := p
		for want+3*stride <= last && !holds(&f, text, want) && !holds(&f, text, want+stride) &&
			!holds(&f, text, want+2*stride) && !holds(&f, text, want+3*stride) {
			want += 4 * stride
		}
		if got := f.passPlainly(text, p, stride, last); got != want {
			t.Fatalf("passPlainly(%q, %d, %d, %d) = %d, want %d", text, p, stride, last, got, want)
		}
		if got := f.pass(text, p, stride, last); got != want {
			t.Fatalf("pass(%q, %d, %d, %d) = %d, want %d", text, p, stride, last, got, want)
		}
	}
}
