package policyfile

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sallyport/rules"
	"sallyport/rules/visible"
)

// The effective policy is one document that says what is in force: the rules
// of a file and of all that it includes, with every default written out, each
// rule with its origin, sorted by id. It has one spelling, so that its digest
// is that of its meaning and not of its layout, and it includes nothing, so
// that nobody has to find files again to know what a run was under.

var effectiveHead = []byte("apiVersion: " + APIVersion + "\nkind: " + KindEffective + "\n")

// isEffective reports whether data says that it is an effective policy.
func isEffective(data []byte) bool { return bytes.HasPrefix(data, effectiveHead) }

// checkEffective makes sure that what was written reads as what it was written
// from, and that a document which says to be effective is spelled as one.
func (d *policyDoc) checkEffective(data, text []byte) {
	if d.written {
		if !bytes.Equal(data, text) {
			d.errorAt(1, 1, "not as an effective policy is written; policy show --effective writes one")
		}
		return
	}
	if len(text) > maxFile {
		d.errorAt(1, 1, "its effective form, with every default and include written out, is longer than 4 MiB: join rules that say the same of several hosts, or make it two policies")
		return
	}
	again := read(Input{Name: d.file.name, Data: text}, d.creds, d.loader.scope)
	if err := again.loader.err(); err != nil {
		d.errorAt(1, 1, "its effective form cannot be read back: %v", err)
	} else if !bytes.Equal(again.effective(), text) {
		d.errorAt(1, 1, "its effective form reads back as another")
	}
}

// effective writes the effective policy.
func (d *policyDoc) effective() []byte {
	w := &writer{}
	w.Write(effectiveHead)
	w.line(0, "metadata:")
	w.text(1, "name", d.name)
	w.text(1, "owner", d.owner)
	w.text(1, "description", d.description)
	if d.mode.observe {
		w.text(0, "mode", d.mode.String())
	}
	w.dns(d)
	w.presets(d.allPresets())
	w.limits(0, d.totals)
	w.standing("floor", d.floorOf)
	w.standing("run", d.runOf)
	list := d.allRules()
	slices.SortFunc(list, func(a, b *ruleDoc) int { return cmp.Compare(a.ID, b.ID) })
	if len(list) == 0 {
		w.line(0, "rules: []")
	} else {
		w.line(0, "rules:")
	}
	for _, r := range list {
		w.rule(r)
	}
	w.never(d.scoped(), nil)
	return w.Bytes()
}

// never writes the statements of files, those of a scope or, with nil, of all.
func (w *writer) never(docs []*policyDoc, scope *rules.Scope) {
	var never []string
	for _, x := range docs {
		for _, s := range x.never {
			if scope == nil || s.scope == *scope {
				never = append(never, s.text())
			}
		}
	}
	slices.Sort(never)
	if len(never) > 0 {
		w.line(0, "never:")
	}
	for _, s := range never {
		w.line(1, "- "+s)
	}
}

// text writes a statement on one line.
func (s *neverDoc) text() string {
	var parts []string
	add := func(name string, words []string) {
		if len(words) > 0 {
			slices.Sort(words)
			parts = append(parts, name+": ["+strings.Join(words, ", ")+"]")
		}
	}
	if s.Credential != "" {
		parts = append(parts, "credential: "+quote(s.Credential))
	}
	add("hosts", words(s.Hosts))
	if len(s.Ports) > 0 {
		parts = append(parts, "ports: ["+strings.Join(numbers(s.Ports), ", ")+"]")
	}
	add("methods", quoteAll(s.Methods))
	add("paths", words(s.Paths))
	if s.reason != "" {
		parts = append(parts, "reason: "+quote(s.reason))
	}
	parts = append(parts, "origin: "+quote(s.origin))
	if s.scope != rules.PolicyScope {
		parts = append(parts, "scope: "+quote(s.scope.String()))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// writer writes the one spelling: two blanks a level, text in double quotes,
// an item a line, nothing that is empty.
type writer struct{ bytes.Buffer }

func (w *writer) line(level int, s string) {
	w.WriteString(strings.Repeat("  ", level) + s + "\n")
}

func (w *writer) text(level int, name, value string) {
	if value != "" {
		w.line(level, name+": "+quote(value))
	}
}

func (w *writer) presets(list []presetRef) {
	if len(list) > 0 {
		w.line(0, "presets:")
	}
	for _, p := range list {
		w.line(1, "- {ref: "+quote(p.ref)+", digest: "+quote(p.digest)+"}")
	}
}

// list writes a list inside allow or deny.
func (w *writer) list(name string, items []string) {
	const level = 3
	if len(items) == 0 {
		return
	}
	w.line(level, name+":")
	for _, s := range items {
		w.line(level+1, "- "+s)
	}
}

func (w *writer) rule(r *ruleDoc) {
	w.line(1, "- id: "+quote(r.ID))
	w.text(2, "origin", r.origin)
	if r.Scope != rules.PolicyScope {
		w.text(2, "scope", r.Scope.String())
	}
	w.text(2, "reason", r.Purpose)
	w.text(2, "ticket", r.Ticket)
	w.text(2, "owner", r.Owner)
	if r.Expires != 0 {
		w.text(2, "expires", formatDate(r.Expires/86400))
	}
	allow := r.Action == rules.AllowAction
	if allow {
		w.line(2, "allow:")
	} else {
		w.line(2, "deny:")
	}
	w.list("hosts", words(r.Hosts))
	w.list("ports", numbers(r.Ports))
	w.list("methods", quoteAll(r.Methods))
	if allow && len(r.Methods) == 0 && !r.Raw && r.TLS == rules.InspectTLS {
		w.text(3, "access", "write")
	}
	w.list("paths", words(r.Paths))
	w.conditions(r.Conditions, rules.InHeader)
	w.conditions(r.Conditions, rules.InQuery)
	w.list("cidrs", words(r.Private))
	if r.Raw {
		w.text(3, "protocol", "tcp")
	}
	w.text(2, "credential", r.Credential)
	if r.CallersKey {
		w.text(2, "callers_key", "allow")
	}
	if r.Observe {
		w.text(2, "mode", ruleMode{r.Observe, r.Learn}.String())
	}
	w.limits(2, r.Limits)
	if r.TLS == rules.PassthroughTLS {
		w.text(2, "tls", "passthrough")
	}
	w.text(2, "log", logWords[r.Log])
	if r.shared {
		w.text(2, "multi_tenant", "acknowledged")
	}
}

// words writes values, sorted.
func words[T fmt.Stringer](list []T) []string {
	out := make([]string, 0, len(list))
	for _, x := range list {
		out = append(out, x.String())
	}
	return quoteAll(out)
}

func quoteAll(list []string) []string {
	out := make([]string, 0, len(list))
	for _, s := range list {
		out = append(out, quote(s))
	}
	slices.Sort(out)
	return out
}

func numbers(list []uint16) []string {
	list = slices.Sorted(slices.Values(list))
	out := make([]string, 0, len(list))
	for _, n := range list {
		out = append(out, strconv.Itoa(int(n)))
	}
	return out
}

// quote writes text as a double-quoted scalar (YAML 1.2 section 7.3.1) on one
// line, with an escape for everything that does not show.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case escapes(r):
			if r > 0xffff {
				fmt.Fprintf(&b, `\U%08X`, r)
			} else {
				fmt.Fprintf(&b, `\u%04X`, r)
			}
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// escapes reports characters that do not show.
func escapes(r rune) bool { return !visible.Rune(r) }

// formatDate is the inverse of parseDate.
func formatDate(days int64) string {
	year := int64(1970) + days/366
	for {
		next, ok := parseDate(fmt.Sprintf("%04d-01-01", year+1))
		if !ok && year > 1970 || next > days { // no year has five digits
			break
		}
		year++
	}
	for month := 12; month > 0; month-- {
		first, _ := parseDate(fmt.Sprintf("%04d-%02d-01", year, month))
		if first <= days {
			return fmt.Sprintf("%04d-%02d-%02d", year, month, days-first+1)
		}
	}
	return ""
}
