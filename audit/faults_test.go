package audit_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/verify"
)

// faultFS is the real file system, until it is told to fail.
type faultFS struct {
	mu   sync.Mutex
	op   string // open, write, truncate, sync, or "" for none
	file string // part of the name
	when when
	left int // how many more times it fails; -1 is for ever
	hits int

	after   func()        // called when it has failed, before it says so
	errno   syscall.Errno // what it says; 0 is ENOSPC of writes, EIO of the rest
	written [][]byte      // to segments
}

type when int

const (
	before when = iota + 1 // the effect is lost
	after                  // the effect is kept, and the answer lost
	short                  // half of a write is kept
)

func (f *faultFS) arm(op, file string, w when, times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.op, f.file, f.when, f.left, f.hits = op, file, w, times, 0
}

func (f *faultFS) hit(op, path string) (when, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.op != op || f.left == 0 || !strings.Contains(filepath.Base(path), f.file) {
		return 0, false
	}
	f.left--
	f.hits++
	return f.when, true
}

func (f *faultFS) note(p []byte, path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if filepath.Ext(path) == ".jsonl" {
		f.written = append(f.written, bytes.Clone(p))
	}
}

func (f *faultFS) open(path string, flag int, perm fs.FileMode) (audit.File, error) {
	if _, ok := f.hit("open", path); ok {
		return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.EIO}
	}
	file, err := audit.OpenFile(path, flag, perm)
	if err != nil {
		return nil, err
	}
	return &faultFile{file, path, f}, nil
}

type faultFile struct {
	audit.File
	path string
	fs   *faultFS
}

func (f *faultFile) WriteAt(p []byte, off int64) (int, error) {
	w, ok := f.fs.hit("write", f.path)
	if !ok {
		f.fs.note(p, f.path)
		return f.File.WriteAt(p, off)
	}
	n := 0
	switch w {
	case before:
	case after:
		n, _ = f.File.WriteAt(p, off)
	case short:
		n, _ = f.File.WriteAt(p[:len(p)/2], off)
	}
	if f.fs.after != nil {
		f.fs.after()
	}
	if f.fs.errno != 0 {
		return n, &fs.PathError{Op: "write", Path: f.path, Err: f.fs.errno}
	}
	return n, &fs.PathError{Op: "write", Path: f.path, Err: syscall.ENOSPC}
}

func (f *faultFile) Truncate(n int64) error {
	w, ok := f.fs.hit("truncate", f.path)
	if ok && w == before {
		return &fs.PathError{Op: "truncate", Path: f.path, Err: syscall.EIO}
	}
	err := f.File.Truncate(n)
	if ok {
		return &fs.PathError{Op: "truncate", Path: f.path, Err: syscall.EIO}
	}
	return err
}

func (f *faultFile) Sync() error {
	w, ok := f.fs.hit("sync", f.path)
	if ok && w == before {
		return &fs.PathError{Op: "sync", Path: f.path, Err: syscall.EIO}
	}
	err := f.File.Sync()
	if ok {
		return &fs.PathError{Op: "sync", Path: f.path, Err: syscall.EIO}
	}
	return err
}

// mustVerify checks a log with the independent reader.
func mustVerify(t testing.TB, cfg audit.Config, key string) verify.Report {
	t.Helper()
	anchor, err := os.ReadFile(cfg.KeyFile + ".anchor")
	if err != nil {
		t.Fatal(err)
	}
	r, err := verify.Verify(cfg.Dir, key, verify.Options{Anchors: [][]byte{anchor}})
	if err != nil {
		t.Fatalf("Verify: %v", err)
	}
	return r
}

// ledger keeps what Append promised.
type ledger struct {
	written, refused map[string]bool
}

func (g *ledger) append(t testing.TB, l *audit.Log, i int) error {
	t.Helper()
	r := admit(i)
	err := l.Append(t.Context(), r)
	if err == nil {
		g.written[r.Path] = true
	} else {
		g.refused[r.Path] = true
	}
	return err
}

// check compares the promises with the log.
func (g *ledger) check(t testing.TB, recs []audit.Record) {
	t.Helper()
	there := map[string]bool{}
	for _, r := range recs {
		if r.Kind != audit.Admit {
			continue
		}
		there[r.Path] = true
		if g.refused[r.Path] {
			t.Errorf("%s was refused, and is in the log", r.Path)
		}
	}
	for p := range g.written {
		if !there[p] {
			t.Errorf("%s was acknowledged, and is not in the log", p)
		}
	}
}

// TestFault breaks each step of the writer, with the effect lost, kept and
// half kept, once and for a while.
func TestFault(t *testing.T) {
	type fault struct {
		op, file string
		when     when
		times    int
	}
	var tests []fault
	for _, times := range []int{1, 5} {
		for _, file := range []string{".jsonl", "checkpoints", "tree", ".anchor"} {
			for _, w := range []when{before, after, short} {
				tests = append(tests, fault{"write", file, w, times})
			}
			tests = append(tests, fault{"sync", file, before, times}, fault{"sync", file, after, times}, fault{"open", file, before, times})
		}
		tests = append(tests, fault{"truncate", ".jsonl", before, times}, fault{"truncate", ".jsonl", after, times})
	}
	for _, d := range []audit.Durability{audit.Process, audit.Disk} {
		for _, f := range tests {
			t.Run(fmt.Sprintf("%v/%s%s/%d/%d", d, f.op, f.file, f.when, f.times), func(t *testing.T) {
				var fsys faultFS
				cfg := config(t).WithOpener(fsys.open)
				cfg.Durability, cfg.SegmentSize = d, 3000
				testFault(t, cfg, &fsys, f.op, f.file, f.when, f.times)
			})
		}
	}
}

func testFault(t *testing.T, cfg audit.Config, fsys *faultFS, op, file string, w when, times int) {
	l := mustOpen(t, cfg)
	g := ledger{map[string]bool{}, map[string]bool{}}
	fsys.arm(op, file, w, times)
	failed := 0
	for i := range 40 {
		if op == "truncate" && i == 10 { // something to truncate
			fsys.arm("write", file, short, 1)
		}
		if op == "truncate" && i == 11 {
			fsys.arm(op, file, w, times)
		}
		if g.append(t, l, i) != nil {
			failed++
			if l.Ready() == nil {
				t.Errorf("Append %d failed, and the log says that it is ready", i)
			}
		}
		if i%7 == 6 {
			_, _ = l.Checkpoint(t.Context())
		}
	}
	if fsys.hits == 0 && !(op == "sync" && file == ".jsonl" || op == "open") {
		t.Error("the fault never struck")
	}
	fsys.arm("", "", 0, 0)
	if err := g.append(t, l, 100); err != nil {
		t.Errorf("Append after the fault is over: %v", err)
	}
	if err := l.Ready(); err != nil {
		t.Errorf("Ready after the fault is over: %v", err)
	}
	mustClose(t, l)
	recs := records(t, cfg.Dir)
	g.check(t, recs)
	gaps, told := 0, 0
	for _, r := range recs {
		if r.Kind == audit.Gap {
			gaps++
			var data struct{ Refused int }
			mustUnmarshal(t, r.Data, &data)
			told += data.Refused
		}
	}
	if told != failed || failed > 0 && gaps == 0 {
		t.Errorf("%d records were refused, and %d gap records tell of %d", failed, gaps, told)
	}
	if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
		t.Errorf("Verify: %+v", r)
	}
	l = mustOpen(t, cfg)
	mustClose(t, l)
	if k := kinds(records(t, cfg.Dir)); len(k) != len(recs)+2 {
		t.Errorf("opening and closing added %d records, want 2", len(k)-len(recs))
	}
}

// TestFailedSyncIsWrittenAgain: a kernel may drop what it could not write, and
// call the next sync a success. So after a failure the bytes are written anew
// before they are synced, and only then signed.
func TestFailedSyncIsWrittenAgain(t *testing.T) {
	var fsys faultFS
	cfg := config(t).WithOpener(fsys.open)
	l := mustOpen(t, cfg)
	mustAppend(t, l, admit(1), admit(2))
	fsys.arm("sync", ".jsonl", before, 1)
	if _, err := l.Checkpoint(t.Context()); !errors.Is(err, syscall.EIO) {
		t.Fatalf("Checkpoint = %v, want EIO", err)
	}
	path := filepath.Join(cfg.Dir, "000000000000.jsonl")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fsys.mu.Lock()
	fsys.written = nil
	fsys.mu.Unlock()
	mustAppend(t, l, admit(3))
	fsys.mu.Lock()
	again := fsys.written
	fsys.mu.Unlock()
	open := bytes.IndexByte(good, '\n') + 1 // log.open was synced when the log began
	if len(again) == 0 || !bytes.Equal(again[0], good[open:]) {
		t.Errorf("after the failed sync %q was written, want first %q again", again, good[open:])
	}
	mustClose(t, l)
	if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
		t.Errorf("Verify: %v", r)
	}
}

// TestFaultMendsItself does without a caller: health is what lets callers in.
func TestFaultMendsItself(t *testing.T) {
	var fsys faultFS
	cfg := config(t).WithOpener(fsys.open)
	cfg.Interval = time.Millisecond
	l := mustOpen(t, cfg)
	defer l.Close()
	fsys.arm("write", ".jsonl", before, 3)
	if err := l.Append(t.Context(), admit(1)); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Append = %v, want ENOSPC", err)
	}
	eventually(t, func() bool { return l.Ready() == nil })
	recs := records(t, cfg.Dir)
	if k := recs[len(recs)-1].Kind; k != audit.Gap {
		t.Errorf("last record is %v, want the gap", k)
	}
	mustAppend(t, l, admit(2))
}

// TestEachErrorStopsTheLogAndIsTold: whatever the file system says, records are
// refused with it, the log goes on when it is over, and the gap tells why.
func TestEachErrorStopsTheLogAndIsTold(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EROFS, syscall.EFBIG, syscall.ENODEV, syscall.ESTALE} {
		for _, w := range []when{before, after, short} {
			fsys := faultFS{errno: errno}
			cfg := config(t).WithOpener(fsys.open)
			cfg.Interval = time.Millisecond // it tries by itself
			l := mustOpen(t, cfg)
			g := ledger{map[string]bool{}, map[string]bool{}}
			fsys.arm("write", ".jsonl", w, -1)
			for i := range 5 {
				if err := g.append(t, l, i); !errors.Is(err, errno) {
					t.Errorf("Append = %v, want %v", err, errno)
				}
			}
			if err := l.Ready(); !errors.Is(err, errno) {
				t.Errorf("Ready = %v, want %v", err, errno)
			}
			fsys.arm("", "", 0, 0)
			eventually(t, func() bool { return l.Ready() == nil })
			if err := g.append(t, l, 10); err != nil {
				t.Errorf("Append when %v is over: %v", errno, err)
			}
			mustClose(t, l)
			recs := records(t, cfg.Dir)
			g.check(t, recs)
			if gap := recs[1]; gap.Kind != audit.Gap || !strings.Contains(gap.Error, errno.Error()) || !strings.Contains(string(gap.Data), `"refused":5`) {
				t.Errorf("the gap of %v: %+v", errno, gap)
			}
			if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
				t.Errorf("Verify: %v", r)
			}
		}
	}
}

// eventually waits for what another goroutine does on its own clock.
func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for range 5000 {
		if ok() {
			return
		}
		<-tick.C
	}
	t.Fatal("it did not happen")
}

// TestDiskFullLG06 fills a real, small file system.
func TestDiskFullLG06(t *testing.T) {
	for _, d := range []audit.Durability{audit.Process, audit.Disk} {
		t.Run(d.String(), func(t *testing.T) {
			base := t.TempDir()
			if err := syscall.Mount("tmpfs", base, "tmpfs", 0, "size=1m"); err != nil {
				t.Fatalf("mounting a small file system: %v", err)
			}
			t.Cleanup(func() {
				if err := syscall.Unmount(base, syscall.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			cfg := config(t)
			cfg.Dir, cfg.Durability = filepath.Join(base, "audit"), d
			l := mustOpen(t, cfg)
			g := ledger{map[string]bool{}, map[string]bool{}}
			i := 0
			for ; len(g.refused) < 3; i++ {
				if err := g.append(t, l, i); err != nil && !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("Append on a full disk = %v, want ENOSPC", err)
				}
			}
			if i < 1000 {
				t.Fatalf("the disk was full after %d records", i)
			}
			if err := l.Ready(); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("Ready = %v, want ENOSPC", err)
			}
			if err := syscall.Mount("tmpfs", base, "tmpfs", syscall.MS_REMOUNT, "size=4m"); err != nil {
				t.Fatal(err)
			}
			if err := g.append(t, l, i); err != nil {
				t.Fatalf("Append with room again: %v", err)
			}
			mustClose(t, l)
			g.check(t, records(t, cfg.Dir))
			if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
				t.Errorf("Verify: %v", r)
			}
			mustClose(t, mustOpen(t, cfg))
		})
	}
}

// TestOpenOnAFullDisk: no log, no start.
func TestOpenOnAFullDisk(t *testing.T) {
	base := t.TempDir()
	if err := syscall.Mount("tmpfs", base, "tmpfs", 0, "size=4k,nr_inodes=4"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(base, syscall.MNT_DETACH) })
	cfg := config(t)
	cfg.Dir = filepath.Join(base, "audit")
	if l, err := audit.Open(cfg); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Open = %v, %v, want ENOSPC", l, err)
	}
}

// The key that a reviewer needs is in the log's directory, whole, however the first
// start failed.
func TestPublicKeyIsWholeLG06(t *testing.T) {
	for _, op := range []string{"write", "sync", "open"} {
		for _, w := range []when{before, after, short} {
			var fsys faultFS
			cfg := config(t).WithOpener(fsys.open)
			fsys.arm(op, "log.pub", w, -1)
			if l, err := audit.Open(cfg); err == nil {
				t.Errorf("%s %d: Open = nil", op, w)
				mustClose(t, l)
			}
			fsys.arm("", "", 0, 0)
			l := mustOpen(t, cfg)
			mustClose(t, l)
			if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() || len(r.Absent)+len(r.Unknown) > 0 {
				t.Errorf("%s %d: Verify: %v", op, w, r)
			}
		}
	}
}
