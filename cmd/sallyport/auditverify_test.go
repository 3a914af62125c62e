package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"sallyport/audit/verify"
)

// TestVerifyShowsNamesAsText: what somebody called a file beside a log's does not
// reach a terminal as it is, in neither form.
func TestVerifyShowsNamesAsText(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		var c cobra.Command
		var out bytes.Buffer
		c.SetOut(&out)
		if err := reportVerify(&c, verify.Report{Unknown: []string{"a\u009b2J\u202eb\U000e0041"}}, nil, asJSON); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); !strings.Contains(got, map[bool]string{true: `a\u009b2J\u202eb\udb40\udc41"`, false: `"a\u009b2J\u202eb\U000e0041"`}[asJSON]) {
			t.Errorf("JSON %v: printed %q", asJSON, got)
		}
	}
}
