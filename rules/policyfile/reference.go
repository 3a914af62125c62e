package policyfile

import (
	"bytes"
	"fmt"
	"strings"
)

// reference writes the tables of keys.
type reference struct{ bytes.Buffer }

// section writes the table of a mapping and of those in it, the first time that
// each comes.
func (w *reference) section(level int, title string, f *form) {
	fmt.Fprintf(w, "\n%s %s\n\n| key | value | meaning | if left out |\n|---|---|---|---|\n", strings.Repeat("#", level), title)
	for _, k := range f.keys {
		absent := k.absent
		switch {
		case k.required:
			absent = "**error**"
		case absent == "":
			absent = "nothing"
		}
		fmt.Fprintf(w, "| `%s` | %s | %s | %s |\n", k.name, escapeCell(k.form.kind()), escapeCell(k.doc), escapeCell(absent))
	}
	done := map[*form]bool{}
	for _, k := range f.keys {
		inner, name := k.form, k.name
		if inner.list != nil {
			inner, name = inner.list, name+"[]"
		}
		if inner.keys != nil && !done[inner] {
			done[inner] = true
			w.section(min(level+1, 6), "`"+strings.Trim(strings.ReplaceAll(title, "`", "")+"."+name, ".")+"`", inner)
		}
	}
}

// kind says in words what a value is.
func (f *form) kind() string {
	switch {
	case f.keys != nil:
		return "mapping"
	case f.values != nil:
		return "mapping of names to " + f.values.kind()
	case f.list != nil && f.list.keys != nil:
		return "list of mappings"
	case f.list != nil:
		return "list of " + f.list.kind()
	case f.words != nil && f.as == "":
		return "`" + strings.Join(f.words, "` or `") + "`"
	case f.typ == "boolean":
		return "`true` or `false`"
	case f.as != "":
		return f.as
	default:
		return f.typ
	}
}

func escapeCell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
