package policyfile

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"sallyport/rules"
	"sallyport/rules/near"
	"sallyport/rules/preset"
)

// KindPreset is the kind of a file of rules that this program brings along.
const KindPreset = "Preset"

// presetPlace goes before a preset's reference where a place is told.
const presetPlace = "preset:"

// credentialWord stands in a preset for the credential that its include names.
const credentialWord = "{credential}" //nolint:gosec // a word, no secret

// maxValues bounds the values of a parameter.
const maxValues = 100

// Preset is what a preset file says.
type Preset struct {
	Ref         string // NAME@VERSION
	Description string
	Leaks       string // what could still leak through it
	Parameters  []Parameter
	Credential  bool // an include may name a credential for it
	Digest      string
	// Rules and Tests are those of the parameters' examples.
	Rules []rules.Rule
	Tests []TestResult
}

// Parameter is what an include says of a preset.
type Parameter struct {
	Name        string   `json:"name"`
	Type        string   `json:"type"`
	Description string   `json:"description"`
	Example     []string `json:"example"`
}

// presetDoc is what makes a policyDoc a preset.
type presetDoc struct {
	ref, digest string
	version     int64
	leaks       string
	params      []Parameter
	credential  string // that its rules are given, "" for none
	takes       bool   // some rule can be given one
	at          string // place of the include
}

// ReadPreset reads a preset and runs its tests, with the examples of its
// parameters as their values. The error is [Errors].
func ReadPreset(ref string, text []byte) (*Preset, error) {
	l := &loader{docs: map[string]*policyDoc{}}
	d := l.parsePreset(ref, text)
	if l.err() == nil {
		with := map[string][]string{}
		for _, p := range d.preset.params {
			with[p.Name] = p.Example
		}
		d.fill(with, "")
	}
	if err := l.err(); err != nil {
		return nil, err
	}
	out := &Preset{
		Ref: ref, Description: d.description, Leaks: d.preset.leaks, Parameters: d.preset.params,
		Credential: d.preset.takes, Digest: d.preset.digest,
	}
	p := d.compile("", d.ownRules(), false)
	if l.err() == nil {
		out.Rules, out.Tests = p.Rules(), d.runTests(p)
	}
	if err := l.err(); err != nil {
		return nil, err
	}
	return out, nil
}

// parsePreset reads the head of a preset; fill reads the rest.
func (l *loader) parsePreset(ref string, text []byte) *policyDoc {
	f, root := open(presetPlace+ref, text, KindPreset)
	d := &policyDoc{file: f, loader: l, rel: presetPlace + ref, creds: l.creds, preset: &presetDoc{ref: ref, digest: Digest(text)}}
	l.order = append(l.order, f)
	if root == nil {
		return d
	}
	d.parsed, d.done = true, true
	d.defaults = defaults{ports: []uint16{443}, methods: readMethods()}
	p := d.preset
	skip := func(ast.Node) {} // checked by open
	d.mapping(root, "a preset", []key{
		{name: "apiVersion", read: skip},
		{name: "kind", read: skip},
		{name: "metadata", read: d.metadata(&d.name, &d.owner, &d.description), required: true},
		{name: "version", read: d.whole(&p.version), required: true},
		{name: "leaks", read: d.str(&p.leaks), required: true},
		{name: "parameters", read: d.items(d.readParameter)},
		{name: "rules", read: func(n ast.Node) { d.later = append(d.later, func() { d.items(d.readRule)(n) }) }, required: true},
		{name: "tests", read: func(n ast.Node) { d.later = append(d.later, func() { d.items(d.readTest)(n) }) }, required: true},
	})
	if own := fmt.Sprintf("%s@%d", d.name, p.version); own != ref {
		d.errorf(root, "name and version are %s, and it is kept as %s", own, ref)
	}
	return d
}

// whole reads a number from 1.
func (f *file) whole(dst *int64) func(ast.Node) {
	return func(n ast.Node) {
		x, ok := n.(*ast.IntegerNode)
		if ok && x.Token.Type == token.IntegerType {
			*dst, _ = strconv.ParseInt(x.Token.Value, 10, 32)
		}
		if *dst < 1 {
			f.errorf(n, "this is %s; it has to be a plain number from 1", kindOf(n))
		}
	}
}

func (d *policyDoc) readParameter(n ast.Node) {
	var p Parameter
	var example ast.Node
	d.mapping(n, "a parameter", []key{
		{name: "name", required: true, read: d.id(&p.Name)},
		{name: "type", required: true, read: d.word(slices.Sorted(maps.Keys(valueTypes)), func(s string) { p.Type = s })},
		{name: "description", required: true, read: d.str(&p.Description)},
		{name: "example", required: true, read: func(n ast.Node) { example = n }},
	})
	if example != nil && p.Type != "" {
		d.values(p, &p.Example)(example)
	}
	d.preset.params = append(d.preset.params, p)
}

// fill reads the rules and tests of a preset with values for its parameters.
func (d *policyDoc) fill(with map[string][]string, credential string) {
	d.with, d.preset.credential = with, credential
	for _, read := range d.later {
		read()
	}
}

// valueTypes are what a parameter's value can be. None holds a character that
// means something where a value is put: a star, a slash beyond its own, an escape.
var valueTypes = map[string]struct {
	ok   func(string) bool
	what string
}{
	"repository": {func(s string) bool { return segments(s, 2, 2) }, "OWNER/NAME of letters, digits and . _ -, without .git"},
	"path":       {func(s string) bool { return segments(s, 1, 20) }, "names of letters, digits and . _ - with slashes between them, without .git"},
	"label":      {isLabel, "lower-case letters, digits and hyphens between them, at most 63"},
	"number":     {isNumber, "a plain number, in quotes"},
	"host":       {nil, "a host"}, // as everywhere
}

// segments reports names with slashes between them: as many as from to most.
func segments(s string, from, most int) bool {
	list := strings.Split(s, "/")
	if len(list) < from || len(list) > most || strings.HasSuffix(s, ".git") {
		return false
	}
	for _, x := range list {
		if x == "" || len(x) > 100 || strings.Trim(x, ".") == "" || strings.Trim(x, nameChars) != "" {
			return false
		}
	}
	return true
}

const (
	lowerChars = "abcdefghijklmnopqrstuvwxyz0123456789-"
	nameChars  = lowerChars + "ABCDEFGHIJKLMNOPQRSTUVWXYZ._"
)

func isLabel(s string) bool {
	return s != "" && len(s) <= 63 && strings.Trim(s, lowerChars) == "" && s[0] != '-' && s[len(s)-1] != '-'
}

func isNumber(s string) bool { return s != "" && len(s) <= 20 && strings.Trim(s, "0123456789") == "" }

// values reads the values of a parameter, each once.
func (f *file) values(p Parameter, dst *[]string) func(ast.Node) {
	return func(n ast.Node) {
		f.strs(func(n ast.Node, s string) {
			switch t := valueTypes[p.Type]; {
			case slices.Contains(*dst, s):
				f.errorf(n, "%q stands twice", s)
				return
			case len(*dst) == maxValues:
				f.errorf(n, "more than %d values", maxValues)
				return
			case t.ok == nil:
				h, ok := f.host(n, s)
				if _, named := h.Host.Name(); !ok {
					return
				} else if h.Wildcard || !named {
					f.errorf(n, "%q: %s is a name", s, p.Name)
					return
				}
			case !t.ok(s):
				f.errorf(n, "%q: %s are %s", s, p.Name, t.what)
				return
			}
			*dst = append(*dst, s)
		})(n)
	}
}

// expand puts the values of parameters in the place of {NAME}: one text for each
// value, and for each combination where several stand in one text. Files that are
// no presets have nothing to expand.
func (f *file) expand(n ast.Node, s string) []string {
	if f.with == nil {
		return []string{s}
	}
	before, rest, open := strings.Cut(s, "{")
	if !open {
		return []string{s}
	}
	name, after, closed := strings.Cut(rest, "}")
	values, known := f.with[name]
	if !closed || !known {
		f.errorf(n, "%q: there is no parameter %q", s, name)
		return nil
	}
	var out []string
	for _, tail := range f.expand(n, after) {
		for _, v := range values {
			out = append(out, before+v+tail)
		}
	}
	return out
}

// grant reads the credential of a rule. A preset's rule takes what its include
// names, or none.
func (d *policyDoc) grant(dst *string) func(ast.Node) {
	if d.preset == nil {
		return d.id(dst)
	}
	return d.word([]string{credentialWord}, func(string) { *dst, d.preset.takes = d.preset.credential, true })
}

// readPresetInclude reads an entry of include that names a preset.
func (d *policyDoc) readPresetInclude(n ast.Node, seen map[string]ast.Node) {
	var ref, credential string
	before := len(d.errs)
	d.str(&ref)(seen["preset"])
	if c := seen["credential"]; c != nil {
		if d.id(&credential)(c); len(d.errs) == before {
			d.checkCredential(c, credential)
		}
	}
	if len(d.errs) > before {
		return
	}
	text, ok := preset.Read(ref)
	if !ok {
		d.errorf(seen["preset"], "there is no preset %q%s", ref, NearPreset(ref))
		return
	}
	other := d.loader.parsePreset(ref, text)
	if len(other.errs) > 0 {
		return // a fault of ours, told as the preset's own
	}
	with, ok := d.readWith(n, seen["with"], other.preset)
	if !ok {
		return
	}
	d.addPreset(n, other, with, credential)
	if credential != "" && !other.preset.takes {
		d.errorf(seen["credential"], "preset %q has no rule for a credential", ref)
	}
}

// addPreset includes a preset. Included again with the same values, by another
// file, it counts once.
func (d *policyDoc) addPreset(n ast.Node, other *policyDoc, with map[string][]string, credential string) {
	l := d.loader
	other.preset.at = d.at(n)
	if first := l.docs[other.rel]; first != nil {
		same := first.preset.credential == credential && maps.EqualFunc(first.with, with, slices.Equal)
		switch {
		case !same:
			d.errorf(n, "preset %q is included with other values at %s; put all of them into one include", other.preset.ref, first.preset.at)
		case slices.Contains(d.includes, first):
			d.errorf(n, "preset %q stands twice", other.preset.ref)
		default:
			d.includes = append(d.includes, first)
		}
		return
	}
	l.docs[other.rel] = other
	other.fill(with, credential)
	d.includes = append(d.includes, other)
}

// readWith reads the values for a preset's parameters: all of them, and no others.
func (d *policyDoc) readWith(n, with ast.Node, p *presetDoc) (map[string][]string, bool) {
	before := len(d.errs)
	out := map[string][]string{}
	switch {
	case with == nil && len(p.params) == 0:
		return out, true
	case with == nil:
		d.errorf(n, "preset %q needs values: with: %s", p.ref, exampleOf(p.params))
		return nil, false
	case len(p.params) == 0:
		d.errorf(with, "preset %q has no parameters", p.ref)
		return nil, false
	}
	keys := make([]key, 0, len(p.params))
	for _, param := range p.params {
		keys = append(keys, key{name: param.Name, required: true, read: func(n ast.Node) {
			var list []string
			d.values(param, &list)(n)
			out[param.Name] = list
		}})
	}
	d.mapping(with, "the values of preset "+p.ref, keys)
	return out, len(d.errs) == before
}

// exampleOf writes parameters as they are written in a file.
func exampleOf(params []Parameter) string {
	var parts []string
	for _, p := range params {
		parts = append(parts, p.Name+": ["+strings.Join(p.Example, ", ")+"]")
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// NearPreset says, after an error about a reference that no preset has, which one may
// have been meant.
func NearPreset(ref string) string {
	name, version, _ := strings.Cut(ref, "@")
	var versions []string
	for _, r := range preset.Refs() {
		if n, _, _ := strings.Cut(r, "@"); n == name {
			versions = append(versions, r)
		}
	}
	if len(versions) > 0 {
		return fmt.Sprintf("; there is %s", list(versions))
	}
	if s := near.Hint(name+"@"+orAny(version, "1"), preset.Refs()); s != "" {
		return s
	}
	return "; sallyport preset ls lists them"
}

// presetRef is a preset that an effective policy is made of.
type presetRef struct{ ref, digest string }

// readPresetRef reads one from an effective policy.
func (d *policyDoc) readPresetRef(n ast.Node) {
	var p presetRef
	d.mapping(n, "a preset", []key{
		{name: "ref", required: true, read: d.str(&p.ref)},
		{name: "digest", required: true, read: d.str(&p.digest)},
	})
	d.presets = append(d.presets, p)
}

// allPresets returns the presets that d is made of, sorted.
func (d *policyDoc) allPresets() []presetRef {
	out := slices.Clone(d.presets)
	for _, x := range d.closure() {
		if x.preset != nil {
			out = append(out, presetRef{x.preset.ref, x.preset.digest})
		}
	}
	slices.SortFunc(out, func(a, b presetRef) int { return strings.Compare(a.ref, b.ref) })
	return out
}
