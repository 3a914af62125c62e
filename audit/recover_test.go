package audit_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit"
	"sallyport/audit/checkpoint"
)

// written returns a closed log of several segments.
func written(t testing.TB) audit.Config {
	t.Helper()
	cfg := config(t)
	cfg.SegmentSize = 2000
	l := mustOpen(t, cfg)
	for i := range 15 {
		mustAppend(t, l, admit(i))
		if i%4 == 3 {
			if _, err := l.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustClose(t, l)
	return cfg
}

// editFile rewrites a file by lines.
func editFile(t testing.TB, path string, edit func(lines [][]byte) [][]byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Join(edit(bytes.SplitAfter(data, []byte("\n"))), nil), 0o640); err != nil {
		t.Fatal(err)
	}
}

func appendFile(t testing.TB, path, text string) {
	t.Helper()
	editFile(t, path, func(l [][]byte) [][]byte { return append(l, []byte(text)) })
}

func segmentsOf(t testing.TB, cfg audit.Config) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(cfg.Dir, "*.jsonl"))
	if err != nil || len(names) < 3 {
		t.Fatalf("segments %v, %v", names, err)
	}
	return names
}

func TestOpenRefusesWhatWasNotSigned(t *testing.T) {
	dropLast := func(l [][]byte) [][]byte { return l[:len(l)-2] }
	tests := []struct {
		name string
		hurt func(t *testing.T, cfg *audit.Config)
		want string
	}{
		{"last record cut", func(t *testing.T, cfg *audit.Config) { editFile(t, slices.Max(segmentsOf(t, *cfg)), dropLast) }, "it was cut: 17 records were signed, and it holds 16"},
		{"record cut in half", func(t *testing.T, cfg *audit.Config) {
			editFile(t, slices.Max(segmentsOf(t, *cfg)), func(l [][]byte) [][]byte { l[len(l)-2] = l[len(l)-2][:20]; return l })
		}, "it was cut: 17 records were signed, and it holds 16"},
		{"last segment missing", func(t *testing.T, cfg *audit.Config) {
			if err := os.Remove(slices.Max(segmentsOf(t, *cfg))); err != nil {
				t.Fatal(err)
			}
		}, "it was cut"},
		{"first segment missing", func(t *testing.T, cfg *audit.Config) {
			if err := os.Remove(segmentsOf(t, *cfg)[0]); err != nil {
				t.Fatal(err)
			}
		}, "first segment 000000000000.jsonl is missing"},
		{"middle segment missing", func(t *testing.T, cfg *audit.Config) {
			if err := os.Remove(segmentsOf(t, *cfg)[1]); err != nil {
				t.Fatal(err)
			}
		}, "and the next segment begins with"},
		{"all segments missing", func(t *testing.T, cfg *audit.Config) {
			for _, s := range segmentsOf(t, *cfg) {
				if err := os.Remove(s); err != nil {
					t.Fatal(err)
				}
			}
		}, "17 records were signed, and there is no segment"},
		{"record changed", func(t *testing.T, cfg *audit.Config) {
			editFile(t, slices.Max(segmentsOf(t, *cfg)), func(l [][]byte) [][]byte {
				l[0] = bytes.Replace(l[0], []byte("POST"), []byte("GET"), 1)
				return l
			})
		}, "the records up to here are not those that were signed"},
		{"records swapped", func(t *testing.T, cfg *audit.Config) {
			editFile(t, segmentsOf(t, *cfg)[len(segmentsOf(t, *cfg))-1], func(l [][]byte) [][]byte { l[0], l[1] = l[1], l[0]; return l })
		}, "this is not the record that belongs here"},
		{"junk after the end", func(t *testing.T, cfg *audit.Config) { appendFile(t, slices.Max(segmentsOf(t, *cfg)), "junk\n") }, "this is not the record that belongs here"},
		{"half a record after the end", func(t *testing.T, cfg *audit.Config) {
			appendFile(t, slices.Max(segmentsOf(t, *cfg)), `{"v":1,"seq":17,"kind":`+"\n")
		}, "this is not a record"},
		{"checkpoints cut", func(t *testing.T, cfg *audit.Config) {
			editFile(t, filepath.Join(cfg.Dir, "checkpoints"), func(l [][]byte) [][]byte { return l[:len(l)-8] })
		}, "cut back or is an old copy: 17 records were signed"},
		{"checkpoints missing", func(t *testing.T, cfg *audit.Config) {
			if err := os.Remove(filepath.Join(cfg.Dir, "checkpoints")); err != nil {
				t.Fatal(err)
			}
		}, "its own last checkpoint covers 0"},
		{"checkpoint changed", func(t *testing.T, cfg *audit.Config) {
			editFile(t, filepath.Join(cfg.Dir, "checkpoints"), func(l [][]byte) [][]byte {
				l[len(l)-7] = []byte("16\n")
				return l
			})
		}, "its last checkpoint is not good"},
		{"directory gone", func(t *testing.T, cfg *audit.Config) {
			if err := os.RemoveAll(cfg.Dir); err != nil {
				t.Fatal(err)
			}
		}, "cut back or is an old copy"},
		{"key gone", func(t *testing.T, cfg *audit.Config) {
			if err := os.Remove(cfg.KeyFile); err != nil {
				t.Fatal(err)
			}
		}, "signing key"},
		{"another key", func(t *testing.T, cfg *audit.Config) { cfg.KeyFile = written(t).KeyFile }, "is not the key it was signed with"},
		{"another key, and log.pub gone", func(t *testing.T, cfg *audit.Config) {
			cfg.KeyFile = written(t).KeyFile
			if err := os.Remove(filepath.Join(cfg.Dir, "log.pub")); err != nil {
				t.Fatal(err)
			}
		}, "its last checkpoint is not good"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := written(t)
			tt.hurt(t, &cfg)
			_, err := audit.Open(cfg)
			var re *audit.RecoveryError
			if !errors.As(err, &re) || !strings.Contains(err.Error(), tt.want) || re.Hint == "" {
				t.Errorf("Open = %v, want a RecoveryError with %q", err, tt.want)
			}
		})
	}
}

// What may happen to an honest log: it opens, goes on, and tells.
func TestOpenRecovers(t *testing.T) {
	tests := []struct {
		name string
		hurt func(t *testing.T, cfg audit.Config)
		torn int64 // told in the gap, -1 for no gap
		want string
	}{
		{"nothing", func(*testing.T, audit.Config) {}, -1, ""},
		{"torn line", func(t *testing.T, cfg audit.Config) { appendFile(t, slices.Max(segmentsOf(t, cfg)), `{"v":1,"se`) }, 10, "crash"},
		{"zeros after a power cut", func(t *testing.T, cfg audit.Config) {
			appendFile(t, slices.Max(segmentsOf(t, cfg)), strings.Repeat("\x00", 100))
		}, 100, "crash"},
		{"torn checkpoint", func(t *testing.T, cfg audit.Config) {
			appendFile(t, filepath.Join(cfg.Dir, "checkpoints"), "sallyport.internal/test\n18\nabc")
		}, -1, ""},
		{"tree missing", func(t *testing.T, cfg audit.Config) {
			if err := os.Remove(filepath.Join(cfg.Dir, "tree")); err != nil {
				t.Fatal(err)
			}
		}, -1, ""},
		{"tree damaged", func(t *testing.T, cfg audit.Config) {
			path := filepath.Join(cfg.Dir, "tree")
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := range data {
				data[i] ^= 1
			}
			if err := os.WriteFile(path, data[:len(data)-7], 0o640); err != nil {
				t.Fatal(err)
			}
		}, -1, ""},
		{"public key missing", func(t *testing.T, cfg audit.Config) {
			if err := os.Remove(filepath.Join(cfg.Dir, "log.pub")); err != nil {
				t.Fatal(err)
			}
		}, -1, ""},
		{"anchor missing", func(t *testing.T, cfg audit.Config) {
			if err := os.Remove(cfg.KeyFile + ".anchor"); err != nil {
				t.Fatal(err)
			}
		}, 0, "anchor"},
		{"empty new segment", func(t *testing.T, cfg audit.Config) {
			if err := os.WriteFile(filepath.Join(cfg.Dir, "000000000017.jsonl"), nil, 0o640); err != nil {
				t.Fatal(err)
			}
		}, 0, "crash"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := written(t)
			tt.hurt(t, cfg)
			l := mustOpen(t, cfg)
			mustAppend(t, l, admit(99))
			mustClose(t, l)
			recs := records(t, cfg.Dir)[17:]
			want := []audit.Kind{audit.LogOpen, audit.Gap, audit.Admit, audit.LogClose}
			if tt.torn < 0 {
				want = slices.Delete(want, 1, 2)
			}
			if got := kinds(recs); !slices.Equal(got, want) {
				t.Fatalf("kinds = %v, want %v", got, want)
			}
			if tt.torn >= 0 {
				var data struct {
					Cause     string
					TornBytes int64 `json:"torn_bytes"`
					Torn      string
				}
				mustUnmarshal(t, recs[1].Data, &data)
				if data.Cause != tt.want || data.TornBytes != tt.torn || (data.Torn != "") != (tt.torn > 0) {
					t.Errorf("gap = %+v, want %s and %d torn bytes", data, tt.want, tt.torn)
				}
			}
			if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() || len(r.Absent) > 0 {
				t.Errorf("Verify: %+v", r)
			}
		})
	}
}

func TestOpenRefusesConfig(t *testing.T) {
	good := config(t)
	tests := []struct {
		name string
		edit func(*audit.Config)
		want string
	}{
		{"zero", func(c *audit.Config) { *c = audit.Config{} }, "required"},
		{"no clock", func(c *audit.Config) { c.Now = nil }, "required"},
		{"durability", func(c *audit.Config) { c.Durability = 7 }, "no such durability"},
		{"negative", func(c *audit.Config) { c.SegmentSize = -1 }, "negative"},
		{"key inside", func(c *audit.Config) { c.KeyFile = filepath.Join(c.Dir, "key") }, "inside the log's directory"},
		{"key further inside", func(c *audit.Config) { c.KeyFile = filepath.Join(c.Dir, "a", "..", "b", "key") }, "inside the log's directory"},
		{"key inside by a link", func(c *audit.Config) {
			link := filepath.Join(filepath.Dir(c.Dir), "link")
			if err := os.MkdirAll(c.Dir, 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(c.Dir, link); err != nil {
				t.Fatal(err)
			}
			c.KeyFile = filepath.Join(link, "key")
		}, "inside the log's directory"},
	}
	for _, tt := range tests {
		cfg := good
		tt.edit(&cfg)
		if l, err := audit.Open(cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Open = %v, %v, want %q", tt.name, l, err, tt.want)
		}
	}
	mustClose(t, mustOpen(t, good))
}

func TestOneWriter(t *testing.T) {
	cfg := config(t)
	l := mustOpen(t, cfg)
	if second, err := audit.Open(cfg); !errors.Is(err, audit.ErrLocked) {
		t.Errorf("second Open = %v, %v, want ErrLocked", second, err)
	}
	mustClose(t, l)
	mustClose(t, mustOpen(t, cfg))
}

func TestFilesAndModes(t *testing.T) {
	cfg := config(t)
	mustClose(t, mustOpen(t, cfg))
	for path, want := range map[string]os.FileMode{
		cfg.Dir: 0o750, filepath.Join(cfg.Dir, "000000000000.jsonl"): 0o640, filepath.Join(cfg.Dir, "checkpoints"): 0o640,
		filepath.Join(cfg.Dir, "tree"): 0o640, filepath.Join(cfg.Dir, "log.pub"): 0o640,
		cfg.KeyFile: 0o600, cfg.KeyFile + ".hmac": 0o600, cfg.KeyFile + ".anchor": 0o640, filepath.Dir(cfg.KeyFile): 0o700,
	} {
		st, err := os.Stat(path)
		if err != nil || st.Mode().Perm() != want {
			t.Errorf("mode of %s = %v, %v, want %v", path, st.Mode(), err, want)
		}
	}
	if err := os.Chmod(cfg.KeyFile, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := audit.Open(cfg); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("Open with a key that others read = %v, want a hint", err)
	}
}

// LG-08: a link in the place of a file is not followed.
func TestLinksAreNotFollowedLG08(t *testing.T) {
	for _, name := range []string{"000000000000.jsonl", "checkpoints", "tree"} {
		cfg := config(t)
		target := filepath.Join(tempDir(t), "target")
		if err := errors.Join(os.MkdirAll(cfg.Dir, 0o750), os.WriteFile(target, nil, 0o600), os.Symlink(target, filepath.Join(cfg.Dir, name))); err != nil {
			t.Fatal(err)
		}
		if l, err := audit.Open(cfg); err == nil {
			t.Errorf("Open wrote through a link at %s", name)
			mustClose(t, l)
		}
		if data, err := os.ReadFile(target); err != nil || len(data) > 0 {
			t.Errorf("the link's target holds %q, %v", data, err)
		}
	}
}

func TestHash(t *testing.T) {
	cfg := config(t)
	l := mustOpen(t, cfg)
	defer l.Close()
	a, b := l.Hash("q=secret"), l.Hash("q=other")
	if a == b || a != l.Hash("q=secret") || !strings.HasPrefix(a, "hmac:") || len(a) != 5+32 || strings.Contains(a, "secret") {
		t.Errorf("Hash = %q and %q", a, b)
	}
	h, err := audit.LoadHasher(cfg.KeyFile)
	if err != nil || h.Hash("q=secret") != a {
		t.Errorf("LoadHasher: %v, or it makes another hash", err)
	}
	other := mustOpen(t, config(t))
	defer other.Close()
	if other.Hash("q=secret") == a {
		t.Error("two logs make the same keyed hash")
	}
	if _, err := audit.LoadHasher(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("LoadHasher without a key = nil")
	}
}

// The tree is RFC 6962's: tlog's own arithmetic over the lines gives the root.
func TestCheckpointIsTheTreeOfTheLines(t *testing.T) {
	cfg := written(t)
	var hashes []tlog.Hash
	r := tlog.HashReaderFunc(func(at []int64) ([]tlog.Hash, error) {
		var out []tlog.Hash
		for _, i := range at {
			out = append(out, hashes[i])
		}
		return out, nil
	})
	all := lines(t, cfg.Dir)
	for i, line := range all {
		add, err := tlog.StoredHashes(int64(i), []byte(line), r)
		if err != nil {
			t.Fatal(err)
		}
		hashes = append(hashes, add...)
	}
	root, err := tlog.TreeHash(int64(len(all)), r)
	if err != nil {
		t.Fatal(err)
	}
	history, err := os.ReadFile(filepath.Join(cfg.Dir, "checkpoints"))
	if err != nil {
		t.Fatal(err)
	}
	msg, torn := checkpoint.Last(history)
	public, err := os.ReadFile(filepath.Join(cfg.Dir, "log.pub"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := note.NewVerifier(strings.TrimSpace(string(public)))
	if err != nil {
		t.Fatal(err)
	}
	cp, err := checkpoint.Open(msg, v)
	if err != nil || torn != 0 || cp.Tree != (tlog.Tree{N: int64(len(all)), Hash: root}) || cp.Origin != "sallyport.internal/test" {
		t.Errorf("checkpoint = %+v, %v; want the tree of %d lines with root %v", cp, err, len(all), root)
	}
	tree, err := os.ReadFile(filepath.Join(cfg.Dir, "tree"))
	if err != nil {
		t.Fatal(err)
	}
	var want []byte
	for _, h := range hashes {
		want = append(want, h[:]...)
	}
	if !bytes.Equal(tree, want) {
		t.Errorf("the tree's file is not tlog's storage: %d bytes, want %d", len(tree), len(want))
	}
	anchor, err := os.ReadFile(cfg.KeyFile + ".anchor")
	if err != nil || !bytes.Equal(anchor, msg) {
		t.Errorf("the anchor is not the last checkpoint: %v", err)
	}
}

// TestCheckpointsKeepUp: while there are records, they are signed by the clock.
func TestCheckpointsKeepUp(t *testing.T) {
	cfg := config(t)
	cfg.Interval = time.Millisecond
	l := mustOpen(t, cfg)
	defer l.Close()
	r := admit(1)
	mustAppend(t, l, r)
	eventually(t, func() bool {
		rep := mustVerify(t, cfg, l.Verifier())
		return rep.Covered == int64(r.Seq)+1
	})
}
