package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// place says who may have a hand in the files that decide what a sandbox may
// reach (CF-10): policies, what they include and what narrows them, floors, and
// credential files; whenever they are read.
type place struct {
	workspace string // whose files are for the sandbox to change; "" for none
	owner     int    // user id of who asked; root's files are taken from anybody
}

// check refuses a file that somebody else can change: it, or a link that it is
// named by, lies in the workspace, others may write it or exchange it, or it is
// of a user who has nothing to do with this.
func (p *place) check(path string) error {
	file, err := resolved(path)
	if err != nil {
		return usage(err)
	}
	if err := p.checkOutside(path, file); err != nil {
		return err
	}
	info, err := os.Stat(file)
	if err != nil {
		return usage(err)
	}
	if err := p.checkInfo(path, info); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Dir(file), filepath.Dir(path)} {
		if info, err = os.Stat(dir); err != nil {
			return usage(err)
		}
		if err := p.checkDir(dir, path, info); err != nil {
			return err
		}
	}
	return nil
}

// checkIncluded is check for a file that was opened below a directory.
func (p *place) checkIncluded(dir, name string, f fs.File, root fs.FS) error {
	shown := filepath.Join(dir, name)
	file, err := resolved(shown)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	within, err := fs.Stat(root, path.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(p.checkOutside(shown, file), p.checkInfo(shown, info), p.checkDir(filepath.Dir(shown), shown, within))
}

// resolved returns an absolute path without links.
func resolved(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	return filepath.Abs(real)
}

func (p *place) checkOutside(path, file string) error {
	if p.workspace == "" {
		return nil
	}
	top, err := resolved(p.workspace)
	if err != nil {
		return usage(hint(fmt.Errorf("workspace: %w", err), "sallyport run --workspace DIR, and a DIR that is there"))
	}
	named, err := resolved(filepath.Dir(path))
	if err != nil {
		return usage(err)
	}
	for _, f := range []string{file, filepath.Join(named, filepath.Base(path))} {
		if rel, err := filepath.Rel(top, f); err == nil && filepath.IsLocal(rel) {
			return usage(hint(fmt.Errorf("%s lies in the workspace %s, whose files are for the sandbox to change", path, p.workspace),
				"mv %s SOMEWHERE/ELSE, and name it there", path))
		}
	}
	return nil
}

// othersWrite is the bit that lets everybody write.
const othersWrite = 0o002

func (p *place) checkInfo(path string, info fs.FileInfo) error {
	if info.Mode().Perm()&othersWrite != 0 {
		return usage(hint(fmt.Errorf("%s has mode %04o: everybody may write what a sandbox may reach", path, info.Mode().Perm()), "chmod o-w %s", path))
	}
	return p.checkOwner(path, info)
}

func (p *place) checkDir(dir, path string, info fs.FileInfo) error {
	if info.Mode().Perm()&othersWrite != 0 && info.Mode()&os.ModeSticky == 0 && !readOnly(dir) {
		return usage(hint(fmt.Errorf("%s has mode %04o: everybody may exchange %s", dir, info.Mode().Perm(), filepath.Base(path)), "chmod o-w %s", dir))
	}
	return p.checkOwner(dir, info)
}

// readOnly reports a directory in which nobody here can write, whatever its mode:
// a ConfigMap is mounted so, with 0777.
func readOnly(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && fs.Flags&unix.ST_RDONLY != 0
}

func (p *place) checkOwner(path string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: its owner cannot be told", path)
	}
	if uid := int(st.Uid); uid != 0 && uid != p.owner {
		return usage(hint(fmt.Errorf("%s belongs to %s, who is neither root nor %s who asked", path, userName(uid), userName(p.owner)), "chown root %s", path))
	}
	return nil
}

func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return fmt.Sprintf("user %d", uid)
}
