// Package source reads secrets from where they are kept: one file per store,
// each with one [Source].
//
// It trusts the machine's owner, who wrote the document, and the kernel's word on
// who owns a file. It never falls back to a value that was good before unless the
// document says so, and never puts a secret, or what a store answered, into an
// error.
package source

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"sallyport/broker/secret"
	"sallyport/rules/policyfile"
)

// MaxLen bounds a secret. A key file of a large cloud is about 2.4 KiB.
const MaxLen = 16 << 10

// MinLen is the shortest secret: a shorter one can be guessed, and could not be
// told from other text in a response.
const MinLen = 8

// Source gives one secret. It is safe for use by many goroutines.
type Source interface {
	// Get returns the secret as it is now. The caller wipes it. An error names
	// the store and what to do, never the secret.
	Get(context.Context) (secret.Value, error)
	// String names the store for people.
	String() string
}

// Config is what sources need to know of the process that they run in.
type Config struct {
	// UID is the user who may own a secret's file, beside root: the broker's own.
	UID uint32
	// User is that user's name, for hints. The default is its number.
	User string
	// LookupEnv reads the broker's environment. The default finds nothing.
	LookupEnv func(string) (string, bool)
	// Transport is the broker's way out to stores on the network; nil refuses
	// the sources that need one. It verifies its peers and follows no redirect.
	Transport http.RoundTripper
	// Now is the clock; it is required.
	Now func() time.Time
}

// Open returns the source that a credential document describes. It does not read
// the secret.
func Open(s policyfile.Source, cfg Config) (*Kept, error) {
	if cfg.Now == nil {
		return nil, errors.New("source: no clock")
	}
	src, err := open(s, cfg)
	if err != nil {
		return nil, err
	}
	return &Kept{src: src, keep: s.KeepOnError, now: cfg.Now}, nil
}

func open(s policyfile.Source, cfg Config) (Source, error) {
	if cfg.LookupEnv == nil {
		cfg.LookupEnv = func(string) (string, bool) { return "", false }
	}
	if cfg.User == "" {
		cfg.User = fmt.Sprint(cfg.UID)
	}
	var made []Source
	var errs []error
	add := func(set bool, open func() (Source, error)) {
		if !set {
			return
		}
		src, err := open()
		made, errs = append(made, src), append(errs, err)
	}
	add(s.None, func() (Source, error) { return none{}, nil })
	add(s.File != "", func() (Source, error) { return newFile(s.File, cfg) })
	add(s.Env != "", func() (Source, error) { return newEnv(s.Env, cfg) })
	add(s.Systemd != "", func() (Source, error) { return newSystemd(s.Systemd, cfg) })
	add(len(s.Exec) > 0, func() (Source, error) { return newExec(s.Exec, cfg) })
	add(s.Age != nil, func() (Source, error) { return newAge(*s.Age, cfg) })
	add(s.Vault != nil, func() (Source, error) { return newVault(*s.Vault, cfg) })
	add(s.Kubernetes != nil, func() (Source, error) { return newKubernetes(*s.Kubernetes, cfg) })
	switch {
	case len(made) == 0:
		return nil, errors.New("a credential needs a source: file, env, systemd, exec, age, vault, kubernetes or none")
	case len(made) > 1:
		return nil, errors.New("a credential has one source, not several")
	}
	return made[0], errs[0]
}

// finish makes a secret of what a store held: one line end is taken off its
// end, as editors and echo put it there; anything else is kept for the scheme
// to judge. It takes b over.
func finish(b []byte) (secret.Value, error) {
	n := len(b)
	if n > 0 && b[n-1] == '\n' {
		n--
		if n > 0 && b[n-1] == '\r' {
			n--
		}
	}
	clear(b[n:])
	b = b[:n]
	switch {
	case n == 0:
		return secret.Value{}, errors.New("it is empty")
	case strings.TrimSpace(string(b)) == "":
		return secret.Value{}, errors.New("it holds only blanks")
	case n > MaxLen:
		clear(b)
		return secret.Value{}, fmt.Errorf("it is longer than %d octets", MaxLen)
	case n < MinLen:
		clear(b)
		return secret.Value{}, fmt.Errorf("the secret is shorter than %d octets", MinLen)
	}
	return secret.New(b), nil
}

// readAll reads at most MaxLen octets from a file into one buffer, so that no
// copy of a secret is left behind by growing.
func readAll(f *os.File) ([]byte, error) {
	buf := make([]byte, MaxLen+3) // two for a line end, one to see that there is more
	n := 0
	for n < len(buf) {
		k, err := f.Read(buf[n:])
		n += k
		if k == 0 {
			if err != nil && !isEOF(err) {
				clear(buf)
				return nil, err
			}
			break
		}
	}
	if n == len(buf) {
		clear(buf)
		return nil, fmt.Errorf("it is longer than %d octets", MaxLen)
	}
	out := append(make([]byte, 0, n), buf[:n]...)
	clear(buf[:n])
	return out, nil
}
