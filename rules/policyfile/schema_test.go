package policyfile_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"sallyport/rules/detect"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

const (
	schemaPage    = "../../docs/policy.schema.json"
	referencePage = "../../docs/policy-reference.md"
)

// matchesFile compares text with a file, or writes it.
func matchesFile(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is old: make golden (-want +got)\n%s", name, diff)
	}
}

func TestSchemaAndReferenceAreUpToDate(t *testing.T) {
	text, err := policyfile.Schema()
	if err != nil {
		t.Fatal(err)
	}
	matchesFile(t, schemaPage, text)
	matchesFile(t, referencePage, policyfile.Reference())
}

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := policyfile.Schema()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("policy.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("policy.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// schemaSays returns what a schema finds wrong with a file. What is no YAML that
// can be JSON is nothing that it could be asked about.
func schemaSays(s *jsonschema.Schema, data []byte) error {
	text, err := yaml.YAMLToJSON(data)
	if err != nil {
		return err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return s.Validate(doc)
}

// setting is what a file of testdata is read with.
type setting struct {
	main  []byte
	files fs.FS
	creds []policyfile.Credential
	errs  []error // of credentials
	floor *policyfile.Input
	run   *policyfile.Input
	blind bool // nothing is there in which anything could be detected
}

// kindOf reports whether a file, in YAML or JSON, says to be of a kind.
func kindOf(data []byte, kind string) bool {
	return bytes.Contains(data, []byte("kind: "+kind)) || bytes.Contains(data, []byte(`"kind": "`+kind+`"`))
}

// load reads the main file of a setting as what it says to be.
func (s *setting) load() error {
	if kindOf(s.main, "Credential") {
		_, err := policyfile.ParseCredential("main.yaml", s.main)
		return err
	}
	if kindOf(s.main, "Gateway") {
		_, err := policyfile.ParseGateway("main.yaml", s.main)
		return err
	}
	in := policyfile.Input{Name: "main.yaml", Data: s.main, Files: s.files, Detect: detector, Floor: s.floor, Run: s.run}
	if s.blind {
		in.Detect = nil
	}
	_, err := policyfile.ReadPolicy(in, s.creds)
	return errors.Join(append(s.errs, err)...)
}

// detector is a machine on which pip is configured and nothing else.
func detector(manager string) ([]detect.Server, error) {
	if manager != "pip" {
		return nil, fmt.Errorf("no server is configured for %s", manager)
	}
	e := target.Endpoint{Host: target.HostOfAddr(netip.MustParseAddr("9.9.9.9")), Port: 443}
	return []detect.Server{{Endpoint: e, Where: "pip.conf:2"}}, nil
}

// valid are the files of testdata/valid: each loads beside the others.
func valid(t *testing.T) map[string]*setting {
	t.Helper()
	names, err := filepath.Glob("testdata/valid/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	out := map[string]*setting{}
	var creds []policyfile.Credential
	files := fstest.MapFS{}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(name)] = &fstest.MapFile{Data: data}
		if bytes.Contains(data, []byte("kind: Credential")) {
			c, err := policyfile.ParseCredential(name, data)
			if err != nil {
				t.Fatal(err)
			}
			creds = append(creds, *c)
		}
		out[name] = &setting{main: data}
	}
	for _, s := range out {
		s.creds, s.files = creds, files
	}
	return out
}

// invalid are the archives of testdata/invalid: main.yaml does not load. Beside
// it stand files that it includes, in credentials/ what it may grant, and the
// policies above and below it, floor.yaml and run.yaml.
func invalid(t *testing.T) map[string]*setting {
	t.Helper()
	names, err := filepath.Glob("testdata/invalid/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	out := map[string]*setting{}
	for _, name := range names {
		a, err := txtar.ParseFile(name)
		if err != nil {
			t.Fatal(err)
		}
		s, files := &setting{}, fstest.MapFS{}
		for _, f := range a.Files {
			switch {
			case f.Name == "main.yaml":
				s.main = f.Data
			case strings.HasPrefix(f.Name, "credentials/"):
				c, err := policyfile.ParseCredential(f.Name, f.Data)
				if err != nil {
					s.errs = append(s.errs, err)
					continue
				}
				s.creds = append(s.creds, *c)
			case f.Name == "floor.yaml":
				s.floor = &policyfile.Input{Name: f.Name, Data: f.Data, Detect: detector}
			case f.Name == "run.yaml":
				s.run = &policyfile.Input{Name: f.Name, Data: f.Data}
			case f.Name == "no-detector":
				s.blind = true
			case f.Name != "want.txt":
				files[f.Name] = &fstest.MapFile{Data: f.Data}
			}
		}
		if len(files) > 0 {
			s.files = files
		}
		out[name] = s
	}
	return out
}

// loaderOnly are the classes of error that only the loader can tell, with the
// beginning of the names of their files.
var loaderOnly = map[string]string{
	"yaml-":       "what YAML says is lost once it is JSON: characters, anchors, duplicate keys, nesting, size",
	"spelling-":   "the one spelling of hosts, paths, ranges, headers, names and dates",
	"domains-":    "public suffixes, shared domains, reserved names and special addresses",
	"together-":   "what rules say together: ids, credentials, limits, streams",
	"meaning-":    "what a value means beside others: within endpoints, a range that is too wide, a condition that can never be",
	"include-":    "what is in other files",
	"credential-": "which credentials there are, and where they may go",
	"never-":      "proofs",
	"test-":       "tests that fail, and questions that are none",
	"written-":    "effective policies, which no person writes",
	"gateway-":    "the gateway's configuration, of which there is no schema",
	"scope-":      "what the floor and a run say",
	"preset-":     "presets and what they are included with",
}

// TestSchemaAndLoaderAcceptTheSame: over all files of testdata, what loads is
// valid, and what does not load is not, but for what only the loader can tell.
func TestSchemaAndLoaderAcceptTheSame(t *testing.T) {
	s := compileSchema(t)
	for name, f := range valid(t) {
		if err := f.load(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := schemaSays(s, f.main); err != nil && !strings.HasPrefix(filepath.Base(name), "gateway-") {
			t.Errorf("%s loads, and the schema refuses it: %v", name, err)
		}
	}
	used := map[string]bool{}
	for name, f := range invalid(t) {
		if f.load() == nil {
			t.Errorf("%s loads", name)
		}
		class, _, _ := strings.Cut(filepath.Base(name), "-")
		used[class+"-"] = true
		switch {
		case class == "schema" && schemaSays(s, f.main) == nil:
			t.Errorf("%s does not load, and the schema accepts it", name)
		case class != "schema" && loaderOnly[class+"-"] == "":
			t.Errorf("%s: a name begins with schema- or with a class of loaderOnly", name)
		}
	}
	for class := range loaderOnly {
		if !used[class] {
			t.Errorf("no file of the class %s", class)
		}
	}
}

// TestSchemaIsJSON keeps what editors read plain.
func TestSchemaIsJSON(t *testing.T) {
	text, err := policyfile.Schema()
	if err != nil || !json.Valid(text) {
		t.Fatal(err)
	}
}
