package needle_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"

	"sallyport/broker/needle"
)

const value = "sk_test_4eC39HqLyjWDarjtT1zdp7dc"

func setOf(values ...string) *needle.Set {
	var all []needle.Needle
	for i, v := range values {
		all = append(all, needle.Spellings([]byte(v), []byte("stand-in"), i)...)
	}
	return needle.NewSet(all)
}

func TestSpellingsAreFound(t *testing.T) {
	odd := `pa"ss/wörd+&<tab>` + "\t" + `=\end`
	tests := []struct {
		name, value, text string
		want              bool
	}{
		{"another value", value, "sk_test_4eC39HqLyjWDarjtT1zdp7dd", false},
		{"its beginning", value, value[:len(value)-1], false},
		{"its end", value, value[1:], false},
		{"reversed", value, reverse(value), false},
		{"another case", value, strings.ToUpper(value), false},
		{"empty text", value, "", false},
		{"plain", value, "x" + value + "y", true},
		{"hexadecimal", value, "0x" + hex.EncodeToString([]byte(value)), true},
		{"hexadecimal, upper case", value, strings.ToUpper(hex.EncodeToString([]byte(value))), true},
		{"base64", value, base64.StdEncoding.EncodeToString([]byte(value)), true},
		{"base64 after one octet", value, base64.StdEncoding.EncodeToString([]byte(":" + value)), true},
		{"base64 after two octets", value, base64.URLEncoding.EncodeToString([]byte("u:" + value + "\n")), true},
		{"UTF-16, little-endian", value, "\xff\xfe<\x00" + wide(value, false) + ">\x00", true},
		{"UTF-16, big-endian", value, "\xfe\xff\x00<" + wide(value, true) + "\x00>", true},
		{"query", odd, "?q=" + url.QueryEscape(odd), true},
		{"path", odd, "/" + url.PathEscape(odd) + "/", true},
		{"lower-case escapes", odd, strings.ToLower(url.QueryEscape("é")) + lowerEscapes(url.QueryEscape(odd)), true},
		{"JSON", odd, `{"k":"pa\"ss/wörd+\u0026\u003ctab\u003e\t=\\end"}`, true},
		{"JSON, HTML not escaped", odd, `{"k":"pa\"ss/wörd+&<tab>\t=\\end"}`, true},
		{"JSON, slash escaped", odd, `{"k":"pa\"ss\/wörd+&<tab>\t=\\end"}`, true},
		{"HTML", odd, "<b>pa&#34;ss/wörd+&amp;&lt;tab&gt;\t=\\end</b>", true},
		{"HTML, named quotes", odd, "<b>pa&quot;ss/wörd+&amp;&lt;tab&gt;\t=\\end</b>", true},
		{"percent, every octet", value, "q=" + each(value, "%%%02X") + "&", true},
		{"percent, every octet, lower case", odd, "q=" + each(odd, "%%%02x"), true},
		{"JSON, every character", value, `{"k":"` + each(value, `\u%04x`) + `"}`, true},
		{"JSON, every character, upper case", value, `{"k":"` + each(value, `\u%04X`) + `"}`, true},
		{"JavaScript, every octet", value, "'" + each(value, `\x%02x`) + "'", true},
		{"HTML, every character", value, "<p>" + each(value, "&#%d;") + "</p>", true},
		{"HTML, every character, hexadecimal", value, "<p>" + each(value, "&#x%x;") + "</p>", true},
		{"HTML, every character, upper case", value, "<p>" + each(value, "&#x%X;") + "</p>", true},
		{"a limit: percent, in part, then base64", value, base64.StdEncoding.EncodeToString([]byte(value[:9] + "%" + hex.EncodeToString([]byte(value[9:10])) + value[10:])), false},
		{"percent, in part, of another value", value, "%73" + value[1:5] + "%74" + value[6:], false},
		{"percent, in part", value, "%" + "73" + value[1:5] + "%" + hex.EncodeToString([]byte(value[5:6])) + value[6:], true},
		{"percent, mixed case", odd, "pa%22ss%2fw%C3%B6rd%2B%26%3Ctab%3e%09%3D%5cend", true},
		{"percent, twice", value, each(each(value, "%%%02X"), "%%%02x"), true},
		{"percent of percent, in part", value, value[:3] + "%25" + hex.EncodeToString([]byte(value[3:4])) + value[4:], true},
		{"JSON, in part", value, `\u0073` + value[1:9] + `\u{` + hex.EncodeToString([]byte(value[9:10])) + "}" + value[10:], true},
		{"JSON of HTML", value, value[:4] + `\u0026#` + fmt.Sprint(value[4]) + `;` + value[5:], true},
		{"octal", value, value[:2] + fmt.Sprintf(`\%03o`, value[2]) + value[3:], true},
		{"needless backslash", odd, `pa\"ss\/wörd\+\&\<tab\>\t\=\\end`, true},
		{"HTML, leading zeros, no semicolon", value, value[:5] + fmt.Sprintf(`&#x000%x`, value[5]) + "&#0" + fmt.Sprint(value[6]) + ";" + value[7:], true},
		{"HTML, by name", value, strings.ReplaceAll(value, "_", "&lowbar;"), true},
		{"quoted-printable", value, value[:7] + "=5F=\r\n" + value[8:], strings.HasPrefix(value[7:], "_")},
		{"broken over lines", value, value[:9] + "\r\n\t" + value[9:20] + "\n" + value[20:], true},
		{"base64 in lines", value, fold(base64.StdEncoding.EncodeToString([]byte("ab:"+value)), 16, "\r\n"), true},
		{"base64 in lines of JSON", value, fold(base64.StdEncoding.EncodeToString([]byte("ab:"+value)), 12, `\n`), true},
		{"base64, percent-encoded", odd, url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(odd + "~~~???"))), true},
		{"base64 twice", value, base64.URLEncoding.EncodeToString([]byte("x" + base64.StdEncoding.EncodeToString([]byte("user:"+value)))), true},
		{"base64 of UTF-16", value, base64.StdEncoding.EncodeToString([]byte(wide("x"+value, false))), true},
		{"base64 of hexadecimal", value, base64.StdEncoding.EncodeToString([]byte("0x" + hex.EncodeToString([]byte(value)))), true},
		{"base64 of JSON", odd, base64.StdEncoding.EncodeToString([]byte(`{"k":"pa\"ss/wörd+\u0026\u003ctab\u003e\t=\\end"}`)), true},
		{"broken before and behind", value, "\n" + value[:len(value)-1] + "\n", false},
		{"base64 of odd octets", odd, base64.RawURLEncoding.EncodeToString([]byte("ab" + odd)), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := setOf("some-other-value", tt.value)
			h, ok := needle.Next(s, tt.text, 0)
			if ok != tt.want || ok && h.Needle.Value != 1 {
				t.Errorf("Next(%q) = %+v, %v, want found %v", tt.text, h, ok, tt.want)
			}
			if hb, okb := needle.Next(s, []byte(tt.text), 0); okb != ok || hb.At != h.At {
				t.Errorf("bytes: Next(%q) = %+v, %v, want as for the string", tt.text, hb, okb)
			}
		})
	}
}

// fold breaks a text into lines.
func fold(s string, n int, end string) string {
	var lines []string
	for ; len(s) > n; s = s[n:] {
		lines = append(lines, s[:n])
	}
	return strings.Join(append(lines, s), end)
}

// each writes every octet in a format.
func each(s, format string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, format, s[i])
	}
	return b.String()
}

// wide is UTF-16 as the standard library has it.
func wide(s string, bigEndian bool) string {
	var out []byte
	for _, u := range utf16.Encode([]rune(s)) {
		if bigEndian {
			out = binary.BigEndian.AppendUint16(out, u)
		} else {
			out = binary.LittleEndian.AppendUint16(out, u)
		}
	}
	return string(out)
}

func lowerEscapes(s string) string {
	b := []byte(s)
	for i := range b {
		if b[i] == '%' {
			copy(b[i+1:], bytes.ToLower(b[i+1:i+3]))
		}
	}
	return string(b)
}

func reverse(s string) string {
	b := []byte(s)
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
	return string(b)
}

func TestShortAndNoNeedlesFindNothing(t *testing.T) {
	for _, s := range []*needle.Set{nil, new(needle.Set), needle.NewSet(nil), setOf("short")} {
		if h, ok := needle.Next(s, "short short short short", 0); ok {
			t.Errorf("Next = %+v, want nothing", h)
		}
		if h, ok := s.NextPart([]byte("short short"), 0); ok {
			t.Errorf("NextPart = %+v, want nothing", h)
		}
	}
}

// TestSpellingsKeepTheirLength is what lets the scrubber leave lengths alone.
func TestSpellingsKeepTheirLength(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SliceOfN(rapid.Byte(), needle.MinLen, 60).Draw(t, "value")
		by := rapid.SliceOfN(rapid.Byte(), 0, 80).Draw(t, "instead")
		for _, n := range needle.Spellings(v, by, 0) {
			if len(n.Text) != len(n.Instead) {
				t.Fatalf("%q is replaced by %q", n.Text, n.Instead)
			}
		}
	})
}

// naive is the same search without a table.
func naive(texts []string, hay string, from int) (at, length int) {
	for i := from; i < len(hay); i++ {
		best := 0
		for _, n := range texts {
			if len(n) > best && strings.HasPrefix(hay[i:], n) {
				best = len(n)
			}
		}
		if best > 0 {
			return i, best
		}
	}
	return -1, 0
}

func TestNextIsTheNaiveSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letter := rapid.SampledFrom([]byte("ab"))
		word := rapid.SliceOfN(letter, needle.MinLen, 14)
		var texts []string
		var all []needle.Needle
		for i, w := range rapid.SliceOfN(word, 1, 5).Draw(t, "needles") {
			texts = append(texts, string(w))
			all = append(all, needle.Needle{Text: w, Instead: w, Value: i})
		}
		hay := string(rapid.SliceOfN(letter, 0, 120).Draw(t, "hay"))
		s := needle.NewSet(all)
		for from := 0; ; {
			at, n := naive(texts, hay, from)
			h, ok := needle.Next(s, hay, from)
			if !ok {
				h.At = -1
			}
			if h.At != at || ok && len(h.Needle.Text) != n {
				t.Fatalf("from %d in %q: at %d (%v), want %d length %d", from, hay, h.At, ok, at, n)
			}
			if !ok {
				return
			}
			from = at + n
		}
	})
}

// A text is looked at in strides: a needle is found wherever it stands between them.
func TestNeedleIsFoundAtEachPlace(t *testing.T) {
	for _, v := range []string{"8 octets", "eleven here", value, strings.Repeat(value, 3)} {
		s := setOf(v)
		for before := range 130 {
			for _, filler := range []string{"\x00", "z", " \x00"} {
				text := strings.Repeat(filler, before) + v + filler
				want := len(filler) * before
				for from := 0; from <= want; from += 1 + want/7 {
					if h, ok := needle.Next(s, text, from); !ok || h.At != want || !h.Whole {
						t.Fatalf("Next(%q, %d) = %+v, %v, want a hit at %d", text, from, h, ok, want)
					}
					if h, ok := s.NextPart([]byte(text), from); !ok || h.At != want || !h.Whole {
						t.Fatalf("NextPart(%q, %d) = %+v, %v, want a hit at %d", text, from, h, ok, want)
					}
				}
				if h, ok := needle.Next(s, text, want+1); ok {
					t.Fatalf("Next(%q, %d) = %+v, want nothing", text, want+1, h)
				}
				if h, ok := needle.Next(s, text[:want+len(v)-1], 0); ok {
					t.Fatalf("Next(%q) = %+v, want nothing", text[:want+len(v)-1], h)
				}
			}
		}
	}
}

func TestNextDoesNotAllocate(t *testing.T) {
	s := setOf(value)
	text := strings.Repeat("Mozilla/5.0 (X11; Linux x86_64) ", 20) + base64.StdEncoding.EncodeToString([]byte(value))
	if n := testing.AllocsPerRun(100, func() {
		if _, ok := needle.Next(s, text, 0); !ok {
			t.Error("not found")
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func FuzzNext(f *testing.F) {
	f.Add([]byte(value), "a"+value)
	f.Add([]byte(`with "quotes" & %`), `{"x":"with \"quotes\" \u0026 %"}`)
	f.Fuzz(func(t *testing.T, v []byte, text string) {
		if len(v) > 200 {
			return
		}
		all := needle.Spellings(v, nil, 7)
		s := needle.NewSet(all)
		h, ok := needle.Next(s, text, 0)
		if ok && !strings.HasPrefix(text[h.At:], string(h.Needle.Text)) {
			t.Fatalf("no needle at %d of %q", h.At, text)
		}
		if strings.Contains(text, string(v)) && len(v) >= needle.MinLen && !ok {
			t.Fatalf("%q not found in %q", v, text)
		}
	})
}

func BenchmarkNextText(b *testing.B) {
	s := setOf(value, "ghp_16C7e42F292c6912E7710c838347Ae178B4a")
	text := make([]byte, 1<<16)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range text {
		text[i] = "etaoin shrdlu {\":,}0123_-\n"[r.IntN(26)]
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, ok := needle.Next(s, text, 0); ok {
			b.Fatal("found")
		}
	}
}
