package rules

import (
	"net/netip"
	"slices"

	"sallyport/rules/target"
)

// About returns the positions, in the list that [Policy.Rules] returns, of the
// rules about a host: those whose hosts cover it and, for an address, those
// without hosts whose cidrs hold it.
func (p *Policy) About(h target.Host) []int32 {
	if p == nil || !p.compiled || h.IsZero() {
		return nil
	}
	return p.nearby(h)
}

// AboutAddr is About for an address that a name resolved to: the rules without
// hosts whose cidrs hold it.
func (p *Policy) AboutAddr(a netip.Addr) []int32 {
	if p == nil || !p.compiled {
		return nil
	}
	var list []int32
	p.nearAddr(a.Unmap(), func(i int32) bool {
		list = append(list, i)
		return true
	})
	slices.Sort(list)
	return list
}

// Opens reports whether the cidrs of an allow rule open a special-purpose
// address to what the rule admits.
func (r *Rule) Opens(a netip.Addr) bool { return opens(r.Private, a) }

// Touches reports whether a deny rule denies requests with the header and query
// of req, whatever their method and path allow, or cannot judge their query.
func (r *Rule) Touches(req *Request) bool {
	return r.meets(req, InHeader) && (r.meets(req, InQuery) || r.judgesQuery() && target.AmbiguousQuery(req.Query))
}

// SpecialRanges returns the blocks of special-purpose addresses, for who has to
// tell addresses apart as [Special] does.
func SpecialRanges() []netip.Prefix {
	out := []netip.Prefix{globalUnicast6}
	for _, b := range special4 {
		out = append(out, b.prefix)
	}
	for _, b := range special6 {
		out = append(out, b.prefix)
	}
	for _, a := range metadata {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return append(out, never[:]...)
}

// NeverAdmitted reports a method that no rule admits, not even one about any.
func NeverAdmitted(method string) bool { return neverMethod(method) }
