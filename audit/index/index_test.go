package index_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"sallyport/audit"
	"sallyport/audit/index"
	"sallyport/audit/query"
)

var start = time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)

// fixture is a log of small segments, and where its index goes.
type fixture struct {
	log       *audit.Log
	dir, path string
	n         int
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	base := t.TempDir()
	f := &fixture{dir: filepath.Join(base, "audit"), path: filepath.Join(base, "cache", "index.db")}
	var err error
	f.log, err = audit.Open(audit.Config{
		Dir: f.dir, KeyFile: filepath.Join(base, "key"), Interval: time.Hour, SegmentSize: 4000,
		Now: func() time.Time { return start },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.log.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// add appends n records, seven minutes apart.
func (f *fixture) add(t testing.TB, n int) {
	t.Helper()
	for k := range n {
		i := f.n
		f.n++
		r := audit.Record{
			Kind: audit.Done, Time: start.Add(time.Duration(i) * 7 * time.Minute), ID: fmt.Sprintf("id%d", i),
			Ref: "ref", Run: fmt.Sprintf("run%d", i%3), Cell: "c", Policy: "sha256:ab", Verdict: "inspect",
			Reason: "allowed", Rule: "r", Where: "p:1", Scope: "policy", Credential: "key", Listener: "transparent",
			Client: "10.0.0.1:1", Question: "fetch", Proto: "h1", Host: fmt.Sprintf("h%d.example", i%5), Port: 443,
			Method: "GET", Path: "/\x1b<", Query: "hmac:00", QType: "A", Answer: "x", WouldDeny: "host_not_allowed", Addr: "203.0.113.1:443",
			Status: 200, Sent: int64(i), Received: 2, Micros: 3, Error: strings.Repeat("e", 1030*(i%2)),
			Data: json.RawMessage(`{"a":1}`),
		}
		if err := f.log.Append(t.Context(), &r); err != nil {
			t.Fatal(err)
		}
		if k%8 != 0 && k != n-1 {
			continue
		}
		if err := f.log.Sync(t.Context()); err != nil { // what is over waits for the next write
			t.Fatal(err)
		}
	}
}

func (f *fixture) open(t testing.TB) (*index.Index, index.Result) {
	t.Helper()
	x, err := index.Open(t.Context(), index.Config{Dir: f.dir, Path: f.path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	res, err := x.Update(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return x, res
}

// same checks that the index tells what the segments do.
func (f *fixture) same(t *testing.T, x *index.Index) {
	t.Helper()
	var want, got []audit.Record
	for r, err := range query.Records(f.dir, query.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, r)
	}
	for r, err := range x.Records(t.Context(), "ORDER BY r.seq") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("segments and index (-segments +index):\n%s", diff)
	}
}

func TestUpdateFollowsTheLog(t *testing.T) {
	f := newFixture(t)
	f.add(t, 10)
	x, res := f.open(t)
	if want := (index.Result{Added: 11}); !cmp.Equal(res, want) {
		t.Errorf("Update = %+v, want %+v", res, want)
	}
	f.same(t, x)
	f.add(t, 75)
	var last index.Progress
	res, err := x.Update(t.Context(), func(p index.Progress) { last = p })
	if want := (index.Result{Added: 75}); err != nil || !cmp.Equal(res, want) {
		t.Errorf("second Update = %+v, %v, want %+v", res, err, want)
	}
	if last.Records != 75 || last.Done != last.Total || last.Total == 0 {
		t.Errorf("last progress = %+v, want 75 records and all of the octets", last)
	}
	f.same(t, x)
	if again, res := f.open(t); res.Added != 0 || res.Anew {
		t.Errorf("Update of an index that is up to date = %+v", res)
	} else {
		f.same(t, again)
	}
}

func TestUpdateReadsPackedSegments(t *testing.T) {
	f := newFixture(t)
	f.add(t, 40)
	x, _ := f.open(t)
	segs, err := query.Segments(f.dir)
	if err != nil || len(segs) < 3 {
		t.Fatalf("%d segments, %v", len(segs), err)
	}
	plain, err := os.ReadFile(segs[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(segs[0].Path+".zst", z.EncodeAll(plain, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(segs[0].Path); err != nil {
		t.Fatal(err)
	}
	if res, err := x.Update(t.Context(), nil); err != nil || res.Anew {
		t.Errorf("Update after packing = %+v, %v", res, err)
	}
	f.same(t, x)
	f.path += "2"
	fresh, res := f.open(t)
	if res.Added != 41 {
		t.Errorf("added %d records of packed and plain segments, want 41", res.Added)
	}
	f.same(t, fresh)
}

func TestUnfinishedLineWaits(t *testing.T) {
	f := newFixture(t)
	f.add(t, 2)
	segs, err := query.Segments(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(segs[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	file := filepath.Join(copied, "000000000000.jsonl")
	if err := os.WriteFile(file, text[:len(text)-10], 0o600); err != nil {
		t.Fatal(err)
	}
	f.dir = copied
	x, res := f.open(t)
	if res.Added != 2 || res.Bad != 0 {
		t.Errorf("Update = %+v, want the two whole lines", res)
	}
	if err := os.WriteFile(file, append(bytes.Clone(text), "no record\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if res, err = x.Update(t.Context(), nil); err != nil || res.Added != 1 || res.Bad != 1 {
		t.Errorf("Update = %+v, %v, want the third line, and a bad one", res, err)
	}
}

// lastWithLines returns the last segment that has a line, and its text: the log begins a
// segment with nothing in it where its last record filled the one before.
func lastWithLines(t *testing.T, segs []query.Segment) (path string, text []byte) {
	t.Helper()
	for _, seg := range slices.Backward(segs) {
		text, err := os.ReadFile(seg.Path)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > 0 {
			return seg.Path, text
		}
	}
	t.Fatal("the log has no line")
	return "", nil
}

func TestChangedLogIsReadAnew(t *testing.T) {
	for _, change := range []string{"first line", "last line", "segment gone", "shorter"} {
		t.Run(change, func(t *testing.T) {
			f := newFixture(t)
			f.add(t, 40)
			x, _ := f.open(t)
			segs, err := query.Segments(f.dir)
			if err != nil {
				t.Fatal(err)
			}
			var last string
			var text []byte
			switch change {
			case "first line", "segment gone": // the first one may go: that is retention
				last = segs[1].Path
				if text, err = os.ReadFile(last); err != nil {
					t.Fatal(err)
				}
			default:
				last, text = lastWithLines(t, segs)
			}
			switch change {
			case "first line":
				text = bytes.Replace(text, []byte("done"), []byte("dona"), 1)
			case "last line":
				text[len(text)-5] ^= 1
			case "shorter":
				text = text[:bytes.LastIndexByte(text[:len(text)-1], '\n')+1]
			}
			if change == "segment gone" {
				err = os.Remove(last)
			} else {
				err = os.WriteFile(last, text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			res, err := x.Update(t.Context(), nil)
			if err != nil || !res.Anew {
				t.Errorf("Update = %+v, %v, want anew", res, err)
			}
		})
	}
}

// damage changes the octets of a file from one on and up to another, or its end.
func damage(path string, from, to int) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for i := from; i < min(to, len(data)); i++ {
		data[i] ^= 0x5a
	}
	return os.WriteFile(path, data, 0o600)
}

func TestDamagedIndexIsMadeAnew(t *testing.T) {
	f := newFixture(t)
	f.add(t, 40)
	x, _ := f.open(t)
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if err := damage(f.path, 100, math.MaxInt); err != nil {
		t.Fatal(err)
	}
	x, res := f.open(t)
	if res.Added != 41 {
		t.Errorf("Update = %+v, want all 41 records", res)
	}
	f.same(t, x)
}

// Where nothing but an index is kept, what is no index is a damaged one.
func TestOwnFileIsMadeAnew(t *testing.T) {
	f := newFixture(t)
	f.add(t, 40)
	x, _ := f.open(t)
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if err := damage(f.path, 0, 100); err != nil {
		t.Fatal(err)
	}
	told := 0
	cfg := index.Config{Dir: f.dir, Path: f.path, Own: true, Damaged: func() { told++ }}
	for want := int64(41); want >= 0; want -= 41 { // made anew once, and good from then on
		x, err := index.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if res, err := x.Update(t.Context(), nil); err != nil || res.Added != want || told != 1 {
			t.Errorf("Update = %+v, %v, told %d times; want %d records, told once", res, err, told, want)
		}
		f.same(t, x)
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// An index that is taken away, or damaged in the middle, while it is open is
// known to be of no use, and is made anew.
func TestIndexIsMadeAnewWhileItIsOpen(t *testing.T) {
	for name, harm := range map[string]func(path string) error{
		"taken away": os.Remove,
		"damaged":    func(path string) error { return damage(path, 4096, math.MaxInt) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.add(t, 40)
			x, _ := f.open(t)
			if err := harm(f.path); err != nil {
				t.Fatal(err)
			}
			f.add(t, 1)
			if _, err := x.Update(t.Context(), nil); err != nil {
				if !index.Damaged(err) {
					t.Fatalf("Update = %v, want it known as damage", err)
				}
				if err := x.Anew(t.Context()); err != nil {
					t.Fatal(err)
				}
				if res, err := x.Update(t.Context(), nil); err != nil || res.Added != 42 {
					t.Errorf("Update = %+v, %v, want all 42 records", res, err)
				}
			}
			f.same(t, x)
		})
	}
}

// Two who ask for the first time make one index, one after the other.
func TestFirstQuestionsAtTheSameTime(t *testing.T) {
	f := newFixture(t)
	f.add(t, 300)
	var all errgroup.Group
	for range 8 {
		all.Go(func() error {
			x, err := index.Open(t.Context(), index.Config{Dir: f.dir, Path: f.path})
			if err != nil {
				return err
			}
			_, err = x.Update(t.Context(), nil)
			return errors.Join(err, x.Close())
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	x, res := f.open(t)
	if res.Added != 0 || res.Anew {
		t.Errorf("Update after all = %+v", res)
	}
	f.whole(t, x)
}

// Who has to wait is told of it, and ends when the question is given up.
func TestWaitingIsTold(t *testing.T) {
	f := newFixture(t)
	f.add(t, 5)
	x, _ := f.open(t)
	held, err := os.OpenFile(f.path+".lock", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	cfg := index.Config{Dir: f.dir, Path: f.path, Waiting: stop}
	if _, err := index.Open(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("Open = %v, want it given up after it told", err)
	}
	cfg.Waiting = func() { _ = held.Close() }
	y, err := index.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.same(t, x)
	f.same(t, y)
	if err := y.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestIndexOfAnotherLogIsMadeAnew(t *testing.T) {
	f, g := newFixture(t), newFixture(t)
	f.add(t, 5)
	g.add(t, 9)
	f.open(t)
	g.path = f.path
	x, _ := g.open(t)
	g.same(t, x)
}

func TestForeignFileIsLeftAlone(t *testing.T) {
	f := newFixture(t)
	for _, text := range []string{"x", strings.Repeat("valuable ", 100), "SQLite format 3\x00" + strings.Repeat("\x00", 100)} {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := index.Open(t.Context(), index.Config{Dir: f.dir, Path: path}); !errors.Is(err, index.ErrForeign) {
			t.Errorf("Open = %v, want ErrForeign", err)
		}
		if have, err := os.ReadFile(path); err != nil || string(have) != text {
			t.Errorf("the file was changed to %q, %v", have, err)
		}
	}
}

func TestIndexIsPrivate(t *testing.T) {
	f := newFixture(t)
	f.add(t, 1)
	f.open(t)
	for path, want := range map[string]os.FileMode{f.path: 0o600, filepath.Dir(f.path): 0o700} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s has mode %v, %v, want %v", path, st.Mode().Perm(), err, want)
		}
	}
}

// Whatever the edges, hours and records together count each record once.
func TestFactsCountEachRecordOnce(t *testing.T) {
	f := newFixture(t)
	f.add(t, 60)
	x, _ := f.open(t)
	step := 11 * time.Minute
	for from := time.Duration(0); from < 5*time.Hour; from += step {
		for until := from; until < 8*time.Hour; until += 3 * step {
			lo, hi := start.Add(from).UnixNano(), start.Add(until).UnixNano()
			want := [2]int64{}
			for i := range 60 {
				if at := start.Add(time.Duration(i) * 7 * time.Minute).UnixNano(); at >= lo && at < hi {
					want[0]++
					want[1] += int64(i)
				}
			}
			expr, args := index.Facts(lo, hi)
			var got [2]int64
			err := x.DB().QueryRowContext(t.Context(),
				"SELECT ifnull(sum(n), 0), ifnull(sum(sent), 0) FROM "+expr+" WHERE kind = 'done'", args...).Scan(&got[0], &got[1])
			if err != nil || got != want {
				t.Fatalf("from %v until %v: records and octets %v, %v, want %v", from, until, got, err, want)
			}
		}
	}
}

func TestSQLReads(t *testing.T) {
	f := newFixture(t)
	f.add(t, 3)
	x, _ := f.open(t)
	var got []string
	for row, err := range x.SQL(t.Context(), "SELECT at, id FROM log WHERE kind = 'done' ORDER BY seq") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(row...))
	}
	want := []string{"at id", "2027-01-31T12:00:00.000Z id0", "2027-01-31T12:07:00.000Z id1", "2027-01-31T12:14:00.000Z id2"}
	for i := range want {
		want[i] = strings.Replace(want[i], " ", "", 1)
	}
	for i := range got {
		got[i] = strings.Replace(got[i], " ", "", 1)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("SQL (-want +got):\n%s", diff)
	}
}

// Few records are not looked for among all, also where their order is asked for, and
// all are not looked for one by one.
func TestSQLIsPlannedByWhatIsRare(t *testing.T) {
	f := newFixture(t)
	f.add(t, 10)
	x, _ := f.open(t)
	for question, want := range map[string]string{
		"SELECT at, path FROM log WHERE host = 'a' ORDER BY seq":                                           "shapes_host entries_shape",
		"SELECT at, path FROM log WHERE host = 'a' ORDER BY at LIMIT 20":                                   "shapes_host entries_shape",
		"SELECT at, path FROM log WHERE run = 'a' AND kind = 'done' ORDER BY seq":                          "shapes_run entries_shape",
		"SELECT * FROM records WHERE id = 'a' ORDER BY seq":                                                "entries_id",
		"SELECT a.host, d.us FROM records a JOIN records d ON d.ref = a.id WHERE a.run = 'a'":              "shapes_run entries_shape entries_ref",
		"SELECT status, count(*) FROM records GROUP BY 1":                                                  "SCAN entries",
		"SELECT count(*) FROM records WHERE path LIKE '%a%'":                                               "SCAN entries",
		"SELECT host, sum(sent) FROM records WHERE time > 1800000000000000000 AND status = 200 GROUP BY 1": "entries_time",
	} {
		var plan strings.Builder
		for row, err := range x.SQL(t.Context(), "EXPLAIN QUERY PLAN "+question) {
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(&plan, row[3])
		}
		rest, ok := plan.String(), false
		for part := range strings.SplitSeq(want, " ") {
			if _, rest, ok = strings.Cut(rest, part); !ok {
				break
			}
		}
		if !ok {
			t.Errorf("%s: want %s one after the other:\n%s", question, want, plan.String())
		}
	}
}

func TestSQLChangesNothingAndReadsNothingElse(t *testing.T) {
	f := newFixture(t)
	f.add(t, 3)
	x, _ := f.open(t)
	other := filepath.Join(t.TempDir(), "other")
	for _, q := range []string{
		"DELETE FROM records", "INSERT INTO log_dir VALUES ('x')", "DROP TABLE records", "CREATE TABLE t (x)",
		"CREATE TEMP TABLE t (x)", "PRAGMA query_only = 0; DELETE FROM records", "PRAGMA user_version = 99",
		"SELECT 1; DELETE FROM records", "VACUUM INTO '" + other + "'", "ATTACH '" + other + "' AS o",
		"ATTACH '" + f.path + "' AS o", "SELECT load_extension('x')", "SELECT readfile('/etc/passwd')", "nonsense",
	} {
		var failed error
		for _, err := range x.SQL(t.Context(), q) {
			failed = errors.Join(failed, err)
		}
		if failed == nil && !strings.HasPrefix(q, "PRAGMA user_version") {
			t.Errorf("%s: no error", q)
		}
	}
	if _, err := os.Stat(other); err == nil {
		t.Error("a file was written")
	}
	if _, res := f.open(t); res.Anew || res.Added != 0 {
		t.Errorf("the index was changed: %+v", res)
	}
	f.same(t, x)
}

func TestStoppedUpdateGoesOn(t *testing.T) {
	f := newFixture(t)
	f.add(t, 40)
	x, err := index.Open(t.Context(), index.Config{Dir: f.dir, Path: f.path})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	ctx, stop := context.WithCancel(t.Context())
	_, err = x.Update(ctx, func(index.Progress) { stop() }) // after the first segment
	if !errors.Is(err, context.Canceled) {
		t.Errorf("stopped Update = %v, want context.Canceled", err)
	}
	res, err := x.Update(t.Context(), nil)
	if err != nil || res.Anew || res.Added == 0 || res.Added == 41 {
		t.Errorf("Update = %+v, %v, want the rest", res, err)
	}
	f.same(t, x)
}

func BenchmarkUpdate(b *testing.B) {
	f := newFixture(b)
	f.add(b, 1)
	line, err := os.ReadFile(filepath.Join(f.dir, "000000000000.jsonl"))
	if err != nil {
		b.Fatal(err)
	}
	line = line[bytes.IndexByte(line, '\n')+1:]
	const n = 100_000
	var text []byte
	for i := range n {
		one := bytes.Replace(line, []byte(`"seq":1,`), fmt.Appendf(nil, `"seq":%d,`, i), 1)
		one = bytes.Replace(one, []byte(`"id":"id0"`), fmt.Appendf(nil, `"id":"01JJX00000000%013d"`, i), 1)
		text = append(text, bytes.Replace(one, []byte(`h0.example`), fmt.Appendf(nil, `h%d.example`, i%500), 1)...)
	}
	f.dir = b.TempDir()
	if err := os.WriteFile(filepath.Join(f.dir, "000000000000.jsonl"), text, 0o600); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		os.Remove(f.path)
		if _, res := f.open(b); res.Added != n {
			b.Fatal(res)
		}
	}
	b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "records/s")
}
