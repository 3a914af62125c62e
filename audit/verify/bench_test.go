package verify_test

import (
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

// BenchmarkVerify checks a log of 48,000 records, plain and packed. MB/s is by
// the clock; cpu-MB/s is by processor time, which other load does not change.
func BenchmarkVerify(b *testing.B) {
	b.Run("plain", func(b *testing.B) { benchVerify(b, audit.Config{}) })
	b.Run("packed", func(b *testing.B) { benchVerify(b, audit.Config{Pack: true, SegmentSize: 4 << 20}) })
}

func benchVerify(b *testing.B, cfg audit.Config) {
	base := tempDir(b)
	dir := filepath.Join(base, "audit")
	cfg.Dir, cfg.KeyFile, cfg.Now = dir, filepath.Join(base, "key"), time.Now
	l, err := audit.Open(cfg)
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 3000 {
				r := audit.Record{
					Kind: audit.Admit, Cell: "abcdefgh", Host: "api.example", Port: 443, Policy: strings.Repeat("ab", 40),
					Verdict: "inspect", Reason: "allowed", Path: "/v1/" + strings.Repeat("x", 80),
				}
				if err := l.Append(b.Context(), &r); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	r, err := verify.Verify(dir, l.Verifier(), verify.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(r.Bytes)
	start := cpuTime(b)
	for b.Loop() {
		if r, err := verify.Verify(dir, l.Verifier(), verify.Options{}); err != nil || !r.Whole() {
			b.Fatalf("Verify = %v, %v", r, err)
		}
	}
	b.ReportMetric(float64(r.Bytes)*float64(b.N)/1e6/(cpuTime(b)-start).Seconds(), "cpu-MB/s")
}

func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// FuzzVerify: a log of garbage is refused, never a crash.
func FuzzVerify(f *testing.F) {
	fix := newFixture(f, 5)
	f.Add(fix.files[fix.starts[0]], fix.files["checkpoints"], fix.files["tree"])
	f.Add([]byte("{\"v\":1,\"seq\":0,\n\n"), []byte("\n\n\n\n"), []byte{})
	f.Fuzz(func(t *testing.T, segment, checkpoints, tree []byte) {
		dir := t.TempDir()
		for name, data := range map[string][]byte{"000000000000.jsonl": segment, "checkpoints": checkpoints, "tree": tree} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o640); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = verify.Verify(dir, fix.key, verify.Options{})
	})
}
