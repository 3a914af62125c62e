package policyfile_test

import (
	"flag"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/publicsuffix"

	"sallyport/rules/policyfile"
)

// suffixRules are the lines of the public suffix list that x/net tests itself with.
func suffixRules(t *testing.T) (list []string) {
	t.Helper()
	pkg, err := build.Import("golang.org/x/net/publicsuffix", ".", build.FindOnly)
	if err != nil {
		t.Fatal(err)
	}
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(pkg.Dir, "table_test.go"), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || v.Names[0].Name != "rules" {
			return true
		}
		for _, e := range v.Values[0].(*ast.CompositeLit).Elts {
			s, err := strconv.Unquote(e.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, s)
		}
		return false
	})
	if len(list) < 5000 {
		t.Fatalf("%d rules: the table is not where it was", len(list))
	}
	return list
}

// TestSuffixParents: every name above an entry of the public suffix list is known,
// by the version of the list that is built in.
func TestSuffixParents(t *testing.T) {
	lines := map[string]string{}
	for _, r := range suffixRules(t) {
		if strings.HasPrefix(r, "!") { // somebody's, by name
			continue
		}
		_, icann := publicsuffix.PublicSuffix(strings.Replace(r, "*", "x", 1))
		for _, up, ok := strings.Cut(r, "."); ok && strings.Contains(up, "."); _, up, ok = strings.Cut(up, ".") {
			if suffix, _ := publicsuffix.PublicSuffix(up); suffix == up {
				continue
			}
			if icann {
				lines[up] = up + " icann\n"
			} else if lines[up] == "" {
				lines[up] = up + "\n"
			}
		}
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		b.WriteString(lines[name])
	}
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile("suffixparents.txt", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("suffixparents.txt")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Error("suffixparents.txt is not that of the list: go test ./rules/policyfile -run SuffixParents -update")
	}
}

// TestWildcardsAboveManyAreRefused: a wildcard covers what lies two labels below
// as well, so one above those of many is no better than one at them (NM-07).
func TestWildcardsAboveManyAreRefused(t *testing.T) {
	const tenants, public = "many tenants share", "public suffix"
	for host, want := range map[string]string{
		"*.on.aws": tenants, "*.us-east-1.on.aws": tenants, "*.run.app": tenants, "*.compute.amazonaws.com": tenants,
		"*.elb.amazonaws.com": tenants, "*.us-east-1.amazonaws.com": tenants, "*.core.windows.net": tenants, "*.blob.core.windows.net": tenants,
		"*.storage.googleapis.com": tenants, "*.googleapis.com": tenants, "*.digitaloceanspaces.com": tenants,
		"*.openai.azure.com": tenants, "*.aliyuncs.com": tenants, "*.oss-cn-hangzhou.aliyuncs.com": tenants,
		"*.myqcloud.com": tenants, "*.cos.ap-guangzhou.myqcloud.com": tenants, "*.webhook.site": tenants, "*.nip.io": tenants,
		"*.sslip.io": tenants, "*.oast.fun": tenants, "*.pastebin.com": tenants,
		"*.kawasaki.jp": public, "*.x.kawasaki.jp": public, "*.kobe.jp": public, "*.sch.uk": public, "*.nom.br": public, "*.jp": public,

		"*.city.kawasaki.jp": "", "*.city.kobe.jp": "", "*.a.x.kawasaki.jp": "", "*.school.sch.uk": public, "*.a.school.sch.uk": "",
		"*.service-abc.a.run.app": "", "*.account.blob.core.windows.net": "", "*.mine.openai.azure.com": "",
		"*.bucket.oss-cn-hangzhou.aliyuncs.com": "", "*.bucket-1.cos.ap-guangzhou.myqcloud.com": "",
		"*.mine.webhook.site": "", "*.example.com": "", "*.notaliyuncs.com": "", "*.api.github.com": "",
	} {
		for _, mode := range []string{"", "mode: observe\n", "mode: learn\n"} {
			_, err := policyfile.ParsePolicy("p.yaml", []byte(mode+rule(`{host: "`+host+`"}`, "")), nil)
			if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s%s: %v, want %q", mode, host, err, want)
			}
			_, err = policyfile.ParsePolicy("p.yaml", []byte(mode+rule(`{host: "`+host+`"}`, "multi_tenant: acknowledged\n")), nil)
			if (want == public) != (err != nil) {
				t.Errorf("%s%s, acknowledged: %v", mode, host, err)
			}
		}
	}
}
