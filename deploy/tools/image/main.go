// Command image turns the root file system in a tar stream into a container image of one layer.
//
// The result is a docker archive, which nerdctl, docker and podman all load. The same root file
// system gives the same bytes: times are set to the epoch, owner names are dropped, and entries
// keep the order in which they came. What no sandbox needs is taken out on the way: set-uid and
// set-gid bits, file capabilities and device nodes. It speaks to no registry.
package main

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// setID is the set-uid and set-gid bits of a tar header's mode.
const setID = 0o6000

// options is what the command line says.
type options struct {
	name   string   // what the image is called, e.g. sallyport/sandbox:latest
	rootfs string   // the tar file to read; "-" is standard input
	out    string   // the archive to write
	user   string   // the user that the image runs as
	dir    string   // the working directory
	env    []string // NAME=VALUE
	cmd    []string // what runs when nothing is asked for
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "image: error:", err)
		}
		os.Exit(1)
	}
}

func run(args []string) error {
	var o options
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&o.name, "name", "", "`name` of the image, with its tag")
	flags.StringVar(&o.rootfs, "rootfs", "-", "tar `file` with the root file system; - reads standard input")
	flags.StringVar(&o.out, "o", "", "archive `file` to write")
	flags.StringVar(&o.user, "user", "", "`user` that the image runs as")
	flags.StringVar(&o.dir, "workdir", "/", "working `directory`")
	flags.Func("env", "environment variable, `NAME=VALUE`; may be given more than once", func(s string) error {
		if !strings.Contains(s, "=") {
			return fmt.Errorf("%q is not NAME=VALUE", s)
		}
		o.env = append(o.env, s)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	o.cmd = flags.Args()
	if o.name == "" || o.out == "" {
		return errors.New("-name and -o are needed")
	}
	return build(o)
}

// build writes the archive beside its final place and renames it, so that a reader never sees half of one.
func build(o options) (err error) {
	tag, err := name.NewTag(o.name)
	if err != nil {
		return fmt.Errorf("reading the image's name: %w", err)
	}
	in := os.Stdin
	if o.rootfs != "-" {
		in, err = os.Open(o.rootfs)
		if err != nil {
			return err
		}
		defer in.Close()
	}
	work, err := os.MkdirTemp(filepath.Dir(o.out), ".image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()

	l, err := newLayer(filepath.Join(work, "layer.tar"), in)
	if err != nil {
		return fmt.Errorf("reading the root file system: %w", err)
	}
	img, err := newImage(o, l)
	if err != nil {
		return fmt.Errorf("putting the image together: %w", err)
	}
	archive := filepath.Join(work, "archive.tar")
	if err := tarball.WriteToFile(archive, tag, img); err != nil {
		return fmt.Errorf("writing the archive: %w", err)
	}
	return os.Rename(archive, o.out)
}

func newImage(o options, l v1.Layer) (v1.Image, error) {
	img, err := mutate.Append(empty.Image, mutate.Addendum{
		Layer:   l,
		History: v1.History{Created: v1.Time{Time: time.Unix(0, 0).UTC()}, CreatedBy: "root file system"},
	})
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS = "linux"
	file.Architecture = runtime.GOARCH
	file.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	file.Config = v1.Config{User: o.user, WorkingDir: o.dir, Env: o.env, Cmd: o.cmd}
	return mutate.ConfigFile(img, file)
}

// layer is a tar file that is not compressed: an image that never leaves the machine gains nothing from
// compression and would pay for it at every load.
type layer struct {
	path string
	sum  v1.Hash
	size int64
}

// newLayer copies the root file system from r to path, cleaned.
func newLayer(path string, r io.Reader) (_ *layer, err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum := sha256.New()
	if err := clean(io.MultiWriter(f, sum), r); err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return &layer{path: path, size: info.Size(), sum: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}}, nil
}

// clean copies a tar stream and leaves out what a sandbox must not have.
func clean(w io.Writer, r io.Reader) error {
	in, out := tar.NewReader(r), tar.NewWriter(w)
	seen := 0
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeBlock || h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeFifo {
			continue
		}
		if err := out.WriteHeader(cleanHeader(h)); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		if _, err := io.Copy(out, in); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		seen++
	}
	if seen == 0 {
		return fmt.Errorf("empty tar stream: %w", fs.ErrInvalid)
	}
	return out.Close()
}

// cleanHeader keeps a name, a kind, an owner by number and a mode. Extended attributes, file
// capabilities among them, are not carried over.
func cleanHeader(h *tar.Header) *tar.Header {
	n := path.Clean("/" + h.Name)[1:]
	if n == "" {
		n = "."
	}
	if h.Typeflag == tar.TypeDir {
		n += "/"
	}
	link := h.Linkname
	if h.Typeflag == tar.TypeLink {
		link = path.Clean("/" + link)[1:]
	}
	mode := h.Mode
	if h.Typeflag != tar.TypeDir {
		mode &^= setID
	}
	return &tar.Header{
		Typeflag: h.Typeflag, Name: n, Linkname: link, Size: h.Size, Mode: mode,
		Uid: h.Uid, Gid: h.Gid, ModTime: time.Unix(0, 0),
	}
}

func (l *layer) Digest() (v1.Hash, error)             { return l.sum, nil }
func (l *layer) DiffID() (v1.Hash, error)             { return l.sum, nil }
func (l *layer) Compressed() (io.ReadCloser, error)   { return os.Open(l.path) }
func (l *layer) Uncompressed() (io.ReadCloser, error) { return os.Open(l.path) }
func (l *layer) Size() (int64, error)                 { return l.size, nil }
func (l *layer) MediaType() (types.MediaType, error)  { return types.DockerUncompressedLayer, nil }
