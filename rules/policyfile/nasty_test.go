package policyfile_test

import (
	"strings"
	"testing"

	"sallyport/rules/policyfile"
)

// TestNastyFiles: a long file, whatever it holds, is read or
// refused without the parser's recursion or cost running away.
func TestNastyFiles(t *testing.T) {
	const n = 1 << 17
	fill := func(s string) string { return strings.Repeat(s, (n-len(head))/len(s)) }
	var stairs strings.Builder
	for i := 0; stairs.Len() < n-3000; i++ {
		stairs.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	for name, text := range map[string]string{
		"keys": head + fill("a: b\n"), "open": head + "x: " + fill("[")[:n-len(head)-10], "dashes": head + "x:\n" + fill("- ")[:n-len(head)-10],
		"stairs": stairs.String(), "items": head + "rules: [" + fill("a, ")[:n-len(head)-20] + "]", "quotes": head + fill("\""),
		"literal": head + "x: |\n" + fill("  y\n")[:n-len(head)-10], "colons": head + fill(": "), "question": head + fill("? "),
		"amps": head + fill("&a "), "bangs": head + fill("!a "), "unknown": head + fill("x1: {y: [z]}\n"), "nest": head + fill("{a: [{b: ["),
		"plain": head + "x: " + fill("y\n  ")[:n-len(head)-10], "rules": head + "rules:\n" + fill("- {id: a, reason: b, allow: {host: a.test}}\n")[:n/4],
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := policyfile.ParsePolicy("p.yaml", []byte(text[:min(len(text), n)]), nil); err == nil {
				t.Error("it loads")
			}
		})
	}
}
