package target_test

import (
	"strings"
	"testing"

	"sallyport/rules/target"
)

func FuzzParseHost(f *testing.F) {
	for _, tt := range refused {
		f.Add(tt.in)
	}
	for _, s := range []string{"ok.test", "OK.TEST.", "xn--bcher-kva.test", "::1", "1.2.3.4", "_x.test", "EXAMPLE。com", "::ffff:1.2.3.4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := target.ParseHost(s)
		if err != nil {
			if !h.IsZero() {
				t.Fatalf("ParseHost(%q) returns %v beside %v", s, h, err)
			}
			_ = err.Error()
			return
		}
		text := h.String()
		again, err := target.ParseHost(text)
		if err != nil || again != h || again.String() != text {
			t.Fatalf("ParseHost(%q) = %q, which reads as %v, %v", s, text, again, err)
		}
		if strings.ToLower(text) != text || strings.HasSuffix(text, ".") {
			t.Fatalf("ParseHost(%q) = %q, not canonical", s, text)
		}
		if n, ok := h.Name(); ok {
			if same, err := target.ParseUnicodeName(text); err != nil || same != n {
				t.Fatalf("ParseUnicodeName(%q) = %v, %v, want the same as ParseHost", text, same, err)
			}
		}
	})
}

func FuzzParseUnicodeName(f *testing.F) {
	for _, s := range []string{"bücher.example", "日本.example", "ok。test", "\xe800", "１２７.0.0.1", "☃️.test", "ß.example"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := target.ParseUnicodeName(s)
		if err != nil {
			return
		}
		if same, err := target.ParseName(n.String()); err != nil || same != n {
			t.Fatalf("ParseUnicodeName(%q) = %q, which ParseName reads as %v, %v", s, n, same, err)
		}
	})
}

func FuzzParseAuthority(f *testing.F) {
	for _, tt := range refused {
		f.Add(tt.in)
		f.Add(tt.in + ":443")
		f.Add("[" + tt.in + "]:443")
	}
	for _, s := range []string{"ok.test:443", "[::1]:80", "[::ffff:1.2.3.4]", "1.2.3.4:1", "a:b:c", "[", "]", "ok.test:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := target.ParseAuthority(s, 443)
		if err != nil {
			if e != (target.Endpoint{}) {
				t.Fatalf("ParseAuthority(%q) returns %v beside %v", s, e, err)
			}
			return
		}
		for _, text := range []string{e.String(), e.Authority(443)} {
			if again, err := target.ParseAuthority(text, 443); err != nil || again != e {
				t.Fatalf("ParseAuthority(%q) = %q, which reads as %v, %v", s, text, again, err)
			}
		}
		if e.Port == 0 || e.Host.IsZero() {
			t.Fatalf("ParseAuthority(%q) = %v", s, e)
		}
	})
}

func FuzzParsePath(f *testing.F) {
	for _, s := range []string{"/", "/a/%2e%2e/b", "/;x", "//", "/a%2Fb", "/%7B{", "/%", "/a\\b", "/%252f", "*"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := target.ParsePath(s)
		if err != nil {
			if !p.IsZero() {
				t.Fatalf("ParsePath(%q) returns %v beside %v", s, p, err)
			}
			return
		}
		if again, err := target.ParsePath(p.String()); err != nil || again != p {
			t.Fatalf("ParsePath(%q) = %q, which reads as %v, %v", s, p, again, err)
		}
		for i := range len(p.String()) {
			if c := p.String()[i]; c <= ' ' || c >= 0x7f || c == '?' || c == '#' || c == '\\' {
				t.Fatalf("ParsePath(%q) = %q holds %q", s, p, c)
			}
		}
	})
}
