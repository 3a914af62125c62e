package policyfile_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"sallyport/rules/detect"
	"sallyport/rules/policyfile"
)

// TestDocumentation: the files that docs/policy.md shows load, and the errors
// that it shows are what is printed.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	bad, printed := string(readFile(t, "bad.yaml")), string(readFile(t, "bad.txt"))
	shared := files(map[string]string{"shared/llm.yaml": head + one("llm", "llm.test")})
	kinds := map[string]int{}
	for _, m := range regexp.MustCompile("(?ms)^```(yaml|text)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		block := m[2]
		var err error
		switch {
		case m[1] == "text":
			kinds["errors"]++
			if block != printed {
				t.Errorf("the errors that are shown are not those that are printed:\n%s", block)
			}
		case block == bad:
			kinds["bad"]++
		case strings.Contains(block, "kind: Policy"):
			kinds["policy"]++
			_, err = policyfile.ReadPolicy(policyfile.Input{Name: "docs/policy.md", Data: []byte(block), Files: shared, Detect: anywhere}, stripe(t))
		case strings.Contains(block, "kind: Credential"):
			kinds["credential"]++
			_, err = policyfile.ParseCredential("docs/policy.md", []byte(block))
		case strings.Contains(block, "kind: Gateway"):
			kinds["gateway"]++
			_, err = policyfile.ParseGateway("docs/policy.md", []byte(block))
		default:
			t.Errorf("a block of no kind:\n%s", block)
		}
		if err != nil {
			t.Error(err)
		}
	}
	for _, kind := range []string{"errors", "bad", "policy", "credential", "gateway"} {
		if kinds[kind] == 0 {
			t.Errorf("docs/policy.md shows no %s", kind)
		}
	}
}

// anywhere is a machine on which everything is configured.
func anywhere(manager string) ([]detect.Server, error) {
	m, _ := detect.Lookup("apk")
	return m.Find(detect.Config{Files: []detect.File{{Path: "/" + manager, Data: []byte("https://" + manager + ".example.com/\n")}}})
}
