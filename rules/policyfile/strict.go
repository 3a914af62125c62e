package policyfile

import (
	"slices"
	"strings"
	"unicode"

	"sallyport/rules"
	"sallyport/rules/plural"
	"sallyport/rules/prove"
	"sallyport/rules/target"
)

const (
	// soon is how long before its end a rule is told of.
	soon = 14 * 86400
	// longest is for how long a rule may only observe: a season.
	longest = 90 * 86400
)

// Strict returns what keeps a policy that loads out of production: a mode that
// enforces nothing, a reason that nobody wrote yet, a rule that only observes and
// has no end or a late one, one that has expired or will within 14 days of now (seconds since the
// Unix epoch), one that can admit nothing since others deny all of it, one about a
// public resolver, a place where anybody can leave data or a host that looks like
// another one, one that hides from the
// log or lets keys through and has no owner, one that lets people sign in without
// the credential for it. The error is [Errors], nil for nothing.
func (p *PolicyFile) Strict(now int64) error {
	var denies []rules.Rule
	for _, r := range p.doc.allRules() {
		if r.Action == rules.DenyAction && !r.Observe {
			denies = append(denies, r.Rule)
		}
	}
	p.openSignIns(now)
	if p.doc.mode.observe {
		p.doc.find(policyObserves, p.doc.modeAt, "the policy enforces nothing: whatever its rules deny goes out; for production take mode out")
	}
	for _, r := range p.doc.allRules() {
		r.strictTimes(now)
		r.strictHosts()
		r.strictWords(now)
		if r.Action == rules.AllowAction && admitsNothing(&r.Rule, denies) {
			r.doc.find(admitsNothingID, r.at, "rule %q admits nothing: deny rules take all of it", r.ID)
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
		all[i].doc.find(openSignInID, all[i].at, "rule %q lets people sign in at %s without credential %q: true tokens would go into the sandbox; "+
			"add credential: %s to it, or deny POST there", d.Rule, u, credential, credential)
	}
}

// strictTimes tells of a rule that ends, and of one that nobody could renew.
func (r *ruleDoc) strictTimes(now int64) {
	r.ending(now)
	if r.Expires != 0 && r.Owner == "" && r.doc.owner == "" {
		r.doc.find(expiresNoOwner, r.node("expires"), "rule %q expires, and neither it nor its file has an owner who could renew it", r.ID)
	}
}

// ending tells of a rule that ends.
func (r *ruleDoc) ending(now int64) {
	switch left := r.Expires - now; {
	case r.Expires == 0 || left > soon:
	case left <= 0:
		r.doc.find(expiredID, r.node("expires"), "rule %q has expired: take it out, or renew it%s", r.ID, r.ask())
	default:
		r.doc.find(expiresSoon, r.node("expires"), "rule %q expires in %s%s", r.ID, plural.Count((left+86399)/86400, "day"), r.ask())
	}
}

// strictHosts tells of a rule about what no agent needs.
func (r *ruleDoc) strictHosts() {
	if r.Action != rules.AllowAction {
		return
	}
	for _, h := range r.Hosts {
		at := r.item("hosts", h.String())
		if resolver := resolverIn(h); resolver != "" {
			r.doc.find(publicResolver, at, "rule %q allows %s, a public resolver: names asked there carry data out; DNS over HTTPS is refused anyway", r.ID, resolver)
		}
		name, ok := h.Host.Name()
		if !ok {
			continue
		}
		if dropOf(name) != "" {
			r.doc.find(anybodysHost, at, "rule %q allows %s: anybody can leave and fetch data at %s, or have names there lead anywhere", r.ID, h, dropOf(name))
		}
		if shown, why := disguised(name); why != "" {
			r.doc.find(lookalike, at, "rule %q allows %s (%s), which %s: is it the host that it looks like?", r.ID, h, shown, why)
		}
	}
}

// strictWords tells of a rule for which nobody answers yet.
func (r *ruleDoc) strictWords(now int64) {
	if unwritten(r.Purpose) {
		r.doc.find(reasonUnwritten, r.node("reason"), "rule %q: the reason is still to be written", r.ID)
	}
	switch {
	case !r.Observe:
	case r.Expires == 0:
		r.doc.find(observesEndless, r.node("mode"), "rule %q only observes, and has no end: %s", r.ID, r.endOfObserving())
	case r.Expires-now > longest:
		r.doc.find(observesLong, r.node("expires"), "rule %q only observes for %d days more: take mode out, or let it end within %d",
			r.ID, (r.Expires-now+86399)/86400, longest/86400)
	}
	if r.Action != rules.AllowAction || r.Owner != "" || r.doc.owner != "" || r.doc.preset != nil {
		return
	}
	if r.CallersKey {
		r.doc.find(callersKeyNoOwner, r.node("callers_key"), "rule %q lets keys of the caller's own through, to any account, and has no owner who answers for that: add owner", r.ID)
	}
	if r.Log == rules.LogNone {
		r.doc.find(logNoOwner, r.node("log"), "rule %q keeps paths out of the log, and has no owner who answers for that: add owner", r.ID)
	}
}

func (r *ruleDoc) endOfObserving() string {
	if r.Action == rules.AllowAction {
		return "take mode out, or add expires"
	}
	return "take mode out"
}

// unwritten reports a reason that tells the next reviewer nothing: without a letter,
// or marked as still to be written.
func unwritten(reason string) bool {
	first, _, _ := strings.Cut(strings.TrimLeftFunc(reason, func(c rune) bool { return !unicode.IsLetter(c) }), " ")
	first = strings.TrimRightFunc(first, func(c rune) bool { return !unicode.IsLetter(c) })
	return first == "" || slices.ContainsFunc([]string{"TODO", "FIXME", "TBD", "XXX"}, func(mark string) bool {
		return len(first) >= len(mark) && strings.EqualFold(first[:len(mark)], mark) &&
			(len(first) == len(mark) || !unicode.IsLetter(rune(first[len(mark)])))
	})
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
