// Package durable writes files whole or not at all, so that they outlive the machine's end.
//
// It trusts whoever may write into the directory that it is given, and never leaves half
// a file behind under a name that somebody reads.
package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Owner is who owns a file. -1 leaves an id as it is of whoever writes.
type Owner struct{ UID, GID int }

// Writer is the owner that whoever writes is.
var Writer = Owner{-1, -1}

// Write puts data in the place of a file, with a mode and an owner. The directory has to
// be there. When it returns without an error, the file and its name are on the disk.
func Write(path string, data []byte, mode fs.FileMode, of Owner) error {
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // gone already once it is renamed
	_, err = tmp.Write(data)
	if err := errors.Join(err, tmp.Chmod(mode), tmp.Chown(of.UID, of.GID), tmp.Sync(), tmp.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return SyncDir(dir)
}

// NoRoom reports an error that ends when there is room on a disk, or in a quota.
func NoRoom(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// SyncDir brings the names in a directory to the disk.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
