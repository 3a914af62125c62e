package gate

import (
	"net/url"
	"strings"
)

// maxValues is how many values of a query get a hash of their own.
const maxValues = 32

// HashValues returns the keyed hashes of what the parameters of a raw query hold, in
// their order and with a blank between them, so that whoever knows one of them can
// find it. A value is hashed as it reads when it is decoded, or as it stands where
// that cannot be done; a parameter that is only a name counts as one. more says that
// there are values beyond the last that got one.
func HashValues(query string, hash func(string) string) (hashes string, more bool) {
	var b strings.Builder
	n := 0
	for piece := range strings.SplitSeq(query, "&") {
		value := valueOf(piece)
		switch {
		case value == "" || value == query: // which has its hash as a whole
			continue
		case n == maxValues:
			return b.String(), true
		case n > 0:
			b.WriteByte(' ')
		}
		b.WriteString(hash(value))
		n++
	}
	return b.String(), false
}

func valueOf(piece string) string {
	name, value, ok := strings.Cut(piece, "=")
	if !ok {
		value = name
	}
	if read, err := url.QueryUnescape(value); err == nil {
		return read
	}
	return value
}
