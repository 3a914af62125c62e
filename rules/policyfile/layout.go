package policyfile

import (
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/token"
)

// layout is a file as the formatter sees it: its values with the comments and
// blank lines that belong to each.
type layout struct {
	root    *piece
	pieces  []*piece // all of them, in the order in which they stand
	lines   []string
	head    []string // comments before everything
	foot    []string // comments after everything
	comment int      // how many there are
}

// piece is a key with its value, an item of a list, or the whole document.
type piece struct {
	key   ast.Node // nil for an item and the document
	value ast.Node
	parts []*piece // of a value that is a mapping or a list
	up    *piece
	form  *form // what the value is, nil if that is not known

	line, col int // where it begins
	head      []string
	tail      string
	foot      []string // comments after its last part
	gap       bool     // a blank line goes before
}

// newLayout takes a file apart that was parsed into root.
func newLayout(text string, root *ast.MappingNode, s *form) *layout {
	l := &layout{lines: strings.Split(text, "\n"), root: &piece{value: root, form: s, line: 1, col: 1}}
	l.split(l.root)
	tokens := lexer.Tokenize(text)
	for i, t := range tokens {
		if t.Type == token.CommentType {
			l.attach(tokens, i)
		}
	}
	for _, p := range l.pieces {
		first := p.line - len(p.head)
		p.gap = p != l.pieces[0] && p.up.parts[0] != p && l.blank(first-1)
	}
	return l
}

// split makes the parts of a piece.
func (l *layout) split(p *piece) {
	add := func(key, value ast.Node, at ast.Node, s *form) {
		part := &piece{key: key, value: value, up: p, form: s}
		part.line, part.col = place(at)
		p.parts, l.pieces = append(p.parts, part), append(l.pieces, part)
		l.split(part)
	}
	switch x := p.value.(type) {
	case *ast.MappingNode:
		for _, v := range x.Values {
			add(v.Key, v.Value, v.Key, p.form.of(keyOf(v)))
		}
	case *ast.SequenceNode:
		for i, v := range x.Values {
			before := len(l.pieces)
			add(nil, v, v, p.form.item())
			if item := l.pieces[before]; !x.IsFlowStyle && i < len(x.Entries) && x.Entries[i].Start != nil {
				item.line, item.col = x.Entries[i].Start.Position.Line, x.Entries[i].Start.Position.Column
			}
		}
	}
}

func (f *form) of(key string) *form {
	if f == nil {
		return nil
	}
	for i := range f.keys {
		if f.keys[i].name == key {
			return f.keys[i].form
		}
	}
	return f.values
}

func (f *form) item() *form {
	if f == nil {
		return nil
	}
	return f.list
}

// attach gives a comment to the piece that it is about: that after which it
// stands on its line, or that before which it stands.
func (l *layout) attach(tokens token.Tokens, i int) {
	t := tokens[i]
	line, col := t.Position.Line, t.Position.Column
	text := "#" + strings.TrimRight(t.Value, " \t")
	l.comment++
	if i > 0 && l.before(line, col) {
		p := l.endsAt(tokens, i)
		if p.tail != "" {
			text = p.tail + " " + text
		}
		p.tail = text
		return
	}
	next := slices.IndexFunc(l.pieces, func(p *piece) bool { return p.line > line || p.line == line && p.col > col })
	if p := l.endOf(next, col); p != nil {
		p.foot = append(p.foot, text)
		return
	}
	if next < 0 {
		l.foot = append(l.foot, text)
		return
	}
	p := l.pieces[next]
	list := &p.head
	if next == 0 {
		list = &l.head // of the file, whatever key comes first
	}
	if len(*list) > 0 && l.blank(line-1) {
		*list = append(*list, "")
	}
	*list = append(*list, text)
	if next == 0 && l.blank(line+1) && line+1 < p.line && l.begins(line+1, p.line) {
		*list = append(*list, "")
	}
}

// blank reports a line with nothing on it.
func (l *layout) blank(line int) bool { return line >= 1 && strings.Trim(l.lines[line-1], " \t") == "" }

// begins reports whether lines up to another one, which is not among them, are blank.
func (l *layout) begins(from, to int) bool {
	for ; from < to; from++ {
		if !l.blank(from) {
			return false
		}
	}
	return true
}

// before reports whether something other than a comment stands on a line before
// a column.
func (l *layout) before(line, col int) bool {
	r := []rune(l.lines[line-1])
	return strings.Trim(string(r[:min(col-1, len(r))]), " \t") != ""
}

// endsAt returns the outermost piece that begins on the line of a comment and
// ends before it; if none does, the innermost that has begun.
func (l *layout) endsAt(tokens token.Tokens, i int) *piece {
	t := tokens[i]
	begun := func(p *piece) bool {
		return p.line < t.Position.Line || p.line == t.Position.Line && p.col < t.Position.Column
	}
	last := l.root
	for n, p := range l.pieces {
		if !begun(p) {
			break
		}
		last = p
		if p.line != t.Position.Line {
			continue
		}
		end := n + 1
		for end < len(l.pieces) && l.pieces[end].below(p) {
			end++
		}
		if end == len(l.pieces) || !begun(l.pieces[end]) {
			if !l.continues(tokens[i+1:], end) {
				return p
			}
		}
	}
	return last
}

// continues reports whether something other than comments stands before the
// piece at end.
func (l *layout) continues(rest token.Tokens, end int) bool {
	for _, t := range rest {
		switch {
		case t.Type == token.CommentType:
		case end < len(l.pieces) && (t.Position.Line > l.pieces[end].line || t.Position.Line == l.pieces[end].line && t.Position.Column >= l.pieces[end].col):
			return false
		case end == len(l.pieces) && t.Type == token.DocumentEndType:
		default:
			return true
		}
	}
	return false
}

func (x *piece) below(q *piece) bool {
	for up := x.up; up != nil; up = up.up {
		if up == q {
			return true
		}
	}
	return false
}

// endOf returns the piece after whose last part a comment stands: the last one
// whose parts are as far to the right as the comment, where what follows is not.
func (l *layout) endOf(next, col int) *piece {
	last := len(l.pieces) - 1
	if next >= 0 {
		last = next - 1
		if l.pieces[next].col >= col {
			return nil
		}
	}
	if last < 0 {
		return nil
	}
	for p := l.pieces[last]; p.up != nil; p = p.up {
		flow := false
		switch x := p.up.value.(type) {
		case *ast.MappingNode:
			flow = x.IsFlowStyle
		case *ast.SequenceNode:
			flow = x.IsFlowStyle
		}
		if !flow && p.col <= col && p.up != l.root {
			if next >= 0 && l.pieces[next].up == p.up {
				return nil
			}
			return p.up
		}
	}
	return nil
}
