package verify

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/rules/plural"
)

// Fault is what is wrong: a closed set.
type Fault string

// The faults.
const (
	Changed    Fault = "changed"    // a record is not the one that was signed
	OutOfPlace Fault = "sequence"   // a record was inserted, left out, doubled or moved
	Malformed  Fault = "malformed"  // a line is no record
	Missing    Fault = "missing"    // a segment, or the beginning, is not there
	Cut        Fault = "cut"        // there were more records when the log was signed
	RolledBack Fault = "rollback"   // an anchor knows of more records than the log does
	Rewritten  Fault = "rewritten"  // the records are not the ones that an anchor knows
	BadHistory Fault = "checkpoint" // a checkpoint is forged, damaged, doubled or missing
	WrongKey   Fault = "key"        // the log names another key
	BadTree    Fault = "tree"       // the hash file is damaged; the records may be good
	BadPack    Fault = "packed"     // a packed segment is not the file that was written; its records may be good
	BadNote    Fault = "retained"   // the note of what was removed is forged, damaged, or not of this log
)

// Problem is the first thing that is wrong with a log. It is the error that
// [Verify] returns for a log that was read and is not good.
type Problem struct { //nolint:errname // it is what was found, not what failed
	Fault Fault  `json:"fault"`
	File  string `json:"file"`
	Line  int64  `json:"line,omitempty"` // in File, from 1; 0 where it is about no line
	Seq   int64  `json:"seq"`            // of the first bad record, or the first missing one; -1 where it is about none
	Last  int64  `json:"last"`           // of the last record that may be the bad one; Seq if it is known for sure
	Text  string `json:"text"`
}

// Error implements error.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(filepath.Base(p.File))
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if p.Seq >= 0 {
		fmt.Fprintf(&b, ": record %d", p.Seq)
		if p.Last > p.Seq {
			fmt.Fprintf(&b, " to %d", p.Last)
		}
	}
	fmt.Fprintf(&b, ": %s: %s", p.Fault, p.Text)
	return b.String()
}

// Report is what was found.
type Report struct {
	Segments    int   `json:"segments"`
	Records     int64 `json:"records"`
	Bytes       int64 `json:"bytes"` // of records
	Checkpoints int64 `json:"checkpoints"`
	Anchors     int   `json:"anchors"` // that the log was checked against

	// Covered records stand under a good checkpoint, with those that were
	// removed in order. Those after them are the youngest of a log that is being written, or was
	// when it crashed: nothing is known against them, and nothing for them.
	Covered int64     `json:"covered"`
	Signed  tlog.Tree `json:"signed"` // the newest good checkpoint
	// UncoveredSince is the time of the first record that is not covered; zero if all are.
	UncoveredSince time.Time `json:"uncovered_since,omitzero"`
	SignedAt       time.Time `json:"signed_at,omitzero"`
	// Torn are bytes at the end of the segments or the checkpoints that are no
	// whole line or checkpoint.
	Torn int64 `json:"torn"`
	// Closed tells that the last record is log.close.
	Closed bool `json:"closed"`

	// Retained tells what was removed in order; nil for nothing.
	Retained *Retained `json:"retained,omitempty"`
	// Leftover are segments that were to be removed and are still there: the
	// next start of the writer removes them. Their records are not looked at.
	Leftover []string `json:"leftover,omitempty"`

	First   time.Time `json:"first,omitzero"`    // of the first record; zero if it was not read
	Last    time.Time `json:"last,omitzero"`     // of the last
	Absent  []string  `json:"absent,omitempty"`  // files that a log has, and that can be made anew
	Unknown []string  `json:"unknown,omitempty"` // files that are none of a log's
}

// Retained is what the signed note says about the records that were removed.
type Retained struct {
	Records int64     `json:"records"` // that were removed: 0 to Records-1
	From    time.Time `json:"from"`    // of the first of them
	Until   time.Time `json:"until"`   // of the first that is kept
	At      time.Time `json:"at"`      // when the last of them were removed
	Record  int64     `json:"record"`  // that tells of it
}

// MarshalJSON implements [json.Marshaler]: the checkpoint has names like the rest.
func (r Report) MarshalJSON() ([]byte, error) {
	type plain Report
	type tree struct {
		Size int64     `json:"size"`
		Root tlog.Hash `json:"root"`
	}
	return json.Marshal(struct {
		plain
		Signed tree `json:"signed"`
	}{plain(r), tree{r.Signed.N, r.Signed.Hash}})
}

// Whole reports that every byte of a closed log is covered.
func (r Report) Whole() bool {
	return r.Closed && r.Covered == r.next() && r.Torn == 0
}

// next is the number of the record that would come next.
func (r Report) next() int64 {
	if r.Retained != nil {
		return r.Retained.Records + r.Records
	}
	return r.Records
}

// String returns one sentence for a log that is good.
func (r Report) String() string {
	s := fmt.Sprintf("%s in %s, %s", plural.Count(r.Records, "record"), plural.Count(int64(r.Segments), "segment"), plural.Count(r.Checkpoints, "checkpoint"))
	if r.Anchors > 0 {
		s += ", " + plural.Count(int64(r.Anchors), "anchor")
	}
	if r.Covered > 0 {
		s += fmt.Sprintf("; %d covered by the checkpoint of %s", r.Covered, r.SignedAt.UTC().Format(time.RFC3339))
	}
	if x := r.Retained; x != nil {
		s += fmt.Sprintf("; records 0 to %d (%s to %s) were removed in order on %s, see record %d", x.Records-1,
			x.From.UTC().Format(time.DateOnly), x.Until.UTC().Format(time.DateOnly), x.At.UTC().Format(time.RFC3339), x.Record)
	}
	if n := r.next() - r.Covered; n > 0 {
		s += fmt.Sprintf("; the last %s covered by no checkpoint", uncoveredWords(n, r.UncoveredSince))
	}
	if r.Torn > 0 {
		s += fmt.Sprintf("; %s of an unfinished line or checkpoint", plural.Count(r.Torn, "byte"))
	}
	if !r.Closed {
		s += "; not closed (live, or it crashed)"
	}
	if len(r.Leftover) > 0 {
		s += "; still there, and not looked at: " + strings.Join(r.Leftover, " ")
	}
	if len(r.Unknown) > 0 {
		s += "; no files of a log: " + names(r.Unknown)
	}
	return s
}

// names lists files, those that could be read as more than a name in quotes.
func names(files []string) string {
	out := make([]string, len(files))
	for i, name := range files {
		if out[i] = name; strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ';' || r == '"' }) {
			out[i] = strconv.QuoteToASCII(name)
		}
	}
	return strings.Join(out, " ")
}

func uncoveredWords(n int64, since time.Time) string {
	noun := plural.Of(n, "record", fmt.Sprintf("%d records", n))
	return fmt.Sprintf("%s, since %s, %s", noun, since.UTC().Format(time.RFC3339), plural.Of(n, "is", "are"))
}
