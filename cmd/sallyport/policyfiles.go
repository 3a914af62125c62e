package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"sallyport/rules/near"
	"sallyport/rules/policyfile"
)

// policyFiles reads the policy files that a command names. What is the same for
// all of them is read once.
type policyFiles struct {
	creds  []policyfile.Credential
	floor  string // file, "" for none
	narrow string // file, "" for none
	detect policyfile.Detector
	stop   func() error
}

// newPolicyFiles reads what the flags of a command name beside its files.
func newPolicyFiles(c *cobra.Command) (*policyFiles, error) {
	creds, err := policyCredentials(c)
	if err != nil {
		return nil, err
	}
	floor, err := c.Flags().GetString("floor")
	if err != nil {
		return nil, err
	}
	narrow, err := c.Flags().GetString("narrow")
	if err != nil {
		return nil, err
	}
	root, err := c.Flags().GetString("detect-root")
	if err != nil {
		return nil, err
	}
	d, err := newDetector(root)
	if err != nil {
		return nil, err
	}
	return &policyFiles{creds, floor, narrow, d.find, c.Context().Err}, nil
}

// read reads a policy with everything that its file says. As of
// [policyfile.ReadPolicy], there can be a result beside an error.
func (f *policyFiles) read(path string) (*policyfile.PolicyFile, error) {
	p, err := readPolicy(policySource{path: path, floor: f.floor, narrow: f.narrow, detect: f.detect, stop: f.stop}, f.creds)
	if err != nil {
		return p, usage(err)
	}
	return p, nil
}

// readPolicyFile reads one policy for a command.
func readPolicyFile(c *cobra.Command, path string) (*policyfile.PolicyFile, error) {
	files, err := newPolicyFiles(c)
	if err != nil {
		return nil, err
	}
	p, err := files.read(path)
	return p, noFile(err)
}

// noFile tells of an error that is about a file which cannot be read, and of nothing
// else, what may have been meant.
func noFile(err error) error {
	if _, placed := errors.AsType[policyfile.Errors](err); placed {
		return err
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return usage(policyfile.Errors{{File: e.Path, Text: whyNoFile(e)}})
	}
	return err
}

// problems returns every error in err with the place that it is about: path, if
// it names none itself.
func problems(path string, err error) policyfile.Errors {
	if err == nil {
		return nil
	}
	switch e := err.(type) { //nolint:errorlint // the tree is taken apart step by step
	case policyfile.Errors:
		return e
	case *fs.PathError:
		return policyfile.Errors{{File: e.Path, Text: whyNoFile(e)}}
	case interface{ Unwrap() []error }:
		var all policyfile.Errors
		for _, one := range e.Unwrap() {
			all = append(all, problems(path, one)...)
		}
		return all
	}
	if inner := errors.Unwrap(err); inner != nil && hasProblems(inner) {
		return problems(path, inner)
	}
	return policyfile.Errors{{File: path, Text: err.Error()}}
}

// whyNoFile says why a file cannot be read, and which may have been meant.
func whyNoFile(e *fs.PathError) string {
	dir := filepath.Dir(e.Path)
	if info, err := os.Stat(e.Path); err == nil && info.IsDir() {
		return "it is a directory; name the files in it: " + filepath.Join(e.Path, "*.yaml")
	}
	if !errors.Is(e.Err, fs.ErrNotExist) {
		return e.Err.Error()
	}
	var known []string
	entries, _ := os.ReadDir(dir) // without it, none is near
	for _, x := range entries {
		known = append(known, x.Name())
	}
	if best, _ := near.Word(filepath.Base(e.Path), known); best != "" {
		return fmt.Sprintf("there is no such file; did you mean %q?", filepath.Join(dir, best))
	}
	return "there is no such file"
}

// hasProblems reports an error that says itself what it is about.
func hasProblems(err error) bool {
	_, placed := errors.AsType[policyfile.Errors](err)
	_, missing := errors.AsType[*fs.PathError](err)
	return placed || missing
}

// verdict is how a command ends that was asked about several files: with what is
// wrong with them, unless that is told already; with 1 if the answer is no.
func verdict(wrong policyfile.Errors, ok, told bool) error {
	switch {
	case len(wrong) > 0 && told:
		return &exitError{code: exitUsage}
	case len(wrong) > 0:
		return usage(wrong)
	case !ok:
		return &exitError{code: exitFailed}
	default:
		return nil
	}
}
