// Package layering_test holds the rules of the repository that no compiler
// checks: who may import whom, and that what the code cites exists. It parses
// the files itself, so that a cached result never hides a change.
package layering_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// allowed is the import table of the project's own packages: what each may
// import, and nothing else. Tests may import more. Arrows go one way:
// cmd → launcher, proxy, broker → gate, live → audit → rules → target.
var allowed = map[string][]string{
	"rules/target":       {},
	"rules":              {"rules/target"},
	"rules/prove":        {"rules", "rules/target"},
	"rules/suggest":      {"rules", "rules/target"},
	"rules/preset":       {},
	"rules/detect":       {"rules/target"},
	"rules/near":         {},
	"rules/plural":       {},
	"rules/visible":      {},
	"rules/policyfile":   {"rules", "rules/near", "rules/visible", "rules/plural", "rules/target", "rules/prove", "rules/preset", "rules/detect"},
	"rules/limit":        {"rules"},
	"rules/limit/ledger": {"rules/limit"},
	"rules/gate":         {"rules", "rules/target", "rules/limit", "rules/limit/ledger", "audit"},
	"rules/live":         {"rules", "rules/target", "rules/gate"},
	"audit":              {"audit/checkpoint", "audit/segment", "control/durable", "rules/visible"},
	"audit/segment":      {},
	"audit/capture":      {"control/regular"},
	"audit/checkpoint":   {},
	"audit/verify":       {"audit", "audit/checkpoint", "audit/segment", "rules/plural"},
	"audit/query":        {"audit", "audit/checkpoint", "audit/segment", "control/regular", "rules", "rules/near", "rules/plural", "rules/target", "rules/visible"},
	"audit/index":        {"audit", "audit/query", "control/durable"},
	"audit/answer":       {"audit", "audit/index", "audit/query"},
	"audit/export":       {"audit", "audit/checkpoint", "audit/query", "audit/verify", "control/regular"},
	"audit/ship":         {"audit", "audit/query", "audit/export", "control/durable"},
	"certs":              {"control/durable", "rules/target"},
	"control":            {"control/durable", "control/silence"},
	"control/durable":    {},
	"control/regular":    {},
	"control/silence":    {},
	"control/slack":      {},
	"deploy":             {},
	"broker":             {"broker/sign", "broker/source", "broker/scrub", "broker/secret", "broker/needle", "broker/store", "control", "rules", "rules/gate", "rules/target", "rules/policyfile"},
	"broker/sign":        {"broker/secret", "control", "rules", "rules/target", "rules/policyfile"},
	"broker/source":      {"broker/secret", "rules/policyfile"},
	"broker/store":       {"broker/secret", "broker/source", "control/durable", "rules/policyfile"},
	"broker/scrub":       {"broker/secret", "broker/needle"},
	"broker/needle":      {},
	"broker/secret":      {},
	"proxy/bound":        {},
	"proxy/sniff":        {},
	"proxy/h1":           {},
	"proxy/bulk":         {},
	"proxy":              {"proxy/bound", "proxy/bulk", "proxy/sniff", "proxy/h1", "rules", "rules/gate", "rules/live", "rules/target", "rules/visible"},
	"proxy/dial":         {"control/silence", "proxy/bulk", "proxy/h1", "rules", "rules/gate", "rules/target"},
	"proxy/dns":          {"proxy/bound", "rules", "rules/gate", "rules/target"},
	"launcher/cell":      {},
	"launcher/guest":     {},
	"launcher/nerdctl":   {"deploy", "launcher/guest"},
	"launcher":           {"launcher/cell", "launcher/nerdctl", "launcher/guest", "control", "audit", "certs", "deploy"},
	"test/lab":           {"rules/target"},
}

// everywhere may import anything of the project.
var everywhere = []string{"cmd/sallyport", "test/layering", "test/escape", "test/e2e", "test/bench", "test/bench/biglog"}

// root is the top of the checkout.
const root = "../.."

// source is one parsed Go file.
type source struct {
	path string // slash-separated, from the top
	dir  string
	test bool
	file *ast.File
}

func sources(t *testing.T, mode parser.Mode) []source {
	t.Helper()
	var out []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() {
			if name := d.Name(); rel != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || isModule(path)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, mode)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		out = append(out, source{rel, filepath.ToSlash(filepath.Dir(rel)), strings.HasSuffix(rel, "_test.go"), f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 10 {
		t.Fatalf("only %d Go files found below %s: the walk is wrong", len(out), root)
	}
	return out
}

func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func TestImportsGoOneWay(t *testing.T) {
	for _, s := range sources(t, parser.ImportsOnly) {
		if s.test || slices.Contains(everywhere, s.dir) {
			continue
		}
		may, known := allowed[s.dir]
		if !known {
			t.Errorf("%s: package %s is not in the import table: add it with what it may import", s.path, s.dir)
			continue
		}
		for _, imp := range s.file.Imports {
			path, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			own, ok := strings.CutPrefix(path, "sallyport/")
			if ok && !slices.Contains(may, own) {
				t.Errorf("%s: %s may not import %s", s.path, s.dir, own)
			}
		}
	}
}

// pure rooms decide; they may not be able to do anything.
func TestPureRoomsImportNothingThatActs(t *testing.T) {
	pure := []string{"rules", "rules/target", "rules/policyfile", "rules/prove", "rules/suggest", "rules/preset", "rules/detect", "proxy/sniff"}
	deny := []string{"net", "net/http", "os", "os/exec", "log/slog", "syscall", "golang.org/x/sys/unix"}
	seen := 0
	for _, s := range sources(t, parser.ImportsOnly) {
		if s.test || !slices.Contains(pure, s.dir) {
			continue
		}
		seen++
		for _, imp := range s.file.Imports {
			if path, _ := strconv.Unquote(imp.Path.Value); slices.Contains(deny, path) {
				t.Errorf("%s: a pure room may not import %s", s.path, path)
			}
		}
	}
	if seen == 0 {
		t.Error("no file of a pure room was looked at")
	}
}

func TestEveryPackageIsDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t, parser.ParseComments) {
		if s.test {
			continue
		}
		documented[s.dir] = documented[s.dir] || s.file.Doc != nil
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment", dir)
		}
	}
}

var adr = regexp.MustCompile(`ADR-(\d{4})`)

func TestCitedDecisionsExist(t *testing.T) {
	have := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(root, "docs/adr/*.md"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no decisions found: %v", err)
	}
	for _, f := range files {
		have[filepath.Base(f)[:4]] = true
	}
	for _, s := range sources(t, parser.ParseComments) {
		for _, group := range s.file.Comments {
			for _, m := range adr.FindAllStringSubmatch(group.Text(), -1) {
				if !have[m[1]] {
					t.Errorf("%s cites ADR-%s, which does not exist", s.path, m[1])
				}
			}
		}
	}
}

func TestNoReplaceDirectives(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if regexp.MustCompile(`(?m)^\s*replace\b`).Match(data) {
		t.Error("go.mod has a replace directive: a build of the module as a dependency would differ")
	}
}
