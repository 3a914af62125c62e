package index_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"sallyport/audit/index"
	"sallyport/audit/query"
	"sallyport/audit/segment"
)

// counted is what the counts by hour come to, and what the records do.
func counted(t *testing.T, x *index.Index) (hours, records [3]int64) {
	t.Helper()
	for _, q := range []struct {
		text string
		into *[3]int64
	}{
		{"SELECT ifnull(sum(n), 0), ifnull(sum(sent), 0), ifnull(sum(received), 0) FROM hours", &hours},
		{"SELECT count(*), ifnull(sum(sent), 0), ifnull(sum(received), 0) FROM records", &records},
	} {
		if err := x.DB().QueryRowContext(t.Context(), q.text).Scan(&q.into[0], &q.into[1], &q.into[2]); err != nil {
			t.Fatal(err)
		}
	}
	return hours, records
}

// whole checks that the index tells what the segments do, in both ways.
func (f *fixture) whole(t *testing.T, x *index.Index) {
	t.Helper()
	f.same(t, x)
	if hours, records := counted(t, x); hours != records {
		t.Errorf("the hours count %v, the records %v", hours, records)
	}
}

// noteRemoval writes the note that retention leaves, without a signature.
func (f *fixture) noteRemoval(t *testing.T, first int64) {
	t.Helper()
	note := fmt.Sprintf("sallyport/audit/retention/v1\nlog\nfirst %d\nrecord %d\ntime 2027-01-31T12:00:00Z\nremoved 2027-01-31T12:00:00Z 2027-01-31T12:00:00Z\n\n", first, first)
	if err := os.WriteFile(filepath.Join(f.dir, "retained"), []byte(note), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRetentionDropsRecords(t *testing.T) {
	f := newFixture(t)
	f.add(t, 60)
	x, _ := f.open(t)
	segs, err := query.Segments(f.dir)
	if err != nil || len(segs) < 4 {
		t.Fatalf("%d segments, %v", len(segs), err)
	}
	for _, s := range segs[:2] {
		if err := os.Remove(s.Path); err != nil {
			t.Fatal(err)
		}
	}
	f.noteRemoval(t, segs[2].First)
	f.add(t, 5)
	res, err := x.Update(t.Context(), nil)
	if want := (index.Result{Added: 5}); err != nil || !cmp.Equal(res, want) {
		t.Errorf("Update = %+v, %v, want %+v: nothing is read again", res, err, want)
	}
	f.whole(t, x)
	if n := count(t, x, "SELECT count(*) FROM shapes WHERE shape NOT IN (SELECT shape FROM entries)"); n != 0 {
		t.Errorf("%d shapes of no record are left", n)
	}
}

func count(t *testing.T, x *index.Index, question string) (n int) {
	t.Helper()
	if err := x.DB().QueryRowContext(t.Context(), question).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestChangedSegmentsAreReadAgain: whatever was put in a segment's place, of the
// same size and anywhere in it, is in the index, and is not there any more when
// the log's own is back.
func TestChangedSegmentsAreReadAgain(t *testing.T) {
	f := newFixture(t)
	f.add(t, 60)
	x, _ := f.open(t)
	segs, err := query.Segments(f.dir)
	if err != nil || len(segs) < 4 {
		t.Fatalf("%d segments, %v", len(segs), err)
	}
	replace := func(path string, data []byte) { // by a new file with the old one's time
		st, err := os.Stat(path)
		if err == nil {
			err = errors.Join(os.WriteFile(path+".new", data, 0o640), os.Chtimes(path+".new", st.ModTime(), st.ModTime()), os.Rename(path+".new", path))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(path string, data []byte) { // in its place
		if err := os.WriteFile(path, data, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	update := func(want bool) {
		t.Helper()
		res, err := x.Update(t.Context(), nil)
		if err != nil || res.Anew != want {
			t.Errorf("Update = %+v, %v, want anew %v", res, err, want)
		}
		f.whole(t, x)
	}
	for _, s := range segs[1:3] {
		for _, put := range []func(string, []byte){replace, write} {
			good, err := os.ReadFile(s.Path)
			if err != nil {
				t.Fatal(err)
			}
			middle := bytes.LastIndex(good[:2*len(good)/3], []byte(`"method":"GET"`))
			forged := slices.Concat(good[:middle], []byte(`"method":"PUT"`), good[middle+14:])
			put(s.Path, forged)
			update(true)
			if n := count(t, x, "SELECT count(*) FROM records WHERE method = 'PUT'"); n != 1 {
				t.Errorf("%d forged records, want the one that is in the log", n)
			}
			put(s.Path, good)
			update(true)
			replace(s.Path, good) // another file, the same lines
			update(false)
			update(false)
		}
	}
}

func TestIndexOfAnotherVersionIsMadeAnew(t *testing.T) {
	f := newFixture(t)
	f.add(t, 5)
	for _, v := range []string{"1", "99"} {
		x, _ := f.open(t)
		if _, err := x.DB().ExecContext(t.Context(), "PRAGMA user_version = "+v+"; DROP VIEW log; DROP TABLE counts"); err != nil {
			t.Fatal(err)
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		x, res := f.open(t)
		if res.Added != 6 {
			t.Errorf("version %s: Update = %+v, want all six records", v, res)
		}
		f.whole(t, x)
	}
}

// A packed segment that was cut is read as far as it goes, and told of; what
// stands in the others is there. It is whole again once the file is.
func TestDamagedSegmentIsPassedOver(t *testing.T) {
	f := newFixture(t)
	f.add(t, 60)
	segs, err := query.Segments(f.dir)
	if err != nil || len(segs) < 4 {
		t.Fatalf("%d segments, %v", len(segs), err)
	}
	s := segs[1]
	plain, err := os.ReadFile(s.Path)
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	held := int64(bytes.Count(plain, []byte("\n")))
	if err := segment.Pack(&packed, bytes.NewReader(plain), segment.Head{First: s.First, Records: held}); err != nil {
		t.Fatal(err)
	}
	put := func(n int) {
		t.Helper()
		if err := os.WriteFile(s.Path+".zst", packed.Bytes()[:n], 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(s.Path); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{packed.Len() - 10, packed.Len() / 2, 30, 10} {
		put(n)
		x, res := f.open(t)
		for range 2 { // it is told each time, and counts once
			if len(res.Damaged) != 1 || res.Damaged[0].File != filepath.Base(s.Path)+".zst" || res.Bad != 1 {
				t.Fatalf("%d octets: Update = %+v, want that the segment is damaged", n, res)
			}
			d := res.Damaged[0]
			if d.Seq < s.First || d.Seq > s.First+held || d.Line != d.Seq-s.First+1 {
				t.Errorf("%d octets: damaged from record %d, line %d", n, d.Seq, d.Line)
			}
			if have, want := count(t, x, "SELECT count(*) FROM records"), 61-int(s.First+held-d.Seq); have != want {
				t.Errorf("%d octets: %d records, want %d", n, have, want)
			}
			if res, err = x.Update(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		told := 0
		n := 0
		for _, err := range query.Records(f.dir, query.Filter{}) {
			switch {
			case errors.Is(err, query.ErrDamaged):
				told++
			case err != nil:
				t.Fatal(err)
			default:
				n++
			}
		}
		if told != 1 || n < 61-int(held) {
			t.Errorf("Records: told %d times, %d records", told, n)
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	}
	put(packed.Len())
	x, res := f.open(t)
	if len(res.Damaged) > 0 || res.Bad > 0 {
		t.Errorf("Update of the whole file = %+v", res)
	}
	f.whole(t, x)
}

// Two who ask at the same time bring the same lines: each counts once.
func TestUpdatesAtTheSameTimeCountOnce(t *testing.T) {
	f := newFixture(t)
	f.add(t, 300)
	var both errgroup.Group
	for range 2 {
		x, err := index.Open(t.Context(), index.Config{Dir: f.dir, Path: f.path})
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		both.Go(func() error {
			_, err := x.Update(t.Context(), nil)
			return err
		})
	}
	if err := both.Wait(); err != nil {
		t.Fatal(err)
	}
	x, res := f.open(t)
	if res.Added != 0 || res.Anew {
		t.Errorf("Update after both = %+v", res)
	}
	f.whole(t, x)
}

// The process that fills an index is killed at any moment; the next one goes
// on, and the index is whole.
func TestKilledUpdateGoesOn(t *testing.T) {
	if dir := os.Getenv("INDEX_TEST_DIR"); dir != "" {
		fill(t, dir, os.Getenv("INDEX_TEST_PATH"))
		return
	}
	f := newFixture(t)
	f.add(t, 400)
	for _, after := range []string{"1", "3", "10", "40"} {
		f.path = filepath.Join(t.TempDir(), "index.db")
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledUpdateGoesOn$")
		cmd.Env = append(os.Environ(), "INDEX_TEST_DIR="+f.dir, "INDEX_TEST_PATH="+f.path, "INDEX_TEST_AFTER="+after)
		out, err := cmd.CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.String() != "signal: killed" {
			t.Fatalf("the child ended with %v: %s", err, out)
		}
		x, res := f.open(t)
		if res.Anew || res.Added == 0 || res.Added > 400 {
			t.Errorf("Update after a kill = %+v, want the rest of 401", res)
		}
		f.whole(t, x)
	}
}

// fill updates an index and kills its own process in the middle of a transaction.
func fill(t *testing.T, dir, path string) {
	t.Helper()
	x, err := index.Open(t.Context(), index.Config{Dir: dir, Path: path})
	if err != nil {
		t.Fatal(err)
	}
	parts, err := strconv.Atoi(os.Getenv("INDEX_TEST_AFTER"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = x.Update(t.Context(), func(index.Progress) {
		if parts--; parts > 0 {
			return
		}
		// A transaction that is not committed is lost; what was, stays.
		if _, err := x.DB().ExecContext(t.Context(), "BEGIN IMMEDIATE; DELETE FROM entries; DELETE FROM counts"); err != nil {
			t.Error(err)
		}
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		t.Error(err)
	})
	t.Fatalf("not killed: %v", err)
}

// Every field of a record has its column.
func TestEveryFieldIsKept(t *testing.T) {
	f := newFixture(t)
	f.add(t, 1)
	x, _ := f.open(t)
	rows, err := x.DB().QueryContext(t.Context(), "SELECT * FROM records LIMIT 0")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	have, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, name := range query.Fields() {
		if name != "since" && name != "until" {
			want = append(want, name)
		}
	}
	want = append(want, "time", "cut", "data")
	slices.Sort(want)
	slices.Sort(have)
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("columns (-fields of a record +columns):\n%s", diff)
	}
}

// TestLaterSchemaIsTold: the first record of a schema that is not known is told, also
// by an update that reads nothing.
func TestLaterSchemaIsTold(t *testing.T) {
	dir := t.TempDir()
	text := `{"v":1,"seq":0,"time":"2027-01-31T12:00:00Z","id":"A","kind":"dns"}` + "\n"
	x, err := index.Open(t.Context(), index.Config{Dir: dir, Path: filepath.Join(t.TempDir(), "index.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	later := []string{`{"v":3,"seq":1,"time":"2027-01-31T12:00:00Z","id":"B","kind":"refuse","new":1}`, `{"v":2,"seq":2,"time":"2027-01-31T12:00:00Z","id":"C","kind":"refuse"}`}
	for i, want := range []*index.Later{nil, {Seq: 1, Schema: 3}, {Seq: 1, Schema: 3}, {Seq: 1, Schema: 3}} {
		if err := os.WriteFile(filepath.Join(dir, "000000000000.jsonl"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		res, err := x.Update(t.Context(), nil)
		if diff := cmp.Diff(want, res.Later); err != nil || diff != "" {
			t.Errorf("update %d: %v (-want +got):\n%s", i, err, diff)
		}
		if i < len(later) {
			text += later[i] + "\n"
		}
	}
}

// Who can put a file where the index is kept would say what is answered.
func TestSharedCacheIsRefusedLG08(t *testing.T) {
	f := newFixture(t)
	for name, share := range map[string]func(dir string) error{
		"of somebody else": func(dir string) error { return os.Chown(dir, 64009, -1) },
		"of all":           func(dir string) error { return os.Chmod(dir, 0o777) },
		"of a group":       func(dir string) error { return os.Chmod(dir, 0o770) },
	} {
		dir := t.TempDir()
		if err := share(dir); errors.Is(err, os.ErrPermission) {
			continue // only root can
		} else if err != nil {
			t.Fatal(err)
		}
		x, err := index.Open(t.Context(), index.Config{Dir: f.dir, Path: filepath.Join(dir, "x.db"), Own: true})
		if !errors.Is(err, index.ErrShared) {
			t.Errorf("%s: Open = %v", name, err)
			_ = x.Close()
		}
	}
}

// What retention removes while the index is brought up to date is no error.
func TestRemovedWhileItIsIndexed(t *testing.T) {
	dir := t.TempDir()
	const long, all = 60_000, 60_002 // the first segment is read in several parts
	var paths []string
	for first, next := range map[int]int{0: long, long: long + 1, long + 1: all} {
		var lines []byte
		for seq := first; seq < next; seq++ {
			lines = fmt.Appendf(lines, `{"v":1,"seq":%d,"time":"2027-01-31T12:00:00Z","id":"x%d","kind":"admit"}`+"\n", seq, seq)
		}
		path := filepath.Join(dir, segment.Name(int64(first)))
		if err := os.WriteFile(path, lines, 0o640); err != nil {
			t.Fatal(err)
		}
		if next < all {
			paths = append(paths, path)
		}
	}
	x, err := index.Open(t.Context(), index.Config{Dir: dir, Path: filepath.Join(t.TempDir(), "x.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if _, err := x.Update(t.Context(), func(index.Progress) {
		for _, path := range paths {
			_ = os.Remove(path) // it may be gone already
		}
	}); err != nil {
		t.Errorf("Update = %v", err)
	}
	if _, records := counted(t, x); records[0] != 1 {
		t.Errorf("%d records are in the index, want the one that is left", records[0])
	}
}
