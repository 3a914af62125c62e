package index_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/audit/index"
	"sallyport/audit/query"
)

// texts are what fields of the random logs hold and filters ask for.
var texts = []string{
	"", "a", "A", "api.example.com", "API.Example", "k", "\u212a", "ſ", "s", "100%", "a_b", "a\\b", `"`, "'", "a,b", "x\x00y", "\x00", "é", "É",
	"hmac:00", "/v1/é/objects", "-1", "0", " ", "\n", "\U0010ffff", strings.Repeat("long", 300),
}

type dice struct{ *rand.Rand }

func (d dice) text() string { return texts[d.IntN(len(texts))] }

func (d dice) of(list ...string) string { return list[d.IntN(len(list))] }

// record is one of few shapes, with other fields at random.
func (d dice) record(seq int) audit.Record {
	r := audit.Record{
		Schema: audit.Schema, Seq: uint64(seq), Time: start.Add(time.Duration(seq)*7*time.Minute + time.Duration(d.IntN(3600)-1800)*time.Second),
		ID: fmt.Sprintf("id%d", seq), Kind: audit.Kind(d.of("admit", "done", "refuse", "dns")), Run: d.of("", "r1", "r2"), Host: d.text(), Method: d.of("", "GET"),
		Verdict: d.of("deny", "inspect"), Where: d.of("", "p:1"), Port: uint16(d.IntN(3)),
	}
	for _, to := range []*string{&r.Path, &r.Error, &r.Query, &r.Values, &r.Client, &r.Ref, &r.Addr} {
		if d.IntN(3) == 0 {
			*to = d.text()
		}
	}
	r.Status, r.Sent, r.Micros = d.IntN(4), int64(d.IntN(5)-1), int64(d.IntN(3))
	if d.IntN(9) == 0 {
		r.Cut, r.Data = []string{"path", "host"}, json.RawMessage(`{"a":[1,null,"<"]}`)
	}
	return r
}

// filter is a row of up to three terms, and sometimes a time.
func (d dice) filter(t *testing.T, n int) query.Filter {
	t.Helper()
	for {
		var terms []string
		for range d.IntN(4) {
			values := fmt.Sprintf("%q", d.text())
			if d.IntN(3) == 0 {
				values += fmt.Sprintf(",%q", d.text())
			}
			field := query.Fields()[d.IntN(len(query.Fields()))]
			if strings.Contains("port status sent seq us", field) {
				values = fmt.Sprint(d.IntN(6) - 1)
			}
			if d.IntN(4) == 0 {
				field = d.of("verdict=deny", "kind!=done", "kind=dns,refuse", "run=r1", "port=1", `where!=""`, "sent>=3", "host~example")
				terms = append(terms, field)
				continue
			}
			terms = append(terms, d.of(field+d.of("=", "!=", "~", "!~", "<", ">="), "")+values)
		}
		for _, name := range []string{"since", "until"} {
			if d.IntN(4) == 0 {
				terms = append(terms, name+"="+start.Add(time.Duration(d.IntN(n))*7*time.Minute).Format(time.RFC3339))
			}
		}
		if d.IntN(6) == 0 {
			terms = append(terms, fmt.Sprintf("%q", d.text()))
		}
		f, err := query.Parse(strings.Join(terms, " "), start)
		switch {
		case err != nil:
		case d.IntN(4) == 0:
			one, err := query.Parse(d.of("verdict=deny", "kind!=done", `where!=""`, "host~example", "port=1"), start)
			if err != nil {
				t.Fatal(err)
			}
			return f.And(query.AnyOf(one, query.Where("verdict", d.of("deny", "inspect")).And(query.Where("run", d.of("r1", "r2")))))
		default:
			return f
		}
	}
}

// lines are records as they stand in a log.
func lines(t *testing.T, recs []audit.Record) string {
	t.Helper()
	var b strings.Builder
	for _, r := range recs {
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(line, '\n'))
	}
	return b.String()
}

func put(t *testing.T, dir string, first int, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%012d.jsonl", first)), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func all(t *testing.T, recs iter.Seq2[audit.Record, error]) (list []audit.Record, faults []string) {
	t.Helper()
	for r, err := range recs {
		if err != nil {
			faults = append(faults, err.Error())
			continue
		}
		list = append(list, r)
	}
	return list, faults
}

// indexed makes the index of a directory and returns how to ask it.
func indexed(t *testing.T, dir string) index.Config {
	t.Helper()
	cfg := index.Config{Dir: dir, Path: filepath.Join(t.TempDir(), "index.db")}
	update(t, cfg)
	return cfg
}

func update(t *testing.T, cfg index.Config) {
	t.Helper()
	x, err := index.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, err = x.Update(t.Context(), nil)
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// What the index finds is what reading the files finds, for whatever filter: also when
// the log has grown since it was made.
func TestIndexFindsWhatTheFilesHold(t *testing.T) {
	const n, segment, known = 400, 50, 370
	d := dice{rand.New(rand.NewPCG(1, 2))}
	var recs []audit.Record
	for i := range n {
		recs = append(recs, d.record(i))
	}
	dir := t.TempDir()
	for i := 0; i < n; i += segment {
		if i < known {
			put(t, dir, i, lines(t, recs[i:min(i+segment, known)]))
		}
	}
	cfg := indexed(t, dir)
	put(t, dir, n-segment, lines(t, recs[n-segment:]))
	some := 0
	for range 200 {
		f := d.filter(t, n)
		want, faults := all(t, query.Records(dir, f))
		if diff := cmp.Diff(matching(recs, f), numbers(want)); diff != "" || faults != nil {
			t.Fatalf("%s: %v (-each record +files):\n%s", f, faults, diff)
		}
		for how, got := range map[string]iter.Seq2[audit.Record, error]{"": index.Records(t.Context(), cfg, f), " asked to the end": forced(t, cfg, f)} {
			list, faults := all(t, got)
			if diff := cmp.Diff(want, list); diff != "" || faults != nil {
				t.Fatalf("%s%s: %v (-files +index):\n%s", f, how, faults, diff)
			}
		}
		if len(want) > 0 && len(want) < n {
			some++
		}
	}
	if some < 30 {
		t.Errorf("only %d filters tell records apart", some)
	}
}

// matching are the numbers of the records that f matches, one by one.
func matching(recs []audit.Record, f query.Filter) []uint64 {
	return numbers(slices.DeleteFunc(slices.Clone(recs), func(r audit.Record) bool { return !f.Match(&r) }))
}

func numbers(recs []audit.Record) (list []uint64) {
	for i := range recs {
		list = append(list, recs[i].Seq)
	}
	return list
}

// forced asks the index however many records match, and the files for those that it does not know.
func forced(t *testing.T, cfg index.Config, f query.Filter) iter.Seq2[audit.Record, error] {
	t.Helper()
	return func(yield func(audit.Record, error) bool) {
		recs, next := index.Found(t.Context(), cfg, f)
		if next != 370 {
			t.Errorf("%s: the index told of records up to %d, want 370", f, next)
		}
		for _, r := range recs {
			if !yield(r, nil) {
				return
			}
		}
		query.RecordsFrom(t.Context(), cfg.Dir, f, next, nil)(yield)
	}
}

// An index that does not tell all that the files do is not asked.
func TestFilesAreReadWhereTheIndexTellsLess(t *testing.T) {
	d := dice{rand.New(rand.NewPCG(3, 4))}
	var recs []audit.Record
	for i := range 100 {
		recs = append(recs, d.record(i))
	}
	line := func(change func(*audit.Record)) string {
		r := recs[70]
		change(&r)
		return lines(t, []audit.Record{r})
	}
	whole := lines(t, recs[50:])
	with := func(text string) string { return lines(t, recs[50:70]) + text + lines(t, recs[71:]) }
	tests := []struct {
		name, text string
		uses       bool
	}{
		{"as it was written", whole, true},
		{"a line that is no record", with("{\n"), false},
		{"a line of no kind", with(line(func(r *audit.Record) { r.Kind = "" })), false},
		{"a line that is too long", with(line(func(r *audit.Record) { r.Error = strings.Repeat("x", 3*audit.MaxLine) })), false},
		{"a number that is another's", with(line(func(r *audit.Record) { r.Seq = 69 })), false},
		{"a number of another segment", with(line(func(r *audit.Record) { r.Seq = 7 })), false},
		{"a number that is too large", with(line(func(r *audit.Record) { r.Seq = 1<<63 + 5 })), false},
		{"a record twice", with(lines(t, []audit.Record{recs[70], recs[70]})), false},
		{"a record is missing", with(""), false},
		{"of a later schema", with(line(func(r *audit.Record) { r.Schema = audit.Schema + 1 })), false},
		{"of no schema", with(line(func(r *audit.Record) { r.Schema = 0 })), false},
		{"a time in another zone", with(line(func(r *audit.Record) { r.Time = r.Time.In(time.FixedZone("", 7200)) })), false},
		{"a time that is too early", with(line(func(r *audit.Record) { r.Time = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC) })), false},
		{"a name with a comma", with(line(func(r *audit.Record) { r.Cut = []string{"a,b"} })), false},
	}
	for _, tt := range tests {
		dir := t.TempDir()
		put(t, dir, 0, lines(t, recs[:50]))
		put(t, dir, 50, tt.text)
		cfg := indexed(t, dir)
		for range 12 {
			sameAsFiles(t, tt.name, cfg, d.filter(t, 100), tt.uses)
		}
	}
}

// sameAsFiles checks that f is answered as out of the files, and whether the index was asked.
func sameAsFiles(t *testing.T, name string, cfg index.Config, f query.Filter, uses bool) {
	t.Helper()
	want, faults := all(t, query.Records(cfg.Dir, f))
	got, told := all(t, index.Records(t.Context(), cfg, f))
	if diff := cmp.Diff(want, got) + cmp.Diff(faults, told); diff != "" {
		t.Fatalf("%s: %s (-files +index):\n%s", name, f, diff)
	}
	if _, next := index.Found(t.Context(), cfg, f); (next > 0) != uses {
		t.Fatalf("%s: %s: the index told of records up to %d, want it asked: %v", name, f, next, uses)
	}
}

// An index that is not of the files as they are, or is no index, is not asked.
func TestFilesAreReadWhereTheIndexIsOfOthers(t *testing.T) {
	d := dice{rand.New(rand.NewPCG(5, 6))}
	var recs []audit.Record
	for i := range 200 {
		recs = append(recs, d.record(i))
	}
	part := func(i int) string { return lines(t, recs[i:i+25]) }
	rewrite := func(t *testing.T, cfg index.Config, i int) {
		t.Helper()
		put(t, cfg.Dir, i, part(i))
	}
	tests := []struct {
		name   string
		change func(*testing.T, *index.Config)
		uses   bool
	}{
		{"nothing changed", func(*testing.T, *index.Config) {}, true},
		{"two files written anew", func(t *testing.T, c *index.Config) { rewrite(t, *c, 0); rewrite(t, *c, 25) }, true},
		{"many files written anew", func(t *testing.T, c *index.Config) {
			for i := 0; i < 200; i += 25 {
				rewrite(t, *c, i)
			}
		}, false},
		{"a record changed", func(t *testing.T, c *index.Config) {
			put(t, c.Dir, 50, strings.Replace(part(50), `"verdict":"deny"`, `"verdict":"DENY"`, 1))
		}, false},
		{"a file was cut", func(t *testing.T, c *index.Config) { put(t, c.Dir, 175, part(175)[:2000]) }, false},
		{"the first file is gone", func(t *testing.T, c *index.Config) { remove(t, c.Dir, 0) }, true},
		{"a file between is gone", func(t *testing.T, c *index.Config) { remove(t, c.Dir, 50) }, false},
		{"the last file is gone", func(t *testing.T, c *index.Config) { remove(t, c.Dir, 175) }, false},
		{"there is no index", func(_ *testing.T, c *index.Config) { c.Path += ".none" }, false},
		{"the index is of another directory", func(t *testing.T, c *index.Config) {
			other := t.TempDir()
			put(t, other, 0, part(0))
			c.Path = indexed(t, other).Path
		}, false},
		{"the index is no database", func(t *testing.T, c *index.Config) {
			if err := os.WriteFile(c.Path, []byte(strings.Repeat("no database\n", 1000)), 0o600); err != nil {
				t.Fatal(err)
			}
		}, false},
	}
	for _, tt := range tests {
		dir := t.TempDir()
		for i := 0; i < 200; i += 25 {
			put(t, dir, i, part(i))
		}
		cfg := indexed(t, dir)
		tt.change(t, &cfg)
		for range 8 {
			sameAsFiles(t, tt.name, cfg, d.filter(t, 200), tt.uses)
		}
	}
}

// An index that fails while it is asked leaves the rest to the files: no record is
// missing, none told twice.
func TestFilesTakeOverFromAFailingIndex(t *testing.T) {
	const n = 2000 // more than are fetched at once
	d := dice{rand.New(rand.NewPCG(7, 8))}
	var recs []audit.Record
	for i := range n {
		recs = append(recs, d.record(i))
	}
	dir := t.TempDir()
	put(t, dir, 0, lines(t, recs))
	cfg := indexed(t, dir)
	f, err := query.Parse("kind=admit,done,refuse", start) // found by the shapes alone: no record was read before
	if err != nil {
		t.Fatal(err)
	}
	want, _ := all(t, query.Records(dir, f))
	var got []audit.Record
	next, _ := index.FoundUntil(t.Context(), cfg, f, func(r audit.Record) bool {
		got = append(got, r)
		if len(got) == 3 {
			if err := os.Truncate(cfg.Path, 8192); err != nil {
				t.Error(err)
			}
		}
		return true
	})
	if next == 0 || next == n {
		t.Fatalf("the index told of records up to %d: it did not fail on the way", next)
	}
	rest, faults := all(t, query.RecordsFrom(t.Context(), dir, f, next, nil))
	if diff := cmp.Diff(want, append(got, rest...)); diff != "" || faults != nil {
		t.Errorf("%v (-files +index and files):\n%s", faults, diff)
	}
}

// Who asks can stop it.
func TestRecordsEndsWhenItIsTold(t *testing.T) {
	f := newFixture(t)
	f.add(t, 50)
	f.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, faults := all(t, index.Records(ctx, index.Config{Dir: f.dir, Path: f.path}, query.Where("run", "run1")))
	if diff := cmp.Diff([]string{"reading the log: " + context.Canceled.Error()}, faults); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func remove(t *testing.T, dir string, first int) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, fmt.Sprintf("%012d.jsonl", first))); err != nil {
		t.Fatal(err)
	}
}
