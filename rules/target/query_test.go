package target_test

import (
	"strings"
	"testing"

	"sallyport/rules/target"
)

// HT-15: what servers take for a parameter.
func TestWithoutParams(t *testing.T) {
	tests := []struct{ raw, want string }{
		{"", ""},
		{"a=1", "a=1"},
		{"a=1&&b=%zz&c", "a=1&&b=%zz&c"},
		{"xkey=1&keyx=2&ke=3", "xkey=1&keyx=2&ke=3"},
		{"key=1", ""},
		{"a=1&key=2&b=3&key=4", "a=1&b=3"},
		{"KEY=1&Key&k%65y=2&%6b%65%79=3&+key=4&key+=5", ""},
		{"a=1;key=2&b=3", "b=3"},
		{"other=1&a=key", "a=key"},
	}
	for _, tt := range tests {
		if got := target.WithoutParams(tt.raw, []string{"key", "other"}); got != tt.want {
			t.Errorf("WithoutParams(%q) = %q, want %q", tt.raw, got, tt.want)
		}
	}
	if got := target.WithoutParams("key=1&&", nil); got != "key=1&&" {
		t.Errorf("without names: %q", got)
	}
}

func FuzzWithoutParams(f *testing.F) {
	f.Add("a=1&key=2;b&k%65y=3", "key")
	f.Fuzz(func(t *testing.T, raw, name string) {
		names := []string{name}
		once := target.WithoutParams(raw, names)
		if again := target.WithoutParams(once, names); again != once {
			t.Fatalf("WithoutParams(%q) = %q, then %q", raw, once, again)
		}
		for part := range strings.SplitSeq(once, "&") {
			if raw != "" && once != "" && target.ParamNamed(part, name) {
				t.Fatalf("WithoutParams(%q) left %q", raw, part)
			}
		}
	})
}
