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
	if (p.observe || p.lax != nil) && refused(&d) && d.Scope == scopePolicy && !req.ofType() {
		return p.observed(&req, d)
	}
	return d
}

// ofType reports a question about a DNS type other than A: what is answered to
// one is no matter of observing.
func (r *Request) ofType() bool {
	return r.Question == Resolve && r.Type > typeA || r.ofAnswer()
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
	case Connect, Hello:
		return p.stream(req)
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
	if r.Endpoint.Host.IsZero() || r.Endpoint.Port == 0 && !r.portless() {
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

// ofAnswer reports a question about an address in the answer to a DNS query.
func (r *Request) ofAnswer() bool {
	return r.Question == Reach && r.Endpoint.Port == 0 && r.Type > typeA
}

// portless reports a question that is about no port.
func (r *Request) portless() bool { return r.Question == Resolve || r.ofAnswer() }

func (p *Policy) refuse(reason Reason) Decision {
	return Decision{Reason: reason, Scope: scopePolicy, Policy: p.digest}
}

// speak is a decision in the name of a rule. Only a request can be granted a
// credential; its stream never is.
func (p *Policy) speak(v Verdict, reason Reason, r *Rule) Decision {
	d := p.refuse(reason)
	d.Verdict, d.Rule, d.Where, d.Log = v, r.ID, r.Where, r.Log
	d.Scope = r.Scope.String()
	if reason == Allowed {
		d.Limits, d.Totals = r.limits(), p.totals
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

// answer is the decision of all the rules that a survey found: deny rules
// first; then those of the policy, whom the run narrows; then what people
// approved.
func (p *Policy) answer(s *survey) Decision {
	if d, denied := s.forbidden(p); denied {
		return s.explained(d)
	}
	d := p.judge(s, &s.policy)
	if !refused(&d) && p.filter {
		d = p.narrowed(s, d)
	}
	if !refused(&d) {
		return d
	}
	a := p.judge(s, &s.approved)
	switch {
	case !refused(&a), a.Reason == RuleExpired && d.Reason != RuleExpired:
		return a
	case d.Scope == scopePolicy && d.Reason != RuleExpired && s.approved.nearest > s.policy.nearest && s.policy.best < 0:
		return a // an approval comes nearer than any rule
	default:
		return d
	}
}

// narrowed asks the allow rules of the run about what the policy admits. They
// have to carry it in the same way: what they would look into is not tunnelled.
func (p *Policy) narrowed(s *survey, d Decision) Decision {
	n := p.judge(s, &s.run)
	switch {
	case refused(&n):
		n.Scope = RunScope.String()
		return n
	case n.Verdict != d.Verdict:
		n = p.refuse(ProtocolNotAllowed)
		n.Scope = RunScope.String()
		return s.explained(n)
	default:
		return d
	}
}

// judge is the decision of the allow rules of a scope.
func (p *Policy) judge(s *survey, f *found) Decision {
	if d, denied := s.refusal(p, f); denied {
		return s.explained(d)
	}
	switch s.req.Question {
	case Resolve:
		if f.inspect >= 0 {
			return p.speak(Inspect, Allowed, &p.rules[f.inspect])
		}
		return p.speak(Tunnel, Allowed, &p.rules[f.best])
	case Connect:
		if f.raw >= 0 {
			return p.speak(Tunnel, Allowed, &p.rules[f.raw])
		}
		return p.speak(Inspect, Allowed, &p.rules[f.best])
	case Hello:
		return p.judgeHello(s, f)
	default:
		rule := &p.rules[f.best]
		d := p.speak(Inspect, Allowed, rule)
		d.Credential, d.CallersKey = rule.Credential, rule.CallersKey
		return d
	}
}

func (p *Policy) judgeHello(s *survey, f *found) Decision {
	switch protocol := s.req.Protocol; {
	case f.raw >= 0:
		return p.speak(Tunnel, Allowed, &p.rules[f.raw])
	case protocol == Opaque:
		return p.refuse(ProtocolNotAllowed)
	case protocol == TLS && f.inspect < 0:
		return p.speak(Tunnel, Allowed, &p.rules[f.best])
	case f.inspect < 0:
		// Plain HTTP where only TLS that is passed through is allowed.
		return s.explained(p.refuse(ProtocolNotAllowed))
	default:
		return p.speak(Inspect, Allowed, &p.rules[f.inspect])
	}
}

// explained has a stream to a denied place inspected where it can be, so that
// the refusal can be said inside.
func (s *survey) explained(d Decision) Decision {
	if q := s.req.Question; q == Connect || q == Hello && s.req.Protocol != Opaque {
		d.Verdict, d.Explain = Inspect, true
	}
	return d
}

// resolve answers a DNS query. A name is denied outright only by a deny rule
// about all of it.
func (p *Policy) resolve(r *Request) Decision {
	s := survey{req: r, depth: atHost}
	p.survey(&s)
	d := p.answer(&s)
	denied := refused(&d)
	if r.Type != typeA {
		d = p.lookup(r, d)
	}
	if len(r.Carries) > 0 { // a name can carry nothing but a leak
		d = p.judgeCarries(r, &d)
		denied = denied || d.Reason == PlaceholderLeak
	}
	d.NameError = denied && p.denied == NameErrorDenied
	return d
}

// stream answers for a stream (Connect, Hello): of which nothing is known but
// where it goes, or its protocol too.
func (p *Policy) stream(r *Request) Decision {
	s := survey{req: r, depth: atPort}
	p.survey(&s)
	d := p.answer(&s)
	if d.Verdict == Tunnel && len(r.Carries) > 0 { // elsewhere the requests are judged
		return p.judgeCarries(r, &d)
	}
	return d
}

// fetch answers for one request.
func (p *Policy) fetch(r *Request) Decision {
	s := survey{req: r, depth: atRequest}
	p.survey(&s)
	d := p.answer(&s)
	switch {
	case len(r.Carries) > 0:
		d = p.judgeCarries(r, &d)
	case d.Credential != "" && !r.Secure:
		d.Verdict, d.Reason = Deny, CredentialNeedsTLS
	}
	if d.Verdict != Deny {
		return tooLarge(r, d)
	}
	return d
}

// tooLarge refuses a request whose head is larger than it may be, or that declares more
// body than it may have.
func tooLarge(r *Request, d Decision) Decision {
	if d.Limits == nil && d.Totals == nil {
		return d
	}
	if most := d.HeadLimit(); most > 0 && r.HeadOctets() > most {
		d.Verdict, d.Reason = Deny, HeadTooLarge
	} else if most := d.BodyLimit(); most > 0 && r.Length > most {
		d.Verdict, d.Reason = Deny, BodyTooLarge
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
//     somebody else's account (CR-14, EX-01). A rule may say otherwise for what it
//     matches.
func (p *Policy) judgeCarries(r *Request, d *Decision) Decision {
	out := *d
	blame := func(reason Reason, credential string) Decision {
		out.Verdict, out.Explain, out.LookUp, out.Reason, out.Credential = Deny, false, false, reason, credential
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
		if c.State == Foreign && !d.CallersKey && (c.Credential == d.Credential || p.grants(r.Endpoint.Host, c.Credential)) {
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
	if rule := p.denies(&stream, addr, nil); rule != nil {
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
	case r.ofAnswer():
		stream.Question = Resolve
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
	case Resolve:
		return p.resolve(r)
	default:
		return p.stream(r)
	}
}

// denies returns the deny rule about an address that r would be carried to, of
// those of a scope that is asked for; nil asks for all. The outermost speaks. One
// that cannot judge r denies it (see [survey.cannotJudge]).
func (p *Policy) denies(r *Request, addr netip.Addr, of func(Scope) bool) *Rule {
	s := survey{req: r, depth: depthOf(r)}
	at := int32(-1)
	p.nearAddr(addr, func(i int32) bool {
		rule := &p.rules[i]
		if rule.Action == DenyAction && (of == nil || of(rule.Scope)) && (s.denies(rule) || s.cannotJudge(rule) || s.cannotJudgeQuery(rule)) {
			first(&at, i)
		}
		return true
	})
	if at < 0 {
		return nil
	}
	return &p.rules[at]
}

// opens reports whether a rule that admits r opens a special-purpose address.
func (p *Policy) opens(r *Request, addr netip.Addr) (yes bool) {
	s := survey{req: r, depth: depthOf(r)}
	p.near(r.Endpoint.Host, func(i int32) bool {
		rule := &p.rules[i]
		yes = rule.Action == AllowAction && rule.Scope != RunScope && s.admits(rule) && opens(rule.Private, addr)
		return !yes
	})
	return yes
}

func depthOf(r *Request) stage {
	switch r.Question {
	case Fetch:
		return atRequest
	case Resolve:
		return atHost
	default:
		return atPort
	}
}

func (r *Rule) covers(port uint16) bool { return slices.Contains(r.Ports, port) }
