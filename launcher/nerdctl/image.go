package nerdctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	Env        []string // NAME=value; image-controlled
	Volumes    []string // absolute paths that the image declares for data
}

// IsDigest says whether s is the digest of an image, or of a policy.
func IsDigest(s string) bool {
	sum, ok := strings.CutPrefix(s, "sha256:")
	return ok && len(sum) == 64 && strings.Trim(sum, "0123456789abcdef") == ""
}

// imagePattern is a name, a tag and a digest, without what an option could start with.
var imagePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/:@-]*$`)

func imageName(s string) bool { return len(s) <= 255 && imagePattern.MatchString(s) }

// Image looks an image up by name. ErrNoImage says that it is not there.
func (e *Engine) Image(ctx context.Context, name string) (*Image, error) {
	if !imageName(name) {
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
			Env              []string
			Volumes          map[string]struct{}
			Labels           map[string]string
		}
	}
	if err := decode(out, &list); err != nil {
		return nil, fmt.Errorf("inspecting image %q: %w", name, err)
	}
	if len(list) == 0 {
		return nil, e.missing(ctx, name, nil)
	}
	got := list[0]
	i := &Image{Name: name, User: got.Config.User, Entrypoint: got.Config.Entrypoint, Cmd: got.Config.Cmd, Dir: got.Config.WorkingDir, Env: got.Config.Env}
	if i.Volumes, err = volumes(got.Config.Volumes); err != nil {
		return nil, fmt.Errorf("image %q: %w", name, err)
	}
	if err := checkLabels(got.Config.Labels); err != nil {
		return nil, fmt.Errorf("image %q: %w", name, err)
	}
	for _, d := range got.RepoDigests {
		if _, digest, ok := strings.Cut(d, "@"); ok && IsDigest(digest) {
			i.Digest = digest
			return i, nil
		}
	}
	return nil, fmt.Errorf("inspecting image %q: it has no digest", name)
}

// steering are prefixes of labels that containerd or nerdctl act on, or we do. An
// image's labels become its container's.
var steering = []string{"nerdctl/", "containerd.io/", "io.containerd.", "com.docker.", "sallyport."}

func checkLabels(labels map[string]string) error {
	for name := range labels {
		for _, prefix := range steering {
			if strings.HasPrefix(strings.ToLower(name), prefix) { //nolint:forbidigo // not a host
				return fmt.Errorf("its label %q would steer the engine: build it without", name)
			}
		}
	}
	return nil
}

// volumes are directories that nerdctl would keep on the host's disk, writable
// and without a bound, were nothing else mounted there. They must be spelled as
// nerdctl compares them, and not hide what a sandbox is made of.
func volumes(declared map[string]struct{}) ([]string, error) {
	var out []string
	for path := range declared {
		clean := filepath.Clean(path)
		if !plainPath.MatchString(clean) || slices.ContainsFunc(reserved, func(r string) bool {
			return clean == r || strings.HasPrefix(r, clean+"/") || strings.HasPrefix(clean, r+"/") || clean == "/"
		}) {
			return nil, fmt.Errorf("its volume %q cannot be had: build it without", path)
		}
		out = append(out, clean)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// reserved are directories that a volume must neither cover nor be in.
var reserved = []string{"/.sallyport", "/etc", "/proc", "/sys", "/dev", "/usr", "/bin", "/sbin", "/lib"}

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
		if name := strings.TrimSpace(line); imageName(name) {
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
