package export_test

import (
	"bytes"
	"testing"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/google/go-cmp/cmp"
)

// Another library than the one that wrote the file, Apache Arrow's, reads it.
func TestParquetIsReadByArrow(t *testing.T) {
	recs := records(t)
	f, err := file.NewParquetReader(bytes.NewReader(write(t, "parquet", recs)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := columns(t, f)
	if f.NumRows() != int64(len(recs)) {
		t.Errorf("%d rows, want %d", f.NumRows(), len(recs))
	}
	want := map[string][]any{}
	add := func(name string, v any) { want[name] = append(want[name], v) }
	for _, r := range recs {
		add("seq", int64(r.Seq))
		add("time", r.Time.UnixNano())
		add("status", int32(r.Status))
		add("port", int32(r.Port))
		add("sent", r.Sent)
		add("received", r.Received)
		add("us", r.Micros)
		for name, text := range map[string]string{
			"id": r.ID, "kind": string(r.Kind), "host": r.Host, "path": r.Path, "run": r.Run, "rule": r.Rule, "reason": r.Reason,
			"verdict": r.Verdict, "credential": r.Credential, "error": r.Error, "data": string(r.Data),
		} {
			add(name, text)
		}
	}
	for name, column := range want {
		if diff := cmp.Diff(column, got[name]); diff != "" {
			t.Errorf("column %s (-want +got):\n%s", name, diff)
		}
	}
}

// columns are the values of every column that has one a row.
func columns(t *testing.T, f *file.Reader) map[string][]any {
	t.Helper()
	out := map[string][]any{}
	for g := range f.NumRowGroups() {
		group := f.RowGroup(g)
		for i := range group.NumColumns() {
			c, err := group.Column(i)
			if err != nil {
				t.Fatal(err)
			}
			name, n := c.Descriptor().Path(), group.NumRows()
			if c.Descriptor().MaxRepetitionLevel() > 0 {
				continue
			}
			switch c := c.(type) {
			case *file.Int64ColumnChunkReader:
				out[name] = append(out[name], batch(t, n, c.ReadBatch)...)
			case *file.Int32ColumnChunkReader:
				out[name] = append(out[name], batch(t, n, c.ReadBatch)...)
			case *file.ByteArrayColumnChunkReader:
				for _, v := range batch(t, n, c.ReadBatch) {
					text, ok := v.(parquet.ByteArray)
					if !ok {
						t.Fatalf("column %s holds %T", name, v)
					}
					out[name] = append(out[name], string(text))
				}
			}
		}
	}
	return out
}

func batch[T any](t *testing.T, n int64, read func(int64, []T, []int16, []int16) (int64, int, error)) []any {
	t.Helper()
	var out []any
	for int64(len(out)) < n {
		values := make([]T, n)
		_, got, err := read(n, values, nil, nil)
		if err != nil || got == 0 {
			t.Fatalf("%d of %d values were read: %v", len(out), n, err)
		}
		for _, v := range values[:got] {
			out = append(out, v)
		}
	}
	return out
}
