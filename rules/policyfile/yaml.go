package policyfile

import (
	"errors"
	"maps"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"sallyport/rules/visible"
)

const (
	maxFile = 4 << 20
	// maxLine keeps what a line says before a reviewer's eyes.
	maxLine = 1000
	// maxDepth bounds nesting before the parser, which recurses, sees any. The
	// language itself needs five levels.
	maxDepth = 16
	maxKeys  = 1000
)

// open parses a file into its one document, a mapping of the wanted kind. On
// failure the node is nil and the file has errors.
func open(name string, data []byte, kind string) (*file, *ast.MappingNode) {
	f := &file{name: name, written: kind == KindEffective}
	if len(data) > maxFile {
		f.errorAt(1, 1, "longer than 4 MiB")
		return f, nil
	}
	text := f.text(data)
	if text == "" {
		return f, nil
	}
	if tokens := lexer.Tokenize(text); !f.checkTokens(tokens) {
		return f, nil
	}
	root := f.parse(text, kind)
	if root == nil || !f.checkKind(root, kind) {
		return f, nil
	}
	return f, root
}

// text checks the characters of a file and returns it with plain line ends, ""
// if there are errors.
func (f *file) text(data []byte) string {
	s := strings.ReplaceAll(string(data), "\r\n", "\n")
	f.lines = strings.Split(s, "\n")
	if rest, ok := strings.CutPrefix(s, "\ufeff"); ok {
		f.errorAt(1, 1, "begins with a byte order mark; save the file as UTF-8 without one")
		s = rest
	}
	line, col := 1, 0
	for i, r := range s {
		col++
		switch {
		case col == maxLine && !f.written:
			f.errorAt(line, col, "a line of more than %d characters: its end would not be seen", maxLine-1)
		case r == '\n':
			line, col = line+1, 0
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\ufffd"):
			f.errorAt(line, col, "not UTF-8; save the file as UTF-8")
			return "" // what follows is anybody's guess
		case r == '\r':
			f.errorAt(line, col, "a carriage return that does not end a line")
		case hides(r):
			f.errorAt(line, col, "character %U is invisible or reorders text, so that the file would not say what it shows; take it out", r)
		}
	}
	if len(f.errs) > 0 {
		return ""
	}
	if strings.Trim(s, " \t\n") == "" {
		f.empty()
	}
	return s
}

func (f *file) empty() {
	f.errorAt(1, 1, "the file is empty; it begins with apiVersion: %s", APIVersion)
}

// hides reports characters that a reviewer does not see, or takes for others: controls,
// zero-width characters, bidirectional overrides, fillers, blanks and line ends that are not
// those of YAML.
func hides(r rune) bool { return r != '\t' && r != '\n' && !visible.Rune(r) }

// checkTokens refuses the parts of YAML that let a file say something other
// than what it shows, and shapes that the parser, which recurses and is
// quadratic in the keys of a mapping, should not be given.
func (f *file) checkTokens(tokens token.Tokens) bool {
	var shape shape
	for i, t := range tokens {
		if text := foreign(t.Type); text != "" {
			if n := i + 1; t.Type == token.AliasType && n < len(tokens) && strings.HasPrefix(tokens[n].Value, ".") {
				text = "a value that begins with a star needs quotes: \"*" + tokens[n].Value + "\""
			}
			f.errorAt(t.Position.Line, t.Position.Column, "%s", text)
			continue
		}
		key := t
		if i > 0 {
			key = tokens[i-1]
		}
		if text := shape.add(t, key.Position.Column); text != "" {
			f.errorAt(t.Position.Line, t.Position.Column, "%s", text)
			return false
		}
	}
	return len(f.errs) == 0
}

// foreign says why a token is not part of the language, "" if it is.
func foreign(t token.Type) string {
	switch t {
	case token.AliasType:
		return "aliases are not part of this language; a value that begins with a star needs quotes"
	case token.AnchorType:
		return "anchors are not part of this language"
	case token.TagType:
		return "tags are not part of this language; a value that begins with ! needs quotes"
	case token.MergeKeyType:
		return "merge keys are not part of this language"
	case token.MappingKeyType:
		return "complex keys are not part of this language"
	case token.DirectiveType:
		return "directives are not part of this language"
	default:
		return ""
	}
}

// shape follows the nesting of a token stream.
type shape struct {
	flow    int         // open brackets
	line    int         // of the last sequence entry
	entries int         // sequence entries on that line
	keys    map[int]int // keys of the open block mappings, by column
	inFlow  int         // keys since the outermost bracket
}

// add takes the next token; column is that of the key if it ends one.
func (s *shape) add(t *token.Token, column int) string {
	switch t.Type {
	case token.SequenceStartType, token.MappingStartType:
		if s.flow++; s.flow == 1 {
			s.inFlow = 0
		}
	case token.SequenceEndType, token.MappingEndType:
		s.flow--
	case token.SequenceEntryType:
		if t.Position.Line != s.line {
			s.entries, s.line = 0, t.Position.Line
		}
		s.entries++
		maps.DeleteFunc(s.keys, func(c, _ int) bool { return c > t.Position.Column })
	case token.MappingValueType:
		if s.flow > 0 {
			s.inFlow++
			break
		}
		if s.keys == nil {
			s.keys = map[int]int{}
		}
		maps.DeleteFunc(s.keys, func(c, _ int) bool { return c > column })
		s.keys[column]++
	}
	switch {
	case s.flow > maxDepth || s.entries > maxDepth || len(s.keys) > maxDepth:
		return "nested too deeply"
	case s.keys[column] > maxKeys || s.flow > 0 && s.inFlow > maxKeys:
		return "too many keys in one mapping"
	default:
		return ""
	}
}

func (f *file) parse(text, kind string) *ast.MappingNode {
	tree, err := parser.ParseBytes([]byte(text), 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var syntax interface {
			GetToken() *token.Token
			GetMessage() string
		}
		if errors.As(err, &syntax) && syntax.GetToken() != nil {
			p, what := syntax.GetToken().Position, syntax.GetMessage()
			if strings.Contains(what, "'\t'") {
				f.errorAt(p.Line, p.Column, "a tab does not indent in YAML: write blanks")
				return nil
			}
			f.errorAt(p.Line, p.Column, "not YAML: %s", what)
			return nil
		}
		f.errorAt(1, 1, "not YAML: %v", err)
		return nil
	}
	var root *ast.MappingNode
	bodies := 0
	for _, d := range tree.Docs {
		if d.Body == nil {
			continue
		}
		if bodies++; bodies > 1 {
			f.errorf(d.Body, "a second document; a file holds one %s", kind)
			continue
		}
		root, _ = d.Body.(*ast.MappingNode)
		if root == nil {
			f.errorf(d.Body, "not a mapping; a %s begins with apiVersion: %s", kind, APIVersion)
		}
	}
	if bodies == 0 {
		f.empty()
	}
	if len(f.errs) > 0 {
		return nil
	}
	return root
}

// meant says what to write instead of a word that was meant to be another: in another
// case, or of another version.
func meant(got, want string) string {
	product, _, _ := strings.Cut(want, "/")
	if strings.EqualFold(got, want) || strings.HasPrefix(got, product+"/") {
		return "; write " + want
	}
	return ""
}

// checkKind looks at what the document says it is before anything else, so
// that a file of another kind gets one error and not fifty.
func (f *file) checkKind(root *ast.MappingNode, kind string) bool {
	for _, want := range []struct{ key, value string }{{"apiVersion", APIVersion}, {"kind", kind}} {
		found := false
		for _, v := range root.Values {
			if keyOf(v) != want.key {
				continue
			}
			found = true
			var got string
			if f.str(&got)(v.Value); got != want.value && got != "" {
				f.errorf(v.Value, "%s is %q, and this is read as %q%s", want.key, got, want.value, meant(got, want.value))
			}
		}
		if !found {
			f.errorf(root, "no %s; the file begins with %s: %s", want.key, want.key, want.value)
		}
	}
	return len(f.errs) == 0
}
