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
