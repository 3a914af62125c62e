package policyfile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"sallyport/rules"
	"sallyport/rules/near"
	"sallyport/rules/target"
)

// ruleDoc is a rule while it is read.
type ruleDoc struct {
	rules.Rule
	doc    *policyDoc
	origin string // file:line from the directory of the first file
	shared bool   // multi_tenant: acknowledged
	at     ast.Node
	fields map[string]ast.Node // by the names of rules.Fault
	whole  bool                // read without an error that leaves open what it means
	found  bool                // detected: nobody wrote it
}

// node returns the node of a field; of what stands for it; of the rule.
func (r *ruleDoc) node(field string) ast.Node {
	stands := map[string]string{"hosts": "host", "methods": "access"}
	for _, name := range []string{field, stands[field], "match"} {
		if n := r.fields[name]; n != nil {
			return n
		}
	}
	return r.at
}

// item returns the node of one item of a field's list, by its text or its name; of
// the field where it is not written so.
func (r *ruleDoc) item(field, text string) ast.Node {
	whole := r.node(field)
	list, ok := whole.(*ast.SequenceNode)
	if !ok || text == "" {
		return whole
	}
	for _, n := range slices.Backward(list.Values) { // of two that are the same, the second is too many
		s, _ := textOf(n)
		switch x := n.(type) {
		case *ast.IntegerNode:
			s = x.GetToken().Value
		case *ast.MappingNode:
			for _, v := range x.Values {
				if keyOf(v) == "name" {
					s, _ = textOf(v.Value)
				}
			}
		}
		if s == text || field == "hosts" && spelledSo(s, text) {
			return n
		}
	}
	return whole
}

// spelledSo reports a name that may be written in the other of its two forms.
func spelledSo(s, host string) bool {
	name, wildcard := strings.CutPrefix(s, "*.")
	h, err := parseHost(name)
	return err == nil && rules.HostPattern{Host: h, Wildcard: wildcard}.String() == host
}

// match is the value of allow or deny while it is read.
type match struct {
	hosts   []rules.HostPattern
	ports   []uint16
	methods []string
	paths   []rules.PathPattern
	cidrs   []netip.Prefix
	raw     bool
	access  string
	// conditions are those of headers and query.
	conditions []rules.Condition
}

func (d *policyDoc) readRule(n ast.Node) {
	before := len(d.errs) - d.aside
	r := &ruleDoc{doc: d, at: n, fields: map[string]ast.Node{}}
	r.Where, r.origin = d.at(n), d.originOf(n)
	r.Log, r.TLS = d.defaults.log, d.defaults.tls
	r.Scope = d.loader.scope
	var m match
	var mode ruleMode
	var action string
	read := func(name string) func(ast.Node) {
		return func(n ast.Node) {
			if action != "" {
				d.errorf(n, "a rule allows or denies, not both")
				return
			}
			action = name
			d.readMatch(n, name, &m, r)
		}
	}
	keys := []key{
		{name: "id", required: true, read: d.id(&r.ID)},
		{name: "reason", required: true, read: d.besides(d.str(&r.Purpose))},
		{name: "ticket", read: d.besides(d.str(&r.Ticket))},
		{name: "owner", read: d.besides(d.str(&r.Owner))},
		{name: "expires", read: d.date(&r.Expires)},
		{name: "allow", read: read("allow")},
		{name: "deny", read: read("deny")},
		{name: "credential", read: d.grant(&r.Credential)},
		{name: "callers_key", read: d.word([]string{"refuse", "allow"}, func(w string) { r.CallersKey = w == "allow" })},
		{name: "mode", read: d.readMode(&mode)},
		{name: "tls", read: d.tls(&r.TLS)},
		{name: "log", read: d.besides(d.log(&r.Log))},
		{name: "multi_tenant", read: d.word([]string{"acknowledged"}, func(string) { r.shared = true })},
		{name: "limits", read: d.limits(&r.Limits)},
	}
	if d.written {
		keys = append(keys, key{name: "origin", required: true, read: func(n ast.Node) {
			d.str(&r.origin)(n)
			r.Where = r.origin
		}}, key{name: "scope", read: d.scopeWord(&r.Scope)})
	}
	seen := d.mapping(n, "a rule", keys)
	if seen == nil {
		return
	}
	if seen["allow"] == nil && seen["deny"] == nil {
		d.errorf(n, "a rule has allow or deny")
	}
	if seen["reason"] == nil {
		d.aside++
	}
	maps.Copy(r.fields, seen)
	d.finishRule(r, action, &m, mode, seen)
	r.whole = len(d.errs)-d.aside == before
	d.rules = append(d.rules, r)
}

// finishRule makes a rule of what was read.
func (d *policyDoc) finishRule(r *ruleDoc, action string, m *match, mode ruleMode, seen map[string]ast.Node) {
	r.Conditions, r.Observe, r.Learn = sorted(m.conditions), mode.observe, mode.learn
	r.Hosts, r.Ports, r.Methods, r.Paths, r.Private, r.Raw = m.hosts, m.ports, m.methods, m.paths, m.cidrs, m.raw
	switch action {
	case "allow":
		r.Action = rules.AllowAction
		d.fillIn(r, m, seen["tls"] != nil)
		for _, h := range r.Hosts {
			d.checkWildcard(r.item("hosts", h.String()), h, r.shared)
		}
	case "deny":
		d.checkDeny(r, m, seen)
	}
	slices.Sort(r.Methods)
}

func (d *policyDoc) readMatch(n ast.Node, what string, m *match, r *ruleDoc) {
	seen := d.mapping(n, what, []key{
		{name: "host", read: d.oneHost(&m.hosts)},
		{name: "hosts", read: d.hostList(&m.hosts)},
		{name: "ports", read: d.ports(&m.ports)},
		{name: "methods", read: d.methods(&m.methods)},
		{name: "access", read: d.word([]string{"read", "write"}, func(s string) { m.access = s })},
		{name: "paths", read: d.paths(&m.paths)},
		{name: "headers", read: d.conditions(rules.InHeader, &m.conditions)},
		{name: "query", read: d.conditions(rules.InQuery, &m.conditions)},
		{name: "protocol", read: d.word([]string{"tcp"}, func(string) { m.raw = true })},
		{name: "cidrs", read: d.prefixes(&m.cidrs)},
	})
	maps.Copy(r.fields, seen)
	if seen["host"] != nil && seen["hosts"] != nil {
		d.errorf(seen["hosts"], "host and hosts; write one of them")
	}
	r.fields["match"] = n
	if seen["access"] != nil && seen["methods"] != nil {
		d.errorf(seen["access"], "access and methods; write one of them")
	}
}

// oneHost and hostList read host patterns, each once.
func (f *file) oneHost(dst *[]rules.HostPattern) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		var s string
		if f.str(&s)(n); len(f.errs) == before {
			for _, v := range f.expand(n, s) {
				f.addHost(n, v, dst)
			}
		}
	}
}

func (f *file) hostList(dst *[]rules.HostPattern) func(ast.Node) {
	return f.strs(func(n ast.Node, s string) { f.addHost(n, s, dst) })
}

func (f *file) addHost(n ast.Node, s string, dst *[]rules.HostPattern) {
	h, ok := f.host(n, s)
	switch {
	case !ok:
	case slices.Contains(*dst, h):
		f.errorf(n, "%q stands twice", s)
	default:
		*dst = append(*dst, h)
	}
}

// fillIn completes an allow rule. A rule that carries streams unseen has no
// methods to fill in.
func (d *policyDoc) fillIn(r *ruleDoc, m *match, ownTLS bool) {
	if len(r.Ports) == 0 {
		r.Ports = slices.Clone(d.defaults.ports)
	}
	if r.Raw && !ownTLS {
		r.TLS = rules.InspectTLS // a default is about TLS streams, not about these
	}
	blind := r.Raw || r.TLS == rules.PassthroughTLS
	if d.loader.scope == rules.PolicyScope {
		r.Limits = limitsOver(r.Limits, d.defaults.limits, blind)
	}
	if blind {
		if m.access != "" {
			d.errorf(r.node("access"), "a stream that is not looked into has no methods, so access cannot be judged")
		}
		return
	}
	switch {
	case m.access == "read":
		r.Methods = readMethods()
	case m.access == "write":
		r.Methods = nil // any
	case len(r.Methods) == 0:
		r.Methods = slices.Clone(d.defaults.methods)
	}
}

// checkDeny refuses what would mean nothing in a deny rule. Defaults are for
// allow rules: a deny rule without ports or methods is about all of them.
func (d *policyDoc) checkDeny(r *ruleDoc, m *match, seen map[string]ast.Node) {
	if seen["tls"] == nil {
		r.TLS = rules.InspectTLS
	}
	if m.access != "" {
		d.errorf(r.node("access"), "a deny rule lists its methods; access is for allow rules")
	}
	if seen["multi_tenant"] != nil {
		d.errorf(seen["multi_tenant"], "multi_tenant is for allow rules")
	}
	if seen["callers_key"] != nil {
		d.errorf(seen["callers_key"], "callers_key is for allow rules")
	}
}

// checkGrant holds a rule against the second lock: what it grants has to lie
// within the endpoints of the credential.
func (d *policyDoc) checkGrant(r *ruleDoc) {
	if !rules.IsID(r.Credential) || d.loader.kept {
		return
	}
	i := slices.IndexFunc(d.creds, func(c Credential) bool { return c.Name == r.Credential })
	if i < 0 {
		known := make([]string, len(d.creds))
		for i := range d.creds {
			known[i] = d.creds[i].Name
		}
		d.errorf(r.node("credential"), "no credential is named %q%s", r.Credential, missing(r.Credential, known))
		r.whole = false
	}
	if !r.whole || r.Action != rules.AllowAction || r.Raw || r.TLS == rules.PassthroughTLS {
		return // Compile refuses a credential here in its own words
	}
	field, item, text := beyond(&r.Rule, &d.creds[i])
	if text != "" {
		d.errorf(r.item(field, item), "credential %q (%s) does not go that far: %s", r.Credential, d.creds[i].Where, text)
	}
}

func missing(name string, known []string) string {
	if len(known) == 0 {
		return "; no credential is known here"
	}
	if s := near.Hint(name, known); s != "" {
		return s
	}
	return "; there is " + list(known)
}

// beyond returns the first thing that a rule grants and a credential's
// endpoints do not, and the field and the item of it that say it. One endpoint has to hold each
// combination of host, port, method and path as a whole.
func beyond(r *rules.Rule, c *Credential) (field, item, text string) {
	methods := r.Methods
	if len(methods) == 0 {
		methods = []string{""} // any
	}
	for _, h := range r.Hosts {
		near := c.at(h)
		if len(near) == 0 {
			return "hosts", h.String(), fmt.Sprintf("none of its endpoints is %s", h)
		}
		for _, port := range r.Ports {
			at := filter(near, func(e *Endpoint) bool { return slices.Contains(e.Ports, port) })
			if len(at) == 0 {
				return "ports", strconv.Itoa(int(port)), fmt.Sprintf("no endpoint is %v", target.Endpoint{Host: h.Host, Port: port})
			}
			for _, m := range methods {
				with := filter(at, func(e *Endpoint) bool { return len(e.Methods) == 0 || m != "" && slices.Contains(e.Methods, m) })
				if len(with) == 0 {
					return "methods", m, fmt.Sprintf("no endpoint has %s %s", orAny(m, "every method on"), h)
				}
				if path, ok := beyondPaths(r, with); !ok {
					return "paths", path, fmt.Sprintf("no endpoint has %s %s%s", orAny(m, "every method on"), h, orAny(path, " with every path"))
				}
			}
		}
	}
	return "", "", ""
}

// beyondPaths reports whether endpoints cover the paths of r, and if not returns a
// pattern that none covers, "" for that of a rule without patterns.
func beyondPaths(r *rules.Rule, at []*Endpoint) (path string, ok bool) {
	if slices.ContainsFunc(at, func(e *Endpoint) bool { return len(e.Paths) == 0 }) {
		return "", true
	}
	if len(r.Paths) == 0 {
		return "", false
	}
	for _, p := range r.Paths {
		if !slices.ContainsFunc(at, func(e *Endpoint) bool {
			return slices.ContainsFunc(e.Paths, func(q rules.PathPattern) bool { return q.Covers(p) })
		}) {
			return p.String(), false
		}
	}
	return "", true
}

func orAny(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func filter(in []*Endpoint, keep func(*Endpoint) bool) (out []*Endpoint) {
	for _, e := range in {
		if keep(e) {
			out = append(out, e)
		}
	}
	return out
}
