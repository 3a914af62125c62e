package export

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

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

// manifestOf returns the name of the file that tells of a record, "" for none.
func manifestOf(r *audit.Record) string {
	if r.Kind != audit.RunStart && r.Kind != audit.RunEnd || !runName.MatchString(r.Run) {
		return ""
	}
	return bundleRun + r.Run + ".json"
}

// take adds what a record tells of its run. Records come in their order.
func (m manifests) take(r *audit.Record) {
	name := manifestOf(r)
	if name == "" {
		return
	}
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

// maxDepth bounds how deep data nests: indented, it would take room that grows with the
// square of that.
const maxDepth = 64

func (m manifests) text(name string) ([]byte, error) {
	for _, at := range []*moment{m[name].Start, m[name].Result} {
		if at != nil && depth(at.Data) > maxDepth {
			return nil, fmt.Errorf("%q: the data of record %s nests deeper than %d levels", name, at.Record, maxDepth)
		}
	}
	raw, err := json.Marshal(m[name])
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = json.Indent(&b, audit.EscapeJSON(raw), "", "  ")
	b.WriteByte('\n')
	return b.Bytes(), err
}

// depth returns how deep JSON nests.
func depth(data []byte) (deepest int) {
	text, n := false, 0
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case !text && (c == '{' || c == '['):
			n++
			deepest = max(deepest, n)
		case !text && (c == '}' || c == ']'):
			n--
		}
	}
	return deepest
}

// surroundings are what explains the records that a filter wants: which runs
// they are of, and which policies.
type surroundings struct{ runs, policies map[string]bool }

// of adds a record that is wanted.
func (s surroundings) of(r *audit.Record) {
	if r.Run != "" {
		s.runs[r.Run] = true
	}
	if r.Policy != "" {
		s.policies[r.Policy] = true
	}
}

// maxNamed is how many runs, or policies, are asked for by name.
const maxNamed = 100

// filters match what may explain the records. Each asks for one kind: such lines are
// found without looking at what others say.
func (s surroundings) filters() (out []query.Filter, err error) {
	for _, f := range []struct {
		kind   audit.Kind
		field  string
		values map[string]bool
	}{{audit.RunStart, "run", s.runs}, {audit.RunEnd, "run", s.runs}, {audit.PolicyLoad, "policy", s.policies}} {
		if len(f.values) == 0 {
			continue
		}
		text := "kind=" + string(f.kind)
		if len(f.values) <= maxNamed {
			var names []string
			for _, v := range slices.Sorted(maps.Keys(f.values)) {
				names = append(names, strconv.Quote(v))
			}
			text += " " + f.field + "=" + strings.Join(names, ",")
		}
		filter, err := query.Parse(text, time.Time{})
		if err != nil {
			return nil, fmt.Errorf("looking for the runs and policies of the records: %w", err)
		}
		out = append(out, filter)
	}
	return out, nil
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
