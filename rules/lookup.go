package rules

import (
	"strings"

	"sallyport/rules/target"
)

// Lookup is a name and a DNS type that the gateway looks up for a sandbox, of
// whose answer it makes one of its own (dns.resolve). The name is spelled by the
// policy and never by a sandbox, so that a query carries nothing out.
type Lookup struct {
	Name target.Name
	Type uint16 // DNS RR type (RFC 1035 section 3.2.2); not A
}

// ServiceHost returns the host that a name is about: of _https._tcp.example.com
// (RFC 2782, RFC 8552) that is example.com.
func ServiceHost(n target.Name) target.Name {
	for strings.HasPrefix(n.String(), "_") {
		parent, ok := n.Parent()
		if !ok {
			break
		}
		n = parent
	}
	return n
}

// lookup answers a query for another type than A. Only what the policy lists is
// looked up, and only as long as its host may be reached; d is the decision
// about the name itself.
func (p *Policy) lookup(r *Request, d Decision) Decision {
	name, _ := r.Endpoint.Host.Name()
	if _, listed := p.lookups[Lookup{name, r.Type}]; !listed {
		return p.refuse(TypeNotAllowed)
	}
	if host := ServiceHost(name); host != name && d.Reason != DeniedByRule {
		about := *r
		about.Endpoint.Host = target.HostOf(host)
		s := survey{req: &about, depth: atHost}
		p.survey(&s)
		d = p.answer(&s)
	}
	d.LookUp = !refused(&d)
	return d
}

// Lookups returns what is looked up, in no order.
func (p *Policy) Lookups() []Lookup {
	if p == nil {
		return nil
	}
	list := make([]Lookup, 0, len(p.lookups))
	for l := range p.lookups {
		list = append(list, l)
	}
	return list
}
