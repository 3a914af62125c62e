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
		"readme/4.txt": "6168d6aafd65996c48ae630a0fa457b76e5ff55aac5647e6a1955c4733eb9392",
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

// older renders the README of an older format, of so many checkpoints, out of one of
// the newest.
func older(t *testing.T, format string, newest []byte, checkpoints int) []byte {
	t.Helper()
	made := regexp.MustCompile(`made on ([^\n]*)\.\n`).FindSubmatch(newest)
	absent := regexp.MustCompile(`by its SHA-256: [0-9]+(\n *not in here, since they were not found: [^\n]*)`).FindSubmatch(newest)
	if made == nil || absent == nil {
		t.Fatalf("the README has changed: %s", newest)
	}
	text, err := template.ParseFiles("readme/" + format + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	err = text.Execute(&b, map[string]any{
		"Made": string(made[1]), "Records": 17, "Runs": 1, "Policies": 1, "Absent": string(absent[1]), "Checkpoints": checkpoints, "Anchors": 0, "LeftOut": "nothing",
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestCheckBundleOfEachFormat: bundles that were made before the README changed
// keep verifying, and one of a later program is told from one that was changed. Those
// before format 4 hold every checkpoint of the log.
func TestCheckBundleOfEachFormat(t *testing.T) {
	path, key := bundled(t)
	history, err := os.ReadFile(filepath.Join(filepath.Dir(path), "audit", "checkpoints"))
	if err != nil {
		t.Fatal(err)
	}
	all := bytes.Count(history, []byte("\n— "))
	for _, tt := range []struct {
		line, older string // the README's second line; the format that the bundle is made to be of
		history     bool   // with every checkpoint
		want        string
	}{
		{line: "Bundle format 4, made on "},
		{line: "Bundle format 4, made on ", history: true, want: "README.txt is not the one of these files"},
		{older: "3", history: true},
		{older: "2", history: true},
		{older: "1", history: true},
		{older: "3", want: "checkpoints: line 1: checkpoint 0 should stand here"},
		{older: "1", want: "checkpoints: line 1: checkpoint 0 should stand here"},
		{line: "Bundle format 5, made on ", want: "the bundle has format 5, and this program knows up to 4: check it with a newer sallyport"},
		{line: "Bundle format 1, made on ", want: "README.txt is of bundle format \"1\", which is none"},
		{line: "Bundle format 0004 made on ", want: "README.txt is none of a bundle"},
		{line: "Bundle format 04, made on ", want: "README.txt is not the one of these files"},
	} {
		again := rezip(t, path, func(name string, data []byte) ([]byte, bool) {
			switch {
			case name == "checkpoints" && tt.history:
				data = history
			case name == "checkpoints" && tt.older != "": // without the first
				_, data, _ = bytes.Cut(history, []byte("\n— "))
				_, data, _ = bytes.Cut(data, []byte("\n\n"))
			case name == "README.txt" && tt.older != "":
				data = older(t, tt.older, data, all)
			case name == "README.txt":
				data = bytes.Replace(data, []byte("Bundle format 4, made on "), []byte(tt.line), 1)
			}
			return data, true
		})
		r, err := export.CheckBundle(t.Context(), again, key)
		switch {
		case tt.want == "" && (err != nil || r.Records != 17):
			t.Errorf("%+v: CheckBundle = %+v, %v", tt, r, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%+v: CheckBundle = %v", tt, err)
		}
	}
}
