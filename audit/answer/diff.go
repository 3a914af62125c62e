package answer

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"sallyport/audit"
	"sallyport/audit/index"
)

// Side is what one of two runs did at a place.
type Side struct {
	Count    int64  `json:"count"`
	Sent     int64  `json:"sent"`
	Received int64  `json:"received"`
	ID       string `json:"id"` // of the first record
}

// Place is what both runs are compared by.
type Place struct {
	Kind       audit.Kind `json:"kind"` // admit, refuse, dns, credential, bypass
	Host       string     `json:"host,omitempty"`
	Port       uint16     `json:"port,omitempty"`
	Method     string     `json:"method,omitempty"`
	Path       string     `json:"path,omitempty"`
	QType      string     `json:"qtype,omitempty"`
	Verdict    string     `json:"verdict,omitempty"`
	Reason     string     `json:"reason,omitempty"`
	Credential string     `json:"credential,omitempty"`
}

// Difference is a place at which two runs differ: one was there and the other
// was not (nil), or not as often.
type Difference struct {
	Place
	A *Side `json:"a"`
	B *Side `json:"b"`
}

// Setting is what the manifests or results of two runs tell differently.
type Setting struct {
	Name string `json:"name"`
	A    string `json:"a"`
	B    string `json:"b"`
}

// Comparison is what differs between two runs.
type Comparison struct {
	A        string       `json:"a"` // the runs
	B        string       `json:"b"`
	Settings []Setting    `json:"settings"`
	Places   []Difference `json:"places"`
	Same     int          `json:"same"` // places where both did the same
}

// Diff compares two runs: their manifests, and what each asked for how often.
func Diff(ctx context.Context, x *index.Index, a, b string) (*Comparison, error) {
	out := &Comparison{Settings: []Setting{}, Places: []Difference{}}
	var sides [2]map[Place]*Side
	var told [2]map[string]string
	var err error
	for i, run := range []*string{&out.A, &out.B} {
		if *run, err = runOf(ctx, x, []string{a, b}[i]); err != nil {
			return nil, err
		}
		if sides[i], told[i], err = read(ctx, x, *run); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(union(told[0], told[1]))) {
		if told[0][name] != told[1][name] {
			out.Settings = append(out.Settings, Setting{name, told[0][name], told[1][name]})
		}
	}
	for p := range union(sides[0], sides[1]) {
		l, r := sides[0][p], sides[1][p]
		if l != nil && r != nil && l.Count == r.Count {
			out.Same++
			continue
		}
		out.Places = append(out.Places, Difference{p, l, r})
	}
	slices.SortFunc(out.Places, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Method, b.Method),
			cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Port, b.Port), cmp.Compare(a.QType, b.QType),
			cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Credential, b.Credential))
	})
	return out, nil
}

func union[K comparable, V any](a, b map[K]V) map[K]V {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// volatile are the parts of a manifest or a result that differ in any two runs.
var volatile = map[string]bool{
	"asked": true, "address": true, "started": true, "ended": true, "duration": true, "duration_ms": true, "us": true,
	"usage": true, "pid": true, "time": true, "cpu": true, "memory": true,
}

// placed is the condition that a shape is of a run, ?1, and of what it did. That a
// credential is used is in the admission, or hangs on when.
const placed = `run = ?1 AND run <> '' AND kind IN ('admit', 'refuse', 'dns', 'credential', 'bypass')
	AND NOT (kind = 'credential' AND reason = 'allowed')`

// read returns what a run did at each place, and what it was. Records are counted
// where they are: a run may have as many places as requests.
func read(ctx context.Context, x *index.Index, run string) (map[Place]*Side, map[string]string, error) {
	sides := map[Place]*Side{}
	var p Place
	var n, sent, received int64
	var id string
	at := []any{&p.Kind, &p.Host, &p.Port, &p.Method, &p.Path, &p.QType, &p.Verdict, &p.Reason, &p.Credential}
	const columns = "SELECT kind, host, port, method, path, qtype, verdict, reason, credential, "
	err := each(ctx, x, columns+`n, id FROM (SELECT shape, path, count(*) AS n, min(seq) AS seq, id FROM entries
			WHERE shape IN (SELECT shape FROM shapes WHERE `+placed+`) GROUP BY shape, path) CROSS JOIN shapes USING (shape) ORDER BY seq`,
		[]any{run}, append(at, &n, &id), func() error {
			if sides[p] == nil {
				sides[p] = &Side{ID: id}
			}
			sides[p].Count += n
			return nil
		})
	if err != nil {
		return nil, nil, err
	}
	err = each(ctx, x, columns+`sent, received FROM (SELECT a.shape, a.path, sum(d.sent) AS sent, sum(d.received) AS received
			FROM entries d CROSS JOIN entries a ON a.id = d.ref
			WHERE d.shape IN (SELECT shape FROM shapes WHERE run = ?1 AND run <> '' AND kind = 'done')
			AND +a.shape IN (SELECT shape FROM shapes WHERE `+placed+`) AND +a.seq < d.seq GROUP BY 1, 2) CROSS JOIN shapes USING (shape)`,
		[]any{run}, append(at, &sent, &received), func() error {
			sides[p].Sent += sent
			sides[p].Received += received
			return nil
		})
	if err != nil {
		return nil, nil, err
	}
	told, err := edges(ctx, x, run)
	return sides, told, err
}

// edges returns what the records of a run's start and end tell.
func edges(ctx context.Context, x *index.Index, run string) (map[string]string, error) {
	told := map[string]string{}
	for r, err := range x.Records(ctx, "WHERE r.run = ? AND r.run <> '' AND r.kind IN ('run.start', 'run.end') ORDER BY +r.seq", run) {
		if err != nil {
			return nil, err
		}
		if r.Policy != "" {
			told["policy"] = r.Policy
		}
		tell(told, string(r.Kind), r.Data)
	}
	return told, nil
}

// tell adds the parts of a record's data.
func tell(told map[string]string, kind string, data json.RawMessage) {
	var parts map[string]json.RawMessage
	if json.Unmarshal(data, &parts) != nil {
		return
	}
	for name, value := range parts {
		if !volatile[name] {
			told[fmt.Sprintf("%s %s", kind, name)] = string(value)
		}
	}
}
