package query_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"sallyport/audit/query"
)

// Every filter of the page's table of questions is one.
func TestDocumentedFilters(t *testing.T) {
	page, err := os.ReadFile("../../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| question | filter |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	n := 0
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "`")
		if len(cells) != 3 {
			t.Errorf("no filter in %q", row)
			continue
		}
		if _, err := query.Parse(cells[1], time.Now()); err != nil {
			t.Errorf("%s: %v", cells[1], err)
		}
		n++
	}
	if n < 10 {
		t.Errorf("the table has %d rows", n)
	}
}

// What there is not is an error that says what may have been meant.
func TestMeantFilters(t *testing.T) {
	for filter, want := range map[string]string{
		"kinf=dns":                 `there is no field "kinf"; did you mean "kind"?`,
		"name=x":                   "what it would hold is in host",
		"zzzzzz=x":                 `there is no field "zzzzzz"`,
		"reason=host_not_allowwed": `did you mean "host_not_allowed"?`,
		"kind=refused":             `did you mean "refuse"?`,
		"verdict=allow":            "it is one of deny tunnel inspect",
		"kind=dns,refused":         `kind is never "refused"`,
		"question=resolv":          `did you mean "resolve"?`,
		"reason=host_not_allowed":  "",
		"reason~not_allowwed":      "",
	} {
		_, err := query.Parse(filter, time.Now())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", filter, err, want)
		}
	}
}
