package nerdctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Image is what is known of an image in the store.
type Image struct {
	Name       string // as it was asked for
	Digest     string // of the manifest: "sha256:…"
	User       string // image-controlled
	Entrypoint []string
	Cmd        []string
	Dir        string
}

var (
	digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	// imagePattern is a name, a tag and a digest, without what an option could start with.
	imagePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$`)
)

// Image looks an image up by name. ErrNoImage says that it is not there.
func (e *Engine) Image(ctx context.Context, name string) (*Image, error) {
	if !imagePattern.MatchString(name) {
		return nil, fmt.Errorf("image %q: not a name: %w", name, ErrNoImage)
	}
	out, err := e.call(ctx, "image", "inspect", name)
	if err != nil {
		return nil, e.missing(ctx, name, err)
	}
	var list []struct {
		RepoDigests []string
		Config      struct {
			User, WorkingDir string
			Entrypoint, Cmd  []string
		}
	}
	if err := decode(out, &list); err != nil {
		return nil, fmt.Errorf("inspecting image %q: %w", name, err)
	}
	if len(list) == 0 {
		return nil, e.missing(ctx, name, nil)
	}
	got := list[0]
	i := &Image{Name: name, User: got.Config.User, Entrypoint: got.Config.Entrypoint, Cmd: got.Config.Cmd, Dir: got.Config.WorkingDir}
	for _, d := range got.RepoDigests {
		if _, digest, ok := strings.Cut(d, "@"); ok && digestPattern.MatchString(digest) {
			i.Digest = digest
			return i, nil
		}
	}
	return nil, fmt.Errorf("inspecting image %q: it has no digest", name)
}

// missing tells an image that is not there from an engine that is not.
func (e *Engine) missing(ctx context.Context, name string, cause error) error {
	if err := e.Ready(ctx); err != nil {
		return err
	}
	names, err := e.Images(ctx)
	if err != nil {
		return errors.Join(cause, err)
	}
	have := "there is none yet"
	if len(names) > 0 {
		have = "there are " + strings.Join(names, ", ")
	}
	return fmt.Errorf("image %q: %w: %s; add one from an archive with `sallyport image load FILE`", name, ErrNoImage, have)
}

// Images returns the names of the images in the store, sorted.
func (e *Engine) Images(ctx context.Context) ([]string, error) {
	out, err := e.call(ctx, "image", "ls", "--format", "{{.Repository}}:{{.Tag}}")
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		if name := strings.TrimSpace(line); imagePattern.MatchString(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Load reads an archive (of docker save, or an OCI layout in a tar) into the store.
func (e *Engine) Load(ctx context.Context, archive string) error {
	info, err := os.Stat(archive)
	if err != nil {
		return fmt.Errorf("loading an image: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("loading an image: %s is not a file", archive)
	}
	if strings.HasPrefix(archive, "-") {
		archive = "./" + archive
	}
	if _, err := e.call(ctx, "load", "--quiet", "--input", archive); err != nil {
		return fmt.Errorf("loading image %q: %w", archive, err)
	}
	return nil
}
