package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"

	"sallyport/control"
	"sallyport/control/regular"
	"sallyport/proxy/dial"
	"sallyport/rules"
	"sallyport/rules/policyfile"
)

// maxConfig bounds every file that a person writes.
const maxConfig = 4 << 20

const (
	defaultConfig      = "/etc/sallyport/config.yaml"
	defaultFloor       = "/etc/sallyport/floor.yaml"
	defaultCredentials = "/etc/sallyport/credentials" //nolint:gosec // a directory, not a credential
	demoImage          = "sallyport/sandbox:latest"
)

var errTooLarge = errors.New("larger than 4 MiB")

// readFile reads a regular file of at most maxConfig octets. The policyfile
// package does no I/O of its own.
func readFile(path string) ([]byte, error) {
	f, _, err := regular.Open(path)
	if errors.Is(err, regular.ErrNot) {
		return nil, usage(err)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxConfig {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errTooLarge}
	}
	return data, nil
}

// beingWritten reports whether some process has a file open for writing: no lease
// to read it is given then (fcntl(2), F_SETLEASE). It is false where that cannot be
// told, as on file systems without leases.
func beingWritten(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false // whoever reads it is told
	}
	defer f.Close() // with it the lease ends
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	return errors.Is(err, unix.EAGAIN)
}

// policy is a policy that was read: its text is the effective policy, which its
// digest is of.
type policy struct {
	name   string // metadata.name
	digest string
	text   []byte
	rules  *rules.Policy
	file   *policyfile.PolicyFile
}

// loadPolicy reads a policy file as a person named it.
func loadPolicy(src policySource, creds []policyfile.Credential) (*policy, error) {
	p, err := readPolicy(src, creds)
	if _, told := errors.AsType[*hintError](err); !told && errors.Is(err, fs.ErrNotExist) {
		return nil, usage(hint(err, "sallyport policy lint %s", src.path))
	}
	if err != nil {
		return nil, usage(err)
	}
	return &policy{name: p.Name, digest: p.Policy.Digest(), text: p.Effective, rules: p.Policy, file: p}, nil
}

// policySource is where a policy is read from.
type policySource struct {
	path   string
	floor  string            // file that it stands under, "" for none
	from   string            // file that the floor was made of, "" for the same
	narrow string            // file that narrows it, "" for none
	place  *place            // where it may lie, with all that it is made of; nil for anywhere
	seen   func(path string) // told of every file that is asked for; may be nil
	// detect tells what package managers are configured with; nil detects nothing.
	detect policyfile.Detector
	stop   func() error // ends long proofs with its error; may be nil
}

// readPolicy reads a policy file with all that it includes. What is included
// lies in its directory: no path and no link leads out of it. A file of another
// scope that cannot be read hides no error of the policy's own.
func readPolicy(src policySource, creds []policyfile.Credential) (*policyfile.PolicyFile, error) {
	in, done, err := openInput("policy", src.path, src.seen, src.place)
	defer done()
	errs := []error{err}
	in.Detect, in.Stop = src.detect, src.stop
	for _, other := range []struct {
		what, path string
		dst        **policyfile.Input
	}{{"floor", src.floor, &in.Floor}, {"narrowing a run", src.narrow, &in.Run}} {
		if other.path == "" {
			continue
		}
		place := src.place
		if other.what == "floor" && src.from != "" {
			place = nil // a copy: what it was made of was looked at
		}
		input, done, err := openInput(other.what, other.path, src.seen, place)
		defer done()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		input.Detect = src.detect
		if other.what == "floor" {
			input.From = src.from
		}
		*other.dst = input
	}
	missing := errors.Join(errs...)
	if err != nil {
		return nil, missing
	}
	p, err := policyfile.ReadPolicy(*in, creds)
	if missing != nil {
		return nil, errors.Join(missing, err)
	}
	return p, err
}

// openInput opens a file of a scope, what, and the directory of what it includes;
// done is to be called in any case. place is where they may lie, nil for anywhere.
func openInput(what, path string, seen func(string), place *place) (in *policyfile.Input, done func(), err error) {
	if seen == nil {
		seen = func(string) {}
	}
	seen(path)
	in, done = &policyfile.Input{Name: path}, func() {}
	if in.Data, err = readFile(path); err != nil {
		return in, done, fmt.Errorf("%s: %w", what, err)
	}
	if place != nil {
		if err := place.check(path); err != nil {
			return in, done, fmt.Errorf("%s: %w", what, err)
		}
	}
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return in, done, fmt.Errorf("%s: %w", what, err)
	}
	in.Files = &seenFS{dir.FS(), filepath.Dir(path), seen, place}
	return in, func() { _ = dir.Close() }, nil
}

// readFloor reads a floor by itself. place is where it may lie, nil for anywhere.
func readFloor(path string, creds []policyfile.Credential, place *place) (*policyfile.PolicyFile, error) {
	in, done, err := openInput("floor", path, nil, place)
	defer done()
	if err != nil {
		return nil, err
	}
	return policyfile.ReadFloor(*in, creds)
}

// seenFS is a directory of what is included. It tells which files were asked for,
// also those that are not there, and opens none that lies where it must not.
type seenFS struct {
	fs.FS
	dir   string // its path
	seen  func(path string)
	place *place // nil for anywhere
}

// Open implements [fs.FS].
func (s *seenFS) Open(name string) (fs.File, error) {
	s.seen(filepath.Join(s.dir, name))
	f, err := s.FS.Open(name)
	if err != nil || s.place == nil {
		return f, err
	}
	if err := s.place.checkIncluded(s.dir, name, f, s.FS); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Stat implements [fs.StatFS].
func (s *seenFS) Stat(name string) (fs.FileInfo, error) {
	s.seen(filepath.Join(s.dir, name))
	return fs.Stat(s.FS, name)
}

var digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// loadPolicyByDigest reads a policy that the launcher put in place, and makes
// sure that it is the one that was named.
func loadPolicyByDigest(dir, digest string, creds []policyfile.Credential) (*policy, error) {
	return readByDigest(dir, digest, policyfile.Input{}, creds)
}

// keptPolicy reads a policy that was in force, for those who review: they need
// not be able to read credential files.
func keptPolicy(dir, digest string) (*policy, error) {
	return readByDigest(dir, digest, policyfile.Input{Kept: true}, nil)
}

func readByDigest(dir, digest string, in policyfile.Input, creds []policyfile.Credential) (*policy, error) {
	if !digestPattern.MatchString(digest) {
		return nil, fmt.Errorf("policy %q is not named by a digest", digest)
	}
	path := control.PolicyPath(dir, digest)
	text, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", digest, err)
	}
	if got := policyfile.Digest(text); got != digest {
		return nil, fmt.Errorf("%s has digest %s: it was changed", path, got)
	}
	in.Name, in.Data = path, text
	p, err := policyfile.ReadPolicy(in, creds)
	if err != nil {
		return nil, err
	}
	if p.Policy.Digest() != digest {
		return nil, fmt.Errorf("%s is not the effective policy that it is named after", path)
	}
	return &policy{name: p.Name, digest: digest, text: text, rules: p.Policy, file: p}, nil
}

// loadCredentials reads every credential file in dir; all errors at once.
func loadCredentials(dir string) ([]policyfile.Credential, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	var creds []policyfile.Credential
	var errs []error
	seen := map[string]string{}
	for _, name := range names {
		text, err := readFile(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c, err := policyfile.ParseCredential(name, text)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if other := seen[c.Name]; other != "" {
			errs = append(errs, fmt.Errorf("%s: credential %q is in %s already", c.Where, c.Name, other))
		}
		seen[c.Name] = name
		creds = append(creds, *c)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, usage(err)
	}
	return creds, nil
}

// loadGatewayConfig reads a configuration; a file that is not there is an empty one.
func loadGatewayConfig(path string) (*policyfile.Gateway, error) {
	text, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &policyfile.Gateway{Log: policyfile.Log{Durability: policyfile.DurableProcess}}, nil
	}
	if err != nil {
		return nil, err
	}
	cfg, err := policyfile.ParseGateway(path, text)
	if err != nil {
		return nil, usage(err)
	}
	return cfg, nil
}

// loadRoots returns whom upstreams are verified against.
func loadRoots(inst instance) (*x509.CertPool, error) {
	extra := inst.run("upstream-ca.pem")
	if _, err := os.Stat(extra); errors.Is(err, fs.ErrNotExist) {
		return dial.LoadRoots()
	}
	return dial.LoadRoots(extra)
}
