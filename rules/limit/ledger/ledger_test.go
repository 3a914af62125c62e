package ledger_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sallyport/rules/limit"
	"sallyport/rules/limit/ledger"
)

var noon = time.Unix(1_800_000_000, 0)

func open(t *testing.T, path string) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// id returns one as long as those of records.
func id(n int) string { return fmt.Sprintf("01JJX%021d", n) }

func enter(t *testing.T, l *ledger.Ledger, n int) *ledger.Entry {
	t.Helper()
	e, err := l.Enter(id(n), noon, [2]int64{int64(n), limit.Unknown})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// TestWhatIsLeft: the next process finds the last that was noted of what this one did not
// end, keeps what it asked for, and takes the place of the rest.
func TestWhatIsLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "aside")
	l := open(t, path)
	l.Settle()
	first := enter(t, l, 1)
	enter(t, l, 2)
	later := noon.Add(time.Minute)
	if err := first.Note(limit.Sent, later, 5000); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it is not closed: it was killed
		next := open(t, path)
		left, ok := next.Left(id(1))
		if !ok || left.Amounts != [2]int64{5000, limit.Unknown} || !left.At[0].Equal(later) || !left.At[1].Equal(noon) {
			t.Errorf("%+v, %v", left, ok)
		}
		if _, ok := next.Left(id(3)); ok {
			t.Error("something is known of what was never there")
		}
		next.Settle()
		for i := range 200 {
			enter(t, next, 10+i).Free()
		}
		if _, ok := open(t, path).Left(id(1)); !ok {
			t.Fatal("what the next process asked for is gone")
		}
	}
	if _, ok := open(t, path).Left(id(2)); ok {
		t.Error("what nobody asked for has kept its place")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestSlotsAreTakenAgain, and not at once: what has ended may not be in the log yet.
func TestSlotsAreTakenAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "aside")
	l := open(t, path)
	l.Settle()
	for i := range 1000 {
		enter(t, l, i).Free()
		if i == 50 {
			if _, ok := open(t, path).Left(id(0)); !ok {
				t.Error("the slot of what has just ended is another's")
			}
		}
	}
	if n := size(t, path); n > 70*64 {
		t.Errorf("%d octets for one thing at a time", n)
	}
}

// TestPartsOfSlots: what is no whole slot is none.
func TestPartsOfSlots(t *testing.T) {
	path := filepath.Join(t.TempDir(), "aside")
	l := open(t, path)
	l.Settle()
	enter(t, l, 1)
	enter(t, l, 2)
	if err := os.Truncate(path, 64+63); err != nil {
		t.Fatal(err)
	}
	next := open(t, path)
	if _, ok := next.Left(id(1)); !ok {
		t.Error("the whole one is gone")
	}
	if _, ok := next.Left(id(2)); ok {
		t.Error("a part is taken for a whole")
	}
}

func TestErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := ledger.Open(dir); err == nil {
		t.Error("a directory is opened")
	}
	l := open(t, filepath.Join(dir, "aside"))
	l.Settle()
	e := enter(t, l, 1)
	for _, bad := range []string{"", id(1) + "1234567"} {
		if _, err := l.Enter(bad, noon, [2]int64{}); err == nil {
			t.Errorf("%q is entered", bad)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := e.Note(limit.Received, noon, 1); err == nil {
		t.Error("noted in a file that is closed")
	}
	if _, err := l.Enter(id(2), noon, [2]int64{}); err == nil {
		t.Error("entered in a file that is closed")
	}
}
