package rules

import (
	"slices"
	"strings"
)

const maxMethod = 32

// IsMethod reports whether s is a method as a request may have it: a token of at
// most 32 octets without a lower-case letter. "delete" is not DELETE (RFC 9110
// section 9.1), and many servers take it for that: it has two readings, so it has
// none (ADR-0037).
func IsMethod(s string) bool { return MethodFault(s) == "" }

// MethodFault says why no request may have s as its method, "" if one may.
func MethodFault(s string) string {
	switch {
	case !IsToken(s):
		return "it is no method"
	case strings.ContainsFunc(s, func(x rune) bool { return 'a' <= x && x <= 'z' }):
		return "methods are case-sensitive, and servers do not agree on that: write it in upper case"
	default:
		return ""
	}
}

// IsToken reports whether s is a token (RFC 9110 section 5.6.2), as methods and
// names of headers are, of at most 32 octets.
func IsToken(s string) bool {
	if s == "" || len(s) > maxMethod {
		return false
	}
	for i := range len(s) {
		if !isTokenChar(s[i]) {
			return false
		}
	}
	return true
}

func isTokenChar(c byte) bool { // RFC 9110 section 5.6.2
	switch {
	case '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		return true
	}
	switch c {
	case '!', '#', '$', '%', '&', '\'', '*', '+', '-', '.', '^', '_', '`', '|', '~':
		return true
	}
	return false
}

// neverMethod reports the methods that no rule allows, not even one about any
// method: TRACE and TRACK send the request, and what was injected into it,
// back (HT-16, CR-08); CONNECT inside a request would open a second tunnel.
func neverMethod(m string) bool { return m == "TRACE" || m == "TRACK" || m == "CONNECT" }

func allowsMethod(r *Rule, m string) bool {
	return (len(r.Methods) == 0 || slices.Contains(r.Methods, m)) && !neverMethod(m)
}
