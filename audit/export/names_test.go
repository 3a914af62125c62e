package export_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
)

// whole is a record of a request, and one of a query, that say all that a record can.
func whole() []audit.Record {
	r := audit.Record{
		Schema: audit.Schema, Seq: 7, Time: time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC), ID: "id", Kind: audit.Done, Ref: "ref", Cell: "cell",
		Run: "run", Policy: "sha256:00", Verdict: "inspect", Reason: "allowed", WouldDeny: "host_not_allowed", Rule: "rule", Where: "p.yaml:1",
		Scope: "policy", Credential: "key", Event: "use", Listener: "explicit", Client: "10.213.0.2:4000", Question: "fetch", Proto: "h1",
		Host: "a.example", Port: 443, Method: "GET", Path: "/x", Query: "hmac:00", Values: "hmac:00", Answer: "reset", Addr: "203.0.113.5:443",
		Status: 200, Sent: 1, Received: 2, Micros: 3, Error: "odd", Cut: []string{"path"}, Data: json.RawMessage(`{"a":"b"}`),
	}
	q := r
	q.Kind, q.Proto, q.QType, q.Answer = audit.DNS, "tls", "A", "198.18.0.1"
	code := q
	code.Answer = "NXDOMAIN"
	return []audit.Record{r, q, code}
}

// keys adds the names in v, each after those that it stands in.
func keys(into map[string]bool, prefix string, v any) {
	switch v := v.(type) {
	case map[string]any:
		if key, ok := v["key"].(string); ok { // an attribute of OTLP
			into[key] = true
		}
		for name, sub := range v {
			into[prefix+name] = true
			into[strings.ToLower(name)] = true
			keys(into, prefix+name+".", sub)
		}
	case []any:
		for _, sub := range v {
			keys(into, prefix, sub)
		}
	}
}

// TestExportsHaveTheDocumentedNames: what docs/audit.md says that a field is called in ECS
// and OpenTelemetry is what it is called.
func TestExportsHaveTheDocumentedNames(t *testing.T) {
	doc, err := os.ReadFile("../../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(doc), "| kind | written when |")
	_, table, _ = strings.Cut(table, "| field | what it holds |")
	have := map[string]map[string]bool{"ecs": {}, "otlp": {}}
	for format, into := range have {
		for line := range strings.Lines(string(write(t, format, whole()))) {
			var v any
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Fatal(err)
			}
			keys(into, "", v)
		}
	}
	have["otlp"]["timestamp"] = have["otlp"]["timeunixnano"] // as the protocol spells it
	name, n := regexp.MustCompile("`([^`]+)`"), 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "|\n"), " | ")
		if len(cells) != 4 || !strings.HasPrefix(cells[0], " `") {
			continue
		}
		n++
		for i, format := range []string{"ecs", "otlp"} {
			for _, m := range name.FindAllStringSubmatch(cells[2+i], -1) {
				if as := m[1]; as != "http" && !have[format][as] && !have[format][strings.ToLower(as)] {
					t.Errorf("%s: no %s has %q", format, cells[0], as)
				}
			}
		}
	}
	if n < 36 {
		t.Errorf("the table has %d fields", n)
	}
}
