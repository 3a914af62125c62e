package nerdctl_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/launcher/nerdctl"
)

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// fake makes an engine whose nerdctl is a script, and whose containerd accepts
// connections if it is to be there.
func fake(t *testing.T, script string, up bool) *nerdctl.Engine {
	t.Helper()
	return fakeIn(t, t.TempDir(), script, up)
}

func fakeIn(t *testing.T, dir, script string, up bool) *nerdctl.Engine {
	t.Helper()
	tool := filepath.Join(dir, "nerdctl")
	if err := os.WriteFile(tool, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	if up {
		ln, err := net.Listen("unix", filepath.Join(dir, "containerd.sock"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
	}
	e, err := nerdctl.New(nerdctl.Config{
		Instance: "test", RunDir: dir, StateDir: dir,
		Tools: nerdctl.Tools{Nerdctl: tool, Containerd: "/bin/false", Runc: "/bin/false", Runsc: "/opt/runsc"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func container() *nerdctl.Container {
	return &nerdctl.Container{
		Name: "abcdefgh", Hostname: "abcdefgh", Image: digest, Netns: "/run/netns/sp-abcdefgh", Cell: "abcdefgh", Run: "01J", User: "1000:1000",
		Command: []string{"/.sallyport/guest", "guest"}, Binds: []nerdctl.Bind{{Source: "/s", Target: "/t"}},
		Tmpfs: []nerdctl.Tmpfs{{Target: "/tmp", Size: 4096}}, Memory: 1 << 27, CPUs: 0.5, PIDs: 10, NoFile: 20,
		CgroupParent: "/test-abcdefgh", CIDFile: "/r/cid", TempDir: "/r/tmp",
	}
}

// CT-12: nothing that a container is made of is read as an option.
func TestRunRefuses(t *testing.T) {
	tests := []struct {
		name string
		mend func(c *nerdctl.Container)
	}{
		{"name is an option", func(c *nerdctl.Container) { c.Name = "--net=host" }},
		{"name has a newline", func(c *nerdctl.Container) { c.Name = "a\nb" }},
		{"host name is an option", func(c *nerdctl.Container) { c.Hostname = "-v" }},
		{"image is a mount", func(c *nerdctl.Container) { c.Image = "-v/:/h" }},
		{"image is a name", func(c *nerdctl.Container) { c.Image = "alpine" }},
		{"network is the host's", func(c *nerdctl.Container) { c.Netns = "host" }},
		{"network is a container's", func(c *nerdctl.Container) { c.Netns = "container:x" }},
		{"network has an option", func(c *nerdctl.Container) { c.Netns = "/run/netns/a,b" }},
		{"root", func(c *nerdctl.Container) { c.User = "0:0" }},
		{"root by name", func(c *nerdctl.Container) { c.User = "root" }},
		{"root's group is a name", func(c *nerdctl.Container) { c.User = "1000:root" }},
		{"no user", func(c *nerdctl.Container) { c.User = "" }},
		{"no memory limit", func(c *nerdctl.Container) { c.Memory = 0 }},
		{"no CPU limit", func(c *nerdctl.Container) { c.CPUs = 0 }},
		{"no process limit", func(c *nerdctl.Container) { c.PIDs = -1 }},
		{"no limit of open files", func(c *nerdctl.Container) { c.NoFile = 0 }},
		{"no command", func(c *nerdctl.Container) { c.Command = nil }},
		{"command is an option", func(c *nerdctl.Container) { c.Command = []string{"-c"} }},
		{"mount of everything", func(c *nerdctl.Container) { c.Binds[0].Source = "/" }},
		{"mount over everything", func(c *nerdctl.Container) { c.Binds[0].Target = "/" }},
		{"mount with an option", func(c *nerdctl.Container) { c.Binds[0].Target = "/t:rw" }},
		{"mount by a way round", func(c *nerdctl.Container) { c.Binds[0].Source = "/s/../.." }},
		{"tmpfs with an option", func(c *nerdctl.Container) { c.Tmpfs[0].Target = "/tmp:suid" }},
		{"tmpfs without a size", func(c *nerdctl.Container) { c.Tmpfs[0].Size = 0 }},
		{"no file for the id", func(c *nerdctl.Container) { c.CIDFile = "" }},
		{"zero container", func(c *nerdctl.Container) { *c = nerdctl.Container{} }},
	}
	e := fake(t, "echo started; exit 0", true)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := container()
			test.mend(c)
			if p, err := e.Run(c); err == nil {
				p.Stop()
				p.Close()
				t.Error("Run succeeded")
			}
		})
	}
}

func TestRunArguments(t *testing.T) {
	e := fake(t, `for a in "$@"; do echo "$a"; done; echo --; env | grep -v ^PWD= | cut -d= -f1 | sort; exit 3`, true)
	t.Setenv("HTTP_PROXY", "http://example.com")
	t.Setenv("CONTAINERD_NAMESPACE", "other")
	for _, hardened := range []bool{false, true} {
		c := container()
		c.Hardened = hardened
		p, err := e.Run(c)
		if err != nil {
			t.Fatal(err)
		}
		out, err := io.ReadAll(p.Stdout)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Err(); err == nil {
			t.Error("Err = nil, want exit status 3")
		}
		p.Close()
		args, env, _ := strings.Cut(string(out), "\n--\n")
		_, args, _ = strings.Cut(args, "\nrun\n")
		runtime := "--runtime /opt/runsc "
		if !hardened {
			runtime = ""
		}
		want := "--rm --interactive --pull never --log-driver none --name abcdefgh --hostname abcdefgh --cidfile /r/cid " +
			"--label sallyport.instance=test --label sallyport.cell=abcdefgh --label sallyport.run=01J --ipc private --cgroupns private " +
			"--read-only --cap-drop ALL --security-opt no-new-privileges --user 1000:1000 --memory 134217728 --memory-swap 134217728 " +
			"--cpus 0.500 --pids-limit 10 --ulimit nofile=20:20 --ulimit core=0:0 --workdir / --entrypoint /.sallyport/guest " +
			"--network ns:/run/netns/sp-abcdefgh --cgroup-parent /test-abcdefgh " + runtime + "--volume /s:/t:ro " +
			"--tmpfs /tmp:rw,exec,nosuid,nodev,size=4096,mode=1777 " + digest + " guest"
		if d := cmp.Diff(strings.Fields(want), strings.Fields(args)); d != "" {
			t.Errorf("arguments (-want +got):\n%s", d)
		}
		wantEnv := []string{"HOME", "LC_ALL", "NERDCTL_TOML", "PATH", "SALLYPORT_LAUNCHER_CELL", "TMPDIR", "TZ"}
		if d := cmp.Diff(wantEnv, slices.DeleteFunc(strings.Fields(env), func(s string) bool { return s == "_" || s == "OLDPWD" || s == "SHLVL" })); d != "" {
			t.Errorf("environment (-want +got):\n%s", d)
		}
	}
}

// CT-04: no network plugin has a part in a sandbox's network, so that none can be too
// old: nerdctl finds neither a plugin nor a configuration, whatever the host has.
func TestNoPluginIsUsed(t *testing.T) {
	e := fake(t, `for a in "$@"; do echo "$a"; done; env`, true)
	t.Setenv("CNI_PATH", "/opt/cni/bin")
	t.Setenv("NETCONFPATH", "/etc/cni/net.d")
	for _, netns := range []string{"", "/run/netns/sp-abcdefgh"} {
		c := container()
		c.Netns = netns
		p, err := e.Run(c)
		if err != nil {
			t.Fatal(err)
		}
		out, err := io.ReadAll(p.Stdout)
		if err := errors.Join(err, p.Err()); err != nil {
			t.Fatal(err)
		}
		p.Close()
		said := strings.Split(string(out), "\n")
		following := func(flag string) string { return said[slices.Index(said, flag)+1] }
		for _, flag := range []string{"--cni-path", "--cni-netconfpath"} {
			if dir := following(flag); !filepath.IsAbs(dir) {
				t.Errorf("%s is %q", flag, dir)
			} else if _, err := os.ReadDir(dir); err == nil {
				t.Errorf("%s %s is there", flag, dir)
			}
		}
		if network := following("--network"); network != "none" && network != "ns:"+netns {
			t.Errorf("network %q", network)
		}
		if strings.Contains(string(out), "/etc/cni") || strings.Contains(string(out), "/opt/cni") {
			t.Errorf("nerdctl is told of the host's plugins: %s", out)
		}
	}
}

func TestHardenedNeedsRunsc(t *testing.T) {
	dir := t.TempDir()
	e, err := nerdctl.New(nerdctl.Config{
		Instance: "test", RunDir: dir, StateDir: dir,
		Tools: nerdctl.Tools{Nerdctl: "/bin/true", Containerd: "/bin/true", Runc: "/bin/true"},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := container()
	c.Hardened = true
	if _, err := e.Run(c); err == nil || !strings.Contains(err.Error(), "make setup-hardened") {
		t.Errorf("Run = %v", err)
	}
}

// CT-07: what nerdctl prints is data, and its exit status decides.
func TestImage(t *testing.T) {
	inspect := func(config, digests string) string {
		return fmt.Sprintf("cat <<'END'\n[{\"Id\":\"x\",\"RepoDigests\":[%s],\"Config\":%s}]\nEND\n", digests, config)
	}
	good := `"a/b@` + digest + `"`
	tests := []struct {
		name, image, script string
		up                  bool
		want                *nerdctl.Image
		is                  error
		text                string
	}{
		{"not a name", "-v/:/h", "exit 0", true, nil, nerdctl.ErrNoImage, "not a name"},
		{"no name", "", "exit 0", true, nil, nerdctl.ErrNoImage, "not a name"},
		{"not there", "a", `[ "$14$15" = "" ]; case "$*" in *inspect*) echo "no such image: a" >&2; exit 1;; esac; echo b:1; echo c:2`, true, nil, nerdctl.ErrNoImage, "there are b:1, c:2; add one from an archive with `sallyport image load FILE`"},
		{"not there and none at all", "a", `case "$*" in *inspect*) echo "[]";; esac`, true, nil, nerdctl.ErrNoImage, "there is none yet"},
		{"text says not found and status says fine", "a", "echo 'no such image' >&2; " + inspect("{}", good), true, &nerdctl.Image{Name: "a", Digest: digest}, nil, ""},
		{"containerd is gone", "a", "exit 1", false, nil, nerdctl.ErrNoEngine, "sallyport up"},
		{"garbage", "a", "echo hello", true, nil, nil, "inspecting image"},
		{"nothing", "a", "exit 0", true, nil, nil, "inspecting image"},
		{"two values", "a", inspect("{}", good) + "echo []", true, nil, nil, "something follows"},
		{"without end", "a", "head -c 9000000 /dev/zero", true, nil, nil, "printed too much"},
		{"no digest", "a", inspect("{}", ""), true, nil, nil, "no digest"},
		{"strange digest", "a", inspect("{}", `"a@sha256:../../x"`), true, nil, nil, "no digest"},
		{"label of nerdctl", "a", inspect(`{"Labels":{"nerdctl/state-dir":"/"}}`, good), true, nil, nil, "would steer the engine"},
		{"label of the restart monitor", "a", inspect(`{"Labels":{"containerd.io/restart.loguri":"binary:///bin/sh"}}`, good), true, nil, nil, "would steer the engine"},
		{"label of ours", "a", inspect(`{"Labels":{"Sallyport.Cell":"x"}}`, good), true, nil, nil, "would steer the engine"},
		{"volume over everything", "a", inspect(`{"Volumes":{"/":{}}}`, good), true, nil, nil, "volume"},
		{"volume over the guest", "a", inspect(`{"Volumes":{"/.sallyport/x":{}}}`, good), true, nil, nil, "volume"},
		{"volume over /etc", "a", inspect(`{"Volumes":{"/var/../etc":{}}}`, good), true, nil, nil, "volume"},
		{"relative volume", "a", inspect(`{"Volumes":{"data":{}}}`, good), true, nil, nil, "volume"},
		{"volume with an option", "a", inspect(`{"Volumes":{"/data:rw":{}}}`, good), true, nil, nil, "volume"},
		{
			"good", "a/b:1", inspect(`{"User":"7:8","Entrypoint":["e"],"Cmd":["c"],"WorkingDir":"/w","Volumes":{"/var/lib/x/":{}},"Labels":{"org.opencontainers.image.title":"x"},"New":1}`, good), true,
			&nerdctl.Image{Name: "a/b:1", Digest: digest, User: "7:8", Entrypoint: []string{"e"}, Cmd: []string{"c"}, Dir: "/w", Volumes: []string{"/var/lib/x"}}, nil, "",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := fake(t, test.script, test.up).Image(t.Context(), test.image)
			if test.want != nil {
				if d := cmp.Diff(test.want, got); d != "" || err != nil {
					t.Errorf("Image (-want +got):\n%s%v", d, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.text) || test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("Image = %+v, %v, want %q", got, err, test.text)
			}
		})
	}
}

func TestList(t *testing.T) {
	id := strings.Repeat("ab", 32)
	got, err := fake(t, "echo "+id+" abcdefgh; echo "+id, true).List(t.Context())
	if d := cmp.Diff([]nerdctl.Found{{ID: id, Cell: "abcdefgh"}, {ID: id}}, got); d != "" || err != nil {
		t.Errorf("List (-want +got):\n%s%v", d, err)
	}
	if got, err := fake(t, "echo WARNING something", true).List(t.Context()); err == nil {
		t.Errorf("List = %v, want an error", got)
	}
}

// TestSweepEndsShims: the shim of a container that is gone is ended, whoever left it;
// that of one that is there, and those of other instances, are not.
func TestSweepEndsShims(t *testing.T) {
	here, gone := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
	dir := t.TempDir()
	e := fakeIn(t, dir, "echo "+here+" abcdefgh", true)
	socket := filepath.Join(dir, "containerd.sock")
	ended := map[string]chan struct{}{}
	for name, args := range map[string][]string{
		"of a container that is gone":  {"-namespace", "test", "-id", gone, "-address", socket},
		"of a container that is there": {"-namespace", "test", "-id", here, "-address", socket},
		"of another instance":          {"-namespace", "other", "-id", gone, "-address", socket},
		"of another containerd":        {"-namespace", "test", "-id", gone, "-address", "/run/other.sock"},
	} {
		cmd := exec.CommandContext(t.Context(), "/bin/sh")
		cmd.Args = append([]string{"/opt/containerd-shim-runc-v2", "-c", "read x"}, args...)
		_, err := cmd.StdinPipe()
		if err = errors.Join(err, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		is := make(chan struct{})
		ended[name] = is
		go func() {
			_ = cmd.Wait()
			close(is)
		}()
	}
	if err := e.SweepAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-ended["of a container that is gone"]
	for name, is := range ended {
		select {
		case <-is:
			if name != "of a container that is gone" {
				t.Errorf("the shim %s was ended", name)
			}
		default:
		}
	}
}

func TestRemoveRefuses(t *testing.T) {
	for _, id := range []string{"", "-f", "abc", "../x", "*"} {
		if err := fake(t, "exit 0", true).Remove(t.Context(), id); err == nil {
			t.Errorf("Remove(%q) succeeded", id)
		}
	}
}

func TestLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.tar")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, archive, script, want string }{
		{"missing", "/nowhere.tar", "exit 0", "no such file"},
		{"directory", "/tmp", "exit 0", "is not a file"},
		{"broken", file, "echo 'unexpected EOF' >&2; exit 1", `exit status 1: "unexpected EOF"`},
		{"good", file, "exit 0", ""},
	}
	for _, test := range tests {
		err := fake(t, test.script, true).Load(t.Context(), test.archive)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: Load = %v, want %q", test.name, err, test.want)
		}
	}
}

func TestConfig(t *testing.T) {
	good := nerdctl.Config{
		Instance: "test", RunDir: "/run/test", StateDir: "/var/lib/test",
		Tools: nerdctl.Tools{Nerdctl: "/bin/n", Containerd: "/bin/c", Runc: "/bin/r"},
	}
	if _, err := nerdctl.New(good); err != nil {
		t.Errorf("New = %v", err)
	}
	for name, mend := range map[string]func(*nerdctl.Config){
		"zero":              func(c *nerdctl.Config) { *c = nerdctl.Config{} },
		"instance":          func(c *nerdctl.Config) { c.Instance = "A/b" },
		"relative":          func(c *nerdctl.Config) { c.RunDir = "run" },
		"colon":             func(c *nerdctl.Config) { c.StateDir = "/var/a:b" },
		"space":             func(c *nerdctl.Config) { c.RunDir = "/run/a b" },
		"long socket":       func(c *nerdctl.Config) { c.RunDir = "/run/" + strings.Repeat("x", 100) },
		"tool from PATH":    func(c *nerdctl.Config) { c.Tools.Nerdctl = "nerdctl" },
		"missing runc":      func(c *nerdctl.Config) { c.Tools.Runc = "" },
		"unclean directory": func(c *nerdctl.Config) { c.RunDir = "/run/../x" },
	} {
		c := good
		mend(&c)
		if _, err := nerdctl.New(c); err == nil {
			t.Errorf("%s: New succeeded", name)
		}
	}
}

// A containerd that does not come up says why, and leaves nothing running.
func TestContainerdFails(t *testing.T) {
	dir := t.TempDir()
	tool := filepath.Join(dir, "containerd")
	if err := os.WriteFile(tool, []byte("#!/bin/sh\necho 'cannot open database' >&2; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := nerdctl.StartContainerd(t.Context(), nerdctl.Config{
		Instance: "test", RunDir: dir, StateDir: dir,
		Tools: nerdctl.Tools{Nerdctl: tool, Containerd: tool, Runc: tool},
	})
	if err == nil || !strings.Contains(err.Error(), "cannot open database") {
		t.Errorf("StartContainerd = %v", err)
	}
}
