package audit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/control/durable"
)

// file is what the log asks of an open file.
type file interface {
	ReadAt([]byte, int64) (int, error)
	WriteAt([]byte, int64) (int, error)
	Truncate(int64) error
	Sync() error
	Close() error
	stat() (info, error)
}

// info is what the log watches a file for.
type info struct {
	dev, ino uint64
	links    uint64 // 0 once the file was deleted
	size     int64
}

// disk is the file system, as far as a log changes it.
type disk interface {
	// Open opens a file, as [os.OpenFile] does.
	Open(path string, flag int, perm fs.FileMode) (file, error)
	Rename(from, to string) error
	Remove(path string) error
	// SyncDir brings the names in a directory to the disk.
	SyncDir(path string) error
}

// osDisk is the real one.
type osDisk struct{}

func (osDisk) Open(path string, flag int, perm fs.FileMode) (file, error) {
	return openFile(path, flag, perm)
}
func (osDisk) Rename(from, to string) error { return os.Rename(from, to) }
func (osDisk) Remove(path string) error     { return os.Remove(path) }
func (osDisk) SyncDir(path string) error    { return durable.SyncDir(path) }

type osFile struct {
	*os.File
	fd int
}

// openFile never follows a symbolic link in the last step, and asks for
// nothing but a regular file.
func openFile(path string, flag int, perm fs.FileMode) (file, error) {
	f, err := os.OpenFile(path, flag|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, perm)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err == nil && flag&os.O_CREATE != 0 {
		err = f.Chmod(perm) // whatever the umask says
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &osFile{f, int(f.Fd())}, nil
}

func (f *osFile) stat() (info, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(f.fd, &st); err != nil {
		return info{}, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	return info{st.Dev, st.Ino, st.Nlink, st.Size}, nil
}

// statPath is stat for what a path names now.
func statPath(path string) (info, error) {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return info{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return info{st.Dev, st.Ino, st.Nlink, st.Size}, nil
}

// tail is a file that grows at its end only, by whole pieces: a piece that is
// not written to its last byte is cut off again.
type tail struct {
	f    file
	path string

	off   int64 // where the next piece goes; all before it is whole
	dirty bool  // there may be bytes beyond off that must go first

	synced int64 // all before it is on the disk
	lost   bool  // a sync failed: what was not on the disk must be written again
}

const (
	modeFile = 0o640
	modeDir  = 0o750
)

// openTail opens path, creating it where it is missing. Its contents up to off
// stay, the rest goes.
func openTail(d disk, path string, off int64) (*tail, error) {
	f, err := d.Open(path, os.O_RDWR|os.O_CREATE, modeFile)
	if err != nil {
		return nil, err
	}
	return &tail{f: f, path: path, off: off, dirty: true}, nil
}

// clean cuts off what a failed write may have left.
func (t *tail) clean() error {
	if !t.dirty {
		return nil
	}
	if err := t.holds(); err != nil { // to truncate would make it as long, with nothing in it
		return err
	}
	if err := t.f.Truncate(t.off); err != nil {
		return err
	}
	t.dirty = false
	return nil
}

// append adds one piece. If it fails, the file ends where it did before, at
// the latest when the next piece is added.
func (t *tail) append(p []byte) error {
	if err := t.clean(); err != nil {
		return err
	}
	if _, err := t.f.WriteAt(p, t.off); err != nil {
		t.undo(t.off)
		return err
	}
	t.off += int64(len(p))
	return nil
}

// undo takes the last piece back; off is where it began.
func (t *tail) undo(off int64) {
	t.off, t.dirty = off, true
	_ = t.clean() // or before the next piece
}

// sync brings everything before upto to the disk. A kernel may drop what it
// failed to write and call the next fsync a success, so after a failure it is
// written anew first.
func (t *tail) sync(upto int64) error {
	if t.lost {
		if err := t.rewrite(upto); err != nil {
			return err
		}
	}
	if err := t.f.Sync(); err != nil {
		t.lost = true
		return err
	}
	t.lost, t.synced = false, max(t.synced, upto)
	return nil
}

func (t *tail) rewrite(upto int64) error {
	buf := make([]byte, 1<<20)
	for at := t.synced; at < upto; {
		n, err := t.f.ReadAt(buf[:min(int64(len(buf)), upto-at)], at)
		if n == 0 {
			return fmt.Errorf("reading %s to write it again: %w", t.path, err)
		}
		if _, err := t.f.WriteAt(buf[:n], at); err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

// errGone says that a file of the log is not where it was.
var errGone = errors.New("is gone")

// check finds a file that was deleted, cut or written to by somebody else. It
// costs one system call.
func (t *tail) check() error {
	st, err := t.f.stat()
	switch {
	case err != nil:
		return err
	case st.links == 0:
		return fmt.Errorf("%s %w", t.path, errGone)
	case st.size < t.off:
		return t.wasCut(st.size)
	case st.size > t.off && !t.dirty:
		t.dirty = true // clean cuts it off; the caller tells
		return fmt.Errorf("%s has %d bytes at its end that the log did not write", t.path, st.size-t.off)
	}
	return nil
}

// holds checks that the file is as long as what was written to it.
func (t *tail) holds() error {
	st, err := t.f.stat()
	if err == nil && st.size < t.off {
		err = t.wasCut(st.size)
	}
	return err
}

func (t *tail) wasCut(size int64) error {
	return fmt.Errorf("%s was cut from %d bytes to %d by somebody else", t.path, t.off, size)
}

// inPlace checks that the path still names this file.
func (t *tail) inPlace() error {
	mine, err := t.f.stat()
	if err != nil {
		return err
	}
	there, err := statPath(t.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s %w", t.path, errGone)
	case err != nil:
		return err
	case there.ino != mine.ino || there.dev != mine.dev:
		return fmt.Errorf("%s was replaced by another file; move that away, and the log goes on", t.path)
	}
	return nil
}

// restore puts a deleted file back: its contents are kept as long as it is
// open. It has its name once it is whole.
func (t *tail) restore(d disk) error {
	f, err := d.Open(t.path+suffixNew, os.O_RDWR|os.O_CREATE|os.O_TRUNC, modeFile)
	if err != nil {
		return err
	}
	next := &tail{f: f, path: t.path}
	buf := make([]byte, 1<<20)
	for next.off < t.off {
		n, err := t.f.ReadAt(buf[:min(int64(len(buf)), t.off-next.off)], next.off)
		if n == 0 {
			err = fmt.Errorf("reading the deleted %s: %w", t.path, err)
		} else {
			err = next.append(buf[:n])
		}
		if err != nil {
			return errors.Join(err, f.Close(), ignoreMissing(d.Remove(t.path+suffixNew)))
		}
	}
	err = f.Sync()
	if err == nil {
		err = d.Rename(t.path+suffixNew, t.path)
	}
	if err != nil && next.inPlace() != nil { // else it was renamed, whatever was said
		return errors.Join(err, f.Close(), ignoreMissing(d.Remove(t.path+suffixNew)))
	}
	old := t.f
	t.f, t.dirty, t.lost, t.synced = f, false, false, t.off
	return old.Close()
}

// ReadHashes makes a file of stored hashes a [tlog.HashReader].
func (t *tail) ReadHashes(at []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(at))
	for i, x := range at {
		if _, err := t.f.ReadAt(out[i][:], x*tlog.HashSize); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("reading %s: %w", t.path, err)
		}
	}
	return out, nil
}
