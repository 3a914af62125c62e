package export

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/audit/query"
)

// object is a JSON object of which empty values are left out.
type object map[string]any

func (o object) text(name, value string) {
	if value != "" {
		o[name] = value
	}
}

func (o object) number(name string, value int64) {
	if value != 0 {
		o[name] = value
	}
}

func (o object) sub(name string, value object) {
	if len(value) > 0 {
		o[name] = value
	}
}

// endpoint is "address:port" as an object of two.
func endpoint(addr, ip string) object {
	o := object{}
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		o.text(ip, addr)
		return o
	}
	o.text(ip, host)
	if n, err := strconv.ParseUint(p, 10, 16); err == nil {
		o.number("port", int64(n))
	}
	return o
}

// ecs writes Elastic Common Schema documents, one a line, with the fields of
// docs/audit.md.
type ecs struct{ w io.Writer }

func newECS(w io.Writer, _ Config) writer { return ecs{w} }

func (e ecs) record(r *audit.Record) error {
	event := object{
		"action": string(r.Kind), "id": r.ID, "sequence": r.Seq, "module": "sallyport", "dataset": "sallyport.audit",
		"category": []string{category(r)}, "type": types(r),
	}
	if r.Kind == audit.Refuse || r.Kind == audit.Admit || r.Kind == audit.Done || r.Kind == audit.DNS {
		event["outcome"] = map[bool]string{true: "failure", false: "success"}[denied(r)]
	}
	event["kind"] = "event"
	event.text("reason", r.Reason)
	event.number("duration", r.Micros*1000)
	o := object{"@timestamp": r.Time.UTC().Format(time.RFC3339Nano), "ecs": object{"version": "8.17.0"}, "event": event}
	o.sub("labels", labels(r))
	if r.Cell != "" {
		o["container"] = object{"id": r.Cell}
	}
	rule := object{}
	rule.text("id", r.Rule)
	rule.text("ruleset", r.Policy)
	rule.text("reference", r.Where)
	o.sub("rule", rule)
	o.sub("source", withBytes(endpoint(r.Client, "address"), r.Sent))
	to := withBytes(endpoint(r.Addr, "address"), r.Received)
	to.text("domain", r.Host)
	to.number("port", int64(r.Port))
	o.sub("destination", to)
	e.protocols(o, r)
	if r.Error != "" {
		o["error"] = object{"message": r.Error}
	}
	if len(r.Data) > 0 {
		o["sallyport"] = object{"data": r.Data}
	}
	return query.Object(e.w, o)
}

// labels are what ECS has no field for.
func labels(r *audit.Record) object {
	o := object{}
	for _, l := range []struct{ name, value string }{
		{"ref", r.Ref},
		{"run", r.Run},
		{"scope", r.Scope},
		{"credential", r.Credential},
		{"question", r.Question},
		{"query_hash", r.Query},
		{"verdict", r.Verdict},
		{"cut", strings.Join(r.Cut, " ")},
	} {
		o.text(l.name, l.value)
	}
	return o
}

// protocols adds what was asked for.
func (e ecs) protocols(o object, r *audit.Record) {
	http, request, response := object{}, object{}, object{}
	request.text("method", r.Method)
	response.number("status_code", int64(r.Status))
	http.sub("request", request)
	http.sub("response", response)
	o.sub("http", http)
	if r.Path != "" {
		o["url"] = object{"path": r.Path, "domain": r.Host}
	}
	if r.QType != "" {
		dns := object{"question": object{"type": r.QType, "name": r.Host}}
		if r.Answer != "" {
			dns["answers"] = []object{{"data": r.Answer}}
		}
		o["dns"] = dns
	}
	if r.Proto != "" {
		o["network"] = object{"protocol": r.Proto}
	}
	if r.Listener != "" {
		o["observer"] = object{"ingress": object{"interface": object{"name": r.Listener}}, "product": "Sallyport"}
	}
}

func withBytes(o object, n int64) object {
	o.number("bytes", n)
	return o
}

func category(r *audit.Record) string {
	switch {
	case isRequest(r), r.Kind == audit.Bypass:
		return "network"
	case r.Kind == audit.PolicyLoad, r.Kind == audit.PolicyRefuse:
		return "configuration"
	}
	return "process"
}

// types are values of event.type.
func types(r *audit.Record) []string {
	switch r.Kind {
	case audit.Admit, audit.DNS, audit.Credential, audit.Refuse:
		return []string{"connection", map[bool]string{true: "denied", false: "allowed"}[denied(r)]}
	case audit.Done:
		return []string{"connection", "end"}
	case audit.RunStart, audit.CellUp, audit.LogOpen:
		return []string{"start"}
	case audit.RunEnd, audit.CellDown, audit.LogClose:
		return []string{"end"}
	case audit.Bypass:
		return []string{"connection", "denied"}
	case audit.PolicyLoad:
		return []string{"change"}
	case audit.PolicyRefuse:
		return []string{"error"}
	default:
		return []string{"info"}
	}
}

func (e ecs) close() error { return nil }

// ocsf writes OCSF 1.3 events, one a line: HTTP Activity (4002) for requests,
// DNS Activity (4003) for queries. Other records have no class of these and are
// left out.
type ocsf struct {
	w   io.Writer
	cfg Config
}

func newOCSF(w io.Writer, cfg Config) writer { return ocsf{w, cfg} }

const (
	ocsfHTTP = 4002
	ocsfDNS  = 4003
)

// methods are the activities of class 4002.
var methods = map[string]int{"CONNECT": 1, "DELETE": 2, "GET": 3, "HEAD": 4, "OPTIONS": 5, "POST": 6, "PUT": 7, "TRACE": 8}

func (f ocsf) record(r *audit.Record) error {
	class, activity := ocsfHTTP, methods[r.Method]
	switch {
	case r.QType != "":
		class, activity = ocsfDNS, 6 // Traffic: query and answer in one
	case !isRequest(r):
		return nil
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
			"correlation_uid": or(r.Ref, r.ID), "version": "1.3.0", "uid": r.ID, "sequence": r.Seq, "event_code": string(r.Kind), "original_time": r.Time.UTC().Format(time.RFC3339Nano),
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
	unmapped.text("query_hash", r.Query)
	unmapped.text("where", r.Where)
	unmapped.text("verdict", r.Verdict)
	o.sub("unmapped", unmapped)
	if r.QType != "" {
		o["query"] = object{"hostname": r.Host, "type": r.QType}
		if r.Answer != "" {
			o["answers"] = []object{{"rdata": r.Answer}}
		}
		return
	}
	request := object{"uid": r.ID}
	request.text("http_method", r.Method)
	url := object{"hostname": r.Host}
	url.text("path", r.Path)
	url.number("port", int64(r.Port))
	request["url"] = url
	o["http_request"] = request
	if r.Status != 0 {
		o["http_response"] = object{"code": r.Status}
	}
}

func withContainer(o object, r *audit.Record) object {
	if r.Cell != "" {
		o["container"] = object{"uid": r.Cell}
	}
	return o
}

func (f ocsf) close() error { return nil }

// cef writes ArcSight's Common Event Format, one event a line.
type cef struct {
	w   io.Writer
	cfg Config
}

func newCEF(w io.Writer, cfg Config) writer { return cef{w, cfg} }

var (
	cefHead  = strings.NewReplacer(`\`, `\\`, `|`, `\|`, "\n", " ", "\r", " ")
	cefValue = strings.NewReplacer(`\`, `\\`, `=`, `\=`, "\n", `\n`, "\r", `\r`)
)

func (f cef) record(r *audit.Record) error {
	severity := 1
	if denied(r) {
		severity = 5
	}
	if r.Kind == audit.Credential || r.Kind == audit.Bypass || r.Kind == audit.Gap {
		severity = 8
	}
	name := string(r.Kind)
	if r.Reason != "" {
		name += " " + r.Reason
	}
	var b strings.Builder
	fmt.Fprintf(&b, "CEF:0|Sallyport|Sallyport|%s|%s|%s|%d|", cefHead.Replace(f.cfg.Version), cefHead.Replace(string(r.Kind)),
		cefHead.Replace(name), severity)
	client, _, _ := net.SplitHostPort(r.Client)
	dialled, _, _ := net.SplitHostPort(r.Addr)
	act := ""
	if isRequest(r) {
		act = map[bool]string{true: "blocked", false: "allowed"}[denied(r)]
	}
	between := ""
	for _, p := range []struct{ key, value string }{
		{"rt", strconv.FormatInt(r.Time.UnixMilli(), 10)},
		{"externalId", r.ID},
		{"act", act},
		{"reason", r.Reason},
		{"src", client},
		{"dst", dialled},
		{"dhost", r.Host},
		{"dpt", digits(int64(r.Port))},
		{"app", r.Proto},
		{"requestMethod", r.Method},
		{"request", r.Path},
		{"out", digits(r.Sent)},
		{"in", digits(r.Received)},
		{"outcome", digits(int64(r.Status))},
		{"msg", r.Error},
		{"cs1Label", label(r.Run, "run")},
		{"cs1", r.Run},
		{"cs2Label", label(r.Rule, "rule")},
		{"cs2", r.Rule},
		{"cs3Label", label(r.Policy, "policy")},
		{"cs3", r.Policy},
		{"cs4Label", label(r.Credential, "credential")},
		{"cs4", r.Credential},
		{"cs5Label", label(r.Ref, "ref")},
		{"cs5", r.Ref},
		{"cs6Label", label(r.Cell, "cell")},
		{"cs6", r.Cell},
	} {
		if p.value != "" {
			fmt.Fprintf(&b, "%s%s=%s", between, p.key, cefValue.Replace(p.value))
			between = " "
		}
	}
	_, err := fmt.Fprintln(f.w, b.String())
	return err
}

func label(value, name string) string {
	if value == "" {
		return ""
	}
	return name
}

func (f cef) close() error { return nil }
