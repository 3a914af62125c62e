package query

import (
	"encoding/json"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/rules/plural"
)

// words are what the data of a record says, for the kinds that people read it
// of. Data that is not as expected says nothing.
type words struct {
	// log.open
	Version    string `json:"version"`
	Durability string `json:"durability"`
	PID        int    `json:"pid"`
	// log.pack, log.retain
	Segment  string    `json:"segment"`
	Segments []string  `json:"segments"`
	Records  int64     `json:"records"`
	Bytes    int64     `json:"bytes"`
	Packed   int64     `json:"packed"`
	From     time.Time `json:"from"`
	Until    time.Time `json:"until"`
	// access.asked, access.decided
	Why   string `json:"why"`
	State string `json:"state"`
	By    string `json:"by"`
	Note  string `json:"note"`
	// credential.change, ca.rotate
	At time.Time `json:"at"`
	// policy.load, policy.refuse
	Name string `json:"name"`
	File string `json:"file"`
	Was  string `json:"was"`
	// bypass
	UDP     uint64 `json:"udp"`
	ICMP    uint64 `json:"icmp"`
	TCP     uint64 `json:"tcp"`
	Other   uint64 `json:"other"`
	Limited uint64 `json:"limited"`
	// gap, anchor, ship
	Cause   string    `json:"cause"`
	Refused int       `json:"refused"`
	Late    int       `json:"late"`
	Torn    int64     `json:"torn_bytes"`
	Anchor  string    `json:"anchor"`
	Behind  bool      `json:"behind"`
	Since   time.Time `json:"behind_since"`
	Target  string    `json:"target"`
	Dropped int64     `json:"dropped"`
}

// ofLog tells in a few words what a record of the log's own, of a person or of a
// run's edge says. What its data does not tell as expected is shown as it is.
func ofLog(r *audit.Record) string {
	var d words
	if len(r.Data) > 0 && json.Unmarshal(r.Data, &d) != nil {
		return join(r.Run, place(r), r.Error, brief(r.Data))
	}
	switch r.Kind {
	case audit.LogOpen:
		return join("by", or(d.Version, "?"), "as pid", strconv.Itoa(d.PID), "durability", d.Durability)
	case audit.LogClose:
		return "in order"
	case audit.LogPack:
		return join(d.packed(), r.Error)
	case audit.LogRetain:
		return join(d.removed(), r.Error)
	case audit.AccessAsked:
		return join(r.Method, place(r), quoted(d.Why))
	case audit.AccessDecided:
		return join(d.State, by(d.By), r.Method, place(r), until(d.Until), quoted(d.Note))
	case audit.PolicyLoad:
		return join(d.Name, shortDigest(r.Policy), after("instead of", shortDigest(d.Was)), after("for run", r.Run), after("from", d.File))
	case audit.PolicyRefuse:
		return join(refused(d.File, r.Error), after("for run", r.Run), after("stays:", shortDigest(r.Policy)))
	case audit.Bypass:
		return join(d.dropped(), after("of run", r.Run))
	case audit.Gap:
		return join(d.missing(), r.Error)
	case audit.Anchor:
		return d.anchored(r)
	case audit.Ship:
		return join(d.shipped(), r.Error)
	default:
		return join(r.Run, place(r), r.Error, brief(r.Data))
	}
}

// ofChange tells what a person did, and when, if that was recorded only after a while.
func ofChange(r *audit.Record) string {
	var d words
	if len(r.Data) > 0 && json.Unmarshal(r.Data, &d) != nil {
		return join(r.Event, r.Credential, r.Error, brief(r.Data))
	}
	return join(r.Event, r.Credential, by(d.By), d.earlier(r.Time))
}

func (d *words) earlier(recorded time.Time) string {
	if d.At.IsZero() || recorded.Sub(d.At) < time.Minute {
		return ""
	}
	return "at " + d.At.UTC().Format("01-02 15:04:05")
}

// refused says what is wrong with a file: each place in it is told after the file's
// own name, without its directory, or after all of its path where none is told.
func refused(file, why string) string {
	if file == "" || !strings.Contains(why, file) {
		return join(file, why)
	}
	return strings.ReplaceAll(why, file, path.Base(file))
}

func (d *words) packed() string {
	if d.Segment == "" {
		return ""
	}
	return fmt.Sprintf("%s: %s, %s in %s", d.Segment, plural.Count(d.Records, "record"), Size(d.Bytes), Size(d.Packed))
}

func (d *words) removed() string {
	if len(d.Segments) == 0 {
		return ""
	}
	return fmt.Sprintf("%s of %s to %s removed", plural.Count(d.Records, "record"), d.From.UTC().Format(time.DateOnly), d.Until.UTC().Format(time.DateOnly))
}

// dropped counts the packets that went for another way out.
func (d *words) dropped() string {
	var parts []string
	for _, p := range []struct {
		n    uint64
		name string
	}{{d.UDP, "UDP"}, {d.ICMP, "ICMP"}, {d.TCP, "TCP"}, {d.Other, "other"}, {d.Limited, "too many for the gateway"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.name))
		}
	}
	if len(parts) == 0 {
		return "packets dropped"
	}
	return "packets dropped: " + strings.Join(parts, ", ")
}

// missing says what a gap is about.
func (d *words) missing() string {
	switch {
	case d.Cause == "refused" && d.Late > 0:
		return fmt.Sprintf("%s refused, %d late:", plural.Count(int64(d.Refused), "record"), d.Late)
	case d.Cause == "refused":
		return plural.Count(int64(d.Refused), "record") + " refused:"
	case d.Refused > 0:
		return d.Cause + ", " + plural.Count(int64(d.Refused), "record") + " refused before:"
	case d.Torn > 0:
		return fmt.Sprintf("crash, %s of a torn line cut off:", plural.Count(d.Torn, "octet"))
	}
	if d.Cause == "" {
		return ""
	}
	return d.Cause + ":"
}

func (d *words) anchored(r *audit.Record) string {
	if d.Behind {
		return join("behind since", d.Since.UTC().Format(time.TimeOnly)+":", r.Error)
	}
	return join(d.Anchor, "is up to date again")
}

// shipped says how records fared on the way to a collector.
func (d *words) shipped() string {
	switch d.Cause {
	case "back":
		return d.Target + " takes records again"
	case "behind":
		return d.Target + " is out of reach:"
	case "rejected":
		return fmt.Sprintf("%s refused %s:", d.Target, plural.Count(d.Dropped, "record"))
	case "missing":
		return fmt.Sprintf("%s did not get %s", d.Target, plural.Count(d.Dropped, "record"))
	}
	return join(d.Target, d.Cause)
}

func after(word, s string) string {
	if s == "" || word == "" {
		return ""
	}
	return word + " " + s
}

func by(who string) string { return after("by", who) }

func until(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return "until " + t.UTC().Format("01-02 15:04")
}

func quoted(s string) string {
	if s == "" {
		return ""
	}
	return "(" + s + ")"
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
