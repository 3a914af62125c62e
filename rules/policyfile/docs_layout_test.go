package policyfile_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/rules/policyfile"
	"sallyport/rules/preset"
)

// TestExamplesAreLaidOut: what people copy from the documentation or read in a
// preset is what policy fmt writes.
func TestExamplesAreLaidOut(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	yaml := regexp.MustCompile("(?ms)^```yaml\n.*?^```$")
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		out := yaml.ReplaceAllStringFunc(string(text), func(fenced string) string {
			const open, end = "```yaml\n", "```"
			block := fenced[len(open) : len(fenced)-len(end)]
			if !strings.HasPrefix(block, "apiVersion: "+policyfile.APIVersion) || strings.Contains(block, "ownr: ") { // shows errors
				return fenced
			}
			blocks++
			return open + laidOut(t, filepath.Base(page), block) + end
		})
		if *update && out != string(text) {
			if err := os.WriteFile(page, []byte(out), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if blocks < 15 {
		t.Errorf("%d examples: where are they?", blocks)
	}
	for _, ref := range preset.Refs() {
		text, _ := preset.Read(ref)
		out := laidOut(t, ref, string(text))
		if *update && out != string(text) {
			if err := os.WriteFile("../preset/files/"+ref+".yaml", []byte(out), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// laidOut returns text in its one layout.
func laidOut(t *testing.T, name, text string) string {
	t.Helper()
	out, err := policyfile.Format(name, []byte(text))
	if err != nil {
		t.Errorf("%v", err)
		return text
	}
	if diff := cmp.Diff(text, string(out)); diff != "" && !*update {
		t.Errorf("%s is laid out in another way: make golden\n%s", name, diff)
	}
	return string(out)
}
