package audit_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/query"
	"sallyport/audit/segment"
	"sallyport/audit/verify"
)

// stepClock is moved by the test alone.
type stepClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *stepClock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *stepClock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newClock() *stepClock { return &stepClock{now: time.Unix(1_800_000_000, 0)} }

// segments returns the names of a log's segments.
func segments(t testing.TB, dir string) []string {
	t.Helper()
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, n := range names {
		if _, _, ok := segment.Parse(n.Name()); ok {
			out = append(out, n.Name())
		}
	}
	return out
}

// allRecords reads a log as query does, packed or not.
func allRecords(t testing.TB, dir string) []audit.Record {
	t.Helper()
	var out []audit.Record
	for r, err := range query.Records(dir, query.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func TestSegmentEndsByAge(t *testing.T) {
	cfg, clock := daily(t)
	l := mustOpen(t, cfg)
	for range 4 {
		mustAppend(t, l, admit(1), admit(2))
		clock.move(40 * time.Minute)
	}
	mustClose(t, l)
	if got := segments(t, cfg.Dir); len(got) != 3 {
		t.Errorf("segments after 160 minutes: %q, want 3", got)
	}
	l = mustOpen(t, cfg) // the age of a segment is known over a restart
	clock.move(70 * time.Minute)
	mustAppend(t, l, admit(3))
	mustClose(t, l)
	if got := segments(t, cfg.Dir); len(got) != 4 {
		t.Errorf("segments after a restart and an hour: %q, want 4", got)
	}
	if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
		t.Errorf("Verify: %v", r)
	}
}

// packedLog fills a log whose old segments are packed, and closes it.
func packedLog(t testing.TB, cfg audit.Config, n int) *audit.Log {
	t.Helper()
	cfg.Pack, cfg.SegmentSize = true, 4000
	l := mustOpen(t, cfg)
	for i := range n {
		mustAppend(t, l, admit(i))
	}
	eventually(t, func() bool {
		names := segments(t, cfg.Dir)
		plain := 0
		for _, n := range names {
			if strings.HasSuffix(n, ".jsonl") {
				plain++
			}
		}
		return len(names) > 3 && plain == 1
	})
	mustClose(t, l)
	return l
}

func TestOldSegmentsArePacked(t *testing.T) {
	cfg := config(t)
	l := packedLog(t, cfg, 100)
	r := mustVerify(t, cfg, l.Verifier())
	if !r.Whole() || len(r.Unknown) > 0 {
		t.Errorf("Verify: %v", r)
	}
	recs := allRecords(t, cfg.Dir)
	admits, packs := 0, 0
	for i, rec := range recs {
		if rec.Seq != uint64(i) {
			t.Fatalf("record %d stands at place %d", rec.Seq, i)
		}
		switch rec.Kind {
		case audit.Admit:
			admits++
		case audit.LogPack:
			packs++
			var d struct {
				File          string
				Bytes, Packed int64
			}
			mustUnmarshal(t, rec.Data, &d)
			st, err := os.Stat(filepath.Join(cfg.Dir, d.File))
			if err != nil || st.Size() != d.Packed || d.Packed >= d.Bytes || st.Mode().Perm() != 0o640 {
				t.Errorf("%+v: %v, %v", d, st, err)
			}
		default:
		}
	}
	packed := 0
	for _, name := range segments(t, cfg.Dir) {
		if strings.HasSuffix(name, segment.PackedSuffix) {
			packed++
		}
	}
	if admits != 100 || packs != packed || packed < 3 { // the last before log.close may have ended with it
		t.Errorf("%d admits and %d packs in %q", admits, packs, segments(t, cfg.Dir))
	}
	// It goes on, also when the hash file has to be made anew.
	for _, lose := range []bool{false, true} {
		if lose {
			if err := os.Remove(filepath.Join(cfg.Dir, "tree")); err != nil {
				t.Fatal(err)
			}
		}
		l = mustOpen(t, cfg)
		mustAppend(t, l, admit(1))
		mustClose(t, l)
		if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() || len(r.Absent) > 0 {
			t.Errorf("Verify after going on: %v", r)
		}
	}
}

// TestPackedSegmentMissing: what is missing is seen when the log is opened.
func TestPackedSegmentMissing(t *testing.T) {
	cfg := config(t)
	packedLog(t, cfg, 100)
	names := segments(t, cfg.Dir)
	for _, name := range []string{names[0], names[1], names[len(names)-1]} {
		away := filepath.Join(cfg.Dir, "..", name)
		if err := os.Rename(filepath.Join(cfg.Dir, name), away); err != nil {
			t.Fatal(err)
		}
		var bad *audit.RecoveryError
		if l, err := audit.Open(cfg); !errors.As(err, &bad) {
			t.Errorf("Open without %s = %v, %v", name, l, err)
		}
		_ = os.Remove(filepath.Join(cfg.Dir, name)) // Open may have made an empty one
		if err := os.Rename(away, filepath.Join(cfg.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, mustOpen(t, cfg))
}

// daily returns a config whose clock the test moves.
func daily(t testing.TB) (audit.Config, *stepClock) {
	t.Helper()
	cfg, clock := config(t), newClock()
	cfg.Now, cfg.SegmentAge = clock.read, time.Hour
	return cfg, clock
}

// days fills a log for so many days, 30 records a day, each in its segment.
func days(t testing.TB, cfg audit.Config, clock *stepClock, n int) *audit.Log {
	t.Helper()
	l := mustOpen(t, cfg)
	for range n {
		for i := range 30 {
			mustAppend(t, l, admit(i))
		}
		clock.move(24 * time.Hour)
	}
	mustAppend(t, l, admit(0))
	return l
}

func TestRetention(t *testing.T) {
	for _, pack := range []bool{false, true} {
		cfg, clock := daily(t)
		cfg.Pack = pack
		l := days(t, cfg, clock, 10)
		if pack {
			eventually(t, func() bool { return strings.HasSuffix(segments(t, cfg.Dir)[9], ".zst") })
		}
		if got, err := l.Retain(100 * 24 * time.Hour); err != nil || got.Records != 0 {
			t.Errorf("nothing is so old, and Retain = %+v, %v", got, err)
		}
		old, err := l.Checkpoint(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got, err := l.Retain(3 * 24 * time.Hour)
		if err != nil || len(got.Segments) != 7 || got.First != got.Records || got.First < 210 {
			t.Fatalf("Retain = %+v, %v", got, err)
		}
		if names := segments(t, cfg.Dir); len(names) != 4 || !strings.HasPrefix(names[0], segment.Name(got.First)) {
			t.Errorf("segments after it: %q, want those from %d on", names, got.First)
		}
		mustClose(t, l)
		check := func(what string) {
			t.Helper()
			anchor, err := os.ReadFile(cfg.KeyFile + ".anchor")
			if err != nil {
				t.Fatal(err)
			}
			r, err := verify.Verify(cfg.Dir, l.Verifier(), verify.Options{Anchors: [][]byte{old, anchor}})
			if err != nil || !r.Whole() || r.Retained == nil || r.Retained.Records != got.First {
				t.Fatalf("%s: Verify = %v, %v", what, r, err)
			}
			if !strings.Contains(r.String(), "were removed in order on 2027") {
				t.Errorf("%s: Verify does not name the removal: %s", what, r)
			}
			p, err := verify.Prove(cfg.Dir, l.Verifier(), allRecords(t, cfg.Dir)[5].ID, verify.Options{})
			if err != nil {
				t.Fatalf("%s: Prove: %v", what, err)
			}
			if err := p.Check(l.Verifier()); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		check("after the removal")
		told := slices.IndexFunc(allRecords(t, cfg.Dir), func(r audit.Record) bool { return r.Kind == audit.LogRetain })
		if told < 0 {
			t.Error("no record tells of the removal")
		}
		l = mustOpen(t, cfg)
		mustAppend(t, l, admit(1))
		mustClose(t, l)
		check("after a restart")
		if err := os.Remove(filepath.Join(cfg.Dir, "tree")); err != nil {
			t.Fatal(err)
		}
		l = mustOpen(t, cfg)
		clock.move(50 * 24 * time.Hour)
		mustAppend(t, l, admit(1))
		mustClose(t, l)
		check("after a restart without the hash file")
		l = mustOpen(t, cfg)
		if got, err = l.Retain(24 * time.Hour); err != nil || got.Records == 0 || !got.From.Equal(time.Unix(1_800_000_000, 0)) {
			t.Errorf("a second Retain = %+v, %v", got, err)
		}
		mustClose(t, l)
		check("after a second removal")
	}
}

// TestRetentionByItself removes what is beyond Config.Keep without being asked.
func TestRetentionByItself(t *testing.T) {
	cfg, clock := daily(t)
	cfg.Keep = 2 * 24 * time.Hour
	l := days(t, cfg, clock, 5)
	eventually(t, func() bool { return len(segments(t, cfg.Dir)) == 3 })
	mustClose(t, l)
	if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() || r.Retained == nil {
		t.Errorf("Verify: %v", r)
	}
}

// TestRetentionRemovesOnlyWhatIsGood: evidence is not thrown away.
func TestRetentionRemovesOnlyWhatIsGood(t *testing.T) {
	cfg, clock := daily(t)
	l := days(t, cfg, clock, 4)
	names := segments(t, cfg.Dir)
	path := filepath.Join(cfg.Dir, names[1])
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := []byte(strings.Replace(string(good), "api.stripe.com", "api.stripe.con", 1))
	if err := os.WriteFile(path, bad, 0o640); err != nil {
		t.Fatal(err)
	}
	if got, err := l.Retain(24 * time.Hour); err == nil || !strings.Contains(err.Error(), "not those that were signed") {
		t.Errorf("Retain of a changed segment = %+v, %v", got, err)
	}
	if got := segments(t, cfg.Dir); !slices.Equal(got, names) {
		t.Errorf("segments after it: %q, want %q", got, names)
	}
	if err := os.WriteFile(path, good, 0o640); err != nil {
		t.Fatal(err)
	}
	if got, err := l.Retain(24 * time.Hour); err != nil || got.Records == 0 {
		t.Errorf("Retain of what was put right = %+v, %v", got, err)
	}
	mustClose(t, l)
}

// TestRetentionIsInterrupted: after a crash at any step the log verifies or
// says what is left over, opens, and ends what was begun.
func TestRetentionIsInterrupted(t *testing.T) {
	cfg, clock := daily(t)
	l := days(t, cfg, clock, 6)
	before := cfg.Dir + ".before"
	if err := os.CopyFS(before, os.DirFS(cfg.Dir)); err != nil {
		t.Fatal(err)
	}
	got, err := l.Retain(2 * 24 * time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, l)
	for k := range got.Segments { // k files were not removed yet
		name := got.Segments[len(got.Segments)-1-k]
		data, err := os.ReadFile(filepath.Join(before, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(cfg.Dir, name), data, 0o640); err != nil {
			t.Fatal(err)
		}
		r := mustVerify(t, cfg, l.Verifier())
		if len(r.Leftover) != k+1 || !strings.Contains(r.String(), "not looked at: ") {
			t.Errorf("%d files left over: Verify = %v", k+1, r)
		}
	}
	l = mustOpen(t, cfg)
	mustClose(t, l)
	if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() || len(r.Leftover) > 0 {
		t.Errorf("Verify after a restart: %v", r)
	}
}

// TestRemovalFails: what was told to be removed, and could not be, is removed with the
// next try, whether more is old by then or not.
func TestRemovalFails(t *testing.T) {
	cfg, clock := daily(t)
	l := days(t, cfg, clock, 6)
	inTheWay := filepath.Join(cfg.Dir, "000000000000.jsonl.zst", "x")
	if err := os.MkdirAll(inTheWay, 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Retain(2 * 24 * time.Hour); err == nil {
		t.Fatal("Retain = nil, and a directory is in the way")
	}
	if _, err := l.Retain(2 * 24 * time.Hour); err == nil {
		t.Error("Retain = nil, and a directory is still in the way")
	}
	mustAppend(t, l, admit(1))
	if err := os.RemoveAll(filepath.Dir(inTheWay)); err != nil {
		t.Fatal(err)
	}
	if got, err := l.Retain(2 * 24 * time.Hour); err != nil || got.Records != 0 {
		t.Errorf("Retain = %+v, %v, want nothing more", got, err)
	}
	if r := mustVerify(t, cfg, l.Verifier()); len(r.Leftover) > 0 || r.Retained == nil {
		t.Errorf("Verify: %v", r)
	}
	mustClose(t, l)
}

// TestKeepingFails: what cannot be packed or noted stays as it was, and a
// record says so.
func TestKeepingFails(t *testing.T) {
	for _, f := range []struct{ op, file string }{{"write", ".zst.new"}, {"sync", ".zst.new"}, {"open", ".zst.new"}, {"write", "retained.new"}, {"sync", "retained.new"}, {"open", "retained.new"}} {
		for _, w := range []when{before, after, short} {
			var fsys faultFS
			cfg, clock := daily(t)
			cfg = cfg.WithOpener(fsys.open)
			fsys.arm(f.op, f.file, w, -1)
			cfg.Pack, cfg.Keep = f.file != "retained.new", 2*24*time.Hour
			if cfg.Pack {
				cfg.Keep = 0
			}
			l := days(t, cfg, clock, 4)
			kind := audit.LogPack
			if !cfg.Pack {
				kind = audit.LogRetain
			}
			eventually(t, func() bool {
				return slices.ContainsFunc(allRecords(t, cfg.Dir), func(r audit.Record) bool { return r.Kind == kind && r.Error != "" })
			})
			if err := l.Ready(); err != nil {
				t.Errorf("%v: Ready = %v", f, err)
			}
			mustClose(t, l)
			for _, name := range segments(t, cfg.Dir) {
				if strings.HasSuffix(name, ".zst") {
					t.Errorf("%v: %s is there", f, name)
				}
			}
			if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() || r.Retained != nil || r.Segments != 5 {
				t.Errorf("%v: Verify = %v", f, r)
			}
			fsys.arm("", "", 0, 0)
			l = mustOpen(t, cfg)
			eventually(t, func() bool {
				if cfg.Pack {
					return strings.HasSuffix(segments(t, cfg.Dir)[0], ".zst")
				}
				_, err := os.Stat(filepath.Join(cfg.Dir, "retained"))
				return !errors.Is(err, fs.ErrNotExist)
			})
			mustClose(t, l)
			if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
				t.Errorf("%v: Verify when it works again = %v", f, r)
			}
		}
	}
}

// TestRetentionAfterAWrongClock: what a clock that was ahead left does not keep the log from
// being removed in its time, and what one that was behind left has nothing removed early.
func TestRetentionAfterAWrongClock(t *testing.T) {
	const ahead, behind = 20 * 365 * 24 * time.Hour, -20 * 365 * 24 * time.Hour
	for _, wrong := range [][]time.Duration{{ahead}, {behind}, {ahead, behind}, {behind, ahead}} {
		cfg, clock := daily(t)
		l := days(t, cfg, clock, 2)
		for _, by := range wrong {
			clock.move(by)
			mustAppend(t, l, admit(0)) // in a segment of its own
			clock.move(-by)
		}
		clock.move(time.Minute)
		if got, err := l.Retain(30 * time.Hour); err != nil || len(got.Segments) != 0 {
			t.Errorf("%v: Retain at once = %+v, %v", wrong, got, err)
		}
		mustAppend(t, l, admit(0)) // and so is this
		if n := len(segments(t, cfg.Dir)); n != 4+len(wrong) {
			t.Errorf("%v: segments %q", wrong, segments(t, cfg.Dir))
		}
		clock.move(25 * time.Hour)
		mustAppend(t, l, admit(0))
		got, err := l.Retain(24 * time.Hour)
		if err != nil || len(got.Segments) != 3+len(wrong) {
			t.Errorf("%v: Retain after a day = %+v, %v; left are %q", wrong, got, err, segments(t, cfg.Dir))
		}
		mustClose(t, l)
		if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
			t.Errorf("%v: Verify: %v", wrong, r)
		}
		mustClose(t, mustOpen(t, cfg))
	}
}
