package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOldStacksAreRefused: CT-10, and what is as new as it has to be is not.
func TestOldStacksAreRefused(t *testing.T) {
	good := map[string]string{
		"containerd": "containerd github.com/containerd/containerd/v2 v2.4.2", "nerdctl": "nerdctl version v2.0.5",
		"runc": "runc version 1.5.3\nspec: 1.3.0", "runsc": "runsc version release-20260905.0",
	}
	tests := []struct{ tool, says, want string }{
		{"runc", "runc version 1.1.11", "runc: 1.1.11, and 1.5.3 or newer is needed"},
		{"runc", "runc version 1.2.7", "runc: 1.2.7,"},
		{"runc", "runc version 1.3.5", "runc: 1.3.5,"},
		{"runc", "runc version 1.4.2", "runc: 1.4.2,"},
		{"runc", "runc version 1.5.0-rc.2", "runc: 1.5.0-rc.2, and"},
		{"runc", "runc version 1.5.3-rc.1", "runc: 1.5.3-rc.1, and"},
		{"runc", "runc: what?", "runc: no version,"},
		{"containerd", "containerd github.com/containerd/containerd 1.6.20~ds1", "containerd: 1.6.20,"},
		{"nerdctl", "nerdctl version 1.7.6", "nerdctl: 1.7.6,"},
		{"runsc", "runsc version release-20240101.0", "runsc: 20240101.0, and 20260905 or newer is needed"},
		{"runsc", "", ""},
		{"runc", "runc version 1.5.3", ""},
		{"runc", "runc version 1.6.0", ""},
	}
	for _, tt := range tests {
		t.Run(tt.tool+" "+tt.says, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("SALLYPORT_TOOLS", dir)
			for tool, says := range good {
				if tool == tt.tool {
					says = tt.says
				}
				if says == "" {
					continue
				}
				script := fmt.Sprintf("#!/bin/sh\ncat <<'E'\n%s\nE\n", says)
				if err := os.WriteFile(filepath.Join(dir, tool), []byte(script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			err := newEnough(t.Context())
			switch {
			case tt.want == "" && err == nil:
			case tt.want == "" || err == nil || !strings.Contains(err.Error(), tt.want):
				t.Errorf("newEnough = %v, want %q", err, tt.want)
			}
		})
	}
}
