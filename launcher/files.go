package launcher

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sallyport/launcher/guest"
	"sallyport/launcher/nerdctl"
)

// guestPath is where a sandbox has process 1 from.
const guestPath = "/.sallyport/guest"

const lookSuffix = "-look"

// readme is for whoever, or whatever, works in a sandbox and wonders.
const readme = `You are in a Sallyport sandbox: a container with no keys in it and one way out.

- Every connection goes through a gateway, which allows what this run's policy
  names and refuses the rest. A refusal is not a network fault: do not retry it
  and do not look for a way around, there is none. It says which rule of the
  policy spoke, and it is in a log that people read.
- What is allowed:        GET  http://sallyport.internal/v1/policy
- What you were refused:  GET  http://sallyport.internal/v1/denials
- Help:                   GET  http://sallyport.internal/
- Keys in the environment are placeholders. Use them as they are, with the
  ordinary client: the gateway puts the real one in, for the hosts that it is
  for. Sent anywhere else a placeholder is refused.
- The network is TCP by name, over HTTP and HTTPS. There is no ping, no UDP, no
  IPv6 and no other DNS. Clone with https, not with ssh.
- Certificates are checked as usual: the gateway's CA is in the system's bundle
  and in /etc/sallyport/ca-bundle.crt. Never switch checking off.
- Only /workspace and /tmp can be written, and both are gone with the sandbox.
  What is in /workspace at the end is handed over if it was asked for.
`

// prepare makes the files that are mounted into the sandbox.
func (r *run) prepare() error {
	dir := r.l.runDir(r.id)
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
		return err
	}
	bundle := withCA(r.trust.bundle, r.l.cfg.CA)
	certs, err := certificates(bundle)
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		"etc/ca.crt":        onlyCertificates(r.l.cfg.CA),
		"etc/ca-bundle.crt": bundle,
		"etc/cacerts.jks":   keystore(certs, r.l.cfg.Now()),
		"etc/README.md":     []byte(readme),
		"resolv.conf":       fmt.Appendf(nil, "nameserver %s\n", r.cell.Gateway),
		"hosts":             fmt.Appendf(nil, "127.0.0.1\tlocalhost\n%s\t%s\n", r.cell.Sandbox, r.id),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return writeDocuments(filepath.Join(dir, "etc"), documents(r.grants))
}

// writeDocuments writes the documents of credentials below etc, which is mounted
// at trustDir. There is nothing in them that is worth hiding from other users.
func writeDocuments(etc string, docs map[string]string) error {
	for inside, text := range docs {
		name := filepath.Join(etc, strings.TrimPrefix(inside, trustDir))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// makeRunDir makes the directory of a run, for its files and for nerdctl's.
func (l *Launcher) makeRunDir(id string) error {
	return errors.Join(os.Mkdir(l.runDir(id), 0o755), os.Mkdir(filepath.Join(l.runDir(id), "tmp"), 0o700))
}

// removeRunDir removes it, and before that what a killed nerdctl left mounted
// there: an image must not be deleted through its mount.
func (l *Launcher) removeRunDir(id string) error {
	dir := l.runDir(id)
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		// The fifth field; ids and nerdctl's names need no quoting (proc(5)).
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			points = append(points, f[4])
		}
	}
	for _, point := range slices.Backward(points) {
		if err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return &os.PathError{Op: "unmount", Path: point, Err: err}
		}
	}
	return os.RemoveAll(dir)
}

// container is the run's, as far as it is known.
func (r *run) container() *nerdctl.Container {
	dir := r.l.runDir(r.id)
	c := &nerdctl.Container{
		Name: r.id, Hostname: r.id, Image: r.image.Digest, Netns: r.cell.Netns, Cell: r.id, Run: r.result.Run,
		User: userOf(r.image.User), Hardened: r.spec.Isolation == Hardened,
		Command: append([]string{guestPath}, r.l.cfg.GuestArgs...),
		Binds: []nerdctl.Bind{
			{Source: r.l.cfg.Guest, Target: guestPath},
			{Source: filepath.Join(dir, "etc"), Target: trustDir},
			{Source: filepath.Join(dir, "resolv.conf"), Target: "/etc/resolv.conf"},
			{Source: filepath.Join(dir, "hosts"), Target: "/etc/hosts"},
		},
		Tmpfs: []nerdctl.Tmpfs{
			{Target: "/tmp", Size: r.spec.Limits.Tmp}, {Target: workspaceDir, Size: r.spec.Limits.Workspace},
		},
		Memory: r.spec.Limits.Memory, CPUs: r.spec.Limits.CPUs, PIDs: r.spec.Limits.PIDs, NoFile: r.spec.Limits.NoFile,
		CgroupParent: r.l.cgroup(r.id), CIDFile: filepath.Join(dir, "cid"),
		TempDir: filepath.Join(dir, "tmp"),
	}
	for _, v := range r.image.Volumes {
		if v != "/tmp" && v != workspaceDir {
			c.Tmpfs = append(c.Tmpfs, nerdctl.Tmpfs{Target: v, Size: r.spec.Limits.Tmp})
		}
	}
	if r.trust != nil {
		// Over the image's own bundles, for the programs that heed no variable.
		// A mounted file cannot be replaced, which is what update-ca-certificates
		// would want to do; on a read-only root it could not anyway.
		for _, path := range r.trust.Files {
			c.Binds = append(c.Binds, nerdctl.Bind{Source: filepath.Join(dir, "etc", "ca-bundle.crt"), Target: path})
		}
	}
	return c
}

// sendFiles writes the tar that the work starts with.
func (r *run) sendFiles(ctx context.Context, out io.Writer) error {
	w := tar.NewWriter(out)
	if r.spec.Workspace != "" {
		root, err := os.OpenRoot(r.spec.Workspace)
		if err != nil {
			return fmt.Errorf("copying the workspace: %w", err)
		}
		defer root.Close()
		skipped, err := guest.Pack(ctx, w, root, r.spec.bounds(), true)
		r.result.Skipped = append(r.result.Skipped, skipped...)
		if err != nil {
			return fmt.Errorf("copying the workspace %s: %w", r.spec.Workspace, err)
		}
	}
	if c := r.spec.Code; c != nil {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: c.Name, Size: int64(len(c.Data)), Mode: 0o644}
		if err := w.WriteHeader(h); err != nil {
			return fmt.Errorf("copying the code: %w", err)
		}
		if _, err := w.Write(c.Data); err != nil {
			return fmt.Errorf("copying the code: %w", err)
		}
	}
	return w.Close()
}

// receiveFiles unpacks what the work left behind, beside the directory that it
// is for: a hostile or broken tar leaves nothing there.
//
// Whoever asked may own the directory around it and swap what is in there under
// our hands, and we are root: so everything goes through that directory's handle,
// out of which no link leads, and into one that is root's alone until the end.
func (r *run) receiveFiles(in io.Reader) error {
	parent, err := os.OpenRoot(filepath.Dir(r.journal.Export))
	if err != nil {
		return err
	}
	tmp := filepath.Base(r.journal.Export)
	if err := parent.Mkdir(tmp, 0o700); err != nil {
		return errors.Join(err, parent.Close())
	}
	root, err := parent.OpenRoot(tmp)
	if err != nil {
		return errors.Join(err, parent.Close())
	}
	r.exportParent, r.exportRoot = parent, root
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != 0 || info.Mode().Perm() != 0o700 {
		return fmt.Errorf("%s is not the directory that was made", r.journal.Export)
	}
	files, err := guest.Unpack(in, root, r.spec.bounds(), false)
	if err != nil {
		return err
	}
	r.result.Files = files
	return nil
}

// handOver gives the unpacked files to whoever asked, under the name asked for.
func (r *run) handOver() error {
	a, root := r.spec.Asker, r.exportRoot
	err := fs.WalkDir(root.FS(), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		return root.Lchown(name, a.UID, a.GID)
	})
	// The directory last: until then nobody else gets in.
	err = errors.Join(err, root.Chown(".", a.UID, a.GID), root.Chmod(".", 0o755))
	if err != nil {
		return fmt.Errorf("exporting: %w", err)
	}
	name := filepath.Base(filepath.Clean(r.spec.Export))
	// An empty directory makes way; anything that came there meanwhile does not.
	if err := r.exportParent.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("exporting: %w", err)
	}
	if err := r.exportParent.Rename(filepath.Base(r.journal.Export), name); err != nil {
		return fmt.Errorf("exporting: %w", err)
	}
	return nil
}

// exportTemp is where files are unpacked: on the same file system as dir.
func exportTemp(dir, cell string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(abs), ".sallyport-"+cell), nil
}
