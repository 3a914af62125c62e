package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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
		err := (&place{workspace: workspace, owner: os.Getuid()}).check(path(tt.policy))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("-p %s --workspace %s: %v, want %q", tt.policy, tt.workspace, err, tt.want)
		}
	}
}

// TestNothingIsReadFromOtherHands: CF-10 for each file that decides what a sandbox
// may reach: whoever reads it, when a run begins or when it is read again.
func TestNothingIsReadFromOtherHands(t *testing.T) {
	const stranger = 54321
	chmod := func(mode os.FileMode) func(string) error { return func(f string) error { return os.Chmod(f, mode) } }
	chown := func(f string) error { return os.Chown(f, stranger, 0) }
	link := func(st *stage) func(string) error {
		return func(f string) error { // to what lies in the workspace
			st.must(os.Rename(f, st.path("work/moved.yaml")))
			return os.Symlink("../work/moved.yaml", f)
		}
	}
	for _, tt := range []struct {
		name, file string
		spoil      func(*stage) func(string) error
		want       string
	}{
		{"a policy that others write", "pol/p.yaml", func(*stage) func(string) error { return chmod(0o646) }, "everybody may write"},
		{"a policy of a stranger", "pol/p.yaml", func(*stage) func(string) error { return chown }, "belongs to user 54321, who is neither root nor root"},
		{"a policy that leads into the workspace", "pol/p.yaml", link, "for the sandbox to change"},
		{"a directory that others write", "pol", func(*stage) func(string) error { return chmod(0o777) }, "everybody may exchange"},
		{"a directory of a stranger", "pol", func(*stage) func(string) error { return chown }, "belongs to user 54321"},
		{"an include that others write", "pol/sub/inc.yaml", func(*stage) func(string) error { return chmod(0o666) }, "everybody may write"},
		{"an include of a stranger", "pol/sub/inc.yaml", func(*stage) func(string) error { return chown }, "belongs to user 54321"},
		{"a directory of includes that others write", "pol/sub", func(*stage) func(string) error { return chmod(0o777) }, "everybody may exchange"},
		{"what narrows but others write", "nar/n.yaml", func(*stage) func(string) error { return chmod(0o666) }, "everybody may write"},
		{"what narrows of a stranger", "nar/n.yaml", func(*stage) func(string) error { return chown }, "belongs to user 54321"},
		{"an include of what narrows", "nar/more.yaml", func(*stage) func(string) error { return chown }, "belongs to user 54321"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			st := newStage(t)
			for _, d := range []string{"pol/sub", "nar", "work"} {
				st.must(os.MkdirAll(st.path(d), 0o755))
			}
			st.write("pol/p.yaml", policyText("include: [{file: sub/inc.yaml}]\n"+oneHost))
			st.write("pol/sub/inc.yaml", policyText(strings.ReplaceAll(oneHost, "one", "inc")))
			st.write("nar/n.yaml", policyText("include: [{file: more.yaml}]\n"+strings.ReplaceAll(oneHost, "id: one", "id: narrowed")))
			st.write("nar/more.yaml", policyText(strings.ReplaceAll(oneHost, "one", "more")))
			src := policySource{path: st.path("pol/p.yaml"), narrow: st.path("nar/n.yaml"), place: &place{workspace: st.path("work")}}
			p, err := loadPolicy(src, nil)
			st.must(err) // the twin: as it stands it is read
			f, err := st.tryAttachFrom("aaaaaaaa", "run-a", src.path, p)
			st.must(err)
			f.Origin.Narrow, f.Origin.Workspace = src.narrow, src.place.workspace
			st.must(f.Write(st.inst.cells(), 0))
			if out := st.reloader.reload(t.Context(), "command"); !out.ok() || out.Runs[0].Outcome != kept {
				t.Fatalf("as it stands: %+v", out)
			}
			st.must(tt.spoil(st)(st.path(tt.file)))
			if _, err := loadPolicy(src, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("a run: %v, want %q", err, tt.want)
			}
			out := st.reloader.reload(t.Context(), "command")
			if out.ok() || !strings.Contains(out.Runs[0].Error, tt.want) || st.force("aaaaaaaa") != p.digest {
				t.Errorf("a reload: %+v, want %q", out, tt.want)
			}
		})
	}
}

// TestFloorAndCredentialsFromOtherHands: CF-10 for what up reads.
func TestFloorAndCredentialsFromOtherHands(t *testing.T) {
	st := newStage(t)
	s := newSupervisor(st.inst, io.Discard, &st.said)
	st.must(os.MkdirAll(st.path("fl/sub"), 0o755))
	st.write("fl/floor.yaml", policyText("include: [{file: sub/inc.yaml}]\n"))
	st.write("fl/sub/inc.yaml", policyText("rules:\n  - {id: org, reason: r, deny: {host: no.example.com}}\n"))
	for _, tt := range []struct {
		file string
		read func() error
	}{
		{"fl/floor.yaml", func() error { return s.stageFloor(st.path("fl/floor.yaml")) }},
		{"fl/sub/inc.yaml", func() error { return s.stageFloor(st.path("fl/floor.yaml")) }},
		{"creds/api.yaml", func() error { return s.stageCredentials(st.path("creds")) }},
	} {
		st.must(tt.read()) // the twin
		for want, spoil := range map[string]func(string) error{
			"everybody may write":   func(f string) error { return os.Chmod(f, 0o666) },
			"belongs to user 54321": func(f string) error { return os.Chown(f, 54321, 0) },
		} {
			st.must(spoil(st.path(tt.file)))
			if err := tt.read(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", tt.file, err, want)
			}
			if strings.HasPrefix(tt.file, "creds") {
				if out := st.reloader.reload(t.Context(), "command"); !strings.Contains(out.Credentials, want) {
					t.Errorf("%s, again: %+v, want %q", tt.file, out, want)
				}
			}
			st.must(os.Chmod(st.path(tt.file), 0o644))
			st.must(os.Chown(st.path(tt.file), 0, 0))
		}
		st.must(tt.read())
	}
}

// TestPolicyOfAConfigMap: its directory has mode 0777 and is mounted read-only;
// the same directory is refused where it can be written.
func TestPolicyOfAConfigMap(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0777,size=64k"))
	t.Cleanup(func() { must(unix.Unmount(dir, 0)) })
	path := func(name string) string { return filepath.Join(dir, name) }
	must(os.Mkdir(path("..v1"), 0o755))
	must(os.WriteFile(path("..v1/p.yaml"), nil, 0o644))
	must(os.Symlink("..v1", path("..data")))
	must(os.Symlink("..data/p.yaml", path("p.yaml")))
	where := &place{owner: os.Getuid()}
	if err := where.check(path("p.yaml")); err == nil || !strings.Contains(err.Error(), "everybody may exchange p.yaml") {
		t.Errorf("where it can be written: %v", err)
	}
	must(unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if err := where.check(path("p.yaml")); err != nil {
		t.Errorf("mounted read-only: %v", err)
	}
}
