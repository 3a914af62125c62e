package rules

import (
	"net/netip"
	"slices"

	"sallyport/rules/target"
)

// Reserved is the name that the gateway answers itself, over plain HTTP. No
// policy may name it or a name below it, and it is never dialled.
const Reserved = "sallyport.internal"

const (
	reservedPort = 80
	typeA        = 1 // RFC 1035 section 3.2.2

	scopePolicy  = "policy"
	scopeBuiltIn = "builtin" // sallyport.internal
)

var reserved = func() target.Name {
	n, err := target.ParseName(Reserved)
	if err != nil {
		panic("rules: reserved name: " + err.Error())
	}
	return n
}()

// IsReserved reports whether a name is [Reserved] or below it.
func IsReserved(n target.Name) bool { return n == reserved || n.Below(reserved) }

// Decide answers a question. Order never matters: a matching deny rule wins,
// else a matching allow rule admits, else the answer is deny. The reason of a
// refusal is that of the allow rule which came nearest: host, then port,
// protocol, method, path.
//
// Where several allow rules match, the one that speaks is the first by: grants
// a credential, has paths, has methods, has no wildcard, id. Which one it is
// changes the name in the record and the log level, never what is admitted:
// Compile refuses rules that could match one request with different
// credentials, or carry one stream in different ways.
func (p *Policy) Decide(req Request) Decision {
	if p == nil || !p.compiled {
		return Decision{Reason: NoPolicy}
	}
	d := p.decide(&req)
	if (p.observe || p.lax != nil) && refused(&d) {
		return p.observed(&req, d)
	}
	return d
}

// decide answers as if everything were enforced.
func (p *Policy) decide(req *Request) Decision {
	if !wellFormed(req) {
		return p.refuse(BadRequest)
	}
	if n, ok := req.Endpoint.Host.Name(); ok && IsReserved(n) {
		return p.decideReserved(req, n == reserved)
	}
	switch req.Question {
	case Resolve:
		return p.resolve(req)
	case Connect:
		return p.connect(req)
	case Hello:
		return p.hello(req)
	case Fetch:
		return p.fetch(req)
	case Reach:
		return p.reach(req)
	default:
		return p.refuse(BadRequest)
	}
}

// wellFormed reports whether a request has all that its question needs.
func wellFormed(r *Request) bool {
	if r.Endpoint.Host.IsZero() || r.Question != Resolve && r.Endpoint.Port == 0 {
		return false
	}
	switch r.Question {
	case Resolve:
		_, isName := r.Endpoint.Host.Name()
		return isName
	case Connect:
		return true
	case Hello:
		return r.Protocol == Opaque || r.Protocol == TLS || r.Protocol == HTTP
	case Fetch:
		return IsMethod(r.Method) && !r.Path.IsZero()
	case Reach:
		if a, ok := r.Endpoint.Host.Addr(); ok && a != r.Addr.Unmap() {
			return false
		}
		return r.Addr.IsValid() && r.Addr.Zone() == ""
	default:
		return false
	}
}

func (p *Policy) refuse(reason Reason) Decision {
	return Decision{Reason: reason, Scope: scopePolicy, Policy: p.digest}
}

// speak is a decision in the name of a rule. Only a request can be granted a
// credential; its stream never is.
func (p *Policy) speak(v Verdict, reason Reason, r *Rule) Decision {
	d := p.refuse(reason)
	d.Verdict, d.Rule, d.Where, d.Log = v, r.ID, r.Where, r.Log
	if reason == Allowed {
		d.Limits = r.limits()
	}
	return d
}

// decideReserved answers for sallyport.internal. Reach is refused, so that a
// pass for it can never be dialled.
func (p *Policy) decideReserved(r *Request, self bool) Decision {
	d := Decision{Reason: Allowed, Scope: scopeBuiltIn, Policy: p.digest, Verdict: Inspect}
	reason := reservedReason(r, self)
	switch {
	case reason == Allowed && r.Question == Fetch:
		return p.judgeCarries(r, &d)
	case reason == Allowed:
	case r.Question == Connect || r.Question == Hello && r.Protocol != Opaque:
		d.Reason, d.Explain = reason, true
	default:
		d.Verdict, d.Reason = Deny, reason
		d.NameError = r.Question == Resolve && !self && p.denied == NameErrorDenied
	}
	return d
}

func reservedReason(r *Request, self bool) Reason {
	switch {
	case r.Question == Reach:
		return PrivateIP
	case !self:
		return HostNotAllowed
	case r.Question == Resolve && r.Type != typeA:
		return TypeNotAllowed
	case r.Question == Resolve:
		return Allowed
	case r.Endpoint.Port != reservedPort:
		return PortNotAllowed
	case r.Question == Hello && r.Protocol != HTTP, r.Question == Fetch && r.Secure:
		return ProtocolNotAllowed
	case r.Question == Fetch && neverMethod(r.Method):
		return MethodNotAllowed
	default:
		return Allowed
	}
}

// resolve answers a DNS query. A name is denied outright only by a deny rule
// about all of it.
func (p *Policy) resolve(r *Request) Decision {
	s := survey{req: r, depth: atHost}
	p.survey(&s)
	place, denied := s.refusal(p)
	if r.Type != typeA {
		d := p.refuse(TypeNotAllowed)
		d.NameError = denied && p.denied == NameErrorDenied
		return d
	}
	if denied {
		place.NameError = p.denied == NameErrorDenied
		return place
	}
	if s.inspect >= 0 {
		return p.speak(Inspect, Allowed, &p.rules[s.inspect])
	}
	return p.speak(Tunnel, Allowed, &p.rules[s.best])
}

// connect answers for a stream of which nothing is known but where it goes. A
// denied place is inspected too, so that the refusal can be said inside.
func (p *Policy) connect(r *Request) Decision {
	s := survey{req: r, depth: atPort}
	p.survey(&s)
	if d, denied := s.refusal(p); denied {
		d.Verdict, d.Explain = Inspect, true
		return d
	}
	if s.raw >= 0 {
		return p.speak(Tunnel, Allowed, &p.rules[s.raw])
	}
	return p.speak(Inspect, Allowed, &p.rules[s.best])
}

// hello answers for a stream whose protocol is known.
func (p *Policy) hello(r *Request) Decision {
	s := survey{req: r, depth: atPort}
	p.survey(&s)
	if d, denied := s.refusal(p); denied {
		if r.Protocol != Opaque {
			d.Verdict, d.Explain = Inspect, true
		}
		return d
	}
	switch {
	case s.raw >= 0:
		return p.speak(Tunnel, Allowed, &p.rules[s.raw])
	case r.Protocol == Opaque:
		return p.refuse(ProtocolNotAllowed)
	case r.Protocol == TLS && s.inspect < 0:
		return p.speak(Tunnel, Allowed, &p.rules[s.best])
	case s.inspect < 0:
		// Plain HTTP where only TLS that is passed through is allowed.
		d := p.refuse(ProtocolNotAllowed)
		d.Verdict, d.Explain = Inspect, true
		return d
	default:
		return p.speak(Inspect, Allowed, &p.rules[s.inspect])
	}
}

// fetch answers for one request.
func (p *Policy) fetch(r *Request) Decision {
	s := survey{req: r, depth: atPath}
	p.survey(&s)
	d, denied := s.refusal(p)
	if !denied {
		rule := &p.rules[s.best]
		d = p.speak(Inspect, Allowed, rule)
		d.Credential = rule.Credential
	}
	if len(r.Carries) > 0 {
		return p.judgeCarries(r, &d)
	}
	if d.Credential != "" && !r.Secure {
		d.Verdict, d.Reason = Deny, CredentialNeedsTLS
	}
	return d
}

// judgeCarries looks at the credentials that a request holds. A refusal here
// names the credential that it is about, since a leak matters to the reviewer
// more than anything else about the request.
//
//   - A placeholder outside its place, or in its place but sent to a host for
//     which no rule grants it, is a leak wherever the request goes (CR-05).
//   - In an admitted request, so is one that the matching rule does not grant.
//   - A caller's own key is refused on every host for which some rule grants
//     the credential whose place it takes: an allowed API is no drop box for
//     somebody else's account (CR-14, EX-01).
func (p *Policy) judgeCarries(r *Request, d *Decision) Decision {
	out := *d
	blame := func(reason Reason, credential string) Decision {
		out.Verdict, out.Explain, out.Reason, out.Credential = Deny, false, reason, credential
		return out
	}
	for _, c := range r.Carries {
		switch {
		case c.State == Foreign:
		case c.State != Bound, !p.grants(r.Endpoint.Host, c.Credential):
			return blame(PlaceholderLeak, c.Credential)
		case d.Verdict != Deny && c.Credential != d.Credential:
			return blame(PlaceholderLeak, c.Credential)
		}
	}
	if d.Verdict == Deny {
		return out
	}
	for _, c := range r.Carries {
		if c.State == Foreign && (c.Credential == d.Credential || p.grants(r.Endpoint.Host, c.Credential)) {
			return blame(ForeignCredential, c.Credential)
		}
	}
	if d.Credential != "" && !r.Secure {
		return blame(CredentialNeedsTLS, d.Credential)
	}
	return out
}

// grants reports whether any rule about a host grants a credential.
func (p *Policy) grants(h target.Host, credential string) (yes bool) {
	p.near(h, func(i int32) bool {
		yes = p.rules[i].Credential == credential && credential != ""
		return !yes
	})
	return yes
}

// reach answers for an address that an admitted request or stream is about to
// be carried to. What admitted it is asked again, so that this answer stands
// on its own.
func (p *Policy) reach(r *Request) Decision {
	stream := streamOf(r)
	if !wellFormed(&stream) {
		return p.refuse(BadRequest)
	}
	d := p.reachable(&stream)
	if d.Verdict == Deny || d.Explain {
		d.Verdict, d.Explain = Deny, false
		return d
	}
	addr := r.Addr.Unmap()
	if rule := p.denies(&stream, addr); rule != nil {
		return p.speak(Deny, DeniedByRule, rule)
	}
	if _, special := Special(addr); special && !p.opens(&stream, addr) {
		d.Verdict, d.Reason = Deny, PrivateIP
	}
	return d
}

// streamOf returns the question whose answer an address is for.
func streamOf(r *Request) Request {
	stream := *r
	switch {
	case r.Method != "":
		stream.Question = Fetch
	case r.Protocol != 0:
		stream.Question = Hello
	default:
		stream.Question = Connect
	}
	return stream
}

func (p *Policy) reachable(r *Request) Decision {
	switch r.Question {
	case Fetch:
		return p.fetch(r)
	case Hello:
		return p.hello(r)
	default:
		return p.connect(r)
	}
}

// denies returns a deny rule about an address that r would be carried to. One
// that cannot judge the path of r denies it (see [survey.cannotJudge]).
func (p *Policy) denies(r *Request, addr netip.Addr) (found *Rule) {
	s := survey{req: r, depth: depthOf(r)}
	p.nearAddr(addr, func(i int32) bool {
		if rule := &p.rules[i]; rule.Action == DenyAction && (s.denies(rule) || s.cannotJudge(rule)) {
			found = rule
		}
		return found == nil
	})
	return found
}

// opens reports whether a rule that admits r opens a special-purpose address.
func (p *Policy) opens(r *Request, addr netip.Addr) (yes bool) {
	s := survey{req: r, depth: depthOf(r)}
	p.near(r.Endpoint.Host, func(i int32) bool {
		rule := &p.rules[i]
		yes = rule.Action == AllowAction && s.admits(rule) && opens(rule.Private, addr)
		return !yes
	})
	return yes
}

func depthOf(r *Request) stage {
	switch r.Question {
	case Fetch:
		return atPath
	case Resolve:
		return atHost
	default:
		return atPort
	}
}

func (r *Rule) covers(port uint16) bool { return slices.Contains(r.Ports, port) }
