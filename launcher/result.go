package launcher

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/launcher/guest"
)

// Cause is why a run ended. The zero Cause is of a run that has not.
type Cause string

// The causes of a run's end.
const (
	Exited      Cause = "exited"        // the command did, with Result.Exit
	Signaled    Cause = "signal"        // something ended the command by Result.Signal
	OutOfMemory Cause = "out_of_memory" // Limits.Memory
	TimedOut    Cause = "timed_out"     // Limits.Time
	OutputLimit Cause = "output_limit"  // Limits.Output
	Canceled    Cause = "canceled"      // by whoever asked for it
	OtherWay    Cause = "other_way"     // somebody gave its cell another interface
	NotStarted  Cause = "not_started"   // the command could not be
	Lost        Cause = "lost"          // the sandbox ended without a result
	Died        Cause = "launcher_died" // found by Reconcile
)

// Result is what came of a run.
type Result struct {
	Run        string    `json:"run"`
	Cell       string    `json:"cell"`
	Image      string    `json:"image"`
	Digest     string    `json:"image_digest"`
	Policy     string    `json:"policy"` // digest
	PolicyName string    `json:"policy_name,omitempty"`
	Isolation  Isolation `json:"isolation"`

	Exit   int    `json:"exit"` // of the command; 128 and the signal if that ended it
	Signal string `json:"signal,omitempty"`
	Cause  Cause  `json:"cause"`
	Text   string `json:"text"` // the cause in words

	Started  time.Time     `json:"started"` // the command
	Ended    time.Time     `json:"ended"`
	Duration time.Duration `json:"duration_ns"`
	SetUp    time.Duration `json:"set_up_ns"` // from being asked to Started

	Output    []Line `json:"output"` // sandbox-controlled
	Truncated bool   `json:"truncated"`

	Usage   Usage        `json:"usage"`
	Files   []guest.File `json:"files,omitempty"` // sandbox-controlled names
	Skipped []string     `json:"skipped,omitempty"`
	Export  string       `json:"export,omitempty"` // where the files are

	Denied    int      `json:"denied"`                     // requests
	Uncounted bool     `json:"denied_uncounted,omitempty"` // there may have been more: the gateway was killed, or could not be asked
	Denials   []Denial `json:"denials,omitempty"`
	Bypass    Bypass   `json:"bypass"` // packets that went for another way out

	Records   []string `json:"records"`   // ids in the log: run.start, run.end
	Destroyed bool     `json:"destroyed"` // nothing of the sandbox is left
}

// Usage is what a run used. Zero is not known.
type Usage struct {
	PeakMemory int64         `json:"peak_memory"` // octets
	CPU        time.Duration `json:"cpu_ns"`
	PeakPIDs   int           `json:"peak_pids"`
	OOMKills   int64         `json:"oom_kills,omitempty"`
	PIDsHit    int64         `json:"pids_refused,omitempty"` // processes over Limits.PIDs
	Processes  int           `json:"processes"`              // that ended
}

// Bypass counts packets that were dropped: see [cell.Bypass].
type Bypass struct {
	UDP     uint64 `json:"udp"`
	ICMP    uint64 `json:"icmp"`
	TCP     uint64 `json:"tcp"`
	Other   uint64 `json:"other"`
	Limited uint64 `json:"limited"`
}

// Line is one line of output, without its end. One that is longer than 16 KiB is
// cut in pieces.
type Line struct {
	Time   time.Time `json:"time"`
	Stream string    `json:"stream"`
	Text   string    `json:"text"`
	Open   bool      `json:"open,omitempty"` // no end of line followed
}

const (
	maxLine = 16 << 10
	// maxLines and maxKept bound what of the output is in a result, however much
	// is let through: an empty line costs us more than it does the sandbox.
	maxLines = 50000
	maxKept  = 16 * mib
)

// clock puts what the guest says of its own clock on the one that a run's start
// and end are read from, so that a line is never before the one nor after the other.
type clock struct {
	started time.Time     // when the start of the work was heard
	origin  time.Duration // what the guest's clock is taken to have shown then
}

// now is the time for what is heard at a reading of our clock. A step of the
// wall clock during a run does not show in it.
func (c *clock) now(read time.Time) time.Time {
	if c.started.IsZero() {
		return read
	}
	return c.started.Add(read.Sub(c.started))
}

// sent is the time of what the guest sent at a time on its clock and we heard
// when ours read so. By the start alone that can be in the future: on a busy
// machine the start is heard later than the rest, and a guest can lie.
func (c *clock) sent(at time.Duration, read time.Time) time.Time {
	if latest := read.Sub(c.started); at-c.origin > latest {
		c.origin = at - latest
	}
	return c.started.Add(at - c.origin)
}

// output puts the two streams' octets together as lines, in the order in which
// each line began.
type output struct {
	clock clock
	lines []Line
	kept  int  // octets
	cut   bool // something was left out
	open  [guest.Stderr + 1]openLine
}

// openLine is a stream's unfinished line.
type openLine struct {
	number int // of its Line, from 1; 0 is none
	text   []byte
}

func (o *output) add(s guest.Stream, at time.Time, data []byte) {
	for len(data) > 0 && !o.cut {
		piece, rest, ended := bytes.Cut(data, []byte{'\n'})
		o.piece(s, at, piece)
		if ended {
			o.end(s, false)
		}
		data = rest
	}
}

func (o *output) piece(s guest.Stream, at time.Time, text []byte) {
	line := &o.open[s]
	for {
		if line.number == 0 {
			if o.cut = len(o.lines) == maxLines; o.cut {
				return
			}
			o.lines = append(o.lines, Line{Time: at, Stream: s.String()})
			line.number = len(o.lines)
		}
		n := min(len(text), maxLine-len(line.text), maxKept-o.kept)
		line.text = append(line.text, text[:n]...)
		o.kept += n
		if text = text[n:]; len(text) == 0 {
			return
		}
		o.end(s, true)
		if o.cut = o.kept == maxKept; o.cut {
			return
		}
	}
}

// end ends a stream's line, if there is one.
func (o *output) end(s guest.Stream, open bool) {
	line := &o.open[s]
	if line.number == 0 {
		return
	}
	o.lines[line.number-1].Text, o.lines[line.number-1].Open = string(line.text), open
	line.number, line.text = 0, line.text[:0]
}

// all ends both streams and returns the lines.
func (o *output) all() []Line {
	o.end(guest.Stdout, true)
	o.end(guest.Stderr, true)
	return o.lines
}

// ended fills in how the work ended. cancelled and err are those of the
// conversation with the guest.
func (r *Result) ended(out guest.Outcome, err error, l Limits, cancelled bool) {
	end := out.End
	r.Exit = end.Exit
	if end.Signal != 0 {
		r.Signal = unix.SignalName(unix.Signal(end.Signal))
	}
	r.Truncated = r.Truncated || end.Cause == guest.OutputLimit
	r.Usage.Processes = end.Usage.Reaped
	switch {
	case cancelled:
		r.set(Canceled, "canceled")
	case r.outOfMemory(err, l):
		r.set(OutOfMemory, fmt.Sprintf("out of memory: it may use %s", size(l.Memory)))
	case err != nil && r.Started.IsZero():
		r.set(NotStarted, "could not be started: "+err.Error())
	case err != nil:
		r.set(Lost, err.Error())
	default:
		r.said(end, l)
	}
	if err != nil && r.Exit == 0 {
		r.Exit = 125
	}
}

// said fills in the end as the guest told it.
func (r *Result) said(end guest.End, l Limits) {
	switch {
	case end.Cause == guest.TimedOut:
		r.set(TimedOut, fmt.Sprintf("timed out: it may take %v", l.Time))
	case end.Cause == guest.OutputLimit:
		r.set(OutputLimit, fmt.Sprintf("killed for output: it may write %s", size(l.Output)))
	case end.Cause == guest.NotStarted:
		r.set(NotStarted, "could not be started: "+end.Error)
	case end.Cause == guest.Terminated:
		r.set(Signaled, "asked to end by a signal to process 1 of the sandbox")
	case end.Signal != 0:
		r.set(Signaled, "ended by signal "+r.Signal)
	default:
		r.set(Exited, fmt.Sprintf("ended with status %d", r.Exit))
	}
}

// outOfMemory says whether that is why the work ended. A killed part of the work
// that it got over is none of the cause. Where the sandbox has gone together with
// what counts kills it is a guess: for the kernel a gVisor sandbox is one process.
func (r *Result) outOfMemory(err error, l Limits) bool {
	if r.Usage.OOMKills > 0 {
		return r.Exit != 0 || err != nil
	}
	return err != nil && !r.Started.IsZero() && r.Usage.PeakMemory >= l.Memory-mib
}

func (r *Result) set(c Cause, text string) { r.Cause, r.Text = c, text }

// remark adds what else a reader should know to the cause in words.
func (r *Result) remark(l Limits) {
	if r.Usage.PIDsHit > 0 {
		r.Text += fmt.Sprintf("; it may have %d processes and tried to make more", l.PIDs)
	}
	if r.Uncounted {
		r.Text += "; not all that was denied could be counted"
	}
	if r.Denied == 0 {
		return
	}
	noun := "requests were"
	if r.Denied == 1 {
		noun = "request was"
	}
	r.Text += fmt.Sprintf("; %d %s denied %s", r.Denied, noun, because(r.Denials))
}

// because says for what requests were denied: not all that is denied is denied
// by the policy. The reasons stand in the order in which they came.
func because(denials []Denial) string {
	var words []string
	reasons := map[string][]string{}
	for _, d := range denials {
		word := wordFor(d.Reason)
		if reasons[word] == nil {
			words = append(words, word)
		}
		if !slices.Contains(reasons[word], d.Reason) {
			reasons[word] = append(reasons[word], d.Reason)
		}
	}
	for i, word := range words {
		words[i] = fmt.Sprintf("%s (%s)", word, strings.Join(reasons[word], ", "))
	}
	if n := len(words); n > 1 { // read as one sentence, none is the cause of another
		words = append(words[:n-2], words[n-2]+" or "+words[n-1])
	}
	return strings.Join(words, ", ")
}

// wordFor says who or what denied a request for a reason: one of docs/reasons.md.
func wordFor(reason string) string {
	switch reason {
	case "audit_unavailable":
		return "for want of a record"
	case "limit", "body_too_large", "head_too_large":
		return "over a limit"
	case "broker_unavailable", "credential_unavailable":
		return "for want of a credential"
	case "bad_request", "authority_mismatch", "path_ambiguous", "query_ambiguous":
		return "as malformed"
	case "client_gone", "no_request":
		return "because the client went away"
	case "client_rejected_ca": // or was ended then
		return "because the client hung up in the handshake"
	default:
		return "by policy"
	}
}

// size is a number of octets for people.
func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.4g GiB", float64(n)/(1<<30))
	case n >= mib:
		return fmt.Sprintf("%.4g MiB", float64(n)/mib)
	}
	return fmt.Sprintf("%d octets", n)
}
