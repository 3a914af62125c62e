package query_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/audit/query"
)

// golden are the lines that every version of the format has to be read from.
func golden(t testing.TB) [][]byte {
	t.Helper()
	text, err := os.ReadFile("../testdata/records.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
}

// same checks that Decode reads a line as encoding/json does.
func same(t *testing.T, line []byte) {
	t.Helper()
	var want, got audit.Record
	wantErr, gotErr := json.Unmarshal(line, &want), query.Decode(line, &got)
	if (wantErr == nil) != (gotErr == nil) {
		t.Fatalf("Decode(%s) = %v; encoding/json says %v", line, gotErr, wantErr)
	}
	if diff := cmp.Diff(want, got); wantErr == nil && diff != "" {
		t.Errorf("%s (-encoding/json +Decode):\n%s", line, diff)
	}
}

// What the writer writes is read without encoding/json, but where something in
// it had to be escaped.
func TestDecodeKnowsEveryFieldOfTheWriter(t *testing.T) {
	written := 0
	for _, line := range golden(t) {
		same(t, line)
		var r audit.Record
		if query.DecodeWritten(line, &r) {
			written++
		} else if !bytes.ContainsRune(line, '\\') {
			t.Errorf("read by encoding/json: %s", line)
		}
	}
	if written < 10 {
		t.Errorf("%d lines are read as they are written", written)
	}
}

func TestDecodeOddLines(t *testing.T) {
	for _, line := range []string{
		``, `{`, `{}`, `null`, `[]`, `"x"`, `{"kind":"admit"`, `{"kind":"admit"}x`, `{"kind":"admit"} `, ` {"kind":"admit"}`,
		`{"kind":"admit",}`, `{"kind":"admit" ,"id":"x"}`, `{"KIND":"admit"}`, `{"kind":"a","kind":"b"}`, `{"kind":"\u0061"}`,
		`{"kind":null}`, `{"kind":3}`, `{"unknown":{"a":[1,"}"]},"kind":"admit"}`, `{"seq":007}`, `{"seq":-1}`, `{"seq":1.0}`, `{"seq":1e2}`,
		`{"seq":18446744073709551615}`, `{"seq":18446744073709551616}`, `{"port":65535}`, `{"port":65536}`, `{"us":9223372036854775808}`,
		`{"time":"2027-01-31T12:00:00Z"}`, `{"time":"2027-01-31 12:00:00"}`, `{"time":"2027-01-31T12:00:00+01:00"}`, `{"time":""}`,
		`{"cut":[]}`, `{"cut":["a"]}`, `{"cut":["a","b"]}`, `{"cut":["a",]}`, `{"cut":["a"`, `{"cut":[1]}`, `{"cut":null}`,
		`{"data":{"a":"}"}}`, `{"data":{"a":1},"kind":"x"}`, `{"data":{"a":1} }`, `{"data": 1}`, `{"data":}`, `{"data":null}`, `{"data":{}`,
		"{\"kind\":\"a\tb\"}", "{\"kind\":\"\xff\"}", "{\"data\":\"\xff\"}", "{\"kind\":\"é\"}", "{\"\":\"\"}", `{"v":99999999999}`, `{"kind":"a""id":"b"}`,
	} {
		same(t, []byte(line))
	}
}

func FuzzDecode(f *testing.F) {
	for _, line := range golden(f) {
		f.Add(line)
	}
	f.Add([]byte(`{"cut":["a","b"],"data":{"a":"}"},"kind":"x"}`))
	f.Fuzz(same)
}

func BenchmarkDecode(b *testing.B) {
	lines := golden(b)
	line := lines[0]
	for _, l := range lines { // the longest that is as the writer writes it
		var r audit.Record
		if len(l) > len(line) && query.DecodeWritten(l, &r) {
			line = l
		}
	}
	b.SetBytes(int64(len(line)))
	var r audit.Record
	for b.Loop() {
		if err := query.Decode(line, &r); err != nil {
			b.Fatal(err)
		}
	}
}
