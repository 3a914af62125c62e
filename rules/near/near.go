// Package near guesses which known word was meant by one that is not. It is
// pure.
package near

import "fmt"

// Hint returns "; did you mean …?" where a known word is near, else "".
func Hint(word string, known []string) string {
	best, _ := Word(word, known)
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// Word returns the known word that is nearest, "" if none is near, and whether no
// other is as near.
func Word(word string, known []string) (best string, alone bool) {
	distance := 3
	for _, k := range known {
		switch d := editDistance(word, k); {
		case d >= max(len(word), len(k)):
		case d < distance:
			best, distance, alone = k, d, true
		case d == distance:
			alone = false
		}
	}
	return best, alone && best != ""
}

// editDistance counts insertions, deletions, substitutions and swaps of
// neighbours, ASCII case aside; words that differ much in length count as far.
func editDistance(a, b string) int {
	const far = 99
	if len(a) > 64 || len(b) > 64 || len(a)-len(b) > 3 || len(b)-len(a) > 3 {
		return far
	}
	var before []int
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+differ(a[i-1], b[j-1]))
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

func differ(a, b byte) int {
	if a == b || a|0x20 == b|0x20 && 'a' <= a|0x20 && a|0x20 <= 'z' {
		return 0
	}
	return 1
}
