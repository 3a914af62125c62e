package ship_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"sallyport/audit"
	"sallyport/audit/query"
	"sallyport/audit/ship"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)

// log is a live log of small segments.
type log struct {
	*audit.Log
	dir string
	n   int
}

func newLog(t testing.TB) *log {
	t.Helper()
	base := t.TempDir()
	l := &log{dir: filepath.Join(base, "audit")}
	var err error
	l.Log, err = audit.Open(audit.Config{
		Dir: l.dir, KeyFile: filepath.Join(base, "key"), Interval: time.Hour, SegmentSize: 2000, Now: func() time.Time { return start },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func (l *log) add(t testing.TB, n int) {
	t.Helper()
	for range n {
		l.n++
		r := audit.Record{Kind: audit.Refuse, Verdict: "deny", Reason: "host_not_allowed", Host: "evil.example", Path: fmt.Sprintf("/%d/é\U0001F600\x1b", l.n)}
		if err := l.Append(t.Context(), &r); err != nil {
			t.Fatal(err)
		}
	}
}

// collector keeps what it was sent, unless it is told to fail.
type collector struct {
	mu   sync.Mutex // guards the rest
	got  []uint64
	fail func([]audit.Record) error
	told []ship.Notice
	more chan struct{} // something was sent or told
}

func newCollector() *collector { return &collector{more: make(chan struct{}, 1)} }

func (c *collector) signal() {
	select {
	case c.more <- struct{}{}:
	default:
	}
}

func (c *collector) send(_ context.Context, recs []audit.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.signal()
	if c.fail != nil {
		if err := c.fail(recs); err != nil {
			return err
		}
	}
	for _, r := range recs {
		c.got = append(c.got, r.Seq)
	}
	return nil
}

func (c *collector) tell(_ context.Context, r audit.Record) error {
	var n ship.Notice
	if err := json.Unmarshal(r.Data, &n); err != nil || r.Kind != audit.Ship {
		return fmt.Errorf("a notice of kind %s: %w", r.Kind, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.signal()
	c.told = append(c.told, n)
	return nil
}

func (c *collector) setFail(f func([]audit.Record) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail = f
}

// until waits for what the collector comes to have.
func (c *collector) until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for {
		c.mu.Lock()
		ok := is()
		c.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-c.more:
		case <-t.Context().Done():
			t.Fatalf("never came: %s", what)
		}
	}
}

// shipping runs a shipper; stop ends it, and returns its error.
func shipping(t *testing.T, cfg ship.Config) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ship.Run(ctx, cfg) }()
	return func() error {
		cancel()
		return <-done
	}
}

func (l *log) config(c *collector) ship.Config {
	return ship.Config{
		Dir: l.dir, Bookmark: filepath.Join(filepath.Dir(l.dir), "bookmark"), Target: "test", Send: c.send, Tell: c.tell,
		Now: func() time.Time { return start }, Batch: 7, Linger: time.Millisecond, Retry: time.Millisecond, Patience: time.Nanosecond,
	}
}

// upTo are the numbers from 0 up to n.
func upTo(n int) []uint64 {
	var out []uint64
	for i := range n {
		out = append(out, uint64(i))
	}
	return out
}

func TestEveryRecordIsShippedOnceInOrder(t *testing.T) {
	l, c := newLog(t), newCollector()
	l.add(t, 30)
	stop := shipping(t, l.config(c))
	c.until(t, "what was there", func() bool { return len(c.got) == 31 })
	l.add(t, 30) // over several segments, while it runs
	c.until(t, "what was added", func() bool { return len(c.got) == 61 })
	l.add(t, 3)
	if err := stop(); err != nil || len(c.got) != 64 { // what is left is sent at the end
		t.Fatalf("%d records were shipped, %v, want 64", len(c.got), err)
	}
	l.add(t, 3)
	stop = shipping(t, l.config(c)) // goes on where it was
	c.until(t, "the rest", func() bool { return len(c.got) == 67 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(upTo(67), c.got); diff != "" || len(c.told) != 0 {
		t.Errorf("told %v; shipped (-want +got):\n%s", c.told, diff)
	}
}

func TestCollectorThatIsDownMissesNothing(t *testing.T) {
	l, c := newLog(t), newCollector()
	c.setFail(func([]audit.Record) error { return errors.New("connection refused") })
	stop := shipping(t, func() ship.Config {
		cfg := l.config(c)
		now := start
		cfg.Now = func() time.Time { now = now.Add(time.Minute); return now }
		return cfg
	}())
	l.add(t, 100) // never waits for the collector
	c.until(t, "that it is behind", func() bool { return len(c.told) == 1 })
	if s := state(t, l.config(c)); s.Behind == nil || s.Error != "connection refused" || s.Next != 0 || s.Target != "test" {
		t.Errorf("the bookmark has %+v while the collector is out of reach", s)
	}
	c.setFail(nil)
	c.until(t, "all records", func() bool { return len(c.got) == 101 })
	c.until(t, "that it is back", func() bool { return len(c.told) == 2 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(upTo(101), c.got); diff != "" {
		t.Errorf("shipped (-want +got):\n%s", diff)
	}
	if s := state(t, l.config(c)); s.Behind != nil || s.Error != "" || s.Next != 101 || s.Dropped != 0 {
		t.Errorf("the bookmark has %+v at the end", s)
	}
	if a, b := c.told[0], c.told[1]; a.Cause != ship.Behind || b.Cause != ship.Back || a.Dropped+b.Dropped != 0 || a.Since == nil || !b.Since.Equal(*a.Since) {
		t.Errorf("told %+v", c.told)
	}
}

func TestWhatRetentionRemovedIsTold(t *testing.T) {
	l, c := newLog(t), newCollector()
	l.add(t, 60)
	segs, err := query.Segments(l.dir)
	if err != nil || len(segs) < 4 {
		t.Fatalf("%d segments, %v", len(segs), err)
	}
	for _, s := range segs[:3] {
		if err := os.Remove(s.Path); err != nil {
			t.Fatal(err)
		}
	}
	stop := shipping(t, l.config(c))
	first := segs[3].First
	c.until(t, "what is left", func() bool { return len(c.got) == 61-int(first) })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	want := []ship.Notice{{Target: "test", Cause: ship.Missing, Dropped: first, First: 0, Last: uint64(first) - 1}}
	if diff := cmp.Diff(want, c.told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(upTo(61)[first:], c.got); diff != "" {
		t.Errorf("shipped (-want +got):\n%s", diff)
	}
}

// One record that is refused takes no other with it.
func TestWhatACollectorRefusesIsTold(t *testing.T) {
	l, c := newLog(t), newCollector()
	l.add(t, 20)
	c.setFail(func(recs []audit.Record) error {
		for _, r := range recs {
			if r.Seq == 10 {
				return &ship.RejectedError{Err: errors.New("too odd")}
			}
		}
		return nil
	})
	stop := shipping(t, l.config(c))
	c.until(t, "the rest", func() bool { return len(c.got) == 20 && len(c.told) == 1 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	want := []ship.Notice{{Target: "test", Cause: ship.Rejected, Dropped: 1, First: 10, Last: 10}}
	if diff := cmp.Diff(want, c.told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

// A batch that is refused makes one notice, and that makes no other: they would never end.
func TestNoNoticeAboutNotices(t *testing.T) {
	l, c := newLog(t), newCollector()
	l.add(t, 3)
	c.setFail(func([]audit.Record) error { return &ship.RejectedError{Err: errors.New("no")} })
	cfg := l.config(c)
	cfg.Batch, cfg.Linger = 4, time.Hour // the four records that are there
	cfg.Tell = func(ctx context.Context, r audit.Record) error {
		return errors.Join(l.Append(ctx, &r), c.tell(ctx, r)) // as the gateway does
	}
	stop := shipping(t, cfg)
	c.until(t, "the notice", func() bool { return len(c.told) > 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
	want := []ship.Notice{{Target: "test", Cause: ship.Rejected, Dropped: 4, First: 0, Last: 3}}
	if diff := cmp.Diff(want, c.told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if s := state(t, cfg); s.Next != 5 || s.Dropped != 5 || s.Untold != 1 || s.UntoldFirst != 4 {
		t.Errorf("the bookmark has %+v, want that five were dropped, of which the notice was not told", s)
	}
	// The loss is told all the same, with the next one, by the next process.
	cfg.Batch = 1
	stop = shipping(t, cfg)
	l.add(t, 1)
	c.until(t, "another notice", func() bool { return len(c.told) > 1 })
	if err := stop(); err != nil {
		t.Error(err)
	}
	want = append(want, ship.Notice{Target: "test", Cause: ship.Rejected, Dropped: 2, First: 4, Last: 5})
	if diff := cmp.Diff(want, c.told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if s := state(t, cfg); s.Dropped != 7 || s.Untold != 1 || s.UntoldFirst != 6 {
		t.Errorf("the bookmark has %+v, want the last notice alone untold", s)
	}
}

// A collector cannot have refused more than it was sent, whatever it says.
func TestNoMoreIsRefusedThanWasSent(t *testing.T) {
	l, c := newLog(t), newCollector()
	l.add(t, 3)
	c.setFail(func([]audit.Record) error { return &ship.RejectedError{Count: math.MaxInt64, Err: errors.New("no")} })
	cfg := l.config(c)
	cfg.Batch, cfg.Linger = 2, time.Hour
	stop := shipping(t, cfg)
	c.until(t, "the notices", func() bool { return len(c.told) == 2 })
	if err := stop(); err != nil {
		t.Error(err)
	}
	if s := state(t, cfg); s.Dropped != 4 || c.told[0].Dropped != 2 || c.told[1].Dropped != 2 {
		t.Errorf("%d were dropped, told %+v, want all 4", s.Dropped, c.told)
	}
}

func state(t *testing.T, cfg ship.Config) ship.State {
	t.Helper()
	s, err := ship.ReadState(cfg.Bookmark)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What cannot be recorded is not passed over: the shipper waits until it can.
func TestANoticeIsNotLost(t *testing.T) {
	l, c := newLog(t), newCollector()
	l.add(t, 3)
	c.setFail(func([]audit.Record) error { return &ship.RejectedError{Err: errors.New("no")} })
	cfg := l.config(c)
	failed := 0
	cfg.Tell = func(ctx context.Context, r audit.Record) error {
		if failed++; failed < 4 {
			return errors.New("the gateway is not up yet")
		}
		return c.tell(ctx, r)
	}
	cfg.Batch, cfg.Linger = 4, time.Hour
	stop := shipping(t, cfg)
	c.until(t, "the notice", func() bool { return len(c.told) == 1 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// Where there is no room for the bookmark the shipper waits for it: what was handed over is
// not handed over again and again.
func TestBookmarkOnAFullDisk(t *testing.T) {
	l, c := newLog(t), newCollector()
	l.add(t, 3)
	small := t.TempDir()
	mount := func(flags uintptr, data string) {
		t.Helper()
		if err := syscall.Mount("tmpfs", small, "tmpfs", flags, data); err != nil {
			t.Fatal(err)
		}
	}
	mount(0, "size=4k")
	t.Cleanup(func() { _ = syscall.Unmount(small, syscall.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(small, "filler"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := l.config(c)
	cfg.Bookmark, cfg.Batch = filepath.Join(small, "bookmark"), 1
	stop := shipping(t, cfg)
	c.until(t, "the first record", func() bool { return len(c.got) > 0 })
	mount(syscall.MS_REMOUNT, "size=64k")
	c.until(t, "the rest", func() bool { return len(c.got) == 4 })
	if err := stop(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(upTo(4), c.got); diff != "" {
		t.Errorf("shipped (-want +got):\n%s", diff)
	}
	if s := state(t, cfg); s.Next != 4 {
		t.Errorf("the bookmark has %+v", s)
	}
}

// A batch that the collector has not taken is handed over again by the next process.
func TestStoppedShipperKeepsItsPlace(t *testing.T) {
	l, c := newLog(t), newCollector()
	l.add(t, 10)
	c.setFail(func(recs []audit.Record) error {
		if recs[0].Seq > 0 {
			return errors.New("gone")
		}
		return nil
	})
	cfg := l.config(c)
	cfg.Grace = time.Millisecond
	stop := shipping(t, cfg)
	c.until(t, "the first batch", func() bool { return len(c.got) > 0 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	c.setFail(nil)
	stop = shipping(t, l.config(c))
	c.until(t, "the rest", func() bool { return len(c.got) == 11 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(upTo(11), c.got); diff != "" {
		t.Errorf("shipped (-want +got):\n%s", diff)
	}
}

func TestBookmarkThatCannotBeReadIsAnError(t *testing.T) {
	l, c := newLog(t), newCollector()
	cfg := l.config(c)
	if err := os.WriteFile(cfg.Bookmark, []byte("seven"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ship.Run(t.Context(), cfg); err == nil || len(c.got) > 0 {
		t.Errorf("Run = %v after %d records, want an error", err, len(c.got))
	}
}
