package verify_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"sallyport/audit/verify"
)

func TestProve(t *testing.T) {
	f := newFixture(t, 20)
	if _, err := verify.Prove(f.dir, f.key, "nobody", verify.Options{}); !errors.Is(err, verify.ErrNotFound) {
		t.Errorf("Prove(nobody) = %v, want ErrNotFound", err)
	}
	var rec struct{ ID string }
	if err := json.Unmarshal(lines(f.files[f.starts[1]])[0], &rec); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{rec.ID, "0", "21"} {
		p, err := verify.Prove(f.dir, f.key, id, verify.Options{})
		if err != nil {
			t.Fatalf("Prove(%s): %v", id, err)
		}
		again, err := verify.ParseProof(p.Marshal())
		if err != nil {
			t.Fatalf("ParseProof: %v", err)
		}
		if err := again.Check(f.key); err != nil {
			t.Errorf("Check: %v", err)
		}
		if err := again.Check(newFixture(t, 3).key); err == nil {
			t.Error("Check passes with another key")
		}
	}
}

func TestProofFlipAnyByte(t *testing.T) {
	f := newFixture(t, 20)
	p, err := verify.Prove(f.dir, f.key, "5", verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	text := p.Marshal()
	for i := range text {
		for bit := range 8 {
			bad := bytes.Clone(text)
			bad[i] ^= 1 << bit
			if p, err := verify.ParseProof(bad); err == nil && p.Check(f.key) == nil {
				t.Fatalf("byte %d, bit %d flipped: the proof still holds", i, bit)
			}
		}
	}
}

func FuzzParseProof(f *testing.F) {
	fix := newFixture(f, 20)
	p, err := verify.Prove(fix.dir, fix.key, "5", verify.Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p.Marshal())
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := verify.ParseProof(data); err == nil && !bytes.Equal(p.Marshal(), data) {
			t.Errorf("proof reads back as another: %q", data)
		}
	})
}
