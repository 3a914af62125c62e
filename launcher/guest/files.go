package guest

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

func beUint32(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

// unpack makes the files that the work starts with.
func (g *guest) unpack() error {
	r, w := io.Pipe()
	received := make(chan error, 1)
	go func() {
		err := g.receive(w)
		w.CloseWithError(err) // nil is io.EOF
		received <- err
	}()
	err := unpackInto(g.spec.Root, r, g.spec.Bounds)
	if err == nil {
		_, err = io.Copy(io.Discard, r) // what follows the tar's own end
	}
	r.CloseWithError(errors.New("not wanted any more"))
	return errors.Join(err, <-received)
}

func unpackInto(dir string, r io.Reader, b Bounds) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	_, err = Unpack(r, root, b, true)
	return err
}

// receive copies the pieces of a tar to w. Once w wants no more the rest is
// still taken from the line, for what comes after it to be understood.
func (g *guest) receive(w io.Writer) error {
	var failed bool
	for {
		f, err := g.in.next()
		if err != nil {
			return fmt.Errorf("receiving files: %w", err)
		}
		switch f.kind {
		case kindFiles:
			if failed {
				continue
			}
			if _, err := w.Write(f.data); err != nil {
				failed = true // Unpack knows why
			}
		case kindFilesEnd:
			return nil
		default:
			return fmt.Errorf("receiving files: frame %d is not expected", f.kind)
		}
	}
}

// export sends what the work left behind. The work is gone, so nothing changes
// below our hands; it was hostile, so nothing is followed.
func (g *guest) export(ctx context.Context) Done {
	root, err := os.OpenRoot(g.spec.Root)
	if err != nil {
		return Done{Error: err.Error()}
	}
	defer root.Close()
	w := tar.NewWriter(g.out.stream(kindExport))
	skipped, err := Pack(ctx, w, root, g.spec.Bounds, false)
	done := Done{Skipped: skipped}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		done.Error = err.Error()
	}
	return done
}

// maxLook bounds a file that is sent back for Look: a bundle of every root
// there is has about a quarter of a megabyte.
const maxLook = 8 << 20

// look says which of some files are there and have certificates. It is how the
// launcher learns about an image: links resolve inside the sandbox, where they
// cannot lead out.
func (g *guest) look() error {
	var done Done
	for _, path := range g.spec.Look {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue
		}
		data, err := readSmall(real)
		if err != nil || !bytes.Contains(data, []byte(g.spec.Having)) {
			continue
		}
		if len(done.Found) == 0 {
			if _, err := g.out.stream(kindExport).Write(data); err != nil {
				return err
			}
		}
		done.Found = append(done.Found, Found{path, real})
	}
	return g.send(kindDone, done)
}

const (
	// maxAsked bounds each file of All, and roomAsked is left for the tar's own.
	maxAsked  = 1 << 20
	roomAsked = 1 << 20
)

// lookAll sends back every file that is asked for. One that is too long is named and
// not sent. One that this user may not read is passed over: the work could not
// read it either.
func (g *guest) lookAll() error {
	w := tar.NewWriter(g.out.stream(kindExport))
	var done Done
	left := int64(maxLook - roomAsked)
	for _, pattern := range g.spec.Look {
		paths, _ := filepath.Glob(pattern) // a bad pattern matches nothing
		for _, path := range paths {
			real, err := filepath.EvalSymlinks(path)
			if err != nil {
				continue
			}
			data, err := readSmall(real)
			if err != nil {
				continue
			}
			if len(data) > maxAsked || int64(len(data)) > left {
				done.Skipped = append(done.Skipped, path)
				continue
			}
			left -= int64(len(data)) + 4*512 // headers and padding
			h := &tar.Header{Typeflag: tar.TypeReg, Name: path, Size: int64(len(data)), Mode: 0o644}
			if err := w.WriteHeader(h); err != nil {
				return err
			}
			if _, err := w.Write(data); err != nil {
				return err
			}
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return g.send(kindDone, done)
}

func readSmall(path string) ([]byte, error) {
	// A pipe must not be waited for.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxLook {
		return nil, errors.New("not a file of a bundle's size")
	}
	return io.ReadAll(io.LimitReader(f, maxLook))
}
