package main

import (
	"strings"
	"testing"

	"sallyport/rules/policyfile"
)

// TestGatewayHoldsTheFloor: a policy that was not made under the gateway's own
// floor is not attached, whoever put it there.
func TestGatewayHoldsTheFloor(t *testing.T) {
	st := newStage(t)
	st.write("org.yaml", policyText("rules:\n  - {id: org, reason: r, deny: {host: two.example.com}}\n"))
	st.write("p.yaml", policyText(twoHosts))
	s := newSupervisor(st.inst, st.reloader.s.out, &st.said)
	st.must(s.stageFloor(st.path("org.yaml")))
	floor, err := readFloor(st.inst.under(), nil, nil)
	st.must(err)
	st.gateway.floor = floor.Floor // as openGateway reads it
	bare, err := loadPolicy(policySource{path: st.path("p.yaml")}, nil)
	st.must(err)
	if _, err := st.tryAttach("aaaaaaaa", "run-a", bare); err == nil || !strings.Contains(err.Error(), "does not stand under the floor that is in force here") {
		t.Errorf("a policy without the floor: %v", err)
	}
	under, err := loadPolicy(policySource{path: st.path("p.yaml"), floor: st.inst.under()}, nil)
	st.must(err)
	st.attachAs("bbbbbbbb", "run-b", st.path("p.yaml"), under)
	req, err := policyfile.ParseRequest("GET https://two.example.com/")
	st.must(err)
	id, _ := st.gateway.table.Identity("bbbbbbbb")
	if d := id.Policy.Follow(req); d.Scope != "floor" || d.Rule != "org" {
		t.Errorf("%+v", d)
	}
	// Reloading keeps the run under it.
	st.write("p.yaml", policyText(twoHosts+"  - {id: more, reason: r, allow: {host: more.example.com}}\n"))
	var out reloadOut
	st.must(callUp(t.Context(), st.inst, "/v1/reload", &out))
	if !out.ok() || out.Runs[len(out.Runs)-1].Outcome != replacedBy {
		t.Fatalf("%+v", out)
	}
	id, _ = st.gateway.table.Identity("bbbbbbbb")
	if d := id.Policy.Follow(req); d.Scope != "floor" {
		t.Errorf("after a reload: %+v", d)
	}
	st.must(s.stageFloor(""))
	if st.inst.under() != "" {
		t.Error("a floor that is not asked for stays")
	}
}
