package launcher_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// system is all that a run may leave behind: what is ours, by name, path or
// membership, of everything that the machine has.
type system struct {
	Netns, Links, Rules, Mounts, Cgroups, Processes, Containers, Files, Engine, Gateway []string
}

var packets = regexp.MustCompile(`\[\d+:\d+\]`)

func snapshot(t *testing.T) system {
	t.Helper()
	var s system
	s.Netns = glob(t, "/run/netns/"+instance+"*")
	s.Links = inGateway(t, "ip", "-o", "link")
	for i, line := range s.Links {
		s.Links[i] = strings.Fields(line)[1]
	}
	for _, line := range inGateway(t, "iptables-save") {
		if !strings.HasPrefix(line, "#") {
			s.Rules = append(s.Rules, packets.ReplaceAllString(line, ""))
		}
	}
	for line := range strings.Lines(read(t, "/proc/self/mountinfo")) {
		if strings.Contains(line, shared.StateDir) || strings.Contains(line, shared.RunDir) || strings.Contains(line, "/run/netns/"+instance) {
			s.Mounts = append(s.Mounts, strings.Fields(line)[4])
		}
	}
	slices.Sort(s.Mounts)
	s.Cgroups = append(glob(t, "/sys/fs/cgroup/"+instance+"*"), glob(t, "/sys/fs/cgroup/*/"+instance+"*")...)
	s.Processes = processes(t)
	found, err := shared.engine.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		s.Containers = append(s.Containers, f.ID)
	}
	s.Files = files(t)
	s.Engine = slices.Concat(glob(t, "/run/containerd/runc/"+instance+"/*"), glob(t, "/run/containerd/runsc/"+instance+"/*"),
		glob(t, filepath.Join(shared.RunDir, "containerd", "io.containerd.runtime.v2.task", instance, "*")))
	s.Engine = slices.DeleteFunc(s.Engine, func(p string) bool { return filepath.Base(p) == "null-netns" })
	s.Gateway = shared.gateway.left()
	return s
}

// same compares with a system of before. A process that was told to end takes a
// moment, and none of them can be waited for by name: the comparison is repeated
// until it holds, for a while.
func same(t *testing.T, before system) {
	t.Helper()
	d := cmp.Diff(before, snapshot(t), cmpopts.EquateEmpty())
	for range 20 {
		if d == "" {
			return
		}
		d = cmp.Diff(before, snapshot(t), cmpopts.EquateEmpty())
	}
	t.Errorf("the system differs (-before +after):\n%s", d)
}

func inGateway(t *testing.T, args ...string) []string {
	t.Helper()
	out, err := exec.Command("nsenter", append([]string{"--net=/run/netns/" + instance}, args...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// processes are those in a cgroup of ours or with a path of ours on their command
// line: nerdctl, the shim, the runtime, the sandbox. Ours and containerd are not
// among them.
func processes(t *testing.T) (out []string) {
	t.Helper()
	for _, dir := range glob(t, "/proc/[0-9]*") {
		cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it is gone
		cgroup, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		if _, state, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(state, "Z") {
			continue // it has ended: whose child it is, the machine's init perhaps, has still to ask how
		}
		args := strings.Split(string(cmdline), "\x00")
		ours := strings.Contains(string(cgroup), "/"+instance+"-")
		for _, a := range args {
			ours = ours || strings.HasPrefix(a, shared.RunDir) || strings.HasPrefix(a, shared.StateDir)
		}
		if !ours || filepath.Base(args[0]) == "containerd" || fmt.Sprintf("/proc/%d", os.Getpid()) == dir {
			continue
		}
		out = append(out, strings.Join(args, " "))
	}
	slices.Sort(out)
	return out
}

// files are those below the instance's directories, but for the engine's own, the
// cache of images and the counter of indices.
func files(t *testing.T) (out []string) {
	t.Helper()
	for _, dir := range []string{shared.RunDir, shared.StateDir} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil // it is gone
			}
			rel := strings.TrimPrefix(path, filepath.Dir(shared.RunDir))
			switch rel {
			case "/run/containerd", "/state/containerd", "/state/images":
				return fs.SkipDir
			case "/state/cells/next":
				return nil
			}
			if !strings.HasPrefix(rel, "/state/nerdctl/") || strings.Count(rel, "/") > 4 {
				out = append(out, rel)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}
