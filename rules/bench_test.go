package rules_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/rules"
)

// manyRules is a policy of n rules, each about a host of its own; every fifth
// is a wildcard, every seventh a denial.
func manyRules(tb testing.TB, n int) *rules.Policy {
	tb.Helper()
	src := rules.Source{Name: "many", Digest: "sha256:00"}
	for i := range n {
		r := rules.Rule{
			ID: fmt.Sprintf("r%d", i), Where: fmt.Sprintf("many.yaml:%d", i), Action: rules.AllowAction,
			Hosts: []rules.HostPattern{host(tb, fmt.Sprintf("h%d.svc%d.example", i, i%100))},
			Ports: []uint16{443}, Methods: []string{"GET", "POST"},
			Paths: []rules.PathPattern{pattern(tb, "/v1/items/*"), pattern(tb, "/v1/**/meta")},
		}
		if i%5 == 1 {
			r.Hosts = []rules.HostPattern{host(tb, fmt.Sprintf("*.w%d.example", i))}
		}
		if i%7 == 6 {
			r.Action, r.Hosts = rules.DenyAction, []rules.HostPattern{host(tb, fmt.Sprintf("d%d.example", i))}
		}
		src.Rules = append(src.Rules, r)
	}
	return compile(tb, src)
}

// benchRequests are the paths through Decide: every question, admitted and refused.
func benchRequests(tb testing.TB) map[string]rules.Request {
	tb.Helper()
	e := func(s string) rules.Request { return rules.Request{Endpoint: endpoint(tb, s), Now: 1} }
	with := func(r rules.Request, f func(*rules.Request)) rules.Request { f(&r); return r }
	fetch := func(h, path string) rules.Request {
		return with(e(h), func(r *rules.Request) {
			r.Question, r.Method, r.Secure, r.Path = rules.Fetch, "GET", true, pathOf(tb, path)
		})
	}
	return map[string]rules.Request{
		"resolve":        with(e("h0.svc0.example:443"), func(r *rules.Request) { r.Question, r.Type = rules.Resolve, 1 }),
		"resolve_aaaa":   with(e("h0.svc0.example:443"), func(r *rules.Request) { r.Question, r.Type = rules.Resolve, 28 }),
		"connect":        with(e("h0.svc0.example:443"), func(r *rules.Request) { r.Question = rules.Connect }),
		"connect_denied": with(e("evil.example:443"), func(r *rules.Request) { r.Question = rules.Connect }),
		"connect_raw_ip": with(e("203.0.113.9:443"), func(r *rules.Request) { r.Question = rules.Connect }),
		"hello":          with(e("h0.svc0.example:443"), func(r *rules.Request) { r.Question, r.Protocol = rules.Hello, rules.TLS }),
		"fetch":          fetch("h0.svc0.example:443", "/v1/items/42"),
		"fetch_wildcard": fetch("a.b.w1.example:443", "/v1/items/42"),
		"fetch_path":     fetch("h0.svc0.example:443", "/v2/items/42"),
		"fetch_deny":     fetch("d6.example:443", "/v1/items/42"),
		"fetch_host":     fetch(strings.Repeat("a.", 100)+"example:443", "/v1/items/42"),
		"fetch_carries": with(fetch("h0.svc0.example:443", "/v1/items/42"), func(r *rules.Request) {
			r.Carries = []rules.Carry{{Credential: "c", State: rules.Foreign}}
		}),
		"fetch_leak": with(fetch("h0.svc0.example:443", "/v1/items/42"), func(r *rules.Request) {
			r.Carries = []rules.Carry{{Credential: "c", State: rules.Bound}}
		}),
		"reach": with(fetch("h0.svc0.example:443", "/v1/items/42"), func(r *rules.Request) {
			r.Question, r.Addr = rules.Reach, addr("93.184.216.34")
		}),
		"reach_private": with(fetch("h0.svc0.example:443", "/v1/items/42"), func(r *rules.Request) {
			r.Question, r.Addr = rules.Reach, addr("10.0.0.1")
		}),
	}
}

func TestDecideDoesNotAllocate(t *testing.T) {
	p := manyRules(t, 10_000)
	for name, req := range benchRequests(t) {
		if n := testing.AllocsPerRun(100, func() { p.Decide(req) }); n != 0 {
			t.Errorf("Decide(%s) allocates %v times, want 0", name, n)
		}
	}
}

// cpuTime returns the processor time that this process has used.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		p := manyRules(b, n)
		for name, req := range benchRequests(b) {
			b.Run(fmt.Sprintf("%s/rules=%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				began := cpuTime(b)
				for b.Loop() {
					p.Decide(req)
				}
				// What counts where the machine has other work to do.
				b.ReportMetric(float64(cpuTime(b)-began)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// BenchmarkDecideOneHost is the worst case of the index: every rule is about
// one host (DS-15).
func BenchmarkDecideOneHost(b *testing.B) {
	src := rules.Source{Name: "one"}
	for i := range 10_000 {
		src.Rules = append(src.Rules, rules.Rule{
			ID: fmt.Sprintf("r%d", i), Action: rules.AllowAction, Ports: []uint16{443},
			Hosts: []rules.HostPattern{host(b, "ok.example")},
			Paths: []rules.PathPattern{pattern(b, fmt.Sprintf("/%d/**/a/**/b", i))},
		})
	}
	p := compile(b, src)
	req := rules.Request{
		Question: rules.Fetch, Endpoint: endpoint(b, "ok.example:443"), Secure: true, Method: "GET",
		Path: pathOf(b, "/9999/"+strings.Repeat("a/", 8000)+"c"),
	}
	for b.Loop() {
		p.Decide(req)
	}
}
