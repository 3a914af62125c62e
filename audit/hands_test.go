package audit_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
)

// LG-06, LG-08: hands on the files of a log that is being written.
func TestHandsOnALiveLogLG06(t *testing.T) {
	seg := func(cfg audit.Config) string {
		names, _ := filepath.Glob(filepath.Join(cfg.Dir, "*.jsonl"))
		return names[len(names)-1]
	}
	tests := []struct {
		name string
		hand func(cfg audit.Config) error
		back func(cfg audit.Config) error // what puts it right; nil: nothing is needed
		want string                       // in the gap's error
	}{
		{"segment deleted", func(c audit.Config) error { return os.Remove(seg(c)) }, nil, "is gone"},
		{"checkpoints deleted", func(c audit.Config) error { return os.Remove(filepath.Join(c.Dir, "checkpoints")) }, nil, "is gone"},
		{"tree deleted", func(c audit.Config) error { return os.Remove(filepath.Join(c.Dir, "tree")) }, nil, "is gone"},
		{"directory removed", func(c audit.Config) error { return os.RemoveAll(c.Dir) }, nil, "is gone"},
		{
			"directory moved", func(c audit.Config) error { return os.Rename(c.Dir, c.Dir+".old") },
			func(c audit.Config) error { return os.Rename(c.Dir+".old", c.Dir) }, "is gone",
		},
		{
			"directory made a link to a copy", func(c audit.Config) error {
				return errors.Join(os.CopyFS(c.Dir+".copy", os.DirFS(c.Dir)), os.Rename(c.Dir, c.Dir+".old"), os.Symlink(c.Dir+".copy", c.Dir))
			}, func(c audit.Config) error { return errors.Join(os.Remove(c.Dir), os.Rename(c.Dir+".old", c.Dir)) }, "was replaced by another file",
		},
		{"segment replaced", func(c audit.Config) error {
			return errors.Join(os.Remove(seg(c)), os.WriteFile(filepath.Join(c.Dir, "000000000000.jsonl"), []byte("{}\n"), 0o640))
		}, func(c audit.Config) error { return os.Remove(seg(c)) }, "is gone"},
		{"segment made longer", func(c audit.Config) error {
			f, err := os.OpenFile(seg(c), os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString(strings.Repeat("x", 5000))
			return errors.Join(err, f.Close())
		}, nil, "did not write"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config(t)
			var step time.Duration // the clock moves on when the test says
			began := time.Now()
			cfg.Now = func() time.Time { return began.Add(step) }
			l := mustOpen(t, cfg)
			g := ledger{map[string]bool{}, map[string]bool{}}
			for i := range 10 {
				if err := g.append(t, l, i); err != nil {
					t.Fatal(err)
				}
			}
			if err := tt.hand(cfg); err != nil {
				t.Fatal(err)
			}
			step += time.Second
			_ = g.append(t, l, 10)
			_, _ = l.Checkpoint(t.Context())
			if l.Ready() == nil {
				t.Fatal("the log noticed nothing")
			}
			if tt.back != nil {
				if err := g.append(t, l, 11); err == nil {
					t.Error("Append went on before it was put right")
				}
			}
			if tt.back != nil {
				if err := tt.back(cfg); err != nil {
					t.Fatal(err)
				}
			}
			if err := g.append(t, l, 12); err != nil {
				t.Fatalf("Append when it is put right: %v", err)
			}
			mustClose(t, l)
			recs := records(t, cfg.Dir)
			g.check(t, recs)
			found := false
			for _, r := range recs {
				found = found || r.Kind == audit.Gap && strings.Contains(r.Error, tt.want)
			}
			if !found {
				t.Errorf("no gap record says %q", tt.want)
			}
			if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
				t.Errorf("Verify: %v", r)
			}
		})
	}
}

// What was cut off a live log is lost: it must not go on as if nothing were.
func TestTruncatedLiveLogStaysRefused(t *testing.T) {
	cfg := config(t)
	var step time.Duration
	began := time.Now()
	cfg.Now = func() time.Time { return began.Add(step) }
	l := mustOpen(t, cfg)
	defer l.Close()
	for i := range 10 {
		mustAppend(t, l, admit(i))
	}
	if err := os.Truncate(filepath.Join(cfg.Dir, "000000000000.jsonl"), 100); err != nil {
		t.Fatal(err)
	}
	step += time.Second
	for range 3 {
		if err := l.Append(t.Context(), admit(11)); err == nil || !strings.Contains(err.Error(), "was cut") {
			t.Errorf("Append = %v, want that it was cut", err)
		}
	}
}

// A file that was cut is not made as long again with nothing in it, also where a
// write that failed has left bytes to be cut off.
func TestTruncatedWhileRefusedStaysRefused(t *testing.T) {
	var fsys faultFS
	cfg := config(t).WithOpener(fsys.open)
	l := mustOpen(t, cfg)
	for i := range 10 {
		mustAppend(t, l, admit(i))
	}
	fsys.arm("write", ".jsonl", short, 1)
	path := filepath.Join(cfg.Dir, "000000000000.jsonl")
	fsys.after = func() { fsys.arm("truncate", ".jsonl", before, 1) }
	if err := l.Append(t.Context(), admit(10)); err == nil {
		t.Fatal("Append on a full disk = nil")
	}
	if err := os.Truncate(path, 100); err != nil { // by who wants room
		t.Fatal(err)
	}
	for range 3 {
		if err := l.Append(t.Context(), admit(11)); err == nil || !strings.Contains(err.Error(), "was cut") {
			t.Errorf("Append = %v, want that it was cut", err)
		}
	}
	if st, err := os.Stat(path); err != nil || st.Size() != 100 {
		t.Errorf("the file has %d bytes, %v, want the 100 that were left", st.Size(), err)
	}
	if err := l.Close(); err == nil {
		t.Error("Close = nil, and records are missing")
	}
}

// The directory of a log whose beginning was removed in order is made again with the
// note that says so.
func TestDirectoryRemovedAfterRetention(t *testing.T) {
	cfg, clock := daily(t)
	l := days(t, cfg, clock, 3)
	clock.move(30 * time.Minute)
	if got, err := l.Retain(10 * time.Minute); err != nil || len(segments(t, cfg.Dir)) != 1 {
		t.Fatalf("Retain = %+v, %v, and there is %v", got, err, segments(t, cfg.Dir))
	}
	if err := os.RemoveAll(cfg.Dir); err != nil {
		t.Fatal(err)
	}
	_, _ = l.Checkpoint(t.Context())
	mustAppend(t, l, admit(1))
	mustClose(t, l)
	if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() || r.Retained == nil {
		t.Errorf("Verify: %v", r)
	}
	mustClose(t, mustOpen(t, cfg))
}

// segmented returns a log of some segments, which is open.
func segmented(t *testing.T) (audit.Config, *audit.Log, *ledger) {
	t.Helper()
	cfg := config(t)
	cfg.SegmentSize = 2000
	l := mustOpen(t, cfg)
	g := &ledger{map[string]bool{}, map[string]bool{}}
	for i := range 20 {
		if err := g.append(t, l, i); err != nil {
			t.Fatal(err)
		}
	}
	return cfg, l, g
}

func TestOldSegmentGone(t *testing.T) {
	cfg, l, g := segmented(t)
	aside := cfg.Dir + ".aside"
	if err := os.CopyFS(aside, os.DirFS(cfg.Dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(cfg.Dir); err != nil {
		t.Fatal(err)
	}
	_, _ = l.Checkpoint(t.Context())
	if err := g.append(t, l, 20); err == nil || !strings.Contains(err.Error(), "older segment is missing") {
		t.Errorf("Append = %v, want that an older segment is missing", err)
	}
	old, err := filepath.Glob(filepath.Join(aside, "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range old[:len(old)-1] {
		if err := os.Rename(path, filepath.Join(cfg.Dir, filepath.Base(path))); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.append(t, l, 21); err != nil {
		t.Errorf("Append when the older segments are back: %v", err)
	}
	mustClose(t, l)
	g.check(t, records(t, cfg.Dir))
	if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
		t.Errorf("Verify: %v", r)
	}
}

// Another directory in the place of a log's (a mount, a link that was turned) gets nothing
// of it and is not held, and the log goes on when its own is back.
func TestAnotherDirectoryInItsPlace(t *testing.T) {
	cfg, l, g := segmented(t)
	away := cfg.Dir + ".away"
	if err := errors.Join(os.Rename(cfg.Dir, away), os.Mkdir(cfg.Dir, 0o750)); err != nil {
		t.Fatal(err)
	}
	_, _ = l.Checkpoint(t.Context())
	for i := range 3 {
		if err := g.append(t, l, 20+i); err == nil || !strings.Contains(err.Error(), "is not the log's directory") {
			t.Errorf("Append = %v, want that its directory is not there", err)
		}
	}
	if err := errors.Join(os.Remove(cfg.Dir), os.Rename(away, cfg.Dir)); err != nil {
		t.Fatal(err)
	}
	if err := g.append(t, l, 30); err != nil {
		t.Errorf("Append when its own directory is back: %v", err)
	}
	mustClose(t, l)
	g.check(t, records(t, cfg.Dir))
	if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
		t.Errorf("Verify: %v", r)
	}
}
