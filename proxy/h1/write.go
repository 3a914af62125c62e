package h1

import (
	"net/http"
	"slices"
	"strconv"
)

// AppendHeader appends the fields of h, sorted by name, without those that
// skip names. What cannot stand in a head is not put there: a name that is no
// token is left out, and a control character in a value becomes a blank.
func AppendHeader(b []byte, h http.Header, skip func(name string) bool) []byte {
	var room [24]string
	names := room[:0]
	for name := range h {
		if (skip == nil || !skip(name)) && token(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		for _, value := range h[name] {
			b = AppendField(b, name, value)
		}
	}
	return b
}

// AppendField appends one field, with its line end.
func AppendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	at := len(b)
	b = append(b, value...)
	if !fieldText(value) {
		for i, c := range b[at:] {
			if c < ' ' && c != '\t' || c == 0x7f {
				b[at+i] = ' '
			}
		}
	}
	return append(b, "\r\n"...)
}

// AppendLength appends a Content-Length.
func AppendLength(b []byte, n int64) []byte {
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, n, 10)
	return append(b, "\r\n"...)
}

// ChunkHead is how much room the line before a chunk takes at most.
const ChunkHead = 16 + 2

// PutChunkHead writes the line before a chunk of n octets at the end of room,
// which has ChunkHead octets, and returns where it begins.
func PutChunkHead(room []byte, n int) int {
	const hex = "0123456789abcdef"
	i := len(room) - 2
	room[i], room[i+1] = '\r', '\n'
	for {
		i--
		room[i] = hex[n&15]
		if n >>= 4; n == 0 {
			return i
		}
	}
}

// AppendLastChunk appends the end of a body in chunks, with its trailer.
func AppendLastChunk(b []byte, trailer http.Header) []byte {
	b = append(b, "0\r\n"...)
	b = AppendHeader(b, trailer, isFraming)
	return append(b, "\r\n"...)
}
