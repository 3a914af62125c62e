package policyfile

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"sallyport/rules"
	"sallyport/rules/target"
)

// TestResult is one entry of a policy's tests and how it came out.
type TestResult struct {
	Where    string         `json:"where"` // file:line
	Asked    string         `json:"asked"` // as in the file
	Decision rules.Decision `json:"decision"`
	// Failures say what was expected and is not so; none means that it holds.
	Failures []string `json:"failures,omitempty"`
	request  rules.Request
}

// OK reports whether the test holds.
func (t TestResult) OK() bool { return len(t.Failures) == 0 }

// testDoc is a test while it is read.
type testDoc struct {
	node     ast.Node
	asked    string
	request  rules.Request
	allow    bool
	expected map[string]string // rule, credential, reason
	nodes    map[string]ast.Node
	whole    bool
}

func (d *policyDoc) readTest(n ast.Node) {
	before := len(d.errs)
	t := &testDoc{node: n, expected: map[string]string{}}
	ask := func(kind string, parse func(string) (rules.Request, error)) func(ast.Node) {
		return func(n ast.Node) {
			before := len(d.errs)
			if t.asked != "" {
				d.errorf(n, "a test asks one thing: request, connect or dns")
				return
			}
			if d.str(&t.asked)(n); len(d.errs) > before {
				return
			}
			var err error
			if t.request, err = parse(t.asked); err != nil {
				d.errorf(n, "%s: %v", kind, err)
			}
		}
	}
	expect := func(name string) func(ast.Node) {
		return func(n ast.Node) {
			var s string
			d.str(&s)(n)
			t.expected[name] = s
		}
	}
	var at, length int64
	var header map[string][]string
	t.nodes = d.mapping(n, "a test", []key{
		{name: "request", read: ask("request", ParseRequest)},
		{name: "connect", read: ask("connect", parseConnect)},
		{name: "dns", read: ask("dns", parseDNS)},
		{name: "expect", required: true, read: d.word([]string{"allow", "deny"}, func(s string) { t.allow = s == "allow" })},
		{name: "rule", read: expect("rule")},
		{name: "credential", read: expect("credential")},
		{name: "reason", read: d.word(reasonNames(), func(s string) { t.expected["reason"] = s })},
		{name: "at", read: d.date(&at)},
		{name: "headers", read: d.testHeaders(&header)},
		{name: "body", read: d.size(&length)},
	})
	if t.nodes == nil {
		return
	}
	if t.asked == "" && len(d.errs) == before {
		d.errorf(n, "a test has request, connect or dns")
	}
	for _, name := range []string{"headers", "body"} {
		if t.nodes[name] != nil && t.request.Question != rules.Fetch && len(d.errs) == before {
			d.errorf(t.nodes[name], "only a request has %s", name)
		}
	}
	t.request.Now, t.request.Header, t.request.Length = at, header, length
	t.whole = len(d.errs) == before
	d.tests = append(d.tests, t)
}

func reasonNames() []string {
	var out []string
	for _, r := range rules.Reasons() {
		out = append(out, string(r))
	}
	return out
}

// runTests asks the policy what its tests ask, as if everything were enforced:
// what is observed today is to be tested for tomorrow. Without "at", a test is asked
// at a time at which no rule has expired, so that a file which loads today
// loads tomorrow.
func (d *policyDoc) runTests(p *rules.Policy) []TestResult {
	results := make([]TestResult, 0, len(d.tests))
	if d.loader.scope != rules.FloorScope { // alone, a floor shows what it takes away
		p = p.Enforced()
	}
	for _, t := range d.tests {
		got := p.Follow(t.request)
		r := TestResult{Where: d.at(t.node), Asked: t.asked, Decision: got, request: t.request}
		if field, text := t.failure(&got); text != "" {
			r.Failures = []string{text}
			d.errorf(t.nodes[field], "test fails: %s: %s", t.asked, text)
		}
		results = append(results, r)
	}
	return results
}

// failure says what is not as a test expects, in one line, and which key of the
// test it is about: where the verdict is another, rule and reason are too, and the
// outcome names them.
func (t *testDoc) failure(got *rules.Decision) (field, text string) {
	if allowed := got.Verdict != rules.Deny; allowed != t.allow {
		return "expect", "got " + outcome(*got)
	}
	var texts []string
	for _, x := range []struct{ field, got, text string }{
		{"rule", got.Rule, "the rule is " + quoted(got.Rule)},
		{"credential", got.Credential, "the credential is " + quoted(got.Credential)},
		{"reason", string(got.Reason), "the reason is " + string(got.Reason)},
	} {
		if want, ok := t.expected[x.field]; ok && want != x.got {
			texts = append(texts, x.text)
			field = cmp.Or(field, x.field)
		}
	}
	return field, strings.Join(texts, ", ")
}

func outcome(d rules.Decision) string {
	verb := "allow"
	if d.Verdict == rules.Deny {
		verb = "deny"
	}
	text := fmt.Sprintf("%s (%s)", verb, d.Reason)
	if d.Rule != "" {
		text += fmt.Sprintf(" by rule %q, %s", d.Rule, d.Where)
	}
	if d.Scope != rules.PolicyScope.String() && d.Scope != "" {
		text += fmt.Sprintf(" (scope %s)", d.Scope)
	}
	return text
}

func quoted(s string) string {
	if s == "" {
		return "none"
	}
	return fmt.Sprintf("%q", s)
}

// ParseRequest reads a request as tests and the command line write it: METHOD
// and an absolute http or https URL, by the parsers that read the real ones. The
// method may be one that no request may have: that is for the policy to say.
// The cell and the time are for the caller to set.
func ParseRequest(s string) (rules.Request, error) {
	method, url, ok := strings.Cut(s, " ")
	if !ok || !rules.IsToken(method) {
		return rules.Request{}, fmt.Errorf("%q is not METHOD URL, such as GET https://example.com/", s)
	}
	r := rules.Request{Question: rules.Fetch, Method: method}
	rest, port := "", uint16(0)
	switch {
	case strings.HasPrefix(url, "https://"):
		rest, port, r.Secure = url[len("https://"):], 443, true
	case strings.HasPrefix(url, "http://"):
		rest, port = url[len("http://"):], 80
	default:
		return rules.Request{}, fmt.Errorf("%q does not begin with https:// or http://", url)
	}
	rest, _, _ = strings.Cut(rest, "#")
	rest, r.Query, _ = strings.Cut(rest, "?")
	authority, path := rest, "/"
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	var err error
	if r.Endpoint, err = target.ParseAuthority(authority, port); err != nil {
		return rules.Request{}, err
	}
	if r.Path, err = target.ParsePath(path); err != nil {
		return rules.Request{}, err
	}
	return r, nil
}

// ParseQuestion reads any of the things that a test asks: METHOD URL, TYPE NAME
// for a DNS query, or host:port for a stream.
func ParseQuestion(s string) (rules.Request, error) {
	switch {
	case strings.Contains(s, "://"):
		return ParseRequest(s)
	case strings.Contains(s, " "):
		return parseDNS(s)
	default:
		return parseConnect(s)
	}
}

// parseConnect reads host:port.
func parseConnect(s string) (rules.Request, error) {
	e, err := target.ParseAuthority(s, 0)
	return rules.Request{Question: rules.Connect, Endpoint: e}, err
}

// rrTypes are the types that a test can name (RFC 1035, 2782, 3596, 9460 …).
var rrTypes = map[string]uint16{
	"A": 1, "NS": 2, "CNAME": 5, "SOA": 6, "NULL": 10, "PTR": 12, "MX": 15, "TXT": 16, "AAAA": 28,
	"SRV": 33, "NAPTR": 35, "SVCB": 64, "HTTPS": 65, "CAA": 257, "ANY": 255,
}

// parseDNS reads TYPE NAME.
func parseDNS(s string) (rules.Request, error) {
	kind, name, ok := strings.Cut(s, " ")
	rr := rrTypes[kind]
	if !ok || rr == 0 {
		return rules.Request{}, fmt.Errorf("%q is not TYPE NAME, such as A example.com", s)
	}
	n, err := target.ParseName(name)
	if err != nil {
		return rules.Request{}, err
	}
	return rules.Request{Question: rules.Resolve, Type: rr, Endpoint: target.Endpoint{Host: target.HostOf(n)}}, nil
}
