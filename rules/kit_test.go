package rules_test

import (
	"net/netip"
	"strings"
	"testing"

	"sallyport/rules"
	"sallyport/rules/target"
)

// host reads a host pattern.
func host(tb testing.TB, s string) rules.HostPattern {
	tb.Helper()
	name, wildcard := strings.CutPrefix(s, "*.")
	h, err := target.ParseHost(name)
	if err != nil {
		tb.Fatal(err)
	}
	return rules.HostPattern{Host: h, Wildcard: wildcard}
}

func hosts(tb testing.TB, list ...string) (out []rules.HostPattern) {
	tb.Helper()
	for _, s := range list {
		out = append(out, host(tb, s))
	}
	return out
}

func pattern(tb testing.TB, s string) rules.PathPattern {
	tb.Helper()
	p, err := rules.ParsePathPattern(s)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func patterns(tb testing.TB, list ...string) (out []rules.PathPattern) {
	tb.Helper()
	for _, s := range list {
		out = append(out, pattern(tb, s))
	}
	return out
}

func pathOf(tb testing.TB, s string) target.Path {
	tb.Helper()
	p, err := target.ParsePath(s)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func endpoint(tb testing.TB, s string) target.Endpoint {
	tb.Helper()
	e, err := target.ParseAuthority(s, 443)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func cidrs(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func compile(tb testing.TB, s rules.Source) *rules.Policy {
	tb.Helper()
	p, err := rules.Compile(s)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}
