package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/broker/secret"
	"sallyport/broker/source"
	"sallyport/broker/store"
)

func (i instance) secrets() string         { return i.state("secrets") }
func (i instance) secretsIdentity() string { return i.state("secrets-key", "identity") }

// store is where the instance's secrets are kept.
func (i instance) store(who accounts) store.Store {
	return store.Store{Dir: i.secrets(), Identity: i.secretsIdentity(), UID: who.broker.uid, GID: who.broker.gid}
}

func addStore(c *cobra.Command) {
	c.Flags().String("store", "", "directory of the encrypted secrets; default: the instance's, below /var/lib")
}

// storeOf returns the store that a command is about. With --store the identity is
// in a directory beside it.
func storeOf(c *cobra.Command, inst instance) (store.Store, error) {
	dir, err := c.Flags().GetString("store")
	if err != nil {
		return store.Store{}, err
	}
	who, accountErr := lookupAccounts()
	if dir != "" {
		dir, err = filepath.Abs(dir)
		s := store.Store{Dir: dir, Identity: filepath.Join(dir+"-key", "identity"), UID: -1, GID: -1}
		if accountErr == nil && os.Geteuid() == 0 {
			s.UID, s.GID = who.broker.uid, who.broker.gid
		}
		return s, err
	}
	if err := errors.Join(mustRoot("credential "+c.Name()), accountErr); err != nil {
		return store.Store{}, err
	}
	return inst.store(who), nil
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
