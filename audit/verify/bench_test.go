package verify_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/verify"
)

func BenchmarkVerify(b *testing.B) {
	base := tempDir(b)
	dir := filepath.Join(base, "audit")
	l, err := audit.Open(audit.Config{Dir: dir, KeyFile: filepath.Join(base, "key"), Now: time.Now})
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
	st, err := os.Stat(filepath.Join(dir, "000000000000.jsonl"))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(st.Size())
	for b.Loop() {
		if r, err := verify.Verify(dir, l.Verifier(), verify.Options{}); err != nil || !r.Whole() {
			b.Fatalf("Verify = %v, %v", r, err)
		}
	}
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
