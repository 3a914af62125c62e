package audit_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"sallyport/audit"
)

// TestAppendAll: records that are appended together stand together, in their
// order, whoever else writes; each knows its place.
func TestAppendAll(t *testing.T) {
	for _, d := range []audit.Durability{audit.Process, audit.Disk} {
		t.Run(d.String(), func(t *testing.T) {
			cfg := config(t)
			cfg.Durability = d
			l := mustOpen(t, cfg)
			var wg sync.WaitGroup
			for w := range 8 {
				wg.Go(func() {
					for i := range 10 {
						together(t, l, w, i)
						mustAppend(t, l, admit(i))
					}
				})
			}
			wg.Wait()
			mustClose(t, l)
			recs := records(t, cfg.Dir)
			sets := 0
			for i, r := range recs {
				if !strings.HasSuffix(r.Host, ".0.together") {
					continue
				}
				sets++
				for k := range 3 {
					if want := strings.Replace(r.Host, ".0.", fmt.Sprintf(".%d.", k), 1); recs[i+k].Host != want {
						t.Errorf("record %d is of %q, want %q", i+k, recs[i+k].Host, want)
					}
				}
			}
			if sets != 80 || len(recs) != 2+80*4 {
				t.Errorf("%d sets in %d records", sets, len(recs))
			}
			if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
				t.Errorf("Verify: %v", r)
			}
		})
	}
}

// together appends three records at once.
func together(t *testing.T, l *audit.Log, w, i int) {
	t.Helper()
	set := make([]*audit.Record, 3)
	for k := range set {
		set[k] = &audit.Record{Kind: audit.DNS, Host: fmt.Sprintf("%d-%d.%d.together", w, i, k)}
	}
	if err := l.AppendAll(t.Context(), set); err != nil {
		t.Error(err)
	}
	for k, r := range set {
		if r.Seq != set[0].Seq+uint64(k) || r.ID == "" || r.Time.IsZero() || r.Schema != audit.Schema {
			t.Errorf("record %d of a set: %+v", k, r)
		}
	}
}

// TestAppendAllOrNone: if they cannot be written none is, and the gap counts all.
func TestAppendAllOrNone(t *testing.T) {
	var fsys faultFS
	cfg := config(t).WithOpener(fsys.open)
	l := mustOpen(t, cfg)
	fsys.arm("write", ".jsonl", short, -1)
	set := []*audit.Record{{Kind: audit.DNS, Host: "a"}, {Kind: audit.DNS, Host: "b"}, {Kind: audit.DNS, Host: "c"}}
	if err := l.AppendAll(t.Context(), set); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("AppendAll = %v, want ENOSPC", err)
	}
	fsys.arm("", "", 0, 0)
	for _, bad := range []audit.Kind{audit.Done, audit.LogClose, ""} {
		if err := l.AppendAll(t.Context(), []*audit.Record{admit(1), {Kind: bad}}); err == nil {
			t.Errorf("kind %q was appended together with another", bad)
		}
	}
	if err := l.AppendAll(t.Context(), nil); err != nil {
		t.Errorf("none: %v", err)
	}
	if err := l.AppendAll(t.Context(), set[:2]); err != nil {
		t.Errorf("AppendAll = %v", err)
	}
	mustClose(t, l)
	recs := records(t, cfg.Dir)
	if got, want := kinds(recs), []audit.Kind{audit.LogOpen, audit.Gap, audit.DNS, audit.DNS, audit.LogClose}; !slices.Equal(got, want) {
		t.Fatalf("kinds = %v, want %v", got, want)
	}
	if data := string(recs[1].Data); !strings.Contains(data, `"refused":3`) {
		t.Errorf("the gap says %s, want 3 that were refused", data)
	}
	if err := l.AppendAll(t.Context(), set); !errors.Is(err, audit.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
