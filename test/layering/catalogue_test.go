package layering_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// catalogue are the cases of the log in the catalogue of ways round a gateway.
var catalogue = []string{
	"LG-01", // a CRLF forges a record
	"LG-02", // terminal escapes and bidirectional text
	"LG-03", // huge fields
	"LG-04", // secrets in logs
	"LG-05", // tunnels and refusals that are not logged
	"LG-06", // the log is full, or gone
	"LG-08", // the log can be written by who is watched
	"LG-11", // the record shows the claim, not the fact
}

// TestCatalogueIsTested: every case is cited by the test that tries it.
func TestCatalogueIsTested(t *testing.T) {
	cited := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "catalogue_test.go" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, id := range catalogue {
			cited[id] = cited[id] || strings.Contains(string(text), id) || strings.Contains(string(text), strings.Replace(id, "-", "", 1))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range catalogue {
		if !cited[id] {
			t.Errorf("no test cites %s", id)
		}
	}
}
