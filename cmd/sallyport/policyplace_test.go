package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPolicyUnderTheSandboxsHands: CF-10. A policy is not read from where the
// sandbox, or anybody, could change it, by whatever path it is named.
func TestPolicyUnderTheSandboxsHands(t *testing.T) {
	top := t.TempDir()
	path := func(elem ...string) string { return filepath.Join(append([]string{top}, elem...)...) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"src/deep", "safe", "open", "sticky", "src2"} {
		must(os.MkdirAll(path(d), 0o755))
	}
	for _, f := range []string{"src/p.yaml", "src/deep/p.yaml", "safe/p.yaml", "safe/world.yaml", "open/p.yaml", "sticky/p.yaml", "src2/p.yaml"} {
		must(os.WriteFile(path(f), nil, 0o644))
	}
	must(os.Chmod(path("safe/world.yaml"), 0o646))
	must(os.Chmod(path("open"), 0o777))
	must(os.Chmod(path("sticky"), 0o777|os.ModeSticky))
	must(os.Symlink(path("src/p.yaml"), path("safe/link.yaml")))
	must(os.Symlink(path("src"), path("safe/src")))
	must(os.Symlink(path("safe/p.yaml"), path("src/out.yaml")))

	const inside, mode, exchange = "for the sandbox to change", "everybody may write", "everybody may exchange"
	tests := []struct{ policy, workspace, want string }{
		{"src/p.yaml", "src", inside},
		{"src/deep/p.yaml", "src", inside},
		{"safe/link.yaml", "src", inside},
		{"src/p.yaml", "safe/src", inside},
		{"src/out.yaml", "src", inside}, // the link does, what it leads to does not
		{"safe/world.yaml", "src", mode},
		{"safe/world.yaml", "", mode},
		{"open/p.yaml", "src", exchange},
		{"safe/none.yaml", "src", "no such file"},
		{"safe/p.yaml", "none", "no such file"},

		{"safe/p.yaml", "src", ""},
		{"safe/p.yaml", "", ""},
		{"src/p.yaml", "", ""},
		{"src2/p.yaml", "src", ""}, // a name that begins like it
		{"sticky/p.yaml", "src", ""},
	}
	for _, tt := range tests {
		workspace := tt.workspace
		if workspace != "" {
			workspace = path(workspace)
		}
		err := checkPolicyPlace(path(tt.policy), workspace)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("-p %s --workspace %s: %v, want %q", tt.policy, tt.workspace, err, tt.want)
		}
	}
}
