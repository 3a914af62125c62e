package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sallyport/broker/secret"
)

// systemd reads a credential that the service manager put into
// $CREDENTIALS_DIRECTORY (systemd.exec(5), LoadCredential=). The manager grants
// the service's user by an access list, so that owner and mode say nothing;
// the directory is trusted if nobody else may write to it.
type systemd struct {
	name   string
	lookup func(string) (string, bool)
}

func newSystemd(name string, cfg Config) (Source, error) {
	if name == "" || strings.ContainsAny(name, "/\x00") || strings.HasPrefix(name, ".") {
		return nil, fmt.Errorf("source systemd %q is not the name of a credential", name)
	}
	return systemd{name, cfg.LookupEnv}, nil
}

func (s systemd) String() string { return "systemd credential " + s.name }

func (s systemd) Get(context.Context) (secret.Value, error) {
	v, err := s.get()
	if err != nil {
		return secret.Value{}, fmt.Errorf("reading systemd credential %q: %w", s.name, err)
	}
	return v, nil
}

func (s systemd) get() (secret.Value, error) {
	dir, ok := s.lookup("CREDENTIALS_DIRECTORY")
	if !ok || !filepath.IsAbs(dir) {
		return secret.Value{}, errors.New("the broker was started without one; put LoadCredential= into its unit")
	}
	f, err := os.OpenFile(filepath.Join(dir, s.name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return secret.Value{}, errors.New("it cannot be opened; is LoadCredential= for it in the broker's unit?")
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil:
		return secret.Value{}, errors.Unwrap(err)
	case !fi.Mode().IsRegular():
		return secret.Value{}, errors.New("it is not a regular file")
	case fi.Mode().Perm()&0o037 != 0:
		return secret.Value{}, fmt.Errorf("its mode is %04o, so that others can reach it", fi.Mode().Perm())
	}
	b, err := readAll(f)
	if err != nil {
		return secret.Value{}, err
	}
	return finish(b)
}
