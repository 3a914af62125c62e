package export

import (
	"bytes"
	"embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"sallyport/audit"
)

// bundleFormat is the format of bundles that are made. Each has a README of its
// own, which the check expects word for word: a text that bundles were made with
// is never changed, but for a new format.
const bundleFormat = 4

// subsetFormat is the first that does not hold every checkpoint of the log.
const subsetFormat = 4

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
		Made, Absent, LeftOut string
	}{r, made.Format(time.RFC3339), absent(r.Absent), leftOut(r.LeftOut)})
	return b.Bytes(), err
}

func absent(digests []string) string {
	if len(digests) == 0 {
		return ""
	}
	return fmt.Sprintf("\n                 not in here, since they were not found: %q", digests)
}

// leftOutLine is what a README from format 3 on says was left out: nobody can tell
// that from the files.
var leftOutLine = regexp.MustCompile(`(?m)^Left out, since no checkpoint covered them yet: ([^\n]*)\.$`)

// leftOut counts by kind, as in 3 admit, 1 dns.
func leftOut(counts map[audit.Kind]int64) string {
	if len(counts) == 0 {
		return "nothing"
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[k], k))
	}
	return strings.Join(parts, ", ")
}

// leftOutOf reads what leftOut wrote. What it does not understand it leaves out:
// then the README is not the one that is expected.
func leftOutOf(text []byte) (counts map[audit.Kind]int64, n int) {
	m := leftOutLine.FindSubmatch(text)
	if m == nil || string(m[1]) == "nothing" {
		return nil, 0
	}
	counts = map[audit.Kind]int64{}
	for part := range strings.SplitSeq(string(m[1]), ", ") {
		digits, kind, _ := strings.Cut(part, " ")
		if c, err := strconv.ParseInt(digits, 10, 32); err == nil && c > 0 {
			counts[audit.Kind(kind)] = c
			n += int(c)
		}
	}
	return counts, n
}
