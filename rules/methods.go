package rules

import "slices"

const maxMethod = 32

// IsMethod reports whether s is a method token (RFC 9110 section 9.1) of at
// most 32 octets. Methods are case-sensitive: "get" is not GET.
func IsMethod(s string) bool {
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
