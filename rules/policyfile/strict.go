package policyfile

import (
	"slices"
	"strings"

	"sallyport/rules"
	"sallyport/rules/prove"
	"sallyport/rules/target"
)

// soon is how long before its end a rule is told of.
const soon = 14 * 86400

// resolvers are hosts of well-known public services of DNS over HTTPS.
var resolvers = []string{
	"dns.google", "dns.google.com", "cloudflare-dns.com", "mozilla.cloudflare-dns.com", "chrome.cloudflare-dns.com",
	"one.one.one.one", "dns.quad9.net", "doh.opendns.com", "dns.nextdns.io", "dns.adguard-dns.com",
	"1.1.1.1", "1.0.0.1", "8.8.8.8", "8.8.4.4", "9.9.9.9",
}

// Strict returns what keeps a policy that loads out of production: a reason
// that nobody wrote yet, a rule that has expired or will within 14 days of now
// (seconds since the Unix epoch), a rule that can admit nothing since others
// deny all of it, a rule about a public resolver, one that lets people sign in
// without the credential for it. The error is [Errors], nil for nothing.
func (p *PolicyFile) Strict(now int64) error {
	var denies []rules.Rule
	for _, r := range p.doc.allRules() {
		if r.Action == rules.DenyAction && !r.Observe {
			denies = append(denies, r.Rule)
		}
	}
	p.openSignIns(now)
	for _, r := range p.doc.allRules() {
		r.strictTimes(now)
		r.strictHosts()
		if strings.HasPrefix(r.Purpose, "TODO") {
			r.doc.errorf(r.node("reason"), "rule %q: the reason is still to be written", r.ID)
		}
		if r.Action == rules.AllowAction && admitsNothing(&r.Rule, denies) {
			r.doc.errorf(r.at, "rule %q admits nothing: deny rules take all of it", r.ID)
		}
	}
	return p.doc.loader.err()
}

// Warnings returns of what [PolicyFile.Strict] does what nobody should miss: the
// rules that have expired or will within 14 days of now, and those that open where
// people sign in, with their places. The error is [Errors], nil for none; a
// PolicyFile is asked once, either this or Strict.
func (p *PolicyFile) Warnings(now int64) error {
	for _, r := range p.doc.allRules() {
		r.ending(now)
	}
	p.openSignIns(now)
	return p.doc.loader.err()
}

// openSignIns tells of rules that let a program ask where people sign in without the
// credential for it: true tokens then go into the sandbox, and not stand-ins (ADR-0031).
func (p *PolicyFile) openSignIns(now int64) {
	for i := range p.doc.creds {
		c := &p.doc.creds[i]
		if c.Type != OAuth2User {
			continue
		}
		for _, u := range []string{c.OAuth2.TokenURL, c.OAuth2.DeviceURL} {
			if u != "" {
				p.openSignIn(c.Name, u, now)
			}
		}
	}
}

func (p *PolicyFile) openSignIn(credential, u string, now int64) {
	authority, rest, _ := strings.Cut(strings.TrimPrefix(u, "https://"), "/")
	e, err := target.ParseAuthority(authority, 443)
	if err != nil {
		return // checkURL said so
	}
	path, err := target.ParsePath("/" + rest)
	if err != nil {
		return // it matches no pattern
	}
	d := p.Policy.Decide(rules.Request{
		Question: rules.Fetch, Endpoint: e, Secure: true, Protocol: rules.HTTP, Method: "POST", Path: path, Now: now,
	})
	if d.Verdict == rules.Deny || d.Credential == credential {
		return
	}
	all := p.doc.allRules()
	if i := slices.IndexFunc(all, func(r *ruleDoc) bool { return r.ID == d.Rule }); i >= 0 {
		all[i].doc.errorf(all[i].at, "rule %q lets people sign in at %s without credential %q: true tokens would go into the sandbox; "+
			"add credential: %s to it, or deny POST there", d.Rule, u, credential, credential)
	}
}

// strictTimes tells of a rule that ends, and of one that nobody could renew.
func (r *ruleDoc) strictTimes(now int64) {
	r.ending(now)
	if r.Expires != 0 && r.Owner == "" && r.doc.owner == "" {
		r.doc.errorf(r.node("expires"), "rule %q expires, and neither it nor its file has an owner who could renew it", r.ID)
	}
}

// ending tells of a rule that ends.
func (r *ruleDoc) ending(now int64) {
	switch left := r.Expires - now; {
	case r.Expires == 0 || left > soon:
	case left <= 0:
		r.doc.errorf(r.node("expires"), "rule %q has expired: take it out, or renew it%s", r.ID, r.ask())
	default:
		r.doc.errorf(r.node("expires"), "rule %q expires in %d days%s", r.ID, (left+86399)/86400, r.ask())
	}
}

// strictHosts tells of a rule about what no agent needs.
func (r *ruleDoc) strictHosts() {
	for _, h := range r.Hosts {
		if r.Action == rules.AllowAction && slices.Contains(resolvers, h.Host.String()) {
			r.doc.errorf(r.at, "rule %q allows %s, a public resolver: names asked there carry data out; DNS over HTTPS is refused anyway", r.ID, h.Host)
		}
	}
}

// ask says who can tell whether a rule is still needed.
func (r *ruleDoc) ask() string {
	switch {
	case r.Owner != "":
		return "; ask " + r.Owner
	case r.doc.owner != "":
		return "; ask " + r.doc.owner
	default:
		return ""
	}
}

// admitsNothing reports a rule of which deny rules leave nothing. What cannot
// be answered is no: this is about order, not about safety.
func admitsNothing(r *rules.Rule, denies []rules.Rule) bool {
	alone, err := rules.Compile(rules.Source{Rules: append(slices.Clone(denies), *r)})
	if err != nil {
		return false
	}
	e, err := prove.Check(alone, prove.Statement{}, prove.NewWork(nil))
	return e == nil && err == nil
}

// Count returns how many rules the policy has, with those that it includes.
func (p *PolicyFile) Count() int { return len(p.doc.allRules()) }
