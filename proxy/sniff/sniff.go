// Package sniff tells what a client speaks from its first bytes.
//
// It is pure: bytes in, an answer out, no I/O. The bytes are a sandbox's, so it
// trusts nothing in them: what is not wholly understood is [Opaque], which only
// a rule that carries any bytes lets through. It never guesses a name: the one
// that it returns is the one that crypto/tls reads from the same bytes.
package sniff

import "bytes"

// Kind is what was recognised. The zero Kind is no answer yet.
type Kind uint8

// The kinds.
const (
	Undecided Kind = iota // more bytes are needed
	Opaque                // none of the others, for good
	TLS                   // a whole ClientHello
	HTTP1                 // the start of an HTTP/1 request line
	HTTP2                 // the connection preface of HTTP/2 in the clear (RFC 9113 section 3.4)
)

// String returns a word for logs.
func (k Kind) String() string {
	switch k {
	case Opaque:
		return "opaque"
	case TLS:
		return "tls"
	case HTTP1:
		return "http1"
	case HTTP2:
		return "http2"
	default:
		return "undecided"
	}
}

// Max is how many octets Bytes looks at. A ClientHello that needs more, with
// its record headers, is Opaque. Real ones, post-quantum key shares included,
// stay below 4 KiB.
const Max = 20 << 10

// Result is an answer. The fields after Kind are set for TLS only, and are
// sandbox-controlled.
type Result struct {
	Kind       Kind
	ServerName string   // as sent (RFC 6066 section 3); "" if none
	ALPN       []string // as sent (RFC 7301)
}

// Bytes tells what b begins. It is called again with a longer b for as long as
// the answer is Undecided, which it never is for Max octets or more.
func Bytes(b []byte) Result {
	if len(b) == 0 {
		return Result{}
	}
	r := Result{Kind: Opaque}
	switch {
	case b[0] == recordHandshake:
		r = clientHello(b)
	case isLetter(b[0]):
		r.Kind = text(b)
	}
	if r.Kind == Undecided && len(b) >= Max {
		r.Kind = Opaque
	}
	return r
}

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// text tells HTTP/1 by the method and the first octet of the request target: a
// slash, an asterisk, or the scheme of an absolute URI. An SSH or SMTP
// greeting also begins with a word, but not one followed by that.
func text(b []byte) Kind {
	if n := min(len(b), len(preface)); string(b[:n]) == preface[:n] {
		switch {
		case n == len(preface):
			return HTTP2
		case n >= len("PRI "): // no method of HTTP/1 (RFC 9113 section 11.1)
			return Undecided
		}
	}
	const longest = 32
	i := 0
	for i < len(b) && i <= longest && isToken(b[i]) {
		i++
	}
	switch {
	case i > longest:
		return Opaque
	case i == len(b):
		return Undecided
	case b[i] != ' ':
		return Opaque
	}
	target := b[i+1:]
	if len(target) == 0 {
		return Undecided
	}
	if target[0] == '/' || target[0] == '*' {
		return HTTP1
	}
	return scheme(target)
}

// scheme recognises the beginning of an absolute URI of http or https.
func scheme(b []byte) Kind {
	const want = "http"
	for i := range min(len(b), len(want)) {
		if b[i]|0x20 != want[i] {
			return Opaque
		}
	}
	if len(b) < len(want) {
		return Undecided
	}
	return HTTP1
}

// IsTLS reports whether b begins as a handshake of TLS does.
func IsTLS(b []byte) bool { return len(b) > 0 && b[0] == recordHandshake }

// IsText reports whether b begins with a line of text, as far as it came.
func IsText(b []byte) bool {
	line, _, _ := bytes.Cut(bytes.TrimLeft(b, "\r\n"), []byte("\n"))
	return !bytes.ContainsFunc(line, func(c rune) bool { return c < ' ' && c != '\t' && c != '\r' || c >= 0x7f })
}

// longestLine is how many octets of a first line Attempt looks at.
const longestLine = 8 << 10

// Attempt tells whether octets that are [Opaque] mean to be a request of HTTP/1:
// the first line, after any empty ones, is text and names HTTP. It is Undecided
// while more of the line is needed, and else HTTP1 or Opaque. Whoever reads such a
// request will find out what is wrong with it, and can say so.
func Attempt(b []byte) Kind {
	line, _, whole := bytes.Cut(bytes.TrimLeft(b, "\r\n"), []byte("\n"))
	switch {
	case !IsText(b):
		return Opaque
	case bytes.Contains(line, []byte("HTTP/")):
		return HTTP1
	case whole, len(b) >= longestLine:
		return Opaque
	default:
		return Undecided
	}
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

// isToken reports the characters of methods in use (RFC 9110 section 5.6.2 has more).
func isToken(c byte) bool {
	return isLetter(c) || '0' <= c && c <= '9' || c == '-' || c == '_'
}
