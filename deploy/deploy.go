// Package deploy knows where this machine keeps the container stack and which versions are new enough.
//
// The shell scripts beside it install the stack; the programs that use it ask this package, so that
// both read the same list. It trusts the file system of the host. It never runs a program: whoever
// wants a tool's version asks the tool and hands the answer to AtLeast.
package deploy

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Where setup.sh puts things.
const (
	toolDir  = "/var/lib/sallyport/tools/bin"
	imageDir = "/var/lib/sallyport/images"
)

// ErrNotFound is returned by Find and Image; errors.Is tells it from a broken installation.
var ErrNotFound = errors.New("not found")

//go:embed floors.txt
var floors string

// Floors returns the oldest accepted version of each part, by name: containerd, runc, nerdctl, runsc, kernel.
func Floors() map[string]string {
	m := make(map[string]string)
	for line := range strings.Lines(floors) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 2 {
			panic(fmt.Sprintf("deploy: floors.txt: %q is not a name and a version", line))
		}
		m[fields[0]] = fields[1]
	}
	return m
}

// AtLeast reports whether the version in what a tool says of itself, e.g. "runc version 1.5.3", is floor
// or later. A text without a version is not, and neither is a pre-release of floor itself.
func AtLeast(said, floor string) bool {
	have, pre := parseVersion(said)
	want, _ := parseVersion(floor)
	if len(have) == 0 || len(want) == 0 {
		return false
	}
	for i := range max(len(have), len(want)) {
		if h, w := at(have, i), at(want, i); h != w {
			return h > w
		}
	}
	return !pre
}

func at(numbers []uint64, i int) uint64 {
	if i < len(numbers) {
		return numbers[i]
	}
	return 0
}

// parseVersion finds the first word that is a version: digits and dots, after an optional "v" or a name
// and a dash, as in "release-20260905.0". pre tells that more follows, as in "1.5.3-rc.1".
func parseVersion(said string) (numbers []uint64, pre bool) {
	for word := range strings.FieldsSeq(said) {
		word = strings.TrimPrefix(strings.TrimPrefix(word, "release-"), "v")
		number, rest, dashed := strings.Cut(word, "-")
		if numbers = parseNumbers(number); numbers != nil {
			return numbers, dashed && isPreRelease(rest)
		}
	}
	return nil, false
}

// parseNumbers returns nil if s is anything but numbers with dots between them.
func parseNumbers(s string) []uint64 {
	var numbers []uint64
	for part := range strings.SplitSeq(s, ".") {
		n, err := strconv.ParseUint(part, 10, 64)
		if err != nil {
			return nil
		}
		numbers = append(numbers, n)
	}
	return numbers
}

// isPreRelease tells 1.5.3-rc.1 from a distribution's 1.5.3-2 and a kernel's 6.1.0-28-amd64.
func isPreRelease(s string) bool {
	for _, p := range []string{"rc", "beta", "alpha", "pre", "dev"} {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// ToolDirs returns the directories in which Find looks, in order: $SALLYPORT_TOOLS, the one that setup
// fills, and those of $PATH. Relative ones are left out: what runs must not depend on where one stands.
func ToolDirs() []string {
	dirs := append([]string{os.Getenv("SALLYPORT_TOOLS"), toolDir}, filepath.SplitList(os.Getenv("PATH"))...)
	kept := dirs[:0]
	for _, dir := range dirs {
		if filepath.IsAbs(dir) {
			kept = append(kept, dir)
		}
	}
	return kept
}

// Find returns the absolute path of a tool, such as containerd or runsc. The error wraps ErrNotFound and
// says what to do.
func Find(tool string) (string, error) {
	if tool != filepath.Base(tool) {
		return "", fmt.Errorf("finding tool %q: %w", tool, fs.ErrInvalid)
	}
	for _, dir := range ToolDirs() {
		path := filepath.Join(dir, tool)
		info, err := os.Stat(path)
		if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("finding %s: %w in $SALLYPORT_TOOLS, %s or $PATH; run `%s`", tool, ErrNotFound, toolDir, target(tool))
}

// target is the make target that installs a tool.
func target(tool string) string {
	if tool == "runsc" {
		return "make setup-hardened"
	}
	return "make setup"
}

// Image returns the path of the archive of an image that setup built, such as "sandbox".
func Image(name string) (string, error) {
	if name != filepath.Base(name) {
		return "", fmt.Errorf("finding image %q: %w", name, fs.ErrInvalid)
	}
	path := filepath.Join(imageDir, name+".tar")
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("finding the image archive %s: %w; run `make setup`", path, ErrNotFound)
	}
	return path, nil
}
