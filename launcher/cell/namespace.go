package cell

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Namespaces are kept as iproute2 keeps them, so that `ip netns`, `nsenter
// --net=` and container engines find them: an empty file with the namespace
// bind-mounted on it.
const netnsDir = "/run/netns"

const (
	defaultName  = "sallyport"
	bridgePrefix = "sp-"
	portPrefix   = "spv-" // must not start with bridgePrefix: the rules match sp-+
)

func netnsPath(name string) string { return filepath.Join(netnsDir, name) }

// cellNetns names a sandbox's namespace. Names of networks have no dot, so no
// two networks can mean the same file.
func cellNetns(network, id string) string {
	if network == defaultName {
		return bridgePrefix + id
	}
	return network + "." + id
}

func isCellNetns(network, name string) bool {
	prefix := cellNetns(network, "")
	return strings.HasPrefix(name, prefix) && idPattern.MatchString(name[len(prefix):])
}

// makeNetns makes a namespace and, once prepare has run in it, gives it a name:
// nobody can enter one that is not prepared.
func makeNetns(name string, prepare func() error) error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return err
	}
	path := netnsPath(name)
	return insideNew(func() error {
		if err := prepare(); err != nil {
			return err
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		self := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		if err := unix.Mount(self, path, "", unix.MS_BIND, ""); err != nil {
			return errors.Join(&fs.PathError{Op: "mount", Path: path, Err: err}, os.Remove(path))
		}
		return nil
	})
}

// openNetns opens a named namespace. A file left by a crash between creation
// and mount does not exist as a namespace: fs.ErrNotExist.
func openNetns(name string) (*os.File, error) {
	f, err := os.Open(netnsPath(name))
	if err != nil {
		return nil, err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "statfs", Path: f.Name(), Err: err}, f.Close())
	}
	if st.Type != unix.NSFS_MAGIC {
		return nil, errors.Join(&fs.PathError{Op: "open", Path: f.Name(), Err: fs.ErrNotExist}, f.Close())
	}
	return f, nil
}

// removeNetns takes the name away, and with it the namespace once the last
// process and socket in it is gone. No such name is no error.
func removeNetns(name string) error {
	path := netnsPath(name)
	// EINVAL: not a mount point. Detached, since a process may have it open.
	// Repeated, since nothing stops two mounts on one file.
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		if err != nil {
			return &fs.PathError{Op: "unmount", Path: path, Err: err}
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// netnsCells lists the ids that have a file in netnsDir, mounted or not.
func netnsCells(network string) ([]string, error) {
	entries, err := os.ReadDir(netnsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if isCellNetns(network, e.Name()) {
			ids = append(ids, e.Name()[len(cellNetns(network, "")):])
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// sameNetns compares what two paths or files name.
func sameNetns(a, b os.FileInfo) bool { return os.SameFile(a, b) }

// isOwnNetns says whether f is the namespace of this program.
func isOwnNetns(f *os.File) (bool, error) {
	theirs, err := f.Stat()
	if err != nil {
		return false, err
	}
	ours, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return false, err
	}
	return sameNetns(theirs, ours), nil
}
