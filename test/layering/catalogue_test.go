package layering_test

import (
	"go/parser"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// catalogue are the ways round a gateway, by their ids, that tests must cite: about
// credentials, signatures and tokens, and about the log.
const catalogue = `
	CR-01 CR-03 CR-04 CR-05 CR-07 CR-08 CR-10 CR-11 CR-12 CR-14 CR-16 CR-18 CR-19 CR-21 CR-22 CR-24 CR-25 CR-27 CR-30
	SG-01 SG-02 SG-03 SG-06 SG-07 SG-09
	JW-01 JW-02 JW-03 JW-04 JW-06 JW-07 JW-08
	LG-01 LG-02 LG-03 LG-04 LG-05 LG-06 LG-08 LG-11`

// TestCatalogueIsTested: a test carries the id of what it is about.
func TestCatalogueIsTested(t *testing.T) {
	cited := map[string]bool{}
	id := regexp.MustCompile(`(CR|SG|JW|LG)-?[0-9]{2}\b`) // also at the end of a test's name)
	for _, s := range sources(t, parser.ParseComments) {
		if !s.test || s.dir == "test/layering" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, s.path))
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range id.FindAllString(string(text), -1) {
			cited[strings.Replace(found, "-", "", 1)] = true
		}
	}
	for _, want := range strings.Fields(catalogue) {
		if !cited[strings.Replace(want, "-", "", 1)] {
			t.Errorf("no test cites %s", want)
		}
	}
}
