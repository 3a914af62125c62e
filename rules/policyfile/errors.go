package policyfile

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
)

// Error is one thing that is wrong with a file.
type Error struct {
	File   string `json:"file"`
	Line   int    `json:"line"`   // from 1; 0 if the error is about the file as a whole
	Column int    `json:"column"` // from 1, in characters; 0 without a line, or where it is not known
	// ID is the kind of a finding, see [Findings]; "" of an error.
	ID     string `json:"id,omitempty"`
	Text   string `json:"text"`
	Source string `json:"source,omitempty"` // the line, made printable; of a long one the part round Column
	caret  int    // column in Source
}

// Error implements error: file:line:col: text, the line, and a caret.
func (e Error) Error() string {
	if e.ID != "" {
		e.Text += " [" + e.ID + "]"
	}
	if e.Line == 0 {
		return e.File + ": " + e.Text
	}
	head := fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Text)
	if e.Column == 0 {
		head = fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Text)
	}
	if e.Source == "" {
		return head
	}
	if e.Column == 0 { // it is the effective policy's line, see errorOf
		return fmt.Sprintf("%s\n%5s | %s", head, "", e.Source)
	}
	number := fmt.Sprintf("%5d", e.Line)
	caret := strings.Repeat(" ", max(e.caret, 1)-1) + "^"
	return fmt.Sprintf("%s\n%s | %s\n%s | %s", head, number, e.Source, strings.Repeat(" ", len(number)), caret)
}

const (
	// maxShown bounds the part of a line that is shown.
	maxShown = 100
	// maxErrors bounds what is told about a file that is not one of ours.
	maxErrors = 200
)

// cut returns the part of a line round a column, and the column in it.
func cut(line string, col int) (string, int) {
	r := []rune(line)
	col = min(max(col, 1), len(r)+1)
	if len(r) <= maxShown {
		return line, col
	}
	from := max(0, min(col-maxShown/2, len(r)-maxShown))
	to := min(len(r), from+maxShown)
	s, lead := string(r[from:to]), ""
	if from > 0 {
		lead = "… "
	}
	if to < len(r) {
		s += " …"
	}
	return lead + s, col - from + utf8.RuneCountInString(lead)
}

// Errors are all the errors of a file, in the order of their places.
type Errors []Error

// Error implements error: the errors, each on lines of its own.
func (es Errors) Error() string {
	texts := make([]string, len(es))
	for i, e := range es {
		texts[i] = e.Error()
	}
	return strings.Join(texts, "\n")
}

// file collects the errors of one file while it is read.
type file struct {
	name  string
	lines []string
	errs  Errors
	aside int // how many of errs leave it clear what a rule means
	// written says that this package wrote it: its lines may be long.
	written bool
	from    string // the file that it was made of, see Input
	// with holds the values of a preset's parameters; nil in any other file.
	with map[string][]string
}

func (f *file) errorAt(line, col int, format string, args ...any) {
	e := Error{File: f.name, Line: max(line, 1), Column: max(col, 1), Text: fmt.Sprintf(format, args...)}
	switch {
	case len(f.errs) > maxErrors:
		return
	case len(f.errs) == maxErrors:
		e.Text = "and so on: more than 200 errors"
	}
	if line >= 1 && line <= len(f.lines) {
		source, caret := cut(f.lines[line-1], col)
		e.Source, e.caret = printable(source), caret
	}
	f.errs = append(f.errs, e)
}

// errorOf is errorf about what an effective policy took from elsewhere: it is
// told where it came from, if that is known. Of that only the line is, so what is
// shown is how the effective policy has it.
func (f *file) errorOf(n ast.Node, origin, format string, args ...any) {
	rel, at, _ := strings.Cut(origin, ":")
	line, err := strconv.Atoi(at)
	if f.from == "" || !f.written || err != nil {
		f.errorf(n, format, args...)
		return
	}
	e := Error{File: path.Join(path.Dir(f.from), rel), Line: line, Text: fmt.Sprintf(format, args...)}
	if own, col := place(n); own >= 1 && own <= len(f.lines) {
		source, _ := cut(f.lines[own-1], col)
		e.Source = printable(source)
	}
	f.errs = append(f.errs, e)
}

// err returns what was collected, nil for nothing.
func (f *file) err() error {
	if len(f.errs) == 0 {
		return nil
	}
	slices.SortStableFunc(f.errs, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	f.errs = slices.Compact(f.errs)
	return f.errs
}

// printable replaces what a terminal might act on or hide, one for one.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case r == utf8.RuneError, !unicode.IsPrint(r):
			return '·'
		default:
			return r
		}
	}, s)
}
