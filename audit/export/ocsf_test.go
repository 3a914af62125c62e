package export_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"sallyport/audit"
)

// ocsfFacts are the names, types, requirements and values of the schema that is
// published at github.com/ocsf/ocsf-schema, for the classes that are written.
type ocsfFacts struct {
	Version    string                       `json:"version"`
	Classes    map[string]ocsfType          `json:"classes"`
	EveryClass map[string]string            `json:"every_class"`
	Profiles   map[string]map[string]string `json:"profiles"`
	Objects    map[string]ocsfType          `json:"objects"`
}

// ocsfType is a class or an object.
type ocsfType struct {
	AtLeastOne [][]string        `json:"at_least_one"`
	Attributes map[string]string `json:"attributes"`
	Profile    string            `json:"profile"` // that adds to an object
	Open       bool              `json:"open"`
}

func loadOCSF(t *testing.T) *ocsfFacts {
	t.Helper()
	text, err := os.ReadFile("testdata/ocsf-1.4.0.json")
	if err != nil {
		t.Fatal(err)
	}
	f := new(ocsfFacts)
	if err := json.Unmarshal(text, f); err != nil {
		t.Fatal(err)
	}
	return f
}

// event checks one event, and returns everything that is wrong with it.
func (f *ocsfFacts) event(line []byte) (wrong []string) {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	var e map[string]any
	if err := dec.Decode(&e); err != nil {
		return []string{err.Error()}
	}
	class, ok := f.Classes[fmt.Sprint(e["class_uid"])]
	if !ok {
		return []string{fmt.Sprintf("class_uid: there is no class %v", e["class_uid"])}
	}
	metadata, _ := e["metadata"].(map[string]any)
	profiles, _ := metadata["profiles"].([]any)
	all := map[string]string{}
	maps.Copy(all, f.EveryClass)
	maps.Copy(all, class.Attributes)
	for _, p := range profiles {
		if _, ok := f.Profiles[fmt.Sprint(p)]; !ok {
			wrong = append(wrong, fmt.Sprintf("metadata.profiles: there is no profile %v", p))
		}
		if p == "security_control" {
			maps.Copy(all, f.Profiles["security_control"])
		}
	}
	wrong = append(wrong, f.object("", e, ocsfType{AtLeastOne: class.AtLeastOne, Attributes: all})...)
	if metadata["version"] != f.Version {
		wrong = append(wrong, "metadata.version is not that of the schema")
	}
	if fmt.Sprint(e["type_uid"]) != fmt.Sprintf("%v%02v", e["class_uid"], e["activity_id"]) {
		wrong = append(wrong, "type_uid is not of class and activity")
	}
	if fmt.Sprint(e["activity_id"]) == "99" && e["activity_name"] == nil {
		wrong = append(wrong, "activity_name: Other does not say which")
	}
	return wrong
}

func (f *ocsfFacts) object(path string, o map[string]any, kind ocsfType) (wrong []string) {
	if kind.Open {
		return nil
	}
	for name, v := range o {
		fact, ok := kind.Attributes[name]
		if !ok {
			fact, ok = f.Profiles[kind.Profile][name]
		}
		if !ok {
			wrong = append(wrong, path+name+": there is no such attribute")
			continue
		}
		wrong = append(wrong, f.value(path+name, v, fact)...)
	}
	for name, fact := range kind.Attributes {
		if _, ok := o[name]; !ok && strings.Contains(fact, "!") {
			wrong = append(wrong, path+name+": is required")
		}
	}
	for _, group := range kind.AtLeastOne {
		if !slices.ContainsFunc(group, func(name string) bool { return o[name] != nil }) {
			wrong = append(wrong, fmt.Sprintf("%s: has none of %s", path, group))
		}
	}
	return wrong
}

// value checks a value against a type, and the values that it can have.
func (f *ocsfFacts) value(path string, v any, fact string) []string {
	words := strings.Fields(strings.ReplaceAll(fact, "!", ""))
	if kind, list := strings.CutSuffix(words[0], "[]"); list {
		items, ok := v.([]any)
		if !ok {
			return []string{path + ": is no list"}
		}
		var wrong []string
		for _, item := range items {
			wrong = append(wrong, f.value(path+"[]", item, kind)...)
		}
		return wrong
	}
	if o, ok := v.(map[string]any); ok {
		kind, ok := f.Objects[words[0]]
		if !ok {
			return []string{path + ": is an object, want " + words[0]}
		}
		return f.object(path+".", o, kind)
	}
	if !scalar(v, words[0]) {
		return []string{fmt.Sprintf("%s: %v is no %s", path, v, words[0])}
	}
	if len(words) > 1 && !slices.Contains(words[1:], fmt.Sprint(v)) {
		return []string{fmt.Sprintf("%s: %v is none of %s", path, v, words[1:])}
	}
	return nil
}

// scalar reports whether v is of a type of the dictionary.
func scalar(v any, kind string) bool {
	number, isNumber := v.(json.Number)
	n, err := number.Int64()
	whole := isNumber && err == nil
	text, isText := v.(string)
	switch kind {
	case "integer_t", "long_t", "timestamp_t":
		return whole
	case "port_t":
		return whole && n >= 0 && n <= 65535
	case "boolean_t":
		_, ok := v.(bool)
		return ok
	case "ip_t":
		_, err := netip.ParseAddr(text)
		return isText && err == nil
	case "string_t", "hostname_t", "url_t", "uuid_t", "mac_t":
		return isText && text != ""
	default:
		return false
	}
}

// dnsRecords are queries with everything that they can be answered with.
func dnsRecords() (out []audit.Record) {
	for i, answer := range []string{"198.18.0.1", "NODATA", "NXDOMAIN", "HINFO", "SERVFAIL", "look-up", "REFUSED", "FORMERR", "NOTIMP", "BADVERS", "", "10 mx.example.; 20 my.example."} {
		out = append(out, audit.Record{
			Seq: uint64(100 + i), ID: fmt.Sprint("dns", i), Kind: audit.DNS, Cell: "c", Verdict: "inspect", Reason: "allowed", QType: "MX", Host: "a.example",
			Answer: answer, Client: "10.213.0.2:5353", Listener: "dns",
		})
	}
	return append(out, audit.Record{Seq: 120, ID: "root", Kind: audit.Refuse, QType: "NS", Answer: "REFUSED", Verdict: "deny", Reason: "dns_type_not_allowed"})
}

// hardRecords are requests of which much is not known.
func hardRecords() []audit.Record {
	return []audit.Record{
		{Seq: 200, ID: "tunnel", Kind: audit.Admit, Cell: "c", Verdict: "tunnel", Host: "a.example", Port: 22, Client: "10.213.0.2:4000"},
		{Seq: 201, ID: "connect", Kind: audit.Refuse, Cell: "c", Verdict: "deny", Reason: "bad_request", Method: "CONNECT"},
		{Seq: 202, ID: "patch", Kind: audit.Done, Cell: "c", Verdict: "inspect", Method: "PATCH", Host: "2001:db8::1", Port: 443, Path: "/x", Addr: "[2001:db8::1]:443", Status: 204},
		{Seq: 203, ID: "nothing", Kind: audit.Refuse, Verdict: "deny"},
		{Seq: 204, ID: "use", Kind: audit.Credential, Cell: "c", Credential: "k", Host: "a.example", Port: 443, Method: "GET", Path: "/", Event: "use"},
	}
}

func TestOCSFFollowsThePublishedSchema(t *testing.T) {
	facts := loadOCSF(t)
	recs := slices.Concat(records(t), dnsRecords(), hardRecords())
	n := 0
	for line := range bytes.Lines(write(t, "ocsf", recs)) {
		for _, wrong := range facts.event(line) {
			t.Errorf("%s\n%s", wrong, line)
		}
		n++
	}
	want := 0
	for i := range recs {
		if recs[i].QType != "" || slices.Contains([]audit.Kind{audit.Admit, audit.Refuse, audit.Done, audit.DNS, audit.Credential}, recs[i].Kind) {
			want++
		}
	}
	if n != want {
		t.Errorf("%d events, want the %d that are about requests and queries", n, want)
	}
}

// A reply is a code and what was answered, not both in one.
func TestOCSFTellsWhatWasAnswered(t *testing.T) {
	got, recs := map[string]string{}, dnsRecords()
	for line := range bytes.Lines(write(t, "ocsf", recs)) {
		var e struct {
			ID      *int   `json:"rcode_id"`
			Code    string `json:"rcode"`
			Answers []struct {
				Data string `json:"rdata"`
			} `json:"answers"`
		}
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		text := "none"
		if e.ID != nil {
			text = fmt.Sprint(*e.ID, " ", e.Code)
		}
		for _, a := range e.Answers {
			text += " " + a.Data
		}
		got[recs[0].Answer], recs = text, recs[1:]
	}
	for answer, want := range map[string]string{
		"198.18.0.1": "0 NoError 198.18.0.1", "NODATA": "0 NoError", "NXDOMAIN": "3 NXDomain", "SERVFAIL": "2 ServError", "look-up": "none",
		"REFUSED": "5 Refused", "FORMERR": "1 FormError", "NOTIMP": "4 NotImp", "BADVERS": "16 BADSIG_VERS", "": "none",
	} {
		if got[answer] != want {
			t.Errorf("a query that was answered %q is told as %q, want %q", answer, got[answer], want)
		}
	}
}

// The check finds what is not as published; what it passes is checked by it.
func TestOCSFCheckRefuses(t *testing.T) {
	facts := loadOCSF(t)
	good := string(bytes.TrimSpace(write(t, "ocsf", records(t)[4:5])))
	if wrong := facts.event([]byte(good)); len(wrong) > 0 {
		t.Fatalf("a good event: %s", wrong)
	}
	for _, tt := range []struct{ old, new, want string }{
		{`"severity_id":1,`, ``, "severity_id: is required"},
		{`"severity_id":1,`, `"severity_id":7,`, "severity_id: 7 is none of"},
		{`"severity_id":1,`, `"severity_id":"1",`, "severity_id: 1 is no integer_t"},
		{`"severity_id":1,`, `"severity_id":1,"sevrity":"x",`, "sevrity: there is no such attribute"},
		{`"class_uid":4003`, `"class_uid":4009`, "there is no class 4009"},
		{`"activity_id":6`, `"activity_id":3`, "activity_id: 3 is none of"},
		{`"rcode_id":0`, `"rcode_id":12`, "rcode_id: 12 is none of"},
		{`"ip":"10.213.0.2"`, `"ip":"a.example"`, "src_endpoint.ip: a.example is no ip_t"},
		{`"port":5353`, `"port":70000`, "src_endpoint.port: 70000 is no port_t"},
		{`"rdata":"198.18.0.1"`, `"data":"198.18.0.1"`, "answers[].rdata: is required"},
		{`"dst_endpoint":{"hostname":"api.stripe.com"}`, `"dst_endpoint":{"port":1}`, "dst_endpoint.: has none of"},
		{`"security_control"]`, `"security"]`, "there is no profile security"},
		{`"version":"1.4.0"`, `"version":"1.3.0"`, "metadata.version is not"},
		{`"type_uid":400306`, `"type_uid":400301`, "type_uid is not of"},
	} {
		bad := strings.Replace(good, tt.old, tt.new, 1)
		wrong := strings.Join(facts.event([]byte(bad)), "; ")
		if bad == good || !strings.Contains(wrong, tt.want) {
			t.Errorf("with %s for %s: %q, want %q", tt.new, tt.old, wrong, tt.want)
		}
	}
}
