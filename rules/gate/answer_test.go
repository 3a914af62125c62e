package gate_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
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

// TestLeakInAQuery: it has the record of its query, without what was leaked, and one of
// its credential; queries beside it are answered as they would be.
func TestLeakInAQuery(t *testing.T) {
	const label = "pl4ceh0lder0000000000001"
	leaked := asks(t, label+".a.evil.test")[0]
	leaked.Request.Carries = []rules.Carry{{Credential: "secret", State: rules.LeakedInHost}}
	said := func(d rules.Decision) string { return "answer for " + d.Verdict.String() }
	alone := newHouse(t)
	if p, err := alone.Answer(t.Context(), leaked.Request, "A", said); err != nil || p.Valid() {
		t.Errorf("%v, %v", p, err)
	}
	among := newHouse(t)
	all := append(append(asks(t, "api.test"), leaked), asks(t, "evil.test")...)
	if err := among.AnswerAll(t.Context(), all, func(_ int, d rules.Decision) string { return said(d) }, func(i int, _ gate.Pass) { t.Errorf("query %d has a pass", i) }); err != nil {
		t.Fatal(err)
	}
	wantRecords(t, alone, "dns placeholder_leak deny ", "credential placeholder_leak  ")
	wantRecords(t, among, "dns allowed inspect api", "dns placeholder_leak deny ", "dns host_not_allowed deny ", "credential placeholder_leak  ")
	for _, h := range []*house{alone, among} {
		if got, want := events(h), []string{`leak secret placeholder_leak cell run ` + hashed(label+".a") + `.evil.test `}; !slices.Equal(got, want) {
			t.Errorf("credential records %q, want %q", got, want)
		}
		var id string
		for _, r := range h.log.all() {
			if strings.Contains(r.Host, label) {
				t.Errorf("the record holds it: %+v", r)
			}
			if r.Kind == audit.DNS && r.Reason == "placeholder_leak" {
				id = r.ID
			}
			if r.Kind == audit.Credential && (r.Ref != id || r.Answer != "") {
				t.Errorf("it belongs to %q, want %q: %+v", r.Ref, id, r)
			}
		}
	}
}

// hashed is what the house makes of a text.
func hashed(s string) string { return "hash:" + strings.Repeat("x", len(s)) }

// TestHostOfALeakIsHashed: whose it is stays to be read, a label that could be a
// placeholder does not.
func TestHostOfALeakIsHashed(t *testing.T) {
	const long = "pl4ceh0lder0000000000001"
	for host, want := range map[string]string{
		long + ".evil.test":          hashed(long) + ".evil.test",
		"a." + long + ".b.evil.test": hashed("a."+long+".b") + ".evil.test",
		long + ".test":               hashed(long) + ".test",
		"a." + long:                  hashed("a." + long),
		long:                         hashed(long),
	} {
		h := newHouse(t)
		req := request(t, rules.Fetch, host+":443")
		req.Carries = []rules.Carry{{Credential: "secret", State: rules.LeakedInHost}}
		_, err := h.Admit(t.Context(), req)
		wantDenied(t, err, rules.PlaceholderLeak)
		for _, r := range h.log.all() {
			if r.Host != want {
				t.Errorf("%s is recorded as %q, want %q", host, r.Host, want)
			}
		}
		twin := newHouse(t)
		req.Carries[0].State = rules.Leaked // elsewhere in the request
		_, err = twin.Admit(t.Context(), req)
		wantDenied(t, err, rules.PlaceholderLeak)
		if r := twin.log.all()[0]; r.Host != host {
			t.Errorf("twin: %s is recorded as %q", host, r.Host)
		}
	}
}

// TestLeakIsHiddenWhateverTheReasonLG04: a request that leaks a placeholder may be
// refused for something else first.
func TestLeakIsHiddenWhateverTheReasonLG04(t *testing.T) {
	const label = "pl4ceh0lder0000000000001"
	for state, want := range map[rules.CarryState][3]string{
		rules.Leaked:       {label + ".evil.test", "/" + hashed("x") + "/" + hashed(label), "authority " + label},
		rules.LeakedInHost: {hashed(label) + ".evil.test", "/" + hashed("x") + "/" + hashed(label), hashed("authority " + label)},
		rules.Bound:        {label + ".evil.test", "/x/" + label, "authority " + label}, // its own, in its place
	} {
		h := newHouse(t)
		req := request(t, rules.Fetch, label+".evil.test:443")
		var err error
		if req.Path, err = target.ParsePath("/x/" + label); err != nil {
			t.Fatal(err)
		}
		req.Carries = []rules.Carry{{Credential: "secret", State: state}}
		wantDenied(t, h.Refuse(t.Context(), req, rules.AuthorityMismatch, errors.New("authority "+label)), rules.AuthorityMismatch)
		if r := h.log.all()[0]; [3]string{r.Host, r.Path, r.Error} != want {
			t.Errorf("state %d: recorded as %q, %q, %q; want %q", state, r.Host, r.Path, r.Error, want)
		}
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
