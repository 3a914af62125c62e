package rules

import (
	"cmp"
	"fmt"
	"net/textproto"
	"slices"
	"strings"

	"sallyport/rules/target"
)

// Condition is what a rule asks of one header field or query parameter of a
// request. An allow rule holds it narrowly and a deny rule widely: where a
// server might read a request in another way than it is written, the first
// takes it for not met and the second for met.
type Condition struct {
	In   Part
	Name string // of a header, canonical; of a parameter, decoded
	Test Test
	// Value is what Equals asks for, decoded. It is the policy's own text.
	Value string
}

// Part is the part of a request that a condition is about.
type Part uint8

// The parts.
const (
	InQuery Part = iota + 1
	InHeader
)

// String returns the word of a policy file.
func (p Part) String() string {
	if p == InHeader {
		return "headers"
	}
	return "query"
}

// Test is what is asked. The zero Test is never met by an allow rule.
type Test uint8

// The tests. Several occurrences equal a value if each of them does, for an
// allow rule, or one, for a deny rule.
const (
	Present Test = iota + 1
	Absent
	Equals
)

// String names the condition without its value.
func (c Condition) String() string { return c.say("with a value") }

// Asked names the condition with its value. It is for whoever reads the policy, whose
// text the value is, and never for a sandbox.
func (c Condition) Asked() string { return c.say(fmt.Sprintf("with the value %q", c.Value)) }

// say names the condition, and what it equals as it is told.
func (c Condition) say(equals string) string {
	what := "parameter " + c.Name
	if c.In == InHeader {
		what = "header " + c.Name
	}
	switch c.Test {
	case Present:
		return what + " present"
	case Absent:
		return what + " absent"
	default:
		return what + " " + equals
	}
}

// Compare orders conditions.
func (c Condition) Compare(d Condition) int {
	return cmp.Or(cmp.Compare(c.In, d.In), cmp.Compare(c.Name, d.Name), cmp.Compare(c.Test, d.Test), cmp.Compare(c.Value, d.Value))
}

// MeetsConditions reports whether a request meets every condition of the rule,
// as narrowly or widely as its action asks.
func (r *Rule) MeetsConditions(req *Request) bool {
	return r.meets(req, InQuery) && r.meets(req, InHeader)
}

// meets looks at the conditions about one part.
func (r *Rule) meets(req *Request, part Part) bool {
	for i := range r.Conditions {
		c := &r.Conditions[i]
		switch {
		case c.In != part:
		case r.Action == AllowAction && !c.surely(req), r.Action != AllowAction && !c.maybe(req):
			return false
		}
	}
	return true
}

// judgesQuery reports whether a condition is about the query.
func (r *Rule) judgesQuery() bool {
	return slices.ContainsFunc(r.Conditions, func(c Condition) bool { return c.In == InQuery })
}

// surely reports whether every server would see the condition met.
func (c *Condition) surely(req *Request) bool {
	if c.In == InHeader {
		return c.surelyHeader(req.Header)
	}
	return !target.AmbiguousQuery(req.Query) && c.surelyParam(req.Query)
}

func (c *Condition) surelyHeader(h map[string][]string) bool {
	values := h[c.Name]
	switch c.Test {
	case Present:
		return len(values) > 0
	case Absent:
		return !c.inHeader(h, false)
	case Equals:
		return len(values) > 0 && !slices.ContainsFunc(values, func(v string) bool { return v != c.Value })
	default:
		return false
	}
}

func (c *Condition) surelyParam(query string) bool {
	present, other := false, false
	for piece := range strings.SplitSeq(query, "&") {
		if !target.ParamLike(piece, c.Name) {
			continue
		}
		value, named := target.ParamExact(piece, c.Name)
		present = present || named
		other = other || !named || !target.DecodesTo(value, c.Value)
	}
	switch c.Test {
	case Present:
		return present
	case Absent:
		return !present && !other
	case Equals:
		return present && !other
	default:
		return false
	}
}

// maybe reports whether some server could see the condition met.
func (c *Condition) maybe(req *Request) bool {
	switch {
	case c.Test == Absent:
		present := Condition{In: c.In, Name: c.Name, Test: Present}
		return !present.surely(req)
	case c.In == InHeader:
		return c.inHeader(req.Header, c.Test == Equals)
	}
	for piece := range strings.SplitSeq(req.Query, "&") {
		if target.ParamLike(piece, c.Name) && (c.Test != Equals || target.ParamMay(piece, c.Value)) {
			return true
		}
	}
	return false
}

// inHeader reports a field that a server may take for the one that is named:
// in any case, and with _ for -, which are one to CGI and its kin. With equal,
// its value, or an item of its list, is the condition's in any case.
func (c *Condition) inHeader(h map[string][]string, equal bool) bool {
	for name, values := range h {
		if !sameField(name, c.Name) {
			continue
		}
		if !equal {
			return true
		}
		for _, v := range values {
			if strings.EqualFold(v, c.Value) {
				return true
			}
			for item := range strings.SplitSeq(v, ",") {
				if strings.EqualFold(strings.Trim(item, " \t"), c.Value) {
					return true
				}
			}
		}
	}
	return false
}

func sameField(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		x, y := lower(a[i]), lower(b[i])
		if x != y && (x != '_' || y != '-') && (x != '-' || y != '_') {
			return false
		}
	}
	return true
}

// conditionsMeet reports whether one request could meet the conditions of two
// allow rules.
func conditionsMeet(a, b *Rule) bool {
	for _, x := range a.Conditions {
		for _, y := range b.Conditions {
			if x.In == y.In && x.Name == y.Name && (x.Test == Absent) != (y.Test == Absent) ||
				x.In == y.In && x.Name == y.Name && x.Test == Equals && y.Test == Equals && x.Value != y.Value {
				return false
			}
		}
	}
	return true
}

// CanonicalHeader returns the one spelling of a header's name that net/http
// gives it too, "" for what is no name (RFC 9110 section 5.1).
func CanonicalHeader(name string) string {
	b := []byte(name)
	up := true
	for i, c := range b {
		switch {
		case !isTokenChar(c):
			return ""
		case up && 'a' <= c && c <= 'z':
			b[i] = c - 'a' + 'A'
		case !up:
			b[i] = lower(c)
		}
		up = c == '-'
	}
	return string(b)
}

// Unjudged says why a header, by its canonical name, decides nothing and so cannot
// be a condition; "" if it can.
func Unjudged(name string) string {
	switch name {
	case "Host":
		return "it is the authority: say host"
	case "Connection", "Content-Length", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Keep-Alive", "Expect", "Http2-Settings":
		return "it is about the connection, and not passed on as it comes"
	}
	if strings.HasPrefix(name, "Proxy-") || strings.HasPrefix(name, "Sallyport-") || Restates(name) {
		return "the gateway takes it out of every request"
	}
	return ""
}

// Restates reports headers of a request, by their canonical names, that say again
// what a request is, to whom it goes or who sent it, as a trusted proxy would. A
// server that heeds one would do another request than the one that was judged
// (HT-16), so the gateway takes them out of what it sends.
func Restates(name string) bool {
	if strings.IndexByte(name, '_') >= 0 { // CGI cannot tell it from a hyphen
		name = textproto.CanonicalMIMEHeaderKey(strings.ReplaceAll(name, "_", "-"))
	}
	switch name {
	case "X-Http-Method-Override", "X-Http-Method", "X-Method-Override", "X-Original-Method",
		"X-Original-Url", "X-Original-Uri", "X-Rewrite-Url", "X-Rewrite-Uri",
		"Forwarded", "X-Forwarded", "X-Host", "X-Original-Host", "X-Http-Host-Override", "X-Host-Override",
		"X-Original-Forwarded-For", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "X-Originating-Ip", "X-Remote-Ip", "X-Remote-Addr",
		"True-Client-Ip", "Cf-Connecting-Ip", "Fastly-Client-Ip", "Client-Ip", "X-Original-Remote-Addr",
		"Remote-User", "X-Remote-User", "X-Remote-Group":
		return true
	}
	return strings.HasPrefix(name, "X-Forwarded-")
}

// secretField reports headers whose values a policy must not hold.
func secretField(name string) bool {
	return name == "Authorization" || name == "Cookie" || name == "X-Api-Key"
}

func (c *compiler) checkConditions(r *Rule) {
	for i, x := range r.Conditions {
		field := x.In.String()
		switch {
		case x.In != InHeader && x.In != InQuery, x.Test < Present || x.Test > Equals, x.Test != Equals && x.Value != "":
			c.fault(field, "a condition that says nothing")
		case x.Name == "":
			c.fault(field, "a condition without a name")
		case x.In == InHeader && !c.checkHeader(x):
		case slices.ContainsFunc(r.Conditions[:i], func(y Condition) bool { return y.In == x.In && y.Name == x.Name }):
			c.faultAt(field, x.Name, "%s stands twice", x.Name)
		}
	}
}

// checkHeader refuses what cannot be asked of a header.
func (c *compiler) checkHeader(x Condition) (ok bool) {
	field, name := x.In.String(), CanonicalHeader(x.Name)
	switch {
	case name == "":
		c.faultAt(field, x.Name, "%q is not the name of a header", x.Name)
	case name != x.Name:
		c.faultAt(field, x.Name, "%q is not how this header is spelled; write %q", x.Name, name)
	case Unjudged(name) != "":
		c.faultAt(field, x.Name, "%s cannot be a condition: %s", name, Unjudged(name))
	case x.Test == Equals && secretField(name):
		c.faultAt(field, x.Name, "the value of %s is a secret, and a policy holds none: ask whether it is present", name)
	case x.Test == Equals && strings.Trim(x.Value, " \t") != x.Value:
		c.faultAt(field, x.Name, "the value of %s begins or ends with a blank, which no header's does", name)
	default:
		return true
	}
	return false
}
