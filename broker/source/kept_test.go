package source_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/broker/source"
	"sallyport/rules/policyfile"
)

// later is a clock that is a minute ahead of file systems, so that what was just
// written counts as settled.
func later() time.Time { return time.Now().Add(time.Minute) }

func reveal(t *testing.T, k *source.Kept) string {
	t.Helper()
	v, err := k.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer v.Wipe()
	return string(v.Reveal())
}

// TestEveryRotationIsSeen: CR-25. Whatever a file is rotated by, the next use has
// the new secret, though the file is not read where nothing has changed.
func TestEveryRotationIsSeen(t *testing.T) {
	path := write(t, text, 0o600)
	cfg := config()
	cfg.Now = later
	k, err := source.Open(policyfile.Source{File: path}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	rotations := []struct {
		name string
		do   func(secret string) error
	}{
		{"rename", func(s string) error {
			return errors.Join(os.WriteFile(path+".new", []byte(s), 0o600), os.Rename(path+".new", path))
		}},
		{"in place", func(s string) error { return os.WriteFile(path, []byte(s), 0o600) }},
		{"in place, with the old times", func(s string) error {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			return errors.Join(os.WriteFile(path, []byte(s), 0o600), os.Chtimes(path, info.ModTime(), info.ModTime()))
		}},
		{"removed and made anew", func(s string) error { return errors.Join(os.Remove(path), os.WriteFile(path, []byte(s), 0o600)) }},
	}
	for i, r := range rotations {
		want := strings.Repeat(string(rune('a'+i)), len(text)) // of the same size
		if err := r.do(want); err != nil {
			t.Fatal(err)
		}
		waitForTick(t, path)
		for range 3 {
			if got := reveal(t, k); got != want {
				t.Errorf("%s: %q, want %q", r.name, got, want)
			}
		}
	}
	// What makes the file unfit is seen as well.
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if v, err := k.Get(t.Context()); err == nil {
		t.Errorf("with mode 0644: %q", v.Reveal())
	}
}

// waitForTick waits until the file system's clock has moved on from a file's: two
// changes within one tick cannot be told apart, which is what the product's own
// waiting (settled) is for; the clock of this test skips that.
func waitForTick(t *testing.T, path string) {
	t.Helper()
	var before, now unix.Stat_t
	if err := unix.Stat(path, &before); err != nil {
		t.Fatal(err)
	}
	probe := filepath.Join(t.TempDir(), "probe")
	for now.Ctim == (unix.Timespec{}) || now.Ctim == before.Ctim {
		if err := errors.Join(os.WriteFile(probe, nil, 0o600), unix.Stat(probe, &now)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAFreshFileIsNotBelieved: with the real clock a file that was changed a moment
// ago is read each time, so that a second change within a tick is seen.
func TestAFreshFileIsNotBelieved(t *testing.T) {
	path := write(t, text, 0o600)
	k, err := source.Open(policyfile.Source{File: path}, config())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		want := strings.Repeat(string(rune('A'+i%26)), len(text))
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := reveal(t, k); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
}

// TestOnErrorKeep: CR-11. Only where the document says so does the value that was
// good last serve on, and that is told.
func TestOnErrorKeep(t *testing.T) {
	for _, keep := range []bool{false, true} {
		path := write(t, text, 0o600)
		cfg := config()
		var now atomic.Int64
		now.Store(time.Now().Add(time.Minute).UnixNano())
		cfg.Now = func() time.Time { return time.Unix(0, now.Load()) }
		k, err := source.Open(policyfile.Source{File: path, KeepOnError: keep}, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got := reveal(t, k); got != text {
			t.Fatal(got)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		v, err := k.Get(t.Context())
		since, why := k.Stale()
		if !keep {
			if err == nil || !strings.Contains(err.Error(), "does not exist") || why != nil {
				t.Errorf("refuse: %v, stale %v", err, why)
			}
			continue
		}
		if err != nil || string(v.Reveal()) != text || why == nil || !since.Equal(cfg.Now()) {
			t.Errorf("keep: %v, stale since %v: %v", err, since, why)
		}
		if err := os.WriteFile(path, []byte("another-secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := reveal(t, k); got != "another-secret" {
			t.Errorf("mended: %q", got)
		}
		if _, why := k.Stale(); why != nil {
			t.Errorf("mended, and still stale: %v", why)
		}
		k.Forget()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if v, err := k.Get(t.Context()); err == nil {
			t.Errorf("a forgotten value serves on: %q", v.Reveal())
		}
	}
}

func BenchmarkFile(b *testing.B) {
	path := filepath.Join(b.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	cfg := config()
	cfg.Now = later
	k, err := source.Open(policyfile.Source{File: path}, cfg)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		v, err := k.Get(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		v.Wipe()
	}
}
