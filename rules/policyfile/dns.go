package policyfile

import (
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"sallyport/rules"
	"sallyport/rules/near"
	"sallyport/rules/target"
)

// lookupTypes are the types that can be looked up (RFC 1035, 2782, 3596, 8659).
// A is none of them, since a name has a virtual address; nor are HTTPS and SVCB,
// whose answers would have clients hide the name that they connect to.
var lookupTypes = []string{"AAAA", "CAA", "CNAME", "MX", "SRV", "TXT"}

// lookupDoc is an entry of dns.resolve.
type lookupDoc struct {
	node  ast.Node
	name  target.Name
	types []string
}

func (d *policyDoc) readDNS(n ast.Node) {
	d.mapping(n, "dns", []key{
		{name: "denied", read: d.word([]string{"explain", "nxdomain"}, func(s string) {
			if s == "nxdomain" {
				d.denied = rules.NameErrorDenied
			}
		})},
		{name: "resolve", read: d.items(d.readLookup)},
	})
}

func (d *policyDoc) readLookup(n ast.Node) {
	l := &lookupDoc{}
	before := len(d.errs)
	d.mapping(n, "a look-up", []key{
		{name: "host", required: true, read: d.lookupHost(l)},
		{name: "types", required: true, read: d.strs(func(n ast.Node, s string) { d.lookupType(n, s, &l.types) })},
	})
	if len(d.errs) > before {
		return
	}
	for _, other := range d.lookups {
		if other.name == l.name {
			d.errorf(l.node, "%s stands twice; say all of its types in one place", l.name)
			return
		}
	}
	d.lookups = append(d.lookups, l)
}

func (d *policyDoc) lookupHost(l *lookupDoc) func(ast.Node) {
	return func(n ast.Node) {
		var s string
		before := len(d.errs)
		l.node = n
		if d.str(&s)(n); len(d.errs) > before {
			return
		}
		h, ok := d.host(n, s)
		name, isName := h.Host.Name()
		switch {
		case !ok:
		case h.Wildcard:
			d.errorf(n, "%q: names that a sandbox chooses would tell things to whoever answers for %s; list the names", s, name)
		case !isName:
			d.errorf(n, "%q is an address; only names are looked up", s)
		case rules.IsReserved(name):
			d.errorf(n, "%s is reserved: the gateway answers it itself", rules.Reserved)
		}
		l.name = name
	}
}

func (d *policyDoc) lookupType(n ast.Node, s string, dst *[]string) {
	switch {
	case s == "A":
		d.errorf(n, "A is always answered, with an address by which the gateway knows the name, and never looked up for a sandbox; leave it out")
	case !slices.Contains(lookupTypes, s):
		d.errorf(n, "%q is none of %s%s", s, list(lookupTypes), near.Hint(s, lookupTypes))
	case slices.Contains(*dst, s):
		d.errorf(n, "%s stands twice", s)
	default:
		*dst = append(*dst, s)
	}
}

// allLookups are what the policy has looked up.
func (d *policyDoc) allLookups() (out []rules.Lookup) {
	for _, l := range d.lookups {
		for _, t := range l.types {
			out = append(out, rules.Lookup{Name: l.name, Type: rrTypes[t]})
		}
	}
	return out
}

func (d *policyDoc) lookupTexts() (out []string) {
	for _, l := range d.lookups {
		for _, t := range l.types {
			out = append(out, t+" "+l.name.String())
		}
	}
	slices.Sort(out)
	return out
}

// checkLookups refuses a look-up of a name that may not be reached: it would
// never be made.
func (d *policyDoc) checkLookups() {
	for _, l := range d.lookups {
		host := target.HostOf(rules.ServiceHost(l.name))
		covered := slices.ContainsFunc(d.ownRules(), func(r *ruleDoc) bool {
			return r.Action == rules.AllowAction && slices.ContainsFunc(r.Hosts, func(h rules.HostPattern) bool { return h.Match(host) })
		})
		if !covered {
			d.errorf(l.node, "no allow rule is about %s, so it is never looked up; allow the host, or take this out", host)
		}
	}
}

// dns writes how names are answered, nothing if as usual.
func (w *writer) dns(d *policyDoc) {
	nameError := d.denied == rules.NameErrorDenied
	switch {
	case len(d.lookups) == 0 && nameError:
		w.line(0, "dns: {denied: nxdomain}")
		return
	case len(d.lookups) == 0:
		return
	}
	w.line(0, "dns:")
	if nameError {
		w.line(1, "denied: nxdomain")
	}
	w.line(1, "resolve:")
	byName := map[string][]string{}
	for _, l := range d.lookups {
		byName[l.name.String()] = quoteAll(l.types)
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		w.line(2, "- {host: "+quote(name)+", types: ["+strings.Join(byName[name], ", ")+"]}")
	}
}
