package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// rootfs has one entry of each kind that matters, written with the given times.
func rootfs(t *testing.T, at time.Time) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755},
		{Typeflag: tar.TypeDir, Name: "./usr/", Mode: 0o755},
		{Typeflag: tar.TypeDir, Name: "./tmp/", Mode: 0o1777},
		{Typeflag: tar.TypeReg, Name: "./usr/su", Mode: 0o4755, Size: 2, Uname: "root"},
		{Typeflag: tar.TypeReg, Name: "./usr/wall", Mode: 0o2755, Size: 2, Gid: 5},
		{Typeflag: tar.TypeReg, Name: "./usr/ping", Mode: 0o755, Size: 2, PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}},
		{Typeflag: tar.TypeLink, Name: "./usr/su2", Linkname: "./usr/su"},
		{Typeflag: tar.TypeSymlink, Name: "./bin", Linkname: "usr/bin"},
		{Typeflag: tar.TypeChar, Name: "./null", Mode: 0o666, Devmajor: 1, Devminor: 3},
		{Typeflag: tar.TypeFifo, Name: "./pipe", Mode: 0o666},
	} {
		h.ModTime = at
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, "hi"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func makeImage(t *testing.T, fs []byte) (archive string) {
	t.Helper()
	dir := t.TempDir()
	in := filepath.Join(dir, "rootfs.tar")
	if err := os.WriteFile(in, fs, 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "image.tar")
	args := []string{"-name", "sallyport/test:latest", "-rootfs", in, "-o", out, "-user", "1000:1000", "-workdir", "/workspace", "-env", "LANG=C.UTF-8", "/bin/sh", "-c", "true"}
	if err := run(args); err != nil {
		t.Fatalf("run(%q): %v", args, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".image-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
	return out
}

func open(t *testing.T, archive string) v1.Image {
	t.Helper()
	tag, err := name.NewTag("sallyport/test:latest")
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(archive, &tag)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestSameRootSameBytes(t *testing.T) {
	first, err := os.ReadFile(makeImage(t, rootfs(t, time.Unix(1, 0))))
	if err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(makeImage(t, rootfs(t, time.Unix(1_700_000_000, 0))))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Error("the times of the root file system show in the archive")
	}
}

func TestConfig(t *testing.T) {
	file, err := open(t, makeImage(t, rootfs(t, time.Unix(1, 0)))).ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := file.Config
	got := strings.Join([]string{file.OS, file.Architecture, c.User, c.WorkingDir, strings.Join(c.Env, ","), strings.Join(c.Cmd, " ")}, "|")
	want := "linux|" + runtime.GOARCH + "|1000:1000|/workspace|LANG=C.UTF-8|/bin/sh -c true"
	if got != want {
		t.Errorf("configuration is %q, want %q", got, want)
	}
	if n := len(file.RootFS.DiffIDs); n != 1 {
		t.Errorf("%d layers, want 1", n)
	}
}

func TestLayerHasNoPrivilegeInIt(t *testing.T) {
	layers, err := open(t, makeImage(t, rootfs(t, time.Unix(1, 0)))).Layers()
	if err != nil {
		t.Fatal(err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	modes := make(map[string]int64)
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(h.PAXRecords) > 0 {
			t.Errorf("%s has extended attributes %v", h.Name, h.PAXRecords)
		}
		modes[h.Name] = h.Mode
	}
	for name, mode := range map[string]int64{"usr/su": 0o755, "usr/wall": 0o755, "usr/ping": 0o755, "tmp/": 0o1777} {
		if got, ok := modes[name]; !ok || got != mode {
			t.Errorf("%s has mode %o (there: %v), want %o", name, got, ok, mode)
		}
	}
	for _, name := range []string{"null", "pipe"} {
		if _, ok := modes[name]; ok {
			t.Errorf("%s is in the layer, want it left out", name)
		}
	}
	if len(modes) != 8 {
		t.Errorf("layer has %v, want 8 entries", modes)
	}
}

func TestRefused(t *testing.T) {
	dir := t.TempDir()
	empty, cut := filepath.Join(dir, "empty"), filepath.Join(dir, "cut")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cut, rootfs(t, time.Unix(1, 0))[:2000], 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out")
	for what, args := range map[string][]string{
		"no name":     {"-rootfs", cut, "-o", out},
		"no output":   {"-name", "a/b:c", "-rootfs", cut},
		"bad name":    {"-name", "A B", "-rootfs", cut, "-o", out},
		"bad env":     {"-name", "a/b:c", "-rootfs", cut, "-o", out, "-env", "LANG"},
		"no rootfs":   {"-name", "a/b:c", "-rootfs", filepath.Join(dir, "none"), "-o", out},
		"empty":       {"-name", "a/b:c", "-rootfs", empty, "-o", out},
		"cut in half": {"-name", "a/b:c", "-rootfs", cut, "-o", out},
	} {
		if err := run(args); err == nil {
			t.Errorf("%s: run(%q) succeeded", what, args)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: an archive was written", what)
		}
	}
}
