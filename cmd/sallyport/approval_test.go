package main

import (
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/rules"
)

// TestApprovalsOfMoreThanWasAsked: each method and each path that an approver names
// is judged, not only what was asked for.
func TestApprovalsOfMoreThanWasAsked(t *testing.T) {
	st := newStage(t)
	st.write("floor.yaml", policyText(`rules:
  - {id: org-admin, reason: r, deny: {host: "*.example.com", paths: ["/admin/**"]}}
  - {id: org-delete, reason: r, deny: {host: "*.example.com", methods: [DELETE]}}
`))
	st.write("p.yaml", policyText(`rules:
  - {id: one, reason: r, allow: {host: one.example.com}}
  - {id: no-drafts, reason: r, deny: {host: docs.example.com, paths: ["/drafts/*"]}}
  - {id: elsewhere, reason: r, deny: {host: docs.example.com, ports: [8443], paths: ["/*/x"]}}
`))
	p, err := loadPolicy(policySource{path: st.path("p.yaml"), floor: st.path("floor.yaml")}, nil)
	st.must(err)
	floor, err := readFloor(st.path("floor.yaml"), nil, nil)
	st.must(err)
	st.gateway.floor = floor.Floor
	st.attachAs("aaaaaaaa", "run-a", st.path("p.yaml"), p)
	a, err := st.ask("aaaaaaaa", st.refused("aaaaaaaa", "GET https://docs.example.com/q"), "x")
	st.must(err)
	const beats = ", and an approval beats no deny rule"
	for _, tt := range []struct {
		methods, paths []string
		want           string
	}{
		{nil, []string{"/q", "/admin/x"}, "rule org-admin of the floor (floor.yaml:5) denies GET /admin/x" + beats},
		{nil, []string{"/q", "/Admin/x"}, "rule org-admin of the floor (floor.yaml:5) denies GET /Admin/x" + beats},
		{nil, []string{"/q", "/admin/**"}, "rule org-admin of the floor"},
		{nil, []string{"/admin/*/y", "/q"}, "rule org-admin of the floor"},
		{nil, []string{"/q", "/drafts/*"}, "rule no-drafts of the policy"},
		{[]string{"GET", "DELETE"}, nil, "denies DELETE /q" + beats},
		{[]string{"GET", "TRACE"}, nil, "methods: TRACE cannot be allowed"},
	} {
		if _, err := st.decide(decideIn{ID: a.ID, Approve: true, Seconds: 60, Methods: tt.methods, Paths: tt.paths}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("approve %q %q: %v, want %q", tt.methods, tt.paths, err, tt.want)
		}
	}
	if n := len(st.records(audit.AccessDecided)); n != 0 {
		t.Errorf("%d decisions are recorded", n)
	}
	// What deny rules take away in part is approved for the rest.
	_, err = st.decide(decideIn{
		ID: a.ID, Approve: true, Seconds: 60, Methods: []string{"GET", "POST"}, Paths: []string{"/q", "/*/x", "/drafts/**"},
	})
	st.must(err)
	for asked, want := range map[string]rules.Reason{
		"GET https://docs.example.com/q":          rules.Allowed,
		"POST https://docs.example.com/any/x":     rules.Allowed,
		"GET https://docs.example.com/drafts/1/2": rules.Allowed,
		"GET https://docs.example.com/drafts/1":   rules.DeniedByRule,
		"GET https://docs.example.com/admin/x":    rules.DeniedByRule,
	} {
		if d := st.admitted("aaaaaaaa", asked); d.Reason != want {
			t.Errorf("%s is %+v, want %s", asked, d, want)
		}
	}
}
