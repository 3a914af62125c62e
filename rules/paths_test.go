package rules_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sallyport/rules"
	"sallyport/rules/target"
)

func TestParsePathPatternRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"": "slash", "v1": "slash", "*": "slash", "/a b": "space", "/é": "ASCII", "/a?b": "no query", "/a#b": "no query", "/%zz": "percent",
		"/%41": `write "/A"`, "/a%2f": `write "/a%2F"`, "/{id}": `write "/%7Bid%7D"`,
		"/a/../b": "two ways", "/a//b": "two ways", "/a;b": "two ways", "/a%2Fb": "two ways",
		"/v1/ch*": "whole segment", "/***": "whole segment", "/**/**": "once",
		"/" + strings.Repeat("a/", 32): "segments", "/" + strings.Repeat("a", 1024): "octets",
	} {
		if p, err := rules.ParsePathPattern(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParsePathPattern(%.40q) = %v, %v, want an error with %q", in, p, err, want)
		}
	}
}

func TestPathPatternMatch(t *testing.T) {
	tests := []struct {
		pattern  string
		no, want string // paths, space-separated
	}{
		{"/", "/a //", "/"},
		{"/v1/charges", "/ /v1 /v1/charges/ /v1/charges/1 /V1/charges /v1/charge /v1/chargesx", "/v1/charges"},
		{"/v1/charges/*", "/v1/charges /v1/charges/ /v1/charges/1/2 /v1/charges/1/", "/v1/charges/1 /v1/charges/%20"},
		{"/v1/refunds/**", "/v1 /v1/refundsx /v2/refunds/1", "/v1/refunds /v1/refunds/ /v1/refunds/1 /v1/refunds/1/2/3"},
		{"/**", "", "/ /a /a/b/ /a/b/c"},
		{"/*", "/ /a/ /a/b", "/a"},
		{"/**/meta", "/ /metax /meta/x /a/meta/", "/meta /a/meta /a/b/meta /meta/meta"},
		{"/a/**/b/**/c", "/a/b /a/c /a/c/b /b/c", "/a/b/c /a/x/b/y/c /a/b/b/c/c /a/c/b/b/c"},
		{"/a/**/b/*", "/a/b /a/b/", "/a/b/c /a/b/b/b /a/x/b/y"},
		{"/a/", "/a /a/b", "/a/"},
		{"/x%2Ay", "/x*y /xzy", "/x%2Ay /x%2ay"},
	}
	for _, tt := range tests {
		p := pattern(t, tt.pattern)
		if p.String() != tt.pattern {
			t.Errorf("String() = %q, want %q", p, tt.pattern)
		}
		for s := range strings.FieldsSeq(tt.no) {
			if p.Match(pathOf(t, s)) {
				t.Errorf("%s matches %s", p, s)
			}
		}
		for s := range strings.FieldsSeq(tt.want) {
			if !p.Match(pathOf(t, s)) {
				t.Errorf("%s does not match %s", p, s)
			}
		}
	}
	for _, s := range []string{"/a/../b", "/a;b", "//"} {
		if pattern(t, "/**").Match(pathOf(t, s)) {
			t.Errorf("/** matches the ambiguous %s", s)
		}
	}
	if (rules.PathPattern{}).Match(pathOf(t, "/")) || pattern(t, "/**").Match(target.Path{}) {
		t.Error("a zero value matches")
	}
}

// TestDenyPathsAreWide: a deny rule is not walked round by another spelling.
func TestDenyPathsAreWide(t *testing.T) {
	deny := func(s string) *rules.Policy {
		return compile(t, rules.Source{Rules: []rules.Rule{
			one(t, "all", func(*rules.Rule) {}),
			{ID: "no", Hosts: hosts(t, "ok.test"), Paths: patterns(t, s)},
		}})
	}
	tests := []struct{ pattern, denied, allowed string }{
		{"/v1/refunds", "/v1/refunds /v1/refunds/ /V1/Refunds /%761/refunds", "/v1/refunds/1 /v1/refund /v1"},
		{"/v1/refunds/**", "/v1/refunds /v1/refunds/ /v1/refunds/1 /V1/REFUNDS/1/2/", "/v1/refundsx /v1"},
		{"/x/*", "/x/a /x/a/ /X/%41", "/x /x/ /x/a/b"},
		{"/x/", "/x /x/", "/x/a"},
		{"/a=b@c", "/a=b@c /a%3Db%40c /A%3db%40C", "/a=b /a=b@cc"},
		{"/a%20b", "/a%20b /A%20B", "/a+b /a%21b"},
		{"/x%2Ay", "/x*y /x%2Ay", "/xzy"},
		{"/%2A", "/* /%2A", "/z"},
		{"/", "/", "/a"},
		{"/**", "/ /a /a/b/", ""},
		{"/**/admin", "/admin /a/ADMIN/ /a/b/admin", "/administrator /admin/x"},
	}
	for _, tt := range tests {
		p := deny(tt.pattern)
		for s := range strings.FieldsSeq(tt.denied) {
			if got := p.Decide(ask(t, "GET https://ok.test"+s)); got.Reason != rules.DeniedByRule || got.Rule != "no" {
				t.Errorf("deny %s: %s is %s", tt.pattern, s, got.Reason)
			}
		}
		for s := range strings.FieldsSeq(tt.allowed) {
			if got := p.Decide(ask(t, "GET https://ok.test"+s)); got.Reason != rules.Allowed {
				t.Errorf("deny %s: %s is %s", tt.pattern, s, got.Reason)
			}
		}
		if got := p.Decide(ask(t, "GET https://ok.test/a/../b")); got.Verdict != rules.Deny || got.Reason != rules.PathAmbiguous && tt.pattern != "/**" {
			t.Errorf("deny %s: an ambiguous path is %s", tt.pattern, got.Reason)
		}
	}
}

// segments are few, so that patterns and paths meet often.
var (
	drawPattern = rapid.Custom(func(t *rapid.T) rules.PathPattern {
		list := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "*", "**", "A", "%2A"}), 0, 5).Draw(t, "pattern")
		s := "/" + strings.Join(list, "/") + rapid.SampledFrom([]string{"", "", "/"}).Draw(t, "end")
		p, err := rules.ParsePathPattern(s)
		if err != nil {
			p, _ = rules.ParsePathPattern("/**")
		}
		return p
	})
	drawPath = rapid.Custom(func(t *rapid.T) target.Path {
		list := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "A", "%2A", "%61", "..", ";"}), 0, 5).Draw(t, "path")
		p, _ := target.ParsePath("/" + strings.Join(list, "/") + rapid.SampledFrom([]string{"", "/"}).Draw(t, "end"))
		return p
	})
)

// slowMatch is what Match means, written for the reader.
func slowMatch(pattern, path []string) bool {
	switch {
	case len(pattern) == 0:
		return len(path) == 0
	case pattern[0] == "**":
		return slowMatch(pattern[1:], path) || len(path) > 0 && slowMatch(pattern, path[1:])
	case len(path) == 0:
		return false
	case pattern[0] == "*" && path[0] != "", pattern[0] == path[0]:
		return slowMatch(pattern[1:], path[1:])
	default:
		return false
	}
}

func TestMatchIsWhatItMeans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, path := drawPattern.Draw(t, "p"), drawPath.Draw(t, "path")
		want := !path.Ambiguous() && slowMatch(strings.Split(p.String()[1:], "/"), strings.Split(path.String()[1:], "/"))
		if got := p.Match(path); got != want {
			t.Fatalf("%s.Match(%s) = %v, want %v", p, path, got, want)
		}
	})
}

func TestCoversIsSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, q, path := drawPattern.Draw(t, "p"), drawPattern.Draw(t, "q"), drawPath.Draw(t, "path")
		if p.Covers(q) && q.Match(path) && !p.Match(path) {
			t.Fatalf("%s covers %s, but only the latter matches %s", p, q, path)
		}
		if !p.Covers(p) || !pattern(nil2(t), "/**").Covers(p) {
			t.Fatalf("%s is not covered by itself and /**", p)
		}
	})
}

func TestCovers(t *testing.T) {
	for _, tt := range []struct {
		p, q string
		want bool
	}{
		{"/v1/*", "/v1/**", false},
		{"/v1/*", "/v1/", false},
		{"/v1/a", "/v1/*", false},
		{"/v1/**", "/**", false},
		{"/v1/**", "/v2/a", false},
		{"/v1/**", "/v1", true},
		{"/v1/**", "/v1/charges/*", true},
		{"/v1/*", "/v1/a", true},
		{"/**/c", "/a/**/c", true},
	} {
		if got := pattern(t, tt.p).Covers(pattern(t, tt.q)); got != tt.want {
			t.Errorf("%s.Covers(%s) = %v, want %v", tt.p, tt.q, got, tt.want)
		}
	}
}

// TestOverlapIsComplete: two patterns that share a path are never taken for
// disjoint, so that Compile sees every pair of rules that could both match.
func TestOverlapIsComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, q, path := drawPattern.Draw(t, "p"), drawPattern.Draw(t, "q"), drawPath.Draw(t, "path")
		if !p.Match(path) || !q.Match(path) {
			return
		}
		rule := func(id string, p rules.PathPattern) rules.Rule {
			return one(nil2(t), id, func(r *rules.Rule) { r.Paths, r.Credential = []rules.PathPattern{p}, id })
		}
		if _, err := rules.Compile(rules.Source{Rules: []rules.Rule{rule("a", p), rule("b", q)}}); err == nil {
			t.Fatalf("%s and %s both match %s, and Compile took them for disjoint", p, q, path)
		}
	})
}

func FuzzParsePathPattern(f *testing.F) {
	for _, s := range []string{"/", "/v1/*", "/**", "/a%2Ab", "/a/../b", "*", "/***"} {
		f.Add(s, "/v1/x")
	}
	f.Fuzz(func(t *testing.T, s, path string) {
		p, err := rules.ParsePathPattern(s)
		if err != nil {
			return
		}
		again, err := rules.ParsePathPattern(p.String())
		if err != nil || again.String() != p.String() || !p.Covers(again) {
			t.Fatalf("ParsePathPattern(%q) = %q, which reads as %q, %v", s, p, again, err)
		}
		if q, err := target.ParsePath(path); err == nil {
			want := !q.Ambiguous() && slowMatch(strings.Split(p.String()[1:], "/"), strings.Split(q.String()[1:], "/"))
			if len(path) < 40 && p.Match(q) != want {
				t.Fatalf("%q.Match(%q) = %v", p, q, !want)
			}
		}
	})
}
