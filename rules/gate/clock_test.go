package gate_test

import (
	"testing"
	"time"

	"sallyport/rules"
	"sallyport/rules/gate"
)

// expiring has the rule about api.test end at a time.
func expiring(t *testing.T, h *house, at time.Time) {
	t.Helper()
	list := h.id.Policy.Rules()
	for i := range list {
		if list[i].ID == "api" {
			list[i].Expires = at.Unix()
		}
	}
	p, err := rules.Compile(rules.Source{Digest: "sha256:aa", Rules: list})
	if err != nil {
		t.Fatal(err)
	}
	h.id.Policy = p
}

// TestWhatEndedStaysEnded: a clock that is set back brings no rule back to life, for
// what is asked and for what is open; what has not ended goes on.
func TestWhatEndedStaysEnded(t *testing.T) {
	h := newHouse(t)
	began := h.now
	expiring(t, h, began.Add(time.Hour))
	api, raw := request(t, rules.Fetch, "api.test"), request(t, rules.Connect, "raw.test")
	open, err := h.Admit(t.Context(), api)
	if err != nil {
		t.Fatal(err)
	}
	h.now = began.Add(-time.Hour)
	if _, err := h.Admit(t.Context(), api); err != nil || !h.Recheck(open) {
		t.Errorf("set back before it ended: %v", err)
	}
	h.now = began.Add(time.Hour)
	if h.Recheck(open) {
		t.Error("what is open outlives its rule")
	}
	for _, now := range []time.Time{h.now, began, began.Add(-24 * time.Hour)} {
		h.now = now
		if _, err := h.Admit(t.Context(), api); deniedBy(t, err).Reason != rules.RuleExpired || deniedBy(t, err).Decision.Rule != "api" {
			t.Errorf("at %v: %v", now, err)
		}
		if h.Recheck(open) {
			t.Errorf("at %v what is open is alive again", now)
		}
		p, err := h.Admit(t.Context(), raw)
		if err != nil {
			t.Errorf("at %v another rule: %v", now, err)
		} else if err := p.Done(t.Context(), gate.Outcome{}); err != nil {
			t.Error(err)
		}
	}
}
