package export

import (
	"encoding/json"
	"io"
	"strconv"
	"strings"

	"sallyport/audit"
	"sallyport/audit/query"
)

// otlp writes ExportLogsServiceRequest messages as OTLP/HTTP takes them in
// JSON, one a line: what the file exporter of a collector writes, and what can
// be posted to /v1/logs line by line.
type otlp struct {
	w     io.Writer
	cfg   Config
	batch []object
}

func newOTLP(w io.Writer, cfg Config) writer { return &otlp{w: w, cfg: cfg} }

// perMessage is how many records a message holds.
const perMessage = 500

// Severity numbers of the log data model.
const (
	severityInfo = 9
	severityWarn = 13
)

func (o *otlp) record(r *audit.Record) error {
	severity, text := severityInfo, "INFO"
	if denied(r) || r.Kind == audit.Gap || r.Kind == audit.Bypass {
		severity, text = severityWarn, "WARN"
	}
	at := "0" // unknown, for a time that the protocol has no number for
	if y := r.Time.UTC().Year(); y >= 1970 && y < 2262 {
		at = strconv.FormatInt(r.Time.UnixNano(), 10)
	}
	rec := object{
		"timeUnixNano": at, "observedTimeUnixNano": at, "severityNumber": severity, "severityText": text,
		"eventName": "sallyport." + string(r.Kind), "attributes": attributes(r),
	}
	if len(r.Data) > 0 {
		var v any
		if err := json.Unmarshal(r.Data, &v); err != nil {
			return err
		}
		rec["body"] = anyValue(v)
	}
	if o.batch = append(o.batch, rec); len(o.batch) < perMessage {
		return nil
	}
	return o.flush()
}

// texts are the attributes that are text. Where OpenTelemetry has no name for one, it
// is one of our own.
var texts = []struct {
	key string
	of  func(*audit.Record) string
}{
	{"sallyport.ref", func(r *audit.Record) string { return r.Ref }},
	{"container.id", func(r *audit.Record) string { return r.Cell }},
	{"sallyport.run", func(r *audit.Record) string { return r.Run }},
	{"sallyport.policy", func(r *audit.Record) string { return r.Policy }},
	{"sallyport.verdict", func(r *audit.Record) string { return r.Verdict }},
	{"sallyport.reason", func(r *audit.Record) string { return r.Reason }},
	{"sallyport.would_deny", func(r *audit.Record) string { return r.WouldDeny }},
	{"sallyport.rule", func(r *audit.Record) string { return r.Rule }},
	{"sallyport.where", func(r *audit.Record) string { return r.Where }},
	{"sallyport.scope", func(r *audit.Record) string { return r.Scope }},
	{"sallyport.credential", func(r *audit.Record) string { return r.Credential }},
	{"sallyport.event", func(r *audit.Record) string { return r.Event }},
	{"sallyport.listener", func(r *audit.Record) string { return r.Listener }},
	{"client.address", func(r *audit.Record) string { return r.Client }},
	{"sallyport.question", func(r *audit.Record) string { return r.Question }},
	{"network.protocol.name", func(r *audit.Record) string { return r.Proto }},
	{"server.address", func(r *audit.Record) string { return r.Host }},
	{"http.request.method", func(r *audit.Record) string { return r.Method }},
	{"url.path", func(r *audit.Record) string { return r.Path }},
	{"sallyport.query_hash", func(r *audit.Record) string { return r.Query }},
	{"sallyport.query_values", func(r *audit.Record) string { return r.Values }},
	{"dns.question.type", func(r *audit.Record) string { return r.QType }},
	{"dns.question.name", func(r *audit.Record) string {
		if r.QType == "" {
			return ""
		}
		return r.Host
	}},
	{"dns.answers", func(r *audit.Record) string { return r.Answer }},
	{"network.peer.address", func(r *audit.Record) string { return r.Addr }},
	{"error.message", func(r *audit.Record) string { return r.Error }},
	{"sallyport.cut", func(r *audit.Record) string { return strings.Join(r.Cut, " ") }},
}

// numbers are the attributes that are numbers; 0 is not said, as in the log.
var numbers = []struct {
	key string
	of  func(*audit.Record) int64
}{
	{"sallyport.schema", func(r *audit.Record) int64 { return int64(r.Schema) }},
	{"server.port", func(r *audit.Record) int64 { return int64(r.Port) }},
	{"http.response.status_code", func(r *audit.Record) int64 { return int64(r.Status) }},
	{"http.request.body.size", func(r *audit.Record) int64 { return r.Sent }},
	{"http.response.body.size", func(r *audit.Record) int64 { return r.Received }},
	{"sallyport.us", func(r *audit.Record) int64 { return r.Micros }},
}

func attributes(r *audit.Record) []object {
	number := func(key, value string) object {
		return object{"key": key, "value": object{"intValue": value}}
	}
	out := []object{
		{"key": "log.record.uid", "value": object{"stringValue": r.ID}},
		number("sallyport.seq", strconv.FormatUint(r.Seq, 10)),
	}
	for _, a := range texts {
		if v := a.of(r); v != "" {
			out = append(out, object{"key": a.key, "value": object{"stringValue": v}})
		}
	}
	for _, a := range numbers {
		if v := a.of(r); v != 0 {
			out = append(out, number(a.key, strconv.FormatInt(v, 10)))
		}
	}
	return out
}

// anyValue is JSON as OTLP spells it.
func anyValue(v any) object {
	switch v := v.(type) {
	case string:
		return object{"stringValue": v}
	case bool:
		return object{"boolValue": v}
	case float64:
		if v == float64(int64(v)) {
			return object{"intValue": strconv.FormatInt(int64(v), 10)}
		}
		return object{"doubleValue": v}
	case []any:
		values := []object{}
		for _, e := range v {
			values = append(values, anyValue(e))
		}
		return object{"arrayValue": object{"values": values}}
	case map[string]any:
		values := []object{}
		for _, k := range sortedKeys(v) {
			values = append(values, object{"key": k, "value": anyValue(v[k])})
		}
		return object{"kvlistValue": object{"values": values}}
	}
	return object{}
}

func (o *otlp) flush() error {
	if len(o.batch) == 0 {
		return nil
	}
	resource := []object{
		{"key": "service.name", "value": object{"stringValue": "sallyport"}},
		{"key": "service.version", "value": object{"stringValue": o.cfg.Version}},
	}
	if o.cfg.Host != "" {
		resource = append(resource, object{"key": "host.name", "value": object{"stringValue": o.cfg.Host}})
	}
	msg := object{"resourceLogs": []object{{
		"resource":  object{"attributes": resource},
		"scopeLogs": []object{{"scope": object{"name": "sallyport/audit"}, "logRecords": o.batch}},
	}}}
	err := query.Object(o.w, msg)
	o.batch = o.batch[:0]
	return err
}

func (o *otlp) close() error { return o.flush() }
