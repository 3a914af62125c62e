package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"sallyport/broker/secret"
	"sallyport/broker/source"
	"sallyport/rules/policyfile"
)

// Rotated keeps what a server gave in place of one credential's secret, over a
// restart of the broker.
type Rotated struct {
	store Store
	file  *policyfile.Age
	cfg   source.Config
}

// Rotated returns the place of a credential. cfg is as for its source.
func (s Store) Rotated(credential string, cfg source.Config) *Rotated {
	return &Rotated{s, s.File(credential + "+rotated"), cfg} // no credential has a plus in its name
}

// Load returns what is kept, empty if nothing is. The caller wipes it.
func (r *Rotated) Load(ctx context.Context) (secret.Value, error) {
	if _, err := os.Lstat(r.file.File); errors.Is(err, fs.ErrNotExist) {
		return secret.Value{}, nil
	}
	src, err := source.Open(policyfile.Source{Age: r.file}, r.cfg)
	if err != nil {
		return secret.Value{}, err
	}
	v, err := src.Get(ctx)
	if err != nil {
		return secret.Value{}, fmt.Errorf("%w; if the credential's secret is newer than this file, remove the file", err)
	}
	return v, nil
}

// Save keeps v in place of what was kept before, whole or not at all.
func (r *Rotated) Save(v secret.Value) error { return r.store.Put(r.file, v) }

// Wipe forgets what is kept.
func (r *Rotated) Wipe() error { return Wipe(r.file.File) }
