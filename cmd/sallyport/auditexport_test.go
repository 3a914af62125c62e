package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/audit/segment"
)

// TestNoOctetsToATerminal: what is no text goes into a file or a pipe.
func TestNoOctetsToATerminal(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, segment.Name(0)), []byte(`{"v":1,"seq":0,"time":"2027-01-31T12:00:00Z","id":"x","kind":"gap"}`+"\n"), 0o600))
	_, tty := terminal(t)
	export := func(out *os.File, more ...string) (code int, stderr string) {
		var told bytes.Buffer
		code = run(t.Context(), append([]string{"audit", "export", "--dir", dir}, more...), nil, out, &told)
		return code, told.String()
	}
	code, told := export(tty, "--format", "parquet")
	if want := "parquet is no text for a terminal"; code != exitUsage || !strings.Contains(told, want) || !strings.Contains(told, "--file log.parquet, or > log.parquet") {
		t.Errorf("parquet to a terminal: %d, %q, want %q", code, told, want)
	}
	file, err := os.Create(filepath.Join(dir, "out"))
	must(t, err)
	defer file.Close()
	for name, do := range map[string]func() (int, string){
		"text to a terminal": func() (int, string) { return export(tty, "--format", "csv") },
		"to a file, at a terminal": func() (int, string) {
			return export(tty, "--format", "parquet", "--file", filepath.Join(dir, "a.parquet"))
		},
		"to a redirection": func() (int, string) { return export(file, "--format", "parquet") },
	} {
		if code, told := do(); code != 0 {
			t.Errorf("%s: %d, %q", name, code, told)
		}
	}
}
