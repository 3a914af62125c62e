package suggest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sallyport/rules"
	"sallyport/rules/suggest"
	"sallyport/rules/target"
)

func endpoint(tb rapid.TB, s string) target.Endpoint {
	tb.Helper()
	e, err := target.ParseAuthority(s, 443)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func fetch(tb rapid.TB, host, method, path string) suggest.Seen {
	tb.Helper()
	p, err := target.ParsePath(path)
	if err != nil {
		tb.Fatal(err)
	}
	return suggest.Seen{
		Request: rules.Request{Question: rules.Fetch, Endpoint: endpoint(tb, host), Method: method, Path: p, Secure: true},
		Reason:  rules.HostNotAllowed, Count: 1, First: "X",
	}
}

// words writes rules, one a line.
func words(list []suggest.Rule) string {
	var b strings.Builder
	for _, r := range list {
		fmt.Fprintf(&b, "%s: %s:%d %v %v %v\n", r.ID, r.Host, r.Port, r.Methods, r.Paths, r.Raw)
	}
	return strings.TrimSpace(b.String())
}

func TestRules(t *testing.T) {
	paths := func(method string, list ...string) (out []suggest.Seen) {
		for _, p := range list {
			out = append(out, fetch(t, "a.test", method, p))
		}
		return out
	}
	raw := suggest.Seen{Request: rules.Request{Question: rules.Hello, Protocol: rules.Opaque, Endpoint: endpoint(t, "db.test:5432")}, Reason: rules.HostNotAllowed, Count: 2}
	tests := []struct {
		name string
		seen []suggest.Seen
		want string
	}{
		{"one request", paths("GET", "/"), "a.test: a.test:443 [GET] [/] false"},
		{"digests, uuids and long numbers", paths("GET", "/u/12345/x", "/c/0a1b2c3d4e", "/d/123e4567-e89b-12d3-a456-426614174000"), "a.test: a.test:443 [GET] [/c/* /d/* /u/*/x] false"},
		{"one number or day stays", paths("GET", "/u/7/x", "/1/2", "/e/2026-01-31"), "a.test: a.test:443 [GET] [/1/2 /e/2026-01-31 /u/7/x] false"},
		{"several numbers or days", paths("GET", "/u/7/x", "/u/8/x", "/e/2026-01-31", "/e/2026-02-01"), "a.test: a.test:443 [GET] [/e/* /u/*/x] false"},
		{"several numbers in several places", paths("GET", "/u/1/p/2", "/u/1/p/3", "/u/2/p/2"), "a.test: a.test:443 [GET] [/u/*/p/*] false"},
		{"nothing but numbers", paths("GET", "/1/2", "/3/4", "/5/6"), "a.test: a.test:443 [GET] [/1/2 /3/4 /5/6] false"},
		{"nothing but many numbers", paths("GET", "/1/2", "/3/4", "/5/6", "/7/8"), "a.test: a.test:443 [GET] [/*/*] false"},
		{"nothing but one id", paths("GET", "/0a1b2c3d4e"), "a.test: a.test:443 [GET] [/0a1b2c3d4e] false"},
		{"ids with a prefix", paths("GET", "/v1/charges/ch_1aB2cD3"), "a.test: a.test:443 [GET] [/v1/charges/*] false"},
		{"words stay", paths("GET", "/v1/charges", "/face_paint/feedface", "/user-settings"), "a.test: a.test:443 [GET] [/face_paint/feedface /user-settings /v1/charges] false"},
		{"many words at one place", paths("GET", "/r/a/x", "/r/b/x", "/r/c/x", "/r/d/x", "/r/e/y"), "a.test: a.test:443 [GET] [/r/*/x /r/e/y] false"},
		{"a final slash", paths("GET", "/a/17171/"), "a.test: a.test:443 [GET] [/a/*/] false"},
		{"a star of its own", paths("GET", "/a/b*c"), "a.test: a.test:443 [GET] [/a/*] false"},
		{
			"no more methods than were seen", append(paths("GET", "/x", "/y"), paths("POST", "/y")...),
			"a.test: a.test:443 [GET] [/x] false\na.test-2: a.test:443 [GET POST] [/y] false",
		},
		{
			"no rule in vain", append(paths("GET", "/c/0a1b2c3d", "/"), paths("POST", "/c/0a1b2c3d", "/c/v1")...),
			"a.test: a.test:443 [GET] [/] false\na.test-2: a.test:443 [GET POST] [/c/*] false",
		},
		{"a stream", []suggest.Seen{raw}, "db.test-5432: db.test:5432 [] [] true"},
	}
	for _, tt := range tests {
		list, left := suggest.Rules(tt.seen, nil)
		if got := words(list); got != tt.want || len(left) > 0 {
			t.Errorf("%s:\n%s\nwant\n%s (%v)", tt.name, got, tt.want, left)
		}
	}
	if list, _ := suggest.Rules(paths("GET", "/"), []string{"a.test"}); list[0].ID != "a.test-2" {
		t.Errorf("an id that is taken was given again: %s", list[0].ID)
	}
}

func TestRulesAreNeverSuggestedForWhatIsRefusedOnPurpose(t *testing.T) {
	with := func(f func(*suggest.Seen)) suggest.Seen {
		s := fetch(t, "a.test", "GET", "/")
		f(&s)
		return s
	}
	tests := []struct {
		seen suggest.Seen
		want string
	}{
		{with(func(s *suggest.Seen) { s.Reason, s.Rule, s.Where = rules.DeniedByRule, "no", "p.yaml:3" }), "denied on purpose by rule no (p.yaml:3)"},
		{with(func(s *suggest.Seen) { s.Scope = "floor" }), "denied on purpose by the floor"},
		{with(func(s *suggest.Seen) { s.Reason, s.Rule = rules.RuleExpired, "old" }), "has expired"},
		{with(func(s *suggest.Seen) { s.Reason = rules.PrivateIP }), "only cidrs in a rule open that"},
		{with(func(s *suggest.Seen) { s.Reason = rules.PlaceholderLeak }), "no rule refused it"},
		{with(func(s *suggest.Seen) { s.Reason = rules.Limit }), "no rule refused it"},
		{with(func(s *suggest.Seen) { s.Request.Method = "TRACE" }), "TRACE cannot be allowed"},
		{with(func(s *suggest.Seen) { s.Request.Method = "get" }), "not a method that a rule can name"},
		{with(func(s *suggest.Seen) { s.Request.Endpoint = endpoint(t, "169.254.169.254:80") }), "cloud metadata"},
		{with(func(s *suggest.Seen) { s.Request.Endpoint = endpoint(t, "sallyport.internal:80") }), "the gateway's own name"},
		{with(func(s *suggest.Seen) { s.Request.Question = rules.Resolve }), "only its name was asked for"},
		{with(func(s *suggest.Seen) { s.Request.Question = rules.Connect }), "no request was seen"},
		{fetch(t, "a.test", "GET", "/a/../b"), "servers read its path in two ways"},
	}
	for _, tt := range tests {
		list, left := suggest.Rules([]suggest.Seen{tt.seen}, nil)
		if len(list) > 0 || len(left) != 1 || !strings.Contains(left[0].Why, tt.want) {
			t.Errorf("%v: %s, %v; want %q", tt.seen, words(list), left, tt.want)
		}
	}
}

// policyOf makes a policy of suggested rules, and of others.
func policyOf(tb rapid.TB, list []suggest.Rule, more ...rules.Rule) *rules.Policy {
	tb.Helper()
	src := rules.Source{Rules: more}
	for _, r := range list {
		rule := rules.Rule{
			ID: r.ID, Action: rules.AllowAction, Hosts: []rules.HostPattern{{Host: r.Host}}, Ports: []uint16{r.Port}, Methods: slices.Clone(r.Methods),
		}
		for _, p := range r.Paths {
			q, err := rules.ParsePathPattern(p)
			if err != nil {
				tb.Fatal(err)
			}
			rule.Paths = append(rule.Paths, q)
		}
		src.Rules = append(src.Rules, rule)
	}
	p, err := rules.Compile(src)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// TestNoRuleIsSuggestedInVain: without any one of the rules, and any one path of a
// rule, something that was seen is refused.
func TestNoRuleIsSuggestedInVain(t *testing.T) {
	segment := rapid.SampledFrom([]string{"v1", "users", "17", "18", "ch_1aB2cD3", "x", "y", "z", "w", "a*b", "0a1b2c3d4e5f"})
	rapid.Check(t, func(t *rapid.T) {
		var seen []suggest.Seen
		for range rapid.IntRange(1, 12).Draw(t, "requests") {
			path := "/" + strings.Join(rapid.SliceOfN(segment, 0, 3).Draw(t, "path"), "/")
			host := rapid.SampledFrom([]string{"a.test", "b.test:80"}).Draw(t, "host")
			seen = append(seen, fetch(t, host, rapid.SampledFrom([]string{"GET", "POST", "PUT"}).Draw(t, "method"), path))
		}
		list, _ := suggest.Rules(seen, nil)
		refuses := func(list []suggest.Rule, what string) {
			p := policyOf(t, list)
			if !slices.ContainsFunc(seen, func(s suggest.Seen) bool { return p.Follow(s.Request).Verdict == rules.Deny }) {
				t.Fatalf("all is admitted without %s", what)
			}
		}
		for i, r := range list {
			without := slices.Delete(slices.Clone(list), i, i+1)
			refuses(without, "rule "+r.ID)
			for j, path := range r.Paths {
				less := r
				if less.Paths = slices.Delete(slices.Clone(r.Paths), j, j+1); len(less.Paths) > 0 {
					refuses(append(slices.Clone(without), less), "path "+path+" of rule "+r.ID)
				}
			}
		}
	})
}

// TestRulesAdmitWhatWasSeenAndNoOtherMethod: what is suggested compiles, admits
// every request that it is for, and nothing with a method that was not seen.
func TestRulesAdmitWhatWasSeenAndNoOtherMethod(t *testing.T) {
	segment := rapid.SampledFrom([]string{"v1", "users", "17", "ch_1aB2cD3", "x", "y", "z", "w", "a*b", "A%2Db", "0a1b2c3d4e5f"})
	rapid.Check(t, func(t *rapid.T) {
		var seen []suggest.Seen
		for range rapid.IntRange(1, 8).Draw(t, "requests") {
			path := "/" + strings.Join(rapid.SliceOfN(segment, 0, 4).Draw(t, "path"), "/")
			host := rapid.SampledFrom([]string{"a.test", "b.test:80", "8.8.8.8"}).Draw(t, "host")
			seen = append(seen, fetch(t, host, rapid.SampledFrom([]string{"GET", "POST"}).Draw(t, "method"), path))
		}
		list, left := suggest.Rules(seen, nil)
		if len(left) > 0 {
			t.Fatal(left)
		}
		p := policyOf(t, list)
		asked := map[string]bool{}
		for _, s := range seen {
			asked[s.Request.Endpoint.String()+s.Request.Method] = true
			if d := p.Follow(s.Request); d.Verdict == rules.Deny {
				t.Fatalf("%v is still refused: %s\n%s", s.Request, d.Reason, words(list))
			}
		}
		for _, s := range seen {
			for _, m := range []string{"GET", "POST", "DELETE"} {
				other := s.Request
				if other.Method = m; !asked[other.Endpoint.String()+m] && p.Follow(other).Verdict != rules.Deny {
					t.Fatalf("%v is allowed, and nobody asked for it\n%s", other, words(list))
				}
			}
		}
	})
}

// TestScansAreOneNote: whoever tries many ports, or many addresses, gets one note and no
// rules; what was asked of the web's ports of the same host is suggested all the same.
func TestScansAreOneNote(t *testing.T) {
	stream := func(at string) suggest.Seen {
		return suggest.Seen{Request: rules.Request{Question: rules.Hello, Protocol: rules.Opaque, Endpoint: endpoint(t, at)}, Reason: rules.HostNotAllowed, Count: 2}
	}
	seen := []suggest.Seen{fetch(t, "a.test", "GET", "/")}
	for port := range 1000 {
		seen = append(seen, stream(fmt.Sprintf("a.test:%d", 1000+port)))
	}
	for i := range 200 {
		seen = append(seen, stream(fmt.Sprintf("8.8.%d.8:22", i)), stream(fmt.Sprintf("10.0.0.%d:22", i)))
	}
	list, left := suggest.Rules(seen, nil)
	if got := words(list); got != "a.test: a.test:443 [GET] [/] false" {
		t.Errorf("rules:\n%s", got)
	}
	var got []string
	for _, l := range left {
		got = append(got, fmt.Sprintf("%s ×%d +%d: %s", l.Request.Endpoint, l.Count, l.More, l.Why))
	}
	want := []string{
		"a.test:1000 ×2000 +0: 1000 ports of a.test were tried, as a scan does (1000, 1001, 1002, 1003, 1004, 1005, …): write a rule for the one that is needed",
		"8.8.0.8:22 ×400 +0: port 22 of 200 addresses was tried, as a scan does: write a rule for the one that is needed",
		"10.0.0.0:22 ×400 +199: it is a special-purpose address (private): only cidrs in a rule open that, and a person has to say which",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("left out (-want +got):\n%s", diff)
	}
	// Three ports of a host are a use of it.
	if list, left := suggest.Rules([]suggest.Seen{stream("a.test:22"), stream("a.test:23"), stream("a.test:5432"), stream("a.test:443")}, nil); len(list) != 4 || len(left) != 0 {
		t.Errorf("%s\n%v", words(list), left)
	}
}

// TestBeside: each thing in which a rule is narrow has a request that differs in that
// alone, and the rule does not admit it.
func TestBeside(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var seen []suggest.Seen
		for range rapid.IntRange(1, 6).Draw(t, "n") {
			method := rapid.SampledFrom([]string{"GET", "POST", "DELETE"}).Draw(t, "method")
			path := rapid.SampledFrom([]string{"/", "/a", "/a/", "/a/b", "/c/ch_1aB2cD3", "/c/other", "/1/2", "/a%20b"}).Draw(t, "path")
			seen = append(seen, fetch(t, "a.test", method, path))
		}
		list, _ := suggest.Rules(seen, nil)
		for i := range list {
			r := &list[i]
			patterns := make([]rules.PathPattern, len(r.Paths))
			for j, p := range r.Paths {
				var err error
				if patterns[j], err = rules.ParsePathPattern(p); err != nil {
					t.Fatal(err)
				}
			}
			lists := r.Beside()
			if len(lists) != 2 {
				t.Fatalf("%d lists", len(lists))
			}
			for _, q := range lists[0] {
				if slices.Contains(r.Methods, q.Method) || q.Path != r.Seen[0].Request.Path {
					t.Errorf("%s %s beside %v", q.Method, q.Path, r.Methods)
				}
			}
			denied := false
			for _, q := range lists[1] {
				if !slices.Contains(r.Methods, q.Method) {
					t.Errorf("%s %s is of another method", q.Method, q.Path)
				}
				denied = denied || !slices.ContainsFunc(patterns, func(p rules.PathPattern) bool { return p.Match(q.Path) })
			}
			if !denied {
				t.Errorf("of %v nothing is beside %v", lists[1], r.Paths)
			}
		}
	})
	raw := suggest.Rule{Raw: true, Host: endpoint(t, "db.test").Host, Port: 22}
	for _, q := range raw.Beside()[0] {
		if q.Question != rules.Connect || q.Endpoint.Port == 22 {
			t.Errorf("%+v", q)
		}
	}
}
