package export_test

import (
	"bytes"
	"encoding/csv"
	"errors"
	"flag"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"sallyport/audit"
	"sallyport/audit/export"
	"sallyport/audit/query"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// records are the golden records of the log's format, and what a spreadsheet, a
// shell or a parser could stumble over.
func records(t *testing.T) []audit.Record {
	t.Helper()
	text, err := os.ReadFile("../testdata/records.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "000000000000.jsonl"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	var out []audit.Record
	for r, err := range query.Records(dir, query.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	odd := out[7]
	odd.Seq, odd.ID, odd.Host, odd.Method, odd.Path = 15, "=cmd|'/c calc'!A1", "2001:db8::1", "PROPFIND", `/a|b=c\d,"e`
	odd.Port, odd.Cut = 8443, nil
	odd.Error = "one\ntwo | three=four\\"
	out[7].Path = out[7].Path[:60] // the whole of it says no more
	return append(out, odd)
}

func seq(recs []audit.Record) iter.Seq2[audit.Record, error] {
	return func(yield func(audit.Record, error) bool) {
		for _, r := range recs {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func write(t *testing.T, format string, recs []audit.Record) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := export.Write(&b, format, seq(recs), export.Config{Version: "1.2.3", Host: "gate"})
	if err != nil || n != int64(len(recs)) {
		t.Fatalf("Write %s = %d, %v", format, n, err)
	}
	return b.Bytes()
}

func TestGolden(t *testing.T) {
	for _, format := range export.Formats() {
		if format == "parquet" {
			continue // compressed: TestParquetReadsBack
		}
		path := filepath.Join("testdata", "golden."+format)
		got := write(t, format, records(t))
		if *update {
			if err := os.WriteFile(path, got, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-golden +got): make golden\n%s", format, diff)
		}
	}
}

// What a terminal could obey is in no text format.
func TestNoFormatHoldsControlCharacters(t *testing.T) {
	recs := records(t)
	for i := range recs {
		recs[i].Host += "\x1b[2J\u202e"
		recs[i].Path += "\x07"
	}
	for _, format := range []string{"jsonl", "har", "ocsf", "ecs", "otlp"} {
		if got := write(t, format, recs); bytes.ContainsAny(got, "\x1b\x07") {
			t.Errorf("%s holds a control character", format)
		}
	}
}

// Every field of a record has a column, but for the version of its form.
func TestTablesHaveEveryField(t *testing.T) {
	code, err := os.ReadFile("../record.go")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range regexp.MustCompile("json:\"([a-z_]+)").FindAllSubmatch(code, -1) {
		if name := string(m[1]); name != "v" {
			want = append(want, name)
		}
	}
	head, _, _ := strings.Cut(string(write(t, "csv", nil)), "\r\n")
	slices.Sort(want)
	got := strings.Split(head, ",")
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("csv (-record +columns):\n%s", diff)
	}
	text := write(t, "parquet", nil)
	f, err := parquet.OpenFile(bytes.NewReader(text), int64(len(text)))
	if err != nil {
		t.Fatal(err)
	}
	got = nil
	for _, field := range f.Schema().Fields() {
		got = append(got, field.Name())
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("parquet (-record +columns):\n%s", diff)
	}
}

// A placeholder that leaked, or a credential that was asked for, was not given: no
// view says that it was let through.
func TestWhatWasNotGivenIsNotAllowed(t *testing.T) {
	for event, want := range map[string]bool{"leak": true, "refusal": true, "mint": false, "unsaved": false} {
		reason := map[bool]string{true: "placeholder_leak", false: "learned"}[want]
		rec := audit.Record{
			Schema: 1, Kind: audit.Credential, ID: "A", Ref: "B", Event: event, Reason: reason, Credential: "k",
			Host: "evil.example", Port: 443, Method: "GET", Path: "/", Time: time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC),
		}
		for format, marks := range map[string][2]string{ // what it says of what was, and was not, refused
			"cef": {"act=blocked", "act=allowed"}, "ocsf": {`"action_id":2,`, `"action_id":1,`}, "ecs": {`"outcome":"failure"`, `"outcome":"success"`},
			"otlp": {`"severityText":"WARN"`, `"severityText":"INFO"`},
		} {
			got := string(write(t, format, []audit.Record{rec}))
			if strings.Contains(got, marks[0]) != want || strings.Contains(got, marks[1]) == want {
				t.Errorf("%s of a %s, refused: %v:\n%s", format, event, want, got)
			}
		}
		if got := string(write(t, "ecs", []audit.Record{rec})); strings.Contains(got, `"denied"`) != want {
			t.Errorf("ecs of a %s, refused: %v:\n%s", event, want, got)
		}
	}
}

func TestEmptyExports(t *testing.T) {
	for _, format := range export.Formats() {
		got := write(t, format, nil)
		switch format {
		case "csv":
			if !bytes.HasPrefix(got, []byte("seq,time,id,kind,")) {
				t.Errorf("an empty csv is %q", got)
			}
		case "har":
			validate(t, "har", got)
		case "parquet":
			if _, err := parquet.OpenFile(bytes.NewReader(got), int64(len(got))); err != nil {
				t.Errorf("an empty parquet file: %v", err)
			}
		default:
			if len(got) > 0 {
				t.Errorf("an empty %s is %q", format, got)
			}
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	if _, err := export.Write(&bytes.Buffer{}, "xml", seq(nil), export.Config{}); !errors.Is(err, export.ErrFormat) {
		t.Errorf("Write xml = %v, want ErrFormat", err)
	}
	bad := func(yield func(audit.Record, error) bool) {
		_ = yield(audit.Record{}, &query.LineError{File: "f", Line: 3, Err: errors.New("no")}) && yield(audit.Record{Kind: audit.Gap}, nil)
	}
	n, err := export.Write(&bytes.Buffer{}, "jsonl", bad, export.Config{})
	if _, ok := errors.AsType[*query.LineError](err); n != 1 || !ok {
		t.Errorf("Write of a bad line and a good one = %d, %v, want 1 and the bad line", n, err)
	}
}

// TestWriteCountsWhatItLeavesOut: a format that has no place for a record does not
// leave it out without a word.
func TestWriteCountsWhatItLeavesOut(t *testing.T) {
	recs := records(t)
	want := map[string]map[audit.Kind]int64{"har": {}, "ocsf": {}}
	for _, r := range recs {
		if r.Method == "" || r.Host == "" || r.Kind != audit.Done && r.Kind != audit.Refuse {
			want["har"][r.Kind]++
		}
		switch r.Kind {
		case audit.Admit, audit.Refuse, audit.Done, audit.DNS, audit.Credential:
		default:
			want["ocsf"][r.Kind]++
		}
	}
	for _, format := range export.Formats() {
		got := map[audit.Kind]int64{}
		n, err := export.Write(&bytes.Buffer{}, format, seq(recs), export.Config{LeftOut: got})
		if err != nil || n != int64(len(recs)) {
			t.Errorf("%s: Write = %d, %v", format, n, err)
		}
		if want[format] == nil {
			want[format] = map[audit.Kind]int64{}
		}
		if diff := cmp.Diff(want[format], got); diff != "" {
			t.Errorf("%s left out (-want +got):\n%s", format, diff)
		}
	}
	if len(want["har"]) == 0 || len(want["ocsf"]) == 0 {
		t.Error("there is nothing to be left out")
	}
}

func validate(t *testing.T, schema string, text []byte) {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	s, err := c.Compile("testdata/" + schema + ".schema.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(doc); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestHARFollowsItsSchema(t *testing.T) { validate(t, "har", write(t, "har", records(t))) }

// The messages are read by the code that is generated from OpenTelemetry's own
// definition, which refuses fields that it does not know.
func TestOTLPIsReadByItsOwnDefinition(t *testing.T) {
	recs := records(t)
	got := 0
	for line := range bytes.Lines(write(t, "otlp", recs)) {
		var msg logspb.LogsData // an ExportLogsServiceRequest by another name
		if err := protojson.Unmarshal(line, &msg); err != nil {
			t.Fatalf("%v\n%s", err, line)
		}
		for _, l := range msg.GetResourceLogs()[0].GetScopeLogs()[0].GetLogRecords() {
			r := recs[got]
			if l.GetTimeUnixNano() != uint64(r.Time.UnixNano()) || l.GetEventName() != "sallyport."+string(r.Kind) ||
				l.GetAttributes()[0].GetValue().GetStringValue() != r.ID {
				t.Errorf("record %d reads as %v", r.Seq, l)
			}
			got++
		}
	}
	if got != len(recs) {
		t.Errorf("%d log records, want %d", got, len(recs))
	}
}

// OTLP counts nanoseconds since 1970 in 64 bits without a sign, where 0 means
// that the time is not known: a clock that was never set does not become a
// time that a collector refuses, or one of the far future.
func TestOTLPOfATimeThatItCannotTell(t *testing.T) {
	for when, want := range map[string]uint64{
		"1969-12-31T23:59:59.999Z": 0, "0001-01-01T00:00:00Z": 0, "1970-01-01T00:30:00+01:00": 0, "2262-01-01T00:00:00Z": 0, "9999-12-31T23:59:59Z": 0,
		"1970-01-01T00:00:00.000000001Z": 1, "2261-12-31T00:00:00Z": 9214560000000000000,
	} {
		at, err := time.Parse(time.RFC3339Nano, when)
		if err != nil {
			t.Fatal(err)
		}
		line := write(t, "otlp", []audit.Record{{Kind: audit.Admit, ID: "x", Time: at}})
		var msg logspb.LogsData
		if err := protojson.Unmarshal(line, &msg); err != nil {
			t.Fatalf("%s: %v\n%s", when, err, line)
		}
		l := msg.GetResourceLogs()[0].GetScopeLogs()[0].GetLogRecords()[0]
		if l.GetTimeUnixNano() != want || l.GetObservedTimeUnixNano() != want {
			t.Errorf("%s reads as %d and %d, want %d", when, l.GetTimeUnixNano(), l.GetObservedTimeUnixNano(), want)
		}
	}
}

func TestCSVReadsBack(t *testing.T) {
	recs := records(t)
	rows, err := csv.NewReader(bytes.NewReader(write(t, "csv", recs))).ReadAll()
	if err != nil || len(rows) != len(recs)+1 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for i, r := range recs {
		row := map[string]string{}
		for j, name := range rows[0] {
			row[name] = rows[i+1][j]
			if v := row[name]; v != "" && strings.ContainsAny(v[:1], "=+-@\t\r") {
				t.Errorf("a spreadsheet takes %q for a formula", v)
			}
		}
		if row["path"] != r.Path || row["host"] != r.Host || row["error"] != r.Error || row["data"] != string(r.Data) {
			t.Errorf("record %d reads as %v", r.Seq, row)
		}
	}
}

// No cell is a formula, wherever a spreadsheet takes it to begin, LG-01.
func TestCSVHoldsNoFormula(t *testing.T) {
	for in, want := range map[string]string{
		"=1+1":              "'=1+1",
		"@SUM(A1)":          "'@SUM(A1)",
		"＝1+1":              "'＝1+1",
		"/a;=cmd|' /C calc": "/a;'=cmd|' /C calc",
		"/a; \"-2+3;+4":     "/a; \"'-2+3;'+4",
		"/a=b;c=d?e-f":      "/a=b;c=d?e-f",
		"é;x":               "é;x",
	} {
		rows, err := csv.NewReader(bytes.NewReader(write(t, "csv", []audit.Record{{Kind: audit.Refuse, Error: in}}))).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		at := slices.Index(rows[0], "error")
		if got := rows[1][at]; got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

func TestParquetReadsBack(t *testing.T) {
	recs := records(t)
	data := write(t, "parquet", recs)
	f, err := parquet.OpenFile(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	type some struct {
		Seq  int64    `parquet:"seq"`
		ID   string   `parquet:"id"`
		Host string   `parquet:"host"`
		Path string   `parquet:"path"`
		Cut  []string `parquet:"cut,list"`
		Data string   `parquet:"data"`
	}
	rows, err := parquet.Read[some](bytes.NewReader(data), int64(len(data)))
	if err != nil || len(rows) != len(recs) || f.NumRows() != int64(len(recs)) {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for i, r := range recs {
		want := some{int64(r.Seq), r.ID, r.Host, r.Path, r.Cut, string(r.Data)}
		if want.Cut == nil {
			want.Cut = []string{}
		}
		if rows[i].Cut == nil {
			rows[i].Cut = []string{}
		}
		if diff := cmp.Diff(want, rows[i]); diff != "" {
			t.Errorf("record %d (-want +got):\n%s", r.Seq, diff)
		}
	}
}
