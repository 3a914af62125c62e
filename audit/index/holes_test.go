package index_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/audit/index"
	"sallyport/audit/query"
	"sallyport/audit/segment"
)

// numbered are the lines of records with these numbers; -1 is a line that is none.
func numbered(numbers ...int) string {
	var b strings.Builder
	for _, n := range numbers {
		if n < 0 {
			b.WriteString("no record\n")
			continue
		}
		fmt.Fprintf(&b, `{"v":1,"seq":%d,"time":"2027-01-31T12:00:00Z","id":"id%d","kind":"admit","host":"a.example"}`+"\n", n, n)
	}
	return b.String()
}

// TestHolesAreTold: a log that lacks records is read as far as it goes, and what is missing
// is told, by the files and by an index alike.
func TestHolesAreTold(t *testing.T) {
	note := "sallyport/audit/retention/v1\nlog\nfirst 3\nrecord 3\ntime 2027-01-31T12:00:00Z\nremoved 2027-01-31T12:00:00Z 2027-01-31T12:00:00Z\n\n"
	name := segment.Name
	whole := map[string]string{name(0): numbered(0, 1, 2), name(3): numbered(3, 4, 5), name(6): numbered(6, 7)}
	without := func(drop string, put map[string]string) map[string]string {
		out := map[string]string{}
		for n, text := range whole {
			if n != drop {
				out[n] = text
			}
		}
		maps.Copy(out, put)
		return out
	}
	for what, tt := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"whole":                                     {whole, nil},
		"a record that is being written":            {without("", map[string]string{name(6): numbered(6, 7) + `{"v":1,"seq":8`}), nil},
		"a segment that has begun":                  {without("", map[string]string{name(8): ""}), nil},
		"removed in order":                          {without(name(0), map[string]string{"retained": note}), nil},
		"being removed in order":                    {without("", map[string]string{"retained": note}), nil},
		"a line":                                    {without("", map[string]string{name(3): numbered(3, 5)}), []string{"record 4 is missing in 000000000003.jsonl"}},
		"a line of the last segment":                {without("", map[string]string{name(6): numbered(6, 9)}), []string{"records 7 to 8 are missing in 000000000006.jsonl"}},
		"the end of a segment":                      {without("", map[string]string{name(3): numbered(3)}), []string{"records 4 to 5 are missing between 000000000003.jsonl and 000000000006.jsonl"}},
		"all of a segment":                          {without("", map[string]string{name(3): ""}), []string{"records 3 to 5 are missing between 000000000003.jsonl and 000000000006.jsonl"}},
		"a segment":                                 {without(name(3), nil), []string{"records 3 to 5 are missing between 000000000000.jsonl and 000000000006.jsonl"}},
		"the beginning":                             {without(name(0), nil), []string{"records 0 to 2 are missing before 000000000003.jsonl, and no note tells of a removal"}},
		"more than was removed in order":            {map[string]string{name(6): numbered(6, 7), "retained": note}, []string{"records 3 to 5 are missing before 000000000006.jsonl, and no note tells of a removal"}},
		"the middle, of a log with a note":          {without(name(3), map[string]string{"retained": note}), []string{"records 3 to 5 are missing between 000000000000.jsonl and 000000000006.jsonl"}},
		"a note that is none":                       {without(name(0), map[string]string{"retained": "first 3\n"}), []string{"records 0 to 2 are missing before 000000000003.jsonl, and no note tells of a removal"}},
		"a segment twice":                           {without("", map[string]string{name(8): numbered(0, 1, 2)}), []string{"records 0 to 2 are there twice, or not in place, in 000000000008.jsonl"}},
		"a segment in the place of another":         {without("", map[string]string{name(3): numbered(0, 1, 2)}), []string{"records 0 to 2 are there twice, or not in place, in 000000000003.jsonl", "records 3 to 5 are missing between 000000000003.jsonl and 000000000006.jsonl"}},
		"what a segment has at the end of another":  {without("", map[string]string{name(0): numbered(0, 1, 2, 3)}), []string{"record 3 is there twice, or not in place, between 000000000000.jsonl and 000000000003.jsonl"}},
		"a line twice":                              {without("", map[string]string{name(3): numbered(3, 4, 4, 5)}), []string{"record 4 is there twice, or not in place, in 000000000003.jsonl"}},
		"lines in another order":                    {without("", map[string]string{name(3): numbered(4, 3, 5)}), []string{"record 3 is missing in 000000000003.jsonl", "record 3 is there twice, or not in place, in 000000000003.jsonl"}},
		"a line that is no record":                  {without("", map[string]string{name(3): numbered(3, -1, 5)}), nil},
		"a line that is none, and one beside it":    {without("", map[string]string{name(0): numbered(0, -1), name(3): numbered(-1, -1, 3, 5)}), []string{"record 2 is missing between 000000000000.jsonl and 000000000003.jsonl", "record 4 is missing in 000000000003.jsonl"}},
		"a segment that ends with lines of none":    {without("", map[string]string{name(3): numbered(3, -1, -1)}), nil},
		"more places than are told one by one":      {map[string]string{name(0): numbered(1, 3, 5, 7, 9, 11, 13, 15, 17, 19)}, nil},
		"the number that is greater than any other": {map[string]string{name(0): strings.ReplaceAll(numbered(0, 7, 1), `"seq":7`, `"seq":18446744073709551615`)}, []string{"record 18446744073709551615 is there twice, or not in place, in 000000000000.jsonl"}},
	} {
		t.Run(what, func(t *testing.T) {
			if strings.HasPrefix(what, "more places") {
				for _, n := range []int{0, 2, 4, 6, 8, 10, 12} {
					tt.want = append(tt.want, fmt.Sprintf("record %d is missing in 000000000000.jsonl", n))
				}
				tt.want = append(tt.want, "record 14 is missing in 000000000000.jsonl, as 2 other places there")
			}
			dir := t.TempDir()
			for n, text := range tt.files {
				if err := os.WriteFile(filepath.Join(dir, n), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, filter := range []string{"", "host=b.example", "status>400"} {
				if got := toldByFiles(t, dir, filter); !cmp.Equal(got, tt.want) {
					t.Errorf("query %q tells %q, want %q", filter, got, tt.want)
				}
			}
			if got := toldByIndex(t, dir); !cmp.Equal(got, tt.want) {
				t.Errorf("the index tells %q, want %q", got, tt.want)
			}
		})
	}
}

func toldByFiles(t *testing.T, dir, filter string) (told []string) {
	t.Helper()
	f, err := query.Parse(filter, start)
	if err != nil {
		t.Fatal(err)
	}
	tell := func(err error) {
		if h, ok := errors.AsType[*query.HoleError](err); ok {
			told = append(told, h.Error())
		}
	}
	for _, err := range query.RecordsFrom(t.Context(), dir, f, 0, tell) {
		if _, bad := errors.AsType[*query.LineError](err); err != nil && !bad {
			t.Fatal(err)
		}
	}
	return told
}

// toldByIndex makes an index in as many updates as there are lines: each goes on from
// what the one before it noticed.
func toldByIndex(t *testing.T, dir string) (told []string) {
	t.Helper()
	x, err := index.Open(t.Context(), index.Config{Dir: dir, Path: filepath.Join(t.TempDir(), "x.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	segs, err := query.Segments(dir)
	if err != nil {
		t.Fatal(err)
	}
	last := segs[len(segs)-1].Path
	text, err := os.ReadFile(last)
	if err != nil {
		t.Fatal(err)
	}
	var res index.Result
	for i := range text {
		if i < len(text)-1 && text[i] != '\n' {
			continue
		}
		if err := os.WriteFile(last, text[:i+1], 0o600); err != nil {
			t.Fatal(err)
		}
		if res, err = x.Update(t.Context(), nil); err != nil {
			t.Fatal(res, err)
		}
	}
	if len(text) == 0 {
		if res, err = x.Update(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	if !cmp.Equal(x.Holes(), res.Holes) {
		t.Errorf("Holes = %v, the result has %v", x.Holes(), res.Holes)
	}
	for _, h := range res.Holes {
		told = append(told, h.String())
	}
	return told
}

// TestIndexLeavesHolesToTheFiles: a question that the index could answer is told of holes too.
func TestIndexLeavesHolesToTheFiles(t *testing.T) {
	dir, path := t.TempDir(), filepath.Join(t.TempDir(), "x.db")
	var many []int
	for n := range 200 {
		if n != 120 {
			many = append(many, n)
		}
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, segment.Name(0)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ask := func() (told []string) {
		x, err := index.Open(t.Context(), index.Config{Dir: dir, Path: path})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.Update(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		x.Close()
		cfg := index.Config{Dir: dir, Path: path, Tell: func(err error) { told = append(told, err.Error()) }}
		n := 0
		for r, err := range index.Records(t.Context(), cfg, query.Where("id", "id7")) {
			if err != nil || r.Seq != 7 {
				t.Error(r.Seq, err)
			}
			n++
		}
		if n != 1 {
			t.Errorf("%d records, want 1", n)
		}
		return told
	}
	write(numbered(many...))
	if told := ask(); !cmp.Equal(told, []string{"record 120 is missing in 000000000000.jsonl"}) {
		t.Errorf("told %q", told)
	}
	write(strings.Replace(numbered(many...), numbered(121), numbered(120, 121), 1))
	if told := ask(); told != nil {
		t.Errorf("of a log that is whole: told %q", told)
	}
}

// TestLiveLogHasNoHoles reads, again and again, a log that is written, packed and removed
// from meanwhile.
func TestLiveLogHasNoHoles(t *testing.T) {
	base := t.TempDir()
	dir, path := filepath.Join(base, "audit"), filepath.Join(base, "x.db")
	done := make(chan error, 1)
	go func() { done <- writeAndRemove(t.Context(), dir, filepath.Join(base, "key")) }()
	for reading := true; reading; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			reading = false // once more, at the end
		default:
			if segs, err := query.Segments(dir); err != nil || len(segs) < 2 {
				continue
			}
		}
		for _, filter := range []string{"", "host=b.example", "since=1h", "until=2027-02-01"} {
			if told := toldByFiles(t, dir, filter); told != nil {
				t.Errorf("query %q tells %q of a log that is whole", filter, told)
			}
		}
		x, err := index.Open(t.Context(), index.Config{Dir: dir, Path: path})
		if err != nil {
			t.Fatal(err)
		}
		res, err := x.Update(t.Context(), nil)
		x.Close()
		if err != nil || res.Holes != nil {
			t.Errorf("Update = %v, %v of a log that is whole", res, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "retained")); err != nil {
		t.Errorf("nothing was removed: %v", err)
	}
}

// writeAndRemove writes a log of many small segments, an hour a record, and removes old ones
// a few times.
func writeAndRemove(ctx context.Context, dir, key string) error {
	var hours atomic.Int64
	l, err := audit.Open(audit.Config{
		Dir: dir, KeyFile: key, Interval: time.Millisecond, SegmentSize: 1500, Pack: true,
		Now: func() time.Time { return start.Add(time.Duration(hours.Load()) * time.Hour) },
	})
	if err != nil {
		return err
	}
	for n := range 200 {
		hours.Add(1)
		if err := l.Append(ctx, &audit.Record{Kind: audit.Admit, Time: start.Add(time.Duration(hours.Load()) * time.Hour), Host: "a.example"}); err != nil {
			return errors.Join(err, l.Close())
		}
		if n%50 == 49 {
			if _, err := l.Retain(30 * time.Hour); err != nil {
				return errors.Join(err, l.Close())
			}
		}
	}
	return l.Close()
}
