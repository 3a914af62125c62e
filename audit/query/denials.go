package query

import (
	"errors"
	"time"

	"github.com/oklog/ulid/v2"

	"sallyport/audit"
)

// Denial is something that a run asked for and was refused.
type Denial struct {
	Time     time.Time `json:"time"` // of the first, if there were several
	ID       string    `json:"id"`   // of the first
	Count    int       `json:"count"`
	Reason   string    `json:"reason"`
	Rule     string    `json:"rule,omitempty"`
	Question string    `json:"question,omitempty"`
	Host     string    `json:"host,omitempty"`
	Port     uint16    `json:"port,omitempty"`
	Method   string    `json:"method,omitempty"`
	Path     string    `json:"path,omitempty"`
	QType    string    `json:"qtype,omitempty"`
}

// MaxDenials is how many different refusals Denials lists.
const MaxDenials = 1000

// Denials returns what a run was refused, in the order of the first refusal of
// each; the same refusal again is counted, not listed. more counts refusals
// beyond [MaxDenials]. Lines that are no records are passed over.
func Denials(dir, run string) (list []Denial, more int, err error) {
	f := Where("run", run)
	if id, err := ulid.ParseStrict(run); err == nil {
		f.Since = id.Timestamp().Add(-clockMargin) // no need to read what is older
	}
	seen := map[Denial]int{}
	for r, err := range Records(dir, f) {
		if _, bad := errors.AsType[*LineError](err); bad {
			continue
		}
		if err != nil {
			return list, more, err
		}
		if !Denied(&r) {
			continue
		}
		d := Denial{
			Reason: r.Reason, Rule: r.Rule, Question: r.Question, Host: r.Host, Port: r.Port,
			Method: r.Method, Path: r.Path, QType: r.QType,
		}
		at, ok := seen[d]
		switch {
		case ok:
			list[at].Count++
		case len(list) == MaxDenials:
			more++
		default:
			seen[d] = len(list)
			d.Time, d.ID, d.Count = r.Time, r.ID, 1
			list = append(list, d)
		}
	}
	return list, more, nil
}

// Denied reports whether r tells of a refusal: of a request, of a name, or of
// something that was admitted and then could not be.
func Denied(r *audit.Record) bool {
	return r.Kind == audit.Refuse ||
		r.Verdict == "deny" && (r.Kind == audit.DNS || r.Kind == audit.Done || r.Kind == audit.Credential)
}

// AboutDenial reports whether r tells of something that was refused: a denial, or what
// happened to the credential of one, which is a record of its own beside it.
func AboutDenial(r *audit.Record) bool {
	return Denied(r) || r.Kind == audit.Credential && (r.Event == "refusal" || r.Event == "leak")
}
