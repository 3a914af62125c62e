package dial_test

import (
	"os"
	"testing"

	"sallyport/rules/gate"
)

// TestPlacesShareLocalPorts: a local port is chosen for the place that is dialled,
// not for the whole machine: there are only 28,000, and one stays taken for a
// minute after its connection.
func TestPlacesShareLocalPorts(t *testing.T) {
	const setting = "/proc/sys/net/ipv4/ip_local_port_range"
	before, err := os.ReadFile(setting)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(setting, before, 0o644); err != nil {
			t.Error(err)
		}
	})
	w := newWorld(t, okRaw, nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	w.resolver.Set("a.wild.test", "A 11.7.7.66")
	greeter(t, "ok.test", okAddr)
	greeter(t, "a.wild.test", evilAddr)
	if err := os.WriteFile(setting, []byte("61000 61007"), 0o644); err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		for _, place := range []string{"ok.test:5432", "a.wild.test:5432"} {
			p := w.tunnel(place)
			c, err := w.Dial(t.Context(), p)
			if err != nil {
				t.Fatalf("connection %d to %s, with eight local ports: %v", i, place, err)
			}
			t.Cleanup(func() { _ = c.Close() })
			if err := p.Done(t.Context(), gate.Outcome{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}
