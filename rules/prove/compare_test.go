package prove_test

import (
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

func compiled(tb testing.TB, list ...rules.Rule) *rules.Policy {
	tb.Helper()
	p, err := rules.Compile(rules.Source{Digest: "sha256:00", Rules: list})
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// brief writes a change in the words of its fields.
func brief(c *prove.Change) string {
	parts := []string{string(c.Kind), c.Rule.ID}
	add := func(yes bool, s string) {
		if yes {
			parts = append(parts, s)
		}
	}
	add(c.Carrying != prove.Requests, string(c.Carrying))
	add(c.Except, "every but")
	parts = append(parts, c.Methods...)
	parts = append(parts, c.Hosts...)
	parts = append(parts, fmt.Sprint(c.Ports))
	parts = append(parts, c.Paths...)
	add(c.TwoReadings, "two readings")
	add(c.Facts, "with some headers or queries")
	add(c.Plain, "plain")
	add(len(c.Into) > 0, fmt.Sprint("into ", c.Into))
	add(c.From > 0, fmt.Sprint("from ", c.From))
	add(c.Part, "in part")
	add(c.Credential != "", "credential "+c.Credential)
	for _, l := range c.Limits {
		parts = append(parts, fmt.Sprintf("%s %d/%d→%d/%d", l.Name, l.Old.N, l.Old.Period, l.New.N, l.New.Period))
	}
	if c.With != nil {
		parts = append(parts, "with "+c.With.ID)
	}
	return strings.Join(parts, " ") + ": " + c.Example.String()
}

func TestCompare(t *testing.T) {
	get := []string{"GET"}
	api := allow(rules.Rule{ID: "api", Hosts: hosts("api.test"), Methods: get, Paths: paths("/v1/*")})
	change := func(r rules.Rule, f func(*rules.Rule)) rules.Rule {
		f(&r)
		return r
	}
	whole := allow(rules.Rule{ID: "any", Hosts: hosts("api.test")})
	keyed := change(api, func(r *rules.Rule) { r.ID, r.Credential = "keyed", "key" })
	db := allow(rules.Rule{ID: "db", Hosts: hosts("db.test"), Ports: []uint16{5432}, Raw: true})
	ranges := func(list ...string) (out []netip.Prefix) {
		for _, s := range list {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	header := func(name string, test rules.Test, value string) []rules.Condition {
		return []rules.Condition{{In: rules.InHeader, Name: name, Test: test, Value: value}}
	}
	limited := func(id string, r rules.Limits, p ...string) rules.Rule {
		return allow(rules.Rule{ID: id, Hosts: hosts("api.test"), Methods: get, Paths: paths(p...), Limits: r})
	}
	minute := func(n int64) rules.Limits { return rules.Limits{Requests: rules.Rate{N: n, Period: 60}} }
	tests := []struct {
		name     string
		old, new []rules.Rule
		want     []string
	}{
		{"the same", []rules.Rule{api, db}, []rules.Rule{db, api}, nil},
		{"another name and reason", []rules.Rule{api}, []rules.Rule{change(api, func(r *rules.Rule) { r.ID, r.Purpose = "other", "x" })}, nil},
		{"one rule in two", []rules.Rule{api}, []rules.Rule{
			change(api, func(r *rules.Rule) { r.Paths = paths("/v1/a") }), change(api, func(r *rules.Rule) { r.ID = "rest" }),
		}, nil},
		{
			"a new host", nil,
			[]rules.Rule{api},
			[]string{"newly_allowed api GET api.test [443] /v1/*: GET https://api.test/v1/any"},
		},
		{
			"a host less",
			[]rules.Rule{api},
			nil,
			[]string{"newly_denied api GET api.test [443] /v1/*: GET https://api.test/v1/any"},
		},
		{
			"another method and path",
			[]rules.Rule{api},
			[]rules.Rule{change(api, func(r *rules.Rule) { r.Methods, r.Paths = []string{"GET", "POST"}, paths("/v1/*", "/v2") })},
			[]string{
				"newly_allowed api GET POST api.test [443] /v2: GET https://api.test/v2",
				"newly_allowed api POST api.test [443] /v1/*: POST https://api.test/v1/any",
			},
		},
		{
			"a wider path",
			[]rules.Rule{api},
			[]rules.Rule{change(api, func(r *rules.Rule) { r.Paths = paths("/v1/**") })},
			[]string{"newly_allowed api GET api.test [443] /v1/** in part: GET https://api.test/v1"},
		},
		{
			"every path, and those with two readings",
			[]rules.Rule{change(api, func(r *rules.Rule) { r.Paths = paths("/**") })},
			[]rules.Rule{change(api, func(r *rules.Rule) { r.Paths = nil })},
			[]string{"newly_allowed api GET api.test [443] two readings: GET https://api.test/any/../any"},
		},
		{
			"every method",
			[]rules.Rule{change(whole, func(r *rules.Rule) { r.Methods = get })},
			[]rules.Rule{whole},
			[]string{"newly_allowed any every but GET api.test [443]: POST https://api.test/"},
		},
		{
			"a wildcard instead of a name",
			[]rules.Rule{change(whole, func(r *rules.Rule) { r.Hosts = hosts("x.api.test") })},
			[]rules.Rule{change(whole, func(r *rules.Rule) { r.Hosts = hosts("*.api.test") })},
			[]string{"newly_allowed any *.api.test [443] in part: GET https://any.api.test/"},
		},
		{
			"a deny rule",
			[]rules.Rule{whole},
			[]rules.Rule{whole, {ID: "no", Hosts: hosts("*.test"), Methods: []string{"DELETE"}}},
			[]string{"newly_denied any DELETE api.test [443]: DELETE https://api.test/"},
		},
		{
			"a deny rule less",
			[]rules.Rule{whole, {ID: "no", Hosts: hosts("api.test"), Paths: paths("/admin/**")}},
			[]rules.Rule{whole},
			[]string{"newly_allowed any api.test [443] in part: GET https://api.test/admin"},
		},
		{
			"it expires",
			[]rules.Rule{whole},
			[]rules.Rule{change(whole, func(r *rules.Rule) { r.Expires = 100 })},
			[]string{"newly_denied any api.test [443] from 100: GET https://api.test/"},
		},
		{
			"it expires later",
			[]rules.Rule{change(whole, func(r *rules.Rule) { r.Expires = 100 })},
			[]rules.Rule{change(whole, func(r *rules.Rule) { r.Expires = 200 })},
			[]string{"newly_allowed any api.test [443] from 100: GET https://api.test/"},
		},
		{
			"a stream", nil,
			[]rules.Rule{db},
			[]string{"newly_allowed db any_bytes db.test [5432]: connect db.test:5432"},
		},
		{
			"no longer looked into",
			[]rules.Rule{whole},
			[]rules.Rule{change(whole, func(r *rules.Rule) { r.TLS = rules.PassthroughTLS })},
			[]string{
				"newly_allowed any unopened_tls api.test [443] in part: TRACE https://api.test/",
				"newly_denied any api.test [443] plain: GET http://api.test:443/",
			},
		},
		{
			"a private range",
			[]rules.Rule{db},
			[]rules.Rule{change(db, func(r *rules.Rule) { r.Private = ranges("10.0.0.0/24") })},
			[]string{"newly_allowed db any_bytes db.test [5432] into [10.0.0.0/24]: connect db.test:5432 at 10.0.0.0"},
		},
		{
			"two ranges that rules tell apart",
			[]rules.Rule{db},
			[]rules.Rule{change(db, func(r *rules.Rule) { r.Private = ranges("10.0.0.0/8") }), {ID: "no", Private: ranges("10.1.0.0/16"), Ports: []uint16{443}}},
			[]string{"newly_allowed db any_bytes db.test [5432] into [10.0.0.0/8 10.1.0.0/16]: connect db.test:5432 at 10.0.0.0"},
		},
		{
			"two rules of which one opens a private range",
			[]rules.Rule{change(whole, func(r *rules.Rule) { r.Raw = true })},
			[]rules.Rule{whole, change(whole, func(r *rules.Rule) { r.ID, r.Paths, r.Private = "inside", paths("/a"), ranges("10.0.0.0/24") })},
			[]string{
				"newly_allowed inside api.test [443] /a into [10.0.0.0/24]: GET https://api.test/a at 10.0.0.0",
				"newly_denied any any_bytes api.test [443] in part: connect api.test:443",
			},
		},
		{
			"a private range, and a credential there",
			[]rules.Rule{change(api, func(r *rules.Rule) { r.Credential = "key" })},
			[]rules.Rule{change(api, func(r *rules.Rule) { r.Credential, r.Private = "key", ranges("10.0.0.0/24") })},
			[]string{
				"newly_allowed api GET api.test [443] /v1/* into [10.0.0.0/24]: GET https://api.test/v1/any at 10.0.0.0",
				"credential_granted api GET api.test [443] /v1/* into [10.0.0.0/24] credential key: GET https://api.test/v1/any at 10.0.0.0",
			},
		},
		{
			"a denied range",
			[]rules.Rule{whole},
			[]rules.Rule{whole, {ID: "no", Private: ranges("8.8.8.0/24")}},
			[]string{"newly_denied any api.test [443] into [8.8.8.0/24]: GET https://api.test/ at 8.8.8.0"},
		},
		{
			"a credential",
			[]rules.Rule{api},
			[]rules.Rule{change(api, func(r *rules.Rule) { r.Credential = "key" })},
			[]string{
				"credential_granted api GET api.test [443] /v1/* credential key: GET https://api.test/v1/any",
				"newly_denied api GET api.test [443] /v1/* plain: GET http://api.test:443/v1/any",
				"own_key_denied api api.test [443] credential key: GET https://api.test/v1/any",
			},
		},
		{
			"a rule that lets a caller's own key through",
			[]rules.Rule{keyed, change(api, func(r *rules.Rule) { r.ID, r.Paths = "own", paths("/own/*") })},
			[]rules.Rule{keyed, change(api, func(r *rules.Rule) { r.ID, r.Paths, r.CallersKey = "own", paths("/own/*"), true })},
			[]string{"own_key_allowed own api.test [443] credential key: GET https://api.test/own/any"},
		},
		{
			"a credential on more",
			[]rules.Rule{change(api, func(r *rules.Rule) { r.Credential = "key" })},
			[]rules.Rule{change(api, func(r *rules.Rule) { r.Credential, r.Methods = "key", []string{"DELETE", "GET"} })},
			[]string{
				"newly_allowed api DELETE api.test [443] /v1/*: DELETE https://api.test/v1/any",
				"credential_granted api DELETE api.test [443] /v1/* credential key: DELETE https://api.test/v1/any",
			},
		},
		{
			"a limit",
			[]rules.Rule{limited("l", rules.Limits{}, "/a")},
			[]rules.Rule{limited("l", minute(60), "/a")},
			[]string{"limit_tightened l api.test [443] requests 0/0→60/60: GET https://api.test/a"},
		},
		{
			"a limit in another period",
			[]rules.Rule{limited("l", minute(60), "/a")},
			[]rules.Rule{limited("l", rules.Limits{Requests: rules.Rate{N: 1000, Period: 3600}}, "/a")},
			[]string{"limit_changed l api.test [443] requests 60/60→1000/3600: GET https://api.test/a"},
		},
		{
			"counted apart",
			[]rules.Rule{limited("l", minute(60), "/a", "/b")},
			[]rules.Rule{limited("l", minute(60), "/a"), limited("m", minute(60), "/b")},
			[]string{"limit_loosened m api.test [443] with l: GET https://api.test/b"},
		},
		{
			"a condition",
			[]rules.Rule{whole},
			[]rules.Rule{change(whole, func(r *rules.Rule) { r.Conditions = header("X-Mode", rules.Equals, "dry") })},
			[]string{"newly_denied any api.test [443]: GET https://api.test/"},
		},
		{
			"another value",
			[]rules.Rule{change(whole, func(r *rules.Rule) { r.Conditions = header("X-Mode", rules.Equals, "dry") })},
			[]rules.Rule{change(whole, func(r *rules.Rule) { r.Conditions = header("X-Mode", rules.Equals, "wet") })},
			[]string{
				"newly_allowed any api.test [443] with some headers or queries: GET https://api.test/ (X-Mode: wet)",
				"newly_denied any api.test [443] with some headers or queries: GET https://api.test/ (X-Mode: dry)",
			},
		},
		{
			"a denied query",
			[]rules.Rule{whole},
			[]rules.Rule{whole, {ID: "no", Hosts: hosts("api.test"), Conditions: []rules.Condition{{In: rules.InQuery, Name: "debug", Test: rules.Present}}}},
			[]string{"newly_denied any api.test [443] with some headers or queries: GET https://api.test/?debug=any"},
		},
		{
			"what a rule only observes is admitted",
			[]rules.Rule{change(api, func(r *rules.Rule) { r.Observe = true })},
			[]rules.Rule{change(whole, func(r *rules.Rule) { r.ID = "api" })},
			nil,
		},
	}
	for _, tt := range tests {
		list, err := prove.Compare(compiled(t, tt.old...), compiled(t, tt.new...), nil)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		var got []string
		for i := range list {
			got = append(got, brief(&list[i]))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, strings.Join(got, "\n     "), strings.Join(tt.want, "\n     "))
		}
	}
}

// universe is every question that the policies of someRules could answer in
// different ways.
func universe() (out []prove.Witness) {
	var addrs []netip.Addr
	for _, s := range []string{"10.0.0.5", "10.1.0.5", "8.8.8.8"} {
		addrs = append(addrs, netip.MustParseAddr(s))
	}
	for _, h := range []string{"a.test", "x.a.test", "y.x.a.test", "b.test", "10.0.0.5", "8.8.8.8"} {
		host := hosts(h)[0].Host
		for _, port := range []uint16{80, 443} {
			for _, now := range []int64{0, 100} {
				asked := []rules.Request{{Question: rules.Connect}}
				for _, m := range []string{"GET", "POST", "TRACE"} {
					for _, s := range []string{"/", "/a", "/A", "/a/", "/a/b", "/b", "/b/c", "/a//b"} {
						p, err := target.ParsePath(s)
						if err != nil {
							panic(err)
						}
						asked = append(asked, rules.Request{Question: rules.Fetch, Method: m, Path: p, Secure: true},
							rules.Request{Question: rules.Fetch, Method: m, Path: p})
					}
				}
				for _, r := range asked {
					r.Endpoint, r.Now = target.Endpoint{Host: host, Port: port}, now
					if a, ok := host.Addr(); ok {
						out = append(out, prove.Witness{Request: r, Addr: a})
						continue
					}
					out = append(out, prove.Witness{Request: r})
					for _, a := range addrs {
						out = append(out, prove.Witness{Request: r, Addr: a})
					}
				}
			}
		}
	}
	return out
}

var anyRule = rapid.Custom(func(t *rapid.T) rules.Rule {
	sub := func(label string, most int, from ...string) []string {
		return slices.Compact(slices.Sorted(slices.Values(rapid.SliceOfN(rapid.SampledFrom(from), 0, most).Draw(t, label))))
	}
	r := rules.Rule{
		ID: rapid.StringMatching("[a-z]{8}").Draw(t, "id"), Methods: sub("methods", 2, "GET", "POST"),
		Hosts: hosts(sub("hosts", 2, "a.test", "x.a.test", "*.a.test", "*.x.a.test", "b.test")...),
		Paths: paths(sub("paths", 2, "/", "/a", "/*", "/a/**", "/**", "/**/b")...),
	}
	for _, s := range sub("ranges", 1, "10.0.0.0/16", "10.0.0.0/8", "8.8.8.0/24", "10.1.0.0/16") {
		r.Private = append(r.Private, netip.MustParsePrefix(s))
	}
	r.Ports = rapid.SampledFrom([][]uint16{{443}, {80}, {80, 443}}).Draw(t, "ports")
	if r.Observe = rapid.IntRange(0, 5).Draw(t, "observe") == 0; rapid.Bool().Draw(t, "deny") {
		return r
	}
	r.Action = rules.AllowAction
	r.Expires = rapid.SampledFrom([]int64{0, 0, 0, 100}).Draw(t, "expires")
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0:
		r.Raw, r.Methods, r.Paths = true, nil, nil
	case 1:
		r.TLS, r.Methods, r.Paths = rules.PassthroughTLS, nil, nil
	case 2:
		r.Credential = "key"
	}
	return r
})

// somePolicy is of the rules that can stand together.
func somePolicy(t *rapid.T, label string) *rules.Policy {
	var kept []rules.Rule
	p, err := rules.Compile(rules.Source{Digest: "sha256:00"})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rapid.SliceOfN(anyRule, 0, 4).Draw(t, label) {
		if q, err := rules.Compile(rules.Source{Digest: "sha256:00", Rules: append(slices.Clone(kept), r)}); err == nil {
			kept, p = append(kept, r), q
		}
	}
	return p
}

// covers reports whether a change is about a question.
func covers(c *prove.Change, w *prove.Witness) bool {
	r := &w.Request
	host := slices.ContainsFunc(c.Rule.Hosts, func(h rules.HostPattern) bool {
		return slices.Contains(c.Hosts, h.String()) && h.Match(r.Endpoint.Host)
	})
	if a, ok := r.Endpoint.Host.Addr(); ok && len(c.Rule.Hosts) == 0 {
		host = slices.ContainsFunc(c.Hosts, func(s string) bool { return netip.MustParsePrefix(s).Contains(a) })
	}
	in := len(c.Into) == 0 || slices.ContainsFunc(c.Into, func(p netip.Prefix) bool { return p.Contains(w.Addr) })
	if !host || !in || !slices.Contains(c.Ports, r.Endpoint.Port) || r.Now < c.From {
		return false
	}
	switch {
	case c.Carrying == prove.AnyBytes:
		return true
	case r.Question == rules.Connect:
		return false
	case c.Carrying == prove.UnopenedTLS:
		return r.Secure
	case c.Plain && r.Secure:
		return false
	}
	method := len(c.Methods) == 0 || slices.Contains(c.Methods, r.Method) != c.Except
	path := len(c.Paths) == 0 || slices.ContainsFunc(paths(c.Paths...), func(p rules.PathPattern) bool { return p.Match(r.Path) })
	return method && path && (!c.TwoReadings || r.Path.Ambiguous())
}

// TestCompareTellsEveryDifference: a question that two policies answer in
// different ways is told of, and where none is told of there is none. Each
// change has a question that was put to both.
func TestCompareTellsEveryDifference(t *testing.T) {
	all := universe()
	rapid.Check(t, func(t *rapid.T) {
		before, after := somePolicy(t, "old"), somePolicy(t, "new")
		changes, err := prove.Compare(before, after, nil)
		if err != nil {
			t.Fatal(err)
		}
		told := func(w *prove.Witness, kinds ...prove.Kind) bool {
			return slices.ContainsFunc(changes, func(c prove.Change) bool { return slices.Contains(kinds, c.Kind) && covers(&c, w) })
		}
		for i := range all {
			w := &all[i]
			old, was := prove.Admitted(before.Loosest(), w)
			now, is := prove.Admitted(after.Loosest(), w)
			switch {
			case !was && is && !told(w, prove.NewlyAllowed):
				t.Fatalf("%s is newly allowed, and not told", w)
			case was && !is && !told(w, prove.NewlyDenied):
				t.Fatalf("%s is newly denied, and not told", w)
			case is && now.Credential != "" && (!was || old.Credential == "") && !told(w, prove.CredentialGranted):
				t.Fatalf("%s is granted a credential, and not told", w)
			case was && old.Credential != "" && (!is || now.Credential == "") && !told(w, prove.CredentialWithdrawn):
				t.Fatalf("%s is granted no credential any more, and not told", w)
			}
		}
		for i := range changes {
			c := &changes[i]
			if c.Kind != prove.OwnKeyAllowed && c.Kind != prove.OwnKeyDenied && !covers(c, &c.Example) {
				t.Fatalf("%s: its example is none of it", brief(c))
			}
		}
	})
}

// TestCompareTellsConditionsApart is the same for headers and queries.
func TestCompareTellsConditionsApart(t *testing.T) {
	var all []prove.Witness
	for _, query := range []string{"", "a=1", "a=2", "a=3", "a=1&a=2", "a=1&a=9", "a[]=1", "A=2", "a=1;b", ";", "b=1", "a=1&b=1"} {
		for _, h := range []map[string][]string{
			nil, {"X-A": {"1"}}, {"X-A": {"2"}}, {"X-A": {"1", "2"}}, {"X_a": {"1"}}, {"X-A": {"1, 2"}}, {"X-A": {"3"}, "B": {"1"}}, {"B": {"1"}},
		} {
			for _, path := range []string{"/", "/a", "/a/../a"} {
				p, err := target.ParsePath(path)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range []string{"GET", "POST"} {
					r := rules.Request{Question: rules.Fetch, Method: m, Path: p, Secure: true, Query: query, Header: h}
					r.Endpoint = target.Endpoint{Host: hosts("a.test")[0].Host, Port: 443}
					all = append(all, prove.Witness{Request: r})
				}
			}
		}
	}
	one := rapid.Custom(func(t *rapid.T) rules.Rule {
		r := anyRule.Draw(t, "rule")
		r.Hosts, r.Private, r.Raw, r.TLS, r.Expires = hosts("a.test"), nil, false, rules.InspectTLS, 0
		for _, n := range []rules.Condition{{In: rules.InQuery, Name: "a"}, {In: rules.InHeader, Name: "X-A"}, {In: rules.InHeader, Name: "B"}} {
			switch rapid.IntRange(0, 7).Draw(t, "condition") {
			case 0:
				n.Test = rules.Present
			case 1:
				n.Test = rules.Absent
			case 2, 3:
				n.Test, n.Value = rules.Equals, rapid.SampledFrom([]string{"1", "2"}).Draw(t, "value")
			default:
				continue
			}
			r.Conditions = append(r.Conditions, n)
		}
		return r
	})
	policy := func(t *rapid.T, label string) *rules.Policy {
		var kept []rules.Rule
		p, err := rules.Compile(rules.Source{Digest: "sha256:00"})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rapid.SliceOfN(one, 0, 4).Draw(t, label) {
			if q, err := rules.Compile(rules.Source{Digest: "sha256:00", Rules: append(slices.Clone(kept), r)}); err == nil {
				kept, p = append(kept, r), q
			}
		}
		return p
	}
	rapid.Check(t, func(t *rapid.T) {
		before, after := policy(t, "old"), policy(t, "new")
		changes, err := prove.Compare(before, after, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range all {
			w := &all[i]
			_, was := prove.Admitted(before.Loosest(), w)
			_, is := prove.Admitted(after.Loosest(), w)
			kind := prove.NewlyAllowed
			if was {
				kind = prove.NewlyDenied
			}
			if was != is && !slices.ContainsFunc(changes, func(c prove.Change) bool { return c.Kind == kind && covers(&c, w) }) {
				t.Fatalf("%s (%v, %q) is %s, and not told", w, w.Request.Header, w.Request.Query, kind)
			}
		}
	})
}
