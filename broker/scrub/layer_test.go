package scrub_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sallyport/broker/scrub"
)

// escapes write one octet so that a program reads it as itself; the programs always
// escape what introduces their escapes, and breaks of lines.
var escapes = []struct {
	introducer byte
	escape     func(c byte) string
}{
	{'%', func(c byte) string { return fmt.Sprintf("%%%02x", c) }},
	{'%', func(c byte) string { return fmt.Sprintf("%%%02X", c) }},
	{'\\', func(c byte) string { return fmt.Sprintf(`\u%04x`, c) }},
	{'\\', func(c byte) string { return fmt.Sprintf(`\u{%x}`, c) }},
	{'\\', func(c byte) string { return fmt.Sprintf(`\x%02X`, c) }},
	{'\\', func(c byte) string { return fmt.Sprintf(`\%03o`, c) }},
	{'&', func(c byte) string { return fmt.Sprintf("&#%d;", c) }},
	{'&', func(c byte) string { return fmt.Sprintf("&#x0%X;", c) }},
	{'=', func(c byte) string { return fmt.Sprintf("=%02X", c) }},
	{'=', softBreak},
	{0, func(c byte) string { return "\n " + string(c) }},
}

// softBreak breaks the line before c as quoted-printable does, which escapes its own
// sign (RFC 2045 section 6.7).
func softBreak(c byte) string {
	if c == '=' {
		return "=3D"
	}
	return "=\r\n" + string(c)
}

// inPart escapes some octets in one way, or breaks lines.
func inPart(t *rapid.T, s string) string { return escapeSome(t, s, len(escapes)) }

// escapeSome is inPart with the first ways.
func escapeSome(t *rapid.T, s string, ways int) string {
	kind := rapid.SampledFrom(escapes[:ways]).Draw(t, "escape")
	often := rapid.IntRange(1, 6).Draw(t, "how rarely")
	var b strings.Builder
	for i := range len(s) {
		// A line that is broken before a secret is not broken inside of it.
		if s[i] == kind.introducer || kind.introducer != 0 && s[i] < ' ' || rapid.IntRange(1, often).Draw(t, "at") == 1 && (kind.introducer != 0 || i > 0) {
			b.WriteString(kind.escape(s[i]))
		} else {
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// opaque writes a text in an alphabet that hides its octets.
func opaque(t *rapid.T, s string) string {
	switch rapid.IntRange(0, 4).Draw(t, "alphabet") {
	case 0:
		return hex.EncodeToString([]byte(s))
	case 1:
		return strings.ToUpper(hex.EncodeToString([]byte(s)))
	case 2:
		return base64.URLEncoding.EncodeToString([]byte("u:" + s))
	case 3:
		return base64.StdEncoding.EncodeToString([]byte("u" + s + "more"))
	default:
		return base64.RawStdEncoding.EncodeToString([]byte(s))
	}
}

// inWhole escapes what needs it, or all.
func inWhole(t *rapid.T, s string) string {
	return rapid.SampledFrom([]func(string) string{
		url.QueryEscape, url.PathEscape,
		func(s string) string { return escapedAs(s, "%%%02X") },
		func(s string) string { return escapedAs(s, `\u%04x`) },
		func(s string) string { return escapedAs(s, "&#x%x;") },
	}).Draw(t, "escape all")(s)
}

// TestWhatIsHeldBackIsBounded: a secret that might go on for ever does not.
func TestWhatIsHeldBackIsBounded(t *testing.T) {
	s := scrubber()
	const most = 64 << 10
	for name, tail := range map[string]string{
		"blanks": "\n" + strings.Repeat(" ", 1<<20), "zeros": "&#" + strings.Repeat("0", 1<<20), "digits in braces": `\u{` + strings.Repeat("0", 1<<20),
		"breaks": strings.Repeat("=\r\n", 1<<18), "backslashes": strings.Repeat(`\`, 1<<18), "percent": strings.Repeat("%25", 1<<17),
	} {
		src := &counted{r: strings.NewReader(secret[:12] + tail)}
		r := s.Body(io.NopCloser(src))
		given := 0
		for buf := make([]byte, 1<<10); ; {
			n, err := r.Read(buf)
			if given += n; src.n-given > most {
				t.Errorf("%s: %d octets were read and %d given", name, src.n, given)
				break
			}
			if err != nil {
				break
			}
		}
	}
}

// counted counts what is read of it.
type counted struct {
	r io.Reader
	n int
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}

// TestAnyTwoEncodings: any secret in any two encodings over one another, but for
// what docs/credentials.md says, is found wherever the text is cut.
func TestAnyTwoEncodings(t *testing.T) {
	ways := []struct {
		name   string
		encode func(t *rapid.T, s string) string
	}{
		{"as it is", func(_ *rapid.T, s string) string { return s }},
		{"in part", inPart},
		{"in part, twice", func(t *rapid.T, s string) string { return escapeSome(t, inPart(t, s), len(escapes)-2) }},
		{"in whole, then in part", func(t *rapid.T, s string) string { return escapeSome(t, inWhole(t, s), len(escapes)-2) }},
		{"opaque", opaque},
		{"opaque, then in part", func(t *rapid.T, s string) string { return inPart(t, opaque(t, s)) }},
		{"opaque, twice", func(t *rapid.T, s string) string { return opaque(t, opaque(t, s)) }},
		{"in whole, then opaque", func(t *rapid.T, s string) string { return opaque(t, inWhole(t, s)) }},
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				value := rapid.StringMatching(`[A-Za-z0-9_.~+/=-]{24,60}`).Draw(t, "secret")
				s := scrub.New(scrub.Secret{Value: value, Instead: strings.Repeat("*", len(value))})
				encoded := way.encode(t, value)
				in := `{"a": "100%", "k": "` + encoded + `"}`
				want := s.Text(in)
				if want == in || len(want) != len(in) || strings.Contains(want, encoded) {
					t.Fatalf("%q of %q became %q", in, value, want)
				}
				src := &pieces{err: io.EOF}
				for rest := in; rest != ""; {
					n := rapid.IntRange(1, min(len(rest), 40)).Draw(t, "cut")
					src.parts, rest = append(src.parts, rest[:n]), rest[n:]
				}
				got, err := io.ReadAll(s.Body(src))
				if err != nil || string(got) != want {
					t.Fatalf("%q\nin pieces %q\nwhole     %q", in, got, want)
				}
			})
		})
	}
}
