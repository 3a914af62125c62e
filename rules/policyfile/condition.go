package policyfile

import (
	"slices"

	"github.com/goccy/go-yaml/ast"

	"sallyport/rules"
)

// conditions reads a list of conditions about header fields or parameters.
func (f *file) conditions(part rules.Part, dst *[]rules.Condition) func(ast.Node) {
	return f.items(func(n ast.Node) {
		before := len(f.errs)
		c := rules.Condition{In: part}
		var present bool
		name := func(n ast.Node) {
			before := len(f.errs)
			if f.str(&c.Name)(n); len(f.errs) == before && part == rules.InHeader {
				f.spelledHeader(n, c.Name)
			}
		}
		seen := f.mapping(n, "a condition", []key{
			{name: "name", required: true, read: name},
			{name: "equals", read: f.str(&c.Value)},
			{name: "present", read: f.boolean(&present)},
		})
		switch {
		case seen == nil || len(f.errs) > before:
			return
		case (seen["equals"] != nil) == (seen["present"] != nil):
			f.errorf(n, "a condition says equals or present, one of them")
			return
		case seen["equals"] != nil:
			c.Test = rules.Equals
		case present:
			c.Test = rules.Present
		default:
			c.Test = rules.Absent
		}
		*dst = append(*dst, c)
	})
}

func (f *file) spelledHeader(n ast.Node, s string) {
	switch right := rules.CanonicalHeader(s); right {
	case s:
	case "":
		f.errorf(n, "%q is not the name of a header", s)
	default:
		f.errorf(n, "%q is not how this header is spelled; write %q", s, right)
	}
}

// boolean reads true or false, and nothing that only looks like it.
func (f *file) boolean(dst *bool) func(ast.Node) {
	return func(n ast.Node) {
		b, ok := n.(*ast.BoolNode)
		if !ok || n.GetToken().Value != "true" && n.GetToken().Value != "false" {
			f.errorf(n, "this is %s; it has to be true or false", kindOf(n))
			return
		}
		*dst = b.Value
	}
}

func sorted(list []rules.Condition) []rules.Condition {
	slices.SortFunc(list, rules.Condition.Compare)
	return list
}

// conditions writes the conditions about one part.
func (w *writer) conditions(list []rules.Condition, part rules.Part) {
	const level = 3
	begun := false
	for _, c := range list {
		if c.In != part {
			continue
		}
		if !begun {
			w.line(level, part.String()+":")
			begun = true
		}
		text := "present: true"
		switch c.Test {
		case rules.Equals:
			text = "equals: " + quote(c.Value)
		case rules.Absent:
			text = "present: false"
		default:
		}
		w.line(level+1, "- {name: "+quote(c.Name)+", "+text+"}")
	}
}

// testHeaders reads the header fields of a test's request.
func (f *file) testHeaders(dst *map[string][]string) func(ast.Node) {
	return func(n ast.Node) {
		m, ok := n.(*ast.MappingNode)
		if !ok {
			f.errorf(n, "headers is %s; it has to be a mapping of names to values", kindOf(n))
			return
		}
		*dst = map[string][]string{}
		for _, v := range m.Values {
			name := keyOf(v)
			if f.spelledHeader(v.Key, name); (*dst)[name] != nil {
				f.errorf(v.Key, "%q stands twice", name)
			}
			if why := rules.Unjudged(name); why != "" {
				f.errorf(v.Key, "%s decides nothing in a test: %s", name, why)
			}
			before := len(f.errs)
			var s string
			if f.str(&s)(v.Value); len(f.errs) == before {
				(*dst)[name] = []string{s}
			}
		}
	}
}
