package prove

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sallyport/rules"
)

// changes puts together what was found: parts that differ in method alone, then
// in path, port and host, are one sentence.
func (f *finder) changes() []Change {
	var list []Change
	for _, x := range f.findings {
		c := Change{
			Kind: f.kind, Rule: *f.rule, Carrying: x.carrying, Hosts: []string{x.host}, Ports: []uint16{x.port},
			TwoReadings: x.twice, Facts: x.facts, Plain: x.plain, From: x.from, Part: f.same[partAt{x.part, x.from}], Credential: f.credential, Example: x.witness,
		}
		if x.method != "" {
			c.Methods = []string{x.method}
		}
		if x.path != "" {
			c.Paths = []string{x.path}
		}
		if x.into.IsValid() {
			c.Into = []netip.Prefix{x.into}
		}
		list = append(list, c)
	}
	list = merge(list, func(a, b *Change) { a.Methods = union(a.Methods, b.Methods) }, hostsOf, portsOf, pathsOf, intoOf, restOf)
	for i := range list {
		f.nameMethods(&list[i])
	}
	list = merge(list, func(a, b *Change) { a.Paths = union(a.Paths, b.Paths) }, hostsOf, portsOf, methodsOf, intoOf, restOf, whether(pathsGiven))
	list = merge(list, func(a, b *Change) { a.Into = union(a.Into, b.Into) }, hostsOf, portsOf, methodsOf, pathsOf, restOf, whether(intoGiven))
	list = merge(list, func(a, b *Change) { a.Ports = union(a.Ports, b.Ports) }, hostsOf, methodsOf, pathsOf, restOf, intoOf)
	list = merge(list, func(a, b *Change) { a.Hosts = union(a.Hosts, b.Hosts) }, portsOf, methodsOf, pathsOf, restOf, intoOf)
	for i := range list {
		slices.Sort(list[i].Ports)
		slices.Sort(list[i].Methods)
	}
	return list
}

// nameMethods says "every method" or "every method but" where a rule names none.
func (f *finder) nameMethods(c *Change) {
	if len(f.rule.Methods) > 0 || c.Carrying != Requests {
		return
	}
	var but []string
	for _, m := range f.domain {
		if !slices.Contains(c.Methods, m) && !rules.NeverAdmitted(m) {
			but = append(but, m)
		}
	}
	if slices.Contains(c.Methods, f.domain[len(f.domain)-1]) { // the one that nothing names
		c.Methods, c.Except = but, len(but) > 0
	}
}

// aspect is what two changes must share to be told in one sentence.
type aspect func(*Change) string

func hostsOf(c *Change) string   { return strings.Join(c.Hosts, " ") }
func portsOf(c *Change) string   { return fmt.Sprint(c.Ports) }
func pathsOf(c *Change) string   { return strings.Join(c.Paths, " ") }
func intoOf(c *Change) string    { return fmt.Sprint(c.Into) }
func methodsOf(c *Change) string { return fmt.Sprint(c.Except, c.Methods) }
func restOf(c *Change) string {
	return fmt.Sprint(c.Carrying, c.TwoReadings, c.Facts, c.Plain, c.From, c.Part)
}

func pathsGiven(c *Change) bool { return len(c.Paths) > 0 }
func intoGiven(c *Change) bool  { return len(c.Into) > 0 }

func whether(is func(*Change) bool) aspect {
	return func(c *Change) string { return fmt.Sprint(is(c)) }
}

// merge joins changes that share all aspects, in the order in which they came.
func merge(list []Change, join func(a, b *Change), shared ...aspect) []Change {
	var out []Change
	at := map[string]int{}
	for i := range list {
		var key strings.Builder
		for _, a := range shared {
			key.WriteString(a(&list[i]))
			key.WriteByte('\n')
		}
		if first, ok := at[key.String()]; ok {
			join(&out[first], &list[i])
			continue
		}
		at[key.String()] = len(out)
		out = append(out, list[i])
	}
	return out
}

func union[T comparable](a, b []T) []T {
	out := slices.Clone(a)
	for _, x := range b {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}
