package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/rules/policyfile"
)

// sourceDir says in which directory the credential files are that an instance was started
// with last, also while it is down. It is empty for none.
func (i instance) sourceDir() string { return i.state("credentials.dir") }

// startedWith is that directory, or for an instance that does not tell, the machine's, if
// it is the default one.
func (i instance) startedWith() (string, error) {
	told, err := os.ReadFile(i.sourceDir())
	switch {
	case err == nil && len(told) > 0:
		return string(told), nil
	case i.name == defaultInstance:
		return defaultCredentials, nil
	case err == nil:
		return "", fmt.Errorf("instance %q was started without credential files", i.name)
	default:
		return "", fmt.Errorf("instance %q does not say with which credential files it is started", i.name)
	}
}

// named has credentials of which copies are in force name the files that a person
// edits.
func (i instance) named(creds []policyfile.Credential) []policyfile.Credential {
	dir, err := os.ReadFile(i.sourceDir())
	if err != nil || len(dir) == 0 {
		return creds
	}
	for k := range creds {
		if rest, ok := strings.CutPrefix(creds[k].Where, i.credentials()+"/"); ok {
			creds[k].Where = filepath.Join(string(dir), rest)
		}
	}
	return creds
}

// credentialDir is the directory of the credential files that a command is about: the one
// that it names, or the instance's.
func credentialDir(c *cobra.Command, inst instance) (string, error) {
	dir, err := c.Flags().GetString("credentials")
	if err != nil || dir != "" {
		return dir, err
	}
	if dir, err = inst.startedWith(); err != nil {
		typed := strings.Join(append([]string{c.CommandPath()}, c.Flags().Args()...), " ")
		return "", usage(hint(err, "the directory that it is started with: %s --credentials DIR", typed))
	}
	return dir, nil
}

// instanceCredentials finds the credentials of an instance.
func instanceCredentials(c *cobra.Command) ([]policyfile.Credential, error) {
	return readCredentials(c, credentialDir)
}

// policyCredentials finds the credential files that a policy may grant. Where an instance
// does not say which, as before its first start, they are the machine's.
func policyCredentials(c *cobra.Command) ([]policyfile.Credential, error) {
	return readCredentials(c, func(_ *cobra.Command, inst instance) (string, error) {
		if dir, err := inst.startedWith(); err == nil {
			return dir, nil
		}
		return defaultCredentials, nil
	})
}

// readCredentials reads the files of a directory that a command names, or what is in
// force, or if the instance is down the files of the directory that find tells.
func readCredentials(c *cobra.Command, find func(*cobra.Command, instance) (string, error)) ([]policyfile.Credential, error) {
	dir, err := c.Flags().GetString("credentials")
	if err != nil {
		return nil, err
	}
	if dir != "" {
		if !exists(dir) {
			return nil, usage(fmt.Errorf("credentials: %s does not exist", dir))
		}
		return loadCredentials(dir)
	}
	inst, err := instanceOf(c)
	if err != nil {
		return nil, err
	}
	if creds, err := loadCredentials(inst.credentials()); err != nil || len(creds) > 0 {
		return inst.named(creds), err
	}
	if dir, err = find(c, inst); err != nil {
		return nil, err
	}
	return loadCredentials(dir)
}
