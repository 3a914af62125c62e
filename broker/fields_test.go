package broker_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/policyfile"
)

const bodySecret = `xoxb"real\secret&token=with+odd/octets`

// newBodyKit grants cell1 a credential that goes into fields of bodies on key.test.
func newBodyKit(t testing.TB) (*kit, control.Grant) {
	t.Helper()
	k := newKit(t)
	k.stop()
	writeSecret(t, k.secret("key"), bodySecret)
	k.creds[1].Scheme = policyfile.Scheme{Type: policyfile.Body, Body: []policyfile.Field{
		{Kind: "json", Name: "token"}, {Kind: "json", Name: "auth.client.secret"}, {Kind: "form", Name: "client_secret"}, {Kind: "multipart", Name: "token"},
	}}
	k.start()
	return k, k.grant("cell1", "run1", "key").Grants[0]
}

// sendBody has a body signed and returns what is sent, and its length as told.
func sendBody(tb testing.TB, k *kit, kind string, body io.Reader, header ...string) (sent string, length int64, err error) {
	tb.Helper()
	r := request("POST", "https://key.test/", append([]string{"Content-Type", kind, "Content-Length", "7"}, header...)...)
	r.Body, r.ContentLength = io.NopCloser(body), 7
	if err := k.client.Inject(tb.Context(), pass(tb, "cell1", "run1", r), r); err != nil {
		return "", 0, err
	}
	if r.Header.Get("Content-Length") != "" {
		tb.Error("the old Content-Length is still there")
	}
	b, err := io.ReadAll(r.Body)
	return string(b), r.ContentLength, err
}

func multipartBody(t testing.TB, parts ...string) (kind, body string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i+1 < len(parts); i += 2 {
		var err error
		var part io.Writer
		if name, file := strings.CutPrefix(parts[i], "@"); file {
			part, err = w.CreateFormFile(name, "x.txt")
		} else {
			part, err = w.CreateFormField(parts[i])
		}
		if err == nil {
			_, err = io.WriteString(part, parts[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return w.FormDataContentType(), b.String()
}

// TestDeclaredFields: CR-16 and CR-27. The reader of each format is the judge.
func TestDeclaredFields(t *testing.T) {
	k, g := newBodyKit(t)
	ph := g.Placeholder
	long := strings.Repeat("x", 200<<10)
	mpKind, mp := multipartBody(t, "a", "1", "token", ph, "@file", long)
	tests := []struct {
		name, kind, body string
		read             func(body string) []string // what the origin finds in the fields
		want             int
	}{
		{"JSON", "application/json", `{"a":"` + long[:100] + `","token":"` + ph + `","b":[1,{"c":null}]}`, jsonField("token"), 1},
		{"JSON, nested, in a list", "application/vnd.api+json; charset=utf-8", `[{"auth":{"client":{"n":"{\"token\":","secret":"` + ph + `"}}},{"auth": {"client" : {"secret" : "` + ph + `"}}}]`, nil, 2},
		{"JSON, an escaped key", "application/json", `{"\u0074oken":"` + ph + `"}`, jsonField("token"), 1},
		{"form", "application/x-www-form-urlencoded", "grant_type=client_credentials&client_secret=" + ph + "&x=%26", formField("client_secret"), 1},
		{"form, at the end, an escaped name", "application/x-www-form-urlencoded", "a=b&client%5Fsecret=" + ph, formField("client_secret"), 1},
		{"multipart", mpKind, mp, partField(mpKind, "token"), 1},
		{"nothing to replace", "application/json", `{"token":"","x":["token"]}`, nil, 0},
	}
	for _, tt := range tests {
		for how, r := range map[string]io.Reader{"whole": strings.NewReader(tt.body), "octet by octet": iotest.OneByteReader(strings.NewReader(tt.body)), "data and end at once": iotest.DataErrReader(strings.NewReader(tt.body))} {
			t.Run(tt.name+", "+how, func(t *testing.T) {
				sent, length, err := sendBody(t, k, tt.kind, r)
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(sent, ph) || length >= 0 && length != int64(len(sent)) || length < 0 && len(sent) < 64<<10 {
					t.Errorf("length %d of %d: %.300q", length, len(sent), sent)
				}
				if tt.read != nil {
					if got := tt.read(sent); len(got) != tt.want || got[0] != bodySecret {
						t.Errorf("the origin reads %q", got)
					}
				}
				if n := strings.Count(sent, jsonText(bodySecret)); tt.read == nil && n != tt.want {
					t.Errorf("%d replaced, want %d: %q", n, tt.want, sent)
				}
			})
		}
	}
}

// jsonText writes a text as JSON has it.
func jsonText(s string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func jsonField(name string) func(string) []string {
	return func(body string) []string {
		var m map[string]any
		if json.Unmarshal([]byte(body), &m) != nil {
			return nil
		}
		s, _ := m[name].(string)
		return []string{s}
	}
}

func formField(name string) func(string) []string {
	return func(body string) []string {
		v, err := url.ParseQuery(body)
		if err != nil {
			return nil
		}
		return v[name]
	}
}

func partField(kind, name string) func(string) []string {
	return func(body string) []string {
		r := &http.Request{Method: "POST", Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(body))}
		if r.ParseMultipartForm(1<<20) != nil {
			return nil
		}
		return r.MultipartForm.Value[name]
	}
}

// TestElsewhereInABody: CR-16. Wherever the document does not say, the placeholder
// is a leak, and nothing of it leaves.
func TestElsewhereInABody(t *testing.T) {
	k, g := newBodyKit(t)
	ph := g.Placeholder
	fileKind, file := multipartBody(t, "@token", ph)
	otherKind, other := multipartBody(t, "other", ph)
	headKind, head := multipartBody(t, ph, "x")
	const form, js = "application/x-www-form-urlencoded", "application/json"
	tests := []struct {
		name, kind, body string
		own              bool // what is found first is a value that is not the placeholder
	}{
		{"another field", js, `{"text":"` + ph + `"}`, false},
		{"deeper", js, `{"x":{"token":"` + ph + `"}}`, false},
		{"less deep", js, `{"secret":"` + ph + `"}`, false},
		{"a key", js, `{"` + ph + `":"token"}`, false},
		{"a part of the value", js, `{"token":"Bearer ` + ph + `"}`, true},
		{"the beginning of the value", js, `{"token":"` + ph + `x"}`, true},
		{"a value in a text", js, `{"x":"{\"token\":\"` + ph + `\"}"}`, false},
		{"the field twice, then another", js, `{"token":"` + ph + `","to":"` + ph + `"}`, false},
		{"another parameter", form, "to=" + ph, false},
		{"a part of the parameter", form, "client_secret=" + ph + "x&a=b", true},
		{"a parameter's name", form, ph + "=client_secret", false},
		{"a file of that name", fileKind, file, false},
		{"another part", otherKind, other, false},
		{"the name of a part", headKind, head, false},
		{"base64 in the field", js, `{"token":"c2s6` + "eHg" + `","x":"` + ph + `"}`, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sent, _, err := sendBody(t, k, tt.kind, strings.NewReader(tt.body))
			want := rules.PlaceholderLeak
			if tt.own {
				want = rules.ForeignCredential
			}
			wantDenied(t, err, want)
			if strings.Contains(sent, ph) {
				t.Error("the placeholder was sent")
			}
		})
	}
	unfit := []struct {
		name, kind, body string
		header           []string
	}{
		{"a type without declared fields", "text/plain", ph, nil},
		{"no type", "", `{"token":"` + ph + `"}`, nil},
		{"compressed", js, `{"token":"` + ph + `"}`, []string{"Content-Encoding", "gzip"}},
		{"another charset", js + "; charset=utf-16", `{"token":"` + ph + `"}`, nil},
		{"another charset of a form", form + "; charset=UTF-16LE", "client_secret=" + ph, nil},
		{"UTF-16 by its octets", js, "\xff\xfe" + utf16Text(`{"token":"ATTACKER"}`), nil},
		{"UTF-16 without a mark", js, utf16Text(`{"token":"ATTACKER"}`), nil},
		{"UTF-16 in a form", form, utf16Text("client_secret=ATTACKER"), nil},
		{"CR-27 a digest", js, `{"token":"` + ph + `"}`, []string{"Content-Digest", "sha-256=:x:"}},
		{"CR-27 another", js, `{"token":"` + ph + `"}`, []string{"Content-MD5", "x"}},
	}
	for _, tt := range unfit {
		_, _, err := sendBody(t, k, tt.kind, strings.NewReader(tt.body), tt.header...)
		if err == nil {
			t.Errorf("%s: sent", tt.name)
		} else {
			wantDenied(t, err, rules.BadRequest)
		}
	}
	many := strings.Repeat(`{"token":"`+ph+`"},`, 17)
	if _, _, err := sendBody(t, k, js, strings.NewReader("["+many+"1]")); err == nil || !strings.Contains(err.Error(), "more than 16 fields") {
		t.Errorf("seventeen times: %v", err)
	}
}

// utf16Text is ASCII in UTF-16, little-endian.
func utf16Text(s string) string {
	var b strings.Builder
	for i := range len(s) {
		b.WriteByte(s[i])
		b.WriteByte(0)
	}
	return b.String()
}

// TestAnyCutOfABodyGivesTheSame draws documents and cuts.
func TestAnyCutOfABodyGivesTheSame(t *testing.T) {
	k, g := newBodyKit(t)
	ph := g.Placeholder
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(0, 5).Draw(rt, "values")
		var items []map[string]any
		for range n {
			items = append(items, map[string]any{
				"a":     rapid.StringMatching(`[a-z"\\{}:, ]{0,20}`).Draw(rt, "text"),
				"token": rapid.SampledFrom([]string{ph, ""}).Draw(rt, "token"),
				"z":     rapid.SampledFrom([]any{nil, 1.5, true, []any{}, map[string]any{"token2": "x"}}).Draw(rt, "z"),
			})
		}
		text, err := json.Marshal(map[string]any{"token": ph, "list": "x"})
		if n > 0 {
			text, err = json.Marshal(items)
		}
		if err != nil {
			rt.Fatal(err)
		}
		var parts []io.Reader
		for rest := string(text); rest != ""; {
			cut := rapid.IntRange(1, len(rest)).Draw(rt, "cut")
			parts, rest = append(parts, strings.NewReader(rest[:cut])), rest[cut:]
		}
		sent, length, err := sendBody(t, k, "application/json", io.MultiReader(parts...))
		expect := strings.ReplaceAll(string(text), `"`+ph+`"`, jsonText(bodySecret))
		if err != nil || sent != expect || length != int64(len(sent)) {
			rt.Fatalf("%v\nsent %q\nwant %q", err, sent, expect)
		}
	})
}

// TestOwnKeyInABody: CR-14. What stands in a declared field and is not the
// placeholder is a key of the caller's own.
func TestOwnKeyInABody(t *testing.T) {
	k, g := newBodyKit(t)
	mpKind, mp := multipartBody(t, "token", "ATTACKER")
	const form, js = "application/x-www-form-urlencoded", "application/json"
	tests := []struct{ kind, body string }{
		{js, `{"token":"ATTACKER"}`},
		{js, `{"token":"` + g.Placeholder + `","auth":{"client":{"secret":"ATTACKER"}}}`},
		{form, "client_secret=ATTACKER"},
		{mpKind, mp},
		{js, `{"x":"` + strings.Repeat("y", 100<<10) + `","token":"ATTACKER"}`}, // while it streams
	}
	for _, tt := range tests {
		sent, _, err := sendBody(t, k, tt.kind, strings.NewReader(tt.body))
		wantDenied(t, err, rules.ForeignCredential)
		if strings.Contains(sent, "ATTACKER") {
			t.Errorf("%.60q was sent", sent)
		}
	}
}

// TestKeysIn: CR-14. Where else an API takes keys its document says; the second
// request of each pair is the twin, to a host whose document says nothing.
func TestKeysIn(t *testing.T) {
	k := newKit(t)
	k.stop()
	k.creds[0].KeysIn = []policyfile.Field{
		{Kind: "cookie", Name: "session"},
		{Kind: "param", Name: "key"},
		{Kind: "header", Name: "X-Legacy"},
		{Kind: "form", Name: "api_key"},
		{Kind: "json", Name: "auth.token"},
	}
	k.start()
	k.grant("cell1", "run1", "api", "key")
	const form, js = "application/x-www-form-urlencoded", "application/json"
	tests := []struct {
		name, query string
		header      []string
		kind, body  string
		foreign     bool
	}{
		{"cookie", "", []string{"Cookie", "lang=en; session=ATTACKER"}, "", "", true},
		{"parameter", "?a=b&key=ATTACKER", nil, "", "", true},
		{"parameter, escaped", "?%6bey=ATTACKER", nil, "", "", true},
		{"header, with underscores", "", []string{"x_legacy", "ATTACKER"}, "", "", true},
		{"form", "", nil, form, "a=b&api_key=ATTACKER", true},
		{"JSON", "", nil, js, `{"auth":{"token":"ATTACKER"}}`, true},
		{"JSON in UTF-16", "", nil, js, utf16Text(`{"auth":{"token":"ATTACKER"}}`), true},
		{"parameter, an item of a list", "?key[]=ATTACKER", nil, "", "", true},
		{"another cookie", "", []string{"Cookie", "lang=en; sessions=x; session="}, "", "", false},
		{"another parameter", "?keys=1&key=", nil, "", "", false},
		{"another field", "", nil, form, "api_keys=1&api_key=&x=api_key", false},
		{"another body", "", nil, "text/plain", "api_key=1", false},
	}
	for _, tt := range tests {
		for _, host := range []string{"api.test", "key.test"} {
			r := request("POST", "https://"+host+"/v1/x"+tt.query, tt.header...)
			if tt.body != "" {
				r.Header.Set("Content-Type", tt.kind)
				r.Body = io.NopCloser(strings.NewReader(tt.body))
			}
			p, err := admit(t, "cell1", "run1", r, k.client.Find("cell1", r))
			if err == nil {
				err = k.client.Inject(t.Context(), p, r)
			}
			sent := ""
			if err == nil && tt.body != "" {
				var b []byte
				b, err = io.ReadAll(r.Body)
				sent = string(b)
			}
			if tt.name == "JSON in UTF-16" && host == "api.test" {
				wantDenied(t, err, rules.BadRequest)
			} else if tt.foreign && host == "api.test" {
				wantDenied(t, err, rules.ForeignCredential)
			} else if err != nil || sent != tt.body {
				t.Errorf("%s at %s: %v, sent %q", tt.name, host, err, sent)
			}
		}
	}
}

func FuzzFields(f *testing.F) {
	k, g := newBodyKit(f)
	ph := g.Placeholder
	f.Add(`{"token":"PH"}`, uint8(0), uint8(3))
	f.Add(`client_secret=PH&a=PH`, uint8(1), uint8(1))
	f.Add("--b\r\nContent-Disposition: form-data; name=\"token\"\r\n\r\nPH\r\n--b--", uint8(2), uint8(7))
	kinds := []string{"application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"}
	f.Fuzz(func(t *testing.T, text string, kind, cut uint8) {
		text = strings.ReplaceAll(text, "PH", ph)
		one := func(r io.Reader) (string, bool) {
			sent, _, err := sendBody(t, k, kinds[int(kind)%len(kinds)], r)
			return sent, err == nil
		}
		var parts []io.Reader
		for rest := text; rest != ""; {
			n := min(int(cut)%40+1, len(rest))
			parts, rest = append(parts, strings.NewReader(rest[:n])), rest[n:]
		}
		whole, ok := one(strings.NewReader(text))
		cutUp, okCut := one(io.MultiReader(parts...))
		if ok != okCut || ok && whole != cutUp {
			t.Fatalf("whole %v %q, cut %v %q", ok, whole, okCut, cutUp)
		}
		if strings.Contains(whole, ph) || strings.Contains(cutUp, ph) {
			t.Fatal("the placeholder was sent")
		}
	})
}

func BenchmarkDeclaredField(b *testing.B) {
	k, g := newBodyKit(b)
	text := []byte(fmt.Sprintf(`{"token":%q,"text":%q}`, g.Placeholder, strings.Repeat("some text ", 10_000)))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, _, err := sendBody(b, k, "application/json", bytes.NewReader(text)); err != nil {
			b.Fatal(err)
		}
	}
}
