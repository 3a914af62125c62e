package gate_test

import (
	"net/netip"
	"testing"

	"sallyport/audit"
	"sallyport/rules"
	"sallyport/rules/gate"
)

// asks makes a DNS query of a client for each name.
func asks(t *testing.T, names ...string) (list []gate.Query) {
	t.Helper()
	for i, n := range names {
		req := request(t, rules.Fetch, n)
		req.Type = 1
		client := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.9"), uint16(1000+i))
		list = append(list, gate.Query{Origin: gate.Origin{Listener: "dns", Client: client}, Request: req, QType: "A"})
	}
	return list
}

// TestAnswerAll: what is recorded together is judged one by one, and each has a
// record of its own; the next round shows nothing of the one before.
func TestAnswerAll(t *testing.T) {
	h := newHouse(t)
	said := func(_ int, d rules.Decision) string { return "answer for " + d.Verdict.String() }
	opened := func(i int, p gate.Pass) { t.Errorf("query %d has a pass: %+v", i, p) }
	for range 2 {
		if err := h.AnswerAll(t.Context(), asks(t, "api.test", "evil.test", "api.test"), said, opened); err != nil {
			t.Fatal(err)
		}
	}
	stranger := asks(t, "api.test")
	stranger[0].Request.Cell, stranger[0].Origin = "other", gate.Origin{}
	if err := h.AnswerAll(t.Context(), stranger, said, opened); err != nil {
		t.Fatal(err)
	}
	wantRecords(t, h,
		"dns allowed inspect api", "dns host_not_allowed deny ", "dns allowed inspect api",
		"dns allowed inspect api", "dns host_not_allowed deny ", "dns allowed inspect api",
		"dns unknown_cell deny ")
	ids := map[string]bool{}
	for i, r := range h.log.all() {
		ids[r.ID] = true
		if r.Question != "resolve" || r.QType != "A" || r.Answer != "answer for "+r.Verdict {
			t.Errorf("record: %+v", r)
		}
		if want := []string{"10.0.0.9:1000", "10.0.0.9:1001", "10.0.0.9:1002"}[i%3]; i < 6 && (r.Client != want || r.Run != "run") {
			t.Errorf("record %d is of %q in run %q, want %q", i, r.Client, r.Run, want)
		}
		if i == 6 && (r.Client != "" || r.Run != "" || r.Policy != "" || r.Cell != "other") {
			t.Errorf("a stranger's record: %+v", r)
		}
	}
	if len(ids) != 7 {
		t.Errorf("%d ids, want 7", len(ids))
	}
}

// TestAnswerAllOrNothing: what cannot be recorded is not answered.
func TestAnswerAllOrNothing(t *testing.T) {
	h := newHouse(t)
	h.log.failBefore = true
	err := h.AnswerAll(t.Context(), asks(t, "api.test", "evil.test"), func(int, rules.Decision) string { return "" },
		func(i int, _ gate.Pass) { t.Errorf("query %d has a pass", i) })
	wantDenied(t, err, rules.AuditUnavailable)
	if recs := h.log.all(); len(recs) > 0 {
		t.Errorf("records: %+v", recs)
	}
}

// TestRecordsAreLent: a record is used again, so a log that kept one would see it
// change; what it copied stays.
func TestRecordsAreLent(t *testing.T) {
	h := newHouse(t)
	for _, where := range []string{"api.test:443", "raw.test:443"} {
		req := request(t, rules.Fetch, where)
		if where == "raw.test:443" {
			req.Question = rules.Connect
		}
		p, err := h.Admit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Done(t.Context(), gate.Outcome{Status: 200}); err != nil {
			t.Fatal(err)
		}
	}
	recs := h.log.all()
	if len(recs) != 4 {
		t.Fatalf("records: %+v", recs)
	}
	for i, want := range []audit.Kind{audit.Admit, audit.Done, audit.Admit, audit.Done} {
		host := []string{"api.test", "raw.test"}[i/2]
		if r := recs[i]; r.Kind != want || r.Host != host || (r.Status == 200) != (want == audit.Done) {
			t.Errorf("record %d: %+v", i, r)
		}
	}
}
