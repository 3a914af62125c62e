// Package visible tells which characters show, so that text of a sandbox reads
// like what it is. It trusts nothing, and knows nothing of what the text means.
package visible

import "unicode"

// Rune reports whether r shows: it is a letter, mark, number, punctuation, symbol
// or the blank, and leaves something to be seen. Unicode has letters and marks that
// do not, in which a text can be hidden behind another: fillers of Hangul,
// selectors of variations, joiners (Default_Ignorable_Code_Point), the empty
// pattern of Braille.
func Rune(r rune) bool {
	switch {
	case r < 0x7f:
		return r >= ' '
	case !unicode.IsPrint(r), r == 0x2800:
		return false
	case r < 0x300: // no mark or letter before does not show
		return true
	}
	return !unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}
