package target_test

import (
	"errors"
	"strings"
	"testing"

	"sallyport/rules/target"
)

func TestParsePathRefuses(t *testing.T) {
	for _, in := range []string{
		"", "a", "*", "?x", "http://ok.test/", "/a b", "/a\tb", "/a\r\nX: y", "/a\x00", "/é", "/a?b", "/a#b",
		"/%", "/%4", "/%4g", "/%00", "/%0d%0a", "/%1b", "/%7f",
		"/" + strings.Repeat("a", 16<<10), "/" + strings.Repeat("{", 8<<10),
	} {
		p, err := target.ParsePath(in)
		var syntax *target.SyntaxError
		if !errors.As(err, &syntax) || !p.IsZero() {
			t.Errorf("ParsePath(%.40q) = %v, %v, want a SyntaxError", in, p, err)
		}
	}
}

// TestHT13ParsePath: one spelling for what is the same, a mark on what servers
// read in two ways.
func TestHT13ParsePath(t *testing.T) {
	tests := []struct {
		in, want  string
		ambiguous bool
	}{
		{"/", "/", false},
		{"/public/x", "/public/x", false},
		{"/public/x/", "/public/x/", false},
		{"/%70ublic/x", "/public/x", false},
		{"/a%2db%7ec", "/a-b~c", false},
		{"/a%c3%a9", "/a%C3%A9", false},
		{"/a%20b", "/a%20b", false},
		{"/a:b@c=d,e+f", "/a:b@c=d,e+f", false},
		{"/a%40b", "/a%40b", false},
		{"/a{b}|c^d\"<e>`[f]", "/a%7Bb%7D%7Cc%5Ed%22%3Ce%3E%60%5Bf%5D", false},
		{"/public/...", "/public/...", false},
		{"/public/.x", "/public/.x", false},

		{"/public/../secret", "/public/../secret", true},
		{"/public/%2e%2e/secret", "/public/../secret", true},
		{"/public/.%2E/secret", "/public/../secret", true},
		{"/public/..%2fsecret", "/public/..%2Fsecret", true},
		{"/public/..", "/public/..", true},
		{"/public/.", "/public/.", true},
		{"/public/./x", "/public/./x", true},
		{"//public/../secret", "//public/../secret", true},
		{"//", "//", true},
		{"/a//b", "/a//b", true},
		{"/public/;/../secret", "/public/;/../secret", true},
		{"/public/..;/secret", "/public/..;/secret", true},
		{"/secret;x=y", "/secret;x=y", true},
		{"/secret%3bx=y", "/secret%3Bx=y", true},
		{"/public\\..\\secret", "/public%5C..%5Csecret", true},
		{"/public%5c..%5csecret", "/public%5C..%5Csecret", true},
		{"/a%252e%252e/b", "/a%252e%252e/b", true},
		{"/public/%c0%ae%C0%AE/secret", "/public/%C0%AE%C0%AE/secret", true},
	}
	for _, tt := range tests {
		p, err := target.ParsePath(tt.in)
		if err != nil || p.String() != tt.want || p.Ambiguous() != tt.ambiguous {
			t.Errorf("ParsePath(%q) = %v (ambiguous %v), %v, want %s (ambiguous %v)", tt.in, p, p.Ambiguous(), err, tt.want, tt.ambiguous)
		}
		if again, err := target.ParsePath(p.String()); err != nil || again != p {
			t.Errorf("ParsePath(%q) = %v, %v, want what %q gives", p.String(), again, err, tt.in)
		}
	}
}

func TestParsePathDoesNotAllocateForPlainPaths(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { _, _ = target.ParsePath("/v1/charges/ch_1") }); n != 0 {
		t.Errorf("ParsePath allocates %v times, want 0", n)
	}
}
