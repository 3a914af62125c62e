package query_test

import (
	"bytes"
	"encoding/json"
	"iter"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"sallyport/audit"
	"sallyport/audit/query"
)

// told has a record of every kind as it is written, and what people read of it.
var told = []struct {
	kind audit.Kind
	rec  audit.Record
	want string
}{
	{audit.LogOpen, audit.Record{Data: json.RawMessage(`{"durability":"disk","pid":77,"verifier":"v","version":"1.2"}`)}, "by 1.2 as pid 77 durability disk"},
	{audit.LogClose, audit.Record{}, "in order"},
	{audit.LogPack, audit.Record{Data: json.RawMessage(`{"segment":"000000000000.jsonl","records":120,"bytes":60000,"packed":7000}`)}, "000000000000.jsonl: 120 records, 58.6k in 6.8k"},
	{audit.LogPack, audit.Record{Error: "packing: no room"}, "packing: no room"},
	{audit.LogRetain, audit.Record{Data: json.RawMessage(`{"segments":["0"],"records":1,"first":1,"from":"2026-10-31T12:00:00Z","until":"2026-11-01T12:00:00Z"}`)}, "1 record of 2026-10-31 to 2026-11-01 removed"},
	{audit.LogRetain, audit.Record{Error: "record 3 was changed"}, "record 3 was changed"},
	{audit.PolicyLoad, audit.Record{Policy: "sha256:abababababababababab"}, "sha256:abababababab"},
	{audit.PolicyLoad, audit.Record{Run: "R", Policy: "sha256:abababababababababab", Data: json.RawMessage(`{"was":"sha256:cdcdcdcdcdcdcdcdcd","file":"/p.yaml"}`)}, "sha256:abababababab instead of sha256:cdcdcdcdcdcd for run R from /p.yaml"},
	{audit.PolicyRefuse, audit.Record{Run: "R", Policy: "sha256:abababababababababab", Error: "no rules", Data: json.RawMessage(`{"file":"/p.yaml"}`)}, "/p.yaml no rules for run R stays: sha256:abababababab"},
	{audit.PolicyRefuse, audit.Record{Error: "/etc/p/live.yaml:3:1: unknown key\n/etc/p/live.yaml:4:1: another", Data: json.RawMessage(`{"file":"/etc/p/live.yaml"}`)}, "live.yaml:3:1: unknown key\nlive.yaml:4:1: another"},
	{audit.AccessAsked, audit.Record{Method: "GET", Host: "a.example", Port: 443, Path: "/x", Data: json.RawMessage(`{"why":"docs"}`)}, "GET a.example/x (docs)"},
	{audit.AccessDecided, audit.Record{Method: "GET", Host: "a.example", Port: 443, Path: "/x", Data: json.RawMessage(`{"state":"approved","by":"root","until":"2026-01-31T13:00:00Z","note":"once"}`)}, "approved by root GET a.example/x until 01-31 13:00 (once)"},
	{audit.AccessDecided, audit.Record{Host: "a.example", Port: 22, Data: json.RawMessage(`{"state":"denied","by":"root"}`)}, "denied by root a.example:22"},
	{audit.CellUp, audit.Record{Run: "R", Cell: "c"}, "R c"},
	{audit.CellDown, audit.Record{Run: "R", Cell: "c"}, "R c"},
	{audit.RunStart, audit.Record{Run: "R", Data: json.RawMessage(`{"image":"i","policy_name":"p"}`)}, "i under p R"},
	{audit.RunEnd, audit.Record{Run: "R", Data: json.RawMessage(`{"cause":"exited","exit":1,"denied":2}`)}, "exited 1, 2 denied R"},
	{audit.DNS, audit.Record{QType: "A", Host: "a.example", Answer: "198.18.0.1"}, "A a.example -> 198.18.0.1"},
	{audit.Admit, audit.Record{Method: "GET", Host: "a.example", Port: 443, Path: "/x", Credential: "k"}, "GET a.example/x with k"},
	{audit.Refuse, audit.Record{Method: "GET", Host: "a.example", Port: 443, Path: "/x", Status: 403}, "GET a.example/x -> 403"},
	{audit.Done, audit.Record{Host: "a.example", Port: 443, Path: "/x", Status: 200, Sent: 1, Received: 2, Micros: 3000}, "200 1B up 2B down 3ms a.example/x"},
	{audit.Credential, audit.Record{Method: "GET", Host: "a.example", Port: 443, Path: "/x", Credential: "k", Event: "use"}, "use: GET a.example/x with k"},
	{audit.CredentialChange, audit.Record{Credential: "k", Event: "rotated", Time: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC), Data: json.RawMessage(`{"by":"alice","uid":1000,"at":"2026-01-31T12:00:00Z"}`)}, "rotated k by alice"},
	{audit.CredentialChange, audit.Record{Credential: "k", Event: "revoked", Time: time.Date(2026, 1, 31, 12, 1, 0, 0, time.UTC), Data: json.RawMessage(`{"by":"root","uid":0,"at":"2026-01-31T10:30:00Z"}`)}, "revoked k by root at 01-31 10:30:00"},
	{audit.CARotate, audit.Record{Event: "switch", Data: json.RawMessage(`{"by":"root","uid":0}`)}, "switch by root"},
	{audit.Bypass, audit.Record{Run: "R", Data: json.RawMessage(`{"udp":3,"icmp":1,"tcp":0,"other":0,"limited":2}`)}, "packets dropped: 3 UDP, 1 ICMP, 2 too many for the gateway of run R"},
	{audit.Gap, audit.Record{Error: "no space", Data: json.RawMessage(`{"cause":"refused","refused":3}`)}, "3 records refused: no space"},
	{audit.Gap, audit.Record{Error: "no space", Data: json.RawMessage(`{"cause":"refused","refused":1,"late":2}`)}, "1 record refused, 2 late: no space"},
	{audit.Gap, audit.Record{Error: "not closed", Data: json.RawMessage(`{"cause":"crash","torn_bytes":12}`)}, "crash, 12 octets of a torn line cut off: not closed"},
	{audit.Gap, audit.Record{Error: "not closed", Data: json.RawMessage(`{"cause":"crash"}`)}, "crash: not closed"},
	{audit.Anchor, audit.Record{Error: "no route", Data: json.RawMessage(`{"anchor":"file /a","behind_since":"2026-01-31T12:00:00Z","behind":true}`)}, "behind since 12:00:00: no route"},
	{audit.Anchor, audit.Record{Data: json.RawMessage(`{"anchor":"file /a","behind_since":"2026-01-31T12:00:00Z","behind":false}`)}, "file /a is up to date again"},
	{audit.Ship, audit.Record{Error: "refused", Data: json.RawMessage(`{"target":"otlp","cause":"behind","since":"2026-01-31T12:00:00Z"}`)}, "otlp is out of reach: refused"},
	{audit.Ship, audit.Record{Data: json.RawMessage(`{"target":"otlp","cause":"back"}`)}, "otlp takes records again"},
	{audit.Ship, audit.Record{Error: "400", Data: json.RawMessage(`{"target":"otlp","cause":"rejected","dropped":1}`)}, "otlp refused 1 record: 400"},
	{audit.Ship, audit.Record{Data: json.RawMessage(`{"target":"otlp","cause":"missing","dropped":9}`)}, "otlp did not get 9 records"},
}

func TestWhatIsToldOfEveryKind(t *testing.T) {
	seen := map[string]bool{}
	for _, tt := range told {
		seen[string(tt.kind)] = true
		tt.rec.Kind = tt.kind
		if got := query.What(&tt.rec); got != tt.want {
			t.Errorf("What(%s %s) = %q, want %q", tt.kind, tt.rec.Data, got, tt.want)
		}
	}
	for _, kind := range query.Values("kind") {
		if !seen[kind] {
			t.Errorf("what people read of a record of kind %s is not tried", kind)
		}
	}
}

// Nothing that people read is raw JSON, and each line fits the page.
func TestTablesHoldNoJSON(t *testing.T) {
	var out bytes.Buffer
	var recs iter.Seq2[audit.Record, error] = func(yield func(audit.Record, error) bool) {
		for _, tt := range told {
			if tt.rec.Kind = tt.kind; !yield(tt.rec, nil) {
				return
			}
		}
	}
	if err := query.Table(&out, query.Columns, recs); err != nil {
		t.Fatal(err)
	}
	for _, kind := range query.Values("kind") {
		if !strings.Contains(out.String(), " "+kind+" ") {
			t.Errorf("kind %s is cut", kind)
		}
	}
	for line := range strings.Lines(out.String()) {
		if strings.ContainsAny(line, "{}") || utf8.RuneCountInString(line) > 101 {
			t.Errorf("%d columns: %s", utf8.RuneCountInString(line), line)
		}
	}
}

// What a newer version, or somebody else, wrote is shown as it is.
func TestWhatOfUnknownData(t *testing.T) {
	for _, tt := range []struct {
		rec  audit.Record
		want string
	}{
		{audit.Record{Kind: audit.Bypass, Data: json.RawMessage(`{"udp":"many"}`)}, `{"udp":"many"}`},
		{audit.Record{Kind: audit.Gap, Error: "e", Data: json.RawMessage(`[1]`)}, `e [1]`},
		{audit.Record{Kind: "new.kind", Host: "a.example", Data: json.RawMessage(`{"x":1}`)}, `a.example {"x":1}`},
		{audit.Record{Kind: audit.Gap, Error: "e"}, "e"},
	} {
		if got := query.What(&tt.rec); got != tt.want {
			t.Errorf("What(%s %s) = %q, want %q", tt.rec.Kind, tt.rec.Data, got, tt.want)
		}
	}
}
