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
// names, addresses, connections, TLS, HTTP/2 and WebSocket, HTTP/1, redirects, DNS and
// exhaustion; about credentials, signatures and tokens; about the log; and about the
// network of a sandbox, its container, and what is carried out by what is allowed.
const catalogue = `
	NM-01 NM-02 NM-03 NM-04 NM-05 NM-07 NM-08 NM-09 NM-11 NM-13 NM-14 NM-15 NM-17 NM-19 NM-20 NM-22 NM-23
	IP-01 IP-02 IP-03 IP-04 IP-05 IP-08 IP-09 IP-10 IP-11 IP-12 IP-13 IP-14 IP-16 IP-17 IP-18 IP-19 IP-20
	CN-01 CN-02 CN-03 CN-05 CN-06 CN-07 CN-09 CN-11 CN-12 CN-16 CN-17 CN-18 CN-20 CN-21
	TL-01 TL-02 TL-05 TL-06 TL-07 TL-08 TL-09 TL-10 TL-11 TL-12 TL-13 TL-16 TL-17
	HW-01 HW-02 HW-03 HW-07 HW-09 HW-10 HW-11 HW-13 HW-14
	HT-01 HT-02 HT-04 HT-05 HT-07 HT-09 HT-10 HT-11 HT-12 HT-13 HT-15 HT-16 HT-17 HT-20 HT-22 HT-23
	RD-01 RD-02 RD-04 RD-07
	DN-01 DN-02 DN-03 DN-04 DN-05 DN-06 DN-07 DN-10 DN-11 DN-12 DN-13 DN-15 DN-16 DN-19 DN-21
	DS-01 DS-02 DS-03 DS-04 DS-05 DS-07 DS-09 DS-10 DS-11 DS-12 DS-14 DS-15
	CR-01 CR-03 CR-04 CR-05 CR-07 CR-08 CR-10 CR-11 CR-12 CR-14 CR-16 CR-18 CR-19 CR-21 CR-22 CR-24 CR-25 CR-27 CR-30
	SG-01 SG-02 SG-03 SG-06 SG-07 SG-09
	JW-01 JW-02 JW-03 JW-04 JW-06 JW-07 JW-08
	LG-01 LG-02 LG-03 LG-04 LG-05 LG-06 LG-08 LG-11
	NW-01 NW-02 NW-03 NW-04 NW-05 NW-06 NW-08 NW-09 NW-14 NW-16 NW-18 NW-19 NW-20 NW-22 NW-23 NW-24
	CT-01 CT-02 CT-03 CT-04 CT-05 CT-07 CT-08 CT-10 CT-12 CT-14
	EX-01 EX-02 EX-03 EX-04 EX-08`

// TestCatalogueIsTested: a test carries the id of what it is about.
func TestCatalogueIsTested(t *testing.T) {
	cited := map[string]bool{}
	id := regexp.MustCompile(`(NM|IP|CN|TL|HW|HT|RD|DN|DS|CR|SG|JW|LG|NW|CT|EX)-?[0-9]{2}\b`) // also at the end of a test's name)
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
	for want := range strings.FieldsSeq(catalogue) {
		if !cited[strings.Replace(want, "-", "", 1)] {
			t.Errorf("no test cites %s", want)
		}
	}
}
