package query

import (
	"bytes"
	"strings"
)

// needle is bytes of which a line must hold one for a term to hold, as they are spelled in
// the log, so that most lines need not be decoded.
type needle struct {
	any  []part
	fold bool // ASCII letters in any case
	// number, unless it is nil, must hold for the number that follows a part.
	number *term
	// quiet lets lines pass that are no records: they are told beside the answer, not in it.
	quiet bool
}

// part is a text, in lower case if case does not count, and where in it the byte is that
// is looked for first: the rarest one.
type part struct {
	text []byte
	at   int
}

// rare are letters and digits, the rarest in logs first.
const rare = "zqjxkvwygbfumhlpnrdicsotaeZQJXKVWYGBFUMHLPNRDICSOTAE9876543210"

func partOf(text string) part {
	p := part{text: []byte(text)}
	least := len(rare)
	for i := range len(text) {
		if r := strings.IndexByte(rare, text[i]); r >= 0 && r < least {
			p.at, least = i, r
		}
	}
	return p
}

// needleOf returns what a line holds if t, which is not changed any more, holds for it; ok is
// false if that may be anything.
func needleOf(t *term) (n needle, ok bool) {
	switch {
	case t.op == "any":
		return needleOfAny(t.of)
	case t.op == "word" || t.op == "~":
		n.fold = true
		for _, v := range t.values {
			n.any = append(n.any, partOf(lowerCase(v)))
			ok = isPlain(v)
			if !ok {
				break
			}
		}
	case numberFields[t.field] != nil:
		n.any, n.number = []part{{text: []byte(`"` + t.field + `":`)}}, t
		ok = !t.matchNumber(0) // what is 0 is left out
	case t.op == "!=" && len(t.values) == 1 && t.values[0] == "":
		n.any, ok = []part{{text: []byte(`"` + t.field + `":"`)}}, true
	case t.op == "=":
		n.quiet = len(t.values) == 1
		for _, v := range t.values {
			n.any = append(n.any, part{text: []byte(`"` + t.field + `":"` + v + `"`)})
			if ok = isPlain(v); !ok {
				break
			}
		}
	}
	return n, ok
}

// needleOfAny has one of what each filter needs.
func needleOfAny(of []Filter) (n needle, ok bool) {
	for _, f := range of {
		ok = false
		for _, one := range f.needles {
			if !one.fold && one.number == nil {
				n.any, ok = append(n.any, one.any...), true
				break
			}
		}
		if !ok {
			break
		}
	}
	return n, ok
}

// isPlain reports whether text stands in a line as it is.
func isPlain(text string) bool {
	for _, c := range []byte(text) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"\<>&`, c) >= 0 {
			return false
		}
	}
	return text != ""
}

func (n *needle) in(line []byte) bool {
	if n.number != nil {
		return n.numberIn(line)
	}
	for _, p := range n.any {
		if n.fold && p.inAnyCase(line) || !n.fold && bytes.Contains(line, p.text) {
			return true
		}
	}
	return false
}

// numberIn looks at what follows the field's name: data may have a field of that name too,
// and a line that is not the log's own other spellings of a number.
func (n *needle) numberIn(line []byte) bool {
	for name := n.any[0].text; ; {
		i := bytes.Index(line, name)
		if i < 0 {
			return false
		}
		line = line[i+len(name):]
		is, rest, ok := digits(line)
		if !ok || len(rest) == 0 || rest[0] != ',' && rest[0] != '}' || n.number.matchNumber(int64(is)) {
			return true
		}
	}
}

// inAnyCase looks for the places of one byte, in both cases, and at what is around each.
func (p *part) inAnyCase(line []byte) bool {
	c := p.text[p.at]
	return p.around(line, c) || upper(c) != c && p.around(line, upper(c))
}

func (p *part) around(line []byte, c byte) bool {
	for from := p.at; from < len(line); {
		i := bytes.IndexByte(line[from:], c)
		if i < 0 {
			return false
		}
		if begin := from + i - p.at; begin+len(p.text) <= len(line) && equalLower(line[begin:], p.text) {
			return true
		}
		from += i + 1
	}
	return false
}

// equalLower reports whether a line begins with text, which is in lower case.
func equalLower(line, text []byte) bool {
	for i, c := range text {
		if lower(line[i]) != c {
			return false
		}
	}
	return true
}

func upper(c byte) byte {
	if c >= 'a' && c <= 'z' {
		return c - ('a' - 'A')
	}
	return c
}

func lowerCase(s string) string {
	b := []byte(s)
	for i, c := range b {
		b[i] = lower(c)
	}
	return string(b)
}
