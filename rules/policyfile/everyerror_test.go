package policyfile_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"sallyport/rules/policyfile"
)

// TestEveryErrorReadsAsBefore holds the errors of each file of testdata/invalid
// against what they were: the place, the words, the line and the caret.
func TestEveryErrorReadsAsBefore(t *testing.T) {
	for name, f := range invalid(t) {
		got := ""
		if err := f.load(); err != nil {
			got = err.Error() + "\n"
		}
		a, err := txtar.ParseFile(name)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == "want.txt" })
		if i < 0 {
			i = len(a.Files)
			a.Files = append(a.Files, txtar.File{Name: "want.txt"})
		}
		if *update && got != string(a.Files[i].Data) {
			a.Files[i].Data = []byte(got)
			if err := os.WriteFile(name, txtar.Format(a), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(string(a.Files[i].Data), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// unreachable are errors that no file can bring about, each with why. What the
// reader has refused before, the compiler refuses again for who has no reader.
var unreachable = map[string]string{
	"its effective form cannot be read back: %v": "a fault of ours",
	"its effective form reads back as another":   "a fault of ours",
	"not YAML: %v": "every error of the parser has a place",
	"%q is not an id: use lower-case letters, digits, and - . _ between them, at most 64": "the reader knows ids",
	"id %q is taken by %s":        "the reader compares ids first",
	"an empty host":               "the reader knows hosts",
	"a wildcard below an address": "the reader knows hosts",
	"0 is not a port":             "the reader knows ports",
	"methods are case-sensitive: %q is not the one you mean; write it in upper case": "the reader knows methods",
	"an empty path pattern":               "the reader knows patterns",
	"%v is not a range in canonical form": "the reader knows ranges",
	"an allow rule needs ports":           "there are always defaults",
	"%d in %d seconds is no limit":        "the reader knows limits",
	"a condition that says nothing":       "the reader knows conditions",
	"a condition without a name":          "the reader knows text",
	"no such scope":                       "scopes are where a file is read from",
	"an approval allows, expires, and neither grants a credential nor opens a private range": "approvals stand in no file",
	"longer than 16 KiB":                   "a line of a file is shorter",
	"longer than 16 KiB in canonical form": "a line of a file is shorter",
	"a query or fragment":                  "a pattern and a test's URL are cut before",
	"its effective form, with every default and include written out, is longer than 4 MiB: join rules that say the same of several hosts, or make it two policies": "TestEffectiveTooLong makes such a file",
	"preset %q has no rule for a credential":         "every preset of ours has one",
	"%q: there is no parameter %q":                   "presets are ours, and have tests",
	"name and version are %s, and it is kept as %s":  "presets are ours, and have tests",
	"this is %s; it has to be a plain number from 1": "presets are ours, and have tests",
	"longer than 4 MiB":                              "TestPolicyErrors makes such a file",
	"not an IPv6 address without a zone":             "an authority has brackets or it does not",
	"cannot be proved: never %s: %w":                 "told of approvals, which stand in no file",
	"would break: never %s: %s":                      "told of approvals, which stand in no file",
}

// helpers are functions that return what becomes part of an error.
var helpers = map[string]bool{
	"foreign": true, "add": true, "labelFault": true, "pathFault": true, "canonicalPath": true, "Unjudged": true, "missing": true, "beyond": true,
}

// constructors returns the format of every error that files of Go code make, with
// its place.
func constructors(t *testing.T, files ...string) map[string]string {
	t.Helper()
	at := map[string]int{"errorf": 1, "errorAt": 2, "fault": 1, "faultAt": 2, "bad": 0, "Errorf": 0, "New": 0, "fail": 1}
	out := map[string]string{}
	fset := token.NewFileSet()
	for _, name := range files {
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		note := func(e ast.Expr) {
			lit, ok := e.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return
			}
			if s, err := strconv.Unquote(lit.Value); err == nil && strings.Trim(s, "%svq: ") != "" {
				out[s] = fset.Position(lit.Pos()).String()
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.FuncDecl:
				if helpers[x.Name.Name] {
					ast.Inspect(x, func(n ast.Node) bool {
						if r, ok := n.(*ast.ReturnStmt); ok {
							for _, e := range r.Results {
								note(e)
							}
						}
						return true
					})
				}
			case *ast.CallExpr:
				name := ""
				switch f := x.Fun.(type) {
				case *ast.Ident:
					name = f.Name
				case *ast.SelectorExpr:
					name = f.Sel.Name
				}
				if i, ok := at[name]; ok && i < len(x.Args) {
					note(x.Args[i])
				}
			case *ast.KeyValueExpr:
				if k, ok := x.Key.(*ast.Ident); ok && k.Name == "Why" {
					note(x.Value)
				}
			}
			return true
		})
	}
	return out
}

var verb = regexp.MustCompile(`%[a-zA-Z]`)

// TestNoErrorIsMissing: every error that a file can bring about is brought about
// by a file of testdata/invalid. One that is new needs a file of its own:
// testdata/invalid/CLASS-NAME.txtar with a main.yaml; -update adds what it is told.
func TestNoErrorIsMissing(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(s string) bool {
		// What those say is told by commands of their own, which have tests.
		return strings.HasSuffix(s, "_test.go") || s == "strict.go" || s == "format.go" || s == "schema.go"
	})
	files = append(files, "../compile.go", "../condition.go", "../scope.go", "../limits.go", "../paths.go", "../target/target.go", "../target/path.go")
	told := ""
	for _, f := range invalid(t) {
		if err := f.load(); err != nil {
			told += err.Error() + "\n"
		}
	}
	all := constructors(t, files...)
	for _, format := range slices.Sorted(maps.Keys(all)) {
		if unreachable[format] != "" {
			continue
		}
		like := verb.ReplaceAllString(regexp.QuoteMeta(strings.ReplaceAll(format, "%%", "\x00")), `(?s:.*?)`)
		if !regexp.MustCompile(strings.ReplaceAll(like, "\x00", "%")).MatchString(told) {
			t.Errorf("%s: no file of testdata/invalid is told %q", all[format], format)
		}
	}
	for format := range unreachable {
		if all[format] == "" {
			t.Errorf("unreachable names an error that there is not: %q", format)
		}
	}
}

// TestEffectiveTooLong: a file that is short enough can say too much.
func TestEffectiveTooLong(t *testing.T) {
	var b strings.Builder
	b.WriteString(head + "rules:\n")
	long := strings.Repeat("a", 700)
	for i := range 5000 {
		fmt.Fprintf(&b, "- {id: r%d, reason: because, allow: {host: h%d.test, paths: [/%s]}}\n", i, i, long)
	}
	_, err := policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: []byte(b.String())}, nil)
	if err == nil || !strings.Contains(err.Error(), "its effective form, with every default and include written out, is longer than 4 MiB") {
		t.Errorf("%v", err)
	}
}
