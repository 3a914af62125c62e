// Package rules decides what a sandbox may do.
//
// One engine answers every question the gateway has: may this name be
// answered, this connection be opened, this request be sent, this address be
// dialled. [Policy.Decide] is pure and total: no I/O, no clock of its own, no
// error, no allocation on the path that admits. A nil, zero or empty Policy
// denies everything, and so does a Request that this package does not
// understand.
//
// It trusts the caller for the facts in a [Request] (who asks, what time it
// is, what was sniffed) and nothing else. It never parses text from a
// sandbox: hosts and paths come as [target] types.
package rules

import (
	"net/netip"

	"sallyport/rules/target"
)

// Verdict says what may be done with a stream or a request. The zero value
// denies.
type Verdict uint8

// The verdicts. Inspect admits a request (Fetch); for a stream (Connect,
// Hello) it means: terminate here and ask again for every request. It never
// by itself allows an upstream connection for the stream.
const (
	Deny Verdict = iota
	Tunnel
	Inspect
)

// String returns the word used in records.
func (v Verdict) String() string {
	switch v {
	case Tunnel:
		return "tunnel"
	case Inspect:
		return "inspect"
	default:
		return "deny"
	}
}

// Question says what is asked. The zero value is no question and is denied.
type Question uint8

// The five questions, in the order in which a request meets them.
const (
	Resolve Question = iota + 1 // a DNS query: Host, Type, Carries
	Connect                     // a new stream, before its first byte: Endpoint
	Hello                       // a stream's first bytes are known: Endpoint, Protocol
	Fetch                       // one HTTP request: Endpoint, Secure, Method, Path, Query, Header, Length, Carries
	Reach                       // a resolved address, about to be dialled or (port 0, Type) answered: Endpoint, Addr
)

// String returns the word used in records.
func (q Question) String() string {
	switch q {
	case Resolve:
		return "resolve"
	case Connect:
		return "connect"
	case Hello:
		return "hello"
	case Fetch:
		return "fetch"
	case Reach:
		return "reach"
	default:
		return "none"
	}
}

// Protocol is what the first bytes of a stream showed.
type Protocol uint8

// The protocols that are told apart. Opaque is anything else, and also a
// stream on which the server speaks first.
const (
	Opaque Protocol = iota + 1
	TLS
	HTTP
)

// String returns the word used in records.
func (p Protocol) String() string {
	switch p {
	case Opaque:
		return "opaque"
	case TLS:
		return "tls"
	case HTTP:
		return "http"
	default:
		return "unknown"
	}
}

// Request is one question. Fields that its Question does not use are ignored.
type Request struct {
	Question Question
	// Cell is who asks: the identity that the network gave, never something
	// the sandbox said. It is recorded, not judged.
	Cell     string
	Endpoint target.Endpoint // port 0 for Resolve
	Type     uint16          // DNS RR type (RFC 1035 section 3.2.2)
	Protocol Protocol
	// Seen says in words what an Opaque protocol looked like. It is recorded when it
	// is refused, and not judged; nothing that the sandbox sent is in it.
	Seen   string
	Secure bool   // Fetch: inside TLS
	Method string // sandbox-controlled
	Path   target.Path
	Query  string // raw, sandbox-controlled
	// Header are the fields of the request as they go upstream, by canonical
	// name (an http.Header). Whoever asks does not change it afterwards.
	Header map[string][]string
	// Length is how many octets of body a request declares, -1 if it does not say.
	Length  int64
	Carries []Carry // credentials seen in the request
	Addr    netip.Addr
	Now     int64 // seconds since the Unix epoch
}

// HeadOctets counts the octets of a request's method, path, query, and of the names and
// values of its fields: what of a head carries anything, in any HTTP, and nothing between.
func (r *Request) HeadOctets() int64 {
	n := len(r.Method) + len(r.Path.String()) + len(r.Query)
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v)
		}
	}
	return int64(n)
}

// Carry says that a request holds something in a credential's place, or a
// credential's placeholder anywhere. The broker knows the places.
type Carry struct {
	Credential string
	State      CarryState
}

// CarryState is what was found.
type CarryState uint8

// What a request may hold with regard to one credential.
const (
	// Bound: the credential's own placeholder, in its own place.
	Bound CarryState = iota + 1
	// Foreign: something else in the credential's place: a caller's own key.
	Foreign
	// Leaked: the placeholder in a place that it is not bound to.
	Leaked
	// LeakedInHost: the placeholder in the name of the host, which no record may hold
	// as it is.
	LeakedInHost
)

// Decision is an answer that explains itself in a record.
type Decision struct {
	Verdict Verdict
	Reason  Reason
	// Observed, if not empty, is what this would have been refused for if it
	// were not only observed, or learned from: then Reason is [Learned]. Rule
	// and Where are then of the rule that would have denied it, if one did.
	Observed Reason
	// Explain, on a stream: the place is denied, but the stream is to be
	// terminated so that the refusal can be said inside it. Every Fetch on it
	// will be denied. Dialling is not allowed.
	Explain bool
	// NameError, on Resolve: answer a denied name with NXDOMAIN
	// (dns.denied: nxdomain) and not with a virtual address.
	NameError bool
	// LookUp, on Resolve: the policy has this name and type looked up
	// (dns.resolve). Everything else is answered without asking anybody.
	LookUp bool
	Rule   string // id, "" when none matched
	Where  string // file:line of the rule
	Scope  string // which scope spoke: floor, policy, run, approval; builtin
	// Credential is what the rule grants to an admitted request, "" for none.
	// In a refusal it is the credential that the refusal is about, if any.
	Credential string
	// CallersKey says that the rule lets a caller's own key through.
	CallersKey bool
	// Limits bound what is admitted, nil for nothing. Who acts on the decision
	// counts; Decide has no memory.
	Limits *Limits
	// Totals bound what a run is admitted by all of its rules together, nil for
	// nothing. They are counted beside Limits.
	Totals *Totals
	Log    LogLevel
	Policy string // digest of the policy, "sha256:…"
}

// LogLevel says how much of a request is recorded beyond what always is.
type LogLevel uint8

// The log levels of a policy file. The zero value records metadata. Every
// decision is recorded under any of them: LogNone leaves out of the records of
// what is admitted what was asked for inside the host (path and query), and
// nothing else. Refusals are recorded in full.
const (
	LogMetadata LogLevel = iota
	LogRequest
	LogRequestResponse
	LogNone
)

// Bodies reports a level at which bodies are kept.
func (l LogLevel) Bodies() bool { return l == LogRequest || l == LogRequestResponse }
