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
