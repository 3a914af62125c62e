package launcher

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sallyport/control"
	"sallyport/launcher/guest"
	"sallyport/launcher/nerdctl"
)

// Spec is a run to be made.
type Spec struct {
	Image     string
	Isolation Isolation
	Policy    Policy
	// Credentials that the policy's rules use.
	Credentials []string

	Argv []string // after the image's entrypoint; empty is the image's own command
	Code *Code    // run instead of the image's entrypoint, with Argv as its arguments
	Env  []string // NAME=value
	Dir  string   // where the work starts; default /workspace or the image's

	Workspace string // directory whose files are copied to /workspace
	Export    string // directory that gets a copy of /workspace at the end; must be empty or not there

	Limits Limits
	Asker  Asker

	// Stdin is the work's; nil is none. A Read of it may outlive the run.
	Stdin io.Reader
	// Stdout and Stderr get what the work writes as it does; nil drops it. The
	// result has it as well.
	Stdout, Stderr io.Writer
}

// Isolation is what stands between a sandbox and the kernel. The zero Isolation
// is refused.
type Isolation string

// The isolations.
const (
	Container Isolation = "container" // runc: namespaces, seccomp, no capability
	Hardened  Isolation = "hardened"  // gVisor: a kernel of its own
)

// Policy is what a run is under: its source, which the gateway compiles again,
// and the digest that it is known by.
type Policy struct {
	Name   string
	Digest string
	Source []byte
	// Origin, if not nil, is kept in the cell file for who reads the policy again.
	Origin *control.Origin
}

// Code is a program to run.
type Code struct {
	Name string // of the file; the extension says what runs it
	Data []byte
}

// Asker is on whose behalf a run is made. Exported files are its own.
type Asker struct {
	User string `json:"user"`
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
}

// Limits of a run. A zero field is the default.
type Limits struct {
	Memory    int64         `json:"memory"`    // octets, tmpfs and all; 1 GiB
	CPUs      float64       `json:"cpus"`      // 1
	PIDs      int           `json:"pids"`      // 256
	NoFile    int           `json:"nofile"`    // 1024
	Tmp       int64         `json:"tmp"`       // octets of /tmp; 256 MiB
	Workspace int64         `json:"workspace"` // octets of /workspace; 512 MiB
	Output    int64         `json:"output"`    // octets of stdout and stderr; 16 MiB
	Time      time.Duration `json:"time"`      // wall clock; 10 min
}

const (
	mib = 1 << 20
	// grace is between SIGTERM and SIGKILL.
	grace = 2 * time.Second
	// maxFiles bounds how many files go in or come out.
	maxFiles = 20000
	// maxCode and maxEnv keep a spec within a frame.
	maxCode = 8 * mib
	maxEnv  = 256 << 10
	maxArgv = 256 << 10
)

func (l Limits) withDefaults() (Limits, error) {
	err := errors.Join(
		limit("memory", &l.Memory, 1024*mib, 64*mib, 1<<40),
		limit("cpus", &l.CPUs, 1, 0.05, 1024),
		limit("pids", &l.PIDs, 256, 16, 1<<20),
		limit("nofile", &l.NoFile, 1024, 32, 1<<20),
		limit("tmp", &l.Tmp, 256*mib, mib, 1<<40),
		limit("workspace", &l.Workspace, 512*mib, mib, 1<<40),
		limit("output", &l.Output, 16*mib, 1, 1<<30),
		limit("time", &l.Time, 10*time.Minute, 100*time.Millisecond, 30*24*time.Hour),
	)
	return l, err
}

func limit[T int | int64 | float64 | time.Duration](name string, v *T, normal, least, most T) error {
	if *v == 0 {
		*v = normal
	}
	// A NaN is neither.
	if !(*v >= least && *v <= most) {
		return fmt.Errorf("limit of %s is %v: want %v to %v", name, *v, least, most)
	}
	return nil
}

// interpreters run code by its extension.
var interpreters = map[string]string{".py": "python3", ".sh": "sh", ".js": "node"}

var codeName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// SpecError says that a run cannot be made as it was asked for. Nothing was made.
type SpecError struct{ Err error }

// Error implements error.
func (e *SpecError) Error() string { return "refusing the run: " + e.Err.Error() }

// Unwrap returns every fault.
func (e *SpecError) Unwrap() error { return e.Err }

// check refuses what cannot be run, before anything is made. It fills in limits.
func (s *Spec) check() error {
	limits, err := s.Limits.withDefaults()
	s.Limits = limits
	return errors.Join(err, s.checkPolicy(), s.checkWork(), checkEnv(s.Env), s.checkFiles())
}

func (s *Spec) checkPolicy() error {
	var errs []error
	if s.Image == "" {
		errs = append(errs, errors.New("an image is required"))
	}
	if s.Isolation != Container && s.Isolation != Hardened {
		errs = append(errs, fmt.Errorf("isolation %q: want %q or %q", s.Isolation, Container, Hardened))
	}
	if len(s.Policy.Source) == 0 || !nerdctl.IsDigest(s.Policy.Digest) {
		errs = append(errs, errors.New("a policy with its digest is required"))
	}
	return errors.Join(errs...)
}

func (s *Spec) checkWork() error {
	var errs []error
	size := 0
	for _, a := range s.Argv {
		size += len(a) + 1
		if strings.ContainsRune(a, 0) {
			errs = append(errs, errors.New("an argument has a zero octet"))
		}
	}
	if size > maxArgv {
		errs = append(errs, fmt.Errorf("arguments of %d octets: at most %d", size, maxArgv))
	}
	if s.Dir != "" && (!path.IsAbs(s.Dir) || strings.ContainsRune(s.Dir, 0)) {
		errs = append(errs, fmt.Errorf("directory %q: want an absolute path", s.Dir))
	}
	if s.Code == nil {
		return errors.Join(errs...)
	}
	if !codeName.MatchString(s.Code.Name) || len(s.Code.Name) > 100 || interpreters[path.Ext(s.Code.Name)] == "" {
		errs = append(errs, fmt.Errorf("code %q: want a plain name that ends in .py, .sh or .js", s.Code.Name))
	}
	if len(s.Code.Data) > maxCode {
		errs = append(errs, fmt.Errorf("code of %d octets: at most %d", len(s.Code.Data), maxCode))
	}
	return errors.Join(errs...)
}

func (s *Spec) checkFiles() error {
	var errs []error
	if s.Workspace != "" {
		info, err := os.Stat(s.Workspace)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("workspace: %w", err))
		case !info.IsDir():
			errs = append(errs, fmt.Errorf("workspace %s is not a directory", s.Workspace))
		case s.Code != nil:
			if _, err := os.Lstat(filepath.Join(s.Workspace, s.Code.Name)); err == nil {
				errs = append(errs, fmt.Errorf("workspace %s has a %s of its own: run it as a command instead", s.Workspace, s.Code.Name))
			}
		}
	}
	if s.Export != "" {
		errs = append(errs, checkExport(s.Export))
	}
	return errors.Join(errs...)
}

// checkExport wants an empty directory or none. What comes out of a sandbox must
// not replace a file that is there: a hook, a configuration, the policy itself.
func checkExport(dir string) error {
	names, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(filepath.Dir(filepath.Clean(dir))); err != nil {
			return fmt.Errorf("export: %w", err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if len(names) > 0 {
		return fmt.Errorf("export: %s is not empty: name a new directory", dir)
	}
	return nil
}

// bounds of the files that go in and come out: what /workspace holds.
func (s *Spec) bounds() guest.Bounds { return guest.Bounds{Bytes: s.Limits.Workspace, Files: maxFiles} }

// argv is the work.
func (s *Spec) argv(entrypoint, cmd []string) []string {
	switch {
	case s.Code != nil:
		return append([]string{interpreters[path.Ext(s.Code.Name)], path.Join(workspaceDir, s.Code.Name)}, s.Argv...)
	case len(s.Argv) > 0:
		return append(slices.Clone(entrypoint), s.Argv...)
	}
	return append(slices.Clone(entrypoint), cmd...)
}
