package policyfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"sallyport/rules"
)

const (
	maxIncludeDepth = 8
	maxIncluded     = 100
)

// loader reads a policy file and what it includes. A file that is included
// twice is read once: rules are a set.
type loader struct {
	files fs.FS
	creds []Credential
	dir   string // of the first file, as it is shown
	docs  map[string]*policyDoc
	order []*file
	tests []TestResult // of included files
	scope rules.Scope
	kept  bool // of [Input], an effective policy
	// beside are the loaders of the other scopes.
	beside []*loader

	stop func() error // of [Input]

	detect   Detector             // nil for none
	detected map[string]*detected // by manager
}

// load reads one file and what it includes.
func (l *loader) load(name, rel string, data []byte, above []*policyDoc) *policyDoc {
	kind := KindPolicy
	if len(above) == 0 && isEffective(data) {
		kind = KindEffective
	}
	l.kept = l.kept && kind == KindEffective
	f, root := open(name, data, kind)
	d := &policyDoc{file: f, loader: l, rel: rel, above: above, creds: l.creds}
	l.docs[rel], l.order = d, append(l.order, f)
	if root != nil {
		d.parsed = true
		d.read(root)
	}
	d.done = true
	return d
}

// err returns the errors of all files, nil for none.
func (l *loader) err() error {
	var all Errors
	for _, f := range l.order {
		if errs, ok := errors.AsType[Errors](f.err()); ok {
			all = append(all, errs...)
		}
	}
	for _, other := range l.beside {
		if errs, ok := errors.AsType[Errors](other.err()); ok {
			all = append(all, errs...)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// readInclude reads one entry of include.
func (d *policyDoc) readInclude(n ast.Node) {
	keep := func(ast.Node) {} // read below, by what kind it is
	seen := d.mapping(n, "an include", []key{
		{name: "file", read: keep},
		{name: "preset", read: keep},
		{name: "with", read: keep},
		{name: "credential", read: keep},
		{name: "detect", read: keep},
		{name: "cidrs", read: keep},
	})
	var kinds []string
	for _, kind := range []string{"file", "preset", "detect"} {
		if seen[kind] != nil {
			kinds = append(kinds, kind)
		}
	}
	switch {
	case seen == nil:
		return
	case len(kinds) != 1:
		d.errorf(n, "an include has one of file, preset, detect")
		return
	}
	for _, name := range []string{"with", "credential"} {
		if seen[name] != nil && seen["preset"] == nil {
			d.errorf(seen[name], "%s is for a preset", name)
		}
	}
	if seen["cidrs"] != nil && seen["detect"] == nil {
		d.errorf(seen["cidrs"], "cidrs is for detect")
	}
	if seen["detect"] != nil {
		// Read after the defaults, wherever these stand.
		d.later = append(d.later, func() { d.readDetectInclude(seen) })
		return
	}
	if seen["preset"] != nil {
		d.readPresetInclude(n, seen)
		return
	}
	before := len(d.errs)
	var s string
	if d.str(&s)(seen["file"]); len(d.errs) == before {
		d.include(seen["file"], s)
	}
}

func (d *policyDoc) include(n ast.Node, s string) {
	rel := path.Join(path.Dir(d.rel), s)
	chain := append(slices.Clone(d.above), d)
	switch {
	case !fs.ValidPath(s) || s == "." || strings.Contains(s, `\`):
		d.errorf(n, "%q: an included file lies in or below the directory of the file that includes it; write its path from there, without . and ..", s)
		return
	case d.loader.files == nil:
		d.errorf(n, "this text stands alone, so it can include nothing")
		return
	case len(chain) > maxIncludeDepth:
		d.errorf(n, "includes are nested more than %d deep", maxIncludeDepth)
		return
	}
	if other := d.loader.docs[rel]; other != nil {
		switch {
		case !other.done:
			d.errorf(n, "%s", circle(chain, other))
		case slices.Contains(d.includes, other):
			d.errorf(n, "%q stands twice", s)
		default:
			d.includes = append(d.includes, other)
		}
		return
	}
	if len(d.loader.docs) > maxIncluded {
		d.errorf(n, "more than %d files are included", maxIncluded)
		return
	}
	data, err := readRegular(d.loader.files, rel)
	if err != nil {
		d.errorf(n, "including %q: %s", s, whyUnread(err))
		return
	}
	other := d.loader.load(path.Join(d.loader.dir, rel), rel, data, chain)
	d.includes = append(d.includes, other)
	if len(other.tests) > 0 && d.loader.err() == nil {
		if p := other.compile("", other.ownRules(), false); p != nil {
			d.loader.tests = append(d.loader.tests, other.runTests(p)...)
		}
	}
}

func circle(chain []*policyDoc, again *policyDoc) string {
	var names []string
	for _, d := range chain {
		if d == again || len(names) > 0 {
			names = append(names, d.rel)
		}
	}
	return fmt.Sprintf("includes go in a circle: %s → %s", strings.Join(names, " → "), again.rel)
}

// readRegular reads a file of at most maxFile octets, and nothing that is not
// a file: a pipe would never end.
func readRegular(files fs.FS, name string) ([]byte, error) {
	info, err := fs.Stat(files, name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()                // only read
	return io.ReadAll(io.LimitReader(f, maxFile+1)) // one more is told by open
}

// whyUnread says why a file cannot be read, for whoever named it.
func whyUnread(err error) string {
	bad, ok := errors.AsType[*fs.PathError](err)
	switch {
	case !ok:
		return err.Error()
	case strings.Contains(bad.Err.Error(), "escapes"): // of os.Root, which has no name for it
		return "it is a link, or below one, that leads out of the directory of the file that is run; copy what it names to there"
	case errors.Is(bad.Err, fs.ErrNotExist):
		return "there is no such file; its path is written from the directory of this one"
	default:
		return bad.Err.Error()
	}
}

// checkIncluded refuses what only the file that is run can say.
func (d *policyDoc) checkIncluded(seen map[string]ast.Node) {
	if len(d.above) == 0 {
		return
	}
	for _, name := range []string{"mode", "dns", "limits"} {
		if n := seen[name]; n != nil {
			d.errorf(n, "%s is said by the file that includes this one (%s)", name, d.above[0].rel)
		}
	}
}

// closure returns d and all that it includes, each once.
func (d *policyDoc) closure() []*policyDoc {
	list := []*policyDoc{d}
	for i := 0; i < len(list); i++ {
		for _, x := range list[i].includes {
			if !slices.Contains(list, x) {
				list = append(list, x)
			}
		}
	}
	return list
}

// scoped returns the files of all scopes, each once.
func (d *policyDoc) scoped() (list []*policyDoc) {
	for _, x := range []*policyDoc{d.floor, d, d.run} {
		if x != nil {
			list = append(list, x.closure()...)
		}
	}
	return list
}

func (d *policyDoc) allRules() []*ruleDoc { return rulesOf(d.scoped()) }

// ownRules are those of the file's own scope.
func (d *policyDoc) ownRules() []*ruleDoc { return rulesOf(d.closure()) }

func rulesOf(docs []*policyDoc) (list []*ruleDoc) {
	for _, x := range docs {
		list = append(list, x.rules...)
	}
	return list
}

// originOf returns where a node stands, from the directory of the first file:
// the same wherever that directory is.
func (d *policyDoc) originOf(n ast.Node) string {
	line, _ := place(n)
	return fmt.Sprintf("%s:%d", d.rel, line)
}
