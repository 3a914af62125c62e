package audit_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sallyport/audit"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func sum(s string) string { return "hmac:" + strconv.Itoa(len(s)) }

// checkLine checks what must hold of every line whatever is in its record.
func checkLine(t interface {
	Helper()
	Fatalf(string, ...any)
}, line []byte,
) audit.Record {
	t.Helper()
	if len(line) > audit.MaxLine {
		t.Fatalf("line of %d bytes", len(line))
	}
	for i, r := range string(line) {
		if r < ' ' || !strconv.IsPrint(r) || r == utf8.RuneError && line[i] != 0xef {
			t.Fatalf("line holds %U at %d:\n%q", r, i, line)
		}
	}
	var r audit.Record
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		t.Fatalf("line is no record: %v\n%s", err, line)
	}
	again, err := json.Marshal(r)
	if err != nil || !bytes.Equal(again, line) {
		t.Fatalf("line and encoding/json differ, %v:\n%s\n%s", err, line, again)
	}
	return r
}

// unescape undoes what makes text printable.
func unescape(t testing.TB, s string) string {
	t.Helper()
	out, err := strconv.Unquote(`"` + strings.ReplaceAll(s, `"`, `\"`) + `"`)
	if err != nil {
		t.Fatalf("%q cannot be read back: %v", s, err)
	}
	return out
}

// LG-01, LG-02, LG-03: whatever a sandbox sends is one line, one record,
// printable, and can be told from its escaped form.
func TestTextIsMadePrintableLG01LG02LG03(t *testing.T) {
	tests := []struct{ in, want string }{
		{"/v1/charges", "/v1/charges"},
		{"/a b<>&'\"", "/a b<>&'\""},
		{"/\r\n{\"verdict\":\"allow\"}", `/\x0d\x0a{"verdict":"allow"}`},
		{`/\x0d\x0a`, `/\\x0d\\x0a`},
		{"/%0d%0a{}", "/%0d%0a{}"},
		{"\x1b]0;x\x07\x1b[2J", `\x1b]0;x\x07\x1b[2J`},
		{"\u202eexe.txt\u2066", `\u202eexe.txt\u2066`},
		{"a\u0085b\u009bc\u2028d\ufeffe\u200bf\u00a0g", `a\u0085b\u009bc\u2028d\ufeffe\u200bf\u00a0g`},
		{"\x80\xff\xed\xa0\x80\xc0\xaf", `\x80\xff\xed\xa0\x80\xc0\xaf`},
		{"\U000e0041\U0010ffff", `\U000e0041\U0010ffff`},
		{"a\u3164b\ufe0fc\U000e0100d\u034fe\u2800f\u115f", `a\u3164b\ufe0fc\U000e0100d\u034fe\u2800f\u115f`},
		{"naïve 日本 \ufffd", "naïve 日本 \ufffd"},
		{"\x7f\x00", `\x7f\x00`},
	}
	for _, tt := range tests {
		line := audit.Line(&audit.Record{Schema: 1, Kind: audit.Refuse, Path: tt.in}, sum)
		r := checkLine(t, line)
		if r.Path != tt.want || len(r.Cut) > 0 {
			t.Errorf("path %q is recorded as %q (cut %v), want %q", tt.in, r.Path, r.Cut, tt.want)
		}
		if back := unescape(t, r.Path); back != tt.in {
			t.Errorf("path %q reads back as %q", tt.in, back)
		}
	}
}

func TestLongFieldsAreCutLG03(t *testing.T) {
	for _, unit := range []string{"a", "<", "\x00", `\`, "\u202e", "\U000e0041", "é", "日", "\""} {
		big := strings.Repeat(unit, 1<<20)
		r := audit.Record{
			Schema: 1, Kind: audit.Refuse, ID: big, Ref: big, Cell: big, Run: big, Policy: big, Verdict: big, Reason: big, Rule: big,
			Where: big, Scope: big, Credential: big, Listener: big, Client: big, Question: big, Proto: big, Host: big,
			Method: big, Path: big, Query: big, Values: big, QType: big, Answer: big, Addr: big, Error: big,
			Cut:  slices.Repeat([]string{big}, 40),
			Data: json.RawMessage(`{"x":` + strconv.Quote(strings.Repeat("y", 1<<20)) + `}`),
		}
		got := checkLine(t, audit.Line(&r, sum))
		for _, s := range []string{got.Path, got.Host, got.Error} {
			if !strings.HasSuffix(s, "…["+strconv.Itoa(len(big))+" bytes "+sum(big)+"]") {
				t.Errorf("%q… cut to …%q: no mark of its length and hash", unit, s[max(0, len(s)-60):])
			}
		}
		if len(got.Cut) == 0 || string(got.Data) == "" {
			t.Errorf("cut = %v, data = %s", got.Cut, got.Data)
		}
		if one := checkLine(t, audit.Line(&audit.Record{Schema: 1, Kind: audit.Refuse, Path: big}, sum)); !cmp.Equal(one.Cut, []string{"path"}) {
			t.Errorf("cut = %v, want path", one.Cut)
		}
	}
}

func TestData(t *testing.T) {
	tests := []struct{ in, want, cut string }{
		{`{"a" : [1, 2]}`, `{"a":[1,2]}`, ""},
		{`null`, `null`, ""},
		{`{"event":"use"}`, `{"event":"use"}`, ""},
		{`{"a":"","b c":"d e"}`, `{"a":"","b c":"d e"}`, ""},
		{`{"a":"b"`, `{"invalid":true,"bytes":8,"hash":"hmac:8"}`, "data"},
		{`{"a":"b",}`, `{"invalid":true,"bytes":10,"hash":"hmac:10"}`, "data"},
		{`{"a":"b"}}`, `{"invalid":true,"bytes":10,"hash":"hmac:10"}`, "data"},
		{`{"a":"b","c":1}`, `{"a":"b","c":1}`, ""},
		{`{"a":"<"}`, `{"a":"\u003c"}`, ""},
		{`{"a":"b" ,"c":"d"}`, `{"a":"b","c":"d"}`, ""},
		{`{}`, `{}`, ""},
		{"{\"a\":\"\u202e\u2028<\U000e0041\"}", `{"a":"\u202e\u2028\u003c\udb40\udc41"}`, ""},
		{"{\"a\":\"\u3164\U000e0100\"}", `{"a":"\u3164\udb40\udd00"}`, ""},
		{"{\"a\":\"\xff\"}", `{"a":"\ufffd"}`, ""},
		{`{"a":`, `{"invalid":true,"bytes":5,"hash":"hmac:5"}`, "data"},
		{"{\"a\":\"\n\"}", `{"invalid":true,"bytes":9,"hash":"hmac:9"}`, "data"},
		{`"` + strings.Repeat("<", 20<<10) + `"`, `{"cut":true,"bytes":20482,"hash":"hmac:20482"}`, "data"},
	}
	for _, tt := range tests {
		r := checkLine(t, audit.Line(&audit.Record{Schema: 1, Kind: audit.RunStart, Data: json.RawMessage(tt.in)}, sum))
		if string(r.Data) != tt.want || strings.Join(r.Cut, " ") != tt.cut {
			t.Errorf("data %.40q is recorded as %.80q, cut %v; want %.80q, cut %q", tt.in, r.Data, r.Cut, tt.want, tt.cut)
		}
	}
}

// TestLineIsEncodingJSON compares the hand-written encoder with the standard
// one, over random records.
func TestLineIsEncodingJSON(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-z./]{0,20}`),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
	gen := rapid.Custom(func(t *rapid.T) audit.Record {
		s := func() string { return text.Draw(t, "text") }
		return audit.Record{
			Schema: 1, Seq: rapid.Uint64().Draw(t, "seq"), ID: s(), Kind: audit.Kind(s()), Ref: s(),
			Time: time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "s"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC(),
			Cell: s(), Run: s(), Policy: s(), Verdict: s(), Reason: s(), Rule: s(), Where: s(), Scope: s(), Credential: s(),
			Listener: s(), Client: s(), Question: s(), Proto: s(), Host: s(), Port: rapid.Uint16().Draw(t, "port"), Method: s(),
			Path: s(), Query: s(), Values: s(), QType: s(), Answer: s(), Addr: s(), Status: rapid.Int().Draw(t, "status"),
			Sent: rapid.Int64().Draw(t, "sent"), Received: rapid.Int64().Draw(t, "received"), Micros: rapid.Int64().Draw(t, "us"), Error: s(),
			Cut:  rapid.SliceOfN(rapid.StringMatching(`[a-z]{1,9}`), 0, 3).Draw(t, "cut"),
			Data: json.RawMessage(rapid.SampledFrom([]string{"", "{}", `{"a":"b"}`, `{"a":"b","c":"d"}`, `{"a":"b"`, `[1]`, "nope"}).Draw(t, "data")),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		in := gen.Draw(t, "record")
		got := checkLine(t, audit.Line(&in, sum))
		if got.Seq != in.Seq || !got.Time.Equal(in.Time) || got.Port != in.Port || got.Status != in.Status ||
			got.Sent != in.Sent || got.Received != in.Received || got.Micros != in.Micros {
			t.Fatalf("numbers changed:\n%+v\n%+v", in, got)
		}
	})
}

// goldens is a record of each kind, as the rooms write them.
func goldens() []audit.Record {
	at := time.Date(2027, 1, 31, 12, 0, 0, 123456789, time.UTC)
	digest := "sha256:" + strings.Repeat("ab", 32)
	in := func(k audit.Kind, r audit.Record) audit.Record {
		r.Kind, r.Cell, r.Run, r.Policy = k, "abcdefgh", "01JJX0000000000000000000R1", digest
		return r
	}
	recs := []audit.Record{
		{Kind: audit.LogOpen, Data: json.RawMessage(`{"durability":"process","pid":1,"verifier":"v+1+k","version":"dev"}`)},
		{Kind: audit.PolicyLoad, Policy: digest, Data: json.RawMessage(`{"name":"payments-agent"}`)},
		in(audit.CellUp, audit.Record{}),
		in(audit.RunStart, audit.Record{Data: json.RawMessage(`{"image":"sha256:cd","command":["python3","agent.py"]}`)}),
		in(audit.DNS, audit.Record{
			Verdict: "inspect", Reason: "allowed", Rule: "charges", Where: "policy.yaml:8", Listener: "dns",
			Client: "10.213.0.2:5353", Question: "resolve", Host: "api.stripe.com", QType: "A", Answer: "198.18.0.1",
		}),
		in(audit.Admit, audit.Record{
			Verdict: "inspect", Reason: "allowed", Rule: "charges", Where: "policy.yaml:8", Scope: "policy",
			Credential: "stripe-test", Event: "use", Listener: "transparent", Client: "10.213.0.2:41000", Question: "fetch", Proto: "h1",
			Host: "api.stripe.com", Port: 443, Method: "POST", Path: "/v1/charges", Query: "hmac:" + strings.Repeat("0", 32),
			Values: "hmac:" + strings.Repeat("1", 32) + " hmac:" + strings.Repeat("2", 32),
		}),
		in(audit.Done, audit.Record{
			Ref: "01JJX0000000000000000000A5", Verdict: "inspect", Reason: "allowed", Rule: "charges",
			Host: "api.stripe.com", Port: 443, Method: "POST", Path: "/v1/charges", Addr: "203.0.113.5:443", Status: 200,
			Sent: 1200, Received: 3400, Micros: 12345,
		}),
		in(audit.Refuse, audit.Record{
			Verdict: "deny", Reason: "host_not_allowed", Question: "fetch", Host: "evil.example", Port: 443,
			Method: "POST", Path: "/\x1b[2J<\u202e>\r\n" + strings.Repeat("x", 5000), Error: "no rule",
		}),
		in(audit.Credential, audit.Record{
			Ref: "01JJX0000000000000000000A5", Reason: "placeholder_leak", Credential: "stripe-test", Event: "leak", Host: "evil.example", Port: 443,
		}),
		in(audit.Bypass, audit.Record{Data: json.RawMessage(`{"udp":3,"icmp":0,"tcp":0,"other":0,"limited":0}`)}),
		in(audit.RunEnd, audit.Record{Data: json.RawMessage(`{"exit":0,"cause":"finished"}`)}),
		in(audit.CellDown, audit.Record{}),
		{Kind: audit.Gap, Error: "write: no space left on device", Data: json.RawMessage(`{"cause":"refused","refused":3}`)},
		{Kind: audit.LogClose},
		{Kind: audit.Anchor, Error: "a checkpoint did not reach the anchor file /mnt/a: no route", Data: json.RawMessage(`{"anchor":"file /mnt/a","behind_since":"2027-01-31T12:00:00Z","behind":true}`)},
		{Kind: audit.LogPack, Data: json.RawMessage(`{"segment":"000000000000.jsonl","file":"000000000000.jsonl.zst","first":0,"records":120,"bytes":60000,"packed":7000,"sha256":"` + strings.Repeat("ab", 32) + `"}`)},
		{Kind: audit.LogRetain, Data: json.RawMessage(`{"segments":["000000000000.jsonl"],"records":120,"first":120,"from":"2026-10-31T12:00:00Z","until":"2026-11-01T12:00:00Z","root":"vq7jJ3tOA6OMns2eITPM60nogbuQNQJl6MFdKe3a/wc="}`)},
		in(audit.AccessAsked, audit.Record{
			Ref: "01JJX0000000000000000000H0", Reason: "host_not_allowed", Host: "docs.example.com", Port: 443,
			Method: "GET", Path: "/guide", Data: json.RawMessage(`{"why":"the manual of the API"}`),
		}),
		in(audit.AccessDecided, audit.Record{
			Ref: "01JJX0000000000000000000V0", Rule: "access-01jjx0000000000000000000v0", Scope: "approval", Host: "docs.example.com", Port: 443,
			Method: "GET", Path: "/guide", Data: json.RawMessage(`{"state":"approved","by":"alice","until":"2027-01-31T13:00:00Z","methods":["GET"],"paths":["/guide"]}`),
		}),
		in(audit.PolicyRefuse, audit.Record{
			Error: `policy.yaml:8:5: there is no field "alow"; did you mean "allow"?`, Data: json.RawMessage(`{"file":"/etc/agents/policy.yaml","digest":"sha256:` + strings.Repeat("cd", 32) + `"}`),
		}),
		{Kind: audit.CredentialChange, Credential: "stripe-test", Event: "rotated", Data: json.RawMessage(`{"by":"alice","uid":1000,"at":"2027-01-31T11:00:00Z"}`)},
		{Kind: audit.CARotate, Event: "prepare", Data: json.RawMessage(`{"by":"alice","uid":1000}`)},
		{Kind: audit.Ship, Error: "connection refused", Data: json.RawMessage(`{"target":"https://collector.example/v1/logs","cause":"behind","since":"2027-01-31T11:59:00Z"}`)},
	}
	for i := range recs {
		recs[i].Schema, recs[i].Seq, recs[i].Time = audit.Schema, uint64(i), at.Add(time.Duration(i)*time.Millisecond)
		recs[i].ID = "01JJX0000000000000000000" + string("ABCDEFGHJKMNPQRSTVWXYZ0123456789"[i]) + "0"
	}
	return recs
}

func TestGoldenRecords(t *testing.T) {
	var got []byte
	for _, r := range goldens() {
		line := audit.Line(&r, sum)
		checkLine(t, line)
		got = append(append(got, line...), '\n')
	}
	path := filepath.Join("testdata", "records.jsonl")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("lines changed: that is a change of the schema (-want +got):\n%s", diff)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add("api.stripe.com", "/v1/\x1b", "err\xff", []byte(`{"a":1}`))
	f.Add("\u202e", strings.Repeat("<", 9000), `\`, []byte("{"))
	f.Fuzz(func(t *testing.T, host, path, text string, data []byte) {
		in := audit.Record{Schema: 1, Kind: audit.Refuse, Host: host, Path: path, Error: text, Data: data}
		r := checkLine(t, audit.Line(&in, sum))
		if len(r.Cut) == 0 && (unescape(t, r.Host) != host || unescape(t, r.Path) != path || unescape(t, r.Error) != text) {
			t.Errorf("text does not read back: %+v", r)
		}
	})
}

// TestPlain: what looks at eight octets at a time finds each odd one at each place.
func TestPlain(t *testing.T) {
	for c := range 256 {
		want := c >= ' ' && c < 0x7f && !strings.ContainsRune(`"\<>&`, rune(c))
		for at := range 19 {
			text := []byte(strings.Repeat("~ ", 10))[:19]
			text[at] = byte(c)
			if got := audit.Plain(string(text)); got != want {
				t.Errorf("Plain with %#x at %d = %v, want %v", c, at, got, want)
			}
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	r := admit(7)
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = audit.Encode(buf[:0], r, sum)
	}
}
