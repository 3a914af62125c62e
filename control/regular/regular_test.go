package regular_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"sallyport/control/regular"
)

// TestOpen: a file and a link to it are opened; what is none is refused, and a pipe without
// a writer is not waited for.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	file, link, pipe := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := errors.Join(os.WriteFile(file, []byte("text"), 0o600), os.Symlink(file, link), syscall.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link} {
		f, st, err := regular.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(f)
		if err := errors.Join(err, f.Close()); err != nil || string(text) != "text" || st.Size() != 4 {
			t.Errorf("%s holds %q, %v, and is of %d octets", path, text, err, st.Size())
		}
	}
	for path, want := range map[string]error{pipe: regular.ErrNot, dir: regular.ErrNot, os.DevNull: regular.ErrNot, filepath.Join(dir, "none"): fs.ErrNotExist} {
		if _, _, err := regular.Open(path); !errors.Is(err, want) {
			t.Errorf("Open(%s) = %v, want %v", path, err, want)
		}
	}
}
