package durable_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"sallyport/control/durable"
)

// TestWrite: a file is replaced whole, and one that cannot be written leaves what is
// there, and nothing else.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, text := range []string{"first", "second, and longer", ""} {
		if err := durable.Write(path, []byte(text), 0o640, durable.Writer); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != text {
			t.Errorf("it holds %q, %v, want %q", got, err, text)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v, want mode 0640", info.Mode(), err)
	}
	if err := durable.Write(filepath.Join(dir, "none", "file"), nil, 0o640, durable.Writer); !os.IsNotExist(err) {
		t.Errorf("Write without a directory = %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := durable.Write(filepath.Join(dir, "taken"), []byte("x"), 0o640, durable.Writer); err == nil {
		t.Error("Write over a directory = nil")
	}
	left, err := filepath.Glob(filepath.Join(dir, ".new-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestNoRoom: a full disk and a full quota have no room, whatever the error is wrapped in.
func TestNoRoom(t *testing.T) {
	for err, want := range map[error]bool{
		syscall.ENOSPC: true, fmt.Errorf("writing: %w", syscall.EDQUOT): true, syscall.EIO: false, os.ErrNotExist: false, nil: false,
	} {
		if got := durable.NoRoom(err); got != want {
			t.Errorf("NoRoom(%v) = %v", err, got)
		}
	}
}
