package rules_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/rules"
)

func TestUnmet(t *testing.T) {
	here := hosts(t, "a.test")
	paths := patterns(t, "/v1/**")
	mode := rules.Condition{In: rules.InHeader, Name: "X-Mode", Test: rules.Equals, Value: "dry"}
	allow := rules.Rule{
		Action: rules.AllowAction, Hosts: here, Ports: []uint16{443}, Methods: []string{"POST"}, Paths: paths,
		Conditions: []rules.Condition{mode}, Limits: rules.Limits{Body: 10, Head: 100}, Expires: 100,
	}
	deny := rules.Rule{Hosts: here, Methods: []string{"POST"}, Paths: paths, Conditions: []rules.Condition{mode}}
	if diff := cmp.Diff([]string{"methods", "paths", "header X-Mode with a value", "request_body", "request_head"}, allow.Terms()); diff != "" {
		t.Error(diff)
	}
	dry := map[string][]string{"X-Mode": {"dry"}}
	for _, tt := range []struct {
		name   string
		rule   *rules.Rule
		change func(*rules.Request)
		about  bool
		want   []string
	}{
		{"all is met", &allow, func(*rules.Request) {}, true, nil},
		{"method", &allow, func(r *rules.Request) { r.Method = "GET" }, true, []string{"methods"}},
		{"path and body", &allow, func(r *rules.Request) { r.Path, r.Length = pathOf(t, "/v2"), 11 }, true, []string{"paths", "request_body"}},
		{"header", &allow, func(r *rules.Request) { r.Header = nil }, true, []string{"header X-Mode with a value"}},
		{"a header that differs in case, narrowly", &allow, func(r *rules.Request) { r.Header = map[string][]string{"X-Mode": {"DRY"}} }, true, []string{"header X-Mode with a value"}},
		{"and widely", &deny, func(r *rules.Request) { r.Header = map[string][]string{"X-Mode": {"DRY"}} }, true, nil},
		{"a deny rule", &deny, func(r *rules.Request) { r.Path = pathOf(t, "/v2") }, true, []string{"paths"}},
		{"expired", &allow, func(r *rules.Request) { r.Now = 100 }, false, nil},
		{"another host", &allow, func(r *rules.Request) { r.Endpoint.Host = host(t, "b.test").Host }, false, nil},
		{"another port", &allow, func(r *rules.Request) { r.Endpoint.Port = 80 }, false, nil},
		{"any port", &deny, func(r *rules.Request) { r.Endpoint.Port = 80 }, true, nil},
		{"a stream", &allow, func(r *rules.Request) { r.Question = rules.Connect }, false, nil},
	} {
		r := rules.Request{Question: rules.Fetch, Method: "POST", Path: pathOf(t, "/v1/a"), Header: dry, Length: 10}
		r.Endpoint.Host, r.Endpoint.Port = here[0].Host, 443
		tt.change(&r)
		got, about := tt.rule.Unmet(&r)
		if diff := cmp.Diff(tt.want, got); diff != "" || about != tt.about {
			t.Errorf("%s: about it: %v\n%s", tt.name, about, diff)
		}
	}
}
