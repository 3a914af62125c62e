package prove_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sallyport/rules"
	"sallyport/rules/prove"
	"sallyport/rules/target"
)

func hosts(list ...string) (out []rules.HostPattern) {
	for _, s := range list {
		name, wildcard := strings.CutPrefix(s, "*.")
		h, err := target.ParseHost(name)
		if err != nil {
			panic(err)
		}
		out = append(out, rules.HostPattern{Host: h, Wildcard: wildcard})
	}
	return out
}

func paths(list ...string) (out []rules.PathPattern) {
	for _, s := range list {
		p, err := rules.ParsePathPattern(s)
		if err != nil {
			panic(err)
		}
		out = append(out, p)
	}
	return out
}

func allow(r rules.Rule) rules.Rule {
	r.Action = rules.AllowAction
	if r.Ports == nil {
		r.Ports = []uint16{443}
	}
	return r
}

// conds reads conditions: Name, !Name, Name=value, and with ?, of the query.
func conds(list ...string) (out []rules.Condition) {
	for _, s := range list {
		c := rules.Condition{In: rules.InHeader, Test: rules.Present}
		if rest, ok := strings.CutPrefix(s, "?"); ok {
			c.In, s = rules.InQuery, rest
		}
		if rest, ok := strings.CutPrefix(s, "!"); ok {
			c.Test, s = rules.Absent, rest
		}
		c.Name = s
		if name, value, ok := strings.Cut(s, "="); ok {
			c.Test, c.Name, c.Value = rules.Equals, name, value
		}
		out = append(out, c)
	}
	return out
}

func TestCheck(t *testing.T) {
	api := allow(rules.Rule{ID: "api", Hosts: hosts("api.test"), Methods: []string{"GET", "POST"}, Paths: paths("/v1/**"), Credential: "key"})
	open := allow(rules.Rule{ID: "open", Hosts: hosts("*.open.test")})
	lan := allow(rules.Rule{ID: "lan", Private: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}})
	raw := allow(rules.Rule{ID: "raw", Hosts: hosts("db.test"), Ports: []uint16{5432}, Raw: true})
	tests := []struct {
		name string
		list []rules.Rule
		s    prove.Statement
		want string // "" for proved
	}{
		{"nothing is admitted", nil, prove.Statement{}, ""},
		{"a method that no rule has", []rules.Rule{api}, prove.Statement{Credential: "key", Methods: []string{"DELETE"}}, ""},
		{"a method that a rule has", []rules.Rule{api}, prove.Statement{Credential: "key", Methods: []string{"DELETE", "POST"}}, "POST https://api.test/v1"},
		{"any method stands for all but TRACE", []rules.Rule{open}, prove.Statement{Methods: []string{"TRACE"}}, ""},
		{"another credential", []rules.Rule{api}, prove.Statement{Credential: "other"}, ""},
		{"a path outside", []rules.Rule{api}, prove.Statement{Paths: paths("/v2/**")}, ""},
		{"a path inside, in its other case", []rules.Rule{api}, prove.Statement{Paths: paths("/v1/Refunds/*")}, "GET https://api.test/v1/refunds/any"},
		{
			"denied again",
			[]rules.Rule{api, {ID: "no", Hosts: hosts("api.test"), Paths: paths("/v1/refunds/**")}},
			prove.Statement{Paths: paths("/v1/refunds/*")},
			"",
		},
		{
			"denied in part",
			[]rules.Rule{api, {ID: "no", Hosts: hosts("api.test"), Paths: paths("/v1/*/refunds")}},
			prove.Statement{Paths: paths("/v1/**/refunds")},
			"GET https://api.test/v1/refunds",
		},
		{
			"denied for one method",
			[]rules.Rule{api, {ID: "no", Hosts: hosts("api.test"), Methods: []string{"GET"}}},
			prove.Statement{Hosts: hosts("api.test")},
			"POST https://api.test/v1",
		},
		{"a wildcard and its apex", []rules.Rule{open}, prove.Statement{Hosts: hosts("open.test")}, ""},
		{"a wildcard and one name", []rules.Rule{open}, prove.Statement{Hosts: hosts("x.y.open.test")}, "GET https://x.y.open.test/"},
		{
			"a wildcard but for another",
			[]rules.Rule{open, {ID: "no", Hosts: hosts("*.open.test")}},
			prove.Statement{Hosts: hosts("*.open.test")},
			"",
		},
		{
			"a wildcard but for what is deeper",
			[]rules.Rule{open, {ID: "no", Hosts: hosts("*.in.open.test")}},
			prove.Statement{Hosts: hosts("*.open.test")},
			"GET https://any.open.test/",
		},
		{"another port", []rules.Rule{raw}, prove.Statement{Hosts: hosts("db.test"), Ports: []uint16{22}}, ""},
		{"a stream can carry any request", []rules.Rule{raw}, prove.Statement{Methods: []string{"DELETE"}, Paths: paths("/x")}, "connect db.test:5432"},
		{
			"a range but for its first half",
			[]rules.Rule{lan, {ID: "no", Private: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/25")}}},
			prove.Statement{},
			"GET https://10.0.0.128/",
		},
		{
			"a range but for both halves",
			[]rules.Rule{lan, {ID: "no", Private: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/25")}}, {ID: "nor", Private: []netip.Prefix{netip.MustParsePrefix("10.0.0.128/25")}}},
			prove.Statement{},
			"",
		},
		{
			"on a condition that a deny rule turns round",
			[]rules.Rule{allow(rules.Rule{ID: "q", Hosts: hosts("q.test"), Conditions: conds("X-Mode=a")}), {ID: "no", Hosts: hosts("q.test"), Conditions: conds("X-Mode")}},
			prove.Statement{},
			"",
		},
		{
			"beside a deny rule with a condition",
			[]rules.Rule{allow(rules.Rule{ID: "q", Hosts: hosts("q.test")}), {ID: "no", Hosts: hosts("q.test"), Conditions: conds("X-Mode=a")}},
			prove.Statement{},
			"GET https://q.test/",
		},
		{
			"denied with a field and without it",
			[]rules.Rule{allow(rules.Rule{ID: "q", Hosts: hosts("q.test")}), {ID: "no", Hosts: hosts("q.test"), Conditions: conds("X-Mode")}, {ID: "nor", Hosts: hosts("q.test"), Conditions: conds("!X-Mode")}},
			prove.Statement{},
			"",
		},
		{
			"denied without a field and with one value of it",
			[]rules.Rule{allow(rules.Rule{ID: "q", Hosts: hosts("q.test")}), {ID: "no", Hosts: hosts("q.test"), Conditions: conds("X-Mode=any")}, {ID: "nor", Hosts: hosts("q.test"), Conditions: conds("!X-Mode")}},
			prove.Statement{},
			"GET https://q.test/ (X-Mode: any-)",
		},
		{
			"with the parameter that a rule asks for",
			[]rules.Rule{allow(rules.Rule{ID: "q", Hosts: hosts("q.test"), Conditions: conds("?state=a b")})},
			prove.Statement{},
			"GET https://q.test/?state=a%20b",
		},
		{
			"in a way that only narrows",
			[]rules.Rule{allow(rules.Rule{ID: "q", Hosts: hosts("q.test")}), {ID: "run", Hosts: hosts("q.test"), Scope: rules.RunScope}},
			prove.Statement{},
			"GET https://q.test/",
		},
		{"a rule that ends some day", []rules.Rule{allow(rules.Rule{ID: "old", Hosts: hosts("old.test"), Expires: 1})}, prove.Statement{}, "GET https://old.test/"},
	}
	for _, tt := range tests {
		p, err := rules.Compile(rules.Source{Digest: "sha256:00", Rules: tt.list})
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		e, err := prove.Check(p, tt.s, prove.NewWork(nil))
		got := ""
		if e != nil {
			got = e.String()
		}
		if got != tt.want || err != nil {
			t.Errorf("%s: %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}
}

// TestTooManyPathsIsNoProof: what cannot be answered is an error.
func TestTooManyPathsIsNoProof(t *testing.T) {
	list := []rules.Rule{allow(rules.Rule{ID: "all", Hosts: hosts("a.test")})}
	for i := range 40 {
		list = append(list, rules.Rule{ID: fmt.Sprintf("no%d", i), Hosts: hosts("a.test"), Paths: paths(fmt.Sprintf("/**/a%d/**/b%d/**/c", i, i))})
	}
	p, err := rules.Compile(rules.Source{Rules: list})
	if err != nil {
		t.Fatal(err)
	}
	e, err := prove.Check(p, prove.Statement{Paths: paths("/**/a1/**/b1/**/a2/**/b2/**/a3/**/b3/**/c")}, prove.NewWork(nil))
	if e != nil || !errors.Is(err, rules.ErrTooManyPaths) {
		t.Fatalf("%v, %v", e, err)
	}
}

var (
	someSegments = []string{"a", "A", "b", "*", "**", "c%3D"}
	somePattern  = rapid.Custom(func(t *rapid.T) rules.PathPattern {
		segs := rapid.SliceOfN(rapid.SampledFrom(someSegments), 0, 3).Draw(t, "segments")
		s := "/" + strings.Join(segs, "/")
		if len(segs) > 0 && rapid.Bool().Draw(t, "slash") {
			s += "/"
		}
		p, err := rules.ParsePathPattern(s)
		if err != nil {
			return paths("/**")[0]
		}
		return p
	})
	someRule = rapid.Custom(func(t *rapid.T) rules.Rule {
		r := rules.Rule{
			Hosts:   hosts(rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a.test", "b.a.test", "*.a.test", "*.b.a.test"}), 1, 2, rapid.ID).Draw(t, "hosts")...),
			Methods: rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"GET", "POST"}), 0, 2, rapid.ID).Draw(t, "methods"),
			Paths:   rapid.SliceOfN(somePattern, 0, 2).Draw(t, "paths"),
		}
		if n := rapid.IntRange(0, 7).Draw(t, "condition"); n < 4 {
			r.Conditions = conds([]string{"X-Mode", "!X-Mode", "X-Mode=a", "?q=any"}[n])
		}
		if rapid.Bool().Draw(t, "allow") {
			r = allow(r)
		}
		return r
	})
)

// variants are the fields and queries of the small world.
var variants = []rules.Request{
	{},
	{Query: "q=any"},
	{Query: "q=any-"},
	{Header: map[string][]string{"X-Mode": {"a"}}},
	{Header: map[string][]string{"X-Mode": {"b"}}},
	{Query: "q=any", Header: map[string][]string{"X-Mode": {"a"}}},
	{Query: "q=any", Header: map[string][]string{"X-Mode": {"b"}}},
	{Query: "q=%", Header: map[string][]string{"X_mode": {"a"}}},
}

// TestAgreesWithTheEngine: what no request of a small world breaks and the
// whole world does not either is proved, and an example is one to the engine.
func TestAgreesWithTheEngine(t *testing.T) {
	var world []target.Path
	segs := []string{"a", "A", "b", "B", "c=", "c%3D", "z"}
	list := []string{""}
	for range 3 {
		var longer []string
		for _, p := range list {
			for _, s := range segs {
				longer = append(longer, p+"/"+s)
			}
		}
		for _, p := range slices.Concat(list, longer) {
			if q, err := target.ParsePath(p + "/"); err == nil {
				world = append(world, q)
			}
			if q, err := target.ParsePath(p); err == nil {
				world = append(world, q)
			}
		}
		list = longer
	}
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(someRule, 1, 4).Draw(t, "rules")
		for i := range list {
			list[i].ID = fmt.Sprintf("r%d", i)
		}
		p, err := rules.Compile(rules.Source{Rules: list})
		if err != nil {
			t.Fatal(err)
		}
		s := prove.Statement{
			Hosts: hosts(rapid.SampledFrom([]string{"a.test", "b.a.test", "*.a.test"}).Draw(t, "host")),
			Paths: rapid.SliceOfN(somePattern, 0, 2).Draw(t, "never"),
		}
		e, err := prove.Check(p, s, prove.NewWork(nil))
		if err != nil {
			t.Fatal(err)
		}
		// The statement as a deny rule says what it covers.
		said, err := rules.Compile(rules.Source{Rules: []rules.Rule{
			{ID: "never", Hosts: s.Hosts, Paths: s.Paths}, allow(rules.Rule{ID: "all", Hosts: hosts("*.test")}),
		}})
		if err != nil {
			t.Fatal(err)
		}
		covers := func(r rules.Request) bool { return said.Decide(r).Reason == rules.DeniedByRule }
		if e != nil {
			if !covers(e.Request) || p.Follow(e.Request).Verdict == rules.Deny {
				t.Fatalf("%v is no example", e)
			}
			return
		}
		for _, path := range world {
			for _, h := range []string{"a.test", "b.a.test", "x.a.test", "x.b.a.test"} {
				for _, m := range []string{"GET", "POST", "PUT"} {
					for _, with := range variants {
						req := with
						req.Question, req.Secure, req.Method, req.Path = rules.Fetch, true, m, path
						req.Endpoint = target.Endpoint{Host: hosts(h)[0].Host, Port: 443}
						if covers(req) && p.Follow(req).Verdict != rules.Deny {
							t.Fatalf("proved, and %+v is admitted", req)
						}
					}
				}
			}
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	var list []rules.Rule
	for i := range 1000 {
		list = append(list, allow(rules.Rule{ID: fmt.Sprintf("r%d", i), Hosts: hosts(fmt.Sprintf("h%d.test", i)), Paths: paths("/v1/**")}))
	}
	p, err := rules.Compile(rules.Source{Rules: list})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if e, err := prove.Check(p, prove.Statement{Methods: []string{"DELETE"}, Paths: paths("/v2/**")}, prove.NewWork(nil)); e != nil || err != nil {
			b.Fatal(e, err)
		}
	}
}
