package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit/index"
)

// TestMeterInAFile: a file gets a line when indexing begins to take long, one a
// minute, one for sorting, and what it came to; nothing of what is soon done.
func TestMeterInAFile(t *testing.T) {
	tests := []struct {
		name string
		took time.Duration // between steps
		want []string
	}{
		{"soon done", time.Millisecond, nil},
		{"a while", 2 * time.Second, []string{
			"sallyport: indexing: [###...........................]  10 %, 1000 records, 500/s, 18s left",
			"sallyport: indexing: 10000 records read, sorting",
			"sallyport: indexing: 10000 records read in 24s, 417/s", "",
		}},
		{"long", 25 * time.Second, []string{
			"sallyport: indexing: [###...........................]  10 %, 1000 records, 40/s, 3m45s left",
			"sallyport: indexing: [############..................]  40 %, 4000 records, 40/s, 2m30s left",
			"sallyport: indexing: [#####################.........]  70 %, 7000 records, 40/s, 1m15s left",
			"sallyport: indexing: [##############################] 100 %, 10000 records, 40/s, 0s left",
			"sallyport: indexing: 10000 records read, sorting",
			"sallyport: indexing: 10000 records read in 5m0s, 33/s", "",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			now := time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)
			m := newMeter(&out, func() time.Time { return now })
			for i := range int64(10) {
				now = now.Add(tt.took)
				m.show(index.Progress{Records: (i + 1) * 1000, Done: i + 1, Total: 10})
			}
			for range 2 {
				now = now.Add(tt.took)
				m.show(index.Progress{Records: 10_000, Done: 10, Total: 10, Sorting: true})
			}
			m.end()
			if diff := cmp.Diff(strings.Join(tt.want, "\n"), out.String()); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
		})
	}
}

// TestMeterFitsItsTerminal: a line that a terminal breaks cannot be written over.
func TestMeterFitsItsTerminal(t *testing.T) {
	p := index.Progress{Records: 9_999_999, Done: 3, Total: 10}
	for columns, want := range map[int]string{
		0:   "indexing: [#########.....................]  30 %, 9999999 records, 1111111/s, 21s left",
		200: "indexing: [#########.....................]  30 %, 9999999 records, 1111111/s, 21s left",
		80:  "indexing: [######.................]  30 %, 9999999 records, 1111111/s, 21s left",
		60:  " 30 %, 9999999 records, 1111111/s, 21s left",
		20:  " 30 %, 9999999 reco",
		1:   "",
	} {
		if got := meterLine(p, 9*time.Second, columns); got != want || columns > 0 && len(got) >= columns {
			t.Errorf("%d columns: %q, want %q", columns, got, want)
		}
	}
}
