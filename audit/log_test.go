package audit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"sallyport/audit"
)

// config returns a Config for a log of the test's own, that signs only when
// asked to.
func config(t testing.TB) audit.Config {
	t.Helper()
	base := tempDir(t)
	return audit.Config{
		Dir: filepath.Join(base, "audit"), KeyFile: filepath.Join(base, "key", "signing"),
		Now: time.Now, Interval: time.Hour, Origin: "sallyport.internal/test",
	}
}

func mustOpen(t testing.TB, cfg audit.Config) *audit.Log {
	t.Helper()
	l, err := audit.Open(cfg)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return l
}

func mustAppend(t testing.TB, l *audit.Log, recs ...*audit.Record) {
	t.Helper()
	for _, r := range recs {
		if err := l.Append(t.Context(), r); err != nil {
			t.Fatalf("Append(%+v): %v", r, err)
		}
	}
}

func mustClose(t testing.TB, l *audit.Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

// admit returns a record like the gate's.
func admit(i int) *audit.Record {
	return &audit.Record{
		Kind: audit.Admit, Cell: "abcdefgh", Run: "01JZZZZZZZZZZZZZZZZZZZZZZZ", Policy: "sha256:" + strings.Repeat("ab", 32),
		Verdict: "inspect", Reason: "allowed", Rule: "stripe-charges", Where: "policy.yaml:12", Credential: "stripe-test",
		Listener: "transparent", Client: "10.213.0.2:41000", Question: "fetch", Proto: "h1",
		Host: "api.stripe.com", Port: 443, Method: "POST", Path: fmt.Sprintf("/v1/charges/%d", i),
	}
}

// lines returns every line of a log, checking the names of its segments.
func lines(t testing.TB, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, name := range names {
		if want := fmt.Sprintf("%012d.jsonl", len(out)); filepath.Base(name) != want {
			t.Errorf("segment is named %s, want %s", name, want)
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(data) {
			if text, whole := strings.CutSuffix(string(line), "\n"); whole { // the last may be on its way
				out = append(out, text)
			}
		}
	}
	return out
}

// records decodes a log, checking that no number is left out.
func records(t testing.TB, dir string) []audit.Record {
	t.Helper()
	var out []audit.Record
	for i, line := range lines(t, dir) {
		var r audit.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("line %d is no record: %v\n%s", i, err, line)
		}
		if r.Seq != uint64(i) || r.Schema != audit.Schema {
			t.Fatalf("line %d has seq %d and schema %d", i, r.Seq, r.Schema)
		}
		out = append(out, r)
	}
	return out
}

func kinds(recs []audit.Record) []audit.Kind {
	var out []audit.Kind
	for _, r := range recs {
		out = append(out, r.Kind)
	}
	return out
}

func TestAppendFillsInAndReturnsAfterTheWrite(t *testing.T) {
	for _, d := range []audit.Durability{audit.Process, audit.Disk} {
		t.Run(d.String(), func(t *testing.T) {
			cfg := config(t)
			cfg.Durability = d
			l := mustOpen(t, cfg)
			given := time.Now().Add(-100 * time.Millisecond).UTC().Round(0)
			a, b := admit(1), &audit.Record{Kind: audit.Refuse, ID: "given", Time: given}
			mustAppend(t, l, a, b)
			got := records(t, cfg.Dir) // before Close
			if want := []audit.Kind{audit.LogOpen, audit.Admit, audit.Refuse}; !cmp.Equal(kinds(got), want) {
				t.Fatalf("kinds = %v, want %v", kinds(got), want)
			}
			if diff := cmp.Diff(*a, got[1]); diff != "" {
				t.Errorf("record and what Append made of it (-record +log):\n%s", diff)
			}
			if a.ID == "" || a.Time.IsZero() || a.Seq != 1 {
				t.Errorf("Append left id %q, time %v, seq %d", a.ID, a.Time, a.Seq)
			}
			if got[2].ID != "given" || !got[2].Time.Equal(given) {
				t.Errorf("Append replaced id or time: %+v", got[2])
			}
			mustClose(t, l)
			if k := kinds(records(t, cfg.Dir)); k[len(k)-1] != audit.LogClose {
				t.Errorf("last kind = %v, want log.close", k)
			}
			if err := l.Append(t.Context(), admit(2)); !errors.Is(err, audit.ErrClosed) {
				t.Errorf("Append after Close = %v, want ErrClosed", err)
			}
			if err := l.Ready(); !errors.Is(err, audit.ErrClosed) {
				t.Errorf("Ready after Close = %v, want ErrClosed", err)
			}
		})
	}
}

func TestManyAppendAtOnce(t *testing.T) {
	cfg := config(t)
	cfg.SegmentSize, cfg.Interval = 20<<10, 5*time.Millisecond
	l := mustOpen(t, cfg)
	const writers, each = 16, 200
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			last := uint64(0)
			for i := range each {
				r := admit(w*each + i)
				if err := l.Append(t.Context(), r); err != nil {
					t.Errorf("Append: %v", err)
				}
				if r.Seq <= last {
					t.Errorf("seq %d after %d", r.Seq, last)
				}
				last = r.Seq
			}
		})
	}
	wg.Wait()
	mustClose(t, l)
	recs := records(t, cfg.Dir)
	seen := map[string]bool{}
	for _, r := range recs {
		seen[r.Path] = true
	}
	if len(recs) != writers*each+2 || len(seen) != writers*each+1 {
		t.Errorf("%d records with %d paths, want %d and %d", len(recs), len(seen), writers*each+2, writers*each+1)
	}
	mustClose(t, mustOpen(t, cfg)) // the tree goes on
}

func TestAppendRefusesItsOwnKindsAndADoneContext(t *testing.T) {
	l := mustOpen(t, config(t))
	defer l.Close()
	for _, k := range []audit.Kind{"", audit.LogOpen, audit.LogClose} {
		if err := l.Append(t.Context(), &audit.Record{Kind: k}); err == nil {
			t.Errorf("Append(kind %q) = nil, want an error", k)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Append(ctx, admit(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Append(cancelled) = %v, want context.Canceled", err)
	}
	mustAppend(t, l, admit(2))
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func BenchmarkAppend(b *testing.B) {
	for _, d := range []audit.Durability{audit.Process, audit.Disk} {
		for _, writers := range []int{1, 64} {
			b.Run(fmt.Sprintf("%v/%d", d, writers), func(b *testing.B) {
				cfg := config(b)
				cfg.Durability, cfg.Interval = d, time.Second
				cfg.Dir = filepath.Join(b.TempDir(), "audit") // on a disk
				l := mustOpen(b, cfg)
				b.ReportAllocs()
				b.ResetTimer()
				start := cpuTime(b)
				var wg sync.WaitGroup
				for w := range writers {
					wg.Go(func() {
						r := admit(7)
						for i := w; i < b.N; i += writers {
							rec := *r
							if err := l.Append(b.Context(), &rec); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64((cpuTime(b)-start).Nanoseconds())/float64(b.N), "cpu-ns/op")
				b.StopTimer()
				mustClose(b, l)
			})
		}
	}
}
