package target_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/rules/target"
)

// refused are texts that are no host in any position, by catalogue entry.
var refused = []struct{ id, in string }{
	{"NM-01", "ok.test.."},
	{"NM-01", "."},
	{"NM-02", "[evil.test]"},
	{"NM-02", "[[::1]]"},
	{"NM-08", "evil.test\x00.ok.test"},
	{"NM-08", "evil.test%00.ok.test"},
	{"NM-09", "ok.test@evil.test"},
	{"NM-11", "ok。test"},
	{"NM-11", "evil．test"},
	{"NM-11", "127。0。0。1"},
	{"NM-11", "①②⑦.0.0.1"},
	{"NM-11", "１２７.0.0.1"},
	{"NM-13", "xn--ok-.test"},
	{"NM-13", "XN--OK-.TEST"},
	{"NM-13", "xn--.test"},
	{"NM-13", "xn--a.test"},
	{"NM-14", "ev%69l.test"},
	{"NM-14", "evil%2etest"},
	{"NM-14", "evil.test%2fok.test"},
	{"NM-15", ""},
	{"NM-17", "::1%lo"},
	{"NM-17", "::1%25lo"},
	{"NM-17", "fe80::1%25eth0"},
	{"NM-23", "-a.wild.test"},
	{"NM-23", "a-.wild.test"},
	{"NM-23", "a..wild.test"},
	{"NM-23", ".wild.test"},
	{"IP-02", "127.1"},
	{"IP-02", "2130706433"},
	{"IP-02", "0x7f000001"},
	{"IP-02", "0X7F000001"},
	{"IP-02", "0177.0.0.1"},
	{"IP-02", "017700000001"},
	{"IP-02", "0x7f.1"},
	{"IP-02", "0"},
	{"IP-02", "0x"},
	{"IP-02", "169.254.43518"},
	{"IP-02", "0xa9fea9fe"},
	{"IP-02", "1.2.3.4."},
	{"IP-02", "1.2.3.4.5"},
	{"CF-09", "ok.test evil.test"},
	{"CF-09", "ok.test\nallow all"},
	{"CF-09", "ok.test#"},
	{"CF-09", "ok.test/"},
	{"CF-09", "https://ok.test/"},
	{"", "\xe800"},
	{"", strings.Repeat("a", 64) + ".test"},
	{"", strings.Repeat("a.", 127) + "test"},
	{"", "*.test"},
	{"", ":::"},
	{"", "1::2::3"},
}

func TestParseHostRefuses(t *testing.T) {
	for _, tt := range refused {
		h, err := target.ParseHost(tt.in)
		if _, ok := errors.AsType[*target.SyntaxError](err); !ok {
			t.Errorf("%s: ParseHost(%q) = %v, %v, want a SyntaxError", tt.id, tt.in, h, err)
		}
		if !h.IsZero() {
			t.Errorf("%s: ParseHost(%q) returns %v beside its error", tt.id, tt.in, h)
		}
	}
}

func TestParseHost(t *testing.T) {
	tests := []struct{ id, in, want string }{
		{"NM-01", "evil.test.", "evil.test"},
		{"NM-01", "ok.test", "ok.test"},
		{"NM-03", "EVIL.Test", "evil.test"},
		{"NM-03", "Ok.TeSt.", "ok.test"},
		{"NM-13", "xn--bcher-kva.test", "xn--bcher-kva.test"},
		{"NM-13", "XN--BCHER-KVA.test", "xn--bcher-kva.test"},
		{"NM-23", "_x.wild.test", "_x.wild.test"},
		{"", "r3---sn-4g5e6.example", "r3---sn-4g5e6.example"},
		{"", "1.2.3.4", "1.2.3.4"},
		{"", "1password.test", "1password.test"},
		{"", "0xg.0xh", "0xg.0xh"},
		{"IP-03", "::ffff:127.0.0.1", "127.0.0.1"},
		{"IP-03", "::ffff:7f00:1", "127.0.0.1"},
		{"IP-20", "0000:0000:0000:0000:0000:FFFF:7F00:0001", "127.0.0.1"},
		{"IP-20", "::0:0:1", "::1"},
		{"IP-20", "0:0:0:0:0:0:0:1", "::1"},
		{"IP-20", "FD00:EC2::0254", "fd00:ec2::254"},
	}
	for _, tt := range tests {
		h, err := target.ParseHost(tt.in)
		if err != nil || h.String() != tt.want {
			t.Errorf("%s: ParseHost(%q) = %v, %v, want %s", tt.id, tt.in, h, err, tt.want)
			continue
		}
		same, err := target.ParseHost(tt.want)
		if err != nil || same != h {
			t.Errorf("%s: ParseHost(%q) = %v, %v, want the value of %q", tt.id, tt.want, same, err, tt.in)
		}
	}
}

// TestNM04Below: a wildcard ends at a label, and the parent is not below itself.
func TestNM04Below(t *testing.T) {
	parent := name(t, "wild.test")
	for in, want := range map[string]bool{
		"evilwild.test": false, "wild.test": false, "x.wild.test.evil.test": false, "xwild.test.": false,
		"wild.test.evil": false, "test": false,
		"a.wild.test": true, "a.b.wild.test.": true, "A.WILD.test": true,
	} {
		if got := name(t, in).Below(parent); got != want {
			t.Errorf("Below(%q, wild.test) = %v, want %v", in, got, want)
		}
	}
	if name(t, "a.test").Below(target.Name{}) {
		t.Error("a name is below the zero Name")
	}
}

func TestNameParents(t *testing.T) {
	n := name(t, "a.b.c.test")
	var parents []string
	for p, ok := n.Parent(); ok; p, ok = p.Parent() {
		parents = append(parents, p.String())
	}
	if diff := cmp.Diff([]string{"b.c.test", "c.test", "test"}, parents); diff != "" {
		t.Errorf("parents (-want +got):\n%s", diff)
	}
	var last []string
	for k := range 6 {
		last = append(last, n.Last(k).String())
	}
	if diff := cmp.Diff([]string{"", "test", "c.test", "b.c.test", "a.b.c.test", "a.b.c.test"}, last); diff != "" {
		t.Errorf("Last (-want +got):\n%s", diff)
	}
}

func TestParseUnicodeName(t *testing.T) {
	for in, want := range map[string]string{
		"bücher.example": "xn--bcher-kva.example", "xn--bcher-kva.example": "xn--bcher-kva.example", "ok.test": "ok.test",
		"日本.example": "xn--wgv71a.example",
	} {
		if n, err := target.ParseUnicodeName(in); err != nil || n.String() != want {
			t.Errorf("ParseUnicodeName(%q) = %v, %v, want %s", in, n, err, want)
		}
	}
	for _, in := range []string{"BÜCHER.example", "ok。test", "１２７.0.0.1", "a\u200bb.test", "\xff.test", "☃️.test"} {
		if n, err := target.ParseUnicodeName(in); err == nil {
			t.Errorf("ParseUnicodeName(%q) = %v, want an error", in, n)
		}
	}
}

func TestParseAuthorityRefuses(t *testing.T) {
	tests := []struct{ id, in string }{
		{"NM-02", "[evil.test]:443"},
		{"NM-02", "[[::1]]:443"},
		{"NM-02", "[1.2.3.4]:443"},
		{"NM-09", "ok.test:443@evil.test:443"},
		{"NM-09", "u@ok.test:443"},
		{"NM-09", "ok.test%40evil.test:443"},
		{"NM-14", "evil%2etest:443"},
		{"NM-15", ":443"},
		{"NM-15", ""},
		{"NM-17", "[::1%25lo]:9"},
		{"NM-17", "[::1%lo]:9"},
		{"NM-17", "[::1%25ok.test]:9"},
		{"NM-19", "//evil.test/x"},
		{"NM-19", "?x"},
		{"NM-19", "*"},
		{"NM-20", "http://ok.test:80"},
		{"NM-05", "ok.test:443:443"},
		{"", "::1"},
		{"", "::1:443"},
		{"", "[::1"},
		{"", "[::1]443"},
		{"", "[]:443"},
		{"", "ok.test:"},
		{"", "ok.test:0"},
		{"", "ok.test:0443"},
		{"", "ok.test:+443"},
		{"", "ok.test:65536"},
		{"", "ok.test:99999999999999999999"},
		{"", "ok.test:44a"},
		{"", "ok.test:４４３"},
		{"", "ok.test\\x:443"},
	}
	for _, tt := range tests {
		e, err := target.ParseAuthority(tt.in, 443)
		var syntax *target.SyntaxError
		if !errors.As(err, &syntax) || e != (target.Endpoint{}) {
			t.Errorf("%s: ParseAuthority(%q) = %v, %v, want a SyntaxError", tt.id, tt.in, e, err)
		}
	}
	if e, err := target.ParseAuthority("ok.test", 0); err == nil {
		t.Errorf("ParseAuthority without a port where one is needed = %v", e)
	}
}

func TestParseAuthority(t *testing.T) {
	tests := []struct{ in, want, short string }{
		{"ok.test", "ok.test:443", "ok.test"},
		{"OK.test.:443", "ok.test:443", "ok.test"},
		{"ok.test:8443", "ok.test:8443", "ok.test:8443"},
		{"1.2.3.4:80", "1.2.3.4:80", "1.2.3.4:80"},
		{"[2001:DB8::1]", "[2001:db8::1]:443", "[2001:db8::1]"},
		{"[2001:db8::1]:80", "[2001:db8::1]:80", "[2001:db8::1]:80"},
		{"[::ffff:1.2.3.4]:443", "1.2.3.4:443", "1.2.3.4"},
	}
	for _, tt := range tests {
		e, err := target.ParseAuthority(tt.in, 443)
		if err != nil || e.String() != tt.want || e.Authority(443) != tt.short {
			t.Errorf("ParseAuthority(%q) = %v, %v, want %s", tt.in, e, err, tt.want)
		}
	}
}

func TestHostOfAddr(t *testing.T) {
	want := target.HostOfAddr(netip.MustParseAddr("127.0.0.1"))
	if got := target.HostOfAddr(netip.MustParseAddr("::ffff:127.0.0.1")); got != want {
		t.Errorf("a mapped address is another host: %v", got)
	}
	if !target.HostOfAddr(netip.Addr{}).IsZero() {
		t.Error("no address is a host")
	}
}

func TestGuess(t *testing.T) {
	for in, want := range map[string]string{
		"HTTPS://Ok.Test:8443/x?y": "ok.test:8443", "ok.test.": "ok.test:0", " OK.TEST ": "ok.test:0",
		"BÜCHER.example": "xn--bcher-kva.example:0", "[::1]": "[::1]:0", "::FFFF:1.2.3.4": "1.2.3.4:0", ".ok.test": "ok.test:0",
	} {
		if e, ok := target.Guess(in); !ok || e.String() != want {
			t.Errorf("Guess(%q) = %v, %v, want %s", in, e, ok, want)
		}
	}
	for _, in := range []string{"", "127.1", "a b", "*", "\xff", "@"} {
		if e, ok := target.Guess(in); ok {
			t.Errorf("Guess(%q) = %v, want none", in, e)
		}
	}
}

func name(t *testing.T, s string) target.Name {
	t.Helper()
	n, err := target.ParseName(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
