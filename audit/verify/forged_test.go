package verify_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit"
	"sallyport/audit/checkpoint"
	"sallyport/audit/verify"
)

// written writes a log of so many records about host, with the key that is
// there, and returns a checkpoint over the first half and one over all.
func written(t *testing.T, base, host string, records int) (half, all []byte, key string) {
	t.Helper()
	l, err := audit.Open(audit.Config{
		Dir: filepath.Join(base, "audit"), KeyFile: filepath.Join(base, "key"), Now: time.Now, Interval: time.Hour, SegmentSize: 1500,
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range records {
		if err := l.Append(t.Context(), &audit.Record{Kind: audit.Admit, Host: fmt.Sprintf("%s%d.example", host, i), Port: 443}); err != nil {
			t.Fatal(err)
		}
		if i == records/2 {
			if half, err = l.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
			half = bytes.Clone(half)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if all, err = os.ReadFile(filepath.Join(base, "key.anchor")); err != nil {
		t.Fatal(err)
	}
	return half, all, l.Verifier()
}

// TestChainedAgainWithTheTrueKey: who has the key can write another history,
// which is good by itself; against an anchor it is not, however long it is.
func TestChainedAgainWithTheTrueKey(t *testing.T) {
	for _, records := range []int{11, 20, 60} { // less than the true one, as many, more
		base := tempDir(t)
		half, all, key := written(t, base, "true", 20)
		if err := errors.Join(os.RemoveAll(filepath.Join(base, "audit")), os.Remove(filepath.Join(base, "key.anchor"))); err != nil {
			t.Fatal(err)
		}
		written(t, base, "forged", records)
		dir := filepath.Join(base, "audit")
		if r, err := verify.Verify(dir, key, verify.Options{}); err != nil || !r.Whole() {
			t.Fatalf("Verify without an anchor = %v, %v; want what only an anchor tells", r, err)
		}
		for name, anchors := range map[string][][]byte{"half": {half}, "all": {all}, "both": {half, all}} {
			_, err := verify.Verify(dir, key, verify.Options{Anchors: anchors})
			var p *verify.Problem
			want := verify.Rewritten
			if records == 11 && name == "all" {
				want = verify.RolledBack // it is shorter than the anchor knows
			}
			if !errors.As(err, &p) || p.Fault != want || p.Seq < 0 || p.Seq > p.Last {
				t.Errorf("%d records, anchors %s: Verify = %v, want %s", records, name, err, want)
			}
		}
	}
}

// TestForgedCheckpoint: a record is changed, and all that stands for it put
// right but the signature, which only the key can make.
func TestForgedCheckpoint(t *testing.T) {
	f := newFixture(t, 20)
	v, err := note.NewVerifier(f.key)
	if err != nil {
		t.Fatal(err)
	}
	secret, _, err := note.GenerateKey(rand.Reader, v.Name()) // of the same name
	if err != nil {
		t.Fatal(err)
	}
	forger, err := note.NewSigner(secret)
	if err != nil {
		t.Fatal(err)
	}
	dir := f.with(t, func(files map[string][]byte) {
		rewrite(files)
		var all [][]byte
		for _, name := range f.starts {
			for line := range bytes.Lines(files[name]) {
				all = append(all, bytes.TrimSuffix(line, []byte("\n")))
			}
		}
		stored := hashes{}
		for i, line := range all {
			h, err := tlog.StoredHashes(int64(i), line, stored)
			if err != nil {
				t.Fatal(err)
			}
			stored = append(stored, h...)
		}
		root, err := tlog.TreeHash(int64(len(all)), stored)
		if err != nil {
			t.Fatal(err)
		}
		c := checkpoint.Checkpoint{Origin: v.Name(), Tree: tlog.Tree{N: int64(len(all)), Hash: root}, Time: time.Unix(1_800_000_000, 0)}
		msg, err := c.Sign(forger)
		if err != nil {
			t.Fatal(err)
		}
		files["checkpoints"], files["tree"] = checkpoint.Append(nil, msg), nil
		for _, h := range stored {
			files["tree"] = append(files["tree"], h[:]...)
		}
	})
	_, err = verify.Verify(dir, f.key, verify.Options{})
	var p *verify.Problem
	if !errors.As(err, &p) || p.Fault != verify.BadHistory || p.Line != 1 {
		t.Errorf("Verify = %v, want that the checkpoint is forged", err)
	}
}

// hashes are stored hashes in memory.
type hashes []tlog.Hash

// ReadHashes implements [tlog.HashReader].
func (h hashes) ReadHashes(at []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(at))
	for i, x := range at {
		out[i] = h[x]
	}
	return out, nil
}
