package h1

import (
	"errors"
	"net/http"
	"net/textproto"
	"strings"
)

// ErrTooLarge says that a head is longer than was allowed.
var ErrTooLarge = errors.New("the head is too large")

var errLine = errors.New("malformed line of a chunked body")

// Error says why a message is refused. Status is what a server answers with.
type Error struct {
	Status int
	Text   string
}

// Error implements error.
func (e *Error) Error() string { return e.Text }

func bad(text string) error { return &Error{http.StatusBadRequest, text} }

// isToken tells the characters of RFC 9110 section 5.6.2.
var isToken = func() (t [256]bool) {
	for c := range 256 {
		t[c] = 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
			strings.IndexByte("!#$%&'*+-.^_`|~", byte(c)) >= 0
	}
	t[0] = false
	return t
}()

func token(s string) bool {
	for i := range len(s) {
		if !isToken[s[i]] {
			return false
		}
	}
	return s != ""
}

// trimBlanks is strings.Trim for blanks and tabs, without making a set of them.
func trimBlanks(s string) string {
	for s != "" && (s[0] == ' ' || s[0] == '\t') {
		s = s[1:]
	}
	for s != "" && (s[len(s)-1] == ' ' || s[len(s)-1] == '\t') {
		s = s[:len(s)-1]
	}
	return s
}

// fieldText reports whether s can stand in a field's value (RFC 9110 section
// 5.5): no control character but the tab.
func fieldText(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// cutLine takes the first line of a block, which ends in LF or CRLF.
func cutLine(block string) (line, rest string) {
	i := strings.IndexByte(block, '\n')
	if i < 0 {
		return block, ""
	}
	line, rest = block[:i], block[i+1:]
	if i > 0 && line[i-1] == '\r' {
		line = line[:i-1]
	}
	return line, rest
}

// fields reads the lines of a head, up to the empty one that ends it. Folded
// lines are refused (RFC 9112 section 5.2), and so is what could be taken for
// an end of line.
func fields(block string) (http.Header, error) {
	n := strings.Count(block, "\n")
	h := make(http.Header, min(n, 64))
	values := make([]string, n)
	for {
		var line string
		if line, block = cutLine(block); line == "" {
			return h, nil
		}
		colon := strings.IndexByte(line, ':')
		if colon <= 0 || !token(line[:colon]) {
			return nil, bad("malformed header line")
		}
		value := trimBlanks(line[colon+1:])
		if !fieldText(value) {
			return nil, bad("invalid header value")
		}
		key := canonical(line[:colon])
		if old, ok := h[key]; ok {
			h[key] = append(old, value)
			continue
		}
		values[0] = value
		h[key], values = values[:1:1], values[1:]
	}
}

// canonical is textproto's spelling of a name, which is a token.
func canonical(name string) string { return textproto.CanonicalMIMEHeaderKey(name) }

// version reads HTTP/1.0 and HTTP/1.1.
func version(s string) (minor int, ok bool) {
	switch s {
	case "HTTP/1.1":
		return 1, true
	case "HTTP/1.0":
		return 0, true
	default:
		return 0, false
	}
}

// otherVersion recognises a version that is not spoken here.
func otherVersion(s string) bool {
	digit := func(c byte) bool { return '0' <= c && c <= '9' }
	return len(s) == len("HTTP/9.9") && s[:5] == "HTTP/" && digit(s[5]) && s[6] == '.' && digit(s[7])
}

// listed reports whether a field's values hold a token in their lists.
func listed(values []string, want string) bool {
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(trimBlanks(part), want) {
				return true
			}
		}
	}
	return false
}

// closes reports whether the connection ends after a message (RFC 9112
// section 9.3).
func closes(minor int, h http.Header) bool {
	c := h["Connection"]
	if len(c) == 0 {
		return minor == 0
	}
	return listed(c, "close") || minor == 0 && !listed(c, "keep-alive")
}

// chunked reports whether a message is framed in chunks. Any other coding,
// and one in HTTP/1.0, is refused (RFC 9112 section 6.1).
func chunked(minor int, h http.Header) (bool, error) {
	te, ok := h["Transfer-Encoding"]
	if !ok {
		return false, nil
	}
	if len(te) != 1 || !strings.EqualFold(te[0], "chunked") {
		return false, &Error{http.StatusNotImplemented, "unsupported transfer coding"}
	}
	if minor == 0 {
		return false, bad("a transfer coding in HTTP/1.0")
	}
	delete(h, "Transfer-Encoding")
	return true, nil
}

// Length reads Content-Length: -1 for none. Where it stands several times it
// must say the same (RFC 9112 section 6.3), and is left once. What cannot be read
// is an [*Error].
func Length(h http.Header) (int64, error) {
	v, ok := h["Content-Length"]
	if !ok {
		return -1, nil
	}
	for _, other := range v[1:] {
		if other != v[0] {
			return 0, bad("several Content-Length")
		}
	}
	h["Content-Length"] = v[:1]
	const digits = 18 // fewer than the largest int64 has
	s := v[0]
	if s == "" || len(s) > digits {
		return 0, bad("malformed Content-Length")
	}
	var n int64
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, bad("malformed Content-Length")
		}
		n = n*10 + int64(s[i]-'0')
	}
	return n, nil
}

// announced reads the Trailer field of a message in chunks.
func announced(h http.Header) (http.Header, error) {
	v, ok := h["Trailer"]
	if !ok {
		return nil, nil
	}
	delete(h, "Trailer")
	var t http.Header
	for _, line := range v {
		for name := range strings.SplitSeq(line, ",") {
			if name = trimBlanks(name); name == "" {
				continue
			}
			if name = canonical(name); !token(name) || isFraming(name) {
				return nil, bad("bad trailer name")
			}
			if t == nil {
				t = http.Header{}
			}
			t[name] = nil
		}
	}
	return t, nil
}

// isFraming tells the fields that say where a message ends.
func isFraming(name string) bool {
	return name == "Transfer-Encoding" || name == "Trailer" || name == "Content-Length"
}
