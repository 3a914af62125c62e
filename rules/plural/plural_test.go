package plural_test

import (
	"testing"

	"sallyport/rules/plural"
)

func TestCount(t *testing.T) {
	for want, got := range map[string]string{
		"0 records":         plural.Count(0, "record"),
		"1 record":          plural.Count(int64(1), "record"),
		"-1 records":        plural.Count(-1, "record"),
		"1 entry":           plural.Count(uint64(1), "entry"),
		"2 entries":         plural.Count(2, "entry"),
		"1 day":             plural.Count(1, "day"),
		"14 days":           plural.Count(14, "day"),
		"2 keys":            plural.Count(2, "key"),
		"1 credential file": plural.Count(1, "credential file"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if plural.Of(1, "it is", "they are") != "it is" || plural.Of(0, "it is", "they are") != "they are" {
		t.Error("Of")
	}
}
