package policyfile

import (
	"strings"

	"github.com/goccy/go-yaml/ast"

	"sallyport/rules"
)

// Field is a field of a request.
type Field struct {
	Kind string // header, cookie, param, json, form, multipart or websocket
	Name string // keys between dots for json, else the field's name
}

// JoinFields writes fields as [Fields] reads them, "" for none.
func JoinFields(fields []Field) string {
	lines := make([]string, len(fields))
	for i, f := range fields {
		lines[i] = f.Kind + ":" + f.Name
	}
	return strings.Join(lines, "\n")
}

// Fields reads what JoinFields wrote.
func Fields(text string) (out []Field) {
	for line := range strings.SplitSeq(text, "\n") {
		if kind, name, ok := strings.Cut(line, ":"); ok {
			out = append(out, Field{kind, name})
		}
	}
	return out
}

func bodyKeys(f *file, s *Scheme) []key {
	return []key{
		{name: "json", read: f.fields("json", &s.Body), form: &form{list: fieldForm}},
		{name: "form", read: f.fields("form", &s.Body), form: &form{list: fieldForm}},
		{name: "multipart", read: f.fields("multipart", &s.Body), form: &form{list: fieldForm}},
		{name: "websocket", read: f.fields("websocket", &s.Body), form: &form{list: fieldForm}},
	}
}

// keysIn reads where an API takes keys beside the places that are known for it.
func (f *file) keysIn(dst *[]Field) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		f.mapping(n, "keys_in", []key{
			{name: "headers", read: f.fields("header", dst)},
			{name: "cookies", read: f.fields("cookie", dst)},
			{name: "params", read: f.fields("param", dst)},
			{name: "json", read: f.fields("json", dst)},
			{name: "form", read: f.fields("form", dst)},
			{name: "multipart", read: f.fields("multipart", dst)},
		})
		if len(f.errs) == before && len(*dst) == 0 {
			f.errorf(n, "keys_in names nothing")
		}
	}
}

func (f *file) fields(kind string, dst *[]Field) func(ast.Node) {
	return f.strs(func(n ast.Node, name string) {
		if !isFieldName(name) || kind == "header" && rules.CanonicalHeader(name) == "" {
			f.errorf(n, "%q is not the name of a field", name)
		}
		*dst = append(*dst, Field{kind, name})
	})
}

// maxFieldName bounds the names of fields, in octets.
const maxFieldName = 128

// isFieldName reports whether s can be the name of a field: printable, and short
// enough to be followed through a body.
func isFieldName(s string) bool {
	for _, r := range s {
		if r < 0x20 || r == 0x7f {
			return false
		}
	}
	return s != "" && len(s) <= maxFieldName
}
