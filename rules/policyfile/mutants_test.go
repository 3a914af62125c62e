package policyfile_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"sallyport/rules/policyfile"
)

var mutants = flag.Int("mutants", 4, "how many mutants of each file are asked about, about; 0 for all")

// instead are what stands in the place of a value, one after the other.
var instead = []any{
	nil, true,
	json.Number("0"), json.Number("-1"), json.Number("70000"), json.Number("1.5"),
	"", " ", "x", "X Y", "{x}", "TRACE",
	"*", "*.x.test", "x.test:1", "9.9.9.9", "10.0.0.0/8",
	"/a", "/a/../b", "../x",
	"2026-02-30", "1/min", "0/min", "1KiB",
	"https://x.test/", "GET https://x.test/", "A x.test",
	[]any{},
	[]any{"x"},
	[]any{"x", "x"},
	map[string]any{},
	map[string]any{"x": "y"},
}

// eachMutant calls emit for every document that differs from the one round value in one
// place: a value is another, twice there, gone, or under a name that it has not.
func eachMutant(value any, emit func()) {
	switch v := value.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			was := v[k]
			for _, x := range instead {
				v[k] = x
				emit()
			}
			delete(v, k)
			emit()
			v["x"+k] = was
			emit()
			delete(v, "x"+k)
			if list, ok := was.([]any); ok && len(list) > 0 {
				v[k] = append(slices.Clone(list), list[0])
				emit()
			}
			v[k] = was
			eachMutant(was, emit)
		}
	case []any:
		for i, was := range v {
			for _, x := range instead {
				v[i] = x
				emit()
			}
			v[i] = was
			eachMutant(was, emit)
		}
	}
}

// loaderSays are the errors by which the loader refuses what the schema accepts, with
// why a schema cannot say it.
var loaderSays = map[string]string{
	`including ".*": (there is no such file|it is a link|not a regular)`:                                                                                                                           "files",
	`more than 100 files are included|includes are nested more than|includes go in a circle|this text stands alone|is said by the file that includes`:                                              "files that include one another",
	`(repositories|projects|hosts) (are|is) |more than 100 values|in the values of preset|the values of preset|needs values|has no parameters|included with other values|preset ".*" stands twice`: "what a preset's parameters are",
	`there is nothing here in which|^detecting |is detected with other cidrs`:                                                                                                                      "the machine",
	`^this cannot be proved|^this does not hold`:                                                                                                                                                   "proofs",
	`^test fails: `:            "what comes out of a test",
	`^(request|connect|dns): `: "the parsers of real requests",
	`is taken by the rule at|" stands twice|^[a-zA-Z.-]+ stands twice`:                                            "what stands in two places in two forms",
	`is not how this host is spelled|^name "|is not a host: |is not a path: |^write "`:                            "the one spelling of names and addresses: IDNA, lengths, RFC 5952",
	`is reserved: |, which is reserved`:                                                                           "reserved names, in any host of any URL",
	`covers a (public suffix|domain that many)`:                                                                   "the public suffix list",
	`is a special address|is too wide|holds addresses that name no host|not in canonical form|is IPv4 in an IPv6`: "arithmetic of addresses",
	`is not an IPv4 address, nor a range`:                                                                         "arithmetic of addresses",
	`no credential is (named|known)|does not go that far|granted to exact hosts only`:                             "credential files",
	`meets rule "|a request could match rule`:                                                                     "what rules say together",
	`tls: passthrough does not look|a stream that is not looked into`:                                             "defaults, where rules say nothing",
	`no allow rule is about`:                                                                                      "rules, of a name",
	`cannot be a condition|decides nothing in a test|is a secret, and a policy|begins or ends with a blank`:       "the engine's own table of headers",
	`an endpoint for|the endpoint on .* has no paths|takes in other spellings|are two addresses|are one variable`: "two values that are the same, or not",
	`^\{key_id\} stands in it`:                                                                                    "the names that templates use",
}

// asker puts files to the schema and to the loader.
type asker struct {
	schema *jsonschema.Schema
	kinds  map[*regexp.Regexp]int
}

// ask compares what both say of one file; doc is what is in it.
func (a *asker) ask(t *testing.T, name string, f *setting, doc any) {
	t.Helper()
	invalid, refused := a.schema.Validate(doc), f.load()
	if invalid != nil && refused == nil {
		t.Errorf("%s: the schema refuses what loads: %v\n%s", name, invalid, f.main)
	}
	if invalid != nil || refused == nil {
		return
	}
	errs, ok := errors.AsType[policyfile.Errors](refused)
	if !ok {
		t.Errorf("%s: %T: %v", name, refused, refused)
	}
	for _, e := range errs {
		if e.File == "main.yaml" && !a.known(e.Text) {
			t.Errorf("%s: the schema accepts it, and the loader says what a schema could: %v", name, e)
		}
	}
}

// known reports whether an error is of a kind that only the loader can tell.
func (a *asker) known(text string) (yes bool) {
	for kind := range a.kinds {
		if kind.MatchString(text) {
			a.kinds[kind]++
			yes = true
		}
	}
	return yes
}

// docs are the files of a directory, and what is in each.
func docs(t *testing.T, files map[string]*setting) map[string]any {
	t.Helper()
	out := map[string]any{}
	for name, f := range files {
		base := filepath.Base(name)
		if strings.HasPrefix(base, "gateway-") || strings.HasPrefix(base, "yaml-") || strings.HasPrefix(base, "written-") {
			continue // there is no schema of it, or what is wrong with it is lost in JSON
		}
		var value any
		if err := yaml.Unmarshal(f.main, &value); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		if out[name], err = jsonschema.UnmarshalJSON(bytes.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// askMutants asks about some of a document's mutants, and returns how many.
func (a *asker) askMutants(t *testing.T, name string, f *setting, doc any, chance *rand.Rand) (asked int) {
	t.Helper()
	total := 0
	eachMutant(doc, func() { total++ })
	eachMutant(doc, func() {
		if *mutants > 0 && chance.IntN(total) >= *mutants {
			return
		}
		asked++
		text, err := json.MarshalIndent(doc, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		mutant := *f
		mutant.main = text
		a.ask(t, name, &mutant, doc)
	})
	return asked
}

// TestSchemaAndLoaderAcceptTheSameMutants: of every file that differs in one place from
// one of testdata, the schema refuses none that loads, and what it accepts and does not
// load is refused by errors alone that no schema can express.
func TestSchemaAndLoaderAcceptTheSameMutants(t *testing.T) {
	a := &asker{compileSchema(t), map[*regexp.Regexp]int{}}
	for text := range loaderSays {
		a.kinds[regexp.MustCompile(text)] = 0
	}
	files := valid(t)
	maps.Copy(files, invalid(t))
	all := docs(t, files)
	for name, doc := range all {
		a.ask(t, name, files[name], doc)
	}
	for kind, n := range a.kinds {
		if n == 0 {
			t.Errorf("no file of testdata is refused by the loader alone with %q", kind)
		}
	}
	chance, asked := rand.New(rand.NewPCG(5, 2020)), 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !strings.HasSuffix(name, "/never-tangled.txtar") { // to fail to prove takes its time
			asked += a.askMutants(t, name, files[name], all[name], chance)
		}
	}
	if asked < 1000 {
		t.Errorf("only %d mutants were asked about", asked)
	}
	t.Logf("%d files and %d mutants", len(all), asked)
}
