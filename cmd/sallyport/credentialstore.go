package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sallyport/broker/secret"
	"sallyport/broker/source"
	"sallyport/rules/policyfile"
)

// secretStore is where the commands keep secrets: one file each, encrypted with
// age to an identity that lies in another directory, so that a copy of the
// secrets alone opens nothing. Both belong to the broker's user, mode 0700 and
// files 0400.
type secretStore struct {
	dir, identity string
	uid, gid      int // who owns what is made; -1 leaves it to whoever makes it
}

func (i instance) secrets() string         { return i.state("secrets") }
func (i instance) secretsIdentity() string { return i.state("secrets-key", "identity") }
func (i instance) revoked(name string) string {
	return i.state("revoked", name)
}

// isRevoked reports whether a credential was revoked. Where that cannot be told
// it is taken to be.
func (i instance) isRevoked(name string) bool {
	_, err := os.Lstat(i.revoked(name))
	return !errors.Is(err, fs.ErrNotExist)
}

func addStore(c *cobra.Command) {
	c.Flags().String("store", "", "directory of the encrypted secrets; default: the instance's, below /var/lib")
}

// storeOf returns the store that a command is about. With --store the identity is
// in a directory beside it.
func storeOf(c *cobra.Command, inst instance) (secretStore, error) {
	dir, err := c.Flags().GetString("store")
	if err != nil {
		return secretStore{}, err
	}
	who, accountErr := lookupAccounts()
	if dir != "" {
		dir, err = filepath.Abs(dir)
		s := secretStore{dir: dir, identity: filepath.Join(dir+"-key", "identity"), uid: -1, gid: -1}
		if accountErr == nil && os.Geteuid() == 0 {
			s.uid, s.gid = who.broker.uid, who.broker.gid
		}
		return s, err
	}
	if err := errors.Join(mustRoot("credential "+c.Name()), accountErr); err != nil {
		return secretStore{}, err
	}
	return secretStore{inst.secrets(), inst.secretsIdentity(), who.broker.uid, who.broker.gid}, nil
}

// source is where a credential file finds a secret of the store.
func (s secretStore) source(name string) *policyfile.Age {
	return &policyfile.Age{File: filepath.Join(s.dir, name+".age"), Identity: s.identity}
}

// put encrypts a secret into the file that a credential names, whole or not at
// all, making the identity where there is none.
func (s secretStore) put(to *policyfile.Age, v secret.Value) error {
	id, err := s.recipient(to.Identity)
	if err != nil {
		return fmt.Errorf("identity %s: %w", to.Identity, err)
	}
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, id)
	if err != nil {
		return fmt.Errorf("encrypting the secret: %w", err)
	}
	_, err = w.Write(v.Reveal())
	if err := errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("encrypting the secret: %w", err)
	}
	return s.write(to.File, sealed.Bytes())
}

// recipient reads the identity, or makes it.
func (s secretStore) recipient(path string) (age.Recipient, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		id, err := age.GenerateX25519Identity()
		if err != nil {
			return nil, err
		}
		return id.Recipient(), s.write(path, []byte(id.String()+"\n"))
	}
	if err != nil {
		return nil, err
	}
	defer clear(text)
	ids, err := age.ParseIdentities(bytes.NewReader(text))
	if err != nil || len(ids) == 0 {
		return nil, errors.New("it is not an age identity file") // the parser quotes what it read
	}
	switch id := ids[0].(type) {
	case *age.X25519Identity:
		return id.Recipient(), nil
	case *age.HybridIdentity:
		return id.Recipient(), nil
	default:
		return nil, errors.New("its first identity is of a kind that this program does not encrypt to; use age itself")
	}
}

// write puts a file where only the broker reads it.
func (s secretStore) write(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // gone already once it is renamed
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(0o400))
	if s.uid >= 0 {
		err = errors.Join(err, tmp.Chown(s.uid, s.gid), os.Chown(filepath.Dir(path), s.uid, s.gid))
	}
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return os.Rename(tmp.Name(), path)
}

// wipe overwrites a secret's file and removes it. File systems that write
// elsewhere, and copies, are beyond its reach: the identity is what opens those.
func wipe(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		_, err = f.Write(make([]byte, info.Size()))
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("wiping %s: %w", path, err)
	}
	return os.Remove(path)
}

// askSecret reads a secret: from a terminal without echo, or all of a pipe. One
// line end at its end is taken off.
func askSecret(in io.Reader, prompt io.Writer, name string) (secret.Value, error) {
	f, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		b, err := io.ReadAll(io.LimitReader(in, source.MaxLen+3))
		if err != nil {
			return secret.Value{}, fmt.Errorf("reading the secret: %w", err)
		}
		return oneSecret(b)
	}
	fmt.Fprintf(prompt, "secret of %s (it is not shown; several lines come through a pipe): ", name)
	b, err := term.ReadPassword(int(f.Fd()))
	fmt.Fprintln(prompt)
	if err != nil {
		return secret.Value{}, fmt.Errorf("reading the secret: %w", err)
	}
	return oneSecret(b)
}

func oneSecret(b []byte) (secret.Value, error) {
	b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	switch {
	case strings.TrimSpace(string(b)) == "":
		return secret.Value{}, errors.New("the secret is empty")
	case len(b) < source.MinLen:
		return secret.Value{}, fmt.Errorf("the secret is shorter than %d octets", source.MinLen)
	case len(b) > source.MaxLen:
		return secret.Value{}, fmt.Errorf("the secret is longer than %d octets", source.MaxLen)
	}
	return secret.New(b), nil
}
