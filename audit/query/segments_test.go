package query_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sallyport/audit/query"
	"sallyport/audit/segment"
)

// TestNoSegmentIsLeftOut: what has a segment's name and cannot be read as one is told,
// and one that is packed while the directory is read is found.
func TestNoSegmentIsLeftOut(t *testing.T) {
	for kind, put := range map[string]func(path string) error{
		"link":   func(path string) error { return os.Symlink("/dev/null", path) },
		"folder": func(path string) error { return os.Mkdir(path, 0o750) },
	} {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, segment.Name(0)), nil, 0o640))
		must(t, put(filepath.Join(dir, segment.PackedName(7))))
		if _, err := query.Segments(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: Segments = %v", kind, err)
		}
	}

	dir := t.TempDir()
	plain, packed := filepath.Join(dir, segment.Name(7)), filepath.Join(dir, segment.PackedName(7))
	must(t, os.WriteFile(plain, nil, 0o640))
	entries, err := os.ReadDir(dir)
	must(t, errors.Join(err, os.WriteFile(packed, []byte("xyz"), 0o640), os.Remove(plain)))
	s, ok, err := query.SegmentFile(dir, entries[0])
	if want := (query.Segment{First: 7, Path: packed, Packed: true, Size: 3}); err != nil || !ok || s != want {
		t.Errorf("SegmentFile = %+v, %v, %v, want %+v", s, ok, err, want)
	}
	must(t, os.Remove(packed))
	if s, ok, err := query.SegmentFile(dir, entries[0]); ok || err != nil {
		t.Errorf("SegmentFile of one that was removed = %+v, %v, %v", s, ok, err)
	}
}

// TestRemovedWhileItIsRead: what retention removes while the log is read is no error; what
// is missing in the middle is one.
func TestRemovedWhileItIsRead(t *testing.T) {
	for name, tt := range map[string]struct {
		gone []int
		want string // the numbers that are read
	}{
		"the oldest":    {[]int{0, 1, 2}, "0 3 "},
		"in the middle": {[]int{1}, "0 error"},
	} {
		dir := t.TempDir()
		var paths []string
		for seq := range 4 {
			paths = append(paths, filepath.Join(dir, segment.Name(int64(seq))))
			must(t, os.WriteFile(paths[seq], fmt.Appendf(nil, `{"v":1,"seq":%d,"time":"2027-01-31T12:00:00Z","id":"x","kind":"admit"}`+"\n", seq), 0o640))
		}
		got := ""
		for r, err := range query.Records(dir, query.Filter{}) {
			if err != nil {
				got += "error"
				break
			}
			got += fmt.Sprint(r.Seq) + " "
			for _, n := range tt.gone {
				_ = os.Remove(paths[n]) // it may be gone already
			}
		}
		if got != tt.want {
			t.Errorf("%s: read %q, want %q", name, got, tt.want)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestNothingWaitsForAWriter: a pipe in the place of a file of a log, also of one that was
// listed as a file, is not one that never ends.
func TestNothingWaitsForAWriter(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, segment.Name(7))
	must(t, os.WriteFile(path, []byte(`{"v":1,"seq":7,"time":"2027-01-01T12:00:00Z","id":"x","kind":"admit"}`+"\n"), 0o640))
	must(t, syscall.Mkfifo(filepath.Join(dir, "retained"), 0o640))
	n := 0
	for _, err := range query.Records(dir, query.Filter{}) { // as it begins with record 7 the note is looked for
		if err == nil {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d records, want 1", n)
	}
	list, err := query.Segments(dir)
	must(t, errors.Join(err, os.Remove(path), syscall.Mkfifo(path, 0o640)))
	if _, err := list[0].Open(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("Open of a pipe = %v", err)
	}
}
