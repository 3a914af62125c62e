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
	"asked": true, "address": true, "started": true, "ended": true, "duration": true, "duration_ms": true,
	"usage": true, "pid": true, "time": true, "cpu": true, "memory": true,
}

// read returns what a run did at each place, and what it was.
func read(ctx context.Context, x *index.Index, run string) (map[Place]*Side, map[string]string, error) {
	sides, told := map[Place]*Side{}, map[string]string{}
	byID := map[string]*Side{}
	for r, err := range x.Records(ctx, "WHERE r.run = ? AND r.run <> '' ORDER BY r.seq", run) {
		if err != nil {
			return nil, nil, err
		}
		switch r.Kind {
		case audit.Admit, audit.Refuse, audit.DNS, audit.Credential, audit.Bypass:
			if r.Kind == audit.Credential && r.Reason == "allowed" { // that it is used is in the admission, or hangs on when
				continue
			}
			p := Place{r.Kind, r.Host, r.Port, r.Method, r.Path, r.QType, r.Verdict, r.Reason, r.Credential}
			if sides[p] == nil {
				sides[p] = &Side{ID: r.ID}
			}
			sides[p].Count++
			byID[r.ID] = sides[p]
		case audit.Done:
			if s := byID[r.Ref]; s != nil {
				s.Sent += r.Sent
				s.Received += r.Received
			}
		case audit.RunStart, audit.RunEnd:
			if r.Policy != "" {
				told["policy"] = r.Policy
			}
			tell(told, string(r.Kind), r.Data)
		default: // about the log or the cell, not about what the run did
		}
	}
	return sides, told, nil
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
