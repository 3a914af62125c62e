package audit_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
)

// crash is what the gap after a crash says.
type crash struct {
	Cause   string
	Refused int
	Since   time.Time
}

// crashes returns what the gaps of a log say, and the error of the last.
func crashes(t *testing.T, dir string) (all []crash, last string) {
	t.Helper()
	for _, r := range records(t, dir) {
		if r.Kind == audit.Gap {
			var c crash
			mustUnmarshal(t, r.Data, &c)
			all, last = append(all, c), r.Error
		}
	}
	return all, last
}

// TestRefusalsOutliveTheProcess: how many records a full disk cost is told by the process
// that opens the log next, once, also where log and key are on the disk that is full.
func TestRefusalsOutliveTheProcess(t *testing.T) {
	base := t.TempDir()
	mount := func(flags uintptr, size string) {
		t.Helper()
		if err := syscall.Mount("tmpfs", base, "tmpfs", flags, "size="+size); err != nil {
			t.Fatal(err)
		}
	}
	mount(0, "1m")
	t.Cleanup(func() { _ = syscall.Unmount(base, syscall.MNT_DETACH) })
	cfg := config(t)
	cfg.Dir, cfg.KeyFile = filepath.Join(base, "audit"), filepath.Join(base, "keys", "key")
	l := mustOpen(t, cfg)
	g := ledger{map[string]bool{}, map[string]bool{}}
	for i := 0; len(g.refused) < 7; i++ {
		if err := g.append(t, l, i); err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	if err := l.Abandon(); err != nil {
		t.Fatal(err)
	}
	if l, err := audit.Open(cfg); !errors.Is(err, syscall.ENOSPC) { // which may cost records of its own, and not the number
		t.Fatalf("Open on the full disk = %v, %v", l, err)
	}
	mount(syscall.MS_REMOUNT, "4m")
	for range 2 {
		l = mustOpen(t, cfg)
		if err := l.Abandon(); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, mustOpen(t, cfg))
	all, _ := crashes(t, cfg.Dir)
	if len(all) != 3 || all[0].Cause != "crash" || all[0].Refused != 7 || all[0].Since.IsZero() || all[1].Refused+all[2].Refused != 0 {
		t.Errorf("the gaps say %+v, want 7 refused, once", all)
	}
	g.check(t, records(t, cfg.Dir))
	if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
		t.Errorf("Verify: %v", r)
	}
}

// TestRefusalsThatWereTold, or are of another log, or nobody can read, are not told.
func TestRefusalsThatWereTold(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"told":    func(string) error { return nil },
		"gone":    os.Remove,
		"garbage": func(path string) error { return os.WriteFile(path, []byte("{\"refused\":9"), 0o600) },
		"of another": func(path string) error {
			return os.WriteFile(path, []byte(`{"log":"another","next":99,"refused":9}`), 0o600)
		},
		"a link": func(path string) error {
			return errors.Join(os.Remove(path), os.Symlink("/dev/zero", path))
		},
		"a pipe": func(path string) error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			var fsys faultFS
			cfg := config(t).WithOpener(fsys.open)
			l := mustOpen(t, cfg)
			fsys.arm("write", ".jsonl", before, 3)
			for i := range 3 {
				if l.Append(t.Context(), admit(i)) == nil {
					t.Fatal("Append on a full disk = nil")
				}
			}
			if text, err := os.ReadFile(cfg.KeyFile + ".refused"); err != nil || !strings.Contains(string(text), `"refused":3,`) {
				t.Errorf("the file says %q, %v", text, err)
			}
			mustAppend(t, l, admit(4)) // after the gap
			if err := errors.Join(l.Abandon(), spoil(cfg.KeyFile+".refused")); err != nil {
				t.Fatal(err)
			}
			mustClose(t, mustOpen(t, cfg))
			all, text := crashes(t, cfg.Dir)
			if len(all) != 2 || all[0].Refused != 3 || all[1].Refused != 0 || strings.Contains(text, "before") {
				t.Errorf("the gaps say %+v, %q", all, text)
			}
			if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
				t.Errorf("Verify: %v", r)
			}
		})
	}
}
