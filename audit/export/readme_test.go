package export_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/audit/export"
)

// TestReadmesStay: bundles hold these texts, and are compared with them.
func TestReadmesStay(t *testing.T) {
	want := map[string]string{
		"readme/1.txt": "f19c628f170afb00d19e82bc32dc16d1881bfd26e3213687316343894931ae07",
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

// TestCheckBundleOfEachFormat: bundles that were made before the README changed
// keep verifying, and one of a later program is told from one that was changed.
func TestCheckBundleOfEachFormat(t *testing.T) {
	path, key := bundled(t)
	for line, want := range map[string]string{
		"Bundle format 2, made on ":   "",
		"Made on ":                    "", // as bundles of format 1 begin
		"Bundle format 3, made on ":   "the bundle has format 3, and this program knows up to 2: check it with a newer sallyport",
		"Bundle format 1, made on ":   "README.txt is of bundle format \"1\", which is none",
		"Bundle format 0002 made on ": "README.txt is none of a bundle",
		"Bundle format 02, made on ":  "README.txt is not the one of these files",
	} {
		again := rezip(t, path, func(name string, data []byte) ([]byte, bool) {
			if name == "README.txt" {
				data = bytes.Replace(data, []byte("Bundle format 2, made on "), []byte(line), 1)
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
