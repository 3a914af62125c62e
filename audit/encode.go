package audit

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/rules/visible"
)

// MaxLine is the longest line of a log, without its newline: 64 KiB.
const MaxLine = 64 << 10

// The bounds of fields, in bytes of their printable form. Even where every byte
// takes the six of \u003c, they fit a line together; Data gets what they leave, 60 KiB as a rule.
const (
	maxWord = 160
	maxHost = 300
	maxText = 1024 // an error, an answer
	maxPath = 4096
	// maxHashes is the length of 32 keyed hashes with blanks between. They are our own
	// text, and take no more in a line.
	maxHashes = 32*(len(HashPrefix)+32+1) - 1
)

// encoder writes the part of a line that follows its id. Seq, time and id are
// put in front of it when the line's turn has come.
type encoder struct {
	buf []byte
	cut [32]string // names of fields that were longer than their bound
	n   int
	// sum makes the keyed hash of a value that was cut, so that two long values
	// can still be told apart.
	sum func(string) string
}

// encode appends everything after the id of r, through the closing brace.
func (e *encoder) encode(r *Record) {
	e.always(`,"kind":"`, string(r.Kind), maxWord)
	e.text(`,"ref":"`, r.Ref, maxWord)
	e.text(`,"cell":"`, r.Cell, maxWord)
	e.text(`,"run":"`, r.Run, maxWord)
	e.text(`,"policy":"`, r.Policy, maxWord)
	e.text(`,"verdict":"`, r.Verdict, maxWord)
	e.text(`,"reason":"`, r.Reason, maxWord)
	e.text(`,"would_deny":"`, r.WouldDeny, maxWord)
	e.text(`,"rule":"`, r.Rule, maxWord)
	e.text(`,"where":"`, r.Where, maxHost)
	e.text(`,"scope":"`, r.Scope, maxWord)
	e.text(`,"credential":"`, r.Credential, maxWord)
	e.text(`,"event":"`, r.Event, maxWord)
	e.text(`,"listener":"`, r.Listener, maxWord)
	e.text(`,"client":"`, r.Client, maxWord)
	e.text(`,"question":"`, r.Question, maxWord)
	e.text(`,"proto":"`, r.Proto, maxWord)
	e.text(`,"host":"`, r.Host, maxHost)
	e.number(`,"port":`, int64(r.Port))
	e.text(`,"method":"`, r.Method, maxWord)
	e.text(`,"path":"`, r.Path, maxPath)
	e.text(`,"query_hash":"`, r.Query, maxWord)
	e.hashes(`,"query_values":"`, r.Values)
	e.text(`,"qtype":"`, r.QType, maxWord)
	e.text(`,"answer":"`, r.Answer, maxText)
	e.text(`,"addr":"`, r.Addr, maxWord)
	e.number(`,"status":`, int64(r.Status))
	e.number(`,"sent":`, r.Sent)
	e.number(`,"received":`, r.Received)
	e.number(`,"us":`, r.Micros)
	e.text(`,"error":"`, r.Error, maxText)
	e.finish(r)
}

// The methods below are told how a field begins in the line: `,"name":"` for text,
// `,"name":` for a number.

func (e *encoder) text(begin, s string, limit int) {
	if s != "" {
		e.always(begin, s, limit)
	}
}

func (e *encoder) always(begin, s string, limit int) {
	e.buf = append(e.buf, begin...)
	if len(s) <= limit && plain(s) {
		e.buf = append(append(e.buf, s...), '"')
		return
	}
	e.odd(begin, s, limit)
}

// odd appends a text that does not stand for itself, or is too long.
func (e *encoder) odd(begin, s string, limit int) {
	var used int
	e.buf, used = appendText(e.buf, s, limit)
	if used < len(s) {
		e.buf = append(e.buf, "…["...)
		e.buf = strconv.AppendInt(e.buf, int64(len(s)), 10)
		e.buf = append(e.buf, " bytes "...)
		e.buf = append(e.buf, e.sum(s)...)
		e.buf = append(e.buf, ']')
		e.mark(nameIn(begin))
	}
	e.buf = append(e.buf, '"')
}

// hashes appends a list of keyed hashes. What is none is left out, and told as cut.
func (e *encoder) hashes(begin, s string) {
	switch {
	case s == "":
	case len(s) > maxHashes || !plain(s):
		e.mark(nameIn(begin))
	default:
		e.always(begin, s, maxHashes)
	}
}

func (e *encoder) number(begin string, v int64) {
	if v == 0 {
		return
	}
	e.buf = append(e.buf, begin...)
	e.buf = strconv.AppendInt(e.buf, v, 10)
}

// nameIn returns the name of the field of text that begins so.
func nameIn(begin string) string { return begin[len(`,"`) : len(begin)-len(`":"`)] }

func (e *encoder) mark(name string) {
	if e.n < len(e.cut) {
		e.cut[e.n] = name
		e.n++
	}
}

// room is kept free for what stands up to the id, and for the list of cut
// fields.
const room = 5 << 10

// finish appends cut and data. Data is last, and takes what the line has left.
func (e *encoder) finish(r *Record) {
	data := []byte(nil)
	if len(r.Data) > 0 {
		data = e.data(r.Data, MaxLine-room-len(e.buf))
	}
	for _, name := range r.Cut { // cut before it came here, by who made the record
		e.mark(name)
	}
	for i, name := range e.cut[:e.n] {
		e.buf = append(e.buf, [2]string{`,"cut":["`, `","`}[min(i, 1)]...)
		e.buf, _ = appendText(e.buf, name, 16)
	}
	if e.n > 0 {
		e.buf = append(e.buf, `"]`...)
	}
	if data != nil {
		e.buf = append(e.buf, `,"data":`...)
		e.buf = append(e.buf, data...)
	}
	e.buf = append(e.buf, '}')
}

// data returns raw in the form that json.Marshal gives it, with every odd
// character escaped, or a note of what it was if it is too long or no JSON.
func (e *encoder) data(raw json.RawMessage, limit int) []byte {
	if len(raw) <= limit && flat(raw) {
		return raw
	}
	note := "cut"
	if len(raw) <= MaxLine {
		var compact bytes.Buffer
		if err := json.Compact(&compact, raw); err != nil {
			note = "invalid"
		} else if out := EscapeJSON(compact.Bytes()); len(out) <= limit {
			return out
		}
	}
	e.mark("data")
	out := append([]byte(`{"`), note...)
	out = append(out, `":true,"bytes":`...)
	out = strconv.AppendInt(out, int64(len(raw)), 10)
	out = append(out, `,"hash":"`...)
	out = append(out, e.sum(string(raw))...)
	return append(out, `"}`...)
}

// flat reports whether raw is an object of nothing but plain texts, as json.Marshal
// writes it: most that comes with a request is.
func flat(raw []byte) bool {
	for i, sep := 0, byte('{'); i < len(raw) && raw[i] == sep; sep = ',' {
		i++
		for _, after := range []byte{':', 0} { // a name, a text
			if i == len(raw) || raw[i] != '"' {
				return false
			}
			for i++; i < len(raw) && safe[raw[i]]; i++ {
			}
			if i+1 >= len(raw) || raw[i] != '"' || after != 0 && raw[i+1] != after {
				return false
			}
			if i++; after != 0 {
				i++
			}
		}
		if raw[i] == '}' {
			return i+1 == len(raw)
		}
	}
	return false
}

// EscapeJSON returns valid, compact JSON with what is not printable, and HTML's
// three characters, as \u escapes, so that it can be shown anywhere. In compact
// JSON these can only stand inside strings.
func EscapeJSON(in []byte) []byte {
	out := make([]byte, 0, len(in)+len(in)/8)
	for i := 0; i < len(in); {
		c := in[i]
		if safe[c] || c == '"' || c == '\\' {
			out = append(out, c)
			i++
			continue
		}
		r, n := utf8.DecodeRune(in[i:])
		switch {
		case r >= utf8.RuneSelf && visible.Rune(r) && (r != utf8.RuneError || n > 1):
			out = append(out, in[i:i+n]...)
		case r > 0xffff:
			r -= 0x10000
			out = appendHex(append(out, `\u`...), 0xd800+(r>>10), 4)
			out = appendHex(append(out, `\u`...), 0xdc00+(r&0x3ff), 4)
		default:
			out = appendHex(append(out, `\u`...), r, 4)
		}
		i += n
	}
	return out
}

func appendStamp(dst []byte, t time.Time) []byte { return t.AppendFormat(dst, time.RFC3339Nano) }

// appendHead appends the part of a line that is known only when its turn has
// come; stamp is its time.
func appendHead(dst []byte, seq uint64, stamp []byte, id string) []byte {
	dst = append(dst, `{"v":1,"seq":`...)
	dst = strconv.AppendUint(dst, seq, 10)
	dst = append(dst, `,"time":"`...)
	dst = append(dst, stamp...)
	dst = append(dst, `","id":"`...)
	dst, _ = appendText(dst, id, maxWord)
	return append(dst, '"')
}

// leafHash is tlog.RecordHash without its allocation.
func (l *Log) leafHash(line []byte) tlog.Hash {
	l.sha.Reset()
	l.sha.Write(leafPrefix)
	l.sha.Write(line)
	l.sha.Sum(l.leaf[:0])
	return l.leaf
}

var leafPrefix = []byte{0} // RFC 6962, section 2.1
