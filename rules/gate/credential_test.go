package gate_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"sallyport/audit"
	"sallyport/rules"
	"sallyport/rules/gate"
)

// events returns what the credential records say, each with what it is about.
func events(h *house) []string {
	var out []string
	for _, r := range h.log.all() {
		if r.Kind == audit.Credential {
			out = append(out, string(r.Data)+" "+r.Credential+" "+r.Reason+" "+r.Cell+" "+r.Run+" "+r.Host+" "+r.Verdict)
		}
	}
	return out
}

// TestCredentialRecords: each use, mint, refusal and leak of a credential is
// told with the identity of the request that it belongs to.
func TestCredentialRecords(t *testing.T) {
	const about = " secret allowed cell run key.test "
	tests := []struct {
		name string
		do   func(h *house, p gate.Pass) error
		want []string
	}{
		{"use", func(h *house, p gate.Pass) error { return h.Used(t.Context(), p) }, []string{`{"event":"use"}` + about}},
		{"mint", func(h *house, p gate.Pass) error {
			return errors.Join(h.Minted(t.Context(), p), h.Used(t.Context(), p))
		}, []string{`{"event":"mint"}` + about, `{"event":"use"}` + about}},
		{"refusal by the broker", func(_ *house, p gate.Pass) error {
			return p.Done(t.Context(), gate.Outcome{Status: 403, Reason: rules.CredentialMismatch})
		}, []string{`{"event":"refusal"} secret credential_mismatch cell run key.test `}},
		{"leak in a body", func(_ *house, p gate.Pass) error {
			return p.Done(t.Context(), gate.Outcome{Status: 403, Reason: rules.PlaceholderLeak})
		}, []string{`{"event":"leak"} secret placeholder_leak cell run key.test `}},
		{"leak in a head", func(h *house, _ gate.Pass) error {
			_ = h.Refuse(t.Context(), request(t, rules.Fetch, "evil.test:443"), rules.PlaceholderLeak, nil)
			return nil
		}, []string{`{"event":"leak"}  placeholder_leak cell run evil.test `}},
		{"nothing about a credential", func(_ *house, p gate.Pass) error {
			return p.Done(t.Context(), gate.Outcome{Status: 502, Reason: rules.PrivateIP})
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHouse(t)
			p, err := h.Admit(t.Context(), request(t, rules.Fetch, "key.test:443"))
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.do(h, p); err != nil {
				t.Fatal(err)
			}
			if got := events(h); !slices.Equal(got, tt.want) {
				t.Errorf("credential records %q, want %q", got, tt.want)
			}
			for _, r := range h.log.all() {
				if r.Kind == audit.Credential && tt.name != "leak in a head" && r.Ref != p.ID() {
					t.Errorf("it belongs to %q, want %s", r.Ref, p.ID())
				}
			}
		})
	}
}

// TestUnrecordedCredentialIsNotUsed: like any other act.
func TestUnrecordedCredentialIsNotUsed(t *testing.T) {
	for name, tell := range map[string]func(*house, context.Context, gate.Pass) error{
		"use":  func(h *house, ctx context.Context, p gate.Pass) error { return h.Used(ctx, p) },
		"mint": func(h *house, ctx context.Context, p gate.Pass) error { return h.Minted(ctx, p) },
	} {
		h := newHouse(t)
		p, err := h.Admit(t.Context(), request(t, rules.Fetch, "key.test:443"))
		if err != nil {
			t.Fatal(err)
		}
		h.log.failBefore = true
		wantDenied(t, tell(h, t.Context(), p), rules.AuditUnavailable)
		h.log.failBefore = false
		wantDenied(t, tell(h, t.Context(), gate.Pass{}), rules.NoPolicy)
		if got := events(h); len(got) != 0 {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// together is a log that takes several records in one go, or none of them.
type together struct {
	*log
	sets []int // how many records came in each
}

// AppendAll implements [gate.AllRecorder].
func (l *together) AppendAll(_ context.Context, rs []*audit.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failBefore {
		return errDisk
	}
	l.sets = append(l.sets, len(rs))
	for _, r := range rs {
		l.records = append(l.records, *r)
	}
	return nil
}

func yes(gate.Pass) bool { return true }

// TestUseIsRecordedWithItsAdmission: where the credential is at hand both records
// are one write, and each use has one record whether it is or not.
func TestUseIsRecordedWithItsAdmission(t *testing.T) {
	const use = `{"event":"use"} secret allowed cell run key.test `
	tests := []struct {
		name, where string
		ready       func(gate.Pass) bool
		sets        []int
	}{
		{"at hand", "key.test:443", yes, []int{2}},
		{"not at hand", "key.test:443", func(gate.Pass) bool { return false }, nil},
		{"nobody can tell", "key.test:443", nil, nil},
		{"no credential", "api.test:443", yes, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHouse(t)
			all := &together{log: h.log}
			h.record(all)
			p, err := h.AdmitUsing(t.Context(), request(t, rules.Fetch, tt.where), tt.ready)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(all.sets, tt.sets) {
				t.Errorf("records that came together: %v, want %v", all.sets, tt.sets)
			}
			if tt.where != "key.test:443" {
				wantRecords(t, h, "admit allowed inspect api")
				return
			}
			for n := range 2 {
				if err := h.Used(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				if got := events(h); len(got) != n+1 || got[n] != use {
					t.Errorf("after %d uses %q", n+1, got)
				}
			}
			wantRecords(t, h, "admit allowed inspect key", "credential allowed  key", "credential allowed  key")
			if ref := h.log.all()[1].Ref; ref != p.ID() {
				t.Errorf("the use belongs to %q, want %s", ref, p.ID())
			}
		})
	}
}

// TestUseIsNotForeseen: nothing is told of a use where nothing is admitted, where
// the two cannot be written in one go, or where they cannot be written at all.
func TestUseIsNotForeseen(t *testing.T) {
	h := newHouse(t)
	all := &together{log: h.log}
	h.record(all)
	_, err := h.AdmitUsing(t.Context(), request(t, rules.Fetch, "evil.test:443"), yes)
	wantDenied(t, err, rules.HostNotAllowed)
	all.failBefore = true
	p, err := h.AdmitUsing(t.Context(), request(t, rules.Fetch, "key.test:443"), yes)
	wantDenied(t, err, rules.AuditUnavailable)
	if p.Valid() || len(events(h)) != 0 {
		t.Errorf("unrecorded: valid %t, records %q", p.Valid(), events(h))
	}

	h = newHouse(t) // its log takes one record at a time
	asked := func(p gate.Pass) bool {
		if p.Dialable() {
			t.Error("something can be done with a pass before it is recorded")
		}
		return true
	}
	p, err = h.AdmitUsing(t.Context(), request(t, rules.Fetch, "key.test:443"), asked)
	if err != nil || len(events(h)) != 0 {
		t.Errorf("one at a time: %v, %q before the use", err, events(h))
	}
	if err := h.Used(t.Context(), p); err != nil || len(events(h)) != 1 {
		t.Errorf("one at a time: %v, %q after the use", err, events(h))
	}

	h = newHouse(t)
	h.record(&together{log: h.log})
	if _, err := h.AdmitUsing(t.Context(), request(t, rules.Fetch, "key.test:443"), asked); err != nil || len(events(h)) != 1 {
		t.Errorf("twin: %v, %q", err, events(h))
	}
}
