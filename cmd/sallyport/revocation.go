package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sallyport/control/durable"
)

// A credential that was revoked has a mark, which goes with the next secret, and a
// generation, which stays: grants of another one have ended for good (ADR-0057).

func (i instance) revoked(name string) string { return i.state("revoked", name) }

func (i instance) generationFile(name string) string { return i.state("generations", name) }

// isRevoked reports whether a credential was revoked. Where that cannot be told, or
// which grants it ended, it is taken to be.
func (i instance) isRevoked(name string) bool {
	_, err := os.Lstat(i.revoked(name))
	_, unknown := i.readGeneration(name)
	return !errors.Is(err, fs.ErrNotExist) || unknown != nil
}

// generation returns the generation of a credential that is in force: "" until it is
// revoked for the first time.
func (i instance) generation(name string) string {
	g, err := i.readGeneration(name)
	if err != nil {
		return "unknown" // isRevoked says that nobody gets it
	}
	return g
}

func (i instance) readGeneration(name string) (string, error) {
	b, err := os.ReadFile(i.generationFile(name))
	switch text := strings.TrimSpace(string(b)); {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err == nil && text == "":
		return "", fmt.Errorf("%s is empty", i.generationFile(name))
	default:
		return text, err
	}
}

// revoke marks a credential, and begins another generation of it: whoever takes the
// mark away, and however, gives it to nobody who had it.
func (i instance) revoke(name string) error {
	if err := errors.Join(writeDurably(i.revoked(name), ""), i.nextGeneration(name)); err != nil {
		return fmt.Errorf("revoking: %w", err)
	}
	return nil
}

// unrevoke takes a mark away. An earlier version made it without a generation.
func (i instance) unrevoke(name string) error {
	if _, err := os.Lstat(i.revoked(name)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := i.nextGeneration(name); err != nil {
		return fmt.Errorf("taking a revocation back: %w", err)
	}
	return errors.Join(ignoreMissing(os.Remove(i.revoked(name))), durable.SyncDir(filepath.Dir(i.revoked(name))))
}

func (i instance) nextGeneration(name string) error {
	return writeDurably(i.generationFile(name), rand.Text()+"\n")
}

// writeDurably writes a file that everybody may read, whole or not at all, so that it
// outlives the machine's end too.
func writeDurably(path, text string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return durable.Write(path, []byte(text), 0o644, durable.Writer)
}
