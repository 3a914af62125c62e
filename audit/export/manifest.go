package export

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"regexp"

	"sallyport/audit"
	"sallyport/audit/query"
)

// manifest is what a bundle tells of a run, to be read: the same stands in its
// records, which are proved.
type manifest struct {
	Run    string  `json:"run"`
	Start  *moment `json:"start,omitempty"`
	Result *moment `json:"end,omitempty"`
	Policy string  `json:"policy,omitempty"` // digest, as it was started
}

type moment struct {
	Record string          `json:"record"` // id
	Time   string          `json:"time"`
	Error  string          `json:"error,omitempty"`
	Data   json.RawMessage `json:"data,omitempty"`
}

// manifests are those of a bundle, by the names of their files.
type manifests map[string]*manifest

// runName is a run that can be the name of a file: a ULID, or one like it.
var runName = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_-]{0,63}$`)

// take adds what a record tells of its run. Records come in their order.
func (m manifests) take(r *audit.Record) {
	if r.Kind != audit.RunStart && r.Kind != audit.RunEnd || !runName.MatchString(r.Run) {
		return
	}
	name := bundleRun + r.Run + ".json"
	if m[name] == nil {
		m[name] = &manifest{Run: r.Run}
	}
	at := &moment{Record: r.ID, Time: r.Time.UTC().Format(timeForm), Error: r.Error, Data: r.Data}
	if r.Kind == audit.RunEnd {
		m[name].Result = at
		return
	}
	m[name].Start, m[name].Policy = at, r.Policy
}

// timeForm is that of records.
const timeForm = "2006-01-02T15:04:05.999999999Z07:00"

func (m manifests) text(name string) ([]byte, error) {
	raw, err := json.Marshal(m[name])
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = json.Indent(&b, audit.EscapeJSON(raw), "", "  ")
	b.WriteByte('\n')
	return b.Bytes(), err
}

// surroundings are what explains the records that a filter wants: which runs
// they are of, and which policies.
type surroundings struct{ runs, policies map[string]bool }

func surroundingsOf(ctx context.Context, cfg BundleConfig) (surroundings, error) {
	s := surroundings{map[string]bool{}, map[string]bool{}}
	for r, err := range query.RecordsUntil(ctx, cfg.Dir, cfg.Filter) {
		if _, bad := errors.AsType[*query.LineError](err); bad {
			continue // the proofs will tell
		}
		if err != nil {
			return s, err
		}
		if r.Run != "" {
			s.runs[r.Run] = true
		}
		if r.Policy != "" {
			s.policies[r.Policy] = true
		}
	}
	return s, nil
}

// holds reports whether a record tells how a run began or ended, or that a
// policy came into force.
func (s surroundings) holds(r *audit.Record) bool {
	switch r.Kind {
	case audit.RunStart, audit.RunEnd:
		return s.runs[r.Run]
	case audit.PolicyLoad:
		return s.policies[r.Policy] && (r.Run == "" || s.runs[r.Run])
	default:
		return false
	}
}
