package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"filippo.io/age"
	"filippo.io/age/armor"
	"golang.org/x/sys/unix"

	"sallyport/broker/secret"
	"sallyport/rules/policyfile"
)

// aged reads a file that is encrypted with age (c2sp.org/age), armored or not,
// anew when either file has changed. The identity's file is held to the rules of a secret
// file; the encrypted one may be anybody's to read.
type aged struct {
	policyfile.Age
	cfg Config
}

func newAge(a policyfile.Age, cfg Config) (Source, error) {
	for _, p := range []string{a.File, a.Identity} {
		if !filepath.IsAbs(p) || filepath.Clean(p) != p {
			return nil, fmt.Errorf("source age %q: write absolute paths of file and identity, without dots", p)
		}
	}
	return aged{a, cfg}, nil
}

func (a aged) String() string { return "age file " + a.File }

func (a aged) stamp() (s stamps, err error) {
	if s[0], err = stampOf(a.File); err == nil {
		s[1], err = stampOf(a.Identity)
	}
	return s, err
}

func (a aged) Get(context.Context) (secret.Value, error) {
	ids, err := a.identities()
	if err != nil {
		return secret.Value{}, fmt.Errorf("reading age identity %q: %w", a.Identity, err)
	}
	b, err := a.open(ids)
	if err != nil {
		return secret.Value{}, fmt.Errorf("reading age file %q: %w", a.File, err)
	}
	v, err := finish(b)
	if err != nil {
		return secret.Value{}, fmt.Errorf("reading age file %q: %w", a.File, err)
	}
	return v, nil
}

func (a aged) identities() ([]age.Identity, error) {
	b, err := readStrict(a.Identity, a.cfg)
	if err != nil {
		return nil, err
	}
	defer clear(b)
	ids, err := age.ParseIdentities(bytes.NewReader(b))
	if err != nil {
		return nil, errors.New("it is not an age identity file") // the parser quotes what it read
	}
	return ids, nil
}

func (a aged) open(ids []age.Identity) ([]byte, error) {
	f, err := os.OpenFile(a.File, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, explainOpen(err, a.File, a.cfg)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	sealed, err := io.ReadAll(io.LimitReader(f, 4*MaxLen))
	if err != nil {
		return nil, err
	}
	var in io.Reader = bytes.NewReader(sealed)
	if bytes.HasPrefix(sealed, []byte(armor.Header)) {
		in = armor.NewReader(in)
	}
	plain, err := age.Decrypt(in, ids...)
	if err != nil { // which may quote what it read
		return nil, errors.New("it is not an age file that the identity opens")
	}
	out := make([]byte, MaxLen+3)
	n, err := io.ReadFull(plain, out)
	switch {
	case err == nil:
		clear(out)
		return nil, fmt.Errorf("it is longer than %d octets", MaxLen)
	case !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF):
		clear(out)
		return nil, errors.New("it is damaged")
	}
	return out[:n], nil
}
