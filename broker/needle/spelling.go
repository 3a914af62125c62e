// Package needle finds a few known values in much text, in the spellings that
// programs give them: plain, UTF-16, base64 and hexadecimal, also one of them over
// another; percent-encoded, and escaped as in JSON, JavaScript, C, a shell, HTML or
// quoted-printable, in whole or in part, up to two such escapes over one another and
// over base64 and hexadecimal; and with lines broken inside of them.
//
// It trusts its caller for the values, which are few and at least [MinLen]
// octets long, and nothing about the text, which it never copies. What is escaped
// in part and then written in base64 or hexadecimal is not found.
package needle

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"html"
	"net/url"
	"slices"
	"strconv"
	"strings"
	unicode16 "unicode/utf16"
)

// MinLen is the length below which a value is not worth finding: it would be
// found everywhere.
const MinLen = 8

// Needle is one spelling of a value, and what is written in its stead, which is
// just as long.
type Needle struct {
	Text    []byte
	Instead []byte
	// Value tells the caller which value this is a spelling of.
	Value int
	// Escapable needles are found where any of their octets are escaped, and
	// where lines are broken inside of them.
	Escapable bool
}

// Spellings returns the spellings of value. Each is replaced by the same
// spelling of instead, cut or filled to the same number of octets, so that no
// length, offset or frame around it changes. A value shorter than [MinLen] has none.
func Spellings(value, instead []byte, id int) []Needle {
	if len(value) < MinLen {
		return nil
	}
	instead = fit(instead, len(value))
	sp := speller{id: id, out: make([]Needle, 0, usualSpellings)}
	twice := len(value) <= maxTwice
	sp.add(value, instead, true)
	// What is written in another alphabet, and again in another.
	sp.opaque(value, instead, true)
	for _, once := range sp.out[1:] {
		if twice {
			sp.opaque(once.Text, once.Instead, false)
		}
	}
	known := [][]byte{value}
	for _, f := range escapesOf(value) {
		text := f(string(value))
		if slices.ContainsFunc(known, func(k []byte) bool { return bytes.Equal(k, text) }) {
			continue
		}
		known = append(known, text)
		by := fit(f(string(instead)), len(text))
		sp.add(text, by, false)
		if twice {
			sp.opaque(text, by, false)
		}
	}
	return sp.out
}

// maxTwice is the length of a value above which what is written anew twice is not
// looked for: the spellings would be too many octets, and tokens that are made for
// each request are long.
const maxTwice = 128

// usualSpellings is how many spellings a value of up to maxTwice octets has, as a rule.
const usualSpellings = 256

// speller collects spellings. A token that is made for each request has them made for
// each request: their texts share a few pieces of memory.
type speller struct {
	out  []Needle
	id   int
	room []byte
}

func (sp *speller) add(text, by []byte, escapable bool) {
	if len(text) >= MinLen {
		sp.out = append(sp.out, Needle{text, by, sp.id, escapable})
	}
}

// opaque adds the spellings of text of which no octet is one of text. Two of a pair
// are the same where text has nothing that they write differently.
func (sp *speller) opaque(text, by []byte, escapable bool) {
	if len(text) < MinLen {
		return
	}
	for _, pair := range opaque {
		var last []byte
		for _, f := range pair {
			once := sp.spell(f, text)
			if bytes.Equal(once, last) || bytes.Equal(once, text) {
				continue
			}
			last = once
			instead := sp.spell(f, by)
			if len(instead) != len(once) {
				instead = fit(instead, len(once))
			}
			sp.add(once, instead, escapable)
		}
	}
}

// spell returns text in a spelling.
func (sp *speller) spell(f func(dst, text []byte) []byte, text []byte) []byte {
	const piece = 16 << 10
	if most := 2*len(text) + 8; cap(sp.room)-len(sp.room) < most {
		sp.room = make([]byte, 0, max(most, piece))
	}
	from := len(sp.room)
	sp.room = f(sp.room, text)
	return sp.room[from:len(sp.room):len(sp.room)]
}

// opaque are the spellings of which no octet is one of the text, in pairs; none is more
// than twice as long.
var opaque = [][2]func(dst, text []byte) []byte{
	{base64Core(base64.RawStdEncoding, 0), base64Core(base64.RawURLEncoding, 0)},
	{base64Core(base64.RawStdEncoding, 1), base64Core(base64.RawURLEncoding, 1)},
	{base64Core(base64.RawStdEncoding, 2), base64Core(base64.RawURLEncoding, 2)},
	{digits(lowerDigits), digits(upperDigits)},
	{utf16(0), utf16(1)},
}

const (
	lowerDigits = "0123456789abcdef"
	upperDigits = "0123456789ABCDEF"
)

// escapesOf returns the spellings that keep the order of the octets of value, and
// change some.
func escapesOf(value []byte) []func(string) []byte {
	if slices.ContainsFunc(value, func(c byte) bool { return !isAlnum(c) && c != '-' && c != '_' && c != '.' && c != '~' }) {
		return append(slices.Clone(needful), entire...)
	}
	return entire
}

// needful are the spellings that escape what needs to be.
var needful = []func(string) []byte{
	texts(url.QueryEscape),
	texts(url.PathEscape),
	texts(func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }),
	texts(func(s string) string { return lowerEscapes(url.QueryEscape(s)) }),
	texts(func(s string) string { return lowerEscapes(url.PathEscape(s)) }),
	texts(func(s string) string { return jsonEscape(s, true) }),
	texts(func(s string) string { return jsonEscape(s, false) }),
	texts(func(s string) string { return strings.ReplaceAll(jsonEscape(s, false), "/", `\/`) }),
	texts(html.EscapeString),
	texts(quoted("&quot;", "&#39;")),
	texts(quoted("&quot;", "&#x27;")),
	texts(quoted("&quot;", "&apos;")),
}

// entire are the spellings that escape all of a text, also what has no need of it:
// each octet, each unit of UTF-16, each character.
var entire = []func(string) []byte{
	octets("%", upperDigits),
	octets("%", lowerDigits),
	octets(`\x`, upperDigits),
	octets(`\x`, lowerDigits),
	units(upperDigits),
	units(lowerDigits),
	runes("&#", 10, lowerDigits),
	runes("&#x", 16, upperDigits),
	runes("&#x", 16, lowerDigits),
	runes("&#X", 16, upperDigits),
}

func texts(f func(string) string) func(string) []byte {
	return func(s string) []byte { return []byte(f(s)) }
}

// quoted escapes as HTML, with other spellings of the two kinds of quotes.
func quoted(double, single string) func(string) string {
	r := strings.NewReplacer("&#34;", double, "&#39;", single)
	return func(s string) string { return r.Replace(html.EscapeString(s)) }
}

func octets(mark, hexits string) func(string) []byte {
	return func(s string) []byte {
		out := make([]byte, 0, len(s)*(len(mark)+2))
		for i := range len(s) {
			out = append(append(out, mark...), hexits[s[i]>>4], hexits[s[i]&0xf])
		}
		return out
	}
}

func units(hexits string) func(string) []byte {
	return func(s string) []byte {
		out := make([]byte, 0, 6*len(s))
		for _, u := range unicode16.Encode([]rune(s)) {
			out = append(out, '\\', 'u', hexits[u>>12], hexits[u>>8&0xf], hexits[u>>4&0xf], hexits[u&0xf])
		}
		return out
	}
}

func runes(mark string, base int, hexits string) func(string) []byte {
	return func(s string) []byte {
		out := make([]byte, 0, 6*len(s))
		for _, r := range s {
			out = append(out, mark...)
			from := len(out)
			out = strconv.AppendInt(out, int64(r), base)
			for i, c := range out[from:] {
				out[from+i] = hexits[digit(c)]
			}
			out = append(out, ';')
		}
		return out
	}
}

// digits writes the octets of a text as hexadecimal digits.
func digits(hexits string) func(dst, text []byte) []byte {
	return func(dst, text []byte) []byte {
		for _, c := range text {
			dst = append(dst, hexits[c>>4], hexits[c&0xf])
		}
		return dst
	}
}

// utf16 writes a text in UTF-16, little-endian with the zeros after the octets of
// ASCII, big-endian with them before. Text that is not ASCII stays as it is, and is
// found as such already.
func utf16(zeroFirst int) func(dst, text []byte) []byte {
	return func(dst, text []byte) []byte {
		if slices.ContainsFunc(text, func(c byte) bool { return c >= 0x80 }) {
			return append(dst, text...)
		}
		for _, c := range text {
			two := [2]byte{}
			two[zeroFirst] = c
			dst = append(dst, two[:]...)
		}
		return dst
	}
}

// base64Core writes the characters of an encoding that a text of at least three octets
// alone decides when align octets stand before it (modulo three). The one at either
// end that it shares with its neighbours is left out: up to four bits of the first and
// of the last octet.
func base64Core(enc *base64.Encoding, align int) func(dst, text []byte) []byte {
	return func(dst, text []byte) []byte {
		var three [3]byte
		var four [4]byte
		copy(three[align:], text)
		enc.Encode(four[:], three[:])
		dst = append(dst, four[(8*align+5)/6:]...)
		rest := text[3-align:]
		whole := len(rest) / 3 * 3
		dst = enc.AppendEncode(dst, rest[:whole])
		three = [3]byte{}
		n := copy(three[:], rest[whole:])
		enc.Encode(four[:], three[:])
		return append(dst, four[:8*n/6]...)
	}
}

// fit cuts b, or fills it with x, to n octets.
func fit(b []byte, n int) []byte {
	out := bytes.Repeat([]byte{'x'}, n)
	copy(out, b)
	return out
}

func jsonEscape(s string, htmlToo bool) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(htmlToo)
	if err := enc.Encode(s); err != nil || b.Len() < 3 {
		return s // strings always encode
	}
	return b.String()[1 : b.Len()-2] // without the quotes and the line end
}

// lowerEscapes writes the hexadecimal digits of percent escapes in lower case.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			b[i+1], b[i+2] = lower(b[i+1]), lower(b[i+2])
			i += 2
		}
	}
	return string(b)
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c - 'A' + 'a'
	}
	return c
}
