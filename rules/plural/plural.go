// Package plural says how many there are of what a word names. It trusts its callers to
// give a word that stands for one.
package plural

import (
	"fmt"
	"strings"
)

// Integer is what can be counted with.
type Integer interface{ int | int64 | uint64 }

// Count is a number with its word: 1 day, 2 days, 0 entries.
func Count[N Integer](n N, word string) string {
	many := word + "s"
	if stem, y := strings.CutSuffix(word, "y"); y && !strings.ContainsAny(stem[max(len(stem)-1, 0):], "aeou") {
		many = stem + "ies"
	}
	return fmt.Sprintf("%d %s", n, Of(n, word, many))
}

// Of returns the words that go with one thing, or with any other number.
func Of[N Integer](n N, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
