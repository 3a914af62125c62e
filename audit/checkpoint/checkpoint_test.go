package checkpoint_test

import (
	"bytes"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/checkpoint"
)

func keys(t testing.TB, name string) (note.Signer, note.Verifier) {
	t.Helper()
	secret, public, err := note.GenerateKey(rand.Reader, name)
	if err != nil {
		t.Fatal(err)
	}
	s, err := note.NewSigner(secret)
	if err != nil {
		t.Fatal(err)
	}
	v, err := note.NewVerifier(public)
	if err != nil {
		t.Fatal(err)
	}
	return s, v
}

func sample() checkpoint.Checkpoint {
	return checkpoint.Checkpoint{
		Origin: "example/log", Tree: tlog.Tree{N: 42, Hash: tlog.RecordHash([]byte("x"))}, Number: 7,
		Time: time.Date(2027, 1, 31, 12, 0, 0, 5, time.UTC),
	}
}

func sign(t testing.TB, c checkpoint.Checkpoint, s note.Signer) []byte {
	t.Helper()
	msg, err := c.Sign(s)
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

func TestForm(t *testing.T) {
	s, v := keys(t, "example/log")
	msg := sign(t, sample(), s)
	want := "example/log\n42\n" + sample().Tree.Hash.String() + "\ncheckpoint 7 2027-01-31T12:00:00.000000005Z\n\n— example/log "
	if !strings.HasPrefix(string(msg), want) {
		t.Errorf("checkpoint is\n%s\nwant it to begin\n%s", msg, want)
	}
	got, err := checkpoint.Open(msg, v)
	if diff := cmp.Diff(sample(), got); diff != "" || err != nil {
		t.Errorf("Open: %v, (-want +got):\n%s", err, diff)
	}
}

func TestOpenRefuses(t *testing.T) {
	s, v := keys(t, "example/log")
	other, _ := keys(t, "example/log")
	stranger, _ := keys(t, "example/other")
	text := func(text string) []byte {
		msg, err := note.Sign(&note.Note{Text: text}, s)
		if err != nil {
			t.Fatal(err)
		}
		return msg
	}
	hash := sample().Tree.Hash.String()
	twice, err := note.Sign(&note.Note{Text: "example/log\n42\n" + hash + "\ncheckpoint 7 2027-01-31T12:00:00.000000005Z\n"}, s, stranger)
	if err != nil {
		t.Fatal(err)
	}
	foreign := sample()
	foreign.Origin = "example/other"
	tests := map[string][]byte{
		"empty":                 nil,
		"another key":           sign(t, sample(), other),
		"another name":          sign(t, sample(), stranger),
		"another origin":        sign(t, foreign, s),
		"a second signature":    twice,
		"no extension":          text("example/log\n42\n" + hash + "\n"),
		"more lines":            text("example/log\n42\n" + hash + "\ncheckpoint 7 2027-01-31T12:00:00Z\nx\n"),
		"negative size":         text("example/log\n-1\n" + hash + "\ncheckpoint 7 2027-01-31T12:00:00Z\n"),
		"leading zero":          text("example/log\n042\n" + hash + "\ncheckpoint 7 2027-01-31T12:00:00Z\n"),
		"plus":                  text("example/log\n+42\n" + hash + "\ncheckpoint 7 2027-01-31T12:00:00Z\n"),
		"time in another zone":  text("example/log\n42\n" + hash + "\ncheckpoint 7 2027-01-31T12:00:00+01:00\n"),
		"time with zeros":       text("example/log\n42\n" + hash + "\ncheckpoint 7 2027-01-31T12:00:00.500Z\n"),
		"no time":               text("example/log\n42\n" + hash + "\ncheckpoint 7\n"),
		"short hash":            text("example/log\n42\n" + hash[:20] + "\ncheckpoint 7 2027-01-31T12:00:00Z\n"),
		"too long":              text("example/log\n42\n" + hash + "\ncheckpoint 7 2027-01-31T12:00:00Z\n" + strings.Repeat("x\n", checkpoint.MaxSize)),
		"something after it":    append(sign(t, sample(), s), '\n'),
		"not a note":            []byte("example/log\n42\n"),
		"two notes in one file": checkpoint.Append(checkpoint.Append(nil, sign(t, sample(), s)), sign(t, sample(), s)),
	}
	for name, msg := range tests {
		if c, err := checkpoint.Open(msg, v); err == nil {
			t.Errorf("%s: Open = %+v, want an error", name, c)
		}
	}
}

func TestFlipAnyBit(t *testing.T) {
	s, v := keys(t, "example/log")
	msg := sign(t, sample(), s)
	for i := range msg {
		for bit := range 8 {
			bad := bytes.Clone(msg)
			bad[i] ^= 1 << bit
			if _, err := checkpoint.Open(bad, v); err == nil {
				t.Errorf("byte %d, bit %d flipped: still good", i, bit)
			}
		}
	}
}

func TestHistory(t *testing.T) {
	s, _ := keys(t, "example/log")
	var notes [][]byte
	var history []byte
	for i := range 3 {
		c := sample()
		c.Number = int64(i)
		notes = append(notes, sign(t, c, s))
		history = checkpoint.Append(history, notes[i])
	}
	// Cut anywhere, the last whole note is found, and what is torn counted.
	whole := []int{0}
	for i := range notes {
		whole = append(whole, whole[i]+len(notes[i])+1)
	}
	for n := range len(history) + 1 {
		msg, torn := checkpoint.Last(history[:n])
		k := 0
		for k+1 < len(whole) && whole[k+1] <= n {
			k++
		}
		var want []byte
		if k > 0 {
			want = notes[k-1]
		}
		if !bytes.Equal(msg, want) || torn != n-whole[k] {
			t.Fatalf("Last(%d bytes) = %q, %d torn; want %q, %d", n, msg, torn, want, n-whole[k])
		}
	}
	// A part that begins in the middle of a note is enough.
	if msg, torn := checkpoint.Last(history[whole[1]+10:]); !bytes.Equal(msg, notes[2]) || torn != 0 {
		t.Errorf("Last(part) = %q, %d", msg, torn)
	}
}

func FuzzOpen(f *testing.F) {
	s, v := keys(f, "example/log")
	f.Add(sign(f, sample(), s))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := checkpoint.Open(data, v); err == nil && !bytes.Equal(sign(t, c, s), data) {
			t.Errorf("two spellings of %+v: %q", c, data)
		}
		msg, torn := checkpoint.Last(data)
		if len(msg)+torn > len(data) {
			t.Errorf("Last(%q) = %q, %d", data, msg, torn)
		}
	})
}
