package policyfile

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Format returns a policy, credential or gateway file in its canonical layout:
// keys in the order of the reference, two blanks a level, what fits on a line
// of 100 columns on one line, text in quotes only where it has to be. Comments
// stay with what they are about. What the file means is not changed: that is
// checked, and a file of which it cannot be said is an error.
//
// It reads the layout alone: a file need not load to be formatted. The error is
// [Errors].
func Format(name string, data []byte) ([]byte, error) {
	if isEffective(data) {
		return nil, Errors{{File: name, Text: "an effective policy has one spelling, which its digest is of: it is not laid out anew"}}
	}
	f, root, kind := openAny(name, data)
	if root == nil {
		return nil, f.err()
	}
	text := strings.ReplaceAll(string(data), "\r\n", "\n")
	l := newLayout(text, root, formOf(kind))
	p := &printer{}
	p.document(l)
	out := p.Bytes()
	again, root2, _ := openAny(name, out)
	if root2 == nil {
		f.errorAt(1, 1, "this file cannot be formatted: %v", again.err())
		return nil, f.err()
	}
	l2, p2 := newLayout(string(out), root2, formOf(kind)), &printer{}
	p2.document(l2)
	if !same(root, root2) || l2.comment != l.comment || !bytes.Equal(p2.Bytes(), out) {
		f.errorAt(1, 1, "this file cannot be formatted without changing what it says; write it in a simpler way")
		return nil, f.err()
	}
	return out, nil
}

// openAny opens a file of any kind that people write.
func openAny(name string, data []byte) (*file, *ast.MappingNode, string) {
	for _, kind := range []string{KindCredential, KindGateway, KindPreset} {
		if !bytes.Contains(data, []byte(kind)) {
			continue
		}
		if f, root := open(name, data, kind); root != nil {
			return f, root, kind
		}
	}
	f, root := open(name, data, KindPolicy)
	return f, root, KindPolicy
}

func formOf(kind string) *form {
	switch kind {
	case KindCredential:
		return credentialForm()
	case KindGateway:
		return gatewayForm()
	case KindPreset:
		return presetForm()
	default:
		return policyForm()
	}
}

// same reports whether two values are equal. The order of keys says nothing.
func same(a, b ast.Node) bool {
	switch x := a.(type) {
	case *ast.MappingNode:
		y, ok := b.(*ast.MappingNode)
		if !ok || len(x.Values) != len(y.Values) {
			return false
		}
		left := slices.Clone(y.Values)
		for _, v := range x.Values {
			i := slices.IndexFunc(left, func(w *ast.MappingValueNode) bool { return keyOf(w) == keyOf(v) && same(v.Value, w.Value) })
			if i < 0 {
				return false
			}
			left = slices.Delete(left, i, i+1)
		}
		return true
	case *ast.SequenceNode:
		y, ok := b.(*ast.SequenceNode)
		return ok && slices.EqualFunc(x.Values, y.Values, func(v, w ast.Node) bool { return same(v, w) })
	}
	s, isText := textOf(a)
	t, isText2 := textOf(b)
	if isText || isText2 {
		return isText && isText2 && s == t
	}
	return a.Type() == b.Type() && a.GetToken().Value == b.GetToken().Value
}

// textOf returns the text that a node is read as.
func textOf(n ast.Node) (string, bool) {
	switch x := n.(type) {
	case *ast.StringNode:
		return x.Value, true
	case *ast.LiteralNode:
		return strings.TrimRight(x.Value.Value, "\n"), true
	default:
		return "", false
	}
}

// printer writes the canonical layout.
type printer struct{ bytes.Buffer }

const maxColumns = 100

func (p *printer) document(l *layout) {
	p.comments(l.head, 0)
	p.parts(l.root, 0)
	p.comments(l.foot, 0)
}

func (p *printer) comments(list []string, indent int) {
	for _, c := range list {
		if c == "" {
			p.WriteByte('\n')
			continue
		}
		p.WriteString(strings.Repeat(" ", indent) + c + "\n")
	}
}

// order returns the parts of a mapping in the order of its form; what the form
// does not know comes last, as it stands.
func (x *piece) order() []*piece {
	list := slices.Clone(x.parts)
	if _, ok := x.value.(*ast.MappingNode); !ok || x.form == nil {
		return list
	}
	rank := func(p *piece) int {
		i := slices.IndexFunc(x.form.keys, func(k keyForm) bool { return k.name == keyText(p.key) })
		if i < 0 {
			return len(x.form.keys)
		}
		return i
	}
	slices.SortStableFunc(list, func(a, b *piece) int { return rank(a) - rank(b) })
	return list
}

func keyText(n ast.Node) string {
	if s, ok := n.(*ast.StringNode); ok {
		return s.Value
	}
	return n.String()
}

// parts writes the parts of a piece, each on lines of its own.
func (p *printer) parts(x *piece, indent int) {
	for i, part := range x.order() {
		if part.gap && i > 0 {
			p.WriteByte('\n')
		}
		p.comments(part.head, indent)
		if _, single := part.oneLine(indent); !single && part.key == nil && part.tail != "" {
			p.comments([]string{part.tail}, indent) // an item has no line of its own
			part.tail = ""
		}
		p.WriteString(strings.Repeat(" ", indent))
		p.part(part, indent)
	}
	p.comments(x.foot, indent)
}

// part writes a key or an item with its value; the indent is written.
func (p *printer) part(x *piece, indent int) {
	lead := x.lead()
	tail := ""
	if x.tail != "" {
		tail = " " + x.tail
	}
	text, single := x.oneLine(indent)
	switch {
	case single:
		p.plain(x, lead, text, tail, indent)
	case x.key == nil && len(x.parts) > 0 && isMapping(x.value) && x.tail == "" && len(x.order()[0].head) == 0:
		// The first key stands beside the dash.
		first := x.order()[0]
		p.WriteString("- ")
		p.part(first, indent+2)
		rest := *x
		rest.parts = x.order()[1:]
		p.parts(&rest, indent+2)
	default:
		p.WriteString(lead + tail + "\n")
		p.parts(x, indent+2)
	}
}

// lead is what a piece begins with.
func (x *piece) lead() string {
	if x.key == nil {
		return "-"
	}
	return scalar(x.key, true) + ":"
}

// oneLine writes a value on one line, if it is a plain one or fits.
func (x *piece) oneLine(indent int) (text string, ok bool) {
	text, ok = x.flow(false)
	return text, ok && !x.block() && (len(x.parts) == 0 || indent+columns(x.lead())+1+columns(text) <= maxColumns)
}

func isMapping(n ast.Node) bool {
	_, ok := n.(*ast.MappingNode)
	return ok
}

func columns(s string) int { return len([]rune(s)) }

// plain writes what stands on one line, or text that needs several.
func (p *printer) plain(x *piece, lead, text, tail string, indent int) {
	s, isText := textOf(x.value)
	switch {
	case isText && strings.Contains(s, "\n") && literally(s):
		p.WriteString(lead + " |" + tail + "\n")
		for line := range strings.SplitSeq(s, "\n") {
			if line != "" {
				line = strings.Repeat(" ", indent+2) + line
			}
			p.WriteString(line + "\n")
		}
	case isText && x.key != nil && indent+columns(lead)+1+columns(text) > maxColumns && foldable(s):
		p.WriteString(lead + " >-" + tail + "\n")
		p.fold(s, indent+2)
	default:
		p.WriteString(lead + " " + text + tail + "\n")
	}
}

// fold writes words in lines of at most 100 columns.
func (p *printer) fold(s string, indent int) {
	line := ""
	for w := range strings.SplitSeq(s, " ") {
		if line != "" && indent+columns(line)+1+columns(w) > maxColumns {
			p.WriteString(strings.Repeat(" ", indent) + line + "\n")
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += w
	}
	p.WriteString(strings.Repeat(" ", indent) + line + "\n")
}

// foldable reports text that reads the same when its words stand on several lines.
func foldable(s string) bool {
	return strings.Contains(s, " ") && strings.Trim(s, " ") == s && !strings.Contains(s, "  ") && !strings.ContainsAny(s, "\n\t") && shows(s)
}

// literally reports text that can stand as it is, line by line.
func literally(s string) bool {
	for i, line := range strings.Split(s, "\n") {
		if strings.TrimRight(line, " \t") != line || i == 0 && strings.TrimLeft(line, " \t") != line || strings.Contains(line, "\t") || !shows(line) {
			return false
		}
	}
	return !strings.HasPrefix(s, "\n")
}

// shows reports text without characters that need an escape.
func shows(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r != '\n' && escapes(r) })
}

// block reports a piece that stands on lines of its own even if it is short: a
// list of rules, tests or statements, and each rule.
func (x *piece) block() bool {
	if len(x.parts) == 0 {
		return false
	}
	if x.form != nil && x.form.list != nil {
		switch x.form.list.what {
		case ruleForm.what, "a test", neverForm.what:
			return true
		}
	}
	return x.form != nil && x.form.what == ruleForm.what
}

// flow writes a value on one line; ok is false if it cannot be, since a comment
// or lines of text stand in it.
func (x *piece) flow(nested bool) (text string, ok bool) {
	if len(x.foot) > 0 {
		return "", false
	}
	var words []string
	for _, p := range x.order() {
		s, ok := p.flow(true)
		if !ok || len(p.head) > 0 || p.tail != "" {
			return "", false
		}
		if t, isText := textOf(p.value); isText && strings.Contains(t, "\n") {
			return "", false
		}
		if p.key != nil {
			s = scalar(p.key, true) + ": " + s
		}
		words = append(words, s)
	}
	switch x.value.(type) {
	case *ast.MappingNode:
		return "{" + strings.Join(words, ", ") + "}", true
	case *ast.SequenceNode:
		return "[" + strings.Join(words, ", ") + "]", true
	default:
		// A sentence that stands alone needs fewer quotes.
		return scalar(x.value, nested || x.key == nil || !proseKeys[keyText(x.key)]), true
	}
}

// proseKeys are keys whose values are sentences.
var proseKeys = map[string]bool{"reason": true, "description": true}

var (
	// wordLike is text that nobody takes for anything else.
	wordLike = regexp.MustCompile(`^[\pL0-9/][\pL\pN ._/@+=-]*$`)
	// prose is what may stand outside of brackets without quotes.
	prose = regexp.MustCompile(`^[\pL0-9/(][\pL\pN ._/@+=(),;!?'"$%&§–—’…-]*$`)
)

var (
	// aName is text that is plain in every context, but for some words that YAML
	// keeps for itself.
	aName    = regexp.MustCompile(`^[a-z][a-z0-9]*([._/-][a-z0-9]+)*$`)
	notNames = []string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
)

// scalar writes a plain value.
func scalar(n ast.Node, inFlow bool) string {
	s, ok := textOf(n)
	if !ok {
		return n.GetToken().Value
	}
	like := prose
	if inFlow {
		like = wordLike
	}
	if like.MatchString(s) && strings.Trim(s, " ") == s && readsAs(s, inFlow) {
		return s
	}
	return quote(s)
}

// readsAs reports whether the parser takes s, without quotes, for that text.
func readsAs(s string, inFlow bool) bool {
	if aName.MatchString(s) && !slices.Contains(notNames, s) {
		return true // no need to ask
	}
	form := "k: %s\n"
	if inFlow {
		form = "k: [%s]\n"
	}
	tree, err := parser.ParseBytes(fmt.Appendf(nil, form, s), 0)
	if err != nil || len(tree.Docs) != 1 {
		return false
	}
	m, ok := tree.Docs[0].Body.(*ast.MappingNode)
	if !ok || len(m.Values) != 1 {
		return false
	}
	v := m.Values[0].Value
	if list, ok := v.(*ast.SequenceNode); ok && inFlow {
		if len(list.Values) != 1 {
			return false
		}
		v = list.Values[0]
	}
	x, ok := v.(*ast.StringNode)
	return ok && x.Value == s
}
