package query_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/audit/query"
)

// few are three records.
func few(yield func(audit.Record, error) bool) {
	for i, host := range []string{"a.example", "b.example", "c.example"} {
		r := audit.Record{Kind: audit.Done, Seq: 1<<60 + uint64(i), ID: fmt.Sprint("id", i), Host: host, Status: 200 + 150*i, Time: start}
		if !yield(r, nil) {
			return
		}
	}
}

func values(t *testing.T, program string, recs iter.Seq2[audit.Record, error]) (string, error) {
	t.Helper()
	j, err := query.ParseJQ(program)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for v, err := range j.Values(t.Context(), recs) {
		if err != nil {
			return strings.Join(out, " "), err
		}
		out = append(out, fmt.Sprint(v))
	}
	return strings.Join(out, " "), nil
}

func TestJQValues(t *testing.T) {
	for program, want := range map[string]string{
		".host":                                  "a.example b.example c.example",
		"select(.status >= 400) | .id":           "id2",
		".seq":                                   "1152921504606846976 1152921504606846977 1152921504606846978",
		"empty":                                  "",
		".status, .host":                         "200 a.example 350 b.example 500 c.example",
		"if .id == \"id1\" then halt else 1 end": "1",
		"env | length":                           "0 0 0",
		"$ENV.PATH":                              "<nil> <nil> <nil>",
	} {
		if got, err := values(t, program, few); err != nil || got != want {
			t.Errorf("%s = %q, %v, want %q", program, got, err, want)
		}
	}
}

func TestJQFails(t *testing.T) {
	for _, program := range []string{"", "(", ".host |", "nosuch(1)", `import "x" as x; 1`, `include "x"; 1`, "$x", "input", "inputs"} {
		if _, err := query.ParseJQ(program); err == nil {
			t.Errorf("ParseJQ(%q): no error", program)
		}
	}
	got, err := values(t, `if .id == "id1" then error("\u001b[2Jno") else .id end`, few)
	if bad, ok := errors.AsType[*query.JQError](err); !ok || bad.ID != "id1" || strings.Contains(err.Error(), "\x1b") || got != "id0" {
		t.Errorf("a program that fails on a record: %q, %q", got, err)
	}
}

// A program that never ends is ended with its question.
func TestJQEndsWithItsContext(t *testing.T) {
	j, err := query.ParseJQ("def f: f; f")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range j.Values(ctx, few) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error = %v, want context.Canceled", err)
		}
	}
}

func TestJQRecords(t *testing.T) {
	j, err := query.ParseJQ(`select(.status < 500) | del(.host)`)
	if err != nil {
		t.Fatal(err)
	}
	var got []audit.Record
	for r, err := range j.Records(t.Context(), few) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r)
	}
	var want []audit.Record
	for r := range few {
		if r.Host = ""; r.Status < 500 {
			want = append(want, r)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Records (-want +got):\n%s", diff)
	}
	for _, program := range []string{".host", "{}", "[.]", ". + {colour: 1}", `.status = "x"`, "null"} {
		j, err := query.ParseJQ(program)
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range j.Records(t.Context(), few) {
			if !errors.Is(err, query.ErrNoRecord) {
				t.Errorf("%s: %v, want ErrNoRecord", program, err)
			}
			break
		}
	}
}
