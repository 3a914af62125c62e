package export_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
)

// ecsFacts are what the Elastic Common Schema says of its fields.
type ecsFacts struct {
	Fields   map[string]string   // types by name
	Lists    []string            // fields whose value is always a list
	Kinds    []string            // values of event.kind
	Outcomes []string            // values of event.outcome
	Expected map[string][]string // values of event.type that go with one of event.category
}

// wrong says what the schema objects to in a document, as "field: why".
func (f ecsFacts) wrong(doc map[string]any) (out []string) {
	f.walk("", doc, func(name, why string) { out = append(out, name+": "+why) })
	event, _ := doc["event"].(map[string]any)
	categories, types := texts(event["category"]), texts(event["type"])
	if len(categories) == 0 || len(types) == 0 {
		return append(out, "event: no category or type")
	}
	for _, c := range categories {
		for _, t := range types {
			if !slices.Contains(f.Expected[c], t) {
				out = append(out, "event.type: "+t+" is not expected for category "+c)
			}
		}
	}
	if kind, _ := event["kind"].(string); !slices.Contains(f.Kinds, kind) {
		out = append(out, "event.kind: "+kind)
	}
	if o, ok := event["outcome"].(string); ok && !slices.Contains(f.Outcomes, o) {
		out = append(out, "event.outcome: "+o)
	}
	return out
}

// walk checks names and types. The custom fields of a product are below its
// name, which is none of the schema's.
func (f ecsFacts) walk(prefix string, doc map[string]any, bad func(name, why string)) {
	for k, v := range doc {
		name := strings.TrimPrefix(prefix+"."+k, ".")
		kind, known := f.Fields[name]
		list, isList := v.([]any)
		sub, isObject := v.(map[string]any)
		switch {
		case name == "sallyport":
			continue
		case isList != slices.Contains(f.Lists, name):
			bad(name, "is a list where a value is expected, or the other way round")
			continue
		case name == "labels":
			for label, l := range sub { // "keyword" and no dots: "nested structures are not allowed"
				if _, ok := l.(string); !ok || strings.Contains(label, ".") {
					bad(name+"."+label, "is no plain label")
				}
			}
			continue
		case isObject:
			f.walk(name, sub, bad)
			continue
		case !known:
			bad(name, "is no field")
			continue
		}
		if !isList {
			list = []any{v}
		}
		for _, e := range list {
			if o, ok := e.(map[string]any); ok && kind == "object" {
				f.walk(name, o, bad)
			} else if !isOf(kind, e) {
				bad(name, "is no "+kind)
			}
		}
	}
}

// isOf reports whether a JSON value can be indexed as a type of the schema.
func isOf(kind string, v any) bool {
	switch kind {
	case "keyword", "wildcard", "match_only_text":
		_, ok := v.(string)
		return ok
	case "long":
		n, ok := v.(float64)
		return ok && n == math.Trunc(n)
	case "date":
		s, ok := v.(string)
		_, err := time.Parse(time.RFC3339Nano, s)
		return ok && err == nil
	}
	return false
}

func texts(v any) (out []string) {
	list, _ := v.([]any)
	for _, e := range list {
		s, _ := e.(string)
		out = append(out, s)
	}
	return out
}

func readECSFacts(t *testing.T) (f ecsFacts) {
	t.Helper()
	text, err := os.ReadFile("testdata/ecs.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

// everyKind is a record of each kind that there is, as allowed and as refused.
func everyKind() (out []audit.Record) {
	for _, k := range []audit.Kind{
		audit.LogOpen, audit.LogClose, audit.LogPack, audit.LogRetain, audit.PolicyLoad, audit.PolicyRefuse, audit.AccessAsked,
		audit.AccessDecided, audit.CellUp, audit.CellDown, audit.RunStart, audit.RunEnd, audit.DNS, audit.Admit, audit.Refuse,
		audit.Done, audit.Credential, audit.Bypass, audit.Gap, audit.Anchor, audit.Ship, "later.version",
	} {
		for _, verdict := range []string{"allow", "deny"} {
			out = append(out, audit.Record{
				Kind: k, ID: "x", Verdict: verdict, Reason: "r", Time: time.Unix(1, 1), Listener: "l", Proto: "h1", Host: "h.example",
				Port: 443, Method: "GET", Path: "/", Status: 200, Sent: 1, Received: 2, Micros: 3, Client: "10.0.0.1:1", Addr: "[2001:db8::1]:443",
				QType: "A", Answer: "203.0.113.5", Error: "e", Rule: "r", Policy: "p", Where: "f:1", Cell: "c", Run: "r", Credential: "c",
				Cut: []string{"path"}, Data: []byte(`{"a":{"b":1}}`),
			})
		}
	}
	return out
}

func TestECSFollowsItsSchema(t *testing.T) {
	facts := readECSFacts(t)
	for line := range bytes.Lines(write(t, "ecs", append(records(t), everyKind()...))) {
		var doc map[string]any
		if err := json.Unmarshal(line, &doc); err != nil {
			t.Fatal(err)
		}
		for _, why := range facts.wrong(doc) {
			t.Errorf("%s\n%s", why, line)
		}
	}
}

// TestECSCategories: what people decide is no process.
func TestECSCategories(t *testing.T) {
	for kind, want := range map[audit.Kind]string{
		audit.AccessDecided: `{"category":["configuration"],"type":["change"],"outcome":"success"}`,
		audit.AccessAsked:   `{"category":["configuration"],"type":["info"]}`,
		audit.PolicyLoad:    `{"category":["configuration"],"type":["change"],"outcome":"success"}`,
		audit.PolicyRefuse:  `{"category":["configuration"],"type":["info"],"outcome":"failure"}`,
		audit.RunStart:      `{"category":["process"],"type":["start"]}`,
	} {
		var doc struct {
			Event struct {
				Category []string `json:"category"`
				Type     []string `json:"type"`
				Outcome  string   `json:"outcome,omitempty"`
			} `json:"event"`
		}
		if err := json.Unmarshal(write(t, "ecs", []audit.Record{{Kind: kind, Time: time.Unix(1, 1)}}), &doc); err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(doc.Event); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v, want %s", kind, got, err, want)
		}
	}
}

// TestECSFactsFindWhatIsWrong shows that the check above can fail.
func TestECSFactsFindWhatIsWrong(t *testing.T) {
	facts := readECSFacts(t)
	const good = `{"@timestamp":"2027-01-31T12:00:00Z","event":{"kind":"event","outcome":"failure","category":["network"],` +
		`"type":["connection","denied"],"duration":5},"dns":{"answers":[{"data":"x"}]},"labels":{"run":"r"}}`
	for text, want := range map[string]string{
		good: "",
		strings.Replace(good, `"duration":5`, `"duration":"5"`, 1):                         "event.duration: is no long",
		strings.Replace(good, `"duration":5`, `"duration":5.5`, 1):                         "event.duration: is no long",
		strings.Replace(good, `"duration"`, `"micros"`, 1):                                 "event.micros: is no field",
		strings.Replace(good, `["network"]`, `["configuration"]`, 1):                       "event.type: denied is not expected for category configuration",
		strings.Replace(good, `["network"]`, `"network"`, 1):                               "event.category: is a list where",
		strings.Replace(good, `"failure"`, `"denied"`, 1):                                  "event.outcome: denied",
		strings.Replace(good, `"kind":"event"`, `"kind":"refuse"`, 1):                      "event.kind: refuse",
		strings.Replace(good, `"data":"x"`, `"rdata":"x"`, 1):                              "dns.answers.rdata: is no field",
		strings.Replace(good, `"run":"r"`, `"run":{"id":"r"}`, 1):                          "labels.run: is no plain label",
		strings.Replace(good, `"2027-01-31T12:00:00Z"`, `"31 January"`, 1):                 "@timestamp: is no date",
		strings.Replace(good, `"labels"`, `"destination":{"ip":"10.0.0.999"},"labels"`, 1): "destination.ip: is no ip",
	} {
		var doc map[string]any
		if err := json.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatal(err)
		}
		got := strings.Join(facts.wrong(doc), "; ")
		if !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("wrong with %s: %q, want %q", text, got, want)
		}
	}
}
