package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"sallyport/audit/index"
)

// meter tells a person how far an index is: on a terminal as a bar in one line,
// elsewhere as one line for reading and one for sorting, since it may end in a
// file. What takes less than a second is not told.
type meter struct {
	w     io.Writer
	bar   bool
	began time.Time
	last  time.Time // when it was told
	every time.Duration
	told  map[bool]bool // off a terminal: whether it was told, by Sorting
}

func newMeter(w io.Writer) *meter {
	now := time.Now()
	m := &meter{w: w, began: now, last: now, every: 200 * time.Millisecond, told: map[bool]bool{}}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		m.bar = true
	}
	return m
}

// show is called after every step, however small.
func (m *meter) show(p index.Progress) {
	now := time.Now()
	if now.Sub(m.began) < time.Second || now.Sub(m.last) < m.every && !p.Sorting {
		return
	}
	m.last = now
	line := meterLine(p, now.Sub(m.began))
	if !m.bar && m.told[p.Sorting] {
		return
	}
	if !m.bar {
		m.told[p.Sorting] = true
		fmt.Fprintln(m.w, "sallyport: "+line)
		return
	}
	fmt.Fprint(m.w, "\r\x1b[K"+line)
}

// end takes the bar away.
func (m *meter) end() {
	if m.bar && m.last.After(m.began) {
		fmt.Fprint(m.w, "\r\x1b[K")
	}
}

const meterWidth = 30

// meterLine is at most 100 columns long.
func meterLine(p index.Progress, took time.Duration) string {
	if p.Sorting {
		return "indexing: " + counted(p.Records, "record") + " read, sorting"
	}
	done := min(float64(p.Done)/float64(max(p.Total, 1)), 1)
	full := int(done * meterWidth)
	left := ""
	if done > 0.02 {
		left = fmt.Sprintf(", %s left", (time.Duration(float64(took)/done) - took).Round(time.Second))
	}
	return fmt.Sprintf("indexing: [%s%s] %3.0f %%, %s, %.0f/s%s", strings.Repeat("#", full),
		strings.Repeat(".", meterWidth-full), 100*done, counted(p.Records, "record"), float64(p.Records)/took.Seconds(), left)
}
