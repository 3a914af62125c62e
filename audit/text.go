package audit

import (
	"unicode/utf8"

	"sallyport/rules/visible"
)

// safe tells which bytes stand for themselves in a JSON string of the log.
// HTML's three are escaped as encoding/json does, so that a line is just what
// json.Marshal makes of its record.
var safe = func() (t [256]bool) {
	for c := ' '; c < utf8.RuneSelf-1; c++ {
		t[c] = c != '"' && c != '\\' && c != '<' && c != '>' && c != '&'
	}
	return t
}()

// plain reports whether s stands for itself in a line. It looks at eight octets at a
// time, the last eight once more where fewer are left: a record is mostly such text.
func plain(s string) bool {
	if len(s) < 8 {
		for i := range len(s) {
			if !safe[s[i]] {
				return false
			}
		}
		return true
	}
	var odd uint64
	i := 0
	for ; i+8 <= len(s); i += 8 {
		odd |= oddIn(s[i : i+8])
	}
	return (odd|oddIn(s[len(s)-8:]))&(0x80*ones) == 0
}

const ones = 0x0101010101010101

// oddIn has the high bit of an octet set where one of eight octets does not stand for
// itself: below a blank, and, as what is looked for becomes 0, a backslash, DEL, < or >,
// " or &. A borrow may set one too many beyond one that is rightly set, never one too few.
func oddIn(s string) uint64 {
	_ = s[7]
	x := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
	return x | (x - ' '*ones) | ((x ^ '\\'*ones) - ones) | ((x ^ 0x7f*ones) - ones) |
		(((x | 2*ones) ^ '>'*ones) - ones) | (((x | 4*ones) ^ '&'*ones) - ones)
}

const hexDigits = "0123456789abcdef"

// appendText appends the inside of a JSON string whose value is s made
// printable and no longer than limit bytes. What a terminal, a spreadsheet or a
// reader could take for something else (control and format characters,
// bidirectional marks, odd spaces, what does not show, bytes that are no UTF-8) becomes a visible
// \x1b, \u202e; a backslash becomes two, so that the escapes cannot be forged.
// It returns how many bytes of s are in it.
func appendText(dst []byte, s string, limit int) (_ []byte, used int) {
	if len(s) <= limit && plain(s) {
		return append(dst, s...), len(s)
	}
	start, i, room := 0, 0, limit
	for i < len(s) && room > 0 {
		if safe[s[i]] {
			i++
			room--
			continue
		}
		dst = append(dst, s[start:i]...)
		var size, cost int
		dst, size, cost = appendUnsafe(dst, s[i:], room)
		if size == 0 {
			return dst, i
		}
		i, room = i+size, room-cost
		start = i
	}
	return append(dst, s[start:i]...), i
}

// appendUnsafe appends the first rune of s in its JSON spelling. cost is the
// length of the value that it stands for; size is 0 if that is more than room.
func appendUnsafe(dst []byte, s string, room int) (_ []byte, size, cost int) {
	var buf [12]byte
	c := s[0]
	switch c {
	case '<', '>', '&':
		return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15]), 1, 1
	case '"':
		return append(dst, '\\', '"'), 1, 1
	}
	r, n := utf8.DecodeRuneInString(s)
	value := buf[:0]
	switch {
	case c == '\\':
		value = append(value, '\\')
	case r == utf8.RuneError && n == 1, r < utf8.RuneSelf:
		value = append(value, 'x', hexDigits[c>>4], hexDigits[c&15])
	case visible.Rune(r):
		if n > room {
			return dst, 0, 0
		}
		return append(dst, s[:n]...), n, n
	case r <= 0xffff:
		value = appendHex(append(value, 'u'), r, 4)
	default:
		value = appendHex(append(value, 'U'), r, 8)
	}
	if cost = 1 + len(value); cost > room {
		return dst, 0, 0
	}
	dst = append(dst, '\\', '\\')
	if c == '\\' {
		return append(dst, '\\', '\\'), 1, cost
	}
	return append(dst, value...), n, cost
}

func appendHex(dst []byte, r rune, digits int) []byte {
	for d := digits - 1; d >= 0; d-- {
		dst = append(dst, hexDigits[r>>(4*d)&15])
	}
	return dst
}
