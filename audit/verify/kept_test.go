package verify_test

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/segment"
	"sallyport/audit/verify"
)

// TestVerifyNamesTheFirstBadRecordOfAPackedSegment: packing and retention hide
// nothing.
func TestVerifyNamesTheFirstBadRecordOfAPackedSegment(t *testing.T) {
	f, other := newKeptFixture(t, 40), newKeptFixture(t, 40)
	mid, last := f.starts[1], f.starts[len(f.starts)-1]
	first, _, _ := segment.Parse(mid)
	kept, _, _ := segment.Parse(f.starts[0])
	next, _, _ := segment.Parse(f.starts[2])
	end, _, _ := segment.Parse(last)
	edit := func(name string, fn func(l [][]byte) [][]byte) func(map[string][]byte) {
		return func(files map[string][]byte) {
			old := files[name]
			files[name] = repack(t, old, fn(unpack(t, old)))
		}
	}
	change := func(l [][]byte) [][]byte {
		l[1] = bytes.Replace(l[1], []byte(`"v":1`), []byte(`"v":1`), 1)
		l[1] = bytes.Replace(l[1], []byte(`"id":"01`), []byte(`"id":"02`), 1)
		return l
	}
	tests := []struct {
		name  string
		edit  func(map[string][]byte)
		fault verify.Fault
		file  string
		seq   int64 // -2 for any
	}{
		{"edit", edit(mid, change), verify.Changed, mid, first + 1},
		{"edit without the hash file", func(files map[string][]byte) { edit(mid, change)(files); delete(files, "tree") }, verify.Changed, mid, -2},
		{"reorder", edit(mid, func(l [][]byte) [][]byte { l[0], l[1] = l[1], l[0]; return l }), verify.OutOfPlace, mid, first},
		{"duplicate", edit(mid, func(l [][]byte) [][]byte { return slices.Insert(l, 1, l[0]) }), verify.OutOfPlace, mid, first + 1},
		{"insert junk", edit(mid, func(l [][]byte) [][]byte { return slices.Insert(l, 1, []byte("{}\n")) }), verify.Malformed, mid, first + 1},
		{"delete", edit(mid, func(l [][]byte) [][]byte { return slices.Delete(l, 1, 2) }), verify.OutOfPlace, mid, first + 1},
		{"cut in the middle", edit(mid, func(l [][]byte) [][]byte { return l[:1] }), verify.Missing, segment.Name(first + 1), first + 1},
		{"packed file cut", func(files map[string][]byte) { files[mid] = files[mid][:len(files[mid])-9] }, verify.Malformed, mid, -2},
		{"packed again, the same lines", func(files map[string][]byte) {
			files[mid] = append(files[mid], repack(t, files[mid], nil)...) // an empty frame behind it
		}, verify.BadPack, mid, -1},
		{"packed segment missing", func(files map[string][]byte) { delete(files, mid) }, verify.Missing, segment.Name(first), first},
		{"first kept segment missing", func(files map[string][]byte) { delete(files, f.starts[0]) }, verify.Missing, segment.Name(kept), kept},
		{"last segment missing", func(files map[string][]byte) { delete(files, last) }, verify.Cut, "", end},
		{"swapped segments", func(files map[string][]byte) { files[mid], files[f.starts[0]] = files[f.starts[0]], files[mid] }, verify.OutOfPlace, f.starts[0], kept},
		{"unpacked by a hand, and changed", func(files map[string][]byte) {
			files[segment.Name(first)] = join(change(unpack(t, files[mid])))
		}, verify.Changed, segment.Name(first), first + 1},
		{"another log's segment", func(files map[string][]byte) {
			files[mid] = repack(t, files[mid], unpack(t, other.files[other.starts[1]]))
		}, "", mid, -2},
		{"note missing", func(files map[string][]byte) { delete(files, "retained") }, verify.Missing, segment.Name(0), 0},
		{"another log's note", func(files map[string][]byte) { files["retained"] = other.files["retained"] }, verify.BadNote, "retained", -1},
		{"forged note", func(files map[string][]byte) {
			files["retained"] = bytes.Replace(files["retained"], fmt.Appendf(nil, "first %d", kept), fmt.Appendf(nil, "first %d", next), 1)
		}, verify.BadNote, "retained", -1},
		{"checkpoint of what was removed left out", func(files map[string][]byte) {
			files["checkpoints"] = join(lines(files["checkpoints"])[7:])
		}, verify.BadHistory, "checkpoints", -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := verify.Verify(f.with(t, tt.edit), f.key, verify.Options{})
			var p *verify.Problem
			if !errors.As(err, &p) {
				t.Fatalf("Verify = %v, want a problem", err)
			}
			if tt.fault != "" && p.Fault != tt.fault || tt.file != "" && p.File != tt.file || p.Seq != tt.seq && tt.seq != -2 {
				t.Errorf("Verify = %v (seq %d), want %s at %s record %d", p, p.Seq, tt.fault, tt.file, tt.seq)
			}
		})
	}
}

// TestOldCopyOfARetainedLog: neither the state before the removal, nor an old
// note, passes for the newest.
func TestOldCopyOfARetainedLog(t *testing.T) {
	base := tempDir(t)
	tick := time.Unix(1_800_000_000, 0)
	cfg := audit.Config{
		Dir: filepath.Join(base, "audit"), KeyFile: filepath.Join(base, "key"), Interval: time.Hour, SegmentSize: 1500,
		Now: func() time.Time { tick = tick.Add(time.Second); return tick },
	}
	l, err := audit.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{dir: cfg.Dir, key: l.Verifier()}
	fill := func() {
		t.Helper()
		for range 20 {
			if err := l.Append(t.Context(), &audit.Record{Kind: audit.Admit, Host: "h.example", Port: 443}); err != nil {
				t.Fatal(err)
			}
		}
	}
	retain := func() {
		t.Helper()
		fill()
		if got, err := l.Retain(20 * time.Second); err != nil || got.Records == 0 {
			t.Fatalf("Retain = %+v, %v", got, err)
		}
	}
	fill()
	old := f.read(t)
	retain()
	early, err := l.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first := f.read(t)
	retain()
	anchor, err := l.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	f.files = f.read(t)
	both := verify.Options{Anchors: [][]byte{early, anchor}}
	if r, err := verify.Verify(f.dir, f.key, both); err != nil || !r.Whole() {
		t.Fatalf("Verify = %v, %v", r, err)
	}
	for name, files := range map[string]map[string][]byte{"before it": old, "after the first": first} {
		f := &fixture{dir: f.dir, key: f.key, files: files}
		_, err := verify.Verify(f.with(t, func(map[string][]byte) {}), f.key, verify.Options{Anchors: [][]byte{anchor}})
		var p *verify.Problem
		if !errors.As(err, &p) || p.Fault != verify.RolledBack {
			t.Errorf("the state %s: Verify = %v, want a rollback", name, err)
		}
	}
	_, err = verify.Verify(f.with(t, func(files map[string][]byte) { files["retained"] = first["retained"] }), f.key, both)
	var p *verify.Problem
	if !errors.As(err, &p) || p.Fault != verify.Missing {
		t.Errorf("with the first note: Verify = %v, want that segments are missing", err)
	}
}
