package export_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/export"
	"sallyport/audit/query"
)

// anchoredLog writes a log of which an anchor was taken in the middle, and another
// log with the same key that tells of other records from the beginning.
func anchoredLog(t *testing.T) (dir, key string, anchor, foreign []byte) {
	t.Helper()
	base := t.TempDir()
	open := func(name string) *audit.Log {
		l, err := audit.Open(audit.Config{Dir: filepath.Join(base, name, "audit"), KeyFile: filepath.Join(base, name, "key"), Interval: time.Hour, Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	write := func(l *audit.Log, host string) []byte {
		for range 5 {
			if err := l.Append(t.Context(), &audit.Record{Kind: audit.Refuse, Verdict: "deny", Host: host}); err != nil {
				t.Fatal(err)
			}
		}
		msg, err := l.Checkpoint(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return msg
	}
	l := open("one")
	key = l.Verifier()
	anchor = write(l, "a.example")
	write(l, "b.example")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// Its key has been stolen.
	if err := os.Mkdir(filepath.Join(base, "two"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"key", "key.hmac"} {
		data, err := os.ReadFile(filepath.Join(base, "one", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(base, "two", name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	l = open("two")
	foreign = write(l, "c.example")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(base, "one", "audit"), key, anchor, foreign
}

func bundleOf(t *testing.T, dir, key string, anchors ...[]byte) (string, error) {
	t.Helper()
	f, err := query.Parse("kind=refuse", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	r, err := export.Bundle(t.Context(), &b, export.BundleConfig{Dir: dir, Key: key, Filter: f, Anchors: anchors, Now: time.Now()})
	if err == nil && r.Anchors != len(anchors) {
		t.Errorf("the bundle holds %d anchors, want %d", r.Anchors, len(anchors))
	}
	path := filepath.Join(t.TempDir(), "bundle.zip")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, err
}

// TestBundleHoldsItsAnchors: a bundle that was made with an anchor proves that its
// records go on from it, to whoever has the anchor.
func TestBundleHoldsItsAnchors(t *testing.T) {
	dir, key, anchor, foreign := anchoredLog(t)
	if _, err := bundleOf(t, dir, key, foreign); err == nil {
		t.Error("a bundle was made of a log that is not the one of its anchor")
	}
	path, err := bundleOf(t, dir, key, anchor)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := export.CheckBundle(t.Context(), path, key, anchor); err != nil || r.Anchors != 1 || r.Records != 10 {
		t.Errorf("CheckBundle with its anchor = %+v, %v", r, err)
	}
	if _, err := export.CheckBundle(t.Context(), path, key); err != nil {
		t.Errorf("CheckBundle without = %v", err)
	}
	if _, err := export.CheckBundle(t.Context(), path, key, anchor, foreign); !errors.Is(err, export.ErrNotAnchored) {
		t.Errorf("CheckBundle with another anchor = %v, want ErrNotAnchored", err)
	}
	plain, err := bundleOf(t, dir, key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := export.CheckBundle(t.Context(), plain, key, anchor); !errors.Is(err, export.ErrNotAnchored) {
		t.Errorf("CheckBundle of a bundle without anchors = %v, want ErrNotAnchored", err)
	}
}

// TestCheckBundleRefusesForgedAnchors: an anchor in a bundle is one that its
// checkpoint goes on from.
func TestCheckBundleRefusesForgedAnchors(t *testing.T) {
	dir, key, anchor, foreign := anchoredLog(t)
	path, err := bundleOf(t, dir, key, anchor)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(data []byte) ([]byte, bool)
		want   string
	}{
		"another anchor": {func(data []byte) ([]byte, bool) { return bytes.Replace(data, anchor, foreign, 1), true }, "were rewritten"},
		"a hash less": {func(data []byte) ([]byte, bool) {
			_, rest, _ := bytes.Cut(data, []byte("\n"))
			_, rest, _ = bytes.Cut(rest, []byte("\n"))
			return append([]byte("sallyport/anchor-proof@v1\n"), rest...), true
		}, "were rewritten"},
		"another header": {func(data []byte) ([]byte, bool) { return bytes.Replace(data, []byte("@v1"), []byte("@v2"), 1), true }, "this is none"},
		"a blank more":   {func(data []byte) ([]byte, bool) { return append(data, ' '), true }, "anchor"},
		"it is left out": {func([]byte) ([]byte, bool) { return nil, false }, "is not the one of these files"},
		"it is signed by X": {func(data []byte) ([]byte, bool) {
			return bytes.Replace(data, []byte("\n— "), []byte("\n— x"), 1), true
		}, "anchor"},
	} {
		bad := rezip(t, path, func(file string, data []byte) ([]byte, bool) {
			if strings.HasPrefix(file, "anchors/") {
				return c.change(bytes.Clone(data))
			}
			return data, true
		})
		if _, err := export.CheckBundle(t.Context(), bad, key); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: CheckBundle = %v, want %q", name, err, c.want)
		}
	}
}
