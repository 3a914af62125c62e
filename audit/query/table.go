package query

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"sallyport/audit"
	"sallyport/rules/visible"
)

// Printable returns s with everything that a terminal could obey or hide
// replaced by a visible \x1b or \u202e. Records of a log that was written by
// package audit hold nothing of the kind; any other file may.
func Printable(s string) string {
	clean := true
	for i := 0; i < len(s) && clean; i++ {
		clean = s[i] >= ' ' && s[i] < 0x7f
	}
	if clean {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1, r < utf8.RuneSelf && !visible.Rune(r):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case visible.Rune(r):
			b.WriteString(s[i : i+n])
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
		i += n
	}
	return b.String()
}

// PrintableText is Printable for text of many lines: tabs and ends of lines stay.
func PrintableText(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		i := strings.IndexAny(s, "\t\n")
		if i < 0 {
			i = len(s)
		}
		b.WriteString(Printable(s[:i]))
		if i < len(s) {
			b.WriteByte(s[i])
			i++
		}
		s = s[i:]
	}
	return b.String()
}

// JSON writes records as the lines of a log, one object each, with nothing in
// them that a terminal could obey. Lines that are no records are left out, and
// told in the error at the end.
func JSON(w io.Writer, recs iter.Seq2[audit.Record, error]) error {
	var bad []error
	for r, err := range recs {
		if _, ok := errors.AsType[*LineError](err); ok {
			if len(bad) < 10 {
				bad = append(bad, err)
			}
			continue
		}
		if err != nil {
			return errors.Join(append(bad, err)...)
		}
		if err := Object(w, r); err != nil {
			return fmt.Errorf("writing record %d: %w", r.Seq, err)
		}
	}
	return errors.Join(bad...)
}

// Object writes v as one line of JSON with nothing in it that a terminal could
// obey.
func Object(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(audit.EscapeJSON(text), '\n'))
	return err
}

// Columns is how wide a table is where nobody says how wide a terminal is.
const Columns = 100

// The columns of a table. Kinds and reasons are never cut, for people take filters
// from them; what is last has the rest of the line, and at least leastWhat.
const (
	widthTime   = 8
	widthKind   = 14
	widthJudged = 7
	widthReason = 22
	leastWhat   = 24
	widthID     = 26
	leastForID  = Columns + widthID + 1 // columns from which on ids have one
)

// Table writes records as lines of at most that many columns, under a heading and,
// where the day changes, its date. Where there is room it ends each with the id, which
// leads to all that belongs to a record. Times are UTC. It writes as it reads. Lines
// that are no records are told in place; the first other error ends it.
func Table(w io.Writer, columns int, recs iter.Seq2[audit.Record, error]) error {
	day := ""
	t := table{w: w, ids: columns >= leastForID}
	t.what = max(leastWhat, columns-(widthTime+widthKind+widthJudged+widthReason+4))
	if t.ids {
		t.what -= widthID + 1
	}
	for r, err := range recs {
		if bad, ok := errors.AsType[*LineError](err); ok {
			if _, err := fmt.Fprintf(w, "%s\n", Fit(Printable("! "+bad.Error()), columns)); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		at := r.Time.UTC()
		if err := t.heading(&day, at.Format(time.DateOnly)); err != nil {
			return err
		}
		if err := t.row(at.Format(time.TimeOnly), string(r.Kind), r.Verdict, r.Reason, What(&r), r.ID); err != nil {
			return err
		}
	}
	return nil
}

// table is what lines are written to, and how wide their last column is.
type table struct {
	w    io.Writer
	what int
	ids  bool
}

// heading writes the date where it changes, and the columns' names above all.
func (t table) heading(day *string, today string) error {
	if today == *day {
		return nil
	}
	if *day == "" {
		if err := t.row("TIME UTC", "KIND", "VERDICT", "REASON", "WHAT", "ID"); err != nil {
			return err
		}
	}
	*day = today
	_, err := fmt.Fprintln(t.w, today)
	return err
}

func (t table) row(when, kind, judged, reason, what, id string) error {
	ofKind, ofJudged := widthKind, widthJudged
	if judged == "" { // a long kind has room where no verdict is
		ofJudged = max(0, widthJudged-max(0, width(Printable(kind))-widthKind))
		ofKind += widthJudged - ofJudged
	}
	type cell struct {
		text  string
		width int
	}
	cells := []cell{{when, widthTime}, {kind, ofKind}, {judged, ofJudged}, {reason, widthReason}, {what, t.what}}
	if t.ids {
		cells = append(cells, cell{id, widthID})
	}
	var b strings.Builder
	for _, c := range cells {
		text := Fit(Printable(c.text), c.width)
		b.WriteString(text)
		b.WriteString(strings.Repeat(" ", c.width-width(text)+1))
	}
	_, err := fmt.Fprintln(t.w, strings.TrimRight(b.String(), " "))
	return err
}

// width is how many columns s takes, near enough: what is far from Latin is
// taken for wide.
func width(s string) int {
	n := 0
	for _, r := range s {
		if n++; r >= 0x1100 && r != '…' {
			n++
		}
	}
	return n
}

// Fit cuts s to limit columns.
func Fit(s string, limit int) string {
	if width(s) <= limit {
		return s
	}
	n := 0
	for i, r := range s {
		if n += width(string(r)); n > limit-1 {
			cut, _ := strings.CutSuffix(s[:i], "…")
			return cut + "…"
		}
	}
	return s
}

// FitBeside cuts s to limit columns as Fit does, but so that it shows where s
// begins to differ from other.
func FitBeside(s, other string, limit int) string {
	at := 0
	for at < len(s) {
		_, n := utf8.DecodeRuneInString(s[at:])
		if !strings.HasPrefix(other[at:], s[at:at+n]) {
			break
		}
		at += n
	}
	const lead = 12 // runes before the difference
	if width(s) <= limit || width(s[:at]) < limit-lead {
		return Fit(s, limit)
	}
	for range lead {
		_, size := utf8.DecodeLastRuneInString(s[:at])
		at -= size
	}
	return Fit(s, limit/3) + Fit(s[at:], limit-limit/3)
}

// What tells in a few words what a record is about.
func What(r *audit.Record) string {
	switch r.Kind {
	case audit.DNS:
		return join(r.QType, r.Host, arrow(r.Answer))
	case audit.Done:
		if r.QType != "" { // a look-up
			return join(r.QType, r.Host, arrow(r.Answer), r.Error)
		}
		return join(Outcome(r), place(r), r.Error)
	case audit.Credential:
		return join(colon(r.Event), r.Method, place(r), via(r.Credential), r.Error)
	case audit.Admit:
		return join(r.Method, place(r), approved(r), via(r.Credential), r.Error)
	case audit.Refuse:
		return join(r.Method, place(r), via(r.Credential), arrow(told(r)), r.Error)
	case audit.RunStart, audit.RunEnd:
		return join(ofRun(r), r.Run, r.Error)
	case audit.CellUp, audit.CellDown:
		return join(r.Run, r.Cell, r.Error, brief(r.Data))
	case audit.CredentialChange, audit.CARotate:
		return ofChange(r)
	default:
		return ofLog(r)
	}
}

func join(parts ...string) string {
	kept := parts[:0]
	for _, p := range parts {
		if p != "" {
			kept = append(kept, p)
		}
	}
	return strings.Join(kept, " ")
}

func place(r *audit.Record) string {
	path := shortHashes(r.Path)
	if r.Host == "" || r.Port == 0 || r.Port == 443 {
		return r.Host + path
	}
	return r.Host + ":" + strconv.Itoa(int(r.Port)) + path
}

// shortHashes shortens the keyed hashes in a path, which nobody reads.
func shortHashes(path string) string {
	if !strings.Contains(path, audit.HashPrefix) {
		return path
	}
	const shown = len(audit.HashPrefix) + 4
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if strings.HasPrefix(p, audit.HashPrefix) && len(p) > shown {
			parts[i] = p[:shown] + "…"
		}
	}
	return strings.Join(parts, "/")
}

// told is what a refused request was answered: a status, or else in a word.
func told(r *audit.Record) string {
	if r.Status != 0 {
		return strconv.Itoa(r.Status)
	}
	return r.Answer
}

func arrow(answer string) string {
	if answer == "" {
		return ""
	}
	return "-> " + answer
}

// approved tells that what let a request in is an approval, not the policy.
func approved(r *audit.Record) string {
	if r.Scope != "approval" {
		return ""
	}
	return "by approval"
}

func colon(event string) string {
	if event == "" {
		return ""
	}
	return event + ":"
}

func via(credential string) string {
	if credential == "" {
		return ""
	}
	return "with " + credential
}

// Outcome tells what became of a request, out of its done.
func Outcome(r *audit.Record) string {
	s := ""
	if r.Status != 0 {
		s = strconv.Itoa(r.Status) + " "
	}
	return fmt.Sprintf("%s%s up %s down %s", s, Size(r.Sent), Size(r.Received),
		(time.Duration(r.Micros) * time.Microsecond).Round(time.Millisecond))
}

// Size is a number of octets as people say it.
func Size(n int64) string {
	for _, u := range []struct {
		name string
		of   int64
	}{{"G", 1 << 30}, {"M", 1 << 20}, {"k", 1 << 10}} {
		if n >= u.of {
			return fmt.Sprintf("%.1f%s", float64(n)/float64(u.of), u.name)
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

// ofRun says how a run began or ended. Data that is not as expected says nothing.
func ofRun(r *audit.Record) string {
	var d struct {
		Image  string `json:"image"`
		Policy string `json:"policy_name"`
		Exit   int    `json:"exit"`
		Cause  string `json:"cause"`
		Denied int    `json:"denied"`
	}
	if json.Unmarshal(r.Data, &d) != nil {
		return ""
	}
	if r.Kind == audit.RunStart {
		if d.Policy != "" {
			d.Policy = "under " + d.Policy
		}
		return join(d.Image, d.Policy)
	}
	return fmt.Sprintf("%s %d, %d denied", d.Cause, d.Exit, d.Denied)
}

// shortDigest is enough of a digest to tell policies apart.
func shortDigest(digest string) string { return digest[:min(len(digest), len("sha256:")+12)] }

// brief is the start of what a record carries beside its fields.
func brief(data json.RawMessage) string { return string(data[:min(len(data), 200)]) }
