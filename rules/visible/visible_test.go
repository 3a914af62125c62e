package visible_test

import (
	"testing"
	"unicode"

	"sallyport/rules/visible"
)

func TestRune(t *testing.T) {
	for _, r := range "az09 ~é日本ñकि👍£\u0301\ufffd" {
		if !visible.Rune(r) {
			t.Errorf("%U does not show", r)
		}
	}
	for _, r := range "\x00\x1b\x7f\u0085\u009b\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u180b\u180e\u200b\u202e\u2028\u2066\u2800\u3000\u3164\ufe00\ufe0f\ufeff\uffa0\U000e0041\U000e0100\U000e01ef\U0010ffff" {
		if visible.Rune(r) {
			t.Errorf("%U shows", r)
		}
	}
	for r := range unicode.MaxRune {
		if visible.Rune(r) && !unicode.IsPrint(r) {
			t.Errorf("%U shows, and is not printable", r)
		}
	}
}
