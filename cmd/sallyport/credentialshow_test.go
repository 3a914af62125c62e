package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestShowNamesTheFileThatAPersonEdits, and not the copy that the daemons read.
func TestShowNamesTheFileThatAPersonEdits(t *testing.T) {
	st := newStage(t)
	st.must(os.WriteFile(st.inst.sourceDir(), []byte("/etc/acme/credentials"), 0o600))
	creds, err := loadCredentials(st.inst.credentials())
	st.must(err)
	if len(creds) == 0 || !strings.HasPrefix(creds[0].Where, st.inst.credentials()) {
		t.Fatalf("in force: %+v", creds)
	}
	at := strings.TrimPrefix(creds[0].Where, st.inst.credentials())
	if got := st.inst.named(creds)[0].Where; got != filepath.Join("/etc/acme/credentials", at) {
		t.Errorf("it is said to be %q", got)
	}
	st.must(os.Remove(st.inst.sourceDir()))
	creds, err = loadCredentials(st.inst.credentials())
	st.must(err)
	if got := st.inst.named(creds)[0].Where; !strings.HasPrefix(got, st.inst.credentials()) {
		t.Errorf("of an instance that does not tell, it is said to be %q", got)
	}
}
