package query_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit/query"
	"sallyport/audit/segment"
)

// TestHolesOfWhatIsRead: of segments that are not read for a question nothing is told, and
// what may be of the time that is asked for is.
func TestHolesOfWhatIsRead(t *testing.T) {
	dir := t.TempDir()
	write := func(first, day int, numbers ...int) {
		text := ""
		for _, n := range numbers {
			text += fmt.Sprintf(`{"v":1,"seq":%d,"time":"2027-01-%02dT12:00:00Z","id":"x","kind":"admit","host":"a.example"}`+"\n", n, day)
		}
		must(t, os.WriteFile(filepath.Join(dir, segment.Name(int64(first))), []byte(text), 0o600))
	}
	write(3, 1, 3, 4)
	write(7, 10, 7, 8, 10)
	write(11, 20, 11)
	const begin, between, inside = "records 0 to 2 are missing before 000000000003.jsonl, and no note tells of a removal",
		"records 5 to 6 are missing between 000000000003.jsonl and 000000000007.jsonl", "record 9 is missing in 000000000007.jsonl"
	for _, tt := range []struct {
		filter string
		from   uint64
		most   int
		want   []string
	}{
		{"", 0, 99, []string{begin, between, inside}},
		{"host=b.example", 0, 99, []string{begin, between, inside}},
		{"since=2027-01-25", 0, 99, nil},
		{"since=2027-01-15", 0, 99, []string{inside}},
		{"since=2027-01-08", 0, 99, []string{begin, between, inside}},
		{"until=2027-01-05", 0, 99, []string{begin, between}}, // what is missing may be of that time
		{"since=2027-01-10 until=2027-01-12", 0, 99, []string{begin, between, inside}},
		{"", 11, 99, []string{begin}},
		{"", 8, 99, []string{begin, inside}},
		{"", 0, 1, []string{begin}},
		{"", 0, 3, []string{begin, between}},
		{"", 0, 5, []string{begin, between, inside}},
	} {
		var told []string
		n := 0
		for _, err := range query.RecordsFrom(t.Context(), dir, parse(t, tt.filter), tt.from, func(err error) { told = append(told, err.Error()) }) {
			must(t, err)
			if n++; n == tt.most {
				break
			}
		}
		if !cmp.Equal(told, tt.want) {
			t.Errorf("%q from %d, %d records: told %q, want %q", tt.filter, tt.from, tt.most, told, tt.want)
		}
	}
}

// TestPassedOverLines: a line that a filter passes over, and that is no record, is told; one that
// is written otherwise than the log does is a record.
func TestPassedOverLines(t *testing.T) {
	const good = `{"v":1,"seq":0,"time":"2027-01-31T12:00:00Z","id":"x","kind":"admit","host":"a.example"}`
	for line, want := range map[string][]string{
		good:                               nil,
		`{"kind":"admit", "seq":0, "v":1}`: nil,
		`{"v":1,"seq":0,"kind":"admit","host":"b.examp`: {"000000000000.jsonl:1: not a record: it has no number and no kind"},
		`{"v":1,"sq":0,"id":"x"}`:                       {"000000000000.jsonl:1: not a record: it has no number and no kind"},
		``:                                              {"000000000000.jsonl:1: not a record: it has no number and no kind"},
		`{}`:                                            {"000000000000.jsonl:1: not a record: it has no number and no kind"},
		`{"v":1,"seq":1234567890123456789,"kind":"dns"}`: {"records 0 to 1234567890123456788 are missing in 000000000000.jsonl"},
	} {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, segment.Name(0)), []byte(line+"\n"), 0o600))
		var told []string
		for r, err := range query.RecordsFrom(t.Context(), dir, query.Where("run", "r1"), 0, func(err error) { told = append(told, err.Error()) }) {
			t.Errorf("%s: %v, %v", line, r, err)
		}
		if !cmp.Equal(told, want) {
			t.Errorf("%s: told %q, want %q", line, told, want)
		}
	}
}

// TestBadLinesAreInTheirPlace: of filters but those for one value of a field, what is no record is in
// the sequence, whatever the line holds.
func TestBadLinesAreInTheirPlace(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, segment.Name(0)), []byte("no record\n"), 0o600))
	for filter, want := range map[string]string{
		"": "yielded", "status>=500": "yielded", "word": "yielded", "host~x": "yielded", "kind=dns,done": "yielded", `where!=""`: "yielded", "kind!=dns": "yielded", "status<500": "yielded",
		"run=r1": "told", "run=r1 status>=500": "told",
	} {
		got := ""
		for _, err := range query.RecordsFrom(t.Context(), dir, parse(t, filter), 0, func(error) { got += "told" }) {
			if _, ok := errors.AsType[*query.LineError](err); ok {
				got += "yielded"
			}
		}
		if got != want {
			t.Errorf("%q: %q, want %q", filter, got, want)
		}
	}
}

// TestListIsReadTwice: of a directory that is too long to be read at once a segment that is
// packed meanwhile is in the list all the same.
func TestListIsReadTwice(t *testing.T) {
	dir := t.TempDir()
	const n = 400
	for i := range n {
		must(t, os.WriteFile(filepath.Join(dir, segment.Name(int64(i))), nil, 0o600))
	}
	done := make(chan error, 1)
	go func() {
		for i := range n - 1 {
			plain, packed := filepath.Join(dir, segment.Name(int64(i))), filepath.Join(dir, segment.PackedName(int64(i)))
			if err := os.WriteFile(packed, nil, 0o600); err != nil {
				done <- err
				return
			}
			if err := os.Remove(plain); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for packing := true; packing; {
		select {
		case err := <-done:
			must(t, err)
			packing = false
		default:
		}
		segs, err := query.Segments(dir)
		must(t, err)
		if len(segs) != n {
			t.Fatalf("%d segments, want %d", len(segs), n)
		}
	}
}
