package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/audit/query"
)

// asAlice has commands believe that alice typed sudo.
func asAlice(t *testing.T) {
	t.Helper()
	t.Setenv("SUDO_USER", "alice")
	t.Setenv("SUDO_UID", "1000")
	t.Setenv("SUDO_GID", "1000")
}

// TestChangesOfCredentialsAreRecorded: who did what and when, also of what is done
// while the instance is down.
func TestChangesOfCredentialsAreRecorded(t *testing.T) {
	asAlice(t)
	st := newStage(t)
	down := st.up()
	do := func(args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		args = append(args, "--instance", st.inst.name)
		if code := run(t.Context(), args, strings.NewReader(""), &out, &errs); code != 0 {
			t.Fatalf("%v: exit %d: %s%s", args, code, out.String(), errs.String())
		}
		return out.String()
	}
	told := func() (list []string) {
		t.Helper()
		for _, r := range st.records(audit.CredentialChange) {
			if r.Credential != "api" || !strings.Contains(string(r.Data), `"uid":1000,"at":"2`) {
				t.Errorf("%+v", r)
			}
			list = append(list, query.What(&r))
		}
		return list
	}
	creds := st.path("creds")
	do("credential", "test", "api")
	if list := told(); len(list) != 0 {
		t.Errorf("nothing was changed: %q", list)
	}
	do("credential", "revoke", "api", "--credentials", creds)
	do("credential", "rotate", "api", "--credentials", creds)
	want := []string{"revoked api by alice", "rotated api by alice"}
	if list := told(); !slices.Equal(list, want) {
		t.Errorf("%q, want %q", list, want)
	}
	down()
	if out := do("credential", "revoke", "api", "--credentials", creds); !strings.Contains(out, "recorded with the next: "+st.inst.typed("up")) {
		t.Errorf("down: %s", out)
	}
	if list := told(); !slices.Equal(list, want) {
		t.Errorf("down: %q", list)
	}
	for range 2 { // as each start does
		st.must(st.inst.tellChanges(t.Context()))
		if list := told(); !slices.Equal(list, append(slices.Clone(want), "revoked api by alice")) {
			t.Errorf("after the next start: %q", list)
		}
	}
}

// TestRotateFailsOnWhatTheBrokerCannotUse, and is good once the file is mended.
func TestRotateFailsOnWhatTheBrokerCannotUse(t *testing.T) {
	st := newStage(t)
	defer st.up()()
	for _, tt := range []struct {
		mode os.FileMode
		code int
		says string
	}{{0o644, 1, "but the broker cannot use it: "}, {0o400, 0, ""}} {
		st.must(os.Chmod(st.path("token"), tt.mode))
		var out, errs bytes.Buffer
		args := []string{"credential", "rotate", "api", "--instance", st.inst.name, "--credentials", st.path("creds")}
		if code := run(t.Context(), args, strings.NewReader(""), &out, &errs); code != tt.code || !strings.Contains(errs.String(), tt.says) {
			t.Errorf("mode %o: exit %d, want %d: %s%s", tt.mode, code, tt.code, out.String(), errs.String())
		}
	}
}

// TestLiveTestThatIsRefusedIsRecordedAsRefused, also after it was admitted.
func TestLiveTestThatIsRefusedIsRecordedAsRefused(t *testing.T) {
	st := newStageWith(t, func(st *stage) { st.resolves("203.0.113.7") })
	defer st.up()()
	in := tryIn{Cell: "test-a", Run: "R", Credential: "api", Method: "GET", Path: "/v1/x", Private: []string{"203.0.113.0/24"}} // and no grant
	if _, err := st.gateway.try(t.Context(), in); err == nil {
		t.Fatal("sent without a grant")
	}
	done := st.records(audit.Done)
	if len(done) != 1 || done[0].Verdict != "deny" || done[0].Reason != "credential_mismatch" || done[0].Run != "R" {
		t.Errorf("%+v", done)
	}
}
