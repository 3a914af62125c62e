package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What reads a log to its end, which may be gigabytes, ends at ^C as a shell expects,
// and takes nothing that it has not seen for an answer.
func TestReadersOfALogEndAtInterrupt(t *testing.T) {
	dir := t.TempDir()
	writeLongLog(t, dir)
	t.Chdir(dir)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	public, err := os.ReadFile("log/log.pub")
	must(t, err)
	must(t, os.WriteFile("audit.pub", public, 0o600))
	must(t, os.WriteFile("policy.yaml", []byte(forensicsPolicy), 0o600))
	var made bytes.Buffer
	if code := run(t.Context(), strings.Fields("audit export --dir log --key audit.pub --bundle good.zip seq<100"), strings.NewReader(""), &made, &made); code != 0 {
		t.Fatalf("no bundle was made: %s", &made)
	}
	for _, command := range []string{
		"audit query --dir log", "audit query --dir log host~nobody", "audit query --dir log --jq .id", "audit query --dir log -o json",
		"audit export --dir log", "audit export --dir log --format parquet --file e.parquet", "audit export --dir log --key audit.pub --bundle b.zip",
		"audit verify --dir log --key audit.pub", "audit verify --key audit.pub --bundle good.zip", "audit prove --dir log --key audit.pub 3",
		"audit body --dir log 01KG929BT0TE78HSNTG4WNE1ZZ --identity nowhere",
		"credential usage x --dir log", "policy suggest --from log",
	} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var out, errs bytes.Buffer
		code := run(ctx, strings.Fields(command), strings.NewReader(""), &out, &errs)
		if code != exitInterrupted || !strings.Contains(errs.String(), "interrupted") || strings.Contains(errs.String(), "no record") {
			t.Errorf("%s, interrupted: exit code %d: %s", command, code, &errs)
		}
	}
	if _, err := os.Stat("b.zip"); err == nil {
		t.Error("half a bundle is left")
	}
}
