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
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
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
	var out []Needle
	known := map[string]bool{}
	add := func(text, by []byte, escapable bool) {
		if !known[string(text)] && len(text) >= MinLen {
			known[string(text)] = true
			out = append(out, Needle{text, fit(by, len(text)), id, escapable})
		}
	}
	add(value, instead, true)
	// What is written in another alphabet, and again in another.
	for i := range opaque {
		once, by := opaque[i](value), opaque[i](instead)
		add(once, by, true)
		if len(value) > maxTwice {
			continue
		}
		for j := range opaque {
			add(opaque[j](once), opaque[j](by), false)
		}
	}
	for _, f := range escapes {
		text, by := []byte(f(string(value))), []byte(f(string(instead)))
		if known[string(text)] {
			continue
		}
		add(text, by, false)
		if len(value) > maxTwice {
			continue
		}
		for i := range opaque {
			add(opaque[i](text), opaque[i](by), false)
		}
	}
	return out
}

// maxTwice is the length of a value above which what is written anew twice is not
// looked for: the spellings would be too many octets, and tokens that are made for
// each request are long.
const maxTwice = 128

// opaque are the spellings of which no octet is one of the value.
var opaque = []func([]byte) []byte{
	func(b []byte) []byte { return base64Core(base64.RawStdEncoding, b, 0) },
	func(b []byte) []byte { return base64Core(base64.RawStdEncoding, b, 1) },
	func(b []byte) []byte { return base64Core(base64.RawStdEncoding, b, 2) },
	func(b []byte) []byte { return base64Core(base64.RawURLEncoding, b, 0) },
	func(b []byte) []byte { return base64Core(base64.RawURLEncoding, b, 1) },
	func(b []byte) []byte { return base64Core(base64.RawURLEncoding, b, 2) },
	func(b []byte) []byte { return []byte(hex.EncodeToString(b)) },
	func(b []byte) []byte { return []byte(upperHex(hex.EncodeToString(b))) },
	func(b []byte) []byte { return []byte(utf16(string(b), 0)) },
	func(b []byte) []byte { return []byte(utf16(string(b), 1)) },
}

// escapes are the spellings that keep the order of the octets.
var escapes = []func(string) string{
	url.QueryEscape,
	url.PathEscape,
	func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") },
	func(s string) string { return lowerEscapes(url.QueryEscape(s)) },
	func(s string) string { return lowerEscapes(url.PathEscape(s)) },
	func(s string) string { return jsonEscape(s, true) },
	func(s string) string { return jsonEscape(s, false) },
	func(s string) string { return strings.ReplaceAll(jsonEscape(s, false), "/", `\/`) },
	html.EscapeString,
	quoted("&quot;", "&#39;"),
	quoted("&quot;", "&#x27;"),
	quoted("&quot;", "&apos;"),
	octets("%%%02X"),
	octets("%%%02x"),
	octets(`\x%02X`),
	octets(`\x%02x`),
	units(`\u%04X`),
	units(`\u%04x`),
	runes("&#%d;"),
	runes("&#x%X;"),
	runes("&#x%x;"),
	runes("&#X%X;"),
}

// quoted escapes as HTML, with other spellings of the two kinds of quotes.
func quoted(double, single string) func(string) string {
	r := strings.NewReplacer("&#34;", double, "&#39;", single)
	return func(s string) string { return r.Replace(html.EscapeString(s)) }
}

// octets, units and runes write all of a text escaped, also what has no need of it:
// each octet, each unit of UTF-16, each character.
func octets(format string) func(string) string {
	return func(s string) string {
		var b strings.Builder
		for i := range len(s) {
			fmt.Fprintf(&b, format, s[i])
		}
		return b.String()
	}
}

func units(format string) func(string) string {
	return func(s string) string {
		var b strings.Builder
		for _, u := range unicode16.Encode([]rune(s)) {
			fmt.Fprintf(&b, format, u)
		}
		return b.String()
	}
}

func runes(format string) func(string) string {
	return func(s string) string {
		var b strings.Builder
		for _, r := range s {
			fmt.Fprintf(&b, format, r)
		}
		return b.String()
	}
}

// utf16 writes s in UTF-16, little-endian with the zeros after the octets of ASCII,
// big-endian with them before. Text that is not ASCII stays as it is, and is found
// as such already.
func utf16(s string, zeroFirst int) string {
	out := make([]byte, 2*len(s))
	for i := range len(s) {
		if s[i] >= 0x80 {
			return s
		}
		out[2*i+zeroFirst] = s[i]
	}
	return string(out)
}

// base64Core returns the characters of an encoding that value alone decides
// when align octets stand before it (modulo three). The one at either end that
// it shares with its neighbours is left out: up to four bits of the first and
// of the last octet.
func base64Core(enc *base64.Encoding, value []byte, align int) []byte {
	padded := append(make([]byte, align, align+len(value)+2), value...)
	padded = append(padded, 0, 0)
	text := enc.AppendEncode(nil, padded)
	first := (8*align + 5) / 6
	last := 8 * (align + len(value)) / 6
	return text[first:last]
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

func upperHex(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'a' <= c && c <= 'f' {
			b[i] = c - 'a' + 'A'
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
