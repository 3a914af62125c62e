package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"sallyport/audit/index"
	"sallyport/rules/plural"
)

// meter tells a person how far an index is: on a terminal as a bar in one line,
// elsewhere, since it may end in a file, as a line when it begins, one a minute, one
// for sorting, and one at the end with what it came to. What takes less than a second
// is not told.
type meter struct {
	w   io.Writer
	now func() time.Time
	bar bool
	// columns returns how wide the terminal is now, 0 if nobody can say; nil off one.
	columns func() int
	began   time.Time
	last    time.Time // when it was told
	every   time.Duration
	at      index.Progress
	sorts   bool // off a terminal: it was told that it sorts
}

func newMeter(w io.Writer, now func() time.Time) *meter {
	m := &meter{w: w, now: now, began: now(), every: time.Minute}
	m.last = m.began
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		m.bar, m.every = true, 200*time.Millisecond
		m.columns = func() int {
			columns, _, _ := term.GetSize(int(f.Fd()))
			return columns
		}
	}
	return m
}

// show is called after every step, however small.
func (m *meter) show(p index.Progress) {
	m.at = p
	now := m.now()
	first := !m.last.After(m.began)
	switch {
	case now.Sub(m.began) < time.Second:
		return
	case m.bar && !p.Sorting && now.Sub(m.last) < m.every:
		return
	case !m.bar && p.Sorting && m.sorts, !m.bar && !p.Sorting && !first && now.Sub(m.last) < m.every:
		return
	}
	m.last, m.sorts = now, p.Sorting
	if m.bar {
		fmt.Fprint(m.w, "\r\x1b[K"+meterLine(p, now.Sub(m.began), m.columns()))
		return
	}
	fmt.Fprintln(m.w, "sallyport: "+meterLine(p, now.Sub(m.began), 0))
}

// end takes the bar away, or tells what it came to.
func (m *meter) end() {
	switch {
	case !m.last.After(m.began): // nothing was told
	case m.bar:
		fmt.Fprint(m.w, "\r\x1b[K")
	default:
		took := m.now().Sub(m.began)
		fmt.Fprintf(m.w, "sallyport: indexing: %s read in %s, %.0f/s\n", plural.Count(m.at.Records, "record"), took.Round(100*time.Millisecond),
			float64(m.at.Records)/took.Seconds())
	}
}

const meterWidth = 30

// meterLine is at most 100 columns long, and shorter than a terminal of so many
// columns is wide: 0 if that is not known.
func meterLine(p index.Progress, took time.Duration, columns int) string {
	if p.Sorting {
		return "indexing: " + plural.Count(p.Records, "record") + " read, sorting"
	}
	done := min(float64(p.Done)/float64(max(p.Total, 1)), 1)
	left := ""
	if done > 0.02 {
		left = fmt.Sprintf(", %s left", (time.Duration(float64(took)/done) - took).Round(time.Second))
	}
	line := fmt.Sprintf("%3.0f %%, %s, %.0f/s%s", 100*done, plural.Count(p.Records, "record"), float64(p.Records)/took.Seconds(), left)
	width := meterWidth
	if columns > 0 {
		if width = min(width, columns-1-len("indexing: [] ")-len(line)); width < 5 {
			return line[:min(len(line), columns-1)]
		}
	}
	full := int(done * float64(width))
	return "indexing: [" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "] " + line
}
