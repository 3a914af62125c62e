package policyfile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"sallyport/rules/near"
)

// key is a key of a mapping and what reads its value.
type key struct {
	name     string
	read     func(ast.Node)
	required bool
	form     *form // what the schema says of it; only the settings of credentials have it here
}

// place returns where a node begins.
func place(n ast.Node) (line, col int) {
	switch x := n.(type) {
	case *ast.MappingNode:
		if !x.IsFlowStyle && len(x.Values) > 0 {
			return place(x.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return place(x.Key)
	}
	p := n.GetToken().Position
	return p.Line, p.Column
}

func (f *file) errorf(n ast.Node, format string, args ...any) {
	line, col := place(n)
	f.errorAt(line, col, format, args...)
}

// at returns file:line of a node.
func (f *file) at(n ast.Node) string {
	line, _ := place(n)
	return fmt.Sprintf("%s:%d", f.name, line)
}

func keyOf(v *ast.MappingValueNode) string {
	if s, ok := v.Key.(*ast.StringNode); ok {
		return s.Value
	}
	return v.Key.String()
}

// mapping reads a mapping by a table of its keys and returns the nodes of the
// values that it found.
func (f *file) mapping(n ast.Node, what string, keys []key) map[string]ast.Node {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		f.errorf(n, "%s is %s; it has to be a mapping with %s", what, kindOf(n), list(names(keys)))
		return nil
	}
	seen := map[string]ast.Node{}
	for _, v := range m.Values {
		name := keyOf(v)
		i := slices.IndexFunc(keys, func(k key) bool { return k.name == name })
		switch {
		case i < 0:
			f.unknownKey(v, m, what, keys, seen)
			continue
		case seen[name] != nil:
			f.errorf(v.Key, "%q stands twice in %s", name, what)
			continue
		}
		seen[name] = v.Value
		switch {
		case v.Value.Type() == ast.NullType:
			f.errorf(v.Key, "%q has no value", name)
		default:
			keys[i].read(v.Value)
		}
	}
	for _, k := range keys {
		if k.required && seen[k.name] == nil {
			f.errorf(n, "%s has no %s", what, k.name)
		}
	}
	return seen
}

// unknownKey tells of a key that a mapping does not have. If it is clear which
// one was meant, the value is read as that, for what else is wrong with it; that
// the one which was meant is missing is no second error.
func (f *file) unknownKey(v *ast.MappingValueNode, m *ast.MappingNode, what string, keys []key, seen map[string]ast.Node) {
	name := keyOf(v)
	f.errorf(v.Key, "unknown key %q in %s%s", name, what, unknownHint(name, what, names(keys)))
	meant, alone := near.Word(name, names(keys))
	written := func(x *ast.MappingValueNode) bool { return keyOf(x) == meant }
	if meant == "" || seen[meant] != nil || slices.ContainsFunc(m.Values, written) || v.Value.Type() == ast.NullType {
		return
	}
	seen[meant] = v.Value
	if i := slices.IndexFunc(keys, func(k key) bool { return k.name == meant }); alone {
		f.aside++
		keys[i].read(v.Value)
	}
}

// besides reads what a rule says and nobody judges by: an error in it leaves
// what the rule means known.
func (f *file) besides(read func(ast.Node)) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		read(n)
		f.aside += len(f.errs) - before
	}
}

func names(keys []key) []string {
	var out []string
	for _, k := range keys {
		out = append(out, k.name)
	}
	return out
}

// hint says what was meant or, failing that, what there is.
func hint(word string, known []string) string {
	if s := near.Hint(word, known); s != "" {
		return s
	}
	return "; it has " + list(known)
}

// unknownHint says where a key belongs that has its place right outside or right
// inside of this mapping, else what was meant.
func unknownHint(name, what string, known []string) string {
	has := func(f *form) bool {
		return slices.ContainsFunc(f.keys, func(k keyForm) bool { return k.name == name })
	}
	switch {
	case (what == "allow" || what == "deny") && has(ruleForm):
		return fmt.Sprintf("; %s belongs to the rule: write it beside %s", name, what)
	case what == ruleForm.what && has(allowForm):
		return fmt.Sprintf("; %s belongs into what the rule allows or denies: allow: {%s: …}", name, name)
	default:
		return hint(name, known)
	}
}

func list(words []string) string {
	if len(words) == 0 {
		return "nothing"
	}
	return strings.Join(words, ", ")
}

func kindOf(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "true or false"
	case *ast.NullNode:
		return "nothing"
	default:
		return "not a plain value"
	}
}

// items reads a list, each item by read; an empty list is an error unless
// none is allowed.
func (f *file) items(read func(ast.Node)) func(ast.Node) {
	return func(n ast.Node) {
		s, ok := n.(*ast.SequenceNode)
		switch {
		case !ok:
			f.errorf(n, "this is %s; it has to be a list, in brackets or one item a line", kindOf(n))
		case len(s.Values) == 0:
			f.errorf(n, "an empty list; leave the key out or say what is meant")
		default:
			for _, v := range s.Values {
				read(v)
			}
		}
	}
}

// str reads text.
func (f *file) str(dst *string) func(ast.Node) {
	return func(n ast.Node) {
		switch x := n.(type) {
		case *ast.StringNode:
			*dst = x.Value
		case *ast.LiteralNode:
			*dst = strings.TrimRight(x.Value.Value, "\n")
		default:
			f.errorf(n, "this is %s; it has to be text (in quotes if need be)", kindOf(n))
			return
		}
		if strings.Trim(*dst, " \t\n") == "" {
			f.errorf(n, "empty text")
		}
	}
}

// strs reads a list of texts; each goes to read with its node.
func (f *file) strs(read func(ast.Node, string)) func(ast.Node) {
	return f.items(func(n ast.Node) {
		before := len(f.errs)
		var s string
		if f.str(&s)(n); len(f.errs) == before {
			for _, v := range f.expand(n, s) {
				read(n, v)
			}
		}
	})
}

// word reads one of a few words.
func (f *file) word(known []string, read func(string)) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		var s string
		f.str(&s)(n)
		switch {
		case len(f.errs) > before:
		case !slices.Contains(known, s):
			f.errorf(n, "%q is none of %s%s", s, list(known), near.Hint(s, known))
		default:
			read(s)
		}
	}
}

// ports reads a list of port numbers.
func (f *file) ports(dst *[]uint16) func(ast.Node) {
	return f.items(func(n ast.Node) {
		x, ok := n.(*ast.IntegerNode)
		if !ok || x.Token.Type != token.IntegerType {
			f.errorf(n, "this is %s; a port is a plain number from 1 to 65535", kindOf(n))
			return
		}
		p, err := strconv.ParseUint(x.Token.Value, 10, 16)
		switch {
		case err != nil || p == 0:
			f.errorf(n, "a port is a plain number from 1 to 65535")
		case slices.Contains(*dst, uint16(p)):
			f.errorf(n, "port %d stands twice", p)
		default:
			*dst = append(*dst, uint16(p))
		}
	})
}

// date reads YYYY-MM-DD as the first second of that day in UTC.
func (f *file) date(dst *int64) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		var s string
		if f.str(&s)(n); len(f.errs) > before {
			return
		}
		day, ok := parseDate(s)
		if !ok {
			f.errorf(n, "%q is not a date; write it like 2027-01-31", s)
			return
		}
		*dst = day * 86400
	}
}

// parseDate returns the days from 1970-01-01 to a date after it. The room has
// no clock and so no use for package time.
func parseDate(s string) (days int64, ok bool) {
	if len(s) != 10 || s[4] != '-' || s[7] != '-' {
		return 0, false
	}
	number := func(t string) int64 {
		n, err := strconv.ParseUint(t, 10, 16)
		if err != nil {
			return 0
		}
		return int64(n)
	}
	y, m, d := number(s[:4]), number(s[5:7]), number(s[8:])
	leap := y%4 == 0 && (y%100 != 0 || y%400 == 0)
	length := [...]int64{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}
	if leap {
		length[1] = 29
	}
	if y < 1971 || m < 1 || m > 12 || d < 1 || d > length[m-1] {
		return 0, false
	}
	days = (y-1970)*365 + (y-1)/4 - (y-1)/100 + (y-1)/400 - 477 + d - 1
	for _, l := range length[:m-1] {
		days += l
	}
	return days, true
}
