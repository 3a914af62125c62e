package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/control"
	"sallyport/proxy"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/live"
	"sallyport/rules/policyfile"
)

const askedPolicy = `rules:
  - {id: one, reason: r, allow: {host: one.example.com, paths: ["/v1/**"]}}
  - {id: never-pay, reason: r, deny: {host: one.example.com, paths: ["/v1/pay"]}}
never:
  - {host: "*.corp.example"}
`

// refused asks the gate and returns the id of the refusal.
func (st *stage) refused(cell, asked string) string {
	st.t.Helper()
	req, err := policyfile.ParseRequest(asked)
	st.must(err)
	req.Cell = cell
	p, err := st.gateway.gate.Admit(st.t.Context(), req)
	var d *gate.DeniedError
	if !errors.As(err, &d) {
		st.t.Fatalf("%s is %+v, %v", asked, p.Decision(), err)
	}
	return d.ID
}

// admitted asks the policy in force.
func (st *stage) admitted(cell, asked string) rules.Decision {
	st.t.Helper()
	req, err := policyfile.ParseRequest(asked)
	st.must(err)
	id, _ := st.gateway.table.Identity(cell)
	req.Now = time.Now().Unix()
	return id.Policy.Follow(req)
}

func (st *stage) ask(cell, refusal, why string) (proxy.Asked, error) {
	return st.gateway.askAccess(st.t.Context(), cell, refusal, why)
}

func (st *stage) decide(in decideIn) (a live.Ask, err error) {
	in.By = "tester"
	err = callGateway(st.t.Context(), st.inst, "/v1/access/decide", in, &a)
	return a, err
}

// TestAccess: what no rule allows is asked for, approved, in force for its time,
// recorded, known after a restart, and taken back.
func TestAccess(t *testing.T) {
	st := newStage(t)
	st.write("p.yaml", policyText(askedPolicy))
	st.attach("aaaaaaaa", "run-a", "p.yaml")
	st.attach("bbbbbbbb", "run-b", "p.yaml")
	const wanted = "GET https://docs.example.com/guide"
	a, err := st.ask("aaaaaaaa", st.refused("aaaaaaaa", wanted), "to read the guide")
	st.must(err)
	again, err := st.ask("aaaaaaaa", st.refused("aaaaaaaa", wanted), "again")
	if err != nil || again.ID != a.ID {
		t.Errorf("the same, again: %+v, %v", again, err)
	}
	var list []live.Ask
	st.must(callGateway(t.Context(), st.inst, "/v1/access", accessIn{}, &list))
	if len(list) != 1 || list[0].State != live.Asked || list[0].Why != "to read the guide" || list[0].Host != "docs.example.com" {
		t.Fatalf("%+v", list)
	}
	got, err := st.decide(decideIn{ID: a.ID, Approve: true, Seconds: 3600})
	st.must(err)
	d := st.admitted("aaaaaaaa", wanted)
	if d.Verdict == rules.Deny || d.Scope != "approval" || !strings.HasPrefix(d.Rule, "access-") || d.Policy != st.force("aaaaaaaa") {
		t.Errorf("%+v", d)
	}
	for cell, asked := range map[string]string{"bbbbbbbb": wanted, "aaaaaaaa": "GET https://docs.example.com/other"} {
		if d := st.admitted(cell, asked); d.Verdict != rules.Deny {
			t.Errorf("%s %s: %+v", cell, asked, d)
		}
	}
	if d := st.admitted("aaaaaaaa", "POST https://docs.example.com/guide"); d.Verdict != rules.Deny {
		t.Errorf("another method: %+v", d)
	}
	_, text, _ := st.command("access", "ls", "--all", "-o", "json")
	for _, want := range []string{`"rule": "` + d.Rule + `"`, `"/guide"`, `"GET"`, `"id": "` + a.ID + `"`} {
		if !strings.Contains(text, want) {
			t.Errorf("access ls -o json lacks %s:\n%s", want, text)
		}
	}
	if _, text, _ = st.command("access", "ls", "--all"); !strings.Contains(text, "private is refused all the same (private_ip)") {
		t.Errorf("access ls:\n%s", text)
	}
	asked, decided := st.records(audit.AccessAsked), st.records(audit.AccessDecided)
	if len(asked) != 1 || len(decided) != 1 || asked[0].ID != a.ID || asked[0].Ref != a.Request || decided[0].Ref != a.ID ||
		decided[0].Rule != d.Rule || decided[0].Scope != "approval" || !strings.Contains(string(decided[0].Data), `"by":"tester"`) {
		t.Errorf("%+v\n%+v", asked, decided)
	}
	// A gateway that starts anew knows it from the log.
	fresh := &gateway{inst: st.inst}
	st.must(fresh.restoreAccess())
	if restored, ok := fresh.access.Get(a.ID); !ok || restored.State != live.Approved || !restored.Until.Equal(got.Until) || len(fresh.access.Rules("run-a", time.Now())) != 1 {
		t.Errorf("restored %+v", restored)
	}
	// The policy is read again, and the approval stays.
	st.write("p.yaml", policyText(askedPolicy+"tests: [{request: \"GET https://x.example/\", expect: deny}]\ndns: {denied: nxdomain}\n"))
	var out reloadOut
	st.must(callUp(t.Context(), st.inst, "/v1/reload", &out))
	if d := st.admitted("aaaaaaaa", wanted); d.Scope != "approval" || d.Verdict == rules.Deny || d.Policy != st.force("aaaaaaaa") {
		t.Errorf("after a reload: %+v", d)
	}
	if _, err := st.decide(decideIn{ID: a.ID, Approve: true, Seconds: 60}); err == nil {
		t.Error("approved twice")
	}
	_, err = st.decide(decideIn{ID: a.ID})
	st.must(err)
	if d := st.admitted("aaaaaaaa", wanted); d.Verdict != rules.Deny {
		t.Errorf("taken back: %+v", d)
	}
}

// TestAccessEnds: what an approval let through is judged again at its end.
func TestAccessEnds(t *testing.T) {
	st := newStage(t)
	st.write("p.yaml", policyText(askedPolicy))
	st.attach("aaaaaaaa", "run-a", "p.yaml")
	a, err := st.ask("aaaaaaaa", st.refused("aaaaaaaa", "GET https://docs.example.com/"), "x")
	st.must(err)
	got, err := st.decide(decideIn{ID: a.ID, Approve: true, Seconds: 60})
	st.must(err)
	changed := make(chan struct{}, 1)
	defer st.gateway.table.Notify(changed)()
	soon := got.Until.Add(-time.Second)
	today := soon.Truncate(24 * time.Hour) // at midnight all are judged again
	st.gateway.endApprovals(slices.MaxFunc([]time.Time{today, soon.Add(-time.Second)}, time.Time.Compare), soon)
	select {
	case <-changed:
		t.Error("judged again before its end")
	default:
	}
	st.gateway.endApprovals(soon, got.Until)
	select {
	case <-changed:
	default:
		t.Error("not judged again at its end")
	}
	id, _ := st.gateway.table.Identity("aaaaaaaa")
	req, err := policyfile.ParseRequest("GET https://docs.example.com/")
	st.must(err)
	if req.Now = got.Until.Unix(); id.Policy.Follow(req).Reason != rules.RuleExpired {
		t.Errorf("at its end: %+v", id.Policy.Follow(req))
	}
}

// TestAccessRefuses what no approval can change, and what would break a promise.
func TestAccessRefuses(t *testing.T) {
	st := newStage(t)
	st.write("p.yaml", policyText(askedPolicy))
	st.attach("aaaaaaaa", "run-a", "p.yaml")
	status := func(err error) int {
		var e *proxy.AskError
		if !errors.As(err, &e) {
			return 0
		}
		return e.Status
	}
	if _, err := st.ask("aaaaaaaa", st.refused("aaaaaaaa", "GET https://one.example.com/v1/pay"), "x"); status(err) != http.StatusForbidden {
		t.Errorf("what a rule denies: %v", err)
	}
	if _, err := st.ask("aaaaaaaa", "01JJX0000000000000000000H0", "x"); status(err) != http.StatusNotFound {
		t.Errorf("a refusal that was not: %v", err)
	}
	st.attach("bbbbbbbb", "run-b", "p.yaml")
	if _, err := st.ask("bbbbbbbb", st.refused("aaaaaaaa", "GET https://b.example/"), "x"); status(err) != http.StatusNotFound {
		t.Errorf("a refusal of another run: %v", err)
	}
	a, err := st.ask("aaaaaaaa", st.refused("aaaaaaaa", "GET https://db.corp.example/"), "x")
	st.must(err)
	if _, err := st.decide(decideIn{ID: a.ID, Approve: true, Seconds: 60}); err == nil || !strings.Contains(err.Error(), "would break: never") {
		t.Errorf("what must never be admitted: %v", err)
	}
	a, err = st.ask("aaaaaaaa", st.refused("aaaaaaaa", "GET https://c.example/x"), "x")
	st.must(err)
	for want, in := range map[string]decideIn{
		"holds for up to 168h0m0s":  {Approve: true},
		"up to 168h0m0s":            {Approve: true, Seconds: int64(8 * 24 * time.Hour / time.Second)},
		"servers read it in two":    {Approve: true, Seconds: 60, Paths: []string{"/a/../b"}},
		"GET /x, which was asked":   {Approve: true, Seconds: 60, Paths: []string{"/y"}},
		"is not among the methods":  {Approve: true, Seconds: 60, Methods: []string{"POST"}},
		"methods are case-sensitiv": {Approve: true, Seconds: 60, Methods: []string{"get"}},
	} {
		in.ID = a.ID
		if got, err := st.decide(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %+v, %v; want %q", in, got, err, want)
		}
	}
	if n := len(st.records(audit.AccessDecided)); n != 0 {
		t.Errorf("%d decisions are recorded", n)
	}
	// No more wait than anybody will look at.
	for i := range 30 {
		_, err = st.ask("aaaaaaaa", st.refused("aaaaaaaa", "GET https://"+string(rune('a'+i%26))+strings.Repeat("x", i/26)+".many.example/"), "x")
	}
	if status(err) != http.StatusTooManyRequests {
		t.Errorf("the thirtieth: %v", err)
	}
}

// TestAskOverHTTP is what a sandbox meets.
func TestAskOverHTTP(t *testing.T) {
	var got []string
	h := &proxy.Help{Ask: func(_ context.Context, _, request, why string) (proxy.Asked, error) {
		got = append(got, request+" "+why)
		if request == "no" {
			return proxy.Asked{}, &proxy.AskError{Status: http.StatusForbidden, Text: "No approval can change this."}
		}
		return proxy.Asked{ID: "A", Request: request, State: "asked"}, nil
	}}
	for _, tt := range []struct {
		body   string
		status int
	}{
		{`{"request":"R","reason":"be\u001bcause\u3164"}`, http.StatusAccepted},
		{`{"request":"no","reason":"x"}`, http.StatusForbidden},
		{`{"request":"R"}`, http.StatusBadRequest},
		{`{"request":"R","reason":"x","more":1}`, http.StatusBadRequest},
		{`{"request":"R","reason":"` + strings.Repeat("x", 501) + `"}`, http.StatusBadRequest},
		{`nonsense`, http.StatusBadRequest},
		{strings.Repeat(" ", 5000) + `{"request":"R","reason":"x"}`, http.StatusBadRequest},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/requests", strings.NewReader(tt.body)))
		if w.Code != tt.status {
			t.Errorf("%.60s: %d %s", tt.body, w.Code, w.Body)
		}
		var out proxy.Asked
		if w.Code == http.StatusAccepted && (json.Unmarshal(w.Body.Bytes(), &out) != nil || out.ID != "A") {
			t.Errorf("%s", w.Body)
		}
	}
	if len(got) != 2 || got[0] != "R be cause " {
		t.Errorf("%q", got)
	}
}

// TestApprovalsAreTold: who, when, until when, and what exactly is let through.
func TestApprovalsAreTold(t *testing.T) {
	asked := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a := live.Ask{
		ID: "01JJX0000000000000000000H0", Time: asked, Run: "01RUN", Record: "01REF", Reason: "host_not_allowed",
		Method: "GET", Host: "docs.example.com", Port: 443, Path: "/guide", Why: "to read\x1b[2J", State: live.Asked,
	}
	told := func(now time.Time) string {
		var b strings.Builder
		printAsk(&b, &a, now)
		return b.String()
	}
	const head = `01JJX0000000000000000000H0  %s  asked at 2026-01-02T03:04:05Z
  GET docs.example.com:443/guide
  run 01RUN, refused with host_not_allowed (record 01REF)
  it says: "to read\x1b[2J"
`
	if got, want := told(asked), strings.Replace(head, "%s", "asked", 1); got != want {
		t.Errorf("asked:\n%s", got)
	}
	a.State, a.By, a.Decided, a.Until = live.Approved, "alice (uid 1000)", asked.Add(time.Minute), asked.Add(time.Hour)
	a.Methods, a.Paths, a.Note = []string{"POST", "GET"}, []string{"/guide", "/items/**"}, "for today"
	const approved = `  approved by alice (uid 1000) at 2026-01-02T03:05:05Z
  note: "for today"
  %s
  rule access-01jjx0000000000000000000h0: allow GET, POST on docs.example.com:443
    /guide
    /items/**
  an address that is private is refused all the same (private_ip): only a rule with cidrs opens it
`
	for now, line := range map[time.Time]string{
		asked.Add(30 * time.Minute): "holds until 2026-01-02T04:04:05Z, for another 30m0s, and no longer than the run",
		asked.Add(time.Hour):        "ended at 2026-01-02T04:04:05Z",
	} {
		if got, want := told(now), strings.Replace(head, "%s", "approved", 1)+strings.Replace(approved, "%s", line, 1); got != want {
			t.Errorf("approved:\n%s\nwant\n%s", got, want)
		}
	}
}

// TestApprovalsEndWithTheirRun: nothing of them is left, in a gateway that starts
// anew neither, and nothing can be decided any more.
func TestApprovalsEndWithTheirRun(t *testing.T) {
	st := newStage(t)
	st.write("p.yaml", policyText(askedPolicy))
	st.attach("aaaaaaaa", "run-a", "p.yaml")
	var ids []string
	for _, host := range []string{"docs", "more"} {
		a, err := st.ask("aaaaaaaa", st.refused("aaaaaaaa", "GET https://"+host+".example.com/"), "x")
		st.must(err)
		ids = append(ids, a.ID)
	}
	got, err := st.decide(decideIn{ID: ids[0], Approve: true, Seconds: 3600})
	st.must(err)
	if recs := st.records(audit.AccessDecided); len(recs) != 1 || !got.Decided.Equal(recs[0].Time) {
		t.Errorf("decided at %v: %+v", got.Decided, recs)
	}
	list := func(run string) (out []live.Ask, err error) {
		err = callGateway(t.Context(), st.inst, "/v1/access", accessIn{run}, &out)
		return out, err
	}
	if out, err := list("run-a"); err != nil || len(out) != 2 {
		t.Errorf("of the run: %+v, %v", out, err)
	}
	if out, err := list("run-x"); err == nil || !strings.Contains(err.Error(), `no running sandbox has the run "run-x"`) {
		t.Errorf("of a run that is not there: %+v, %v", out, err)
	}
	st.must(callGateway(t.Context(), st.inst, "/v1/detach", cellIn{"aaaaaaaa"}, nil))
	st.must(control.Remove(st.inst.cells(), "aaaaaaaa"))
	if out, err := list(""); err != nil || len(out) != 0 {
		t.Errorf("after the run: %+v, %v", out, err)
	}
	if _, err := st.decide(decideIn{ID: ids[1], Approve: true, Seconds: 60}); err == nil || !strings.Contains(err.Error(), "no running sandbox") {
		t.Errorf("approved after the run: %v", err)
	}
	fresh := &gateway{inst: st.inst}
	st.must(fresh.restoreAccess())
	if left := fresh.access.List(""); len(left) != 0 {
		t.Errorf("a gateway that starts anew knows %+v", left)
	}
}
