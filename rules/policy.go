package rules

import (
	"errors"
	"net/netip"
	"slices"

	"sallyport/rules/target"
)

// Policy is a compiled, immutable set of rules. Make one with [Compile]; the
// zero and the nil Policy deny everything.
type Policy struct {
	compiled bool
	name     string
	digest   string
	denied   DeniedNames
	rules    []Rule // sorted: the first that matches is the one that speaks
	index
	observe bool    // mode: observe or learn
	learn   bool    // mode: learn: no deny rule is widened
	lax     *Policy // without what rules only observe; nil if none does
	// filter says that what the policy admits must be admitted by the allow
	// rules of the run too.
	filter bool
	narrow bool // there is something that narrows
	totals *Totals
	// lookups are the names and types that are looked up.
	lookups map[Lookup]struct{}
	never   []Rule // see Source
}

// DeniedNames says how a denied name is answered in DNS.
type DeniedNames uint8

// The values of dns.denied. Explain, the default, answers with a virtual
// address so that the gateway can say why; NameError answers NXDOMAIN.
const (
	ExplainDenied DeniedNames = iota
	NameErrorDenied
)

// Action is what a rule does. The zero value denies.
type Action uint8

// The actions.
const (
	DenyAction Action = iota
	AllowAction
)

// TLSMode says whether an allowed TLS stream is terminated here.
type TLSMode uint8

// The TLS modes. InspectTLS is the default: only it can judge methods and paths.
const (
	InspectTLS TLSMode = iota
	PassthroughTLS
)

// Rule is one rule in its compiled form. Empty Methods and Paths mean any;
// empty Ports, in a deny rule, mean any. A deny rule with Methods or Paths is
// judged when a request is known, one without already when a stream begins.
// Conditions are judged like methods and paths.
type Rule struct {
	ID      string
	Where   string // file:line
	Action  Action
	Hosts   []HostPattern
	Ports   []uint16 // never empty in an allow rule
	Raw     bool     // protocol: tcp: carry any bytes
	TLS     TLSMode
	Methods []string // each IsMethod, sorted
	Paths   []PathPattern
	// Conditions are about header fields and the query. All must be met.
	Conditions []Condition
	// Private are the cidrs of the rule. Beside Hosts, in an allow rule, they
	// are the special-purpose ranges that those hosts may resolve to. Without
	// Hosts they are themselves what the rule is about: raw addresses that lie
	// in them and, in a deny rule, every name that resolves to one. A name is
	// never allowed by them (IP-19).
	Private    []netip.Prefix
	Credential string
	// CallersKey, of an allow rule, lets a caller's own key through, where another
	// than the credential's would be refused ([ForeignCredential]).
	CallersKey bool
	// Observe says that what the rule denies, or what it would deny of its
	// hosts and ports by methods and paths, is let through and recorded.
	Observe bool
	// Learn, beside Observe in an allow rule, marks what is let through as
	// something to learn from.
	Learn   bool
	Scope   Scope
	Limits  Limits // of an allow rule
	Log     LogLevel
	Expires int64 // first second on which the rule no longer holds; 0 is never

	// What people wrote about the rule; not judged.
	Purpose string // reason: in the file
	Ticket  string
	Owner   string
}

// HostPattern is a host, or every name below one.
type HostPattern struct {
	Host     target.Host
	Wildcard bool // names one or more labels below Host, never Host itself
}

// String returns the pattern as a policy file spells it.
func (h HostPattern) String() string {
	if h.Wildcard {
		return "*." + h.Host.String()
	}
	return h.Host.String()
}

// Match reports whether h covers host.
func (h HostPattern) Match(host target.Host) bool {
	if !h.Wildcard {
		return h.Host == host && !host.IsZero()
	}
	parent, ok := h.Host.Name()
	name, isName := host.Name()
	return ok && isName && name.Below(parent)
}

// Source is what a policy is compiled from.
type Source struct {
	Name   string
	Digest string
	Rules  []Rule
	Denied DeniedNames
	// Observe lets everything through that rules would deny, and says so in
	// [Decision.Observed]. Guards that are no matter of rules stay.
	Observe bool
	// Learn, beside Observe, lets through only what no rule allows: deny rules
	// stand.
	Learn bool
	// Narrowed says that rules of the run's scope are there to narrow the
	// policy, be they none: see [RunScope].
	Narrowed bool
	// Totals bound what a run is admitted by all of its rules together.
	Totals Totals
	// Lookups are the names and types that are looked up for a sandbox, where an
	// allow rule is about their [ServiceHost].
	Lookups []Lookup
	// Never are what no mode lets through, in the form of deny rules; without
	// Hosts about every host. That the rules themselves admit none of it is for
	// the caller to prove.
	Never []Rule
}

// Name returns the policy's name.
func (p *Policy) Name() string {
	if p == nil {
		return ""
	}
	return p.name
}

// Digest returns "sha256:" and the hexadecimal digest of what the policy was
// read from, "" for a nil or zero Policy.
func (p *Policy) Digest() string {
	if p == nil {
		return ""
	}
	return p.digest
}

// Rules returns a copy of the rules, in the order in which they are consulted.
func (p *Policy) Rules() []Rule {
	if p == nil {
		return nil
	}
	out := make([]Rule, len(p.rules))
	for i := range p.rules {
		out[i] = clone(&p.rules[i])
	}
	return out
}

// Credentials returns the names of the credentials that the rules grant,
// sorted, each once.
func (p *Policy) Credentials() []string {
	if p == nil {
		return nil
	}
	var names []string
	for i := range p.rules {
		if c := p.rules[i].Credential; c != "" {
			names = append(names, c)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// WithoutRun returns the policy without what narrows it for one run.
func (p *Policy) WithoutRun() *Policy {
	if p == nil || !slices.ContainsFunc(p.rules, func(r Rule) bool { return r.Scope == RunScope }) && !p.filter {
		return p
	}
	out := *p
	out.filter = false
	out.rules = slices.DeleteFunc(slices.Clone(p.rules), func(r Rule) bool { return r.Scope == RunScope })
	out.index = newIndex(out.rules)
	if p.lax != nil {
		out.lax = p.lax.WithoutRun()
	}
	return &out
}

// With returns the policy with further rules, as approvals are: see [Compile]
// for the error, whose faults are by the place in more.
func (p *Policy) With(more []Rule) (*Policy, error) {
	if p == nil || !p.compiled {
		return nil, errors.New("no policy to add rules to")
	}
	src := Source{
		Name: p.name, Digest: p.digest, Denied: p.denied, Observe: p.observe, Learn: p.learn,
		Rules: append(p.Rules(), more...), Narrowed: p.narrow, Lookups: p.Lookups(), Never: p.never,
	}
	if p.totals != nil {
		src.Totals = *p.totals
	}
	return Compile(src)
}
