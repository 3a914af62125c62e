package rules_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/rules"
)

// TestReasonsAreAll: Reasons returns each constant of its type once.
func TestReasonsAreAll(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			if lit, ok := v.Values[0].(*ast.BasicLit); ok {
				s, _ := strconv.Unquote(lit.Value)
				declared = append(declared, s)
			}
		}
		return true
	})
	var returned []string
	for _, r := range rules.Reasons() {
		returned = append(returned, string(r))
	}
	slices.Sort(declared)
	slices.Sort(returned)
	if diff := cmp.Diff(declared, returned); diff != "" {
		t.Errorf("Reasons (-declared +returned):\n%s", diff)
	}
}

// TestReasonsAreDocumented: docs/reasons.md has a row for each, and for no other.
func TestReasonsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| .+ \\| .+ \\|$").FindAllStringSubmatch(string(text), -1) {
		rows[m[1]]++
	}
	want := map[string]int{}
	for _, r := range rules.Reasons() {
		want[string(r)] = 1
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("docs/reasons.md (-reasons +rows):\n%s", diff)
	}
}
