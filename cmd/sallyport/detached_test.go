package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"
)

// A reader that does not read must not hold up a run; one that reads gets all
// of it, in order.
func TestDetachedWriterNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		var errs bytes.Buffer
		out, stderr, flush := detached(w, &errs)
		for range 100 {
			if n, err := out.Write(make([]byte, 64<<10)); n != 64<<10 || err != nil {
				t.Fatalf("Write = %d, %v", n, err)
			}
		}
		if _, err := io.WriteString(stderr, "said\n"); err != nil {
			t.Fatal(err)
		}
		flush() // returns, though nobody ever read
		if errs.String() != "said\n" {
			t.Errorf("standard error has %q", errs.String())
		}
		_ = r.Close() // lets the copier end
	})
}

func TestDetachedWriterPassesEverything(t *testing.T) {
	var got, want bytes.Buffer
	out, _, flush := detached(&got, io.Discard)
	for i := range 1000 {
		line := strings.Repeat("x", i) + "\n"
		want.WriteString(line)
		if _, err := io.WriteString(out, line); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	if !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("%d octets of %d came out, or in another order", got.Len(), want.Len())
	}
}
