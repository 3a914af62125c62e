package audit_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
)

// callFS is the real file system, until its so-manieth call.
type callFS struct {
	audit.DiskIO
	mu    sync.Mutex
	on    bool
	names []string // of the calls since it is on
	at    int      // the first call that fails; 0 is none
	times int      // how many more fail with it; -1 all
	when  when
	fail  func() // called at the first
}

var errCall = &fs.PathError{Op: "call", Path: "of the test", Err: syscall.EIO}

// call makes one call, or not, and reports whether it is to fail.
func (f *callFS) call(name, path string, do func(half bool) error) error {
	f.mu.Lock()
	if f.on {
		f.names = append(f.names, name+" "+filepath.Base(path))
	}
	n := len(f.names) - f.at
	fails := f.on && f.at > 0 && n >= 0 && (f.times < 0 || n <= f.times)
	if fails && n == 0 {
		f.fail()
	}
	f.mu.Unlock()
	if fails && f.when == before {
		return errCall
	}
	if err := do(fails && f.when == short); err != nil {
		return err
	}
	if fails {
		return errCall
	}
	return nil
}

func (f *callFS) Open(path string, flag int, perm fs.FileMode) (file audit.File, err error) {
	err = f.call("open", path, func(bool) (err error) { file, err = f.DiskIO.Open(path, flag, perm); return err })
	if err != nil {
		if file != nil {
			file.Close()
		}
		return nil, err
	}
	return &callFile{file, path, f}, nil
}

func (f *callFS) Rename(from, to string) error {
	return f.call("rename", to, func(bool) error { return f.DiskIO.Rename(from, to) })
}

func (f *callFS) Remove(path string) error {
	return f.call("remove", path, func(bool) error { return f.DiskIO.Remove(path) })
}

func (f *callFS) SyncDir(path string) error {
	return f.call("syncdir", path, func(bool) error { return f.DiskIO.SyncDir(path) })
}

type callFile struct {
	audit.File
	path string
	fs   *callFS
}

func (f *callFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.fs.call("write", f.path, func(half bool) (err error) {
		if half {
			p = p[:len(p)/2]
		}
		n, err = f.File.WriteAt(p, off)
		return err
	})
	return n, err
}

func (f *callFile) Truncate(n int64) error {
	return f.fs.call("truncate", f.path, func(bool) error { return f.File.Truncate(n) })
}

func (f *callFile) Sync() error {
	return f.fs.call("sync", f.path, func(bool) error { return f.File.Sync() })
}

func (f *callFile) Close() error {
	err := f.fs.call("close", f.path, func(bool) error { return nil })
	return errors.Join(f.File.Close(), err)
}

// story is what a log lives through while calls fail.
type story struct {
	t     *testing.T
	cfg   audit.Config
	clock *stepClock
	fs    *callFS
	log   *audit.Log // nil while it is not open
	acked map[string]uint64
	not   map[string]bool // refused
	n     int
}

func (s *story) open() {
	for range 3 {
		l, err := audit.Open(s.cfg)
		if err == nil {
			l.NoFlusher()
			s.log = l
			return
		}
	}
}

func (s *story) append(n int) {
	for range n {
		s.n++
		if s.log == nil {
			continue
		}
		r := admit(s.n)
		if err := s.log.Append(s.t.Context(), r); err != nil {
			s.not[r.Path] = true
			continue
		}
		s.acked[r.Path] = r.Seq
		_ = s.log.Append(s.t.Context(), &audit.Record{Kind: audit.Done, Ref: r.ID})
	}
}

// do does what a log offers, twice if it fails: what fails is tried again later.
func (s *story) do(f func(*audit.Log) error) {
	if s.log != nil && f(s.log) != nil {
		_ = f(s.log)
	}
}

func (s *story) sign() {
	s.do(func(l *audit.Log) error { _, err := l.Checkpoint(s.t.Context()); return err })
}

func (s *story) pack() { s.do((*audit.Log).PackAll) }

func (s *story) retain(keep time.Duration) {
	s.do(func(l *audit.Log) error { _, err := l.Retain(keep); return err })
}

// fail has calls fail from here on.
func (s *story) fail() { s.fs.on = true }

// later lets a segment's time pass.
func (s *story) later() { s.clock.move(2 * time.Hour) }

func (s *story) close() {
	if s.log != nil {
		_ = s.log.Close()
		s.log = nil
	}
}

var stories = []struct {
	name string
	live func(s *story)
	lost bool // a hand takes what only the process has
}{
	{"grows", func(s *story) {
		s.fail()
		s.open()
		s.append(2)
		s.later()
		s.append(2) // in the second segment
		s.sign()
		s.later()
		s.append(1) // in the third
	}, false},
	{"packs and retains", func(s *story) {
		s.open()
		s.append(2)
		s.later()
		s.append(1)
		s.later()
		s.append(1)
		s.fail()
		s.pack()
		s.retain(time.Hour)
		s.append(1)
	}, false},
	{"opens again", func(s *story) {
		s.open()
		s.append(2)
		s.later()
		s.append(1)
		s.pack()
		s.fail()
		s.close()
		s.open()
		s.append(1)
		s.later()
		s.append(1)
		s.retain(time.Hour)
	}, false},
	{"is deleted file by file", func(s *story) {
		s.open()
		s.append(2)
		s.sign()
		s.fail()
		_ = errors.Join(os.Remove(s.newest()), os.Remove(filepath.Join(s.cfg.Dir, "checkpoints")))
		s.sign() // finds it
		s.append(2)
	}, true},
	{"is deleted with its directory", func(s *story) {
		s.open()
		s.append(1)
		s.later()
		s.append(1)
		s.clock.move(30 * time.Minute)
		s.retain(10 * time.Minute)
		s.fail()
		if names, _ := filepath.Glob(filepath.Join(s.cfg.Dir, "*.jsonl")); len(names) == 1 { // nobody else has the others
			_ = os.RemoveAll(s.cfg.Dir)
		}
		s.sign()
		s.append(2)
	}, true},
}

// TestEveryCallFails has each call of each story fail: before its effect, after it and
// half-way; once, for a while, and until the process dies; with the clock set back or forth
// meanwhile. No record that was acted upon is lost, and the log goes on.
func TestEveryCallFails(t *testing.T) {
	type fault struct {
		when  when
		times int
		clock time.Duration
	}
	faults := []fault{
		{before, 0, -90 * time.Minute}, // so that a segment is no longer as old as its end was
		{after, 0, -90 * time.Minute},
		{short, 0, -3 * time.Hour},
		{before, 2, 30 * time.Hour},
		{after, 2, 30 * time.Hour},
		{before, -1, -3 * time.Hour}, // as after the call before it
		{short, -1, 0},
	}
	for _, tt := range stories {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			whole := newStory(t)
			tt.live(whole)
			names := whole.fs.names
			whole.close()
			whole.check(t, false)
			for at, name := range names {
				for _, f := range faults {
					if f.when == short && !strings.HasPrefix(name, "write") {
						continue
					}
					s := newStory(t)
					s.fs.at, s.fs.when, s.fs.times = at+1, f.when, f.times
					s.fs.fail = func() { s.clock.move(f.clock) }
					tt.live(s)
					if !s.after(t, f.times < 0, tt.lost) {
						t.Errorf("so it is if call %d (%s) and %d more fail %d, and the clock moves %v", at+1, name, f.times, f.when, f.clock)
					}
				}
			}
			t.Logf("%d calls", len(names))
		})
	}
}

func newStory(t *testing.T) *story {
	cfg, clock := daily(t)
	f := &callFS{DiskIO: audit.RealDisk(), fail: func() {}}
	return &story{t: t, cfg: cfg.WithDisk(f), clock: clock, fs: f, acked: map[string]uint64{}, not: map[string]bool{}}
}

func (s *story) end() {
	if s.log != nil {
		_ = s.log.Abandon()
	}
	os.RemoveAll(filepath.Dir(s.cfg.Dir))
}

// after ends a story: the process dies, or what failed is over. It reports whether all is well.
func (s *story) after(t *testing.T, dies, lost bool) bool {
	defer s.end()
	if dies && s.log != nil {
		_ = s.log.Abandon()
		s.log = nil
	}
	s.fs.mu.Lock()
	s.fs.on = false
	s.fs.mu.Unlock()
	if s.log == nil {
		l, err := audit.Open(s.cfg)
		if _, told := errors.AsType[*audit.RecoveryError](err); told && dies && lost {
			return true // only the process had it
		}
		if err != nil {
			t.Error(err)
			return false
		}
		s.log = l
	}
	n := len(s.acked)
	s.append(1)
	if err := s.log.Ready(); len(s.acked) != n+1 || err != nil {
		t.Errorf("it does not go on: %v", err)
		return false
	}
	err := s.log.Close()
	s.log = nil
	if err != nil {
		t.Errorf("Close: %v", err)
		return false
	}
	if s.log, err = audit.Open(s.cfg); err != nil {
		t.Error(err)
		return false
	}
	err = s.log.Close()
	s.log = nil
	if err != nil {
		t.Errorf("Close: %v", err)
	}
	return s.check(t, dies) && err == nil
}

// check compares the log with what was promised.
func (s *story) check(t *testing.T, died bool) (good bool) {
	t.Helper()
	public, err := os.ReadFile(filepath.Join(s.cfg.Dir, "log.pub"))
	if err != nil {
		t.Error(err)
		return false
	}
	r := mustVerify(t, s.cfg, strings.TrimSpace(string(public)))
	halfDone := slices.DeleteFunc(r.Unknown, func(name string) bool { return strings.HasSuffix(name, ".new") })
	good = r.Whole() && len(halfDone)+len(r.Absent) == 0
	if !good {
		t.Errorf("Verify: %v", r)
	}
	recs := allRecords(t, s.cfg.Dir)
	there := map[string]bool{}
	for _, rec := range recs {
		there[rec.Path] = true
		if s.not[rec.Path] && !died {
			t.Errorf("%s was refused, and is in the log", rec.Path)
			good = false
		}
	}
	for path, seq := range s.acked {
		if !there[path] && seq >= recs[0].Seq {
			t.Errorf("%s was acknowledged, and is not in the log", path)
			good = false
		}
	}
	return good
}

// newest returns the path of the segment that is written to.
func (s *story) newest() string {
	names, _ := filepath.Glob(filepath.Join(s.cfg.Dir, "*.jsonl"))
	return slices.Max(append(names, ""))
}
