package policyfile_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"sallyport/rules/policyfile"
)

// TestCredentialDocumentation: every example in docs/credentials.md loads, and
// every type has one.
func TestCredentialDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/credentials.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[policyfile.CredentialType]bool{}
	for _, m := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		block := m[1]
		if !strings.HasPrefix(block, "apiVersion") { // examples of schemes leave the head out
			block = string(credential(block))
		}
		c, err := policyfile.ParseCredential("docs/credentials.md", []byte(block))
		if err != nil {
			t.Error(err)
			continue
		}
		shown[c.Type] = true
	}
	for _, typ := range policyfile.Types() {
		if !shown[policyfile.CredentialType(typ)] {
			t.Errorf("docs/credentials.md has no example of type %s", typ)
		}
	}
}
