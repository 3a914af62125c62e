package policyfile

import (
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// Log is how the gateway keeps its log.
type Log struct {
	Durability Durability
	Keep       int64 // seconds after which records are removed; 0 keeps them for ever
	Anchors    []Anchor
	Capture    Capture
}

// Anchor is a place where checkpoints are kept; one of the fields is set.
type Anchor struct {
	File    string
	Command []string // with its arguments; it reads the checkpoint
	URL     string   // https; it is sent the checkpoint
}

// Capture is how bodies are kept that a rule says to log.
type Capture struct {
	Recipient string   // of age: who can read them; "" keeps none
	Size      int64    // octets kept of one body; 0 for the default
	Headers   []string // whose values are left out, beside those that authenticate
	Fields    []string // of JSON and forms, whose values are left out
}

func (f *file) log(dst *Log) func(ast.Node) {
	return func(n ast.Node) {
		f.mapping(n, "log", []key{
			{name: "durability", read: f.word(
				[]string{string(DurableProcess), string(DurableDisk)},
				func(s string) { dst.Durability = Durability(s) })},
			{name: "keep", read: f.keep(&dst.Keep)},
			{name: "anchors", read: f.items(func(n ast.Node) { dst.Anchors = append(dst.Anchors, f.anchor(n)) })},
			{name: "capture", read: f.capture(&dst.Capture)},
		})
	}
}

func (f *file) anchor(n ast.Node) Anchor {
	var a Anchor
	found := f.mapping(n, "an anchor", []key{
		{name: "file", read: f.path(&a.File)},
		{name: "command", read: f.exec(&a.Command)},
		{name: "url", read: f.httpsURL(&a.URL)},
	})
	if len(found) != 1 {
		f.errorf(n, "an anchor is one of file, command and url")
	}
	return a
}

func (f *file) capture(dst *Capture) func(ast.Node) {
	return func(n ast.Node) {
		found := f.mapping(n, "capture", []key{
			{name: "recipient", read: f.str(&dst.Recipient)},
			{name: "size", read: func(n ast.Node) {
				var s string
				before := len(f.errs)
				if f.str(&s)(n); len(f.errs) > before {
					return
				}
				size, ok := parseSize(s)
				if !ok || size > maxCapture {
					f.errorf(n, "%q is not a size such as 64KiB, of at most 16MiB", s)
				}
				dst.Size = size
			}},
			{name: "headers", read: f.strs(func(_ ast.Node, s string) { dst.Headers = append(dst.Headers, s) })},
			{name: "fields", read: f.strs(func(_ ast.Node, s string) { dst.Fields = append(dst.Fields, s) })},
		})
		if found["recipient"] == nil {
			f.errorf(n, "capture needs a recipient: what is kept of bodies is encrypted; age-keygen makes one")
		}
	}
}

// maxCapture bounds what is kept of one body: it is in memory meanwhile.
const maxCapture = 16 << 20

func (f *file) keep(dst *int64) func(ast.Node) {
	return func(n ast.Node) {
		var s string
		before := len(f.errs)
		if f.str(&s)(n); len(f.errs) > before {
			return
		}
		var ok bool
		if *dst, ok = ParseKeep(s); !ok {
			f.errorf(n, "%q is not a time to keep records, such as 90d or 36h, of a day or more", s)
		}
	}
}

const day = 24 * 3600

// ParseKeep reads for how long records are kept, such as 90d or 36h, as
// seconds. It is a day at least: limits are counted again from the records of
// the day.
func ParseKeep(s string) (seconds int64, ok bool) {
	digits, unit := s, int64(0)
	switch {
	case strings.HasSuffix(s, "d"):
		digits, unit = s[:len(s)-1], day
	case strings.HasSuffix(s, "h"):
		digits, unit = s[:len(s)-1], 3600
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || unit == 0 || n < 1 || n > 100*366*24 || digits[0] == '+' || digits[0] == '0' || n*unit < day {
		return 0, false
	}
	return n * unit, true
}
