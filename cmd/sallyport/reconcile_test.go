package main

import (
	"strings"
	"testing"
)

// TestReconcileSaysWhatItDid: what was ended was left, too.
func TestReconcileSaysWhatItDid(t *testing.T) {
	for _, tt := range []struct {
		name string
		out  clearedOut
		want string
	}{
		{"nothing", clearedOut{}, "nothing was left\n"},
		{"a dead launcher's", clearedOut{Removed: []string{"aaaaaaaa"}}, "removed what was left of the run in cell aaaaaaaa\n"},
		{"a live launcher's", clearedOut{Live: []string{"bbbbbbbb"}, Ended: []string{"bbbbbbbb"}}, "ended the run in cell bbbbbbbb, which went on without up\n"},
		{"one that is let be", clearedOut{Live: []string{"bbbbbbbb"}}, "nothing was left\n"},
	} {
		var b strings.Builder
		must(t, tt.out.print(&b))
		if b.String() != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, b.String(), tt.want)
		}
	}
}
