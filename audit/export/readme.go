package export

import (
	"bytes"
	"embed"
	"fmt"
	"regexp"
	"strconv"
	"text/template"
	"time"
)

// bundleFormat is the format of bundles that are made. Each has a README of its
// own, which the check expects word for word: a text that bundles were made with
// is never changed, but for a new format.
const bundleFormat = 2

//go:embed readme/*.txt
var readmes embed.FS

// formatLine is the second line of a README from format 2 on.
var formatLine = regexp.MustCompile(`^[^\n]*\n(?:Bundle format ([0-9]{1,6}), made|Made) on ([^\n]*)\.\n`)

// formatOf returns the format that a README says its bundle has, and when it
// says that the bundle was made.
func formatOf(text []byte) (format int, made time.Time, err error) {
	m := formatLine.FindSubmatch(text)
	if m == nil {
		return 0, made, fmt.Errorf("%s is none of a bundle", bundleReadme)
	}
	if made, err = time.Parse(time.RFC3339, string(m[2])); err != nil {
		return 0, made, fmt.Errorf("%s does not tell when the bundle was made: %w", bundleReadme, err)
	}
	if len(m[1]) == 0 {
		return 1, made, nil
	}
	format, err = strconv.Atoi(string(m[1]))
	switch {
	case err != nil || format < 2:
		return 0, made, fmt.Errorf("%s is of bundle format %q, which is none", bundleReadme, m[1])
	case format > bundleFormat:
		return 0, made, fmt.Errorf("the bundle has format %d, and this program knows up to %d: check it with a newer sallyport", format, bundleFormat)
	}
	return format, made, nil
}

// readme is the README of a bundle in a format that is known.
func readme(format int, r BundleReport, made time.Time) ([]byte, error) {
	t, err := template.ParseFS(readmes, fmt.Sprintf("readme/%d.txt", format))
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, struct {
		BundleReport
		Made, Absent string
	}{r, made.Format(time.RFC3339), absent(r.Absent)})
	return b.Bytes(), err
}

func absent(digests []string) string {
	if len(digests) == 0 {
		return ""
	}
	return fmt.Sprintf("\n                 not in here, since they were not found: %q", digests)
}
