package audit_test

import (
	"bytes"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"sallyport/audit"
)

const schemaPath = "../docs/audit.schema.json"

// fields are the JSON names of a Record, in order.
func fields() []string {
	var out []string
	for f := range reflect.TypeFor[audit.Record]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out = append(out, name)
	}
	return out
}

func loadSchema(t *testing.T) (*jsonschema.Schema, map[string]any) {
	t.Helper()
	data, err := os.ReadFile(schemaPath)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("audit.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("audit.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	m, _ := doc.(map[string]any)
	props, _ := m["properties"].(map[string]any)
	return s, props
}

func TestDocumentationListsEveryField(t *testing.T) {
	doc, err := os.ReadFile("../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	table, _, ok := bytes.Cut(doc, []byte("| kind | written when |"))
	_, table, ok2 := bytes.Cut(table, []byte("| field | what it holds |"))
	if !ok || !ok2 {
		t.Fatal("docs/audit.md has no table of fields")
	}
	var listed []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllSubmatch(table, -1) {
		listed = append(listed, string(m[1]))
	}
	if diff := cmp.Diff(fields(), listed); diff != "" {
		t.Errorf("fields of Record, and of docs/audit.md (-code +doc):\n%s", diff)
	}
	golden := map[string]bool{}
	for _, k := range goldens() {
		golden[string(k.Kind)] = true
		if !bytes.Contains(doc, []byte("`"+string(k.Kind)+"`")) {
			t.Errorf("docs/audit.md does not tell of the kind %s", k.Kind)
		}
	}
	_, table, _ = bytes.Cut(doc, []byte("| kind | written when |"))
	table, _, _ = bytes.Cut(table, []byte("\n\n"))
	names := regexp.MustCompile("`([a-z.]+)`")
	for row := range bytes.Lines(table) {
		cells := bytes.Split(row, []byte("|"))
		for _, m := range names.FindAllSubmatch(cells[min(1, len(cells)-1)], -1) {
			if !golden[string(m[1])] {
				t.Errorf("no golden record is of the kind %s", m[1])
			}
		}
	}
}

func TestSchemaListsEveryField(t *testing.T) {
	_, props := loadSchema(t)
	var listed []string
	for name := range props {
		listed = append(listed, name)
	}
	want := fields()
	slices.Sort(listed)
	slices.Sort(want)
	if diff := cmp.Diff(want, listed); diff != "" {
		t.Errorf("fields of Record, and of the schema (-code +schema):\n%s", diff)
	}
}

func TestGoldenRecordsFollowTheSchema(t *testing.T) {
	schema, _ := loadSchema(t)
	data, err := os.ReadFile("testdata/records.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	// What a live log writes by itself follows it too.
	cfg := config(t)
	l := mustOpen(t, cfg)
	mustAppend(t, l, admit(1))
	mustClose(t, l)
	all := append(strings.Split(strings.TrimSpace(string(data)), "\n"), lines(t, cfg.Dir)...)
	for _, line := range all {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(line))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(doc); err != nil {
			t.Errorf("%v\n%s", err, line)
		}
	}
	for _, bad := range []string{
		`{}`, `{"v":2,"seq":0,"time":"2027-01-31T12:00:00Z","id":"x","kind":"admit"}`,
		`{"v":1,"seq":-1,"time":"2027-01-31T12:00:00Z","id":"x","kind":"admit"}`,
		`{"v":1,"seq":0,"time":"yesterday Z","id":"x","kind":"admit"}`,
		`{"v":1,"seq":0,"time":"2027-01-31T12:00:00Z","id":"x","kind":"admit","verdict":"allow"}`,
		`{"v":1,"seq":0,"time":"2027-01-31T12:00:00Z","id":"x","kind":"admit","host":"\u001b"}`,
		`{"v":1,"seq":0,"time":"2027-01-31T12:00:00Z","id":"x","kind":"admit","host":"\u202e"}`,
	} {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(bad))
		if err != nil {
			t.Fatal(err)
		}
		if schema.Validate(doc) == nil {
			t.Errorf("the schema takes %s", bad)
		}
	}
}
