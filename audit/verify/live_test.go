package verify_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/verify"
)

// goOn has the writer go on with the log of a fixture, and end.
func (f *fixture) goOn(t *testing.T, pack bool, use func(*audit.Log)) {
	t.Helper()
	l, err := audit.Open(audit.Config{
		Dir: f.dir, KeyFile: filepath.Join(filepath.Dir(f.dir), "key"), Interval: time.Hour, Pack: pack,
		Now: func() time.Time { return time.Unix(1_800_100_000, 0) },
	})
	if err != nil {
		t.Fatal(err)
	}
	use(l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func pack(t *testing.T, f *fixture) {
	t.Helper()
	f.goOn(t, true, func(*audit.Log) { f.awaitPacked(t, 4) })
}

func retain(t *testing.T, f *fixture) {
	t.Helper()
	f.goOn(t, false, func(l *audit.Log) {
		if err := l.Append(t.Context(), &audit.Record{Kind: audit.Admit}); err != nil {
			t.Fatal(err)
		}
		if got, err := l.Retain(time.Minute); err != nil || len(got.Segments) < 2 {
			t.Fatalf("Retain = %+v, %v", got, err)
		}
	})
}

// TestProveWhileTheLogIsKept: a record that is packed meanwhile is proved as it was, and
// one that is removed is no more.
func TestProveWhileTheLogIsKept(t *testing.T) {
	for name, tt := range map[string]struct {
		do   func(*testing.T, *fixture)
		want error
		told []string
	}{
		"packed":  {do: pack},
		"removed": {do: retain, want: verify.ErrNotFound, told: []string{"no such file"}},
	} {
		t.Run(name, func(t *testing.T) {
			f, done := newFixture(t, 40), false
			opts, list := told(verify.Options{}.WithListed(func() {
				if !done {
					done = true
					tt.do(t, f)
				}
			}))
			p, err := verify.Prove(f.dir, f.key, "1", opts)
			if !errors.Is(err, tt.want) || tt.want == nil && (err != nil || p.Check(f.key) != nil) || !done {
				t.Errorf("Prove = %v, want %v", err, tt.want)
			}
			if !slices.EqualFunc(*list, tt.told, strings.Contains) {
				t.Errorf("told %q, want %q", *list, tt.told)
			}
		})
	}
}

// TestVerifyWhileTheLogIsKept: what is packed or removed in order while a log is
// checked is no fault of it.
func TestVerifyWhileTheLogIsKept(t *testing.T) {
	for name, do := range map[string]func(*testing.T, *fixture){"packed": pack, "removed": retain} {
		t.Run(name, func(t *testing.T) {
			f, done := newFixture(t, 40), false
			r, err := verify.Verify(f.dir, f.key, verify.Options{Anchors: [][]byte{f.anchor}}.WithListed(func() {
				if !done {
					done = true
					do(t, f)
				}
			}))
			if err != nil || !done {
				t.Errorf("Verify = %v, %v", r, err)
			}
			if r, err = verify.Verify(f.dir, f.key, verify.Options{}); err != nil || !r.Whole() {
				t.Errorf("Verify afterwards = %v, %v", r, err)
			}
		})
	}
}

// TestOddFiles: no file in the place of one of a log has its reader wait, or keep
// what is not worth it.
func TestOddFiles(t *testing.T) {
	for _, name := range []string{"log.pub", "retained", "checkpoints", "tree", "000000000000.jsonl"} {
		for kind, put := range map[string]func(path string) error{
			"pipe":   func(path string) error { return syscall.Mkfifo(path, 0o640) },
			"folder": func(path string) error { return os.Mkdir(path, 0o750) },
			"huge":   func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o640), os.Truncate(path, 1<<40)) },
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				f := newFixture(t, 6)
				path := filepath.Join(f.dir, name)
				if err := os.Remove(path); err != nil && name != "retained" {
					t.Fatal(err)
				}
				if err := put(path); err != nil {
					t.Fatal(err)
				}
				_, err := verify.Verify(f.dir, f.key, verify.Options{})
				var p *verify.Problem
				if !errors.As(err, &p) || !strings.HasSuffix(p.File, name) {
					t.Errorf("Verify = %v, want a problem of %s", err, name)
				}
				proof, err := verify.Prove(f.dir, f.key, "1", verify.Options{})
				if err == nil && proof.Check(f.key) != nil || err != nil && !errors.As(err, &p) {
					t.Errorf("Prove = %v, want a proof that is good, or a problem", err)
				}
			})
		}
	}
}

// The name of a file beside a log's reads like a name.
func TestUnknownFileIsNamedLG08(t *testing.T) {
	f := newFixture(t, 6)
	name := "x; 9 covered by the checkpoint of 2030\u202e\u009b2J"
	if err := os.WriteFile(filepath.Join(f.dir, name), nil, 0o640); err != nil {
		t.Fatal(err)
	}
	r, err := verify.Verify(f.dir, f.key, verify.Options{})
	if want := `no files of a log: "x; 9 covered by the checkpoint of 2030\u202e\u009b2J"`; err != nil || !strings.HasSuffix(r.String(), want) {
		t.Errorf("Verify = %v, %v; want it to end in %s", r, err, want)
	}
}
