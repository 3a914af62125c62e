package export_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/template"

	"sallyport/audit/export"
)

// TestReadmesStay: bundles hold these texts, and are compared with them.
func TestReadmesStay(t *testing.T) {
	want := map[string]string{
		"readme/1.txt": "f19c628f170afb00d19e82bc32dc16d1881bfd26e3213687316343894931ae07",
		"readme/3.txt": "3180889422d820a8bba7ab04468c5dccfe11b451899b41e818ee22b2414202d4",
		"readme/2.txt": "d7a3b1d4a14d5cda164753fcad278dd0b7c9f6c0dcfecaf4026a138e6400788b",
	}
	files, err := filepath.Glob("readme/*")
	if err != nil || len(files) != len(want) {
		t.Fatalf("%q, %v: want the README of each format, and no other file", files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != want[f] {
			t.Errorf("%s is not the text that bundles were made with: a new text is a new format", f)
		}
	}
}

// older renders the README of an older format, out of one of the newest.
func older(t *testing.T, format string, newest []byte) []byte {
	t.Helper()
	made := regexp.MustCompile(`made on ([^\n]*)\.\n`).FindSubmatch(newest)
	checkpoints := regexp.MustCompile(`at that time, ([0-9]+)`).FindSubmatch(newest)
	absent := regexp.MustCompile(`by its SHA-256(\n *not in here, since they were not found: [^\n]*)`).FindSubmatch(newest)
	if made == nil || checkpoints == nil || absent == nil {
		t.Fatalf("the README has changed: %s", newest)
	}
	text, err := template.ParseFiles("readme/" + format + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	err = text.Execute(&b, map[string]any{
		"Made": string(made[1]), "Records": 17, "Runs": 1, "Policies": 1, "Absent": string(absent[1]), "Checkpoints": string(checkpoints[1]),
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestCheckBundleOfEachFormat: bundles that were made before the README changed
// keep verifying, and one of a later program is told from one that was changed.
func TestCheckBundleOfEachFormat(t *testing.T) {
	path, key := bundled(t)
	for line, want := range map[string]string{
		"Bundle format 3, made on ":   "",
		"Bundle format 2, made on ":   "",
		"Made on ":                    "", // as bundles of format 1 begin
		"Bundle format 4, made on ":   "the bundle has format 4, and this program knows up to 3: check it with a newer sallyport",
		"Bundle format 1, made on ":   "README.txt is of bundle format \"1\", which is none",
		"Bundle format 0002 made on ": "README.txt is none of a bundle",
		"Bundle format 03, made on ":  "README.txt is not the one of these files",
	} {
		again := rezip(t, path, func(name string, data []byte) ([]byte, bool) {
			switch {
			case name != "README.txt":
			case line == "Made on ":
				data = older(t, "1", data)
			case line == "Bundle format 2, made on ":
				data = older(t, "2", data)
			default:
				data = bytes.Replace(data, []byte("Bundle format 3, made on "), []byte(line), 1)
			}
			return data, true
		})
		r, err := export.CheckBundle(again, key)
		switch {
		case want == "" && (err != nil || r.Records != 17):
			t.Errorf("%q: CheckBundle = %+v, %v", line, r, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: CheckBundle = %v, want %s", line, err, want)
		}
	}
}
