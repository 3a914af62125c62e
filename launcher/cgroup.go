package launcher

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// counters are what the kernel has counted of a sandbox, as one of the two
// versions of control groups tells. Zero is not known.
type counters struct {
	Memory   int64 // octets at the peak
	CPU      time.Duration
	PIDs     int   // at the peak
	OOMKills int64 // processes killed because there was no memory left
	PIDsHit  int64 // processes that could not be made
}

// readCounters reads a cell's cgroup and those of its containers. The peaks are
// of the parent, which outlives them; version 1 counts kills where they happen
// and does not add them up.
func readCounters(group string) counters {
	var c counters
	if unified() {
		dir := filepath.Join(cgroupRoot, group)
		c.Memory = number(filepath.Join(dir, "memory.peak"))
		c.CPU = time.Duration(field(filepath.Join(dir, "cpu.stat"), "usage_usec")) * time.Microsecond
		c.PIDs = int(number(filepath.Join(dir, "pids.peak")))
		c.OOMKills = field(filepath.Join(dir, "memory.events"), "oom_kill")
		c.PIDsHit = field(filepath.Join(dir, "pids.events"), "max")
		return c
	}
	c.Memory = number(filepath.Join(cgroupRoot, "memory", group, "memory.max_usage_in_bytes"))
	c.CPU = time.Duration(number(filepath.Join(cgroupRoot, "cpuacct", group, "cpuacct.usage")))
	c.PIDs = int(number(filepath.Join(cgroupRoot, "pids", group, "pids.peak")))
	for _, path := range children(filepath.Join(cgroupRoot, "memory", group)) {
		c.OOMKills += field(filepath.Join(path, "memory.oom_control"), "oom_kill")
	}
	for _, path := range children(filepath.Join(cgroupRoot, "pids", group)) {
		c.PIDsHit += field(filepath.Join(path, "pids.events"), "max")
	}
	return c
}

// unified says whether the controllers are in the one hierarchy of version 2.
func unified() bool {
	_, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers"))
	return err == nil
}

// children are a cgroup and those in it.
func children(dir string) []string {
	var out []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			out = append(out, path)
		}
		return nil
	})
	return out
}

func number(path string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// field is a number of a file with "name number" lines.
func field(path, name string) int64 {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), name+" "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}

// cgroups lists the directories of a group in every hierarchy.
func cgroups(group string) []string {
	var out []string
	if path := filepath.Join(cgroupRoot, group); isDir(path) {
		out = append(out, path)
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return out
	}
	for _, e := range entries {
		if path := filepath.Join(cgroupRoot, e.Name(), group); e.IsDir() && isDir(path) {
			out = append(out, path)
		}
	}
	return out
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// groupsOf lists the cells of an instance that have a cgroup.
func groupsOf(instance string) []string {
	var ids []string
	for _, pattern := range []string{filepath.Join(cgroupRoot, instance+"-*"), filepath.Join(cgroupRoot, "*", instance+"-*")} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			continue
		}
		for _, path := range paths {
			id := strings.TrimPrefix(filepath.Base(path), instance+"-")
			if cellID.MatchString(id) && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// removeCgroups kills what is left in a group and removes it. Its containers are
// gone by then, or should be: this is the host making sure.
func removeCgroups(group string) error {
	var errs []error
	for _, top := range cgroups(group) {
		dirs := children(top)
		slices.Reverse(dirs) // innermost first
		for _, dir := range dirs {
			if err := removeCgroup(dir); err != nil {
				errs = append(errs, fmt.Errorf("removing cgroup %s: %w", dir, err))
			}
		}
	}
	return errors.Join(errs...)
}

func removeCgroup(dir string) error {
	for empty := false; ; {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		killed, err := killGroup(dir)
		if err != nil {
			return err
		}
		if !killed && empty {
			return unix.EBUSY
		}
		empty = !killed // by now: what was in it may just have ended by itself
	}
}

// killGroup kills every process of a cgroup and waits until it is gone. It says
// whether there was one.
func killGroup(dir string) (bool, error) {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return false, err
	}
	found := false
	for line := range strings.Lines(string(data)) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil || pid <= 1 {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			found = found || errors.Is(err, unix.ESRCH)
			continue
		}
		found = true
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 5000)
		_ = unix.Close(fd)
	}
	return found, nil
}

// noProcesses says whether a group and those in it are empty.
func noProcesses(group string) bool {
	for _, top := range cgroups(group) {
		for _, dir := range children(top) {
			if data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err == nil && len(data) > 0 {
				return false
			}
		}
	}
	return true
}
