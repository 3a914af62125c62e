package deploy_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// What is installed for the tests is told by its digest, not by where it came from, and
// runs on the node that Debian 12 has.
func TestJavaScriptIsPinnedByDigest(t *testing.T) {
	text, err := os.ReadFile("tools/js/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	var lock struct {
		Packages map[string]struct {
			Version, Integrity, Resolved string
			HasInstallScript             bool
			Engines                      struct{ Node string }
		}
	}
	if err := json.Unmarshal(text, &lock); err != nil || len(lock.Packages) < 2 {
		t.Fatalf("%d packages, %v", len(lock.Packages), err)
	}
	for name, p := range lock.Packages {
		if name == "" {
			continue // what package.json says
		}
		if !strings.HasPrefix(p.Integrity, "sha512-") || p.Resolved != "" || p.HasInstallScript {
			t.Errorf("%s: integrity %q, resolved %q, install script %v; want a digest alone", name, p.Integrity, p.Resolved, p.HasInstallScript)
		}
		if v, ok := strings.CutPrefix(p.Engines.Node, ">="); ok && len(v) > 1 && v[:2] > "18" && v[1] != '.' {
			t.Errorf("%s %s wants node %s, Debian 12 has 18", name, p.Version, p.Engines.Node)
		}
	}
}
