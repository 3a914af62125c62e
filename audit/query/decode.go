package query

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"sallyport/audit"
)

// Decode reads one line of a log, without its newline, as encoding/json does:
// fields that it does not know are passed over. A line in the form in which
// [audit.Log] writes it takes a fraction of the time.
func Decode(line []byte, r *audit.Record) error {
	*r = audit.Record{}
	if decodeWritten(line, r) {
		return nil
	}
	*r = audit.Record{}
	return json.Unmarshal(line, r)
}

// decodeWritten reads a line in the writer's own form: no blanks, no escapes, no
// unknown field, data last. It gives up on anything else, with r half filled.
func decodeWritten(line []byte, r *audit.Record) bool {
	d := decoder{line: line, s: string(line), r: r}
	if !strings.HasPrefix(d.s, "{") || !utf8.ValidString(d.s) {
		return false
	}
	for d.at = 1; ; d.at++ {
		key, ok := d.text()
		if !ok || !d.next(':') || !d.value(key) || d.at >= len(d.s) {
			return false
		}
		switch d.s[d.at] {
		case ',':
		case '}':
			return d.at == len(d.s)-1
		default:
			return false
		}
	}
}

// decoder stands at a place in a line. Texts that it returns are parts of s.
type decoder struct {
	line []byte
	s    string
	at   int
	r    *audit.Record
	// field is the first of texts that was not passed yet.
	field int
}

// next passes over one character.
func (d *decoder) next(c byte) bool {
	if d.at >= len(d.s) || d.s[d.at] != c {
		return false
	}
	d.at++
	return true
}

// text reads a string in which nothing is escaped.
func (d *decoder) text() (string, bool) {
	if !d.next('"') {
		return "", false
	}
	rest := d.s[d.at:]
	for i := range len(rest) {
		switch c := rest[i]; {
		case c == '"':
			d.at += i + 1
			return rest[:i], true
		case c == '\\' || c < ' ':
			return "", false
		}
	}
	return "", false
}

// number reads a whole number that is not negative and fits an int64.
func (d *decoder) number() (int64, bool) {
	start, n := d.at, int64(0)
	for d.at < len(d.s) && d.s[d.at] >= '0' && d.s[d.at] <= '9' {
		n = n*10 + int64(d.s[d.at]-'0')
		d.at++
	}
	digits := d.at - start
	// More digits might not fit; JSON knows no leading zeros.
	return n, digits > 0 && digits <= 18 && (digits == 1 || d.s[start] != '0')
}

// value reads what a field holds into it.
func (d *decoder) value(key string) bool {
	switch key {
	case "time":
		start := d.at + 1
		s, ok := d.text()
		return ok && d.r.Time.UnmarshalText(d.line[start:start+len(s)]) == nil
	case "cut":
		return d.list(&d.r.Cut)
	case "data":
		return d.data()
	case "v", "seq", "port", "status", "sent", "received", "us":
		n, ok := d.number()
		return ok && setNumber(d.r, key, n)
	}
	of := d.textField(key)
	if of == nil {
		return false
	}
	s, ok := d.text()
	*of(d.r) = s
	return ok
}

// textField returns where a field of text is kept. They come in their order: it is the
// next one, or one soon after.
func (d *decoder) textField(key string) func(*audit.Record) *string {
	for i := d.field; i < len(texts); i++ {
		if texts[i].name == key {
			d.field = i + 1
			return texts[i].of
		}
	}
	return textFields[key]
}

// setNumber reports whether there is such a field and n fits it.
func setNumber(r *audit.Record, key string, n int64) bool {
	switch key {
	case "v":
		r.Schema = int(n)
	case "seq":
		r.Seq = uint64(n)
	case "port":
		r.Port = uint16(n)
		return int64(r.Port) == n
	case "status":
		r.Status = int(n)
	case "sent":
		r.Sent = n
	case "received":
		r.Received = n
	case "us":
		r.Micros = n
	default:
		return false
	}
	return true
}

// list reads one text or more.
func (d *decoder) list(to *[]string) bool {
	*to = nil
	if !d.next('[') {
		return false
	}
	for {
		s, ok := d.text()
		if !ok {
			return false
		}
		*to = append(*to, s)
		if d.next(']') {
			return true
		}
		if !d.next(',') {
			return false
		}
	}
}

// data reads all that is left but the closing brace.
func (d *decoder) data() bool {
	end := len(d.line) - 1
	if end <= d.at {
		return false
	}
	raw := d.line[d.at:end]
	if first, last := raw[0], raw[len(raw)-1]; first <= ' ' || last <= ' ' || !json.Valid(raw) {
		return false
	}
	d.r.Data = append(json.RawMessage(nil), raw...)
	d.at = end
	return true
}
