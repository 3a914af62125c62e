package proxy_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// heldElsewhere are the keys that no request, stream or query can tell: why, and
// which test shows what they are for instead.
var heldElsewhere = map[string]struct{ why, test string }{
	"metadata.name":        {"a name for people and reports; the digest is what decides and is recorded", "rules/policyfile TestEffective"},
	"metadata.owner":       {"for people: strict lint asks for one where a rule ends", "rules/policyfile TestStrictOwner"},
	"metadata.description": {"for people", "rules/policyfile TestEffective"},
	"never[].reason":       {"for people: it is printed with the proof", "rules/policyfile TestEffective"},
	"rules[].owner":        {"for people: strict lint asks for one where a rule ends", "rules/policyfile TestStrictOwner"},
	"rules[].reason":       {"for people: strict lint wants one that was written", "rules/policyfile TestStrict"},
	"rules[].ticket":       {"for people", "rules/policyfile TestEffective"},
}

// keyPaths returns every key of a policy, as the published schema has them.
func keyPaths(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../docs/policy.schema.json")
	must(t, err)
	var schema struct {
		Defs struct {
			Policy any `json:"policy"`
		} `json:"$defs"`
	}
	must(t, json.Unmarshal(text, &schema))
	var out []string
	var walk func(path string, node any)
	walk = func(path string, node any) {
		m, ok := node.(map[string]any)
		if !ok {
			return
		}
		if _, odd := m["$ref"]; odd {
			t.Errorf("%s refers to another part of the schema: this walk does not go there", path)
		}
		props, _ := m["properties"].(map[string]any)
		for name, sub := range props {
			key := strings.TrimPrefix(path+"."+name, ".")
			out = append(out, key)
			walk(key, sub)
		}
		walk(path+"[]", m["items"])
	}
	walk("", schema.Defs.Policy)
	slices.Sort(out)
	if len(out) < 100 {
		t.Fatalf("only %d keys found in the schema: the walk is wrong", len(out))
	}
	return out
}

// TestEveryKeyIsShown: each key of the language has a case below, or the reason why it
// cannot have one; and what has one is a key. Whoever adds a key writes its case.
func TestEveryKeyIsShown(t *testing.T) {
	shown := map[string]bool{}
	for _, c := range keyCases() {
		for _, k := range c.keys {
			shown[k] = true
		}
	}
	keys := keyPaths(t)
	for _, k := range keys {
		other, told := heldElsewhere[k]
		switch {
		case shown[k] && told:
			t.Errorf("%s has a case, and a reason for having none (%s)", k, other.why)
		case !shown[k] && !told:
			t.Errorf("%s: no case shows what it does: write one in keyCases, or why it has none in heldElsewhere", k)
		}
	}
	for k := range maps.Keys(shown) {
		if !slices.Contains(keys, k) {
			t.Errorf("a case is about %q, which is no key", k)
		}
	}
	for k, v := range heldElsewhere {
		if !slices.Contains(keys, k) {
			t.Errorf("%q has a reason for having no case, and is no key", k)
		}
		if dir, name, _ := strings.Cut(v.test, " "); !hasTest(t, dir, name) {
			t.Errorf("%s: there is no test %s in %s", k, name, dir)
		}
	}
}

// hasTest reports whether a package has a test of that name.
func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", dir, "*_test.go"))
	must(t, err)
	for _, path := range files {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		must(t, err)
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == name {
				return true
			}
		}
	}
	return false
}

// TestEveryKeyDoesWhatItSays puts each case to one gateway through each of its doors:
// redirected flows, CONNECT and absolute form, over HTTP/1 and HTTP/2, and DNS. Every
// case is a pair of policies that differ in the keys it is about, and so does what
// becomes of the same question.
func TestEveryKeyDoesWhatItSays(t *testing.T) {
	w := newKeyWorld(t)
	for _, c := range keyCases() {
		t.Run(c.name(), func(t *testing.T) { w.try(t, &c) })
	}
	must(t, w.stop())
	if rest := w.log.take(); len(rest) > 0 {
		t.Errorf("records after the end: %+v", linesOf(rest))
	}
}
