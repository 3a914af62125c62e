package export_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/export"
	"sallyport/audit/query"
	"sallyport/audit/verify"
)

const policy = "apiVersion: sallyport/v1\n"

// bundled writes a log of two runs and returns a bundle of one, and its key.
func bundled(t testing.TB) (path, key string) {
	t.Helper()
	base := t.TempDir()
	sum := sha256.Sum256([]byte(policy))
	digest := "sha256:" + hex.EncodeToString(sum[:])
	l, err := audit.Open(audit.Config{
		Dir: filepath.Join(base, "audit"), KeyFile: filepath.Join(base, "key"), Interval: time.Hour, SegmentSize: 1000, Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	add := func(r audit.Record) {
		t.Helper()
		if err := l.Append(t.Context(), &r); err != nil {
			t.Fatal(err)
		}
	}
	add(audit.Record{Kind: audit.RunStart, Run: "r1", Policy: digest, Data: []byte(`{"image":"one"}`)})
	add(audit.Record{Kind: audit.RunStart, Run: "r2", Policy: digest, Data: []byte(`{"image":"two"}`)})
	for i := range 30 {
		r := audit.Record{Kind: audit.Admit, Run: []string{"r1", "r2"}[i%2], Policy: []string{digest, "sha256:../../secret"}[i/29], Host: "h.example"}
		if err := l.Append(t.Context(), &r); err != nil {
			t.Fatal(err)
		}
	}
	add(audit.Record{Kind: audit.RunEnd, Run: "r2", Policy: digest, Data: []byte(`{"exit":3}`)})
	add(audit.Record{Kind: audit.RunEnd, Run: "r1", Policy: digest, Data: []byte(`{"exit":4}`)})
	key = l.Verifier()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(base, hex.EncodeToString(sum[:])+".yaml"), []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	filter, err := query.Parse("run=r2 kind=admit", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	r, err := export.Bundle(t.Context(), &b, export.BundleConfig{
		Dir: filepath.Join(base, "audit"), Key: key, Policies: base, Filter: filter, Now: time.Now(),
	})
	if err != nil || r.Records != 17 || r.Runs != 1 || r.Policies != 1 || len(r.Absent) != 1 {
		t.Fatalf("Bundle = %+v, %v, want 15 records and those of their run, a policy, and one that is absent", r, err)
	}
	path = filepath.Join(base, "bundle.zip")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, key
}

func TestBundle(t *testing.T) {
	path, key := bundled(t)
	if r, err := export.CheckBundle(t.Context(), path, key); err != nil || r.Records != 17 || r.Runs != 1 || r.Policies != 1 {
		t.Errorf("CheckBundle = %+v, %v", r, err)
	}
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	for _, name := range []string{"records.jsonl", "log.pub", "checkpoints", "README.txt"} {
		if _, err := z.Open(name); err != nil {
			t.Errorf("the bundle has no %s: %v", name, err)
		}
	}
	text, err := fs.ReadFile(z, "runs/r2.json")
	if err != nil || !bytes.Contains(text, []byte(`"image": "two"`)) || !bytes.Contains(text, []byte(`"exit": 3`)) {
		t.Errorf("the manifest of the run is %s, %v", text, err)
	}
}

func TestCheckBundleRefuses(t *testing.T) {
	path, key := bundled(t)
	if _, err := export.CheckBundle(t.Context(), filepath.Join(filepath.Dir(path), "nowhere"), key); err == nil {
		t.Error("a bundle that is not there is good")
	}
	_, other := bundled(t)
	if _, err := export.CheckBundle(t.Context(), path, other); err == nil {
		t.Error("a bundle is good with another key")
	}
	for name, change := range map[string]func(name string, data []byte) ([]byte, bool){
		"record changed": func(name string, data []byte) ([]byte, bool) {
			return bytes.Replace(data, []byte("h.example"), []byte("x.example"), 1), true
		},
		"record in the list changed": func(name string, data []byte) ([]byte, bool) {
			if name == "records.jsonl" {
				data = bytes.Replace(data, []byte("h.example"), []byte("x.example"), 1)
			}
			return data, true
		},
		"proof gone": func(name string, data []byte) ([]byte, bool) { return data, !strings.HasSuffix(name, "10.proof") },
		"list gone":  func(name string, data []byte) ([]byte, bool) { return data, name != "records.jsonl" },
		"policy changed": func(name string, data []byte) ([]byte, bool) {
			return append(data, "\n"[:strings.Count(name, "policies/")]...), true
		},
		"manifest changed": func(name string, data []byte) ([]byte, bool) {
			if name == "runs/r2.json" {
				data = bytes.Replace(data, []byte("two"), []byte("one"), 1)
			}
			return data, true
		},
		"manifest gone":    func(name string, data []byte) ([]byte, bool) { return data, name != "runs/r2.json" },
		"policy gone":      func(name string, data []byte) ([]byte, bool) { return data, !strings.HasPrefix(name, "policies/") },
		"checkpoints gone": func(name string, data []byte) ([]byte, bool) { return data, name != "checkpoints" },
		"checkpoints cut": func(name string, data []byte) ([]byte, bool) {
			if name == "checkpoints" {
				data = nil
			}
			return data, true
		},
		"key replaced": func(name string, data []byte) ([]byte, bool) {
			if name == "log.pub" {
				data = []byte(other + "\n")
			}
			return data, true
		},
		"README replaced": func(name string, data []byte) ([]byte, bool) {
			if name == "README.txt" {
				data = append(data, "Run this.\n"...)
			}
			return data, true
		},
	} {
		bad := rezip(t, path, change)
		if _, err := export.CheckBundle(t.Context(), bad, key); err == nil {
			t.Errorf("%s: the bundle is good", name)
		}
	}
	same := func(_ string, data []byte) ([]byte, bool) { return data, true }
	if _, err := export.CheckBundle(t.Context(), rezip(t, path, same), key); err != nil {
		t.Errorf("the same files again: %v", err)
	}
	for _, extra := range []string{"run.sh", "../../etc/passwd", "policies/../x", "proofs/1.proof"} {
		if _, err := export.CheckBundle(t.Context(), rezip(t, path, same, extra), key); err == nil || !strings.Contains(err.Error(), extra) {
			t.Errorf("%s is in it: CheckBundle = %v", extra, err)
		}
	}
}

// TestBundleZippedAgain: a bundle that was unzipped and zipped again is the same
// bundle, in any order of its files, with any times, and with directories.
func TestBundleZippedAgain(t *testing.T) {
	path, key := bundled(t)
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	again := func(readme string) error {
		var b bytes.Buffer
		w := zip.NewWriter(&b)
		for _, dir := range []string{"runs/", "proofs/", "policies/"} {
			if _, err := w.Create(dir); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range slices.Backward(z.File) {
			data, err := fs.ReadFile(z, f.Name)
			if err != nil {
				t.Fatal(err)
			}
			if f.Name == "README.txt" {
				data = bytes.Replace(data, []byte("made on 2"), []byte(readme), 1)
			}
			out, err := w.CreateHeader(&zip.FileHeader{Name: f.Name, Modified: f.Modified.Add(-time.Hour)})
			if err == nil {
				_, err = out.Write(data)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(t.TempDir(), "again.zip")
		if err := errors.Join(w.Close(), os.WriteFile(path, b.Bytes(), 0o600)); err != nil {
			t.Fatal(err)
		}
		_, err := export.CheckBundle(t.Context(), path, key)
		return err
	}
	if err := again("made on 2"); err != nil {
		t.Errorf("CheckBundle = %v", err)
	}
	if err := again("made on day 2"); err == nil || !strings.Contains(err.Error(), "does not tell when") {
		t.Errorf("with another day: CheckBundle = %v", err)
	}
}

// TestBundleTellsOfUncoveredRecords: a record that cannot be proved is not left
// out unseen.
func TestBundleTellsOfUncoveredRecords(t *testing.T) {
	base := t.TempDir()
	l, err := audit.Open(audit.Config{Dir: filepath.Join(base, "audit"), KeyFile: filepath.Join(base, "key"), Interval: time.Hour, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Append(t.Context(), &audit.Record{Kind: audit.Admit, Host: "h.example"}); err != nil {
		t.Fatal(err)
	}
	cfg := export.BundleConfig{Dir: filepath.Join(base, "audit"), Key: l.Verifier(), Now: time.Now()}
	if _, err := export.Bundle(t.Context(), io.Discard, cfg); !errors.Is(err, export.ErrUncovered) || !strings.Contains(err.Error(), "1 of 2 records") {
		t.Errorf("Bundle = %v, want that a record is not covered", err)
	}
	cfg.Covered = true
	if r, err := export.Bundle(t.Context(), io.Discard, cfg); err != nil || r.Records != 1 || r.Uncovered != 1 {
		t.Errorf("Bundle of what is covered = %+v, %v", r, err)
	}
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg.Covered = false
	if r, err := export.Bundle(t.Context(), io.Discard, cfg); err != nil || r.Records != 2 {
		t.Errorf("Bundle of a log that is signed = %+v, %v", r, err)
	}
}

func rezip(t *testing.T, path string, change func(string, []byte) ([]byte, bool), extra ...string) string {
	t.Helper()
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if data, keep := change(f.Name, data); keep {
			out, err := w.CreateHeader(&zip.FileHeader{Name: f.Name, Method: zip.Deflate, Modified: f.Modified})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := out.Write(data); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range extra {
		if _, err := w.Create(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "bad.zip")
	if err := os.WriteFile(bad, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return bad
}

// TestBundleChecksWhatItHolds: a bundle is of records that are good, and says nothing of
// others; where its proofs cannot be made, or a line may be one that matches, the whole
// log is verified.
func TestBundleChecksWhatItHolds(t *testing.T) {
	path, key := bundled(t)
	dir := filepath.Join(filepath.Dir(path), "audit")
	filter, err := query.Parse("run=r2 kind=admit", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(segments) < 5 {
		t.Fatalf("%q, %v", segments, err)
	}
	change := func(from, to string) func(map[string][]byte) { // in the first line that has it
		return func(files map[string][]byte) {
			for _, name := range segments {
				if name = filepath.Base(name); bytes.Contains(files[name], []byte(from)) {
					files[name] = bytes.Replace(files[name], []byte(from), []byte(to), 1)
					return
				}
			}
			t.Fatalf("no line has %s", from)
		}
	}
	for name, tt := range map[string]struct {
		edit  func(map[string][]byte)
		fault verify.Fault // "" for a bundle that is good
		told  []string
	}{
		"nothing":            {edit: func(map[string][]byte) {}},
		"another record":     {edit: change(`"kind":"admit","run":"r1"`, `"kind":"admit","run":"r3"`)},
		"a record of it":     {edit: change(`"image":"two"`, `"image":"2"`), fault: verify.Changed, told: []string{"proving record 2"}},
		"one that came in":   {edit: change(`"kind":"admit","run":"r1"`, `"kind":"admit","run":"r2"`), fault: verify.Changed, told: []string{"proving record"}},
		"a line that is odd": {edit: change(`"kind":"admit","run":"r2","policy":`, `"kind":"admit","run":"r2","policy";`), fault: verify.Changed, told: []string{"000000000"}},
		"the tree": {
			edit: func(files map[string][]byte) { files["tree"][4*32] ^= 1 }, // of record 3
			told: []string{"proving record 2: invalid transparency proof", "tree: a hash is wrong"},
		},
		"no tree":                            {edit: func(files map[string][]byte) { delete(files, "tree") }, told: []string{"the log has no tree file"}},
		"a checkpoint that it does not take": {edit: func(files map[string][]byte) { files["checkpoints"][9] ^= 1 }},
		"those that it takes": {edit: func(files map[string][]byte) { // but for the last
			rest := bytes.Count(files["checkpoints"], []byte("\ncheckpoint ")) - 1
			files["checkpoints"] = bytes.Replace(files["checkpoints"], []byte("\ncheckpoint "), []byte("\ncheckpoint x"), rest)
		}, fault: verify.BadHistory, told: []string{"not signed"}},
	} {
		t.Run(name, func(t *testing.T) {
			var told []string
			var b bytes.Buffer
			cfg := export.BundleConfig{
				Dir: copied(t, dir, tt.edit), Key: key, Policies: filepath.Dir(dir), Filter: filter, Now: time.Now(),
				Tell: func(err error) { told = append(told, err.Error()) },
			}
			r, err := export.Bundle(t.Context(), &b, cfg)
			bad, _ := errors.AsType[*verify.Problem](err)
			switch {
			case tt.fault != "" && (bad == nil || bad.Fault != tt.fault):
				t.Errorf("Bundle = %v, want %s", err, tt.fault)
			case tt.fault == "" && (err != nil || r.Records != 17):
				t.Errorf("Bundle = %+v, %v", r, err)
			}
			if !slices.EqualFunc(told, tt.told, strings.Contains) {
				t.Errorf("told %q, want %q", told, tt.told)
			}
			if err != nil {
				return
			}
			again := filepath.Join(t.TempDir(), "again.zip")
			if err := os.WriteFile(again, b.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := export.CheckBundle(t.Context(), again, key); err != nil {
				t.Errorf("CheckBundle = %v", err)
			}
		})
	}
}

// copied returns a copy of a directory that edit has been at.
func copied(t *testing.T, dir string, edit func(map[string][]byte)) string {
	t.Helper()
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, n := range names {
		if files[n.Name()], err = os.ReadFile(filepath.Join(dir, n.Name())); err != nil {
			t.Fatal(err)
		}
	}
	edit(files)
	to := t.TempDir()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(to, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// TestBundleBelievesNoIndex: what an index tells of a record is compared with the log's
// line of it.
func TestBundleBelievesNoIndex(t *testing.T) {
	path, key := bundled(t)
	cfg := export.BundleConfig{Dir: filepath.Join(filepath.Dir(path), "audit"), Key: key, Filter: query.Where("run", "r1")}
	for _, tt := range []struct {
		seq  uint64
		run  string
		err  error
		want error
	}{
		{seq: 3, run: "r1"},
		{seq: 4, run: "r1", want: export.ErrNotAsFound}, // it is of the other
		{seq: 3, err: fs.ErrPermission, want: fs.ErrPermission},
	} {
		cfg.Find = func(f query.Filter) iter.Seq2[audit.Record, error] {
			return func(yield func(audit.Record, error) bool) {
				r := audit.Record{Seq: tt.seq, Kind: audit.Admit, Run: tt.run}
				if tt.err != nil || f.Match(&r) {
					yield(r, tt.err)
				}
			}
		}
		if r, err := export.Bundle(t.Context(), io.Discard, cfg); !errors.Is(err, tt.want) || tt.want == nil && r.Records != 1 {
			t.Errorf("%+v: Bundle = %+v, %v", tt, r, err)
		}
	}
}

// TestBundleOfManyRuns: each is told of, however many there are.
func TestBundleOfManyRuns(t *testing.T) {
	base := t.TempDir()
	l, err := audit.Open(audit.Config{Dir: filepath.Join(base, "audit"), KeyFile: filepath.Join(base, "key"), Interval: time.Hour, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	const n = export.MaxNamed + 1
	for i := range 2 * n {
		run := fmt.Sprintf("r%d", i)
		for _, r := range []audit.Record{{Kind: audit.RunStart, Run: run}, {Kind: audit.Admit, Run: run, Port: uint16(1 + i/n)}} {
			if err := l.Append(t.Context(), &r); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{"port=1": n, "port=1 run=r0,r1": 2} {
		filter, err := query.Parse(text, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		r, err := export.Bundle(t.Context(), io.Discard, export.BundleConfig{Dir: filepath.Join(base, "audit"), Key: l.Verifier(), Filter: filter})
		if err != nil || r.Records != 2*want || r.Runs != want {
			t.Errorf("%s: Bundle = %+v, %v, want %d runs", text, r, err, want)
		}
	}
}

// A log that is not good is not bundled.
func TestBundleOfABadLog(t *testing.T) {
	path, key := bundled(t)
	dir := filepath.Join(filepath.Dir(path), "audit")
	file := filepath.Join(dir, "000000000000.jsonl")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, bytes.Replace(text, []byte("h.example"), []byte("x.example"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = export.Bundle(t.Context(), io.Discard, export.BundleConfig{Dir: dir, Key: key})
	if _, ok := errors.AsType[*verify.Problem](err); !ok {
		t.Errorf("Bundle = %v, want a problem", err)
	}
}
