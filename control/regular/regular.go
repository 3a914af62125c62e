// Package regular opens files that are files: reading one waits for nobody.
//
// It trusts no name: what was listed may have been replaced by a pipe, whose opening would
// wait for a writer. It reads and writes nothing itself.
package regular

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// ErrNot is wrapped by the error of [Open] for what is no regular file.
var ErrNot = errors.New("not a regular file")

// Open opens a regular file, or a link to one, for reading, and tells what it is. Other
// errors are those of [os.Open].
func Open(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: path, Err: ErrNot}
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, st, nil
}
