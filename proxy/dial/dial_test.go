package dial_test

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/proxy/dial"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
	"sallyport/test/lab"
)

func TestNewRefuses(t *testing.T) {
	vet := func(context.Context, gate.Pass, netip.Addr) error { return nil }
	name, err := target.ParseName("ok.test")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		cfg  dial.Config
		ok   bool
	}{
		{"nothing", dial.Config{}, false},
		{"no policy to ask", dial.Config{Now: time.Now}, false},
		{"no clock", dial.Config{Vet: vet}, false},
		{"resolver without port", dial.Config{
			Vet: vet, Now: time.Now,
			Resolvers: []dial.Resolver{{Addr: netip.AddrPortFrom(okAddr, 0)}},
		}, false},
		{"proxy without port", dial.Config{Vet: vet, Now: time.Now, Proxy: &dial.UpstreamProxy{Addr: netip.AddrPortFrom(okAddr, 0)}}, false},
		{"host without name", dial.Config{Vet: vet, Now: time.Now, Hosts: map[target.Name][]netip.Addr{{}: {okAddr}}}, false},
		{"host without address", dial.Config{Vet: vet, Now: time.Now, Hosts: map[target.Name][]netip.Addr{name: nil}}, false},
		{"host with a zone", dial.Config{
			Vet: vet, Now: time.Now,
			Hosts: map[target.Name][]netip.Addr{name: {netip.MustParseAddr("fe80::1%lo")}},
		}, false},
		{"negative timeout", dial.Config{Vet: vet, Now: time.Now, Timeouts: dial.Timeouts{TLS: -1}}, false},
		{"enough", dial.Config{Vet: vet, Now: time.Now, Hosts: map[target.Name][]netip.Addr{name: {okAddr}}}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := dial.New(tt.cfg); (err == nil) != tt.ok {
				t.Errorf("New = %v, want ok %v", err, tt.ok)
			}
		})
	}
}

// greeter is a server of another protocol: it speaks first.
func greeter(t *testing.T, name string, addr netip.Addr) *lab.Site {
	t.Helper()
	s := lab.NewSite(name, addr)
	t.Cleanup(func() { _ = s.Close() })
	if err := s.ServeGreeting(5432, "hello\n"); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDialRefusesWithoutPass(t *testing.T) {
	w := newWorld(t, append([]rules.Rule{allow("web", nil, "web.test")}, okRaw...), nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	w.resolver.Set("web.test", "A 11.7.7.7")
	s := greeter(t, "ok.test", okAddr)
	done := w.tunnel("ok.test:5432")
	if err := done.Done(t.Context(), gate.Outcome{}); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		pass gate.Pass
	}{
		{"no pass", gate.Pass{}},
		{"a pass that is done", done},
		{"a stream to be inspected", w.tunnel("web.test:443")},
		{"a denied stream to be explained", w.tunnel("evil.test:443")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := w.Dial(t.Context(), tt.pass)
			if c != nil || !errors.Is(err, dial.ErrNoPass) {
				t.Errorf("Dial = %v, %v, want ErrNoPass", c, err)
			}
			if status(err) != "proxy_internal_error" {
				t.Errorf("status %q", status(err))
			}
		})
	}
	if q := w.resolver.Queries(); len(q) > 0 {
		t.Errorf("resolver was asked %v without a pass (DN-03)", q)
	}
	untouched(t, s)

	c, err := w.Dial(t.Context(), w.tunnel("ok.test:5432"))
	if err != nil {
		t.Fatalf("with a pass: %v", err)
	}
	defer c.Close()
	if got, _ := io.ReadAll(c); string(got) != "hello\n" {
		t.Errorf("read %q", got)
	}
	if got := c.RemoteAddr().String(); got != "11.7.7.7:5432" {
		t.Errorf("dialled %s", got)
	}
}

func TestDialErrorsSayWhoseFaultItWas(t *testing.T) {
	w := newWorld(t, append([]rules.Rule{allow("addr", raw, "11.7.7.7", "12.1.1.1")}, okRaw...), nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	full := fullBacklog(t, netip.AddrPortFrom(okAddr, 8443))
	defer full()
	tests := []struct {
		to, status string
		timeout    bool
	}{
		{"ok.test:5432", "connection_refused", false},
		{"11.7.7.7:5432", "connection_refused", false},
		{"12.1.1.1:443", "destination_ip_unroutable", false},
		{"gone.wild.test:443", "dns_error", false},
		{"ok.test:8443", "connection_timeout", true},
	}
	for _, tt := range tests {
		if tt.timeout {
			w.again(func(c *dial.Config) { c.Timeouts.Connect = 100 * time.Millisecond })
		}
		_, err := w.Dial(t.Context(), w.tunnel(tt.to))
		if status(err) != tt.status {
			t.Errorf("Dial %s: %v, status %q, want %q", tt.to, err, status(err), tt.status)
		}
		var late interface{ Timeout() bool }
		if !errors.As(err, &late) || late.Timeout() != tt.timeout {
			t.Errorf("Dial %s: timeout is not %v", tt.to, tt.timeout)
		}
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	w := newWorld(t, okRaw, nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	full := fullBacklog(t, netip.AddrPortFrom(okAddr, 8443))
	defer full()
	ctx, cancel := context.WithCancel(t.Context())
	dialled := make(chan error, 1)
	p := w.tunnel("ok.test:8443")
	go func() {
		_, err := w.Dial(ctx, p)
		dialled <- err
	}()
	eventually(t, "a connection that is asked for", func() bool {
		to := netip.AddrPortFrom(okAddr, 8443)
		return socket(t, func(s lab.Socket) bool { return s.Other == to && s.State == unix.BPF_TCP_SYN_SENT })
	})
	cancel()
	if err := <-dialled; !errors.Is(err, context.Canceled) {
		t.Errorf("Dial = %v, want cancelled", err)
	}
}

// TestHappyEyeballs: RFC 8305. The first address is silent, the second answers.
func TestHappyEyeballs(t *testing.T) {
	w := newWorld(t, okRaw, func(c *dial.Config) { c.Timeouts.Connect = time.Minute })
	s := greeter(t, "ok.test", okAddr)
	silent := netip.MustParseAddr("11.7.7.8")
	full := fullBacklog(t, netip.AddrPortFrom(silent, 5432))
	defer full()
	w.resolver.Set("ok.test", "A 11.7.7.8", "A 11.7.7.7")
	w.resolver.Set("dead.wild.test", "A 11.7.7.9", "A 11.7.7.7") // .9 refuses
	for _, to := range []string{"ok.test:5432", "dead.wild.test:5432"} {
		began := time.Now()
		c, err := w.Dial(t.Context(), w.tunnel(to))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.RemoteAddr().String(); got != "11.7.7.7:5432" {
			t.Errorf("%s: dialled %s", to, got)
		}
		if d := time.Since(began); d > 30*time.Second { // the first address alone would be waited for a minute
			t.Errorf("%s took %v", to, d)
		}
		if got, _ := io.ReadAll(c); string(got) != "hello\n" {
			t.Errorf("%s: read %q", to, got)
		}
		_ = c.Close()
	}
	if s.Connections() != 2 {
		t.Errorf("site saw %d connections", s.Connections())
	}
}

func TestHappyEyeballsPrefersIPv6(t *testing.T) {
	if !lab.HasIPv6() {
		t.Log("this kernel has no IPv6: nothing to prefer")
		return
	}
	w := newWorld(t, okRaw, nil)
	six := netip.MustParseAddr("2a0d:7777::1")
	greeter(t, "four", okAddr)
	greeter(t, "six", six)
	w.resolver.Set("ok.test", "A 11.7.7.7", "AAAA 2a0d:7777::1")
	w.resolver.Set("down.wild.test", "A 11.7.7.7", "AAAA 2a0d:7777::2") // nothing there
	for to, want := range map[string]string{"ok.test:5432": "[2a0d:7777::1]:5432", "down.wild.test:5432": "11.7.7.7:5432"} {
		c, err := w.Dial(t.Context(), w.tunnel(to))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.RemoteAddr().String(); got != want {
			t.Errorf("%s: dialled %s, want %s", to, got, want)
		}
		_ = c.Close()
	}
}
