package launcher

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"sallyport/launcher/guest"
	"sallyport/launcher/nerdctl"
)

// ImageFiles is what was asked of an image. All of it is image-controlled.
type ImageFiles struct {
	Env   []string          `json:"env"`   // NAME=value
	Files map[string][]byte `json:"files"` // of at most 1 MiB each, by the paths that were asked for
}

// ReadImage returns the regular files of an image that absolute patterns match
// (path/filepath.Match), and its environment.
//
// As for its certificates, the image is asked by our guest, in a sandbox without a
// network: links resolve inside it, and nothing of it is unpacked or mounted by the
// host. What came back is kept by the image's digest, so the next time nothing is
// started. A file that is longer than 1 MiB is an error.
func (l *Launcher) ReadImage(ctx context.Context, image string, patterns []string) (*ImageFiles, error) {
	found, err := l.readImage(ctx, image, patterns)
	if err != nil {
		return nil, fmt.Errorf("reading files of image %q: %w", image, err)
	}
	return found, nil
}

func (l *Launcher) readImage(ctx context.Context, image string, patterns []string) (_ *ImageFiles, err error) {
	r := &run{l: l, spec: &Spec{Image: image, Isolation: Container}, id: newCellID(), asked: l.cfg.Now()}
	if r.spec.Limits, err = r.spec.Limits.withDefaults(); err != nil {
		return nil, err
	}
	if r.image, err = l.cfg.Engine.Image(ctx, image); err != nil {
		return nil, err
	}
	dir := filepath.Join(l.imagesDir(), strings.TrimPrefix(r.image.Digest, "sha256:"))
	path := filepath.Join(dir, "files-"+digest([]byte(strings.Join(patterns, "\n")))[:16]+".json")
	if data, err := os.ReadFile(path); err == nil {
		var found ImageFiles
		if json.Unmarshal(data, &found) == nil {
			return &found, nil
		}
	}
	found, err := l.askImage(ctx, r, patterns)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(found)
	if err != nil {
		return nil, err
	}
	unlock, err := lockPath(ctx, l.imagesDir())
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return found, writeFile(path, data, 0o600)
}

// askImage is a run of its own as far as its journal goes: what a killed launcher
// leaves of it, Reconcile finds.
func (l *Launcher) askImage(ctx context.Context, r *run, patterns []string) (*ImageFiles, error) {
	r.journal = &journal{Cell: r.id, PID: os.Getpid(), Created: r.asked, Step: StepImage}
	lock, err := l.begin(ctx, r.journal)
	if err != nil {
		return nil, err
	}
	found := &ImageFiles{Env: r.image.Env, Files: map[string][]byte{}}
	if err = l.makeRunDir(r.id); err == nil {
		err = l.lookFor(ctx, r, patterns, found)
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	if undone := r.removeImage(clean); undone != nil {
		return nil, errors.Join(err, undone, lock.Close()) // the journal stays, for Reconcile
	}
	return found, errors.Join(err, l.forget(r.id, lock))
}

func (l *Launcher) lookFor(ctx context.Context, r *run, patterns []string, found *ImageFiles) error {
	out, err := l.converse(ctx, r.looker(), guest.Job{
		Spec:   guest.Spec{Look: patterns, All: true},
		Export: func(in io.Reader) error { return found.read(in) },
	})
	if err := errors.Join(err, out.Export); err != nil {
		return err
	}
	if len(out.Done.Skipped) > 0 {
		return fmt.Errorf("%s is too long", out.Done.Skipped[0])
	}
	return nil
}

// looker is a container that only looks at its image: without a network, with our
// guest and nothing else mounted.
func (r *run) looker() *nerdctl.Container {
	c := r.container()
	c.Name, c.CIDFile, c.Netns, c.Hardened = r.id+lookSuffix, c.CIDFile+lookSuffix, "", false
	c.Binds = []nerdctl.Bind{{Source: r.l.cfg.Guest, Target: guestPath}}
	return c
}

func (f *ImageFiles) read(in io.Reader) error {
	for t := tar.NewReader(in); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if f.Files[h.Name], err = io.ReadAll(t); err != nil { // the stream is bounded
			return err
		}
	}
}
