package gate_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/oklog/ulid/v2"

	"sallyport/audit"
	"sallyport/rules"
	"sallyport/rules/gate"
)

func TestNewRefusesAnIncompleteConfig(t *testing.T) {
	full := gate.Config{
		Identity: func(string) (gate.Identity, bool) { return gate.Identity{}, false }, Recorder: &log{},
		Now: time.Now, Hash: func(string) string { return "" },
	}
	for name, f := range map[string]func(*gate.Config){
		"identity": func(c *gate.Config) { c.Identity = nil }, "recorder": func(c *gate.Config) { c.Recorder = nil },
		"clock": func(c *gate.Config) { c.Now = nil }, "hash": func(c *gate.Config) { c.Hash = nil },
	} {
		cfg := full
		f(&cfg)
		if g, err := gate.New(cfg); err == nil || g != nil {
			t.Errorf("without %s: New = %v, %v", name, g, err)
		}
	}
}

func TestZeroPassProvesNothing(t *testing.T) {
	var p gate.Pass
	if p.Valid() || p.Dialable() || p.ID() != "" || p.Decision().Verdict != rules.Deny || p.Identity().Policy != nil || p.Request().Question != 0 {
		t.Errorf("the zero Pass says something: %+v", p)
	}
	h := newHouse(t)
	wantDenied(t, h.Vet(t.Context(), p, netip.MustParseAddr("93.184.216.34")), rules.NoPolicy)
	if h.Recheck(p) {
		t.Error("the zero Pass holds")
	}
	mustPanic(t, "done on no pass", func() { _ = p.Done(t.Context(), gate.Outcome{}) })
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s does not panic", what)
		}
	}()
	f()
}

func TestAdmit(t *testing.T) {
	tests := []struct {
		name, where string
		q           rules.Question
		reason      rules.Reason // "" for an admission
		dialable    bool
		records     []string
	}{
		{"fetch, denied", "evil.test:443", rules.Fetch, rules.HostNotAllowed, false, []string{"refuse host_not_allowed deny "}},
		{"hello on a denied port", "api.test:444", rules.Hello, "", false, nil}, // explained
		{"connect to a denied place", "evil.test:443", rules.Connect, "", false, nil},
		{"resolve", "api.test", rules.Resolve, rules.BadRequest, false, []string{"refuse bad_request deny api"}},
		{"reach", "raw.test:443", rules.Reach, rules.BadRequest, false, []string{"refuse bad_request deny "}},
		{"no question", "api.test:443", 0, rules.BadRequest, false, []string{"refuse bad_request deny "}},
		{"fetch", "api.test:443", rules.Fetch, "", true, []string{"admit allowed inspect api"}},
		{"connect to inspect", "api.test:443", rules.Connect, "", false, nil},
		{"hello to inspect", "api.test:443", rules.Hello, "", false, nil},
		{"connect raw", "raw.test:443", rules.Connect, "", true, []string{"admit allowed tunnel raw"}},
		{"hello to pass through", "pass.test:443", rules.Hello, "", true, []string{"admit allowed tunnel pass"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHouse(t)
			p, err := h.Admit(t.Context(), request(t, tt.q, tt.where))
			if tt.reason != "" {
				wantDenied(t, err, tt.reason)
			} else if err != nil {
				t.Fatalf("Admit = %v", err)
			}
			if p.Valid() != (tt.reason == "") || p.Dialable() != tt.dialable {
				t.Errorf("pass: valid %v, dialable %v", p.Valid(), p.Dialable())
			}
			wantRecords(t, h, tt.records...)
		})
	}
}

func TestUnknownCellIsRefusedAndRecorded(t *testing.T) {
	h := newHouse(t)
	req := request(t, rules.Fetch, "api.test:443")
	req.Cell = "other"
	_, err := h.Admit(t.Context(), req)
	wantDenied(t, err, rules.UnknownCell)
	if r := h.log.all(); len(r) != 1 || r[0].Cell != "other" || r[0].Run != "" {
		t.Errorf("records: %+v", r)
	}
	h.id.Policy = nil
	_, err = h.Admit(t.Context(), request(t, rules.Fetch, "api.test:443"))
	wantDenied(t, err, rules.NoPolicy)
}

// TestRecordOfARequest: a record explains itself, and holds no query.
func TestRecordOfARequest(t *testing.T) {
	h := newHouse(t)
	ctx := gate.WithOrigin(t.Context(), gate.Origin{Listener: "explicit", Client: netip.MustParseAddrPort("10.213.0.2:4000"), Proto: "h2"})
	p, err := h.Admit(ctx, request(t, rules.Fetch, "key.test:443"))
	if err != nil {
		t.Fatal(err)
	}
	h.now = h.now.Add(1500 * time.Microsecond)
	err = p.Done(ctx, gate.Outcome{Addr: netip.MustParseAddrPort("93.184.216.34:443"), Status: 200, Sent: 10, Received: 20})
	if err != nil {
		t.Fatal(err)
	}
	common := audit.Record{
		Cell: "cell", Run: "run", Policy: "sha256:aa", Verdict: "inspect", Reason: "allowed", Rule: "key", Where: "p.yaml:1", Scope: "policy",
		Credential: "secret", Listener: "explicit", Client: "10.213.0.2:4000", Question: "fetch", Proto: "h2", Host: "key.test", Port: 443,
		Method: "GET", Path: "/v1", Query: "hash:xxxxxxxxx",
	}
	admit, done := common, common
	admit.Kind, admit.ID, admit.Values = audit.Admit, p.ID(), "hash:xxx"
	done.Kind, done.Ref, done.Status, done.Sent, done.Received = audit.Done, p.ID(), 200, 10, 20
	done.Addr, done.Micros = "93.184.216.34:443", 1500
	if diff := cmp.Diff([]audit.Record{admit, done}, h.log.all()); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if id, err := ulid.ParseStrict(p.ID()); err != nil || id.Timestamp().Unix() != 1_700_000_000 {
		t.Errorf("id %s: %v", p.ID(), err)
	}
}

// TestWhatCannotBeRecordedIsRefused: for every call that admits or refuses,
// whether the record was lost or only the answer to it.
func TestWhatCannotBeRecordedIsRefused(t *testing.T) {
	for _, lose := range []func(*log){func(l *log) { l.failBefore = true }, func(l *log) { l.failAfter = true }} {
		for _, where := range []string{"api.test:443", "evil.test:443"} {
			h := newHouse(t)
			lose(h.log)
			p, err := h.Admit(t.Context(), request(t, rules.Fetch, where))
			d := wantDenied(t, err, rules.AuditUnavailable)
			if p.Valid() || !errors.Is(d, errDisk) {
				t.Errorf("%s: pass valid %v, cause %v", where, p.Valid(), d.Err)
			}
			err = h.Refuse(t.Context(), request(t, rules.Fetch, where), rules.AuthorityMismatch, errors.New("two names"))
			if d := wantDenied(t, err, rules.AuditUnavailable); !errors.Is(d, errDisk) || !strings.Contains(d.Error(), "two names") {
				t.Errorf("%s: cause %v", where, d.Err)
			}
			decision, err := h.Answer(t.Context(), request(t, rules.Resolve, where), "A", func(rules.Decision) string { return "" })
			wantDenied(t, err, rules.AuditUnavailable)
			if decision != (gate.Pass{}) {
				t.Errorf("%s: Answer gives %+v beside its error", where, decision)
			}
		}
		h := newHouse(t)
		p, err := h.Admit(t.Context(), request(t, rules.Connect, "evil.test:443"))
		if err != nil {
			t.Fatal(err)
		}
		lose(h.log)
		wantDenied(t, p.Done(t.Context(), gate.Outcome{}), rules.AuditUnavailable)
	}
}

// TestAdmitEndsWithItsCaller: an admission nobody waits for is a refusal, and
// what was done is recorded whoever has gone.
func TestAdmitEndsWithItsCaller(t *testing.T) {
	h := newHouse(t)
	h.log.needContext = true
	gone, leave := context.WithCancel(t.Context())
	p, err := h.Admit(gone, request(t, rules.Fetch, "api.test:443"))
	if err != nil {
		t.Fatal(err)
	}
	leave()
	if err := p.Done(gone, gate.Outcome{Status: 200}); err != nil {
		t.Errorf("Done after the client has gone: %v", err)
	}
	_, err = h.Admit(gone, request(t, rules.Fetch, "api.test:443"))
	wantDenied(t, err, rules.ClientGone)
	if !strings.Contains(err.Error(), "the client gave up before its request was recorded") {
		t.Errorf("the record would say %q, which reads like a fault of the log", err)
	}
	_, err = h.Admit(gone, request(t, rules.Fetch, "evil.test:443"))
	wantDenied(t, err, rules.HostNotAllowed)
	wantRecords(t, h, "admit allowed inspect api", "done allowed inspect api", "refuse client_gone deny api", "refuse host_not_allowed deny ")
}

func TestDoneTwicePanics(t *testing.T) {
	for _, where := range []string{"api.test:443", "evil.test:443"} {
		h := newHouse(t)
		p, err := h.Admit(t.Context(), request(t, rules.Connect, where))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Done(t.Context(), gate.Outcome{Requests: 1}); err != nil {
			t.Fatal(err)
		}
		if p.Valid() || p.Dialable() || h.Recheck(p) {
			t.Error("a pass that is done proves something")
		}
		mustPanic(t, "a second Done", func() { _ = p.Done(t.Context(), gate.Outcome{}) })
	}
}

func TestDoneTellsARefusalAfterAdmission(t *testing.T) {
	h := newHouse(t)
	p, err := h.Admit(t.Context(), request(t, rules.Fetch, "key.test:443"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Done(t.Context(), gate.Outcome{Status: 502, Reason: rules.PrivateIP, Err: errors.New("address 10.0.0.1")}); err != nil {
		t.Fatal(err)
	}
	wantRecords(t, h, "admit allowed inspect key", "done private_ip deny key")
	if r := h.log.all()[1]; r.Error != "address 10.0.0.1" || r.Ref != p.ID() || r.ID != "" {
		t.Errorf("done: %+v", r)
	}
}

// TestInspectedStreams: a stream that carried requests leaves their records; one
// that carried none leaves exactly one.
func TestInspectedStreams(t *testing.T) {
	tests := []struct {
		name, where string
		outcome     gate.Outcome
		record      string // "" for none
		err         string
	}{
		{"denied, nothing asked", "evil.test:443", gate.Outcome{}, "refuse host_not_allowed deny ", ""},
		{"denied, our CA rejected", "evil.test:443", gate.Outcome{Reason: rules.ClientRejectedCA, Err: errors.New("EOF")}, "refuse host_not_allowed deny ", "client_rejected_ca\nEOF"},
		{"denied, said inside", "evil.test:443", gate.Outcome{Requests: 1}, "", ""},
		{"allowed, nothing asked", "api.test:443", gate.Outcome{}, "refuse no_request deny api", ""},
		{"allowed, our CA rejected", "api.test:443", gate.Outcome{Reason: rules.ClientRejectedCA, Err: errors.New("EOF")}, "refuse client_rejected_ca deny api", "EOF"},
		{"allowed, asked", "api.test:443", gate.Outcome{Requests: 3}, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHouse(t)
			p, err := h.Admit(t.Context(), request(t, rules.Hello, tt.where))
			if err != nil {
				t.Fatal(err)
			}
			if p.Dialable() {
				t.Error("an inspected stream can be dialled")
			}
			if err := p.Done(t.Context(), tt.outcome); err != nil {
				t.Fatal(err)
			}
			if tt.record == "" {
				wantRecords(t, h)
				return
			}
			wantRecords(t, h, tt.record)
			if r := h.log.all()[0]; r.Error != tt.err || r.ID != p.ID() {
				t.Errorf("record: %+v", r)
			}
		})
	}
}

// TestRefuse: a refusal by someone else than the policy is not told as if a
// credential had been used, and never reads like an admission.
func TestRefuse(t *testing.T) {
	h := newHouse(t)
	err := h.Refuse(t.Context(), request(t, rules.Fetch, "key.test:443"), rules.AuthorityMismatch, errors.New("Host is evil.test"))
	d := wantDenied(t, err, rules.AuthorityMismatch)
	if got := d.Error(); got != "denied: authority_mismatch: Host is evil.test" {
		t.Errorf("error %q", got)
	}
	for _, reason := range []rules.Reason{"", rules.Allowed} {
		wantDenied(t, h.Refuse(t.Context(), rules.Request{Cell: "cell"}, reason, nil), rules.BadRequest)
	}
	wantRecords(t, h, "refuse authority_mismatch deny key", "refuse bad_request deny ", "refuse bad_request deny ")
	if r := h.log.all()[0]; r.Credential != "" || r.ID != d.ID {
		t.Errorf("record: %+v", r)
	}
}

// TestLeakIsRecordedWithItsCredential: that is what the reviewer looks for.
func TestLeakIsRecordedWithItsCredential(t *testing.T) {
	h := newHouse(t)
	req := request(t, rules.Fetch, "api.test:443")
	req.Carries = []rules.Carry{{Credential: "secret", State: rules.Bound}}
	_, err := h.Admit(t.Context(), req)
	wantDenied(t, err, rules.PlaceholderLeak)
	if r := h.log.all()[0]; r.Credential != "secret" {
		t.Errorf("record: %+v", r)
	}
}

// TestAnswer: it asks Resolve, whatever question its request had.
func TestAnswer(t *testing.T) {
	h := newHouse(t)
	for where, verdict := range map[string]rules.Verdict{"api.test": rules.Inspect, "evil.test": rules.Deny} {
		req := request(t, rules.Fetch, where)
		req.Type = 1
		said := func(d rules.Decision) string { return "answer for " + d.Verdict.String() }
		if d, err := h.Answer(t.Context(), req, "A", said); err != nil || d.Decision().Verdict != verdict || d.Valid() {
			t.Errorf("Answer(%s) = %+v, %v", where, d, err)
		}
	}
	for _, r := range h.log.all() {
		if r.Kind != audit.DNS || r.Question != "resolve" || r.Answer != "answer for "+r.Verdict {
			t.Errorf("record: %+v", r)
		}
	}
}

func TestAnswerRecordsOnce(t *testing.T) {
	h := newHouse(t)
	d, err := h.Answer(t.Context(), request(t, rules.Resolve, "api.test"), "A", func(rules.Decision) string { return "198.18.0.1" })
	if err != nil || d.Decision().Verdict != rules.Inspect || d.Valid() {
		t.Fatalf("Answer = %+v, %v", d, err)
	}
	wantRecords(t, h, "dns allowed inspect api")
	if r := h.log.all()[0]; r.QType != "A" || r.Answer != "198.18.0.1" || r.Question != "resolve" {
		t.Errorf("record: %+v", r)
	}
}

// TestReservedIsNeverDialable: the gateway answers it; nobody looks it up.
func TestReservedIsNeverDialable(t *testing.T) {
	h := newHouse(t)
	req := request(t, rules.Fetch, "sallyport.internal:80")
	req.Secure = false
	p, err := h.Admit(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if !p.Valid() || p.Dialable() {
		t.Errorf("valid %v, dialable %v", p.Valid(), p.Dialable())
	}
	wantDenied(t, h.Vet(t.Context(), p, netip.MustParseAddr("93.184.216.34")), rules.NoPolicy)
}

// TestExactlyOneRecordEach: many at once, each admission has one admit and one
// done, each refusal one record (LG-05, DS-14).
func TestExactlyOneRecordEach(t *testing.T) {
	h := newHouse(t)
	places := []string{"api.test:443", "evil.test:443", "raw.test:443"}
	var wg sync.WaitGroup
	const each = 50
	for _, where := range places {
		for range each {
			wg.Go(func() {
				for _, q := range []rules.Question{rules.Connect, rules.Fetch} {
					p, err := h.Admit(t.Context(), request(t, q, where))
					if err != nil {
						continue
					}
					_ = h.Vet(t.Context(), p, netip.MustParseAddr("93.184.216.34"))
					h.Recheck(p)
					if err := p.Done(t.Context(), gate.Outcome{}); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	got := map[string]int{}
	ids := map[string]bool{}
	for _, r := range h.log.all() {
		got[string(r.Kind)+" "+r.Host+" "+r.Question]++
		if r.ID != "" && ids[r.ID] {
			t.Errorf("id %s twice", r.ID)
		}
		ids[r.ID] = true
	}
	want := map[string]int{
		"refuse api.test connect": each, "admit api.test fetch": each, "done api.test fetch": each,
		"refuse evil.test connect": each, "refuse evil.test fetch": each,
		"admit raw.test connect": each, "done raw.test connect": each, "refuse raw.test fetch": each,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

func BenchmarkAdmit(b *testing.B) {
	h := newHouse(b)
	req := request(b, rules.Fetch, "api.test:443")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := h.Admit(b.Context(), req); err != nil {
			b.Fatal(err)
		}
		h.log.records = h.log.records[:0]
	}
}
