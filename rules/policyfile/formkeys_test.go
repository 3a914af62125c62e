package policyfile_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sallyport/rules/policyfile"
)

// readerKeys are the keys of each mapping that the reader takes, by what errors
// call it, as they stand in its source.
func readerKeys(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || name == "preset.go" {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				readerKeysOf(fn, out)
			}
		}
	}
	return out
}

// readerKeysOf adds the keys of the mapping that a function reads, if it reads one.
func readerKeysOf(fn *ast.FuncDecl, out map[string][]string) {
	what := ""
	var keys []string
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.IfStmt: // what only an effective policy has
			if s, ok := x.Cond.(*ast.SelectorExpr); ok && s.Sel.Name == "written" {
				if x.Else != nil {
					ast.Inspect(x.Else, func(n ast.Node) bool { keys = append(keys, keyLiteral(n)...); return true })
				}
				return false
			}
		case *ast.CallExpr:
			s, ok := x.Fun.(*ast.SelectorExpr)
			if !ok || s.Sel.Name != "mapping" || len(x.Args) != 3 {
				break
			}
			switch a := x.Args[1].(type) {
			case *ast.BasicLit:
				what, _ = strconv.Unquote(a.Value)
			case *ast.Ident:
				if fn.Name.Name == "readMatch" {
					what = "allow"
				}
			}
		default:
			keys = append(keys, keyLiteral(n)...)
		}
		return true
	})
	if what != "" && len(keys) > 0 {
		slices.Sort(keys)
		out[what] = append(out[what], slices.Compact(keys)...)
	}
}

// keyLiteral returns the name in a literal of a key, with a star if it is required.
func keyLiteral(n ast.Node) []string {
	lit, ok := n.(*ast.CompositeLit)
	if !ok {
		return nil
	}
	name, required := "", ""
	for _, e := range lit.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			return nil
		}
		k, isName := kv.Key.(*ast.Ident)
		if !isName {
			return nil
		}
		switch v := kv.Value.(type) {
		case *ast.BasicLit:
			if k.Name == "name" {
				name, _ = strconv.Unquote(v.Value)
			}
		case *ast.Ident:
			if k.Name == "required" && v.Name == "true" {
				required = "*"
			}
		}
	}
	if name == "" {
		return nil
	}
	return []string{name + required}
}

// TestFormsHaveTheKeysOfTheReader: formatter, schema and reference know every key
// that the reader does, and no other. A new key goes into form.go or
// formcredential.go.
func TestFormsHaveTheKeysOfTheReader(t *testing.T) {
	forms := policyfile.FormKeys()
	compared := 0
	for what, want := range readerKeys(t) {
		switch what {
		case "floor", "run", "a preset", "a parameter":
			continue // no person writes those
		case "assume_role":
			continue // a part of the settings of a type, which are of the reader's own table
		}
		got := slices.Clone(forms[what])
		if what == "a credential" { // the settings of types are of the reader's own table
			got = slices.DeleteFunc(got, func(k string) bool { return slices.Contains(policyfile.Types(), k) })
		}
		slices.Sort(got)
		slices.Sort(want)
		if want = slices.Compact(want); !slices.Equal(slices.Compact(got), want) {
			t.Errorf("%s: the form has %v, and the reader %v", what, got, want)
		}
		compared++
	}
	if compared < 15 {
		t.Errorf("only %d mappings were compared", compared)
	}
}
