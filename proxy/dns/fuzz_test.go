package dns_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mdns "github.com/miekg/dns"

	"sallyport/proxy/dns"
)

// FuzzHandle: no octets make the server fall over, answer an answer, or send
// more than it may; what it sends is a reply to what was asked.
func FuzzHandle(f *testing.F) {
	seeds := []*mdns.Msg{query("ok.test", mdns.TypeA), query("ok.test", mdns.TypeANY), query(".", mdns.TypeNS), query(`a\000.test`, mdns.TypeTXT)}
	for _, m := range seeds {
		wire, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
		f.Add(wire[:len(wire)/2])
	}
	plain := new(mdns.Msg)
	plain.SetQuestion("Evil.test.", mdns.TypeAAAA)
	if wire, err := plain.Pack(); err == nil {
		f.Add(wire)
	}
	f.Add([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"))
	names, err := dns.NewNames(dns.NamesConfig{Dir: f.TempDir()})
	if err != nil {
		f.Fatal(err)
	}
	defer names.Close()
	s, err := dns.New(dns.Config{
		Gate: oddGate{}, CellOf: func(netip.Addr) (string, bool) { return "one", true }, Names: names,
		Now: time.Now, Log: quiet, Rate: 1 << 30, Burst: 1 << 30,
	})
	if err != nil {
		f.Fatal(err)
	}
	buf := make([]byte, 1232)
	f.Fuzz(func(t *testing.T, wire []byte) {
		out := s.Handle(t.Context(), wire, one, true, buf)
		sameAsLong(t, s, wire, out)
		if out == nil {
			return
		}
		if len(out) > 1232 || len(out) < 12 || out[0] != wire[0] || out[1] != wire[1] || wire[2]&0x80 != 0 || out[2]&0x80 == 0 {
			t.Fatalf("reply %x to %x", out, wire)
		}
		m := new(mdns.Msg)
		if err := m.Unpack(out); err != nil {
			t.Fatalf("reply %x to %x: %v", out, wire, err)
		}
		for _, rr := range m.Answer {
			a, isA := rr.(*mdns.A)
			if isA && !names.Contains(netip.AddrFrom4([4]byte(a.A.To4()))) {
				t.Fatalf("answered %v", a)
			}
		}
	})
}

// sameAsLong: a query that is answered octet by octet gets what it would get
// the long way.
func sameAsLong(t *testing.T, s *dns.Server, wire, out []byte) {
	t.Helper()
	long := s.HandleLong(t.Context(), wire, one, nil)
	if (long == nil) != (out == nil) {
		t.Fatalf("to %x: %x, the long way %x", wire, out, long)
	}
	if out == nil {
		return
	}
	a, b := new(mdns.Msg), new(mdns.Msg)
	if err := errors.Join(a.Unpack(out), b.Unpack(long)); err != nil {
		t.Fatalf("to %x: %x, the long way %x: %v", wire, out, long, err)
	}
	if diff := cmp.Diff(b.String(), a.String()); diff != "" {
		t.Fatalf("to %x, long way and short: %s", wire, diff)
	}
}

// FuzzNamesFile: whatever stands in a cell's file, it is refused or holds one
// address for one name, and goes on from there.
func FuzzNamesFile(f *testing.F) {
	f.Add([]byte("198.18.0.1 a.test\n198.18.0.2 b.test\n198.18.0.3 c.te"))
	f.Add([]byte("198.18.0.1 a.test\n198.18.0.1 b.test\n"))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "one.names"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		var got [2]netip.Addr
		for i := range got {
			n, err := dns.NewNames(dns.NamesConfig{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			a, err := n.Assign("one", name(t, "fuzz.test"))
			if err == nil {
				if back, ok := n.Lookup("one", a); !ok || back != name(t, "fuzz.test") {
					t.Errorf("%v is %v", a, back)
				}
			}
			got[i] = a
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		}
		if got[0] != got[1] {
			t.Errorf("first %v, after a restart %v", got[0], got[1])
		}
	})
}
