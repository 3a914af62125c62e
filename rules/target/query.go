package target

import (
	"net/url"
	"slices"
	"strings"
)

// ParamNamed reports whether a server may take part of a raw query, which stands
// between two ampersands, for the parameter of a name: decoded, in any case, and
// also behind a semicolon, which some read as a separator.
func ParamNamed(part, name string) bool {
	for more := true; more; {
		var piece string
		piece, part, more = strings.Cut(part, ";")
		key, _, _ := strings.Cut(piece, "=")
		if len(key) == len(name) && strings.EqualFold(key, name) {
			return true
		}
		if len(key) > len(name) && strings.ContainsAny(key, "%+") {
			if k, err := url.QueryUnescape(key); err == nil && strings.EqualFold(strings.TrimSpace(k), name) {
				return true
			}
		}
	}
	return false
}

// WithoutParams returns a raw query without the parts that a server may take for
// a parameter of one of the names. The others stay as they are, octet for octet.
func WithoutParams(raw string, names []string) string {
	parts := strings.Split(raw, "&")
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return ParamNamed(part, name) })
	}), "&")
}

// AmbiguousQuery reports a raw query that servers take apart in more than one
// way: one with a semicolon, which some read as a separator, a percent sign
// that begins no escape, or an escaped control character.
func AmbiguousQuery(raw string) bool {
	for i := range len(raw) {
		switch {
		case raw[i] == ';':
			return true
		case raw[i] != '%':
		case i+2 >= len(raw) || !isHex(raw[i+1]) || !isHex(raw[i+2]):
			return true
		case unhex(raw[i+1])<<4|unhex(raw[i+2]) < ' ':
			return true
		}
	}
	return false
}

// ParamLike reports whether a server may take a part of a raw query, which
// stands between two ampersands, for the parameter of a name, as [ParamNamed]
// does, or for an item of a list of that name ("name[]", "name[0]").
func ParamLike(part, name string) bool {
	if ParamNamed(part, name) {
		return true
	}
	for more := true; more; {
		var piece string
		piece, part, more = strings.Cut(part, ";")
		key, _, _ := strings.Cut(piece, "=")
		if i := strings.IndexByte(key, '['); i >= 0 && ParamNamed(key[:i], name) {
			return true
		}
		if i := strings.Index(key, "%5"); i >= 0 && i+2 < len(key) && key[i+2]|0x20 == 'b' && ParamNamed(key[:i], name) {
			return true
		}
	}
	return false
}

// ParamExact returns the raw value of a part of a query if every server takes it
// for the parameter of a name.
func ParamExact(part, name string) (value string, ok bool) {
	key, value, _ := strings.Cut(part, "=")
	return value, DecodesTo(key, name)
}

// DecodesTo reports whether every server reads a piece of a raw query as plain:
// there is no plus sign in it, which is a blank to some and a plus to others.
func DecodesTo(raw, plain string) bool {
	return !strings.Contains(raw, "+") && decodes(raw, plain, false, false)
}

// ParamMay reports whether a server may read the value of a part of a query, or
// of a piece of it behind a semicolon, as plain: in any case, with a plus sign
// for a blank or for itself.
func ParamMay(part, plain string) bool {
	for more := true; more; {
		var piece string
		piece, part, more = strings.Cut(part, ";")
		_, value, _ := strings.Cut(piece, "=")
		if decodes(value, plain, true, false) || decodes(value, plain, true, true) {
			return true
		}
	}
	return false
}

// decodes compares without making a copy. A broken escape stands for itself.
func decodes(raw, plain string, fold, plus bool) bool {
	n := 0
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch {
		case c == '+' && plus:
			c = ' '
		case c == '%' && i+2 < len(raw) && isHex(raw[i+1]) && isHex(raw[i+2]):
			c = unhex(raw[i+1])<<4 | unhex(raw[i+2])
			i += 2
		}
		if n == len(plain) || c != plain[n] && !(fold && sameLetter(c, plain[n])) {
			return false
		}
		n++
	}
	return n == len(plain)
}

func sameLetter(a, b byte) bool {
	return a|0x20 == b|0x20 && 'a' <= a|0x20 && a|0x20 <= 'z'
}
