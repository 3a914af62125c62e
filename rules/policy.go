package rules

import (
	"net/netip"

	"sallyport/rules/target"
)

// Policy is a compiled, immutable set of rules. Make one with [Compile]; the
// zero and the nil Policy deny everything.
type Policy struct {
	name   string
	digest string
	rules  []Rule
	denied DeniedNames
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

// Rule is one rule in its compiled form. Empty Methods and Paths mean any.
type Rule struct {
	ID      string
	Where   string // file:line
	Action  Action
	Hosts   []HostPattern
	Ports   []uint16 // never empty in an allow rule
	Raw     bool     // protocol: tcp: carry any bytes
	TLS     TLSMode
	Methods []string // upper case, sorted
	Paths   []PathPattern
	// Private are special-purpose ranges that this rule opens (cidrs:).
	Private    []netip.Prefix
	Credential string
	Log        LogLevel
	Expires    int64 // first second on which the rule no longer holds; 0 is never
}

// HostPattern is a host, or every name below one.
type HostPattern struct {
	Host     target.Host
	Wildcard bool // names one or more labels below Host, never Host itself
}

// PathPattern is a compiled path pattern: see [ParsePathPattern].
type PathPattern struct {
	text     string
	segments []string
}

// Source is what a policy is compiled from.
type Source struct {
	Name   string
	Digest string
	Rules  []Rule
	Denied DeniedNames
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
