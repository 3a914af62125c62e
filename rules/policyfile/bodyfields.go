package policyfile

import (
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// BodyField is a field of a request's body that a credential may go into.
type BodyField struct {
	Kind string // json, form or multipart
	Name string // keys between dots for json, else the field's name
}

// JoinBodyFields writes fields as [BodyFields] reads them.
func JoinBodyFields(fields []BodyField) string {
	lines := make([]string, len(fields))
	for i, f := range fields {
		lines[i] = f.Kind + ":" + f.Name
	}
	return strings.Join(lines, "\n")
}

// BodyFields reads what JoinBodyFields wrote.
func BodyFields(text string) (out []BodyField) {
	for line := range strings.SplitSeq(text, "\n") {
		if kind, name, ok := strings.Cut(line, ":"); ok {
			out = append(out, BodyField{kind, name})
		}
	}
	return out
}

func bodyKeys(f *file, s *Scheme) []key {
	fields := func(kind string) func(ast.Node) {
		return f.strs(func(n ast.Node, name string) {
			if !isFieldName(name) {
				f.errorf(n, "%q is not the name of a field", name)
			}
			s.Body = append(s.Body, BodyField{kind, name})
		})
	}
	return []key{
		{name: "json", read: fields("json")},
		{name: "form", read: fields("form")},
		{name: "multipart", read: fields("multipart")},
	}
}

// isFieldName reports whether s can be the name of a field: printable, and short
// enough to be followed through a body.
func isFieldName(s string) bool {
	for _, r := range s {
		if r < 0x20 || r == 0x7f {
			return false
		}
	}
	return s != "" && len(s) <= 128
}
