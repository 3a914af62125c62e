package needle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// Where a glance from two octets rules a needle out, the search that undoes escapes in
// every way finds none.
func TestNoNeedleIsPassedOver(t *testing.T) {
	values := []string{"sk_test_4eC39HqLyjWDarjtT1zdp7dc", "abcabcab", "%41&amp;=41\\n ", "two\r\nlines\nof it"}
	r := rand.New(rand.NewPCG(3, 4))
	found, innocents := 0, 0
	for range 1000 {
		v := values[r.IntN(len(values))]
		l := NewSet(Spellings([]byte(v), nil, 0)).layers
		text, from := disguised(r, v), r.IntN(3)
		for p := from; p < len(text); p++ {
			next := suspect(l, text, from, p, len(text))
			for ; p < next; p++ {
				innocents++
				for _, final := range []bool{true, false} {
					if !introduces[text[p]] {
						continue
					}
					if h, ok := at(l, text, from, p, final); ok {
						t.Fatalf("at %d of %q, from %d, final %v: passed over %+v", p, text, from, final, h)
					}
				}
			}
			if p < len(text) {
				if _, ok := at(l, text, from, p, true); ok {
					found++
				}
			}
		}
	}
	if found < 300 || innocents < 10000 {
		t.Errorf("%d found, %d passed over: the texts are too dull", found, innocents)
	}
}

// disguised returns a text in which v is whole or in part, escaped and broken anywhere,
// between what may look like it.
func disguised(r *rand.Rand, v string) []byte {
	var text []byte
	for range 1 + r.IntN(4) {
		from, to := 0, len(v)
		if r.IntN(3) == 0 {
			from, to = r.IntN(len(v)), 1+r.IntN(len(v))
		}
		for i := from; i < to; i++ {
			text = append(text, escapedAtRandom(r, v[i])...)
		}
		for range r.IntN(12) {
			text = append(text, escapedAtRandom(r, byte(r.Uint32()))...)
		}
	}
	if r.IntN(4) == 0 {
		text = text[:r.IntN(len(text)+1)]
	}
	return text
}

func escapedAtRandom(r *rand.Rand, c byte) []byte {
	text := []byte{c}
	if r.IntN(4) != 0 {
		return text
	}
	marks := []string{"%", "=", "&", "\\", "\r", "\n", "\r\n", "=\r\n", "\\\n", "\n \t", `\n`, "&#", "&amp;", "%u", "%25", "\x00", ";", "u", "x"}
	if r.IntN(3) == 0 {
		return slices.Insert(text, r.IntN(2), []byte(marks[r.IntN(len(marks))])...)
	}
	for range 1 + r.IntN(2) {
		format := []string{"%%%02x", "=%02X", `\u%04x`, `\x%02x`, `\%03o`, "&#%d;", "&#x%x;", `\%c`}[r.IntN(8)]
		i := r.IntN(len(text))
		text = slices.Replace(text, i, i+1, fmt.Appendf(nil, format, text[i])...)
	}
	return text
}
