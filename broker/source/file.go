package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"sallyport/broker/secret"
)

// file is looked at for every request, and read anew when it has changed: a
// rotated secret is used at once, and a secret that cannot be read is not used.
type file struct {
	path string
	cfg  Config
}

func newFile(path string, cfg Config) (Source, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return nil, fmt.Errorf("source file %q: write the absolute path, without dots", path)
	}
	return file{path, cfg}, nil
}

func (f file) String() string { return "file " + f.path }

func (f file) Get(context.Context) (secret.Value, error) {
	b, err := readStrict(f.path, f.cfg)
	if err != nil {
		return secret.Value{}, fmt.Errorf("reading secret file %q: %w", f.path, err)
	}
	v, err := finish(b)
	if err != nil {
		return secret.Value{}, fmt.Errorf("reading secret file %q: %w", f.path, err)
	}
	return v, nil
}

func (f file) stamp() (s stamps, err error) {
	s[0], err = stampOf(f.path)
	return s, err
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }

// readStrict reads a file that nobody but its owner may touch. Everything is
// asked of the open file, never of its name.
func readStrict(path string, cfg Config) ([]byte, error) {
	// O_NONBLOCK: a FIFO put there must not hold up the broker.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, explainOpen(err, path, cfg)
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	if err := vet(before, path, cfg); err != nil {
		return nil, err
	}
	b, err := readAll(f)
	if err != nil {
		return nil, err
	}
	after, err := f.Stat()
	if err != nil {
		clear(b)
		return nil, errors.Unwrap(err)
	}
	if !after.ModTime().Equal(before.ModTime()) || after.Size() != before.Size() || int64(len(b)) != after.Size() {
		clear(b)
		return nil, errors.New("it changed while it was read; replace it with a rename, not in place")
	}
	return b, nil
}

// vet refuses a file that others could read or could have written.
func vet(fi fs.FileInfo, path string, cfg Config) error {
	uid, ok := ownerOf(fi)
	switch {
	case !ok:
		return errors.New("its owner cannot be told")
	case !fi.Mode().IsRegular():
		return errors.New("it is not a regular file")
	case uid != 0 && uid != cfg.UID:
		return fmt.Errorf("it belongs to user %d, who could change it; run: chown %s %s", uid, cfg.User, path)
	case fi.Mode().Perm()&0o177 != 0 && uid != cfg.UID: // closed to others, it would be closed to the broker too
		return fmt.Errorf("its mode is %04o, so that others than its owner can reach it; run: chown %s %s && chmod 0400 %s", fi.Mode().Perm(), cfg.User, path, path)
	case fi.Mode().Perm()&0o177 != 0:
		return fmt.Errorf("its mode is %04o, so that others than its owner can reach it; run: chmod 0400 %s", fi.Mode().Perm(), path)
	}
	return nil
}

func ownerOf(fi fs.FileInfo) (uid uint32, ok bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Uid, true
}

// explainOpen says what to do about a file that did not open.
func explainOpen(err error, path string, cfg Config) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("it does not exist")
	case errors.Is(err, syscall.ELOOP):
		return errors.New("it is a symbolic link; name the file itself")
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("the broker may not read it; run: chown %s %s && chmod 0400 %s", cfg.User, path, path)
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err // the path is said already
	}
	return err
}
