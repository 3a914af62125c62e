package verify_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit"
	"sallyport/audit/segment"
	"sallyport/audit/verify"
)

// fixture is a closed log of a few segments with several checkpoints.
type fixture struct {
	dir, key string
	anchor   []byte // over the first half
	files    map[string][]byte
	starts   []string // names of the segments
}

func newFixture(t testing.TB, records int) *fixture {
	t.Helper()
	return newFixtureOf(t, records, time.Millisecond)
}

// newFixtureOf is one whose clock goes on by step whenever it is read.
func newFixtureOf(t testing.TB, records int, step time.Duration) *fixture {
	t.Helper()
	base := tempDir(t)
	var mu sync.Mutex
	tick := time.Unix(1_800_000_000, 0)
	l, err := audit.Open(audit.Config{
		Dir: filepath.Join(base, "audit"), KeyFile: filepath.Join(base, "key"), Interval: time.Hour,
		SegmentSize: 1500, Now: func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			tick = tick.Add(step)
			return tick
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{dir: filepath.Join(base, "audit"), key: l.Verifier()}
	for i := range records {
		rec := audit.Record{Kind: audit.Admit, Cell: "abcdefgh", Host: fmt.Sprintf("h%d.example", i), Port: 443}
		if err := l.Append(t.Context(), &rec); err != nil {
			t.Fatal(err)
		}
		if i%3 == 2 {
			msg, err := l.Checkpoint(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if i < records/2 {
				f.anchor = bytes.Clone(msg)
			}
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	f.files = f.read(t)
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		if strings.HasSuffix(name, ".jsonl") {
			f.starts = append(f.starts, name)
		}
	}
	return f
}

func (f *fixture) read(t testing.TB) map[string][]byte {
	t.Helper()
	names, err := os.ReadDir(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, n := range names {
		data, err := os.ReadFile(filepath.Join(f.dir, n.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // packed meanwhile
		}
		if err != nil {
			t.Fatal(err)
		}
		files[n.Name()] = data
	}
	return files
}

// newKeptFixture is one whose old segments are packed and whose oldest were
// removed in order.
func newKeptFixture(t testing.TB, records int) *fixture {
	t.Helper()
	base := tempDir(t)
	var mu sync.Mutex
	tick := time.Unix(1_800_000_000, 0)
	now := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		tick = tick.Add(time.Millisecond)
		return tick
	}
	f := &fixture{dir: filepath.Join(base, "audit")}
	l, err := audit.Open(audit.Config{Dir: f.dir, KeyFile: filepath.Join(base, "key"), Interval: time.Hour, SegmentSize: 1500, Now: now, Pack: true})
	if err != nil {
		t.Fatal(err)
	}
	f.key = l.Verifier()
	for i := range records {
		rec := audit.Record{Kind: audit.Admit, Cell: "abcdefgh", Host: fmt.Sprintf("h%d.example", i), Port: 443}
		if err := l.Append(t.Context(), &rec); err != nil {
			t.Fatal(err)
		}
	}
	third := f.awaitPacked(t, 4)[2]
	var rec audit.Record
	if err := json.Unmarshal(f.unpacked(t, third)[0], &rec); err != nil {
		t.Fatal(err)
	}
	if got, err := l.Retain(now().Sub(rec.Time) - time.Millisecond); err != nil || len(got.Segments) < 2 {
		t.Fatalf("Retain = %+v, %v", got, err)
	}
	if f.anchor, err = l.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		rec := audit.Record{Kind: audit.Admit, Cell: "abcdefgh", Host: fmt.Sprintf("later%d.example", i), Port: 443}
		if err := l.Append(t.Context(), &rec); err != nil {
			t.Fatal(err)
		}
	}
	f.starts = f.awaitPacked(t, 2)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	f.files = f.read(t)
	return f
}

// awaitPacked returns the names of the segments once all but the last are packed.
func (f *fixture) awaitPacked(t testing.TB, least int) []string {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for range 5000 {
		names, plain := []string(nil), 0
		for _, name := range slices.Sorted(maps.Keys(f.read(t))) {
			if _, packed, ok := segment.Parse(name); ok {
				names = append(names, name)
				if !packed {
					plain++
				}
			}
		}
		if plain == 1 && len(names) >= least && strings.HasSuffix(names[len(names)-1], ".jsonl") {
			return names
		}
		<-tick.C
	}
	t.Fatal("the old segments were not packed")
	return nil
}

// unpacked returns the lines of a packed segment.
func (f *fixture) unpacked(t testing.TB, name string) [][]byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(f.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return unpack(t, data)
}

func unpack(t testing.TB, data []byte) [][]byte {
	t.Helper()
	r, err := segment.Unpack(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return lines(out)
}

// repack packs lines as the writer does, with the head that the file had.
func repack(t testing.TB, old []byte, l [][]byte) []byte {
	t.Helper()
	head, err := segment.ReadHead(bytes.NewReader(old))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := segment.Pack(&out, bytes.NewReader(join(l)), head); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// with returns the directory of a copy that edit has been at.
func (f *fixture) with(t testing.TB, edit func(files map[string][]byte)) string {
	t.Helper()
	files := map[string][]byte{}
	for name, data := range f.files {
		files[name] = bytes.Clone(data)
	}
	edit(files)
	dir := tempDir(t)
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// lines returns a file's lines with their newlines.
func lines(data []byte) [][]byte { return bytes.SplitAfter(bytes.TrimSuffix(data, nil), []byte("\n")) }

func join(l [][]byte) []byte { return bytes.Join(l, nil) }

func TestVerifyGood(t *testing.T) {
	f := newFixture(t, 20)
	r, err := verify.Verify(f.dir, f.key, verify.Options{Anchors: [][]byte{f.anchor}})
	if err != nil {
		t.Fatalf("Verify: %v", err)
	}
	if !r.Whole() || r.Records != 22 || r.Covered != 22 || r.Anchors != 1 || r.Segments != len(f.starts) || len(r.Absent) > 0 || len(r.Unknown) > 0 {
		t.Errorf("report = %+v", r)
	}
	if want := []time.Time{time.Unix(1_800_000_000, 0), time.Unix(1_800_000_001, 0)}; r.First.Before(want[0]) || r.Last.After(want[1]) {
		t.Errorf("first %v, last %v", r.First, r.Last)
	}
}

// What programs read has one style of names, and nothing twice.
func TestReportAsJSON(t *testing.T) {
	f := newFixture(t, 20)
	r, err := verify.Verify(f.dir, f.key, verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Covered int64
		Signed  map[string]any
	}
	if err := json.Unmarshal(text, &got); err != nil || got.Covered != r.Covered || got.Covered == 0 {
		t.Errorf("the report as JSON = %s, %v", text, err)
	}
	if want := map[string]any{"size": float64(r.Signed.N), "root": r.Signed.Hash.String()}; !maps.Equal(got.Signed, want) {
		t.Errorf("signed = %v, want %v", got.Signed, want)
	}
	if n := bytes.Count(text, []byte(`"signed":`)); n != 1 {
		t.Errorf("signed stands %d times in %s", n, text)
	}
}

func TestVerifyNamesTheFirstBadRecord(t *testing.T) {
	f := newFixture(t, 20)
	other := newFixture(t, 20)
	mid := f.starts[1]
	var first int
	fmt.Sscanf(mid, "%d.jsonl", &first)
	edit := func(name string, fn func(l [][]byte) [][]byte) func(map[string][]byte) {
		return func(files map[string][]byte) { files[name] = join(fn(lines(files[name]))) }
	}
	change := func(l [][]byte) [][]byte {
		l[1] = bytes.Replace(l[1], []byte(".example"), []byte(".exbmple"), 1)
		return l
	}
	tests := []struct {
		name  string
		edit  func(map[string][]byte)
		fault verify.Fault
		file  string
		seq   int64
	}{
		{"edit", edit(mid, change), verify.Changed, mid, int64(first + 1)},
		{"edit of record and hash file", func(files map[string][]byte) {
			edit(mid, change)(files)
			delete(files, "tree")
		}, verify.Changed, mid, -2},
		{"reorder", edit(mid, func(l [][]byte) [][]byte { l[0], l[1] = l[1], l[0]; return l }), verify.OutOfPlace, mid, int64(first)},
		{"duplicate", edit(mid, func(l [][]byte) [][]byte { return slices.Insert(l, 1, l[0]) }), verify.OutOfPlace, mid, int64(first + 1)},
		{"insert", edit(mid, func(l [][]byte) [][]byte {
			return slices.Insert(l, 1, bytes.Replace(l[1], []byte("abcdefgh"), []byte("hgfedcba"), 1))
		}), verify.Changed, mid, int64(first + 1)},
		{"insert junk", edit(mid, func(l [][]byte) [][]byte { return slices.Insert(l, 1, []byte("{}\n")) }), verify.Malformed, mid, int64(first + 1)},
		{"delete", edit(mid, func(l [][]byte) [][]byte { return slices.Delete(l, 1, 2) }), verify.OutOfPlace, mid, int64(first + 1)},
		{"cut at the end", edit(f.starts[len(f.starts)-1], func(l [][]byte) [][]byte { return l[:len(l)-2] }), verify.Cut, f.starts[len(f.starts)-1], 21},
		{"last segment missing", func(files map[string][]byte) { delete(files, f.starts[len(f.starts)-1]) }, verify.Cut, f.starts[len(f.starts)-2], -2},
		{"cut at the start", edit(f.starts[0], func(l [][]byte) [][]byte { return l[2:] }), verify.OutOfPlace, f.starts[0], 0},
		{"first segment missing", func(files map[string][]byte) { delete(files, f.starts[0]) }, verify.Missing, f.starts[0], 0},
		{"all segments missing", func(files map[string][]byte) {
			for _, name := range f.starts {
				delete(files, name)
			}
		}, verify.Missing, f.starts[0], 0},
		{"middle segment missing", func(files map[string][]byte) { delete(files, mid) }, verify.Missing, mid, int64(first)},
		{"swapped segments", func(files map[string][]byte) {
			files[f.starts[0]], files[mid] = files[mid], files[f.starts[0]]
		}, verify.OutOfPlace, f.starts[0], 0},
		{"another log's records", func(files map[string][]byte) {
			for _, name := range other.starts {
				files[name] = other.files[name]
			}
		}, verify.WrongKey, f.starts[0], 0},
		{"another log's checkpoints", func(files map[string][]byte) { files["checkpoints"] = other.files["checkpoints"] }, verify.BadHistory, "checkpoints", -1},
		{"signed again by another key", func(files map[string][]byte) {
			clear(files)
			maps.Copy(files, other.files)
		}, verify.WrongKey, "log.pub", -1},
		{"checkpoint left out", edit("checkpoints", func(l [][]byte) [][]byte { return slices.Delete(l, 7, 14) }), verify.BadHistory, "checkpoints", -1},
		{"checkpoint doubled", edit("checkpoints", func(l [][]byte) [][]byte { return slices.Insert(l, 7, l[:7]...) }), verify.BadHistory, "checkpoints", -1},
		{"no checkpoints", func(files map[string][]byte) { delete(files, "checkpoints") }, verify.BadHistory, "checkpoints", -1},
		{"hash file", func(files map[string][]byte) { files["tree"][40] ^= 1 }, verify.BadTree, "tree", 1},
		{"line joined", edit(mid, func(l [][]byte) [][]byte { l[0] = bytes.TrimSuffix(l[0], []byte("\n")); return l }), verify.Changed, mid, int64(first)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := verify.Verify(f.with(t, tt.edit), f.key, verify.Options{})
			var p *verify.Problem
			if !errors.As(err, &p) {
				t.Fatalf("Verify = %v, want a problem", err)
			}
			if p.Fault != tt.fault || p.File != tt.file || p.Seq != tt.seq && tt.seq != -2 {
				t.Errorf("Verify = %v (seq %d), want %s at %s record %d", p, p.Seq, tt.fault, tt.file, tt.seq)
			}
		})
	}
}

// Whoever cuts records and their checkpoints leaves the hash file, which tells
// how many there were: nobody is told to delete it.
func TestCutRecordsAreToldByWhatIsLeft(t *testing.T) {
	f := newFixture(t, 20)
	const kept, left = 2, 7 // checkpoints, and the records under them
	cutRecords := func(files map[string][]byte) {
		n := 0
		for _, name := range f.starts {
			l := lines(files[name])
			l = l[:len(l)-1] // what follows the last newline
			if keep := max(0, min(len(l), left-n)); keep == 0 {
				delete(files, name)
			} else {
				files[name] = join(l[:keep])
			}
			n += len(l)
		}
	}
	cutAll := func(files map[string][]byte) {
		cutRecords(files)
		files["checkpoints"] = join(lines(files["checkpoints"])[:7*kept])
	}
	tests := map[string]struct {
		edit  func(map[string][]byte)
		fault verify.Fault // empty: it is good
		last  int64
		text  string
	}{
		"records":                 {cutRecords, verify.Cut, 21, "22 records were signed at 2027-01-15T08:00:00Z, and 7 are left"},
		"records and checkpoints": {cutAll, verify.Cut, 21, "the hash file is of 22 records, and 7 are left"},
		"all": {func(files map[string][]byte) {
			cutAll(files)
			files["tree"] = files["tree"][:tlog.StoredHashCount(left)*tlog.HashSize]
		}, "", 0, ""},
		"junk": {func(files map[string][]byte) {
			files["tree"] = append(files["tree"], bytes.Repeat([]byte{1}, 3*tlog.HashSize)...)
		}, verify.BadTree, -1, "no hashes of records"},
		"all to nothing": {func(files map[string][]byte) {
			for _, name := range f.starts[1:] {
				delete(files, name)
			}
			files[f.starts[0]], files["checkpoints"], files["tree"] = nil, nil, nil
		}, verify.Missing, 0, "there is no record"},
		"nothing": {func(map[string][]byte) {}, "", 0, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := verify.Verify(f.with(t, tt.edit), f.key, verify.Options{})
			var p *verify.Problem
			switch {
			case tt.fault == "" && err == nil:
			case tt.fault == "" || !errors.As(err, &p):
				t.Errorf("Verify = %v, want fault %q", err, tt.fault)
			case p.Fault != tt.fault || p.Last != tt.last || !strings.Contains(p.Text, tt.text) || strings.Contains(p.Text, "are good"):
				t.Errorf("Verify = %v, last %d, want %s to %d: %s", p, p.Last, tt.fault, tt.last, tt.text)
			case p.Fault == verify.Cut && p.Seq != left:
				t.Errorf("Verify = %v, first missing %d, want %d", p, p.Seq, left)
			}
		})
	}
}

// What follows the last checkpoint is not covered, and Verify says so; with an
// anchor it is.
func TestVerifyRollbackNeedsAnAnchor(t *testing.T) {
	f := newFixture(t, 20)
	_, err := verify.Verify(f.dir, f.key, verify.Options{Anchors: [][]byte{f.anchor}})
	if err != nil {
		t.Fatal(err)
	}
	old := f.with(t, func(files map[string][]byte) { // the first checkpoint's state
		files["checkpoints"] = join(lines(files["checkpoints"])[:7])
		for _, name := range f.starts[1:] {
			delete(files, name)
		}
		files[f.starts[0]] = join(lines(files[f.starts[0]])[:1])
		files["tree"] = files["tree"][:32]
	})
	r, err := verify.Verify(old, f.key, verify.Options{})
	if err != nil || r.Whole() || r.Records != 1 {
		t.Fatalf("Verify(old copy) = %+v, %v; want good and not closed", r, err)
	}
	_, err = verify.Verify(old, f.key, verify.Options{Anchors: [][]byte{f.anchor}})
	var p *verify.Problem
	if !errors.As(err, &p) || p.Fault != verify.RolledBack || p.Seq != 1 {
		t.Errorf("Verify(old copy, anchor) = %v, want rollback from record 1", err)
	}
	if _, err := verify.Verify(f.dir, f.key, verify.Options{Anchors: [][]byte{newFixture(t, 20).anchor}}); err == nil {
		t.Error("Verify took an anchor of another key")
	}
}

func TestVerifyTellsOfUncoveredRecords(t *testing.T) {
	f := newFixture(t, 20)
	live := f.with(t, func(files map[string][]byte) {
		l := lines(files["checkpoints"])
		files["checkpoints"] = join(l[:len(l)-1-14])
		last := f.starts[len(f.starts)-1]
		l = lines(files[last])
		files[last] = append(join(l[:len(l)-2]), `{"v":1,"seq":21`...)
		delete(files, "tree")
	})
	r, err := verify.Verify(live, f.key, verify.Options{})
	if err != nil || r.Records != 21 || r.Covered == 21 || r.Torn == 0 || r.Whole() {
		t.Errorf("Verify = %+v, %v; want records that are not covered and a torn line", r, err)
	}
}

// good reports whether Verify lets a log pass without reserve.
func good(t testing.TB, f *fixture, dir string) bool {
	t.Helper()
	r, err := verify.Verify(dir, f.key, verify.Options{Anchors: [][]byte{f.anchor}})
	return err == nil && r.Whole() && len(r.Absent) == 0 && len(r.Unknown) == 0
}

func TestFlipAnyByte(t *testing.T) {
	t.Run("plain", func(t *testing.T) { flipAnyByte(t, newFixture(t, 6)) })
	t.Run("packed and retained", func(t *testing.T) { flipAnyByte(t, newKeptFixture(t, 30)) })
}

func flipAnyByte(t *testing.T, f *fixture) {
	if !good(t, f, f.dir) {
		t.Fatal("the untouched log is not good")
	}
	for name, data := range f.files {
		file, err := os.OpenFile(filepath.Join(f.dir, name), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		put := func(i int, b byte) {
			if _, err := file.WriteAt([]byte{b}, int64(i)); err != nil {
				t.Fatal(err)
			}
		}
		for i, b := range data {
			for _, flip := range []byte{1 << (i % 8)} { // another bit each
				put(i, b^flip)
				if good(t, f, f.dir) {
					t.Errorf("%s byte %d flipped by %#x: Verify found nothing", name, i, flip)
				}
			}
			put(i, b)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if !good(t, f, f.dir) {
		t.Fatal("the log that was put right again is not good")
	}
}

// TestNoManipulationPasses plays random changes, one to three at a time, on
// any file of a log.
func TestNoManipulationPasses(t *testing.T) {
	t.Run("plain", func(t *testing.T) { noManipulationPasses(t, newFixture(t, 20)) })
	t.Run("packed and retained", func(t *testing.T) { noManipulationPasses(t, newKeptFixture(t, 40)) })
}

func noManipulationPasses(t *testing.T, f *fixture) {
	names := slices.Sorted(maps.Keys(f.files))
	rng := rand.New(rand.NewPCG(1, 2))
	moves := []func(files map[string][]byte, name string) string{
		func(files map[string][]byte, name string) string { delete(files, name); return "delete" },
		func(files map[string][]byte, name string) string {
			b := files[name]
			n := rng.IntN(len(b) + 1)
			files[name] = b[:n]
			return fmt.Sprint("cut to ", n)
		},
		func(files map[string][]byte, name string) string {
			b := files[name]
			i, j := rng.IntN(len(b)+1), rng.IntN(len(b)+1)
			files[name] = slices.Delete(b, min(i, j), max(i, j))
			return fmt.Sprint("take out ", min(i, j), " to ", max(i, j))
		},
		func(files map[string][]byte, name string) string {
			b := files[name]
			i, j := rng.IntN(len(b)+1), rng.IntN(len(b)+1)
			files[name] = slices.Insert(b, i, bytes.Clone(b[min(i, j):max(i, j)])...)
			return "copy a part"
		},
		func(files map[string][]byte, name string) string {
			other := names[rng.IntN(len(names))]
			files[name], files[other] = files[other], files[name]
			return "swap with " + other
		},
		func(files map[string][]byte, name string) string {
			l := lines(files[name])
			rng.Shuffle(len(l), func(i, j int) { l[i], l[j] = l[j], l[i] })
			files[name] = join(l)
			return "shuffle lines"
		},
		func(files map[string][]byte, name string) string {
			l := lines(files[name])
			i := rng.IntN(len(l))
			files[name] = join(slices.Insert(l, rng.IntN(len(l)+1), l[i]))
			return "double a line"
		},
		func(files map[string][]byte, name string) string {
			files[name] = append(files[name], byte(rng.IntN(256)))
			return "append a byte"
		},
	}
	for range 400 {
		var said []string
		same := false
		dir := f.with(t, func(files map[string][]byte) {
			for range 1 + rng.IntN(3) {
				name := names[rng.IntN(len(names))]
				if _, ok := files[name]; ok {
					said = append(said, name+": "+moves[rng.IntN(len(moves))](files, name))
				}
			}
			for name, data := range files {
				if data == nil {
					delete(files, name)
				}
			}
			same = maps.EqualFunc(files, f.files, bytes.Equal)
		})
		if got := good(t, f, dir); got != same {
			t.Fatalf("Verify says good = %v for a log that is unchanged = %v, after %q", got, same, said)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}
