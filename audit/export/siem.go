package export

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
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
	if isRequest(r) {
		event["outcome"] = map[bool]string{true: "failure", false: "success"}[denied(r)]
	}
	if category(r) == "configuration" && r.Kind != audit.AccessAsked { // no event.type of that category says that it failed
		event["outcome"] = map[bool]string{true: "failure", false: "success"}[r.Kind == audit.PolicyRefuse]
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
		{"event", r.Event},
		{"question", r.Question},
		{"query_hash", r.Query},
		{"query_values", r.Values},
		{"verdict", r.Verdict},
		{"would_deny", r.WouldDeny},
		{"schema", digits(int64(r.Schema))},
		{"cut", strings.Join(r.Cut, " ")},
	} {
		o.text(l.name, l.value)
	}
	return o
}

// httpVersions are the versions of HTTP of a request's proto.
var httpVersions = map[string]string{"h1": "1.1", "h2": "2"}

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
		if _, code := replies[r.Answer]; code {
			dns["response_code"] = ecsCode(r.Answer)
		} else if r.Answer != "" && r.Answer != lookedUp {
			dns["answers"], dns["response_code"] = []object{{"data": r.Answer}}, "NOERROR"
		}
		o["dns"] = dns
	}
	if version := httpVersions[r.Proto]; version != "" {
		http["version"], o["http"] = version, http
		o["network"] = object{"protocol": "http"}
	} else if r.Proto != "" {
		o["network"] = object{"protocol": r.Proto}
	}
	if r.Listener != "" {
		o["observer"] = object{"ingress": object{"interface": object{"name": r.Listener}}, "product": "Sallyport"}
	}
}

// ecsCode is the name of a response code as DNS has it.
func ecsCode(answer string) string {
	if answer == "NODATA" {
		return "NOERROR"
	}
	return answer
}

func withBytes(o object, n int64) object {
	o.number("bytes", n)
	return o
}

func category(r *audit.Record) string {
	switch r.Kind {
	case audit.Bypass:
		return "network"
	case audit.PolicyLoad, audit.PolicyRefuse, audit.CredentialChange, audit.CARotate, audit.AccessAsked, audit.AccessDecided:
		return "configuration" // what is approved is one more rule
	default:
		if isRequest(r) {
			return "network"
		}
		return "process"
	}
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
	case audit.PolicyLoad, audit.CredentialChange, audit.CARotate, audit.AccessDecided:
		return []string{"change"}
	default:
		return []string{"info"}
	}
}

func (e ecs) close() error { return nil }

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

// cefSeverity is 0 to 10; from 7 on it is high.
func cefSeverity(r *audit.Record) int {
	switch {
	case r.Kind == audit.Bypass, r.Kind == audit.Gap, r.Kind == audit.Credential && r.Event == "leak":
		return 8
	case denied(r):
		return 5
	}
	return 1
}

func (f cef) record(r *audit.Record) error {
	name := strings.Join(slices.DeleteFunc([]string{string(r.Kind), r.Event, r.Reason}, func(s string) bool { return s == "" }), " ")
	var b strings.Builder
	fmt.Fprintf(&b, "CEF:0|Sallyport|Sallyport|%s|%s|%s|%d|", cefHead.Replace(f.cfg.Version), cefHead.Replace(string(r.Kind)),
		cefHead.Replace(name), cefSeverity(r))
	client4, client6 := byFamily(r.Client)
	dialled4, dialled6 := byFamily(r.Addr)
	act, between := r.Event, ""
	if isRequest(r) {
		act = map[bool]string{true: "blocked", false: "allowed"}[denied(r)]
	}
	for _, p := range []struct{ key, value string }{
		{"rt", strconv.FormatInt(r.Time.UnixMilli(), 10)},
		{"externalId", r.ID},
		{"act", act},
		{"reason", r.Reason},
		{"src", client4},
		{"dst", dialled4},
		{"dhost", r.Host},
		{"dpt", digits(int64(r.Port))},
		{"app", r.Proto},
		{"requestMethod", r.Method},
		{"request", requestURL(r)},
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
		{"c6a2Label", label(client6, "Source IPv6 Address")},
		{"c6a2", client6},
		{"c6a3Label", label(dialled6, "Destination IPv6 Address")},
		{"c6a3", dialled6},
	} {
		if p.value != "" {
			fmt.Fprintf(&b, "%s%s=%s", between, p.key, cefValue.Replace(p.value))
			between = " "
		}
	}
	_, err := fmt.Fprintln(f.w, b.String())
	return err
}

// byFamily returns the address of "address:port" as one of IPv4 or of IPv6, which
// have keys of their own in CEF.
func byFamily(addr string) (v4, v6 string) {
	a, err := netip.ParseAddrPort(addr)
	if err != nil {
		return "", ""
	}
	ip := a.Addr().Unmap().WithZone("")
	if ip.Is4() {
		return ip.String(), ""
	}
	return "", ip.String()
}

// requestURL is the URL of a request, without its query.
func requestURL(r *audit.Record) string {
	if r.Path == "" || r.Host == "" {
		return r.Path
	}
	return urlOf(r)
}

func label(value, name string) string {
	if value == "" {
		return ""
	}
	return name
}

func (f cef) close() error { return nil }
