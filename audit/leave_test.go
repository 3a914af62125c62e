package audit_test

import (
	"io/fs"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"sallyport/audit"
)

// TestDoneSharesAWrite: nobody waits for what is over, so it is written with the
// next record.
func TestDoneSharesAWrite(t *testing.T) {
	var writes atomic.Int64
	cfg := config(t).WithOpener(writeFS(func() { writes.Add(1) }).open)
	l := mustOpen(t, cfg)
	l.NoFlusher()
	writes.Store(0)
	const rounds = 200
	want := []audit.Kind{audit.LogOpen}
	for i := range rounds {
		mustAppend(t, l, admit(i), &audit.Record{Kind: audit.Done, Ref: "x"})
		want = append(want, audit.Admit, audit.Done)
	}
	mustClose(t, l)
	if n := writes.Load(); n != rounds+1 {
		t.Errorf("%d writes for %d pairs of records and the end, want %d", n, rounds, rounds+1)
	}
	if got := kinds(records(t, cfg.Dir)); !slices.Equal(got, append(want, audit.LogClose)) {
		t.Errorf("kinds = %v, want admit and done in turn", got)
	}
	if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
		t.Errorf("Verify: %v", r)
	}
}

// TestDoneIsWrittenIfNobodyComes: without another record a timer has it written.
func TestDoneIsWrittenIfNobodyComes(t *testing.T) {
	wrote := make(chan struct{}, 10)
	cfg := config(t).WithOpener(writeFS(func() { wrote <- struct{}{} }).open)
	l := mustOpen(t, cfg)
	defer mustClose(t, l)
	<-wrote // log.open
	for range 2 {
		mustAppend(t, l, &audit.Record{Kind: audit.Done, Ref: "x"})
		<-wrote
	}
}

// TestManyDoneAreWritten: who comes with one too many writes them.
func TestManyDoneAreWritten(t *testing.T) {
	cfg := config(t)
	l := mustOpen(t, cfg)
	l.NoFlusher() // which may lead and not have written yet
	const n = 3 * audit.LeftMany
	for range n {
		mustAppend(t, l, &audit.Record{Kind: audit.Done, Ref: "x"})
	}
	if got := len(records(t, cfg.Dir)) - 1; got < n-audit.LeftMany {
		t.Errorf("%d of %d are written, want all but the last %d", got, n, audit.LeftMany)
	}
	mustClose(t, l)
	if got := len(records(t, cfg.Dir)) - 2; got != n {
		t.Errorf("%d of %d are written", got, n)
	}
}

// TestCheckpointCoversDone: what was appended is in the checkpoint, whoever was
// to write it.
func TestCheckpointCoversDone(t *testing.T) {
	cfg := config(t)
	l := mustOpen(t, cfg)
	defer mustClose(t, l)
	mustAppend(t, l, admit(1), &audit.Record{Kind: audit.Done, Ref: "x"})
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := l.Signed(); got != 3 {
		t.Errorf("%d records are signed, want 3", got)
	}
}

// TestDoneDoesNotWaitForAWriteThatHangs: it is queued, and written in its turn.
func TestDoneDoesNotWaitForAWriteThatHangs(t *testing.T) {
	l, cfg, goOn := hanging(t)
	mustAppend(t, l, &audit.Record{Kind: audit.Done, Ref: "x"})
	goOn()
	mustClose(t, l)
	want := []audit.Kind{audit.LogOpen, audit.Admit, audit.Done, audit.LogClose}
	if got := kinds(records(t, cfg.Dir)); !slices.Equal(got, want) {
		t.Errorf("kinds = %v, want %v", got, want)
	}
}

// writeFS is the real file system; it tells of each write to a segment.
type writeFS func()

func (f writeFS) open(path string, flag int, perm fs.FileMode) (audit.File, error) {
	file, err := audit.OpenFile(path, flag, perm)
	if err == nil && filepath.Ext(path) == ".jsonl" {
		file = &watchedFile{file, f}
	}
	return file, err
}

type watchedFile struct {
	audit.File
	wrote func()
}

func (f *watchedFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(p, off)
	f.wrote()
	return n, err
}
