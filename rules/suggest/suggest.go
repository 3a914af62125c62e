// Package suggest makes rules of what was refused, or let through though rules
// refuse it.
//
// It suggests the least that admits what was seen: hosts, ports, methods, and
// paths in which ids are stars. What was refused on purpose, by a deny rule, a
// floor or a guard, is never suggested, and said. It trusts the caller for what
// was seen, which a sandbox asked for: whoever takes a suggestion over has to
// read it.
package suggest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sallyport/rules"
	"sallyport/rules/target"
)

// Seen is something that was asked for, and why it is not allowed.
type Seen struct {
	Request rules.Request
	Reason  rules.Reason
	// Rule, Where and Scope are of what refused it, if anything did by itself.
	Rule, Where string
	Scope       string
	Count       int
	First       string // the id of the first record
}

// Rule is a suggested rule.
type Rule struct {
	ID      string
	Host    target.Host
	Port    uint16
	Raw     bool // any bytes
	Methods []string
	Paths   []string // patterns
	// Seen is what it admits, in the order in which it was seen.
	Seen []Seen
}

// Count returns how often what the rule admits was asked for.
func (r *Rule) Count() (n int) {
	for _, s := range r.Seen {
		n += s.Count
	}
	return n
}

// Left is something for which no rule is suggested.
type Left struct {
	Seen
	Why string
	// More counts further questions that are left out for the same reason; Count has them.
	More int
}

// Rules makes rules of what was seen. taken are the ids of rules that there are.
func Rules(seen []Seen, taken []string) (list []Rule, left []Left) {
	seen, left = scans(seen)
	groups := map[target.Endpoint]*group{}
	var order []target.Endpoint
	for _, s := range seen {
		if why := notSuggested(&s); why != "" {
			left = append(left, Left{Seen: s, Why: why})
			continue
		}
		e := s.Request.Endpoint
		if groups[e] == nil {
			groups[e] = &group{}
			order = append(order, e)
		}
		groups[e].add(s)
	}
	slices.SortFunc(order, func(a, b target.Endpoint) int {
		return cmp.Or(cmp.Compare(a.Host.String(), b.Host.String()), cmp.Compare(a.Port, b.Port))
	})
	names := namer{taken: slices.Clone(taken)}
	for _, e := range order {
		rs, l := groups[e].rules(e)
		for i := range rs {
			rs[i].ID = names.name(e)
		}
		list, left = append(list, rs...), append(left, l...)
	}
	return list, joined(left)
}

// scan is how many ports of one host, beside those of the web, and how many addresses at
// one port are no use that a rule would be for.
const scan = 4

// scans takes out what looks like a search for open doors: one note for each host, or for
// each port of addresses.
func scans(seen []Seen) (rest []Seen, left []Left) {
	ports, addrs := map[target.Host]map[uint16]bool{}, map[uint16]map[target.Host]bool{}
	for i := range seen {
		e := seen[i].Request.Endpoint
		if e.Port == 80 || e.Port == 443 || notSuggested(&seen[i]) != "" {
			continue
		}
		note(ports, e.Host, e.Port)
		if _, ok := e.Host.Addr(); ok {
			note(addrs, e.Port, e.Host)
		}
	}
	notes := map[string]int{}
	for i := range seen {
		s := &seen[i]
		e := s.Request.Endpoint
		_, known := ports[e.Host][e.Port]
		why := ""
		switch {
		case !known || notSuggested(s) != "":
		case len(ports[e.Host]) >= scan:
			why = fmt.Sprintf("%d ports of %s were tried, as a scan does (%s): write a rule for the one that is needed", len(ports[e.Host]), e.Host, some(ports[e.Host]))
		case len(addrs[e.Port]) >= scan:
			why = fmt.Sprintf("port %d of %d addresses was tried, as a scan does: write a rule for the one that is needed", e.Port, len(addrs[e.Port]))
		}
		at, again := notes[why]
		switch {
		case why == "":
			rest = append(rest, *s)
		case again:
			left[at].Count += s.Count
		default:
			notes[why] = len(left)
			left = append(left, Left{Seen: *s, Why: why})
		}
	}
	return rest, left
}

func note[K, V comparable](m map[K]map[V]bool, k K, v V) {
	if m[k] == nil {
		m[k] = map[V]bool{}
	}
	m[k][v] = true
}

// some lists a few ports.
func some(ports map[uint16]bool) string {
	const shown = 6
	list := slices.Sorted(maps.Keys(ports))
	words := make([]string, 0, shown+1)
	for _, p := range list[:min(len(list), shown)] {
		words = append(words, fmt.Sprint(p))
	}
	if len(list) > shown {
		words = append(words, "…")
	}
	return strings.Join(words, ", ")
}

// joined tells what is left out for one reason at one host, or at addresses, in one
// note where it is more than a few.
func joined(left []Left) (out []Left) {
	key := func(l *Left) string {
		host := l.Request.Endpoint.Host.String()
		if _, ok := l.Request.Endpoint.Host.Addr(); ok {
			host = ""
		}
		return host + "\n" + l.Why
	}
	count := map[string]int{}
	for i := range left {
		count[key(&left[i])]++
	}
	at := map[string]int{}
	for i := range left {
		l := left[i]
		k := key(&l)
		first, again := at[k]
		if !again || count[k] < scan {
			at[k] = len(out)
			out = append(out, l)
			continue
		}
		out[first].Count += l.Count
		out[first].More++
	}
	return out
}

// notSuggested says why there is no rule for s, "" if there is to be one.
func notSuggested(s *Seen) string {
	switch s.Reason {
	case rules.HostNotAllowed, rules.PortNotAllowed, rules.ProtocolNotAllowed, rules.MethodNotAllowed, rules.PathNotAllowed, rules.AddressNotAllowed:
	case rules.DeniedByRule:
		who := "rule " + s.Rule
		if s.Where != "" {
			who += " (" + s.Where + ")"
		}
		return "denied on purpose by " + who
	case rules.RuleExpired:
		return fmt.Sprintf("rule %s (%s) has expired: renew it, or leave it so", s.Rule, s.Where)
	case rules.PrivateIP:
		return "it resolves to a special-purpose address: only cidrs in a rule open that, and a person has to say which"
	case rules.QueryNotAllowed, rules.HeaderNotAllowed:
		return "a rule asks for headers or a query, which a record does not hold"
	case rules.PathAmbiguous, rules.QueryAmbiguous:
		return "servers read it in two ways, so that no rule can judge it"
	case rules.TypeNotAllowed:
		return "records of that type are never answered"
	default:
		return fmt.Sprintf("no rule refused it: %s", s.Reason)
	}
	r := &s.Request
	if s.Scope == rules.FloorScope.String() || s.Scope == rules.RunScope.String() {
		return "denied on purpose by the " + s.Scope
	}
	if a, ok := r.Endpoint.Host.Addr(); ok {
		if block, special := rules.Special(a); special {
			return fmt.Sprintf("it is a special-purpose address (%s): only cidrs in a rule open that, and a person has to say which", block)
		}
	}
	if n, ok := r.Endpoint.Host.Name(); ok && rules.IsReserved(n) {
		return "it is the gateway's own name"
	}
	return requestFault(r)
}

// requestFault says what keeps a question from being part of a rule.
func requestFault(r *rules.Request) string {
	switch {
	case r.Question == rules.Resolve:
		return "only its name was asked for, and no request was seen"
	case r.Question == rules.Hello && r.Protocol == rules.Opaque:
		return ""
	case r.Question != rules.Fetch:
		return "a stream was opened, and no request was seen in it"
	case rules.NeverAdmitted(r.Method):
		return r.Method + " cannot be allowed"
	case !rules.IsMethod(r.Method) || r.Method == "*":
		return fmt.Sprintf("%q is not a method that a rule can name", r.Method)
	case r.Path.Ambiguous():
		return "servers read its path in two ways, so that no rule can judge it"
	default:
		return ""
	}
}

// group is what was seen at one place.
type group struct {
	raw      []Seen
	requests []Seen
}

func (g *group) add(s Seen) {
	if s.Request.Question == rules.Hello {
		g.raw = append(g.raw, s)
		return
	}
	g.requests = append(g.requests, s)
}

// rules makes rules for a place: one for each set of methods, so that no more
// than what was seen is allowed. A place either carries any bytes or requests.
func (g *group) rules(e target.Endpoint) (list []Rule, left []Left) {
	if len(g.requests) == 0 {
		return []Rule{{Host: e.Host, Port: e.Port, Raw: true, Seen: g.raw}}, nil
	}
	for _, s := range g.raw {
		left = append(left, Left{Seen: s, Why: "any bytes were sent where requests are too: a place carries one or the other"})
	}
	patterns := generalise(g.requests)
	requests, written := g.requests[:0:0], patterns[:0:0]
	for i, s := range g.requests {
		if patterns[i] == "" {
			left = append(left, Left{Seen: s, Why: "its path can be written in no pattern but one for everything"})
			continue
		}
		requests, written = append(requests, s), append(written, patterns[i])
	}
	g.requests, patterns = requests, written
	methods := map[string][]string{}
	for i, s := range g.requests {
		if m := s.Request.Method; !slices.Contains(methods[patterns[i]], m) {
			methods[patterns[i]] = append(methods[patterns[i]], m)
		}
	}
	wider := wider(methods)
	at := map[string]int{}
	for i, s := range g.requests {
		for wider[patterns[i]] != "" {
			patterns[i] = wider[patterns[i]]
		}
		set := methods[patterns[i]]
		slices.Sort(set)
		key := strings.Join(set, " ")
		n, known := at[key]
		if !known {
			n = len(list)
			at[key] = n
			list = append(list, Rule{Host: e.Host, Port: e.Port, Methods: set})
		}
		r := &list[n]
		if r.Seen = append(r.Seen, s); !slices.Contains(r.Paths, patterns[i]) {
			r.Paths = append(r.Paths, patterns[i])
		}
	}
	for i := range list {
		list[i].Paths = needed(list[i].Paths)
	}
	slices.SortStableFunc(list, func(a, b Rule) int { return slices.Compare(a.Methods, b.Methods) })
	return list, left
}

// wider returns, of patterns with their methods, for each one another that covers
// it and has all of its methods and more: a rule for the first would be in vain.
func wider(methods map[string][]string) map[string]string {
	parsed := map[string]rules.PathPattern{}
	for s := range methods {
		parsed[s], _ = rules.ParsePathPattern(s) // one that is none covers nothing
	}
	out := map[string]string{}
	all := slices.Sorted(maps.Keys(methods))
	several := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return len(methods[s]) < 2 })
	for _, narrow := range all {
		for _, wide := range several {
			lacks := func(m string) bool { return !slices.Contains(methods[wide], m) }
			if len(methods[wide]) > len(methods[narrow]) && !slices.ContainsFunc(methods[narrow], lacks) && parsed[wide].Covers(parsed[narrow]) {
				out[narrow] = wide
			}
		}
	}
	return out
}

// needed leaves out patterns that another one covers.
func needed(list []string) []string {
	slices.Sort(list)
	parsed := make([]rules.PathPattern, len(list))
	for i, s := range list {
		parsed[i], _ = rules.ParsePathPattern(s) // one that is none covers nothing
	}
	var out []string
	for i, s := range list {
		covered := false
		for j := range list {
			covered = covered || i != j && parsed[j].Covers(parsed[i]) && (!parsed[i].Covers(parsed[j]) || j < i)
		}
		if !covered {
			out = append(out, s)
		}
	}
	return out
}

// namer gives ids to rules.
type namer struct{ taken []string }

func (n *namer) name(e target.Endpoint) string {
	base := strings.Map(func(c rune) rune {
		if c == ':' {
			return '-'
		}
		return c
	}, e.Host.String())
	if e.Port != 443 {
		base += fmt.Sprintf("-%d", e.Port)
	}
	base = strings.Trim(base[max(0, len(base)-56):], "-._")
	for i := 1; ; i++ {
		id := base
		if i > 1 {
			id = fmt.Sprintf("%s-%d", base, i)
		}
		if !slices.Contains(n.taken, id) {
			n.taken = append(n.taken, id)
			return id
		}
	}
}
