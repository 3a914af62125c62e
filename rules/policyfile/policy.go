package policyfile

import (
	"errors"
	"slices"

	"github.com/goccy/go-yaml/ast"

	"sallyport/rules"
)

// policyDoc is a policy file while it is read.
type policyDoc struct {
	*file
	loader   *loader
	rel      string       // its path from the directory of the first file
	above    []*policyDoc // the files that include it, the first one first
	includes []*policyDoc
	preset   *presetDoc  // nil for a policy
	presets  []presetRef // of an effective policy
	later    []func()    // what of include is read after all else; of a preset, with its values
	parsed   bool        // it is a mapping of the right kind
	done     bool        // read to its end
	creds    []Credential

	name, owner, description string
	defaults                 defaults
	denied                   rules.DeniedNames
	lookups                  []*lookupDoc
	mode                     ruleMode
	modeAt                   ast.Node     // nil if none is written
	totals                   rules.Limits // of a run over all rules
	floor, run               *policyDoc   // the other scopes, nil for none
	floorOf, runOf           *standing    // what an effective policy says of them
	rules                    []*ruleDoc
	never                    []*neverDoc
	tests                    []*testDoc
}

// defaults are what an allow rule has where it says nothing.
type defaults struct {
	ports   []uint16
	methods []string
	tls     rules.TLSMode
	log     rules.LogLevel
	limits  rules.Limits
}

// ruleMode is the value of mode.
type ruleMode struct{ observe, learn bool }

func (m ruleMode) String() string {
	switch {
	case m.learn:
		return "learn"
	case m.observe:
		return "observe"
	default:
		return "enforce"
	}
}

// readMethods are the methods of access: read, and of an allow rule that says
// nothing: they are safe by RFC 9110 section 9.2.1.
func readMethods() []string { return []string{"GET", "HEAD"} }

func (d *policyDoc) read(root *ast.MappingNode) {
	d.defaults = defaults{ports: []uint16{443}, methods: readMethods()}
	var ruleList, testList, neverList ast.Node
	keep := func(dst *ast.Node) func(ast.Node) { return func(n ast.Node) { *dst = n } }
	skip := func(ast.Node) {} // checked by open
	keys := []key{
		{name: "apiVersion", read: skip},
		{name: "kind", read: skip},
		{name: "metadata", read: d.metadata(&d.name, &d.owner, &d.description), required: true},
		{name: "mode", read: d.readMode(&d.mode)},
		{name: "dns", read: d.readDNS},
		{name: "rules", read: keep(&ruleList)},
		{name: "never", read: keep(&neverList)},
		{name: "limits", read: d.limits(&d.totals)},
	}
	if d.written {
		keys = append(keys, key{name: "presets", read: d.items(d.readPresetRef)})
		keys = append(keys, key{name: "floor", read: d.readStanding("floor", &d.floorOf)},
			key{name: "run", read: d.readStanding("run", &d.runOf)})
	} else {
		keys = append(keys, key{name: "defaults", read: d.readDefaults},
			key{name: "include", read: d.items(d.readInclude)}, key{name: "tests", read: keep(&testList)})
	}
	seen := d.mapping(root, "a policy", keys)
	d.modeAt = seen["mode"]
	d.checkIncluded(seen)
	d.checkScope(seen)
	for _, read := range d.later {
		read()
	}
	// Rules are read after the defaults, wherever these stand.
	if all, ok := ruleList.(*ast.SequenceNode); ok {
		for _, n := range all.Values {
			d.readRule(n)
		}
	} else if ruleList != nil {
		d.errorf(ruleList, "rules is %s; it has to be a list", kindOf(ruleList))
	} else if seen["rules"] == nil && seen["include"] == nil {
		d.errorf(root, "no rules; if the policy is to deny everything, say so with rules: []")
	}
	if testList != nil {
		d.items(d.readTest)(testList)
	}
	if neverList != nil {
		d.items(d.readNever)(neverList)
	}
}

// metadata reads what every kind of document says about itself.
func (f *file) metadata(name, owner, description *string) func(ast.Node) {
	return func(n ast.Node) {
		f.mapping(n, "metadata", []key{
			{name: "name", required: true, read: f.id(name)},
			{name: "owner", read: f.str(owner)},
			{name: "description", read: f.str(description)},
		})
	}
}

// id reads a name that stands in records.
func (f *file) id(dst *string) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		if f.str(dst)(n); len(f.errs) == before && !rules.IsID(*dst) {
			f.errorf(n, "%q is not a name: use lower-case letters, digits, and - . _ between them, at most 64", *dst)
		}
	}
}

// readMode reads whether something is enforced, only observed, or learned from.
func (d *policyDoc) readMode(dst *ruleMode) func(ast.Node) {
	return d.word([]string{"enforce", "observe", "learn"}, func(s string) {
		*dst = ruleMode{observe: s != "enforce", learn: s == "learn"}
	})
}

func (d *policyDoc) readDefaults(n ast.Node) {
	var ports []uint16
	var methods []string
	seen := d.mapping(n, "defaults", []key{
		{name: "ports", read: d.ports(&ports)},
		{name: "methods", read: d.methods(&methods)},
		{name: "tls", read: d.tls(&d.defaults.tls)},
		{name: "log", read: d.log(&d.defaults.log)},
		{name: "limits", read: d.limits(&d.defaults.limits)},
	})
	if seen["ports"] != nil {
		d.defaults.ports = ports
	}
	if seen["methods"] != nil {
		d.defaults.methods = methods
	}
}

func (d *policyDoc) tls(dst *rules.TLSMode) func(ast.Node) {
	return d.word([]string{"inspect", "passthrough"}, func(s string) {
		*dst = rules.InspectTLS
		if s == "passthrough" {
			*dst = rules.PassthroughTLS
		}
	})
}

// logWords are the levels by their values.
var logWords = []string{"metadata", "request", "request_response", "none"}

func (d *policyDoc) log(dst *rules.LogLevel) func(ast.Node) {
	return d.word(logWords, func(s string) { *dst = rules.LogLevel(slices.Index(logWords, s)) })
}

// methods reads a list of methods in upper case.
func (f *file) methods(dst *[]string) func(ast.Node) {
	return f.strs(func(n ast.Node, s string) {
		switch upper := asciiUpper(s); {
		case !rules.IsToken(s):
			f.errorf(n, "%q is not a method", s)
		case upper != s:
			f.errorf(n, "methods are case-sensitive; write %q", upper)
		case s == "*":
			f.errorf(n, "a star is no method; for every method say access: write")
		case slices.Contains(*dst, s):
			f.errorf(n, "%s stands twice", s)
		default:
			*dst = append(*dst, s)
		}
	})
}

func asciiUpper(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'a' <= c && c <= 'z' {
			b[i] = c - 'a' + 'A'
		}
	}
	return string(b)
}

// paths reads a list of path patterns.
func (f *file) paths(dst *[]rules.PathPattern) func(ast.Node) {
	return f.strs(func(n ast.Node, s string) {
		p, err := rules.ParsePathPattern(s)
		if err != nil {
			f.errorf(n, "%v", err)
			return
		}
		*dst = append(*dst, p)
	})
}

// compile makes the policy of what was read, here and in what is included, and
// puts what Compile finds into its place in the files. Rules that could not be
// read are left out of that: what they lack would only give faults that are none.
func (d *policyDoc) compile(digest string, list []*ruleDoc, narrowed bool) *rules.Policy {
	src := rules.Source{
		Name: d.name, Digest: digest, Denied: d.denied, Observe: d.mode.observe, Learn: d.mode.learn,
		Narrowed: narrowed, Totals: d.allTotals(), Lookups: d.allLookups(), Never: d.forbidden(),
	}
	if d.loader.scope == rules.FloorScope {
		src.Observe = true // alone, it shows what it takes away
	}
	var docs []*ruleDoc
	ids := map[string]*ruleDoc{}
	for _, r := range list {
		if first := ids[r.ID]; first != nil {
			r.doc.errorf(r.node("id"), "id %q is taken by the rule at %s", r.ID, first.Where)
			continue
		} else if r.ID != "" {
			ids[r.ID] = r
		}
		if r.doc.checkGrant(r); r.whole {
			src.Rules, docs = append(src.Rules, r.Rule), append(docs, r)
		}
	}
	p, err := rules.Compile(src)
	var faults *rules.CompileError
	switch {
	case errors.As(err, &faults):
		for _, fault := range faults.Faults {
			r := docs[fault.Rule]
			r.doc.errorf(r.item(fault.Field, fault.Item), "%s", fault.Text)
		}
	case err != nil:
		d.errorAt(1, 1, "%v", err)
	}
	return p
}
