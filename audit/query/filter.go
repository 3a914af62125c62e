package query

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"sallyport/audit"
	"sallyport/rules/near"
)

// Filter says which records are wanted. The zero Filter wants them all.
//
// Its language is a row of terms, all of which must hold:
//
//	host~stripe verdict=deny since=2h
//
// A term is a field, an operator and a value. = and != compare the whole value,
// ~ and !~ look for a part of it in any case; < <= > >= compare numbers. A comma
// separates alternatives (kind=admit,refuse); a value with spaces or commas is
// put in double quotes. since and until take what [ParseTime] does. A word
// without an operator is looked for in host, path, rule, reason and error.
// A host, a method, a type and an id are found however they are spelled.
type Filter struct {
	Since, Until time.Time // zero means open
	terms        []term
	needles      []needle // every line that matches holds each of these
}

type term struct {
	field  string
	op     string
	values []string
	nums   []int64
	of     []Filter // of the operator any
}

// ParseError is about one term of a filter.
type ParseError struct {
	Pos  int // in the text, from 0
	Text string
	Try  string // a term that can be written instead, "" if none is known
}

// termError is what is wrong with a term, and one that can be written instead.
type termError struct{ text, try string }

// Error implements error.
func (e *termError) Error() string { return e.text }

// Error implements error.
func (e *ParseError) Error() string { return fmt.Sprintf("filter, column %d: %s", e.Pos+1, e.Text) }

// Parse reads a filter. now is what durations count back from. It reports every
// error at once, each a [*ParseError].
func Parse(text string, now time.Time) (Filter, error) {
	var f Filter
	var errs []error
	timed := 0 // where the last of since and until is
	for pos := 0; pos < len(text); {
		r, n := utf8.DecodeRuneInString(text[pos:])
		if unicode.IsSpace(r) {
			pos += n
			continue
		}
		t, next, err := parseTerm(text, pos)
		if err == nil {
			err = f.add(t, now)
		}
		if t.field == "since" || t.field == "until" {
			timed = pos
		}
		if err != nil {
			bad := &ParseError{Pos: pos, Text: err.Error()}
			if e, ok := errors.AsType[*termError](err); ok {
				bad.Try = e.try
			}
			errs = append(errs, bad)
		}
		pos = next
	}
	if len(errs) == 0 && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		errs = append(errs, &ParseError{Pos: timed, Text: fmt.Sprintf("since %s is not before until %s", f.Since.UTC().Format(time.RFC3339), f.Until.UTC().Format(time.RFC3339))})
	}
	if len(errs) > 0 {
		return Filter{}, errors.Join(errs...)
	}
	return f, nil
}

// Where returns a filter for records whose field is exactly value: for callers
// that have a value and no text to parse. It panics if there is no such field.
func Where(field, value string) Filter {
	var f Filter
	if textFields[field] == nil {
		panic("query: no such field: " + field)
	}
	f.append(term{field: field, op: "=", values: []string{value}})
	return f
}

// AnyOf returns a filter for records that one of several filters wants, whose times do not
// count. It has no spelling in the language of filters.
func AnyOf(of ...Filter) Filter {
	var f Filter
	f.append(term{op: "any", of: of})
	return f
}

// And returns a filter for records that both want. The times are those of f.
func (f Filter) And(other Filter) Filter {
	f.terms, f.needles = slices.Concat(f.terms, other.terms), slices.Concat(f.needles, other.needles)
	return f
}

// append adds a term, and what lines need for it.
func (f *Filter) append(t term) {
	f.terms = append(f.terms, t)
	if n, ok := needleOf(&t); ok {
		f.needles = append(f.needles, n)
	}
}

// Only returns the one value that a field has to have, "" if f leaves more.
func (f Filter) Only(field string) string {
	for _, t := range f.terms {
		if t.field == field && t.op == "=" && (len(t.values) == 1 || len(t.values) == 2 && spellings[field] != nil && spellings[field](t.values[0]) == t.values[1]) {
			return t.values[len(t.values)-1]
		}
	}
	return ""
}

// Term is one of those that must all hold.
type Term struct {
	Field  string // "" for a word, and for any
	Op     string // as it is spelled, or word, or any
	Values []string
	Of     []Filter // of any: one must match
}

// Terms returns the terms of f. Numbers are spelled as [strconv.FormatInt] does.
func (f Filter) Terms() []Term {
	list := make([]Term, len(f.terms))
	for i, t := range f.terms {
		list[i] = Term{t.field, t.op, t.values, t.of}
	}
	return list
}

const opChars = "=!~<>"

// parseTerm cuts a term off text at pos.
func parseTerm(text string, pos int) (t term, next int, err error) {
	i := pos
	for i < len(text) && (text[i] >= 'a' && text[i] <= 'z' || text[i] == '_') {
		i++
	}
	field, opAt := text[pos:i], i
	for i < len(text) && i < opAt+2 && strings.IndexByte(opChars, text[i]) >= 0 {
		i++
	}
	t.op = text[opAt:i]
	if t.op == "" || field == "" {
		t.op, i = "word", pos
	} else {
		t.field = field
	}
	t.values, next, err = parseValues(text, i)
	switch {
	case err != nil:
	case t.op != "word":
		next = t.withTimeOfDay(text, next)
	case len(t.values) == 1 && t.values[0] == "":
		err = errors.New("an empty word")
	default:
		err = checkWord(text[pos:next])
	}
	return t, next, err
}

func isField(s string) bool {
	return textFields[s] != nil || numberFields[s] != nil || s == "since" || s == "until"
}

// withValue is a term with a field.
func withValue(field string) string {
	switch {
	case field == "since" || field == "until":
		return field + "=2h"
	case numberFields[field] != nil:
		return field + ">=400"
	case closed[field] != nil:
		return field + "=" + closed[field][0]
	}
	return field + "~stripe"
}

// likeField is a word that was meant as a field with its operator.
var likeField = regexp.MustCompile(`^([A-Za-z0-9_.-]*)(!=|!~|[<>]=?|[=~!])`)

// checkWord refuses a word that would find nothing because it was meant as more.
func checkWord(word string) error {
	m := likeField.FindStringSubmatch(word)
	switch {
	case isField(word):
		return &termError{fmt.Sprintf("%q is a field: it takes an operator and a value; in double quotes it is a word to look for", word), withValue(word)}
	case m == nil:
		return nil
	case m[1] == "":
		rest := strings.TrimLeft(word, opChars)
		if rest == "" {
			return &termError{fmt.Sprintf("%q stands between a field and a value", word), "host~stripe"}
		}
		return &termError{fmt.Sprintf("no field stands before %q; in double quotes it is a word to look for", word), "host!~" + rest}
	}
	field := strings.ToLower(m[1]) //nolint:forbidigo // no host
	if isField(field) {
		return &termError{fmt.Sprintf("there is no field %q; did you mean %q?", m[1], field), field + word[len(m[1]):]}
	}
	return &termError{fmt.Sprintf("there is no field %q%s; in double quotes it is a word to look for", m[1], meantField(field)), ""}
}

// parseValues reads alternatives up to a space.
func parseValues(text string, pos int) (values []string, next int, err error) {
	var cur strings.Builder
	for pos < len(text) {
		r, n := utf8.DecodeRuneInString(text[pos:])
		switch {
		case unicode.IsSpace(r):
			return append(values, cur.String()), pos, nil
		case r == ',':
			values = append(values, cur.String())
			cur.Reset()
		case r == '"':
			quoted, err := strconv.QuotedPrefix(text[pos:])
			if err != nil {
				return nil, len(text), errors.New("a quotation mark that is not closed")
			}
			part, err := strconv.Unquote(quoted)
			if err != nil {
				return nil, len(text), fmt.Errorf("%s cannot be read", quoted)
			}
			cur.WriteString(part)
			n = len(quoted)
		default:
			cur.WriteString(text[pos : pos+n])
		}
		pos += n
	}
	return append(values, cur.String()), pos, nil
}

func (f *Filter) add(t term, now time.Time) error {
	switch {
	case t.op == "word":
	case t.field == "since" || t.field == "until":
		return f.addTime(t, now)
	case numberFields[t.field] != nil:
		return f.addNumber(t)
	case textFields[t.field] == nil:
		return fmt.Errorf("there is no field %q%s", t.field, meantField(t.field))
	case t.op != "=" && t.op != "!=" && t.op != "~" && t.op != "!~":
		return &termError{fmt.Sprintf("%s is text: it can be asked with = != ~ !~, not %q", t.field, t.op), t.field + "~" + quotedValue(t.values[0])}
	}
	if err := errors.Join(checkClosed(t), t.spelled()); err != nil {
		return err
	}
	f.append(t)
	return nil
}

// otherwise are the fields that hold what people look for under another name.
var otherwise = map[string]string{
	"name": "host", "domain": "host", "sni": "host", "url": "host and path", "uri": "path", "ip": "addr", "address": "addr",
	"source": "client", "src": "client", "dst": "addr", "code": "status", "type": "qtype", "action": "verdict",
	"decision": "verdict", "bytes": "sent and received", "duration": "us", "protocol": "proto", "query": "query_hash",
	"from": "since", "to": "until", "after": "since", "before": "until", "time": "since and until",
}

// unasked are the fields of a record that no filter can ask for.
var unasked = []string{"v", "cut", "data"}

func meantField(field string) string {
	if slices.Contains(unasked, field) {
		return fmt.Sprintf(" that a filter can ask for, but --jq 'select(.%s ...)' and --sql can", field)
	}
	if o := otherwise[field]; o != "" {
		return "; what it would hold is in " + o
	}
	return near.Hint(field, Fields())
}

func (f *Filter) addNumber(t term) error {
	switch t.op {
	case "=", "!=":
	case "<", "<=", ">", ">=":
		if len(t.values) != 1 {
			return &termError{fmt.Sprintf("%s%s takes one number", t.field, t.op), t.field + ">=400"}
		}
	default:
		return &termError{fmt.Sprintf("%s is a number: it can be asked with = != < <= > >=, not %q", t.field, t.op), t.field + ">=400"}
	}
	for i, v := range t.values {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return &termError{fmt.Sprintf("%s is a number, and %q is not", t.field, v), t.field + ">=400"}
		}
		t.nums = append(t.nums, n)
		t.values[i] = strconv.FormatInt(n, 10)
	}
	f.append(t)
	return nil
}

// Match reports whether f wants r.
func (f Filter) Match(r *audit.Record) bool {
	if !f.Since.IsZero() && r.Time.Before(f.Since) || !f.Until.IsZero() && !r.Time.Before(f.Until) {
		return false
	}
	return f.holds(r)
}

// holds reports whether all terms do.
func (f Filter) holds(r *audit.Record) bool {
	for i := range f.terms {
		if !f.terms[i].match(r) {
			return false
		}
	}
	return true
}

func (t *term) match(r *audit.Record) bool {
	if t.op == "any" {
		return slices.ContainsFunc(t.of, func(f Filter) bool { return f.holds(r) })
	}
	if t.op == "word" {
		for _, s := range []string{r.Host, r.Path, r.Rule, r.Reason, r.Error} {
			if t.any(s, containsFold) {
				return true
			}
		}
		return false
	}
	if num := numberFields[t.field]; num != nil {
		return t.matchNumber(num(r))
	}
	got := *textFields[t.field](r)
	switch t.op {
	case "=":
		return t.any(got, equal)
	case "!=":
		return !t.any(got, equal)
	case "~":
		return t.any(got, containsFold)
	default:
		return !t.any(got, containsFold)
	}
}

func (t *term) any(s string, is func(s, want string) bool) bool {
	for _, v := range t.values {
		if is(s, v) {
			return true
		}
	}
	return false
}

func (t *term) matchNumber(n int64) bool {
	switch t.op {
	case "<":
		return n < t.nums[0]
	case "<=":
		return n <= t.nums[0]
	case ">":
		return n > t.nums[0]
	case ">=":
		return n >= t.nums[0]
	}
	return slices.Contains(t.nums, n) == (t.op == "=")
}

func equal(s, want string) bool { return s == want }

// containsFold reports whether want is a part of s, ASCII letters in any case.
func containsFold(s, want string) bool {
	for i := 0; i+len(want) <= len(s); i++ {
		j := 0
		for j < len(want) && lower(s[i+j]) == lower(want[j]) {
			j++
		}
		if j == len(want) {
			return true
		}
	}
	return false
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// String returns f in its own language, with absolute times.
func (f Filter) String() string {
	var b []byte
	for _, t := range f.terms {
		if t.op == "any" {
			continue
		}
		if len(b) > 0 {
			b = append(b, ' ')
		}
		if t.op != "word" {
			b = append(append(b, t.field...), t.op...)
		}
		for i, v := range t.values {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendValue(b, v, t.op == "word", i == 0)
		}
	}
	for _, x := range []struct {
		name string
		at   time.Time
	}{{"since", f.Since}, {"until", f.Until}} {
		if !x.at.IsZero() {
			if len(b) > 0 {
				b = append(b, ' ')
			}
			b = x.at.UTC().AppendFormat(append(b, x.name+"="...), time.RFC3339Nano)
		}
	}
	return string(b)
}

// appendValue quotes what would not be read back as it is: a word must not look
// like a field with its operator, nor a first value like more of one.
func appendValue(b []byte, v string, word, first bool) []byte {
	plain := v != "" && (!word || !strings.ContainsAny(v, opChars) && !isField(v)) && (!first || strings.IndexByte(opChars, v[0]) < 0)
	for _, r := range v {
		if !strconv.IsPrint(r) || unicode.IsSpace(r) || r == ',' || r == '"' || r == '\\' || r == utf8.RuneError {
			plain = false
		}
	}
	if plain {
		return append(b, v...)
	}
	return strconv.AppendQuote(b, v)
}

func quotedValue(v string) string { return string(appendValue(nil, v, false, true)) }
