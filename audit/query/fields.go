package query

import (
	"maps"
	"slices"

	"sallyport/audit"
)

// texts are the fields of text in the order in which the log has them, each with where
// a record keeps it.
var texts = []struct {
	name string
	of   func(*audit.Record) *string
}{
	{"id", func(r *audit.Record) *string { return &r.ID }},
	{"kind", func(r *audit.Record) *string { return (*string)(&r.Kind) }},
	{"ref", func(r *audit.Record) *string { return &r.Ref }},
	{"cell", func(r *audit.Record) *string { return &r.Cell }},
	{"run", func(r *audit.Record) *string { return &r.Run }},
	{"policy", func(r *audit.Record) *string { return &r.Policy }},
	{"verdict", func(r *audit.Record) *string { return &r.Verdict }},
	{"reason", func(r *audit.Record) *string { return &r.Reason }},
	{"would_deny", func(r *audit.Record) *string { return &r.WouldDeny }},
	{"rule", func(r *audit.Record) *string { return &r.Rule }},
	{"where", func(r *audit.Record) *string { return &r.Where }},
	{"scope", func(r *audit.Record) *string { return &r.Scope }},
	{"credential", func(r *audit.Record) *string { return &r.Credential }},
	{"event", func(r *audit.Record) *string { return &r.Event }},
	{"listener", func(r *audit.Record) *string { return &r.Listener }},
	{"client", func(r *audit.Record) *string { return &r.Client }},
	{"question", func(r *audit.Record) *string { return &r.Question }},
	{"proto", func(r *audit.Record) *string { return &r.Proto }},
	{"host", func(r *audit.Record) *string { return &r.Host }},
	{"method", func(r *audit.Record) *string { return &r.Method }},
	{"path", func(r *audit.Record) *string { return &r.Path }},
	{"query_hash", func(r *audit.Record) *string { return &r.Query }},
	{"query_values", func(r *audit.Record) *string { return &r.Values }},
	{"qtype", func(r *audit.Record) *string { return &r.QType }},
	{"answer", func(r *audit.Record) *string { return &r.Answer }},
	{"addr", func(r *audit.Record) *string { return &r.Addr }},
	{"error", func(r *audit.Record) *string { return &r.Error }},
}

// textFields are where they are kept, by name.
var textFields = func() map[string]func(*audit.Record) *string {
	m := map[string]func(*audit.Record) *string{}
	for _, t := range texts {
		m[t.name] = t.of
	}
	return m
}()

// numberFields are the fields that hold a number.
var numberFields = map[string]func(*audit.Record) int64{
	"seq":      func(r *audit.Record) int64 { return int64(r.Seq) },
	"port":     func(r *audit.Record) int64 { return int64(r.Port) },
	"status":   func(r *audit.Record) int64 { return int64(r.Status) },
	"sent":     func(r *audit.Record) int64 { return r.Sent },
	"received": func(r *audit.Record) int64 { return r.Received },
	"us":       func(r *audit.Record) int64 { return r.Micros },
}

// Fields returns the names of all fields that a filter can ask for, sorted.
func Fields() []string {
	names := append(slices.Collect(maps.Keys(textFields)), slices.Collect(maps.Keys(numberFields))...)
	names = append(names, "since", "until")
	slices.Sort(names)
	return names
}
