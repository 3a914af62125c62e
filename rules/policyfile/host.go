package policyfile

import (
	"net/netip"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"sallyport/rules"
	"sallyport/rules/target"
)

// host reads a host pattern in its one spelling: a name, *.name, or an address.
func (f *file) host(n ast.Node, s string) (rules.HostPattern, bool) {
	name, wildcard := strings.CutPrefix(s, "*.")
	bad := func(format string, args ...any) (rules.HostPattern, bool) {
		f.errorf(n, format, args...)
		return rules.HostPattern{}, false
	}
	switch {
	case strings.Contains(name, "*") || wildcard && name == "":
		return bad("%q: the one wildcard is *. and a name, for every name below it", s)
	case strings.HasPrefix(name, "."):
		return bad("%q is not a host; write \"*%s\" for every name below %s", s, name, name[1:])
	}
	h, err := parseHost(name)
	if err != nil {
		if right, ok := target.Guess(name); ok {
			prefix := ""
			if wildcard {
				prefix = "*."
			}
			return bad("%q is not how this host is spelled; write %q%s", s, prefix+right.Host.String(), portHint(right.Port))
		}
		return bad("%v", err)
	}
	if wildcard {
		if _, isAddr := h.Addr(); isAddr {
			return bad("%q: a wildcard goes before a name, not an address", s)
		}
	}
	return rules.HostPattern{Host: h, Wildcard: wildcard}, true
}

func portHint(port uint16) string {
	if port == 0 {
		return ""
	}
	return " here, and the port under ports"
}

// parseHost accepts the canonical spelling, and an internationalised name in
// either form.
func parseHost(s string) (target.Host, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		if h := target.HostOfAddr(a); h.String() == s {
			return h, nil
		}
		return target.Host{}, &target.SyntaxError{Kind: "address", Input: s, Why: "not in canonical form"}
	}
	n, err := target.ParseUnicodeName(s)
	if err != nil {
		return target.Host{}, err
	}
	if isASCII(s) && n.String() != s {
		return target.Host{}, &target.SyntaxError{Kind: "name", Input: s, Why: "not in canonical form"}
	}
	return target.HostOf(n), nil
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// prefixes reads a list of address ranges.
func (f *file) prefixes(dst *[]netip.Prefix) func(ast.Node) {
	return f.strs(func(n ast.Node, s string) {
		if p, ok := f.prefix(n, s); ok {
			*dst = append(*dst, p)
		}
	})
}

// prefix reads an address range in canonical form.
func (f *file) prefix(n ast.Node, s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
			a = a.Unmap()
			f.errorf(n, "%q is an address; as a range it is %q", s, netip.PrefixFrom(a, a.BitLen()))
			return p, false
		}
		f.errorf(n, "%q is not an address range such as 10.20.0.0/16", s)
		return p, false
	}
	if p.Addr().Is4In6() {
		f.errorf(n, "%q is IPv4 in an IPv6 spelling; write the IPv4 range", s)
		return p, false
	}
	if c := p.Masked(); c.String() != s {
		f.errorf(n, "%q is not in canonical form; write %q", s, c)
		return p, false
	}
	return p, true
}
