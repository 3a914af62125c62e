package needle

import (
	"encoding/base32"
	"encoding/base64"
)

// Names returns the spellings of a value that the name of a host can hold, wherever in a
// longer text: plain, and in the encodings that keep to the characters of names. A name
// has no case and is cut into labels: the spellings are of lower case and without dots,
// as [AppendName] makes of a name before it is searched.
func Names(value []byte, id int) []Needle {
	sp := speller{id: id}
	add := func(text []byte) {
		text = AppendName(nil, text)
		sp.add(text, text, false)
	}
	add(value)
	if len(value) < MinLen {
		return sp.out
	}
	add(digits(lowerDigits)(nil, value))
	for align := range 3 {
		add(base64Core(base64.RawURLEncoding, align)(nil, value))
	}
	for align := range 5 {
		for _, enc := range []*base32.Encoding{base32.StdEncoding, base32.HexEncoding} {
			add(base32Core(enc.WithPadding(base32.NoPadding), align, value))
		}
	}
	return sp.out
}

// base32Core returns the characters of an encoding (RFC 4648 section 6) that a text alone
// decides when align octets stand before it (modulo five).
func base32Core(enc *base32.Encoding, align int, text []byte) []byte {
	all := append(make([]byte, align, align+len(text)), text...)
	return enc.AppendEncode(nil, all)[(8*align+4)/5 : 8*len(all)/5]
}

// AppendName appends the name of a host to dst as a [Set] of [Names] is asked for it.
func AppendName[T Text](dst []byte, name T) []byte {
	for i := range len(name) {
		switch c := name[i]; {
		case c == '.':
		case 'A' <= c && c <= 'Z':
			dst = append(dst, c+'a'-'A')
		default:
			dst = append(dst, c)
		}
	}
	return dst
}
