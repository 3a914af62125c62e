package gate_test

import (
	"net/netip"
	"strings"
	"testing"

	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
)

func TestVet(t *testing.T) {
	h := newHouse(t)
	vet := func(p gate.Pass, addr string) error { return h.Vet(t.Context(), p, netip.MustParseAddr(addr)) }
	p, err := h.Admit(t.Context(), request(t, rules.Fetch, "api.test:443"))
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"10.0.0.1", "127.0.0.1", "::ffff:169.254.169.254", "::1"} { // IP-12, IP-03
		d := wantDenied(t, vet(p, bad), rules.PrivateIP)
		if d.ID != p.ID() || !strings.Contains(d.Error(), netip.MustParseAddr(bad).Unmap().String()) {
			t.Errorf("%s: %v", bad, d)
		}
	}
	if err := h.Vet(t.Context(), p, netip.Addr{}); err == nil {
		t.Error("no address is vetted") // IP-17
	}
	if err := vet(p, "93.184.216.34"); err != nil {
		t.Error(err)
	}
	wantRecords(t, h, "admit allowed inspect api") // a vetting is told by Done

	stream, err := h.Admit(t.Context(), request(t, rules.Hello, "api.test:443"))
	if err != nil {
		t.Fatal(err)
	}
	wantDenied(t, vet(stream, "93.184.216.34"), rules.NoPolicy)
	if err := newHouse(t).Vet(t.Context(), p, netip.MustParseAddr("93.184.216.34")); err == nil {
		t.Error("another gate vets for this one's pass")
	}
	if err := p.Done(t.Context(), gate.Outcome{}); err != nil {
		t.Fatal(err)
	}
	wantDenied(t, vet(p, "93.184.216.34"), rules.NoPolicy)
}

func TestRecheck(t *testing.T) {
	denyAPI := rules.Rule{ID: "no", Private: []netip.Prefix{netip.MustParsePrefix("93.184.216.0/24")}}
	tests := []struct {
		name   string
		q      rules.Question
		where  string
		change func(*house)
		want   bool
	}{
		{"nothing changed", rules.Fetch, "api.test:443", func(*house) {}, true},
		{"tunnel, nothing changed", rules.Connect, "raw.test:443", func(*house) {}, true},
		{"other policy that says the same", rules.Fetch, "api.test:443", func(h *house) {
			h.id.Policy = policy(t, rules.Rule{
				ID: "more", Action: rules.AllowAction, Hosts: []rules.HostPattern{{Host: target.HostOfAddr(netip.MustParseAddr("8.8.8.8"))}}, Ports: []uint16{1},
			})
		}, true},
		{"explained, still denied", rules.Connect, "evil.test:443", func(*house) {}, true},
		{"cell gone", rules.Fetch, "api.test:443", func(h *house) { h.id.Cell = "gone" }, false},
		{"another run has the cell", rules.Fetch, "api.test:443", func(h *house) { h.id.Run = "next" }, false},
		{"no policy any more", rules.Fetch, "api.test:443", func(h *house) { h.id.Policy = nil }, false},
		{"allowed stream, now denied", rules.Connect, "api.test:443", func(h *house) { h.id.Policy = empty(t) }, false},
		{"tunnel, now denied", rules.Connect, "raw.test:443", func(h *house) { h.id.Policy = empty(t) }, false},
		{"request, now denied", rules.Fetch, "api.test:443", func(h *house) { h.id.Policy = empty(t) }, false},
		{"address, now denied", rules.Fetch, "api.test:443", func(h *house) { h.id.Policy = policy(t, denyAPI) }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHouse(t)
			p, err := h.Admit(t.Context(), request(t, tt.q, tt.where))
			if err != nil {
				t.Fatal(err)
			}
			if p.Dialable() {
				if err := h.Vet(t.Context(), p, netip.MustParseAddr("93.184.216.34")); err != nil {
					t.Fatal(err)
				}
			}
			before := len(h.log.all())
			tt.change(h)
			if got := h.Recheck(p); got != tt.want {
				t.Errorf("Recheck = %v, want %v", got, tt.want)
			}
			if len(h.log.all()) != before {
				t.Error("Recheck writes records")
			}
		})
	}
	if h := newHouse(t); h.Recheck(gate.Pass{}) {
		t.Error("no pass holds")
	}
}

// TestExplainedStreamIsCutWhenAllowed: what goes on inside it was judged under
// a refusal; the client comes back and is judged anew.
func TestExplainedStreamIsCutWhenAllowed(t *testing.T) {
	h := newHouse(t)
	h.id.Policy = empty(t)
	p, err := h.Admit(t.Context(), request(t, rules.Connect, "api.test:443"))
	if err != nil || !p.Decision().Explain {
		t.Fatalf("Admit = %+v, %v", p.Decision(), err)
	}
	h.id.Policy = policy(t)
	if h.Recheck(p) {
		t.Error("it goes on")
	}
}

func empty(tb testing.TB) *rules.Policy {
	tb.Helper()
	p, err := rules.Compile(rules.Source{})
	if err != nil {
		tb.Fatal(err)
	}
	return p
}
