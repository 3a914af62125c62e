package export

import (
	"io"
	"time"

	"sallyport/audit"
	"sallyport/audit/query"
)

// ocsf writes OCSF 1.4 events, one a line: HTTP Activity (4002) for requests,
// DNS Activity (4003) for queries. Other records have no class of these and are
// left out.
type ocsf struct {
	w   io.Writer
	cfg Config
}

func newOCSF(w io.Writer, cfg Config) writer { return ocsf{w, cfg} }

const (
	ocsfVersion = "1.4.0"
	ocsfHTTP    = 4002
	ocsfDNS     = 4003
)

// methods are the activities of class 4002, and the methods that an
// http_request can name. Version 1.4 has no PATCH.
var methods = map[string]int{"CONNECT": 1, "DELETE": 2, "GET": 3, "HEAD": 4, "OPTIONS": 5, "POST": 6, "PUT": 7, "TRACE": 8}

func (f ocsf) record(r *audit.Record) error {
	class, activity := ocsfHTTP, methods[r.Method]
	switch {
	case r.QType != "":
		class, activity = ocsfDNS, 6 // Traffic: query and answer in one
	case !isRequest(r):
		return errNoPlace
	case activity == 0 && r.Method != "":
		activity = 99
	}
	action, disposition, severity, status := 1, 1, 1, 1
	if denied(r) {
		action, disposition, severity, status = 2, 2, 3, 2
	}
	o := object{
		"category_uid": 4, "class_uid": class, "activity_id": activity, "type_uid": class*100 + activity,
		"time": r.Time.UnixMilli(), "severity_id": severity, "action_id": action, "disposition_id": disposition, "status_id": status,
		"metadata": object{
			"correlation_uid": or(r.Ref, r.ID), "version": ocsfVersion, "uid": r.ID, "sequence": r.Seq, "event_code": string(r.Kind), "original_time": r.Time.UTC().Format(time.RFC3339Nano),
			"product": object{"name": "Sallyport", "vendor_name": "Sallyport", "version": f.cfg.Version}, "profiles": []string{"container", "security_control"},
		},
	}
	if activity == 99 {
		o.text("activity_name", r.Method)
	}
	o.text("status_detail", r.Reason)
	o.text("message", r.Error)
	o.number("duration", r.Micros/1000)
	o.sub("src_endpoint", withContainer(endpoint(r.Client, "ip"), r))
	to := endpoint(r.Addr, "ip")
	to.text("hostname", r.Host)
	to.number("port", int64(r.Port))
	if len(to) == 0 {
		to["name"] = "unknown"
	}
	o["dst_endpoint"] = to
	rule := object{}
	rule.text("uid", r.Rule)
	rule.text("name", r.Rule)
	o.sub("firewall_rule", rule)
	if r.Policy != "" {
		o["policy"] = object{"uid": r.Policy, "is_applied": true}
	}
	traffic := object{}
	traffic.number("bytes_out", r.Sent)
	traffic.number("bytes_in", r.Received)
	o.sub("traffic", traffic)
	f.own(o, r)
	return query.Object(f.w, o)
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// own adds what one of the classes has alone, and what has no attribute.
func (f ocsf) own(o object, r *audit.Record) {
	unmapped := object{}
	unmapped.text("run", r.Run)
	unmapped.text("credential", r.Credential)
	unmapped.text("event", r.Event)
	unmapped.text("query_hash", r.Query)
	unmapped.text("query_values", r.Values)
	unmapped.text("where", r.Where)
	unmapped.text("verdict", r.Verdict)
	o.sub("unmapped", unmapped)
	if r.QType != "" {
		o["query"] = object{"hostname": or(r.Host, "."), "type": r.QType}
		if code, name, data := replyOf(r.Answer); name != "" {
			o["rcode_id"], o["rcode"] = code, name
			if data != "" {
				o["answers"] = []object{{"rdata": data}}
			}
		}
		return
	}
	request := object{"uid": r.ID}
	if methods[r.Method] != 0 {
		request["http_method"] = r.Method
	}
	if r.Path != "" { // a URL has one, or is given whole, and no scheme is recorded
		url := object{"path": r.Path}
		url.text("hostname", r.Host)
		url.number("port", int64(r.Port))
		request["url"] = url
	}
	o["http_request"] = request
	if r.Status != 0 {
		o["http_response"] = object{"code": r.Status}
	}
}

// replies are the codes that DNS records name, as class 4003 spells them.
var replies = map[string]struct {
	code int
	name string
}{
	"NODATA": {0, "NoError"}, "FORMERR": {1, "FormError"}, "SERVFAIL": {2, "ServError"}, "NXDOMAIN": {3, "NXDomain"},
	"NOTIMP": {4, "NotImp"}, "REFUSED": {5, "Refused"}, "BADVERS": {16, "BADSIG_VERS"}, "BADCOOKIE": {23, "BADCOOKIE"},
}

// lookedUp is the answer of a query whose outcome its done record has.
const lookedUp = "look-up"

// replyOf takes a record's answer apart: a code, its name, and the data if there
// was any. A query that was looked up, or answered with silence, has no reply yet.
func replyOf(answer string) (code int, name, data string) {
	if answer == "" || answer == lookedUp {
		return 0, "", ""
	}
	if r, ok := replies[answer]; ok {
		return r.code, r.name, ""
	}
	return 0, "NoError", answer
}

func withContainer(o object, r *audit.Record) object {
	if r.Cell != "" { // an endpoint has to have more than its container
		o["uid"], o["container"] = r.Cell, object{"uid": r.Cell}
	}
	return o
}

func (f ocsf) close() error { return nil }
