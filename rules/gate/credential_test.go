package gate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"sallyport/audit"
	"sallyport/rules"
	"sallyport/rules/gate"
)

// events returns what the records say of credentials, each with what it is about.
func events(h *house) []string {
	var out []string
	for _, r := range h.log.all() {
		if r.Event != "" {
			out = append(out, r.Event+" "+r.Credential+" "+r.Reason+" "+r.Cell+" "+r.Run+" "+r.Host+" "+r.Verdict)
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
		{"use", func(h *house, p gate.Pass) error { return h.Used(t.Context(), p) }, []string{`use` + about}},
		{"mint", func(h *house, p gate.Pass) error {
			return errors.Join(h.Minted(t.Context(), p), h.Used(t.Context(), p))
		}, []string{`mint` + about, `use` + about}},
		{"refusal by the broker", func(_ *house, p gate.Pass) error {
			return p.Done(t.Context(), gate.Outcome{Status: 403, Reason: rules.CredentialMismatch})
		}, []string{`refusal secret credential_mismatch cell run key.test `}},
		{"leak in a body", func(_ *house, p gate.Pass) error {
			return p.Done(t.Context(), gate.Outcome{Status: 403, Reason: rules.PlaceholderLeak})
		}, []string{`leak secret placeholder_leak cell run key.test `}},
		{"leak of another's in a body", func(_ *house, p gate.Pass) error {
			d := p.Decision()
			d.Credential = "other"
			leak := &gate.DeniedError{Reason: rules.PlaceholderLeak, Decision: d, Err: errors.New("it is in the body")}
			return p.Done(t.Context(), gate.Outcome{Status: 403, Reason: rules.PlaceholderLeak, Err: fmt.Errorf("sending: %w", leak)})
		}, []string{`leak other placeholder_leak cell run key.test `}},
		{"leak in a head", func(h *house, _ gate.Pass) error {
			_ = h.Refuse(t.Context(), request(t, rules.Fetch, "evil.test:443"), rules.PlaceholderLeak, nil)
			return nil
		}, []string{`leak  placeholder_leak cell run evil.test `}},
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

func yes(gate.Pass) bool { return true }

// TestUseIsRecordedWithItsAdmission: where the credential is at hand the admission tells
// of its use, and each use is told once whether it is or not.
func TestUseIsRecordedWithItsAdmission(t *testing.T) {
	const use, admit, credential = "use secret allowed cell run key.test ", "admit allowed inspect key", "credential allowed  key"
	tests := []struct {
		name, where string
		ready       func(gate.Pass) bool
		events      []string // once it is admitted
		records     []string // after two uses
	}{
		{"at hand", "key.test:443", yes, []string{use + "inspect"}, []string{admit, credential}},
		{"not at hand", "key.test:443", func(gate.Pass) bool { return false }, nil, []string{admit, credential, credential}},
		{"nobody can tell", "key.test:443", nil, nil, []string{admit, credential, credential}},
		{"no credential", "api.test:443", yes, nil, []string{"admit allowed inspect api"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHouse(t)
			p, err := h.AdmitUsing(t.Context(), request(t, rules.Fetch, tt.where), tt.ready)
			if err != nil {
				t.Fatal(err)
			}
			if got := events(h); !slices.Equal(got, tt.events) {
				t.Errorf("admitted, with events %q, want %q", got, tt.events)
			}
			uses := 2
			if tt.where == "api.test:443" {
				uses = 0
			}
			for n := range uses {
				if err := h.Used(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				if got := events(h); len(got) != n+1 {
					t.Errorf("after %d uses %q", n+1, got)
				}
			}
			wantRecords(t, h, tt.records...)
			for _, r := range h.log.all()[1:] {
				if r.Ref != p.ID() {
					t.Errorf("the use belongs to %q, want %s", r.Ref, p.ID())
				}
			}
		})
	}
}

// TestUseIsNotForeseen: nothing is told of a use where nothing is admitted, or where it
// cannot be written; and nothing can be done with a pass before it is.
func TestUseIsNotForeseen(t *testing.T) {
	h := newHouse(t)
	_, err := h.AdmitUsing(t.Context(), request(t, rules.Fetch, "evil.test:443"), yes)
	wantDenied(t, err, rules.HostNotAllowed)
	h.log.failBefore = true
	p, err := h.AdmitUsing(t.Context(), request(t, rules.Fetch, "key.test:443"), yes)
	wantDenied(t, err, rules.AuditUnavailable)
	if p.Valid() || len(events(h)) != 0 {
		t.Errorf("unrecorded: valid %t, records %q", p.Valid(), events(h))
	}
	h.log.failBefore = false
	p, err = h.AdmitUsing(t.Context(), request(t, rules.Fetch, "key.test:443"), func(p gate.Pass) bool {
		if p.Dialable() {
			t.Error("something can be done with a pass before it is recorded")
		}
		return true
	})
	if err != nil || !p.Dialable() || len(events(h)) != 1 {
		t.Errorf("twin: %v, dialable %t, %q", err, p.Dialable(), events(h))
	}
	if err := p.Done(t.Context(), gate.Outcome{Status: 200}); err != nil || len(events(h)) != 1 {
		t.Errorf("its outcome: %v, %q; the use is told once", err, events(h))
	}
}
