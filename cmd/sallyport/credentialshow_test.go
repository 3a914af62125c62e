package main

import (
	"bytes"
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

// TestCommandsFindTheFilesOfAnInstanceThatIsDown, and ask which those are where it never
// said: the machine's are the default instance's, and nobody else's.
func TestCommandsFindTheFilesOfAnInstanceThatIsDown(t *testing.T) {
	st := newStage(t)
	st.must(os.RemoveAll(st.inst.credentials())) // as all that is in /run
	do := func(args string, code int, wants ...string) {
		t.Helper()
		var out, errs bytes.Buffer
		line := append(strings.Fields("credential "+args), "--instance", st.inst.name)
		got := run(t.Context(), line, strings.NewReader("another-secret-0002\n"), &out, &errs)
		for _, want := range wants {
			if got != code || !strings.Contains(out.String()+errs.String(), want) {
				t.Errorf("%s: exit %d, want %d and %q: %s%s", args, got, code, want, out.String(), errs.String())
			}
		}
	}
	const add = "add other-of-a-test --type bearer --host other.example.com"
	api := st.path("creds/api.yaml")
	do("ls -o json", 0, st.path("creds/api.yaml"))
	do("show api -o json", 0, api)
	do("revoke api -o json", 0, api, `"broker": "not up"`)
	do("rotate api -o json", 0, api)
	do(add+" -o json", 0, st.path("creds/other-of-a-test.yaml"))
	for _, recorded := range []string{"an empty file", "nothing"} {
		st.must(os.WriteFile(st.inst.sourceDir(), nil, 0o600))
		if recorded == "nothing" {
			st.must(os.Remove(st.inst.sourceDir()))
		}
		for _, args := range []string{"ls", "show api", "revoke api", "rotate api", "add third-of-a-test"} {
			do(args, 2, st.inst.name, "credential files", "hint: the directory that it is started with: "+st.inst.typed("credential "+args+" --credentials DIR"))
		}
	}
	if exists(st.inst.state("secrets", "third-of-a-test.age")) || exists(st.inst.revoked("api")) {
		t.Error("something was done to credentials that nobody knows")
	}
	do("revoke api -o json --credentials "+st.path("creds"), 0, api)
}

// TestUpSaysWhichCredentialFiles, as a path that leads there from anywhere.
func TestUpSaysWhichCredentialFiles(t *testing.T) {
	st := newStage(t)
	t.Chdir(st.dir)
	s := newSupervisor(st.inst, &st.said, &st.said)
	st.must(os.Mkdir("others", 0o755))
	st.must(s.stageCredentials("others"))
	told, err := os.ReadFile(st.inst.sourceDir())
	if err != nil || string(told) != st.path("others") {
		t.Errorf("it says %q, %v", told, err)
	}
	st.write("others/bad.yaml", "no credential")
	if err := s.stageCredentials("others"); err == nil {
		t.Error("a bad file is taken")
	}
}
