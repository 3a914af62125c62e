package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestIndexOnAFullDisk: whether there is no room from the beginning or none for all of it,
// the command says where else the index can be.
func TestIndexOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	writeLongLog(t, dir)
	t.Chdir(dir)
	for _, room := range []int{0, 40 << 10} {
		must(t, os.MkdirAll("full", 0o700))
		must(t, unix.Mount("tmpfs", "full", "tmpfs", 0, "size=64k"))
		_ = os.WriteFile(filepath.Join("full", "filler"), make([]byte, 64<<10-room), 0o600)
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"audit", "top", "--dir", "log", "--index", "full/i.db"}, strings.NewReader(""), &out, &errs)
		if code != exitFailed || out.Len() > 0 || !strings.Contains(errs.String(), "hint: sallyport audit top --dir log --index FILE, on a disk with room") {
			t.Errorf("with %d octets: %d, %s, %s", room, code, &out, &errs)
		}
		must(t, unix.Unmount("full", 0))
	}
}

// TestExportToAFullDisk: no half of a file stays in the way of the next try.
func TestExportToAFullDisk(t *testing.T) {
	dir := t.TempDir()
	writeLongLog(t, dir)
	t.Chdir(dir)
	must(t, os.Mkdir("full", 0o700))
	must(t, unix.Mount("tmpfs", "full", "tmpfs", 0, "size=8k"))
	defer func() { must(t, unix.Unmount("full", 0)) }()
	_ = os.WriteFile(filepath.Join("full", "filler"), make([]byte, 8<<10), 0o600)
	for _, format := range []string{"jsonl", "csv", "har", "parquet"} {
		var out, errs bytes.Buffer
		file := filepath.Join("full", "log."+format)
		code := run(t.Context(), []string{"audit", "export", "--dir", "log", "--format", format, "--file", file}, strings.NewReader(""), &out, &errs)
		if code != exitFailed || strings.Count(errs.String(), "no space left") != 1 || !strings.Contains(errs.String(), "hint: sallyport audit export --dir log --file FILE, on a disk with room") {
			t.Errorf("%s: %d, %s, %s", format, code, &out, &errs)
		}
		if exists(file) {
			t.Errorf("%s: a part of it stays", format)
		}
	}
}
