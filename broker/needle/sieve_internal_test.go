package needle

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// What looks at many octets at once finds what a look at each of them does.
func FuzzSuspect(f *testing.F) {
	f.Add([]byte("sk_test_4eC39HqLyjWDarjtT1zdp7dc"), []byte("s\n es\n\tes\r\na=\\n%41%zz&amp;\r\n\tb"), uint8(3))
	f.Add([]byte("pässword=of/two\r\nlines"), []byte("\\xc3\xa4\r\n=C3=A4&#228;%u00e4 \x00\\"), uint8(0))
	f.Fuzz(func(t *testing.T, value, text []byte, from8 uint8) {
		checkSuspects(t, value, text, int(from8))
		checkSuspects(t, value, bytes.Repeat(text, 1+150/(1+len(text))), int(from8))
	})
}

func TestSuspectsAreThoseOfEachOctet(t *testing.T) {
	values := []string{"sk_test_4eC39HqLyjWDarjtT1zdp7dc", "abcabcab", "%41&amp;=41\\n ", "two\r\nlines\nof it", "pässwörter-überall"}
	r := rand.New(rand.NewPCG(5, 6))
	for range 600 {
		v := values[r.IntN(len(values))]
		text := bytes.Repeat([]byte{v[r.IntN(len(v))]}, r.IntN(90))
		for range r.IntN(6) {
			text = append(text, disguised(r, v)...)
			text = append(text, bytes.Repeat([]byte{byte(r.Uint32())}, r.IntN(70))...)
		}
		checkSuspects(t, []byte(v), text, r.IntN(3))
	}
}

// checkSuspects compares suspect with a look at each octet, and both sieves.
func checkSuspects(t *testing.T, value, text []byte, from int) {
	t.Helper()
	l := NewSet(Spellings(value, nil, 0)).layers
	if l == nil || len(value) > 100 || len(text) > 2000 {
		return
	}
	for p := from; p < len(text); p++ {
		want := p
		for want < len(text) && innocent(l, text, from, want) {
			want++
		}
		if got := suspect(l, text, from, p, len(text)); got != want {
			t.Fatalf("suspect(%q, from %d) from %d on = %d, want %d", text, from, p, got, want)
		}
		if got := suspect(l, string(text), from, p, len(text)); got != want {
			t.Fatalf("suspect(string %q, from %d) from %d on = %d, want %d", text, from, p, got, want)
		}
		if s := l.around.sieve; s != nil && hasVectors {
			for _, most := range []int{2, 40} {
				want, got := make([]uint64, most), make([]uint64, most)
				n := sift(text[p:], s, want)
				if k := sieveAVX2(text[p:], s, got); k != n || !slices.Equal(got[:n], want[:n]) {
					t.Fatalf("sieveAVX2(%q) = %d, %#x, want %d, %#x", text[p:], k, got, n, want)
				}
			}
		}
	}
}

// Octets above 0x7f pass no sieve: a value that has some is looked for without.
func TestNoSieveForOctetsBeyondASCII(t *testing.T) {
	for value, want := range map[string]bool{"sk_test_4eC39HqLyjWDarjtT1zdp7dc": true, "pässwörter-überall": false} {
		if got := NewSet(Spellings([]byte(value), nil, 0)).layers.around.sieve != nil; got != want {
			t.Errorf("a sieve for %q: %v, want %v", value, got, want)
		}
	}
}
