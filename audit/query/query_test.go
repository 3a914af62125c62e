package query_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"sallyport/audit"
	"sallyport/audit/query"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)

// open returns a live log whose clock advances a minute with each look.
func open(t testing.TB) (*audit.Log, string) {
	t.Helper()
	base := t.TempDir()
	now := start
	l, err := audit.Open(audit.Config{
		Dir: filepath.Join(base, "audit"), KeyFile: filepath.Join(base, "key"), Interval: time.Hour,
		SegmentSize: 600, Now: func() time.Time { return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil && !errors.Is(err, audit.ErrClosed) {
			t.Error(err)
		}
	})
	return l, filepath.Join(base, "audit")
}

func add(t testing.TB, l *audit.Log, recs ...audit.Record) {
	t.Helper()
	for i := range recs {
		recs[i].Time = start.Add(time.Duration(i) * time.Minute)
		if err := l.Append(t.Context(), &recs[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Sync(t.Context()); err != nil { // what is over waits for the next write
		t.Fatal(err)
	}
}

func sample() []audit.Record {
	return []audit.Record{
		{Kind: audit.RunStart, Run: "r1", Cell: "c1", Data: json.RawMessage(`{"image":"x"}`)},
		{Kind: audit.DNS, Run: "r1", Cell: "c1", Verdict: "inspect", Reason: "allowed", Host: "api.stripe.com", QType: "A", Answer: "198.18.0.1"},
		{Kind: audit.Admit, Run: "r1", Cell: "c1", Verdict: "inspect", Reason: "allowed", Rule: "charges", Host: "api.stripe.com", Port: 443, Method: "POST", Path: "/v1/charges", Credential: "stripe"},
		{Kind: audit.Done, Run: "r1", Cell: "c1", Verdict: "inspect", Reason: "allowed", Rule: "charges", Host: "api.stripe.com", Port: 443, Method: "POST", Path: "/v1/charges", Status: 200, Sent: 1200, Received: 3400, Micros: 12345},
		{Kind: audit.Refuse, Run: "r1", Cell: "c1", Verdict: "deny", Reason: "host_not_allowed", Question: "fetch", Host: "evil.example", Port: 443, Method: "POST", Path: "/x"},
		{Kind: audit.Refuse, Run: "r1", Cell: "c1", Verdict: "deny", Reason: "host_not_allowed", Question: "fetch", Host: "evil.example", Port: 443, Method: "POST", Path: "/x"},
		{Kind: audit.Refuse, Run: "r2", Cell: "c2", Verdict: "deny", Reason: "path_not_allowed", Rule: "charges", Host: "api.stripe.com", Port: 443, Method: "GET", Path: "/v1/refunds"},
		{Kind: audit.Done, Run: "r1", Cell: "c1", Verdict: "deny", Reason: "private_ip", Host: "rebind.example", Port: 443, Error: "address 10.0.0.1"},
	}
}

func parse(t testing.TB, text string) query.Filter {
	t.Helper()
	f, err := query.Parse(text, start.Add(10*time.Minute))
	if err != nil {
		t.Fatalf("Parse(%q): %v", text, err)
	}
	return f
}

func collect(t testing.TB, dir string, f query.Filter) []uint64 {
	t.Helper()
	var seqs []uint64
	for r, err := range query.Records(dir, f) {
		if err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, r.Seq)
	}
	return seqs
}

func TestRecords(t *testing.T) {
	l, dir := open(t)
	add(t, l, sample()...)
	// 0 is log.open.
	tests := []struct {
		filter string
		want   []uint64
	}{
		{"", []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8}},
		{"host=nowhere.example", nil},
		{"host=api.stripe", nil},
		{"run=r2", []uint64{7}},
		{"run=r", nil},
		{"run=r1,r2 verdict=deny", []uint64{5, 6, 7, 8}},
		{"host~STRIPE verdict!=deny", []uint64{2, 3, 4}},
		{"host!~stripe kind=done", []uint64{8}},
		{"cell=c1 rule=charges", []uint64{3, 4}},
		{"reason=host_not_allowed,private_ip", []uint64{5, 6, 8}},
		{"credential=stripe", []uint64{3}},
		{"method=POST path=/v1/charges kind!=done", []uint64{3}},
		{"status>=200 status<300", []uint64{4}},
		{"sent>1199", []uint64{4}},
		{"port=443,80 us!=0", []uint64{4}},
		{"seq=1", []uint64{1}},
		{"since=4m", []uint64{7, 8}},
		{"until=2027-01-31T12:01:00Z run=r1", []uint64{1}},
		{"since=2027-01-31T12:01 until=2027-01-31T12:03", []uint64{2, 3}},
		{"since=2027-02-01", nil},
		{"refunds", []uint64{7}},
		{`"10.0.0.1"`, []uint64{8}},
		{`error="address 10.0.0.1"`, []uint64{8}},
		{`verdict=""`, []uint64{0, 1}},
	}
	for _, tt := range tests {
		f := parse(t, tt.filter)
		if got := collect(t, dir, f); !cmp.Equal(got, tt.want) {
			t.Errorf("Records(%q) = %v, want %v", tt.filter, got, tt.want)
		}
		if again := parse(t, f.String()); !cmp.Equal(collect(t, dir, again), tt.want) {
			t.Errorf("Records(%q), which is %q as text, differs", f.String(), tt.filter)
		}
	}
}

// Segments that lie outside of the time that is asked for are not read, but a clock may
// have been set back by a day: nothing is missing.
func TestTimeIsFoundInItsSegments(t *testing.T) {
	dir := t.TempDir()
	const n = 100
	for i := range n / 2 { // two records a segment, five hours apart; the clock is set back by twenty at a third
		var text string
		for k := 2 * i; k < 2*i+2; k++ {
			at := start.Add(time.Duration(5*k) * time.Hour)
			if k > n/3 {
				at = at.Add(-20 * time.Hour)
			}
			text += fmt.Sprintf(`{"v":1,"seq":%d,"time":%q,"id":"i%d","kind":"dns"}`+"\n", k, at.Format(time.RFC3339), k)
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%012d.jsonl", 2*i)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	every := parse(t, "")
	for since := -10; since < 5*n; since += 23 {
		for _, f := range []query.Filter{
			{Since: start.Add(time.Duration(since) * time.Hour)},
			{Until: start.Add(time.Duration(since) * time.Hour)},
			{Since: start.Add(time.Duration(since) * time.Hour), Until: start.Add(time.Duration(since+30) * time.Hour)},
		} {
			var want []uint64
			for r, err := range query.Records(dir, every) {
				if err != nil {
					t.Fatal(err)
				}
				if f.Match(&r) {
					want = append(want, r.Seq)
				}
			}
			if diff := cmp.Diff(want, collect(t, dir, f)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", f, diff)
			}
		}
	}
	// What is wrong with a segment that is not read is not told.
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%012d.jsonl", n)), []byte(fmt.Sprintf(`{"v":1,"seq":%d,"time":"2028-01-01T00:00:00Z","id":"x","kind":"dns"}`+"\n{\n", n)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := collect(t, dir, query.Filter{Until: start.Add(time.Hour)}); len(got) != 1 {
		t.Errorf("until an hour after the start: records %v, want one", got)
	}
}

func TestRecordsFrom(t *testing.T) {
	l, dir := open(t)
	add(t, l, sample()...)
	every := collect(t, dir, query.Filter{})
	for from := range uint64(len(every) + 2) {
		var got []uint64
		for r, err := range query.RecordsFrom(t.Context(), dir, query.Filter{}, from, nil) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, r.Seq)
		}
		if diff := cmp.Diff(every[min(int(from), len(every)):], got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("from %d (-want +got):\n%s", from, diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct{ text, want string }{
		{"hots=x", `column 1: there is no field "hots"`},
		{"host=x  hots=y", `column 9: there is no field "hots"`},
		{"host>x", `column 1: host is text`},
		{"status=ok", `column 1: status is a number, and "ok" is not`},
		{"status~2", `column 1: status is a number`},
		{"status<1,2", `takes one number`},
		{"since=yesterday", `"yesterday" is no time: write`},
		{"since>2h", "since takes = and one time"},
		{"since=-2h", "is no time"},
		{"since=30m until=1h", "column 11: since "},
		{"until=1h host=x since=1h", "is not before until"},
		{`host="x`, "not closed"},
		{"host==x", `host is text: it can be asked with = != ~ !~, not "=="`},
		{"a=1 b=2", "column 5: there is no field"},
		// What would be a word that finds nothing, and was meant as more.
		{"=", `"=" stands between a field and a value`},
		{"!evil", `no field stands before "!evil"`},
		{"Host=x", `there is no field "Host"; did you mean "host"?`},
		{"http.status=3", `there is no field "http.status"`},
		{"data=x", "--jq 'select(.data ...)'"},
		{"kind refuse", `"kind" is a field: it takes an operator and a value`},
		{"evil since 2h", `column 6: "since" is a field`},
		{"host=https://api.stripe.com/v1", "more than a host"},
		{"host=api.stripe.com:443", "more than a host"},
	}
	for _, tt := range tests {
		_, err := query.Parse(tt.text, start)
		var p *query.ParseError
		if !errors.As(err, &p) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Parse(%q) = %v, want %q", tt.text, err, tt.want)
		}
	}
}

// Each says what can be written instead, which can be read.
func TestParseErrorsTellWhatToWrite(t *testing.T) {
	for text, want := range map[string]string{
		"status>=abc":                    "status>=400",
		"status~2":                       "status>=400",
		"since=23:08":                    "since=2h",
		"until>2h":                       "until=2h",
		"kind=reffuse":                   "kind=refuse",
		"verdict!=allow":                 "verdict=deny",
		"verdict=allowed":                "verdict=inspect,tunnel",
		"verdict=blocked":                "verdict=deny",
		"host=*.evil.test":               "host~.evil.test",
		"host!=*.evil.*":                 "host!~.evil.",
		"host=*":                         "host~stripe",
		"host>x":                         "host~x",
		`host>"a b"`:                     `host~"a b"`,
		"!evil":                          "host!~evil",
		"HOST~evil":                      "host~evil",
		"host=api.stripe.com:443":        "host=api.stripe.com port=443",
		"host!=https://API.stripe.com/x": "host!=API.stripe.com",
		"colour=red":                     "",
		"since":                          "since=2h",
		"status":                         "status>=400",
		"verdict":                        "verdict=deny",
		"host":                           "host~stripe",
	} {
		_, err := query.Parse(text, start)
		var p *query.ParseError
		if !errors.As(err, &p) || p.Try != want {
			t.Errorf("Parse(%q) = %v, which says to write %q, want %q", text, err, p.Try, want)
			continue
		}
		if _, err := query.Parse(p.Try, start); err != nil {
			t.Errorf("Parse(%q), which is to be written instead of %q: %v", p.Try, text, err)
		}
	}
}

// What is spelled otherwise than in the log is found: nothing found would be believed.
func TestFilterFindsOtherSpellings(t *testing.T) {
	const id = "01KG929JMR0XK3YN70K10FKSND"
	rec := audit.Record{Kind: audit.DNS, ID: id, Ref: id, Run: id, Host: "xn--bcher-kva.example", Method: "GET", QType: "TXT"}
	for _, text := range []string{
		"host=xn--bcher-kva.example", "host=XN--bcher-KVA.Example", "host=xn--bcher-kva.example.", "host=bücher.example", "host=x,BÜCHER.example",
		"method=get", "method=GET", "method=post,get", "qtype=txt",
		"id=01kg929jmr0xk3yn70k10fksnd", "ref=01kg929jmr0xk3yn70k10fksnd", "run=01KG929jmr0xk3yn70k10fksnd",
		"host~BCHER", "host!=x.example", "method!=post",
	} {
		f := parse(t, text)
		if !f.Match(&rec) {
			t.Errorf("%q, which is %q, does not find it", text, f)
		}
	}
	for _, text := range []string{"host!=Bücher.example", "method!=get", "run!=01kg929jmr0xk3yn70k10fksnd", "host=example", "id=01KG929JMR", "method=gets"} {
		if f := parse(t, text); f.Match(&rec) {
			t.Errorf("%q, which is %q, finds it", text, f)
		}
	}
	if f := parse(t, "method=get host=::FFFF:192.0.2.1"); !f.Match(&audit.Record{Method: "get", Host: "192.0.2.1"}) {
		t.Errorf("%q does not find what stands as it was sent", f)
	}
}

// A time that this program prints, and what people write, is read; without a zone it is UTC.
func TestParseTime(t *testing.T) {
	want := time.Date(2026, 11, 30, 23, 8, 10, 0, time.UTC)
	for _, text := range []string{
		"2026-11-30T23:08:10Z", "2026-11-30 23:08:10Z", "2026-11-30 23:08:10.000Z", "2026-11-30 23:08:10", "2026-11-30T23:08:10", "2026-11-30t23:08:10z",
		"2026-12-01T01:08:10+02:00", "2026-12-01 01:08:10+0200", "2026-11-30 18:08:10-05:00", "2026-11-30T23:08:10.000000000Z",
	} {
		got, err := query.ParseTime(text, start)
		if err != nil || !got.Equal(want) || got.Location() != time.UTC {
			t.Errorf("ParseTime(%q) = %v, %v, want %v", text, got, err, want)
		}
		f := parse(t, "since="+text+" kind=admit") // as a shell leaves it without the quotes
		if !f.Since.Equal(want) {
			t.Errorf("since=%s is since %v, want %v", text, f.Since, want)
		}
		if f := parse(t, fmt.Sprintf("until=%q", text)); !f.Until.Equal(want) {
			t.Errorf("until=%q is until %v, want %v", text, f.Until, want)
		}
	}
	for text, want := range map[string]time.Time{
		"2026-11-30 23:08": want.Add(-10 * time.Second), "2026-11-30T23:08Z": want.Add(-10 * time.Second), "2026-11-30": want.Truncate(24 * time.Hour),
		"now": start, "90s": start.Add(-90 * time.Second), "7d": start.AddDate(0, 0, -7), "2h30m": start.Add(-150 * time.Minute),
	} {
		if got, err := query.ParseTime(text, start); err != nil || !got.Equal(want) {
			t.Errorf("ParseTime(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "yesterday", "-2h", "2026-02-30", "2026", "23:08", "2026-11-30 25:00", "2026-11-30  23:08", "99999999d"} {
		if got, err := query.ParseTime(text, start); !errors.Is(err, query.ErrTime) {
			t.Errorf("ParseTime(%q) = %v, %v, want ErrTime", text, got, err)
		}
	}
}

func TestReaderTellsOfBadLinesAndGoesOn(t *testing.T) {
	l, dir := open(t)
	add(t, l, sample()[:2]...)
	extra := filepath.Join(dir, "000000000099.jsonl")
	text := `{"v":1,"seq":99,"kind":"admit","new_field":{"x":1},"host":"a.example"}` + "\n" +
		"\x1b[2Jnot json\n" + strings.Repeat("x", 300<<10) + "\n\n" + `{"v":1,"seq":100,"host":"b.example"}` + "\n" + `{"v":1,"seq":1`
	if err := os.WriteFile(extra, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	var seqs []uint64
	var bad []int64
	for r, err := range query.Records(dir, query.Filter{}) {
		var le *query.LineError
		switch {
		case errors.As(err, &le):
			bad = append(bad, le.Line)
		case err != nil:
			t.Fatal(err)
		default:
			seqs = append(seqs, r.Seq)
		}
	}
	if want := []uint64{0, 1, 2, 99, 100}; !cmp.Equal(seqs, want) {
		t.Errorf("records = %v, want %v", seqs, want)
	}
	if want := []int64{2, 3, 4}; !cmp.Equal(bad, want) {
		t.Errorf("bad lines = %v, want %v", bad, want)
	}
	for _, err := range query.Records(t.TempDir(), query.Filter{}) {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Records(empty directory): %v, want ErrNotExist", err)
		}
	}
}

// LG-02: nothing that a terminal obeys reaches it, even out of a forged file.
func TestTableLG02(t *testing.T) {
	_, dir := open(t)
	forged, err := json.Marshal(audit.Record{
		Kind: "admit\x1b[2J", Verdict: "deny\u202e", Reason: "\u0085x", Host: "\x1b]0;x\x07.example",
		Path: "/" + strings.Repeat("é", 100), Method: "G\r\nET", Time: start,
	})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "000000000099.jsonl")
	if err := os.WriteFile(name, append(forged, "\n\x1b[31mno record\n"...), 0o640); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := query.Table(&out, query.Columns, query.Records(dir, query.Filter{})); err != nil {
		t.Fatal(err)
	}
	for _, r := range out.String() {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Fatalf("table holds %U:\n%q", r, out.String())
		}
	}
	for line := range strings.Lines(out.String()) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 100 {
			t.Errorf("line of %d columns: %q", n, line)
		}
	}
}

func TestJSON(t *testing.T) {
	l, dir := open(t)
	add(t, l, sample()...)
	var out bytes.Buffer
	if err := query.JSON(&out, query.Records(dir, query.Filter{})); err != nil {
		t.Fatal(err)
	}
	var want []byte
	names, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	for _, n := range names {
		data, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, data...)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("JSON is not the log's own lines (-want +got):\n%s", diff)
	}
	forged := "{\"kind\":\"admit\",\"host\":\"\u009b2J\u202e\",\"data\":{\"x\":\"\u009b\"}}\nno record\n"
	if err := os.WriteFile(filepath.Join(dir, "000000000099.jsonl"), []byte(forged), 0o640); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	err := query.JSON(&out, query.Records(dir, parse(t, "seq=0")))
	var bad *query.LineError
	if !errors.As(err, &bad) || !strings.Contains(out.String(), `\u009b2J\u202e`) || strings.ContainsAny(out.String(), "\u009b\u202e") {
		t.Errorf("JSON of a forged log = %q, %v", out.String(), err)
	}
}

func TestTable(t *testing.T) {
	l, dir := open(t)
	add(t, l, sample()...)
	var out bytes.Buffer
	if err := query.Table(&out, query.Columns, query.Records(dir, parse(t, "run=r1"))); err != nil {
		t.Fatal(err)
	}
	want := `TIME UTC KIND           VERDICT REASON                 WHAT
2027-01-31
12:00:00 run.start                                     x r1
12:01:00 dns            inspect allowed                A api.stripe.com -> 198.18.0.1
12:02:00 admit          inspect allowed                POST api.stripe.com/v1/charges with stripe
12:03:00 done           inspect allowed                200 1.2k up 3.3k down 12ms api.stripe.com/v1…
12:04:00 refuse         deny    host_not_allowed       POST evil.example/x
12:05:00 refuse         deny    host_not_allowed       POST evil.example/x
12:07:00 done           deny    private_ip             0B up 0B down 0s rebind.example address 10.0…
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("Table (-want +got):\n%s", diff)
	}
}

// Where a terminal is wide, a line leads to all that belongs to its record.
func TestWideTableHasIDs(t *testing.T) {
	recs := func(yield func(audit.Record, error) bool) {
		yield(audit.Record{Time: start, ID: "01KG929JMR0XK3YN70K10FKSND", Kind: audit.Refuse, Reason: "bad_request", Host: "a.example", Path: "/" + strings.Repeat("é", 300)}, nil)
	}
	for columns := range 200 {
		var out bytes.Buffer
		if err := query.Table(&out, columns, recs); err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Contains(out.String(), " 01KG929JMR0XK3YN70K10FKSND\n"), columns >= 127; got != want {
			t.Errorf("of %d columns: the id is there: %v, want %v:\n%s", columns, got, want, &out)
		}
		for line := range strings.Lines(out.String()) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); columns >= 80 && n > columns {
				t.Errorf("of %d columns: a line of %d: %s", columns, n, line)
			}
		}
	}
}

func TestDenials(t *testing.T) {
	l, dir := open(t)
	add(t, l, sample()...)
	got, more, err := query.Denials(dir, "r1")
	if err != nil || more != 0 {
		t.Fatalf("Denials: %v, more %d", err, more)
	}
	for i := range got {
		got[i].ID = ""
	}
	want := []query.Denial{
		{Time: start.Add(4 * time.Minute), Count: 2, Reason: "host_not_allowed", Question: "fetch", Host: "evil.example", Port: 443, Method: "POST", Path: "/x"},
		{Time: start.Add(7 * time.Minute), Count: 1, Reason: "private_ip", Host: "rebind.example", Port: 443},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Denials (-want +got):\n%s", diff)
	}
	if got, _, err := query.Denials(dir, "nobody"); err != nil || len(got) != 0 {
		t.Errorf("Denials(nobody) = %v, %v; want none", got, err)
	}
}

func TestDenialsAreBounded(t *testing.T) {
	dir := t.TempDir()
	var b bytes.Buffer
	for i := range query.MaxDenials + 5 {
		fmt.Fprintf(&b, `{"v":1,"seq":%d,"kind":"refuse","run":"r1","reason":"x","host":"h%d.example"}`+"\n", i, i)
	}
	if err := os.WriteFile(filepath.Join(dir, "000000000000.jsonl"), b.Bytes(), 0o640); err != nil {
		t.Fatal(err)
	}
	got, more, err := query.Denials(dir, "r1")
	if len(got) != query.MaxDenials || more != 5 || err != nil {
		t.Errorf("Denials = %d and %d more, %v", len(got), more, err)
	}
}

// ^C ends the reading of a log in which nothing matches.
func TestRecordsUntil(t *testing.T) {
	dir := t.TempDir()
	lines := strings.Repeat(`{"v":1,"seq":1,"kind":"refuse","host":"a.example"}`+"\n", 5000)
	if err := os.WriteFile(filepath.Join(dir, "000000000000.jsonl"), []byte(lines), 0o640); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for r, err := range query.RecordsUntil(ctx, dir, query.Filter{}) {
		if err != nil {
			if n++; !errors.Is(err, context.Canceled) || r.Seq != 0 {
				t.Errorf("RecordsUntil = %v, %v, want the context's error", r, err)
			}
			break
		}
		if n++; n == 100 {
			cancel()
		}
	}
	if n < 101 || n > 1000 {
		t.Errorf("RecordsUntil gave %d, though the context was done at 100", n)
	}
	n = 0
	for _, err := range query.RecordsUntil(ctx, dir, parse(t, "host~nobody")) {
		if n++; !errors.Is(err, context.Canceled) {
			t.Errorf("RecordsUntil = %v, want the context's error", err)
		}
	}
	if n != 1 {
		t.Errorf("RecordsUntil told %d times that it was ended", n)
	}
	for _, err := range query.RecordsUntil(t.Context(), dir, parse(t, "host~nobody")) {
		t.Errorf("RecordsUntil = %v, want nothing", err)
	}
}

func TestFollow(t *testing.T) {
	l, dir := open(t)
	add(t, l, sample()[:2]...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() { // over many segments, until enough was seen: nobody knows when Follow begins to look
		defer close(done)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			r := audit.Record{Kind: audit.Admit, Host: fmt.Sprintf("h%d.example", i)}
			if err := l.Append(t.Context(), &r); err != nil {
				t.Error(err)
				return
			}
			<-tick.C
		}
	}()
	n, seen := -1, 0
	for r, err := range query.Follow(ctx, dir, parse(t, "kind=admit")) {
		if err != nil {
			t.Fatal(err)
		}
		var i int
		fmt.Sscanf(r.Host, "h%d.example", &i)
		if n >= 0 && i != n+1 {
			t.Fatalf("record %d after %d", i, n)
		}
		n = i
		if seen++; seen == 40 {
			cancel()
		}
	}
	<-done
	if seen < 40 {
		t.Errorf("Follow ended after %d records", seen)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"host~stripe verdict=deny since=2h", `a "b c",d`, `host="\x1b",x`, "=", "~x", `"="`, "since=7d until=2027-01-31", "status>=200", "since=2027-01-31 12:00 x", "host=API.Example,x method=get", "Host=x", `"host"`, "kind"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := query.Parse(text, start)
		if err != nil {
			return
		}
		b, err := query.Parse(a.String(), start)
		if err != nil || b.String() != a.String() {
			t.Errorf("Parse(%q) is %q, which reads as %q, %v", text, a.String(), b.String(), err)
		}
		a.Match(&audit.Record{Host: text})
	})
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(`{"v":1,"seq":0,"time":"2027-01-31T12:00:00Z","kind":"admit"}` + "\n{}\n\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "000000000000.jsonl"), data, 0o640); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := query.Table(&out, query.Columns, query.Records(dir, query.Filter{})); err != nil {
			t.Fatal(err)
		}
		for _, r := range out.String() {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Fatalf("table holds %U", r)
			}
		}
	})
}

func TestFitBesideShowsTheDifference(t *testing.T) {
	long := strings.Repeat("a", 200)
	for _, tt := range [][4]string{ // s, other, and how both are shown
		{"short", "sharp", "short", "sharp"},
		{"x" + long, "y" + long, "x" + long[:28] + "…", "y" + long[:28] + "…"},
		{long + "1 end", long + "2 end", "aaaaaaaaa…aaaaaaaaaaaa1 end", "aaaaaaaaa…aaaaaaaaaaaa2 end"},
		{long + "é" + long, long, "aaaaaaaaa…aaaaaaaaaaaaéaaaaaa…", "aaaaaaaaa…aaaaaaaaaaaa"},
		{long, long, "aaaaaaaaa…aaaaaaaaaaaa", "aaaaaaaaa…aaaaaaaaaaaa"},
	} {
		if one, other := query.FitBeside(tt[0], tt[1], 30), query.FitBeside(tt[1], tt[0], 30); one != tt[2] || other != tt[3] {
			t.Errorf("FitBeside = %q, %q, want %q, %q", one, other, tt[2], tt[3])
		}
	}
}
