// Package target holds the one spelling of where a sandbox wants to go.
//
// It is the only parser of hosts, authorities and paths in Sallyport: text
// from a sandbox, a policy file or an upstream becomes a [Name], [Host],
// [Endpoint] or [Path] here, and is text again only on the wire or in the log.
// All types are comparable; two equal values are the same place.
//
// It trusts nothing: a spelling with two readings is refused, never repaired.
// It never resolves, never decodes an authority and never does I/O.
package target

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// Name is a DNS host name in canonical form: lower-case ASCII, no trailing
// dot, every label 1 to 63 octets, at most 253 in all (RFC 1035 section 2.3.4),
// the last label neither a number nor hexadecimal (WHATWG URL, "ends in a
// number"). The zero Name is no name.
type Name struct{ s string }

// Host is a [Name] or an IP address. IPv4-mapped IPv6 addresses are unmapped
// and zones refused, so each address has one spelling. The zero Host is no host.
type Host struct {
	name Name
	addr netip.Addr
}

// Endpoint is a host and a port: what a connection is judged by.
type Endpoint struct {
	Host Host
	Port uint16
}

// SyntaxError tells what was refused and why.
type SyntaxError struct {
	Kind  string // "name", "host", "authority", "path"
	Input string // sandbox-controlled; quote before printing
	Why   string
}

// Error implements error. The input is quoted and cut, so that it is safe to log.
func (e *SyntaxError) Error() string {
	in := e.Input
	if len(in) > 80 {
		in = in[:80] + "…"
	}
	return fmt.Sprintf("%s %q: %s", e.Kind, in, e.Why)
}

const (
	maxName  = 253 // RFC 1035 section 2.3.4, without the final dot
	maxLabel = 63
)

// ParseName reads a DNS name. One trailing dot is accepted and dropped.
// Every error is a [*SyntaxError].
func ParseName(s string) (Name, error) {
	bad := func(why string) error { return &SyntaxError{Kind: "name", Input: s, Why: why} }
	t := strings.TrimSuffix(s, ".")
	switch {
	case t == "":
		return Name{}, bad("empty")
	case len(t) > maxName:
		return Name{}, bad("longer than 253 octets")
	}
	t, err := lowerASCII(t)
	if err != nil {
		return Name{}, bad(err.Error())
	}
	var last string
	for last = range strings.SplitSeq(t, ".") {
		if why := labelFault(last); why != "" {
			return Name{}, bad(why)
		}
	}
	if isNumber(last) {
		return Name{}, bad("the last label is a number: neither a name nor a canonical address")
	}
	return Name{t}, nil
}

// lowerASCII folds A to Z and refuses every octet a host name cannot have.
// The underscore is allowed: service names use it, and every stage here agrees.
func lowerASCII(s string) (string, error) {
	lower := true
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '.', c == '_':
		case 'A' <= c && c <= 'Z':
			lower = false
		case c >= 0x80:
			return "", errors.New("not ASCII; write an internationalised name in its xn-- form")
		default:
			return "", fmt.Errorf("character %q", c)
		}
	}
	if lower {
		return s, nil
	}
	return strings.ToLower(s), nil
}

// labelFault says what is wrong with a lower-case label, or "".
func labelFault(l string) string {
	switch {
	case l == "":
		return "empty label"
	case len(l) > maxLabel:
		return "label longer than 63 octets"
	case l[0] == '-' || l[len(l)-1] == '-':
		return "label begins or ends with a hyphen"
	case strings.HasPrefix(l, "xn--"):
		// An A-label must be the one encoding of a non-ASCII U-label
		// (RFC 5891 section 4.4): xn--ok- is not another way to write ok.
		u, err := idna.Registration.ToUnicode(l)
		if err != nil {
			return "invalid xn-- label"
		}
		a, err := idna.Registration.ToASCII(u)
		if err != nil || a != l || u == l {
			return "invalid xn-- label"
		}
	}
	return ""
}

// isNumber reports whether a final label would be read as a number by some
// address parser: all digits, or 0x and hexadecimal digits.
func isNumber(l string) bool {
	if rest, ok := strings.CutPrefix(l, "0x"); ok {
		return strings.Trim(rest, "0123456789abcdef") == ""
	}
	return strings.Trim(l, "0123456789") == ""
}

// ParseUnicodeName reads a name from a file written by a person, where an
// internationalised name may stand in either form (RFC 5891). Text from a
// sandbox goes through [ParseName] instead.
func ParseUnicodeName(s string) (Name, error) {
	for i := range len(s) {
		if s[i] < 0x80 {
			continue
		}
		a, err := idna.Registration.ToASCII(s)
		if err != nil {
			return Name{}, &SyntaxError{Kind: "name", Input: s, Why: "not a valid internationalised name"}
		}
		return ParseName(a)
	}
	return ParseName(s)
}

// String returns the canonical text, "" for the zero Name.
func (n Name) String() string { return n.s }

// IsZero reports whether n is no name.
func (n Name) IsZero() bool { return n.s == "" }

// Below reports whether n is one or more labels below parent: never equal to it.
func (n Name) Below(parent Name) bool {
	return parent.s != "" && len(n.s) > len(parent.s)+1 &&
		strings.HasSuffix(n.s, parent.s) && n.s[len(n.s)-len(parent.s)-1] == '.'
}

// Parent returns n without its first label; ok is false at the last label.
func (n Name) Parent() (parent Name, ok bool) {
	_, rest, ok := strings.Cut(n.s, ".")
	return Name{rest}, ok
}

// Last returns the last k labels of n, all of n if it has fewer, no
// name if k is not positive.
func (n Name) Last(k int) Name {
	if k <= 0 {
		return Name{}
	}
	i := len(n.s)
	for ; k > 0 && i >= 0; k-- {
		i = strings.LastIndexByte(n.s[:i], '.')
	}
	return Name{n.s[i+1:]}
}

// HostOf makes a Host of a name.
func HostOf(n Name) Host { return Host{name: n} }

// HostOfAddr makes a Host of an address, unmapped and without a zone.
func HostOfAddr(a netip.Addr) Host { return Host{addr: a.Unmap().WithZone("")} }

// ParseHost reads a name, an IPv4 address in dotted-decimal form or an IPv6
// address without brackets and zone. Every other way to write an address
// (octal, hexadecimal, short, one number) is refused.
func ParseHost(s string) (Host, error) {
	if strings.Contains(s, ":") {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return Host{}, &SyntaxError{Kind: "host", Input: s, Why: "not an IPv6 address without a zone"}
		}
		return HostOfAddr(a), nil
	}
	// An IPv4 address ends in a digit. To have a name refused for one is dear.
	if s != "" && '0' <= s[len(s)-1] && s[len(s)-1] <= '9' {
		if a, err := netip.ParseAddr(s); err == nil {
			return HostOfAddr(a), nil
		}
	}
	n, err := ParseName(s)
	if err != nil {
		return Host{}, err
	}
	return Host{name: n}, nil
}

// Name returns the name; ok is false for an address.
func (h Host) Name() (n Name, ok bool) { return h.name, !h.name.IsZero() }

// Addr returns the address; ok is false for a name.
func (h Host) Addr() (a netip.Addr, ok bool) { return h.addr, h.addr.IsValid() }

// IsZero reports whether h is no host.
func (h Host) IsZero() bool { return h == Host{} }

// String returns the canonical text without brackets: ParseHost reads it back.
func (h Host) String() string {
	if h.addr.IsValid() {
		return h.addr.String()
	}
	return h.name.s
}

// ParseAuthority reads host or host:port (RFC 3986 section 3.2 without
// userinfo), an IPv6 address in brackets. defaultPort stands in for a missing
// port; 0 makes the port obligatory. Nothing is percent-decoded.
func ParseAuthority(s string, defaultPort uint16) (Endpoint, error) {
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		s = "[left out]" + s[i:] // a user and a password: the error goes into logs
	}
	bad := func(why string) (Endpoint, error) {
		return Endpoint{}, &SyntaxError{Kind: "authority", Input: s, Why: why}
	}
	hostText, portText := s, ""
	switch {
	case strings.ContainsAny(s, "@%/?#\\ "):
		return bad("userinfo, escapes and separators are not allowed here")
	case strings.HasPrefix(s, "["):
		inner, rest, ok := strings.Cut(s[1:], "]")
		if !ok || !strings.Contains(inner, ":") || rest != "" && rest[0] != ':' {
			return bad("brackets go around an IPv6 address")
		}
		hostText, portText = inner, rest
	default:
		if i := strings.IndexByte(s, ':'); i >= 0 {
			hostText, portText = s[:i], s[i:]
		}
		if strings.ContainsAny(portText[min(1, len(portText)):], ":]") {
			return bad("an IPv6 address needs brackets")
		}
	}
	h, err := ParseHost(hostText)
	if err != nil {
		return Endpoint{}, err
	}
	if portText == "" {
		if defaultPort == 0 {
			return bad("no port")
		}
		return Endpoint{h, defaultPort}, nil
	}
	port, err := parsePort(portText[1:])
	if err != nil {
		return bad(err.Error())
	}
	return Endpoint{h, port}, nil
}

// parsePort reads 1 to 65535 in decimal without sign or leading zero.
func parsePort(s string) (uint16, error) {
	if s == "" || s[0] == '0' || strings.Trim(s, "0123456789") != "" {
		return 0, errors.New("the port is not a number from 1 to 65535")
	}
	p, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, errors.New("the port is not a number from 1 to 65535")
	}
	return uint16(p), nil
}

// String returns host:port with brackets where they belong.
func (e Endpoint) String() string {
	var room [maxName + len(":65535")]byte // for all in one allocation
	b := append(room[:0], e.Authority(e.Port)...)
	b = append(b, ':')
	return string(strconv.AppendUint(b, uint64(e.Port), 10))
}

// Authority returns the endpoint as a Host header of the scheme that has
// defaultPort: the port is left out where it is the default.
func (e Endpoint) Authority(defaultPort uint16) string {
	if e.Port != defaultPort {
		return e.String()
	}
	if e.Host.addr.Is6() {
		return "[" + e.Host.String() + "]"
	}
	return e.Host.String()
}

// Guess returns the endpoint that a person probably meant by text that
// [ParseUnicodeName] or [ParseHost] refused, for the words of an error and for
// nothing else. The port is 0 where none was written.
func Guess(s string) (Endpoint, bool) {
	s = strings.ToLower(strings.TrimSpace(s))
	if _, rest, ok := strings.Cut(s, "://"); ok {
		s = rest
	}
	if i := strings.IndexAny(s, "/?#"); i >= 0 {
		s = s[:i]
	}
	if a, err := idna.Lookup.ToASCII(s); err == nil {
		s = a
	}
	s = strings.Trim(s, ".")
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return Endpoint{Host: HostOfAddr(a)}, true
	}
	if h, err := ParseHost(s); err == nil {
		return Endpoint{Host: h}, true
	}
	e, err := ParseAuthority(s, 0)
	return e, err == nil
}
