package deploy_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sallyport/deploy"
)

func TestFloorsNamesEveryPart(t *testing.T) {
	got := deploy.Floors()
	for _, name := range []string{"containerd", "runc", "nerdctl", "runsc", "kernel"} {
		if v := got[name]; !deploy.AtLeast(v, v) {
			t.Errorf("Floors()[%q] = %q, want a version", name, v)
		}
	}
	if len(got) != 5 {
		t.Errorf("Floors() = %v, want 5 entries", got)
	}
}

// What setup builds must be accepted, or a freshly installed machine would be refused.
func TestPinnedVersionsMeetFloors(t *testing.T) {
	modules := map[string]string{
		"containerd": "github.com/containerd/containerd/v2",
		"runc":       "github.com/opencontainers/runc",
		"nerdctl":    "github.com/containerd/nerdctl/v2",
	}
	for tool, module := range modules {
		if v := pinned(t, tool, module); !deploy.AtLeast(v, deploy.Floors()[tool]) {
			t.Errorf("tools/%s pins %s, below the floor %s", tool, v, deploy.Floors()[tool])
		}
	}
	v := pinned(t, "gvisor", "gvisor.dev/gvisor") // v0.0.0-20260905035102-160fafc42237
	if day := strings.Split(v, "-")[1][:8]; !deploy.AtLeast(day, deploy.Floors()["runsc"]) {
		t.Errorf("tools/gvisor pins %s, below the floor %s", v, deploy.Floors()["runsc"])
	}
}

func pinned(t *testing.T, tool, module string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("tools", tool, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(f) >= 2 && f[0] == module && strings.HasPrefix(f[1], "v") {
			return f[1]
		}
	}
	t.Fatalf("tools/%s/go.mod does not require %s", tool, module)
	return ""
}

func TestAtLeast(t *testing.T) {
	tests := []struct {
		name, said, floor string
		want              bool
	}{
		{"nothing said", "", "1.5.3", false},
		{"no version in it", "runc: permission denied", "1.5.3", false},
		{"no floor", "1.5.3", "", false},
		{"patch below", "runc version 1.5.2", "1.5.3", false},
		{"not compared as text", "v2.4.10", "2.4.11", false},
		{"minor below with large patch", "1.1.99", "1.5.3", false},
		{"pre-release of the floor", "1.5.3-rc.1", "1.5.3", false},
		{"shorter and below", "2", "2.0.5", false},
		{"not a version after all", "v2.x", "2.0.5", false},
		{"overflow", "99999999999999999999.1", "1.0", false},
		{"older date", "runsc version release-20250101.0", "20260905", false},

		{"equal", "1.5.3", "1.5.3", true},
		{"runc", "runc version 1.5.3\nspec: 1.3.0\ngo: go1.26.8", "1.5.3", true},
		{"containerd", "containerd github.com/containerd/containerd/v2 v2.4.2 ", "2.4.2", true},
		{"nerdctl", "nerdctl version v2.0.5", "2.0.5", true},
		{"runsc", "runsc version release-20260905.0\nspec: 1.2.1", "20260905", true},
		{"two digits", "2.4.10", "2.4.9", true},
		{"next major", "3.0.0", "2.4.2", true},
		{"pre-release of a later one", "1.6.0-rc.1", "1.5.3", true},
		{"Debian revision", "1.5.3-2+b1", "1.5.3", true},
		{"kernel", "6.1.0-28-amd64", "5.10", true},
		{"plain kernel", "6.18.44-fc-v782", "5.10", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := deploy.AtLeast(tt.said, tt.floor); got != tt.want {
				t.Errorf("AtLeast(%q, %q) = %v, want %v", tt.said, tt.floor, got, tt.want)
			}
		})
	}
}

func TestFindRefuses(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("SALLYPORT_TOOLS", dir)
	t.Setenv("PATH", "")
	write(t, filepath.Join(dir, "notes"), 0o644)
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"notes", "folder", "no-such-tool"} {
		path, err := deploy.Find(tool)
		if !errors.Is(err, deploy.ErrNotFound) || !strings.Contains(err.Error(), "make setup") {
			t.Errorf("Find(%q) = %q, %v, want ErrNotFound and what to run", tool, path, err)
		}
	}
	for _, tool := range []string{"", "../sh", "/bin/sh", "a/b"} {
		if path, err := deploy.Find(tool); err == nil {
			t.Errorf("Find(%q) = %q, want an error", tool, path)
		}
	}
}

func TestFindTakesTheFirstDirectory(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	t.Setenv("SALLYPORT_TOOLS", first)
	t.Setenv("PATH", "relative:"+second)
	write(t, filepath.Join(second, "one-tool"), 0o755)
	if got, err := deploy.Find("one-tool"); err != nil || got != filepath.Join(second, "one-tool") {
		t.Errorf("Find = %q, %v, want the one on PATH", got, err)
	}
	write(t, filepath.Join(first, "one-tool"), 0o755)
	if got, err := deploy.Find("one-tool"); err != nil || got != filepath.Join(first, "one-tool") {
		t.Errorf("Find = %q, %v, want the one in SALLYPORT_TOOLS", got, err)
	}
}

func TestToolDirsLeavesOutRelativeOnes(t *testing.T) {
	t.Setenv("SALLYPORT_TOOLS", "tools")
	t.Setenv("PATH", ".:/usr/bin::bin")
	got := deploy.ToolDirs()
	if want := []string{"/var/lib/sallyport/tools/bin", "/usr/bin"}; !slices.Equal(got, want) {
		t.Errorf("ToolDirs() = %v, want %v", got, want)
	}
}

func TestImageRefuses(t *testing.T) {
	for _, name := range []string{"", "../x", "no-such-image"} {
		if path, err := deploy.Image(name); err == nil {
			t.Errorf("Image(%q) = %q, want an error", name, path)
		}
	}
}

func write(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
		t.Fatal(err)
	}
}
