package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sallyport/control"
)

// TestHalfAPolicyIsReplaced: what a full disk, or the machine's end, left under a
// policy's digest does not stand in for the policy.
func TestHalfAPolicyIsReplaced(t *testing.T) {
	dir := t.TempDir()
	p := &policy{digest: "sha256:" + strings.Repeat("ab", 32), text: []byte("apiVersion: sallyport/v1\n")}
	path := control.PolicyPath(dir, p.digest)
	must(t, os.MkdirAll(filepath.Dir(path), 0o750))
	for _, left := range []string{"", "apiVersion: sal", string(p.text)} {
		must(t, os.WriteFile(path, []byte(left), 0o640))
		must(t, keepPolicy(dir, p))
		got, err := os.ReadFile(path)
		must(t, err)
		if string(got) != string(p.text) {
			t.Errorf("%q became %q", left, got)
		}
	}
}

// TestFormattedFileStaysItsOwners: also if it is root that formats it.
func TestFormattedFileStaysItsOwners(t *testing.T) {
	name := filepath.Join(t.TempDir(), "policy.yaml")
	must(t, os.WriteFile(name, []byte("old"), 0o600))
	must(t, os.Chown(name, 1234, 1235))
	must(t, replaceFile(name, []byte("new")))
	info, err := os.Stat(name)
	must(t, err)
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Uid != 1234 || st.Gid != 1235 || info.Mode() != 0o600 {
		t.Errorf("it is %v of %d:%d", info.Mode(), st.Uid, st.Gid)
	}
}
