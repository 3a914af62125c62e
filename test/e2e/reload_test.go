package e2e_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReloadUnderARun is NW-14 with everything real: a sandbox that works meets a
// change of its policy file, one that is refused, and one that mends it.
func TestReloadUnderARun(t *testing.T) {
	file := filepath.Join(w.dir, "policy.yaml")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { write(string(good)) })
	p := startProber(t)
	write(strings.Replace(string(good), "- id: api\n", "- id: api\n    expires: 2020-01-01\n", 1))
	p.expect("odd 403")
	write("rules: [")
	var answer struct {
		Runs []struct {
			Outcome, Error string
		} `json:"runs"`
	}
	out, err := command("policy", "reload", "-o", "json").Output()
	if err == nil {
		t.Errorf("policy reload of a broken file succeeded: %s", out)
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if len(answer.Runs) != 1 || answer.Runs[0].Outcome != "refused" || !strings.Contains(answer.Runs[0].Error, "policy.yaml:1") {
		t.Errorf("policy reload: %s", out)
	}
	if out, err := command("status").CombinedOutput(); err == nil || !strings.Contains(string(out), "stays in force") {
		t.Errorf("status: %v, %s", err, out)
	}
	write(string(good))
	p.expect("out")
	if out, err := command("policy", "reload").CombinedOutput(); err != nil || !strings.Contains(string(out), "unchanged") {
		t.Errorf("mended: %v, %s", err, out)
	}
	found, err := command("audit", "query", "kind=policy.load,policy.refuse", "run!=", "-o", "json").Output()
	if err != nil || strings.Count(string(found), "policy.load") < 2 || !strings.Contains(string(found), "policy.refuse") {
		t.Errorf("records: %v, %s", err, found)
	}
}
