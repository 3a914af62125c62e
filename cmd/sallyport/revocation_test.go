package main

import (
	"os"
	"testing"
)

// TestRevocationIsKept: each revocation begins a generation that outlives its mark, and
// one that cannot be read revokes.
func TestRevocationIsKept(t *testing.T) {
	st := newStage(t)
	const name = "api"
	begun := st.inst.generation(name)
	if begun != "" || st.inst.isRevoked(name) {
		t.Fatalf("never revoked: generation %q, revoked %v", begun, st.inst.isRevoked(name))
	}
	st.must(st.inst.unrevoke(name)) // as each rotation does
	if g := st.inst.generation(name); g != begun {
		t.Errorf("a rotation without a revocation ends grants: %q", g)
	}
	seen := map[string]bool{begun: true}
	next := func(what string) {
		t.Helper()
		g := st.inst.generation(name)
		if seen[g] {
			t.Errorf("%s: generation %q was in force before", what, g)
		}
		seen[g] = true
	}
	for range 2 {
		st.must(st.inst.revoke(name))
		next("revoked")
		st.must(st.inst.unrevoke(name))
		next("taken back")
	}
	st.must(st.inst.revoke(name))
	st.must(os.Remove(st.inst.revoked(name)))
	next("the mark taken away by hand")
	if st.inst.isRevoked(name) {
		t.Error("twin: revoked without a mark")
	}
	st.must(os.WriteFile(st.inst.generationFile(name), nil, 0o600))
	if !st.inst.isRevoked(name) {
		t.Error("not revoked although nobody knows what has ended")
	}
}
