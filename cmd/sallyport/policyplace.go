package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// checkPolicyPlace refuses a policy file of a run that somebody else can change:
// it, or a link that it is named by, lies in the directory whose files the
// sandbox gets to work on, or everybody may write it or exchange it. workspace
// is "" for none.
func checkPolicyPlace(path, workspace string) error {
	file, err := resolved(path)
	if err != nil {
		return usage(err)
	}
	if workspace != "" {
		if err := checkOutside(path, file, workspace); err != nil {
			return err
		}
	}
	return checkModes(path, file)
}

// resolved returns an absolute path without links.
func resolved(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	return filepath.Abs(real)
}

func checkOutside(path, file, workspace string) error {
	top, err := resolved(workspace)
	if err != nil {
		return usage(fmt.Errorf("workspace: %w", err))
	}
	named, err := resolved(filepath.Dir(path))
	if err != nil {
		return usage(err)
	}
	for _, p := range []string{file, filepath.Join(named, filepath.Base(path))} {
		if rel, err := filepath.Rel(top, p); err == nil && filepath.IsLocal(rel) {
			return usage(hint(fmt.Errorf("%s lies in the workspace %s, whose files are for the sandbox to change", path, workspace),
				"mv %s SOMEWHERE/ELSE, and name it there", path))
		}
	}
	return nil
}

func checkModes(path, file string) error {
	const others = 0o002
	info, err := os.Stat(file)
	if err != nil {
		return usage(err)
	}
	if info.Mode().Perm()&others != 0 {
		return usage(hint(fmt.Errorf("%s has mode %04o: everybody may write what a sandbox may reach", path, info.Mode().Perm()), "chmod o-w %s", file))
	}
	dir := filepath.Dir(file)
	if info, err = os.Stat(dir); err != nil {
		return usage(err)
	}
	if info.Mode().Perm()&others != 0 && info.Mode()&os.ModeSticky == 0 {
		return usage(hint(fmt.Errorf("%s has mode %04o: everybody may exchange %s", dir, info.Mode().Perm(), filepath.Base(path)), "chmod o-w %s", dir))
	}
	return nil
}
