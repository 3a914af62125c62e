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

// readFile reads a regular file of at most maxConfig octets. The policyfile
// package does no I/O of its own.
func readFile(path string) ([]byte, error) {
	// Opening a FIFO would wait for whoever writes to it.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) //nolint:gosec // G703: a person's own path
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, usage(errors.Join(err, fmt.Errorf("%s is not a regular file", path)))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	if len(data) > maxConfig {
		return nil, fmt.Errorf("%s is larger than 4 MiB", path)
	}
	return data, nil
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
	if errors.Is(err, fs.ErrNotExist) {
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
	seen   func(path string) // told of every file that is asked for; may be nil
	// detect tells what package managers are configured with; nil detects nothing.
	detect policyfile.Detector
	stop   func() error // ends long proofs with its error; may be nil
}

// readPolicy reads a policy file with all that it includes. What is included
// lies in its directory: no path and no link leads out of it.
func readPolicy(src policySource, creds []policyfile.Credential) (*policyfile.PolicyFile, error) {
	text, err := readFile(src.path)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	dir, err := os.OpenRoot(filepath.Dir(src.path))
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	defer dir.Close()
	files := seenFS{dir.FS(), func(name string) {
		if src.seen != nil {
			src.seen(filepath.Join(filepath.Dir(src.path), name))
		}
	}}
	in := policyfile.Input{Name: src.path, Data: text, Files: files, Detect: src.detect, Stop: src.stop}
	for _, other := range []struct {
		what, path string
		dst        **policyfile.Input
	}{{"floor", src.floor, &in.Floor}, {"narrowing a run", src.narrow, &in.Run}} {
		if other.path == "" {
			continue
		}
		input, done, err := openInput(other.path, src.seen)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", other.what, err)
		}
		defer done()
		input.Detect = src.detect
		if other.what == "floor" {
			input.From = src.from
		}
		*other.dst = input
	}
	return policyfile.ReadPolicy(in, creds)
}

// openInput opens a file of another scope, and the directory of what it includes.
func openInput(path string, seen func(string)) (in *policyfile.Input, done func(), err error) {
	text, err := readFile(path)
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, nil, err
	}
	note := func(string) {}
	if seen != nil {
		seen(path)
		note = func(name string) { seen(filepath.Join(filepath.Dir(path), name)) }
	}
	return &policyfile.Input{Name: path, Data: text, Files: seenFS{dir.FS(), note}}, func() { _ = dir.Close() }, nil
}

// readFloor reads a floor by itself.
func readFloor(path string, creds []policyfile.Credential) (*policyfile.PolicyFile, error) {
	in, done, err := openInput(path, nil)
	if err != nil {
		return nil, fmt.Errorf("floor: %w", err)
	}
	defer done()
	return policyfile.ReadFloor(*in, creds)
}

// seenFS tells which files were asked for, also those that are not there.
type seenFS struct {
	fs.FS
	seen func(name string)
}

// Open implements [fs.FS].
func (s seenFS) Open(name string) (fs.File, error) {
	s.seen(name)
	return s.FS.Open(name)
}

// Stat implements [fs.StatFS].
func (s seenFS) Stat(name string) (fs.FileInfo, error) {
	s.seen(name)
	return fs.Stat(s.FS, name)
}

var digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// loadPolicyByDigest reads a policy that the launcher put in place, and makes
// sure that it is the one that was named.
func loadPolicyByDigest(dir, digest string, creds []policyfile.Credential) (*policy, error) {
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
	p, err := policyfile.ReadPolicy(policyfile.Input{Name: path, Data: text}, creds)
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
