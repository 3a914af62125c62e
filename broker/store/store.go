// Package store keeps secrets in files that are encrypted with age, where only the
// broker's user reads them.
//
// It trusts whoever may write into its directories, the machine's owner and the
// broker. It never writes a secret that is not encrypted, and never leaves half a
// file behind under a name that somebody reads.
package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"filippo.io/age"

	"sallyport/broker/secret"
	"sallyport/control/durable"
	"sallyport/rules/policyfile"
)

// Store is a directory with one file a secret, encrypted to an identity that lies
// in another directory, so that a copy of the secrets alone opens nothing. Both
// belong to the broker's user, mode 0700 and files 0400.
type Store struct {
	Dir, Identity string
	UID, GID      int // who owns what is made; -1 leaves it to whoever makes it
}

// File is where a credential file finds a secret of the store.
func (s Store) File(name string) *policyfile.Age {
	return &policyfile.Age{File: filepath.Join(s.Dir, name+".age"), Identity: s.Identity}
}

// Put encrypts a secret into a file, whole or not at all, making the identity where
// there is none. When it returns without an error, the secret is on the disk.
func (s Store) Put(to *policyfile.Age, v secret.Value) error {
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
func (s Store) recipient(path string) (age.Recipient, error) {
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
func (s Store) write(path string, data []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if s.UID >= 0 {
		if err := os.Chown(dir, s.UID, s.GID); err != nil {
			return fmt.Errorf("writing %s: %w", path, err)
		}
	}
	return durable.Write(path, data, 0o400, durable.Owner{UID: s.UID, GID: s.GID})
}

// Wipe overwrites a secret's file and removes it; one that is not there is no fault.
// File systems that write elsewhere, and copies, are beyond its reach: the identity
// is what opens those.
func Wipe(path string) error {
	// Who owns the file may not write into it (0400), and may say otherwise.
	if err := os.Chmod(path, 0o600); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
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
