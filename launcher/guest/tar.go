package guest

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Bounds of a tree of files. The zero Bounds hold nothing.
type Bounds struct {
	Bytes int64 `json:"bytes"`
	Files int   `json:"files"` // and directories
}

func (b Bounds) valid() bool { return b.Bytes > 0 && b.Files > 0 }

// ErrBounds says that a tree is larger than its bounds.
var ErrBounds = errors.New("more files than allowed")

const (
	maxDepth  = 64
	maxPath   = 4096
	maxLinked = 1024
)

// File is a regular file that was unpacked.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Pack writes the tree below root to a tar: regular files, directories and, with
// links, symbolic links as they are. Nothing is followed. It returns what it left
// out and why, in order. The caller closes w.
func Pack(ctx context.Context, w *tar.Writer, root *os.Root, b Bounds, links bool) (skipped []string, err error) {
	p := &packer{root: root, w: w, left: b, links: links}
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if ctxErr := ctx.Err(); ctxErr != nil {
			return ctxErr
		}
		return p.visit(name, d, err)
	})
	return p.skipped, err
}

type packer struct {
	root    *os.Root
	w       *tar.Writer
	left    Bounds
	links   bool
	skipped []string
}

func (p *packer) skip(name, why string) {
	if len(p.skipped) < 100 {
		p.skipped = append(p.skipped, fmt.Sprintf("%q: %s", name, why))
	}
}

func (p *packer) visit(name string, d fs.DirEntry, err error) error {
	if err != nil {
		p.skip(name, "not readable")
		if d != nil && d.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	if name == "." {
		return nil
	}
	if why := badName(name); why != "" {
		p.skip(name, why)
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	if p.left.Files--; p.left.Files < 0 {
		return ErrBounds
	}
	switch d.Type() {
	case fs.ModeDir:
		return p.w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755})
	case 0:
		return p.file(name)
	case fs.ModeSymlink:
		if p.links {
			return p.link(name)
		}
	}
	p.skip(name, "not a regular file")
	return nil
}

func (p *packer) link(name string) error {
	to, err := p.root.Readlink(name)
	if err != nil || to == "" || len(to) > maxLinked {
		p.skip(name, "not a link that can be read")
		return nil
	}
	return p.w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777})
}

func (p *packer) file(name string) error {
	// What is at name may have been swapped since it was listed: for a link
	// (O_NOFOLLOW) or a pipe that nobody writes to (O_NONBLOCK).
	f, err := p.root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		p.skip(name, "not readable")
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		p.skip(name, "not a regular file")
		return nil
	}
	if p.left.Bytes -= info.Size(); p.left.Bytes < 0 {
		return ErrBounds
	}
	mode := int64(0o644)
	if info.Mode()&0o100 != 0 {
		mode = 0o755
	}
	err = p.w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: mode, ModTime: info.ModTime()})
	if err != nil {
		return err
	}
	// A file that shrinks meanwhile is filled up, one that grows is cut: the
	// header has been sent.
	n, err := io.CopyN(p.w, f, info.Size())
	if errors.Is(err, io.EOF) {
		p.skip(name, "became shorter while it was read")
		_, err = io.CopyN(p.w, zeros{}, info.Size()-n)
	}
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// badName says what is wrong with a slash-separated name, "" if nothing.
func badName(name string) string {
	switch {
	case !fs.ValidPath(name) || name == ".":
		return "not a plain relative name"
	case len(name) > maxPath || strings.Count(name, "/") >= maxDepth:
		return "too long or too deep"
	case !utf8.ValidString(name) || strings.ContainsFunc(name, odd):
		return "has characters that do not print"
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > 255 {
			return "too long or too deep"
		}
	}
	return ""
}

// odd are control characters, and the format characters that make a name look
// like another one on a screen (bidi overrides, zero width).
func odd(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\\' }

// Unpack makes the files of a tar below root, which should be empty. The tar is
// sandbox-controlled: only directories, regular files and, with links, symbolic
// links are made; names are plain and relative; nothing is made outside root, by
// whatever links; no file is made twice; modes are 0644 or 0755; owners, devices
// and attributes are not taken over. Anything else is an error, and so is more
// than b.
func Unpack(r io.Reader, root *os.Root, b Bounds, links bool) ([]File, error) {
	u := &unpacker{root: root, left: b, links: links}
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return u.files, nil
		}
		if err != nil {
			return u.files, fmt.Errorf("unpacking: %w", err)
		}
		if err := u.entry(h, t); err != nil {
			return u.files, fmt.Errorf("unpacking %q: %w", h.Name, err)
		}
	}
}

type unpacker struct {
	root  *os.Root
	left  Bounds
	links bool
	files []File
}

func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	name := h.Name
	if h.Typeflag == tar.TypeDir && strings.HasSuffix(name, "/") {
		name = name[:len(name)-1]
	}
	if why := badName(name); why != "" {
		return errors.New(why)
	}
	if u.left.Files--; u.left.Files < 0 {
		return ErrBounds
	}
	if h.Typeflag != tar.TypeDir {
		if err := u.root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.root.MkdirAll(name, 0o755)
	case tar.TypeReg:
		return u.file(name, h, r)
	case tar.TypeSymlink:
		if u.links && h.Linkname != "" && len(h.Linkname) <= maxLinked {
			return u.root.Symlink(h.Linkname, name)
		}
	}
	return errors.New("neither a file nor a directory")
}

func (u *unpacker) file(name string, h *tar.Header, r io.Reader) error {
	// The size is that of the content, holes and all: a sparse file pays in full.
	if u.left.Bytes -= h.Size; h.Size < 0 || u.left.Bytes < 0 {
		return ErrBounds
	}
	mode := fs.FileMode(0o644)
	if h.Mode&0o100 != 0 {
		mode = 0o755
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(r, h.Size))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if n != h.Size {
		return io.ErrUnexpectedEOF
	}
	u.files = append(u.files, File{name, n, hex.EncodeToString(sum.Sum(nil))})
	return nil
}
