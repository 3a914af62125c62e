package broker_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"sallyport/rules"
)

// encodings are those of the catalogue, and what else the documentation names. A text is
// written in one request or, where there are more, in several.
var encodings = []struct {
	name  string
	write func(string) []string
	// lost is what docs/credentials.md calls it where it says what is not found; "" is found.
	lost string
}{
	{"plain", once(func(s string) string { return s }), ""},
	{"base64", once(func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }), ""},
	{"base64, without padding", once(func(s string) string { return base64.RawStdEncoding.EncodeToString([]byte(s)) }), ""},
	{"base64url", once(func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte("~?" + s)) }), ""},
	{"base64 twice", once(func(s string) string { return b64(b64(s)) }), ""},
	{"hexadecimal", once(func(s string) string { return hex.EncodeToString([]byte(s)) }), ""},
	{"percent", once(percentAll), ""},
	{"percent twice", once(func(s string) string { return url.QueryEscape(percentAll(s)) }), ""},
	{"JSON escapes", once(func(s string) string { return each(`\u%04x`, s) }), ""},
	// Of sk_test_, so 736B5f: there are letters in either half.
	{"hexadecimal, mixed case", once(func(s string) string {
		return strings.ToUpper(hex.EncodeToString([]byte(s[:2]))) + hex.EncodeToString([]byte(s[2:]))
	}), "mixed case"},
	{"hexadecimal, separated", once(func(s string) string { return each("%02x-", s) }), "separators"},
	{"base32", once(func(s string) string { return base32.StdEncoding.EncodeToString([]byte(s)) }), "base32"},
	{"base64 three times", once(func(s string) string { return b64(b64(b64(s))) }), "three encodings"},
	{"rot13", once(rot13), "another alphabet (rot13)"},
	{"reversed", once(func(s string) string { b := []byte(s); slices.Reverse(b); return string(b) }), "reversed"},
	{"compressed, then base64", once(func(s string) string { return b64(zipped(s)) }), "compressed and then encoded"},
	{"zero-width space between", once(func(s string) string { return s[:11] + "\u200b" + s[11:] }), "other text between"},
	{"over two requests", func(s string) []string { return []string{s[:16], s[16:]} }, "two requests"},
}

func once(f func(string) string) func(string) []string {
	return func(s string) []string { return []string{f(s)} }
}

func each(format, s string) (out string) {
	for i := range len(s) {
		out += fmt.Sprintf(format, s[i])
	}
	return out
}

func rot13(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z':
			return 'a' + (r-'a'+13)%26
		case 'A' <= r && r <= 'Z':
			return 'A' + (r-'A'+13)%26
		}
		return r
	}, s)
}

func zipped(s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, s) // into memory
	_ = w.Close()
	return b.String()
}

// TestEncodedCanary is EX-08: of each encoding, how often a placeholder is found, and how
// often a text like it that is nobody's. What is found is found always, the rest never,
// and the documentation names each of the rest: it claims no more than this.
func TestEncodedCanary(t *testing.T) {
	text, err := os.ReadFile("../docs/credentials.md")
	if err != nil {
		t.Fatal(err)
	}
	_, said, _ := strings.Cut(string(text), "\nNot found, since ")
	said, _, _ = strings.Cut(said, "\n\n")
	said = strings.Join(strings.Fields(said), " ")
	k := newKit(t)
	const runs = 8
	stands := make([]string, runs)
	for i := range stands {
		cell := fmt.Sprint("cell", i)
		stands[i] = k.grant(cell, fmt.Sprint("run", i), "api").Grants[0].Placeholder
	}
	for _, e := range encodings {
		found, wrong, tried := 0, 0, 0
		for i, stand := range stands {
			like := []byte(stand)
			slices.Reverse(like[8:]) // shaped like it, and nobody's
			for _, place := range []string{"query", "field", "body"} {
				tried++
				if k.finds(t, fmt.Sprint("cell", i), place, e.write(stand)) {
					found++
				}
				if k.finds(t, fmt.Sprint("cell", i), place, e.write(string(like))) {
					wrong++
				}
			}
		}
		t.Logf("%-26s found %d of %d, and of others %d", e.name, found, tried, wrong)
		want := tried
		if e.lost != "" {
			want = 0
			if !strings.Contains(said, e.lost) {
				t.Errorf("%s: the documentation does not say that %q is not found", e.name, e.lost)
			}
		}
		if found != want || wrong != 0 {
			t.Errorf("%s: found %d of %d, want %d; of others %d, want none", e.name, found, tried, want, wrong)
		}
	}
}

// finds says whether a placeholder is found in any of the requests that have the texts in
// a place.
func (k *kit) finds(t *testing.T, cell, place string, texts []string) bool {
	t.Helper()
	for _, text := range texts {
		r := request("POST", "https://ok.test/upload")
		switch place {
		case "query":
			r.URL.RawQuery = "q=" + strings.NewReplacer("+", "%2B", "/", "%2F", "\u200b", "%E2%80%8B").Replace(text)
		case "field":
			r.Header.Set("X-Note", text)
		case "body":
			r.Body = io.NopCloser(strings.NewReader("text=" + text + "&more"))
		}
		if slices.ContainsFunc(k.client.Find(cell, r), func(c rules.Carry) bool { return c.State == rules.Leaked }) {
			return true
		}
		if place != "body" {
			continue
		}
		if err := k.client.Inject(t.Context(), pass(t, cell, "run"+cell[len("cell"):], r), r); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			wantDenied(t, err, rules.PlaceholderLeak)
			return true
		}
	}
	return false
}
