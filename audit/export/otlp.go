package export

import (
	"encoding/json"
	"io"
	"strconv"

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

func attributes(r *audit.Record) []object {
	var out []object
	text := func(key, value string) {
		if value != "" {
			out = append(out, object{"key": key, "value": object{"stringValue": value}})
		}
	}
	number := func(key string, value int64) {
		if value != 0 {
			out = append(out, object{"key": key, "value": object{"intValue": strconv.FormatInt(value, 10)}})
		}
	}
	text("log.record.uid", r.ID)
	out = append(out, object{"key": "sallyport.seq", "value": object{"intValue": strconv.FormatUint(r.Seq, 10)}})
	text("sallyport.ref", r.Ref)
	text("container.id", r.Cell)
	text("sallyport.run", r.Run)
	text("sallyport.policy", r.Policy)
	text("sallyport.verdict", r.Verdict)
	text("sallyport.reason", r.Reason)
	text("sallyport.rule", r.Rule)
	text("sallyport.where", r.Where)
	text("sallyport.scope", r.Scope)
	text("sallyport.credential", r.Credential)
	text("sallyport.listener", r.Listener)
	text("client.address", r.Client)
	text("sallyport.question", r.Question)
	text("network.protocol.name", r.Proto)
	text("server.address", r.Host)
	number("server.port", int64(r.Port))
	text("http.request.method", r.Method)
	text("url.path", r.Path)
	text("sallyport.query_hash", r.Query)
	text("sallyport.query_values", r.Values)
	text("dns.question.type", r.QType)
	if r.QType != "" {
		text("dns.question.name", r.Host)
	}
	text("dns.answers", r.Answer)
	text("network.peer.address", r.Addr)
	number("http.response.status_code", int64(r.Status))
	number("http.request.body.size", r.Sent)
	number("http.response.body.size", r.Received)
	number("sallyport.us", r.Micros)
	text("error.message", r.Error)
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
		{"key": "host.name", "value": object{"stringValue": o.cfg.Host}},
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
