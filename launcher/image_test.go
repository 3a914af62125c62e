package launcher_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/launcher"
	"sallyport/launcher/nerdctl"
)

type entry struct {
	name, link string
	data       []byte
}

func tarOf(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: 0o755, Size: int64(len(e.data))}
		switch {
		case e.link != "":
			h = &tar.Header{Typeflag: tar.TypeSymlink, Name: e.name, Linkname: e.link, Mode: 0o777}
		case strings.HasSuffix(e.name, "/"):
			h = &tar.Header{Typeflag: tar.TypeDir, Name: e.name, Mode: 0o755}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// load puts an image of one layer into the store.
func load(t *testing.T, name string, config map[string]any, files ...entry) {
	t.Helper()
	layer := tarOf(t, files...)
	sum := sha256.Sum256(layer)
	config = map[string]any{
		"architecture": "amd64", "os": "linux", "config": config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	}
	configJSON, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	archive := tarOf(t, entry{name: "config.json", data: configJSON}, entry{name: "manifest.json", data: manifest}, entry{name: "layer.tar", data: layer})
	if err := os.WriteFile(path, archive, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := shared.engine.Load(t.Context(), path); err != nil {
		t.Fatal(err)
	}
}

// An image without a shell or a library, and hostile in all that it can say.
func TestHostileImage(t *testing.T) {
	probe := filepath.Join(t.TempDir(), "probe")
	build := exec.Command("go", "build", "-o", probe, "./testdata/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	program, err := os.ReadFile(probe)
	if err != nil {
		t.Fatal(err)
	}
	load(t, "hostile/all:1", map[string]any{
		"User": "0:0", "Entrypoint": []string{"/probe"}, "Cmd": []string{"/etc/ssl/cert.pem", "/etc/ssl/certs/ca-certificates.crt", "/etc/passwd"},
		"Env":        []string{"HTTP_PROXY=http://192.0.2.1", "ALL_PROXY=socks5://192.0.2.1", "SSL_CERT_DIR=/evil", "FROM_IMAGE=1", "GODEBUG=http2debug=2"},
		"WorkingDir": "../../relative", "Volumes": map[string]any{"/data": struct{}{}},
	},
		entry{name: "probe", data: program},
		// Up and out to the host's, were the link followed there.
		entry{name: "etc/"}, entry{name: "etc/ssl/"}, entry{name: "etc/ssl/certs/"},
		entry{name: "etc/ssl/certs/ca-certificates.crt", link: strings.Repeat("../", 20) + "probe"},
		entry{name: "etc/ssl/cert.pem", data: []byte("# comment\n-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n" + string(caPEM) + "\x1b[2J")},
		entry{name: "etc/resolv.conf", link: "/../../../../run/" + instance + "-resolv"},
		entry{name: "srv/"}, entry{name: "workspace", link: "../../../srv"},
	)
	isolated(t, func(t *testing.T, spec func(argv ...string) launcher.Spec) {
		before := snapshot(t)
		s := spec()
		s.Image = "hostile/all:1"
		s.Limits.Tmp = 64 << 20
		res := must(t, s)
		got := text(res, "stdout")
		for _, want := range []string{
			"user 1000 1000\n", "HTTP_PROXY true http://10.213.", "ALL_PROXY false \n", "SSL_CERT_DIR false \n", "FROM_IMAGE true 1\n",
			"volume <nil> <nil> true 67108864\n",
			// The bundle is what was a bundle of the image, twice the same here.
			"file /etc/ssl/cert.pem " + size(2*len(caPEM)) + " <nil>\n",
			// What is no bundle is not mounted on, whatever it is called.
			"file /etc/ssl/certs/ca-certificates.crt " + size(len(program)) + " <nil>\n", "file /etc/passwd 0 open /etc/passwd: no such file or directory\n",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("missing %q in\n%s%s%s", want, got, text(res, "stderr"), res.Text)
			}
		}
		if strings.Contains(got, "192.0.2.1") {
			t.Errorf("the image's proxy is used:\n%s", got)
		}
		same(t, before)
	})
	if _, err := os.Lstat("/run/" + instance + "-resolv"); err == nil {
		t.Error("a file was made outside")
	}
}

func size(n int) string { data, _ := json.Marshal(n); return string(data) }

// An image's files are read inside it, wherever its links lead, and nothing is left.
func TestReadImage(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 1<<20+1)
	load(t, "read/files:1", map[string]any{"Env": []string{"GOPROXY=https://go.example.com"}},
		entry{name: "etc/"}, entry{name: "opt/"}, entry{name: "etc/hostname", data: []byte("image\n")},
		entry{name: "etc/a.list", data: []byte("one")}, entry{name: "etc/other", data: []byte("other")}, entry{name: "opt/b", data: []byte("two")},
		entry{name: "etc/b.list", link: "/opt/b"}, entry{name: "etc/up.list", link: strings.Repeat("../", 20) + "opt/b"},
		entry{name: "etc/nowhere.list", link: "/run/" + instance + "-nowhere"}, entry{name: "opt/long", data: long},
	)
	l, err := shared.launcher(nil)
	if err != nil {
		t.Fatal(err)
	}
	before := snapshot(t)
	want := &launcher.ImageFiles{
		Env:   []string{"GOPROXY=https://go.example.com"},
		Files: map[string][]byte{"/etc/a.list": []byte("one"), "/etc/b.list": []byte("two"), "/etc/up.list": []byte("two")},
	}
	for range 2 { // the second time out of what was kept
		got, err := l.ReadImage(t.Context(), "read/files:1", []string{"/etc/*.list", "/etc/missing"})
		if err != nil {
			t.Fatal(err)
		}
		got.Env = slices.DeleteFunc(got.Env, func(v string) bool { return strings.HasPrefix(v, "PATH=") })
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("files (-want +got):\n%s", d)
		}
	}
	if _, err := l.ReadImage(t.Context(), "read/files:1", []string{"/opt/*"}); err == nil || !strings.Contains(err.Error(), "/opt/long is too long") {
		t.Errorf("a long file: %v", err)
	}
	if _, err := l.ReadImage(t.Context(), "read/nothing:1", []string{"/etc/*"}); !errors.Is(err, nerdctl.ErrNoImage) {
		t.Errorf("an image that is not there: %v", err)
	}
	same(t, before)
}

func TestImagesThatSteer(t *testing.T) {
	tests := []struct {
		name   string
		config map[string]any
		want   string
	}{
		{"hostile/label:1", map[string]any{"Labels": map[string]string{"containerd.io/restart.status": "running", "containerd.io/restart.loguri": "binary:///bin/sh"}}, "would steer the engine"},
		{"hostile/state:1", map[string]any{"Labels": map[string]string{"nerdctl/state-dir": "/etc"}}, "would steer the engine"},
		{"hostile/volume:1", map[string]any{"Volumes": map[string]any{"/etc/sallyport": struct{}{}}}, "its volume"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			load(t, test.name, test.config, entry{name: "x", data: []byte("x")})
			before := snapshot(t)
			s := spec("true")
			s.Image = test.name
			_, err := run(t, s)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Run = %v, want %q", err, test.want)
			}
			same(t, before)
		})
	}
}
