package policyfile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// HMAC is how a request is signed with a shared key.
type HMAC struct {
	Algorithm string              // sha1, sha256, sha384, sha512
	Template  Template            // what is signed
	Encoding  string              // of the signature: hex, base64
	Header    string              // where the signature goes: its canonical name
	Value     Template            // what stands there
	Set       map[string]Template // further headers
	Time      string              // form of {timestamp}: unix, unix_ms, rfc3339, http
	Key       string              // how the secret is written: raw, hex, base64
	KeyID     string              // {key_id}
}

// Template is text with names in braces, which a request fills: "{method}\n{path}".
type Template []TemplatePart

// TemplatePart is text, or a name. Of is the header that {header:NAME} means.
type TemplatePart struct{ Text, Name, Of string }

// Values tells what stands for a name.
type Values interface{ Value(name, of string) string }

// Has reports whether a name is in t.
func (t Template) Has(name string) bool {
	return slices.ContainsFunc(t, func(p TemplatePart) bool { return p.Name == name })
}

// Fill returns the text of t.
func (t Template) Fill(v Values) string {
	var b strings.Builder
	for _, p := range t {
		if p.Name == "" {
			b.WriteString(p.Text)
			continue
		}
		b.WriteString(v.Value(p.Name, p.Of))
	}
	return b.String()
}

// String returns t as it is written.
func (t Template) String() string {
	var b strings.Builder
	for _, p := range t {
		switch {
		case p.Name == "":
			b.WriteString(strings.NewReplacer("{", "{{", "}", "}}").Replace(p.Text))
		case p.Of != "":
			b.WriteString("{" + p.Name + ":" + p.Of + "}")
		default:
			b.WriteString("{" + p.Name + "}")
		}
	}
	return b.String()
}

// ParseTemplate reads a template in which the given names may stand. A brace that
// is meant is written twice.
func ParseTemplate(s string, known []string) (t Template, err error) {
	text := func(s string) {
		if n := len(t); n > 0 && t[n-1].Name == "" {
			t[n-1].Text += s
		} else if s != "" {
			t = append(t, TemplatePart{Text: s})
		}
	}
	for s != "" {
		i := strings.IndexAny(s, "{}")
		if i < 0 {
			text(s)
			break
		}
		text(s[:i])
		brace := s[i : i+1]
		s = s[i+1:]
		if strings.HasPrefix(s, brace) {
			text(brace)
			s = s[1:]
			continue
		}
		name, rest, closed := strings.Cut(s, "}")
		if brace == "}" || !closed {
			return nil, fmt.Errorf("a brace that stands alone; write %s twice to mean it", brace)
		}
		name, of, isHeader := strings.Cut(name, ":")
		switch {
		case !slices.Contains(known, name):
			return nil, fmt.Errorf("{%s} is none of {%s}", name, strings.Join(known, "}, {"))
		case isHeader != (name == "header") || isHeader && of == "":
			return nil, fmt.Errorf("{%s} is written {%s}", name, map[bool]string{true: "header:NAME", false: name}[name == "header"])
		}
		t = append(t, TemplatePart{Name: name, Of: of})
		s = rest
	}
	return t, nil
}

// signedNames may stand in what is signed, setNames in what is sent.
var (
	signedNames = []string{
		"method", "host", "path", "query", "target", "header", "timestamp", "nonce", "key_id", "body", "body_sha256", "body_sha256_base64",
	}
	setNames = []string{"timestamp", "nonce", "key_id", "body_sha256", "body_sha256_base64"}
)

func hmacKeys(f *file, s *Scheme) []key {
	h := &s.HMAC
	h.Algorithm, h.Encoding, h.Time, h.Key = "sha256", "hex", "unix", "raw"
	h.Value = Template{{Name: "signature"}}
	return []key{
		{name: "header", required: true, read: f.headerName(&h.Header), form: headerForm},
		{name: "template", required: true, read: f.template(&h.Template, signedNames), form: templateForm(signedNames, signedNames)},
		{name: "algorithm", read: f.word([]string{"sha1", "sha256", "sha384", "sha512"}, func(w string) { h.Algorithm = w }), form: word("sha1", "sha256", "sha384", "sha512")},
		{name: "encoding", read: f.word([]string{"hex", "base64"}, func(w string) { h.Encoding = w }), form: word("hex", "base64")},
		{name: "value", read: f.template(&h.Value, append([]string{"signature"}, setNames...)), form: templateForm(append([]string{"signature"}, setNames...), []string{"signature"})},
		{name: "set", read: f.setTemplates(&h.Set), form: mappingOf(templateForm(setNames, nil), object{"pattern": tokenForm.like, "not": object{"pattern": anyCase(framing)}})},
		{name: "time", read: f.word([]string{"unix", "unix_ms", "rfc3339", "http"}, func(w string) { h.Time = w }), form: word("unix", "unix_ms", "rfc3339", "http")},
		{name: "key", read: f.word([]string{"raw", "hex", "base64"}, func(w string) { h.Key = w }), form: word("raw", "hex", "base64")},
		{name: "key_id", read: f.headerText(&h.KeyID), form: printableForm},
	}
}

// checkHMAC refuses settings that leave a signature good for more than the
// request, or that nobody could check.
func checkHMAC(f *file, s *Scheme, n ast.Node) {
	h := s.HMAC
	switch uses := slices.ContainsFunc(slices.Collect(maps.Values(h.Set)), func(t Template) bool { return t.Has("key_id") }); {
	case !h.Value.Has("signature"):
		f.errorf(n, "value has no {signature}")
	case h.KeyID == "" && (uses || h.Template.Has("key_id") || h.Value.Has("key_id")):
		f.errorf(n, "{key_id} stands in it, and key_id is missing")
	case len(h.Template) > 0 && !slices.ContainsFunc(h.Template, func(p TemplatePart) bool { return p.Name != "" }):
		f.errorf(n, "the template is the same for every request: nothing of it would be signed")
	}
}

// template reads a template; the settings of a header are printable text.
func (f *file) template(dst *Template, known []string) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		var s string
		if f.str(&s)(n); len(f.errs) > before {
			return
		}
		t, err := ParseTemplate(s, known)
		if err != nil {
			f.errorf(n, "%v", err)
			return
		}
		*dst = t
	}
}

// setTemplates reads further headers: {X-Timestamp: "{timestamp}"}.
func (f *file) setTemplates(dst *map[string]Template) func(ast.Node) {
	return func(n ast.Node) {
		m, ok := n.(*ast.MappingNode)
		if !ok || len(m.Values) == 0 {
			f.errorf(n, `this is %s; set is a mapping of headers, for example {X-Timestamp: "{timestamp}"}`, kindOf(n))
			return
		}
		*dst = map[string]Template{}
		for _, v := range m.Values {
			before := len(f.errs)
			name := f.fieldName(v.Key, keyOf(v))
			if len(f.errs) > before {
				continue
			}
			if _, twice := (*dst)[name]; twice {
				f.errorf(v.Key, "%s stands twice in set", name)
			}
			var t Template
			f.template(&t, setNames)(v.Value)
			(*dst)[name] = t
		}
	}
}
