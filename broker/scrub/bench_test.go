package scrub_test

import (
	"fmt"
	"strings"
	"testing"

	"sallyport/broker/scrub"
)

// A token that is made anew has its scrubber built once: what that costs.
func BenchmarkNew(b *testing.B) {
	for _, n := range []int{40, 120, 400, 800} {
		value := strings.Repeat("Zq7Xw9Kp2Lm4Nb8Vc1Yd", n/20)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				scrub.New(scrub.Secret{Value: value, Instead: value[:4]})
			}
		})
	}
}

// BenchmarkAnother is what another token costs beside those that are known.
func BenchmarkAnother(b *testing.B) {
	value := strings.Repeat("Zq7Xw9Kp2Lm4Nb8Vc1Yd", 20)
	var known []scrub.Known
	for i := range 3 {
		known = append(known, scrub.Know(scrub.Secret{Value: fmt.Sprint(i) + value}))
	}
	b.ReportAllocs()
	for b.Loop() {
		scrub.Of(append(known, scrub.Know(scrub.Secret{Value: value}))...)
	}
}
