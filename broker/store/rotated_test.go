package store_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/broker/secret"
	"sallyport/broker/source"
	"sallyport/broker/store"
)

func newStore(t *testing.T) (store.Store, source.Config) {
	t.Helper()
	dir := t.TempDir()
	s := store.Store{Dir: filepath.Join(dir, "secrets"), Identity: filepath.Join(dir, "secrets-key", "identity"), UID: -1, GID: -1}
	return s, source.Config{UID: uint32(os.Getuid()), Now: time.Now}
}

// TestRotatedIsKept: over a restart, encrypted, in place of what was there before,
// and gone after a wipe.
func TestRotatedIsKept(t *testing.T) {
	s, cfg := newStore(t)
	r := s.Rotated("idp", cfg)
	if v, err := r.Load(t.Context()); err != nil || v.Len() != 0 {
		t.Errorf("nothing is kept, and Load gives %d octets, %v", v.Len(), err)
	}
	for _, text := range []string{"the first text", "the second text"} {
		if err := r.Save(secret.New([]byte(text))); err != nil {
			t.Fatal(err)
		}
		v, err := s.Rotated("idp", cfg).Load(t.Context())
		if err != nil || string(v.Reveal()) != text {
			t.Errorf("kept %q, %v, want %q", v.Reveal(), err, text)
		}
	}
	list, err := os.ReadDir(s.Dir)
	if err != nil || len(list) != 1 || list[0].Name() != "idp+rotated.age" {
		t.Fatalf("the directory holds %v, %v", list, err)
	}
	path := filepath.Join(s.Dir, list[0].Name())
	sealed, err := os.ReadFile(path)
	if err != nil || bytes.Contains(sealed, []byte("second")) {
		t.Errorf("it is not encrypted, or %v", err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode() != 0o400 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	// A flipped byte is noticed.
	sealed[len(sealed)-1] ^= 1
	if err := errors.Join(os.Remove(path), os.WriteFile(path, sealed, 0o400)); err != nil {
		t.Fatal(err)
	}
	if v, err := r.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("a damaged file gives %d octets, %v", v.Len(), err)
	}
	if err := errors.Join(r.Wipe(), r.Wipe()); err != nil {
		t.Error(err)
	}
	if v, err := r.Load(t.Context()); err != nil || v.Len() != 0 {
		t.Errorf("after a wipe: %d octets, %v", v.Len(), err)
	}
}

// TestFullDiskKeepsTheOldFile: what does not fit leaves what was there, and no rest.
func TestFullDiskKeepsTheOldFile(t *testing.T) {
	s, cfg := newStore(t)
	if err := os.Mkdir(s.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", s.Dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(s.Dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r := s.Rotated("idp", cfg)
	if err := r.Save(secret.New([]byte("the first text"))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.Dir, "filler"), make([]byte, 12<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Save(secret.New([]byte("the second text"))); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("on a full disk: %v", err)
	}
	if v, err := r.Load(t.Context()); err != nil || string(v.Reveal()) != "the first text" {
		t.Errorf("kept %q, %v", v.Reveal(), err)
	}
	if list, err := os.ReadDir(s.Dir); err != nil || len(list) != 2 {
		t.Errorf("left behind: %v, %v", list, err)
	}
	if err := os.Remove(filepath.Join(s.Dir, "filler")); err != nil {
		t.Fatal(err)
	}
	if err := r.Save(secret.New([]byte("the second text"))); err != nil {
		t.Errorf("twin, with room: %v", err)
	}
}
