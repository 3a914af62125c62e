package rules

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Fault is one thing that is wrong with a [Source].
type Fault struct {
	Rule  int    // position in Source.Rules
	Field string // id, match, hosts, ports, methods, paths, headers, query, cidrs, mode, credential, protocol, tls, expires, limits
	Item  string // of the field's list, that it is about; "" for all of them
	Text  string
}

// CompileError holds every fault of a Source.
type CompileError struct {
	Faults []Fault
	rules  []Rule
}

// Error implements error: one line a fault.
func (e *CompileError) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		r := e.rules[f.Rule]
		lines[i] = fmt.Sprintf("rule %q: %s: %s", r.ID, f.Field, f.Text)
		if r.Where != "" {
			lines[i] = r.Where + ": " + lines[i]
		}
	}
	return strings.Join(lines, "\n")
}

// Compile checks a Source and makes a Policy of it. The error is a
// [*CompileError] with every fault. The Source is not kept.
func Compile(s Source) (*Policy, error) {
	c := compiler{rules: make([]Rule, len(s.Rules))}
	for i := range s.Rules {
		c.rules[i] = clone(&s.Rules[i])
	}
	ids := map[string]int{}
	for i := range c.rules {
		r := &c.rules[i]
		c.at = i
		c.checkID(r, ids)
		c.checkHosts(r)
		c.checkPorts(r)
		c.checkRequest(r)
		c.checkConditions(r)
		c.checkScope(r)
		c.checkRanges(r)
		if r.Action == AllowAction {
			c.checkAllow(r)
		} else {
			c.checkDeny(r)
		}
	}
	c.checkPairs()
	if len(c.faults) > 0 {
		return nil, &CompileError{Faults: c.faults, rules: c.rules}
	}
	slices.SortFunc(c.rules, byRank)
	p := &Policy{
		compiled: true, name: s.Name, digest: s.Digest, denied: s.Denied,
		rules: c.rules, index: newIndex(c.rules), observe: s.Observe || s.Learn, learn: s.Learn,
		filter: s.Narrowed && filters(c.rules), narrow: s.Narrowed,
	}
	if !s.Totals.IsZero() {
		p.totals = &s.Totals
	}
	for _, l := range s.Lookups {
		if p.lookups == nil {
			p.lookups = map[Lookup]struct{}{}
		}
		p.lookups[l] = struct{}{}
	}
	for i := range s.Never {
		p.never = append(p.never, clone(&s.Never[i]))
	}
	p.lax = p.loosen()
	return p, nil
}

func clone(r *Rule) Rule {
	out := *r
	out.Hosts = slices.Clone(r.Hosts)
	out.Ports = slices.Clone(r.Ports)
	out.Methods = slices.Clone(r.Methods)
	out.Paths = slices.Clone(r.Paths)
	out.Conditions = slices.Clone(r.Conditions)
	out.Private = slices.Clone(r.Private)
	return out
}

// byRank sorts rules so that the first that matches is the one that speaks:
// see [Policy.Decide].
func byRank(a, b Rule) int {
	return cmp.Or(
		cmp.Compare(a.Scope.order(), b.Scope.order()),
		compareBool(a.Credential != "", b.Credential != ""),
		compareBool(len(a.Paths) > 0, len(b.Paths) > 0),
		compareBool(len(a.Conditions) > 0, len(b.Conditions) > 0),
		compareBool(len(a.Methods) > 0, len(b.Methods) > 0),
		compareBool(!wild(&a), !wild(&b)),
		cmp.Compare(a.ID, b.ID),
	)
}

func wild(r *Rule) bool {
	return slices.ContainsFunc(r.Hosts, func(h HostPattern) bool { return h.Wildcard })
}

// compareBool puts what is true first.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

type compiler struct {
	rules  []Rule
	at     int
	faults []Fault
}

func (c *compiler) fault(field, format string, args ...any) {
	c.faultAt(field, "", format, args...)
}

// faultAt is fault about one item of a list.
func (c *compiler) faultAt(field, item, format string, args ...any) {
	c.faults = append(c.faults, Fault{Rule: c.at, Field: field, Item: item, Text: fmt.Sprintf(format, args...)})
}

func (c *compiler) checkID(r *Rule, ids map[string]int) {
	if !IsID(r.ID) {
		c.fault("id", "%q is not an id: use lower-case letters, digits, and - . _ between them, at most 64", r.ID)
		return
	}
	if first, taken := ids[r.ID]; taken {
		where := c.rules[first].Where
		if where == "" {
			where = fmt.Sprintf("rule %d", first+1)
		}
		c.fault("id", "id %q is taken by %s", r.ID, where)
		return
	}
	ids[r.ID] = c.at
}

// IsID reports whether s can be the id of a rule or the name of a policy or
// credential: 1 to 64 lower-case letters, digits and inner - . _ characters.
func IsID(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case (c == '-' || c == '.' || c == '_') && i > 0 && i < len(s)-1:
		default:
			return false
		}
	}
	return true
}

func (c *compiler) checkHosts(r *Rule) {
	for _, h := range r.Hosts {
		name, isName := h.Host.Name()
		switch {
		case h.Host.IsZero():
			c.fault("hosts", "an empty host")
		case h.Wildcard && !isName:
			c.fault("hosts", "a wildcard below an address")
		case IsReserved(name):
			c.faultAt("hosts", h.String(), "%s is reserved: the gateway answers it itself", Reserved)
		case h.Wildcard && reserved.Below(name):
			c.faultAt("hosts", h.String(), "%s would cover %s, which is reserved", h, Reserved)
		}
	}
}

func (c *compiler) checkPorts(r *Rule) {
	if slices.Contains(r.Ports, 0) {
		c.fault("ports", "0 is not a port")
	}
}

func (c *compiler) checkRequest(r *Rule) {
	for _, m := range r.Methods {
		switch {
		case !IsToken(m):
			c.faultAt("methods", m, "%q is not a method", m)
		case !IsMethod(m):
			c.faultAt("methods", m, "methods are case-sensitive: %q is not the one you mean; write it in upper case", m)
		case r.Action == AllowAction && neverMethod(m):
			c.faultAt("methods", m, "%s cannot be allowed", m)
		}
	}
	for _, p := range r.Paths {
		if p.text == "" {
			c.fault("paths", "an empty path pattern")
		}
	}
}

func (c *compiler) checkRanges(r *Rule) {
	for _, p := range r.Private {
		switch {
		case !p.IsValid() || p != p.Masked() || p.Addr().Is4In6():
			c.fault("cidrs", "%v is not a range in canonical form", p)
		case r.Action != AllowAction:
		case tooWide(p):
			c.faultAt("cidrs", p.String(), "%v is too wide: name the ranges that are meant", p)
		case slices.ContainsFunc(never[:], p.Overlaps):
			c.faultAt("cidrs", p.String(), "%v holds addresses that name no host (unspecified, multicast, reserved)", p)
		}
	}
}

// tooWide reports a range that nobody means: half the Internet at a time.
func tooWide(p netip.Prefix) bool {
	if p.Addr().Is4() {
		return p.Bits() < 8
	}
	return p.Bits() < 16 && !(uniqueLocal.Contains(p.Addr()) && p.Bits() >= uniqueLocal.Bits())
}

var uniqueLocal = netip.MustParsePrefix("fc00::/7") // RFC 4193

func (c *compiler) checkAllow(r *Rule) {
	switch {
	case len(r.Hosts) == 0 && len(r.Private) == 0:
		c.fault("hosts", "an allow rule needs a host, or cidrs for raw addresses")
	case len(r.Ports) == 0:
		c.fault("ports", "an allow rule needs ports")
	}
	c.checkLimits(&r.Limits)
	for _, h := range r.Hosts {
		a, ok := h.Host.Addr()
		if !ok {
			if r.Credential != "" && h.Wildcard {
				c.fault("credential", "a credential is granted to exact hosts only, and %s is a wildcard", h)
			}
			continue
		}
		block, special := Special(a)
		if special && !opens(r.Private, a) {
			c.faultAt("hosts", h.String(), "%v is a special address (%s), which only cidrs open: add cidrs: [%v]", a, block, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	if blind(r) {
		c.checkBlind(r)
	}
}

// checkBlind refuses what cannot be judged in a stream that nobody looks into.
func (c *compiler) checkBlind(r *Rule) {
	field, what := "tls", "tls: passthrough"
	if r.Raw {
		field, what = "protocol", "protocol: tcp"
	}
	switch {
	case r.Raw && r.TLS == PassthroughTLS:
		c.fault("tls", "protocol: tcp carries TLS as it comes already")
	case len(r.Methods) > 0:
		c.fault(field, "%s does not look at requests, so methods cannot be judged", what)
	case len(r.Paths) > 0:
		c.fault(field, "%s does not look at requests, so paths cannot be judged", what)
	case len(r.Conditions) > 0:
		c.fault(field, "%s does not look at requests, so headers and queries cannot be judged", what)
	case r.Limits.Head > 0:
		c.fault(field, "%s does not look at requests, so the size of their heads cannot be limited: say sent", what)
	case r.Limits.Body > 0:
		c.fault(field, "%s does not look at requests, so the size of their bodies cannot be limited: say sent", what)
	}
	if r.Credential != "" {
		c.fault("credential", "%s does not look at requests, so no credential can be added", what)
	}
}

func (c *compiler) checkDeny(r *Rule) {
	switch {
	case len(r.Hosts) == 0 && len(r.Private) == 0:
		c.fault("hosts", "a deny rule needs a host or cidrs")
	case len(r.Hosts) > 0 && len(r.Private) > 0:
		c.fault("cidrs", "a deny rule is about hosts or about cidrs; make it two")
	}
	if r.Credential != "" {
		c.fault("credential", "a deny rule grants nothing")
	}
	if r.Raw {
		c.fault("protocol", "a deny rule denies whatever the protocol")
	}
	if r.TLS != InspectTLS {
		c.fault("tls", "a deny rule carries no stream")
	}
	if r.Learn {
		c.fault("mode", "an explicit deny is nothing to learn from: say observe")
	}
	if !r.Limits.IsZero() {
		c.fault("limits", "a deny rule admits nothing that could be counted")
	}
	if r.Expires != 0 {
		c.fault("expires", "a deny rule does not expire: that would allow something unseen; take it out when it is time")
	}
}

// checkPairs looks at rules that meet in some host: what each says alone is
// sound, what they say together may not be.
func (c *compiler) checkPairs() {
	faulty := map[int]bool{}
	for _, f := range c.faults {
		faulty[f.Rule] = true
	}
	x := newIndex(c.rules)
	seen := map[[2]int32]bool{}
	for i := range c.rules {
		c.at = i
		meet := func(j int32) bool {
			lo, hi := min(int32(i), j), max(int32(i), j)
			if lo != hi && c.comparable(lo, hi) && !faulty[int(lo)] && !faulty[int(hi)] && !seen[[2]int32{lo, hi}] {
				seen[[2]int32{lo, hi}] = true
				c.checkPair(int(lo), int(hi))
			}
			return true
		}
		for _, h := range c.rules[i].Hosts {
			if n, ok := h.Host.Name(); ok && h.Wildcard {
				// A wildcard meets those at and above it; what is below
				// meets it from its own side.
				x.nearBelow(n, meet)
				continue
			}
			x.near(h.Host, meet)
		}
		if len(c.rules[i].Hosts) == 0 {
			for _, p := range c.rules[i].Private {
				x.around(p, meet)
			}
		}
	}
	slices.SortStableFunc(c.faults, func(a, b Fault) int { return cmp.Compare(a.Rule, b.Rule) })
}

// comparable reports whether two rules can contradict each other at all.
func (c *compiler) comparable(i, j int32) bool {
	a, b := &c.rules[i], &c.rules[j]
	if a.Action == DenyAction && b.Action == DenyAction {
		return false
	}
	if a.Action == b.Action && (a.Scope == RunScope) != (b.Scope == RunScope) {
		return false // the one is asked beside the other
	}
	if a.Action != b.Action {
		allow, deny := a, b
		if a.Action == DenyAction {
			allow, deny = b, a
		}
		return blind(allow) && deny.judgesRequests()
	}
	return !a.Limits.IsZero() || !b.Limits.IsZero() || a.Credential != b.Credential || a.Raw != b.Raw || (a.TLS != b.TLS && a.Credential+b.Credential != "")
}

// blind reports an allow rule whose streams nobody looks into.
func blind(r *Rule) bool { return r.Raw || r.TLS == PassthroughTLS }

// checkPair compares two rules that share a host. A fault is told of the later one.
func (c *compiler) checkPair(i, j int) {
	a, b := &c.rules[i], &c.rules[j]
	if !portsMeet(a, b) {
		return
	}
	c.at = j
	other := fmt.Sprintf("rule %q", a.ID)
	if a.Where != "" {
		other += " (" + a.Where + ")"
	}
	switch {
	case a.Action != b.Action:
		c.fault("hosts", "meets %s on one host and port: one denies by method, path, header or query what the other carries unseen", other)
	case blind(a) != blind(b) && a.Credential+b.Credential != "":
		c.fault("credential", "meets %s on one host and port: one grants a credential, the other lets the host be reached uninspected", other)
	case a.Raw != b.Raw:
		c.fault("protocol", "meets %s on one host and port, and only one is protocol: tcp: they cannot be told apart before the first byte", other)
	case (!a.Limits.IsZero() || !b.Limits.IsZero()) && requestsMeet(a, b):
		// One of them would speak, and the other's count not move: taking a
		// rule out could then admit more.
		c.fault("limits", "a request could match %s too, and would be counted once: make them disjoint in method, path or conditions, or one rule", other)
	case a.Credential != b.Credential && requestsMeet(a, b):
		c.fault("credential", "a request could match %s too, and get %s there: make them disjoint in method, path or conditions, or grant the same", other, credentialWords(a))
	}
}

func credentialWords(r *Rule) string {
	if r.Credential == "" {
		return "no credential"
	}
	return fmt.Sprintf("credential %q", r.Credential)
}

func portsMeet(a, b *Rule) bool {
	return len(a.Ports) == 0 || len(b.Ports) == 0 ||
		slices.ContainsFunc(a.Ports, func(p uint16) bool { return slices.Contains(b.Ports, p) })
}

func requestsMeet(a, b *Rule) bool {
	if len(a.Methods) > 0 && len(b.Methods) > 0 &&
		!slices.ContainsFunc(a.Methods, func(m string) bool { return slices.Contains(b.Methods, m) }) {
		return false
	}
	if !conditionsMeet(a, b) {
		return false
	}
	if len(a.Paths) == 0 || len(b.Paths) == 0 {
		return true
	}
	return slices.ContainsFunc(a.Paths, func(p PathPattern) bool {
		return slices.ContainsFunc(b.Paths, p.overlaps)
	})
}

// around yields the positions of rules whose ranges meet p. Literal hosts meet
// ranges from their own side: near looks up the ranges that hold them.
func (x *index) around(p netip.Prefix, yield func(int32) bool) {
	for r, list := range x.ranges {
		if r.Overlaps(p) {
			for _, i := range list {
				yield(i)
			}
		}
	}
}
