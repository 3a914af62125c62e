package audit_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"sallyport/audit"
)

// TestDoneIsWrittenWhenTheLogGoesOn: what is over cannot be refused, so its
// record is kept while the log cannot be written, and follows the gap.
func TestDoneIsWrittenWhenTheLogGoesOn(t *testing.T) {
	var fsys faultFS
	cfg := config(t).WithOpener(fsys.open)
	l := mustOpen(t, cfg)
	l.NoFlusher() // while it leads, what is over waits and is not refused
	before := admit(1)
	mustAppend(t, l, before)
	fsys.arm("write", ".jsonl", short, -1)
	mustAppend(t, l, &audit.Record{Kind: audit.Done, Ref: before.ID, Status: 200}) // nobody knows yet
	for _, r := range []*audit.Record{
		{Kind: audit.Refuse, Reason: "host_not_allowed"},
		admit(2),
		{Kind: audit.Done, Ref: "other", ID: "given", Status: 502},
	} {
		if err := l.Append(t.Context(), r); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("Append(%s) = %v, want ENOSPC", r.Kind, err)
		}
	}
	fsys.arm("", "", 0, 0)
	mustAppend(t, l, admit(3))
	mustClose(t, l)
	recs := records(t, cfg.Dir)
	want := []audit.Kind{audit.LogOpen, audit.Admit, audit.Gap, audit.Done, audit.Done, audit.Admit, audit.LogClose}
	if got := kinds(recs); !slices.Equal(got, want) {
		t.Fatalf("kinds = %v, want %v", got, want)
	}
	if data := string(recs[2].Data); !strings.Contains(data, `"refused":2`) || !strings.Contains(data, `"late":2`) {
		t.Errorf("the gap says %s, want 2 that were refused and 2 that are late", data)
	}
	if a, b := recs[3], recs[4]; a.Ref != before.ID || a.Status != 200 || a.ID == "" || b.ID != "given" || b.Status != 502 {
		t.Errorf("the late records are %+v and %+v", a, b)
	}
	if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
		t.Errorf("Verify: %v", r)
	}
}

// TestDoneOutlivesItsCaller: who waits for a write that hangs leaves after a
// while, and what is over is written all the same.
func TestDoneOutlivesItsCaller(t *testing.T) {
	l, cfg, goOn := hanging(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		if err := l.AppendGone(ctx, &audit.Record{Kind: audit.Done, Ref: "x"}); !errors.Is(err, context.Canceled) {
			t.Errorf("Append while a write hangs = %v, want %v", err, context.Canceled)
		}
	}
	if err := l.AppendGone(ctx, admit(2)); !errors.Is(err, context.Canceled) {
		t.Errorf("Append while a write hangs = %v, want %v", err, context.Canceled)
	}
	goOn()
	mustClose(t, l)
	want := []audit.Kind{audit.LogOpen, audit.Admit, audit.Done, audit.Done, audit.Done, audit.LogClose}
	if got := kinds(records(t, cfg.Dir)); !slices.Equal(got, want) {
		t.Errorf("kinds = %v, want %v", got, want)
	}
}

// TestWhatIsKeptIsBounded: beyond the bound an outcome is refused and counted.
func TestWhatIsKeptIsBounded(t *testing.T) {
	var fsys faultFS
	cfg := config(t).WithOpener(fsys.open)
	l := mustOpen(t, cfg)
	fsys.arm("write", ".jsonl", before, -1)
	big := &audit.Record{Kind: audit.Done, Ref: "x", Data: []byte(`"` + strings.Repeat("x", 50_000) + `"`)}
	if err := l.Append(t.Context(), admit(1)); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Append = %v, want ENOSPC", err)
	}
	const tries = audit.MaxOwedBytes/50_000 + 5
	for range tries {
		if err := l.Append(t.Context(), big); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("Append = %v, want ENOSPC", err)
		}
	}
	fsys.arm("", "", 0, 0)
	mustClose(t, l) // writes them, too
	recs := records(t, cfg.Dir)
	late := len(recs) - 3
	if size := late * 50_000; size > audit.MaxOwedBytes || size < audit.MaxOwedBytes*9/10 {
		t.Errorf("%d records were kept, %d octets", late, size)
	}
	if data, want := string(recs[1].Data), fmt.Sprintf(`"refused":%d,"late":%d`, tries-late+1, late); !strings.Contains(data, want) {
		t.Errorf("the gap says %s, want %s", data, want)
	}
}

// hangFS is the real file system, but that the first write to a segment after
// arm hangs.
type hangFS struct {
	armed      atomic.Bool
	hung, hang chan struct{} // closed when it hangs, and when it may go on
}

// hanging returns a log in which the write of an admit record hangs until goOn.
func hanging(t *testing.T) (l *audit.Log, cfg audit.Config, goOn func()) {
	t.Helper()
	fsys := hangFS{hang: make(chan struct{}), hung: make(chan struct{})}
	cfg = config(t).WithOpener(fsys.open)
	l = mustOpen(t, cfg)
	fsys.arm()
	first := make(chan error, 1)
	go func() { first <- l.Append(t.Context(), admit(1)) }()
	<-fsys.hung
	return l, cfg, func() {
		t.Helper()
		close(fsys.hang)
		if err := <-first; err != nil {
			t.Error(err)
		}
	}
}

func (f *hangFS) arm() { f.armed.Store(true) }

func (f *hangFS) open(path string, flag int, perm fs.FileMode) (audit.File, error) {
	file, err := audit.OpenFile(path, flag, perm)
	if err == nil && filepath.Ext(path) == ".jsonl" {
		file = &hangFile{file, f}
	}
	return file, err
}

type hangFile struct {
	audit.File
	fs *hangFS
}

func (f *hangFile) WriteAt(p []byte, off int64) (int, error) {
	if f.fs.armed.CompareAndSwap(true, false) {
		close(f.fs.hung)
		<-f.fs.hang
	}
	return f.File.WriteAt(p, off)
}
