package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sallyport/control"
	"sallyport/launcher"
)

// An image's files are read as inside it: no link leads out, nothing but regular
// files is opened.
func TestDetectInAnImage(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "pip.conf"), []byte("[global]\nindex-url=https://outside.example.com/\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const conf = "[global]\nindex-url=https://inside.example.com/\n"
	for name, tt := range map[string]struct {
		make func(root string) error
		want string // host, "" for what is wrong
		err  string
	}{
		"a file": {func(root string) error { return write(root, "etc/pip.conf", conf) }, "inside.example.com", ""},
		"an absolute link": {func(root string) error {
			return firstError(write(root, "opt/pip.conf", conf), link(root, "/opt/pip.conf", "etc/pip.conf"))
		}, "inside.example.com", ""},
		"a linked directory": {func(root string) error {
			return firstError(write(root, "opt/etc/pip.conf", conf), link(root, "/opt/etc", "etc"))
		}, "inside.example.com", ""},
		"dots that go too far": {func(root string) error {
			return firstError(write(root, "opt/pip.conf", conf), link(root, "../../../../opt/pip.conf", "etc/pip.conf"))
		}, "inside.example.com", ""},
		"a link out":                {func(root string) error { return link(root, filepath.Join(outside, "pip.conf"), "etc/pip.conf") }, "", "nothing says which server"},
		"a link of a directory out": {func(root string) error { return link(root, outside, "etc") }, "", "nothing says which server"},
		"links in a circle":         {func(root string) error { return link(root, "pip.conf", "etc/pip.conf") }, "", "too many levels"},
		"a pipe": {func(root string) error {
			return firstError(os.Mkdir(filepath.Join(root, "etc"), 0o755), syscall.Mkfifo(filepath.Join(root, "etc/pip.conf"), 0o644))
		}, "", "not a regular file"},
		"a directory": {func(root string) error { return os.MkdirAll(filepath.Join(root, "etc/pip.conf"), 0o755) }, "", "not a regular file"},
		"too long":    {func(root string) error { return write(root, "etc/pip.conf", strings.Repeat("#\n", 1<<19)+"#") }, "", "longer than 1 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if err := tt.make(root); err != nil {
				t.Fatal(err)
			}
			d, err := newDetector(root)
			if err != nil {
				t.Fatal(err)
			}
			d.places = d.places[:1] // this machine's own configuration is not the test's
			got, err := d.find("pip")
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || len(got) != 0 {
					t.Errorf("find = %v, %v, want %q", got, err, tt.err)
				}
				return
			}
			if err != nil || len(got) != 1 || got[0].Endpoint.Host.String() != tt.want || got[0].Where != "image:/etc/pip.conf:2" {
				t.Errorf("find = %v, %v", got, err)
			}
		})
	}
}

func write(root, name, text string) error {
	path := filepath.Join(root, name)
	return firstError(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
}

func link(root, to, name string) error {
	path := filepath.Join(root, name)
	return firstError(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(to, path))
}

// firstError returns the first error there is.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// The image comes first, with the variables of the run; then the machine.
func TestDetectOrder(t *testing.T) {
	root, home := t.TempDir(), t.TempDir()
	if err := firstError(
		write(root, "etc/apk/repositories.d/a.list", "https://a.example.com/\n"), write(root, "etc/apk/repositories.d/b.list", "https://b.example.com/\n"),
		write(root, "etc/apk/repositories.d/c.txt", "https://c.example.com/\n"),
		write(root, "home/agent/.npmrc", "registry=https://agent.example.com/\n"),
		write(home, ".npmrc", "registry=https://host.example.com/\n"),
	); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SUDO_USER", "")
	t.Setenv("HOME", home)
	asked := 0
	read := func(patterns []string) (*launcher.ImageFiles, error) { //nolint:unparam // the real one may fail
		asked++
		if !slices.Contains(patterns, "/etc/apk/repositories.d/*.list") {
			t.Errorf("asked for %q", patterns)
		}
		return &launcher.ImageFiles{
			Env: []string{"GOPROXY=https://go.example.com,direct", "npm_config_registry=https://baked.example.com"},
			Files: map[string][]byte{
				"/etc/apk/repositories.d/b.list": []byte("https://b.example.com/\n"), "/etc/apk/repositories": []byte("https://a.example.com/\n"),
				"/etc/yarnrc": []byte("registry \"https://yarn.example.com\"\n"),
			},
		}, nil
	}
	for name, tt := range map[string]struct {
		root    string
		env     []string
		manager string
		want    []string
	}{
		"a pattern":                  {root, nil, "apk", []string{"a.example.com image:/etc/apk/repositories.d/a.list:1", "b.example.com image:/etc/apk/repositories.d/b.list:1"}},
		"a home without a variable":  {root, nil, "npm", []string{"host.example.com host:" + home + "/.npmrc:1"}},
		"a home of the run":          {root, []string{"HOME=/home/agent"}, "npm", []string{"agent.example.com image:/home/agent/.npmrc:1"}},
		"a variable of the run":      {"", []string{"npm_config_registry=https://run.example.com"}, "npm", []string{"run.example.com image:npm_config_registry"}},
		"a variable of the image":    {"", nil, "go", []string{"go.example.com image:GOPROXY"}},
		"files of the image":         {"", nil, "apk", []string{"a.example.com image:/etc/apk/repositories:1", "b.example.com image:/etc/apk/repositories.d/b.list:1"}},
		"a variable over the image":  {root, []string{"HOME=/home/agent", "npm_config_registry=https://run.example.com"}, "npm", []string{"run.example.com image:npm_config_registry"}},
		"a variable of another kind": {root, []string{"PIP_INDEX_URL=https://run.example.com"}, "npm", []string{"host.example.com host:" + home + "/.npmrc:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := newRunDetector(tt.root, tt.env, read)
			if err != nil {
				t.Fatal(err)
			}
			list, err := d.find(tt.manager)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range list {
				got = append(got, s.Endpoint.Host.String()+" "+s.Where)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("find = %q, want %q", got, tt.want)
			}
			// What is kept with the run finds the same, and nothing else.
			kept, err := keptDetector(d.detected())(tt.manager)
			if err != nil || !slices.Equal(kept, list) {
				t.Errorf("kept: %v, %v", kept, err)
			}
			if _, err := keptDetector(d.detected())("maven"); err == nil || !strings.Contains(err.Error(), "start a new run") {
				t.Errorf("kept: maven: %v", err)
			}
		})
	}
	// The image is asked only where it is needed, and once.
	before := asked
	d, err := newRunDetector("", nil, read)
	if err != nil || asked != before {
		t.Fatalf("asked %d times before anything is looked for, %v", asked-before, err)
	}
	for _, m := range []string{"go", "npm", "yarn"} {
		if _, err := d.find(m); err != nil {
			t.Error(err)
		}
	}
	if asked != before+1 {
		t.Errorf("the image was asked %d times", asked-before)
	}
	d, err = newRunDetector("", nil, func([]string) (*launcher.ImageFiles, error) { return nil, errors.New("no such image") })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.find("pip"); err == nil || !strings.Contains(err.Error(), "no such image") {
		t.Errorf("an image that cannot be asked: %v", err)
	}
	bad := keptDetector([]control.Detected{{Manager: "pip", Host: "Not A Host", Port: 443}})
	if _, err := bad("pip"); err == nil {
		t.Error("a kept host that is none was taken")
	}
}
