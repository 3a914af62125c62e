package target

import "strings"

// maxPath bounds a path; longer ones are refused before anything looks at them.
const maxPath = 16 << 10

// Path is the path of a request target (RFC 3986 section 3.3) in canonical
// form: escapes of unreserved characters decoded, hexadecimal in upper case
// (section 6.2.2), and what may not stand in a path escaped. It begins with a
// slash. The zero Path is no path.
//
// A path that servers are known to read in two ways (dot segments, empty
// segments, path parameters after a semicolon, an encoded slash or percent
// sign, a backslash) is kept and marked [Path.Ambiguous]: a rule about paths
// cannot judge it.
type Path struct {
	s         string
	ambiguous bool
}

// ParsePath reads the escaped path of a request target, without its query.
// Control characters, octets outside ASCII and broken escapes are errors.
// Every error is a [*SyntaxError].
func ParsePath(raw string) (Path, error) {
	bad := func(why string) (Path, error) { return Path{}, &SyntaxError{Kind: "path", Input: raw, Why: why} }
	switch {
	case raw == "" || raw[0] != '/':
		return bad("does not begin with a slash")
	case len(raw) > maxPath:
		return bad("longer than 16 KiB")
	}
	if isPlain(raw) {
		return Path{s: raw, ambiguous: hasOddSegment(raw)}, nil
	}
	s, odd, why := canonicalPath(raw)
	switch {
	case why != "":
		return bad(why)
	case len(s) > maxPath:
		return bad("longer than 16 KiB in canonical form")
	}
	return Path{s: s, ambiguous: odd || hasOddSegment(s)}, nil
}

// canonicalPath spells a path in the one way; why, if not empty, says that it
// is none. odd reports a character that servers read in two ways.
func canonicalPath(raw string) (s string, odd bool, why string) {
	var b strings.Builder
	b.Grow(len(raw))
	for i := 0; i < len(raw); i++ {
		c, escaped := raw[i], raw[i] == '%'
		if escaped {
			if i+2 >= len(raw) || !isHex(raw[i+1]) || !isHex(raw[i+2]) {
				return "", false, "a percent sign without two hexadecimal digits"
			}
			c = unhex(raw[i+1])<<4 | unhex(raw[i+2])
			i += 2
		}
		if why := pathFault(c, escaped); why != "" {
			return "", false, why
		}
		odd = odd || isOdd(c, escaped)
		if isUnreserved(c) || !escaped && (c == '/' || isPathChar(c)) {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(upperHex[c>>4])
		b.WriteByte(upperHex[c&15])
	}
	return b.String(), odd, ""
}

// pathFault says why an octet cannot stand in a path, "" if it can.
func pathFault(c byte, escaped bool) string {
	switch {
	case escaped && (c < 0x20 || c == 0x7f):
		return "an encoded control character"
	case escaped:
		return ""
	case c <= ' ' || c >= 0x7f:
		return "a control character, a space or an octet outside ASCII"
	case c == '?' || c == '#':
		return "a query or fragment"
	default:
		return ""
	}
}

// isOdd reports characters that one server takes for themselves and another
// for structure.
func isOdd(c byte, escaped bool) bool {
	switch c {
	case '/', '%': // an escape may be decoded once more further on
		return escaped
	case '\\', ';':
		return true
	case 0xC0, 0xC1: // begin nothing in UTF-8 but an overlong dot or slash (RFC 3629 section 3)
		return true
	default:
		return false
	}
}

// String returns the canonical path, "" for the zero Path.
func (p Path) String() string { return p.s }

// IsZero reports whether p is no path.
func (p Path) IsZero() bool { return p.s == "" }

// Ambiguous reports whether servers may read the path in two ways.
func (p Path) Ambiguous() bool { return p.ambiguous }

// isPlain reports whether s holds only characters that need no rewriting and
// no second look.
func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isUnreserved(c) && c != '/' && (c == ';' || !isPathChar(c)) {
			return false
		}
	}
	return true
}

// isPathChar reports the characters besides the unreserved ones that stand in
// a path as they are (RFC 3986 section 3.3).
func isPathChar(c byte) bool { return strings.IndexByte("!$&'()*+,;=:@", c) >= 0 }

// hasOddSegment reports a dot segment or an empty segment other than the last.
func hasOddSegment(s string) bool {
	rest := s[1:]
	for {
		seg, tail, more := strings.Cut(rest, "/")
		if seg == "." || seg == ".." || seg == "" && more {
			return true
		}
		if !more {
			return false
		}
		rest = tail
	}
}

const upperHex = "0123456789ABCDEF"

func isUnreserved(c byte) bool { // RFC 3986 section 2.3
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '-' || c == '.' || c == '_' || c == '~'
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func unhex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c <= 'F':
		return c - 'A' + 10
	default:
		return c - 'a' + 10
	}
}
