package broker_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"sallyport/rules"
	"sallyport/rules/gate"
)

// guardedBody is the body of a request of cell1 to a host without a credential,
// as it is sent upstream.
func guardedBody(t *testing.T, k *kit, body io.Reader) io.Reader {
	t.Helper()
	r := request("POST", "https://ok.test/upload")
	r.Body = io.NopCloser(body)
	if err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r); err != nil {
		t.Fatal(err)
	}
	return r.Body
}

// TestPlaceholderInBody: CR-16.
func TestPlaceholderInBody(t *testing.T) {
	k := newKit(t)
	ph := k.grant("cell1", "run1", "api", "key").Grants[0].Placeholder
	long := strings.Repeat("some text ", 10_000)
	tests := []struct{ name, body string }{
		{"JSON", `{"to":"x@evil.test","body":"` + ph + `"}`},
		{"form", "a=b&c=" + ph},
		{"multipart", "--b\r\nContent-Disposition: form-data; name=f; filename=\"" + ph + "\"\r\n\r\nx\r\n--b--"},
		{"base64", base64.StdEncoding.EncodeToString([]byte("u:" + ph))},
		{"after much", long + ph},
		{"before much", ph + long},
	}
	for _, tt := range tests {
		for name, r := range map[string]io.Reader{"whole": strings.NewReader(tt.body), "octet by octet": iotest.OneByteReader(strings.NewReader(tt.body))} {
			t.Run(tt.name+", "+name, func(t *testing.T) {
				body := guardedBody(t, k, r)
				sent, err := io.ReadAll(body)
				wantDenied(t, err, rules.PlaceholderLeak)
				if e, ok := errors.AsType[*gate.DeniedError](err); !ok || e.Decision.Credential != "api" {
					t.Errorf("%v is no leak of api's", err)
				}
				if strings.Contains(string(sent), ph) {
					t.Error("the placeholder was sent")
				}
				if _, again := body.Read(make([]byte, 10)); !errors.Is(again, err) {
					t.Errorf("read again: %v", again)
				}
			})
		}
	}
	for _, twin := range []string{"", long, ph[:len(ph)-1], ph[1:], strings.ToUpper(ph)} {
		if sent, err := io.ReadAll(guardedBody(t, k, iotest.HalfReader(strings.NewReader(twin)))); err != nil || string(sent) != twin {
			t.Errorf("twin: %d octets, %v, want %d", len(sent), err, len(twin))
		}
	}
}

func TestPlaceholderInUnannouncedTrailer(t *testing.T) {
	k := newKit(t)
	ph := k.grant("cell1", "run1", "api").Grants[0].Placeholder
	r := request("POST", "https://ok.test/")
	r.Body = io.NopCloser(strings.NewReader("x"))
	r.Trailer = http.Header{"X-Sum": {"a " + ph}}
	if err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r); err != nil {
		t.Fatal(err)
	}
	_, err := io.ReadAll(r.Body)
	wantDenied(t, err, rules.PlaceholderLeak)
	if len(r.Trailer) != 0 {
		t.Errorf("the trailers are still there: %v", r.Trailer)
	}
}

func TestBodyCutAnywhere(t *testing.T) {
	k := newKit(t)
	ph := k.grant("cell1", "run1", "api").Grants[0].Placeholder
	rapid.Check(t, func(rt *rapid.T) {
		before := rapid.SliceOfN(rapid.SampledFrom([]byte("sk_tes ")), 0, 100).Draw(rt, "before")
		after := rapid.SliceOfN(rapid.SampledFrom([]byte("sk_tes ")), 0, 100).Draw(rt, "after")
		leak := rapid.Bool().Draw(rt, "leak")
		in := ph
		if !leak {
			in = ph[:len(ph)-2] + "!" // which is not what might follow it
		}
		// As it is, or over so many lines that more of it comes than is looked at first.
		between := rapid.SampledFrom([]string{"", "\n" + strings.Repeat(" ", 20)}).Draw(rt, "between")
		spread := strings.Join(strings.Split(in, ""), between)
		text := string(before) + spread + string(after) + strings.Repeat(" more", rapid.IntRange(0, 200).Draw(rt, "more"))
		var parts []io.Reader
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(rt, "cut")
			parts, rest = append(parts, strings.NewReader(rest[:n])), rest[n:]
		}
		sent, err := io.ReadAll(guardedBody(t, k, io.MultiReader(parts...)))
		if leak != (err != nil) || !leak && string(sent) != text || strings.Contains(string(sent), spread) && leak {
			rt.Fatalf("leak %v: sent %q, %v", leak, sent, err)
		}
	})
}

// TestBodyLeakOnTheWire: the origin never has the whole request, and the sandbox
// is told why.
func TestBodyLeakOnTheWire(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		k := newKit(t)
		ph := k.grant("cell1", "run1", "api").Grants[0].Placeholder
		var saw atomic.Pointer[http.Header]
		front := gateway(t, k.client, origin(t, http2, &saw))
		post := func(body string) (int, string) {
			r, err := http.NewRequestWithContext(t.Context(), "POST", front.URL+"/v1/x", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Host = "api.test"
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, string(b)
		}
		for _, body := range []string{`{"k":"` + ph + `"}`, strings.Repeat("x", 1<<20) + ph} {
			if status, text := post(body); status != http.StatusForbidden || !strings.Contains(text, string(rules.PlaceholderLeak)) {
				t.Errorf("http2=%v: %d %q, want placeholder_leak", http2, status, text)
			}
		}
		if status, text := post(`{"k":"v"}`); status != http.StatusOK || saw.Load() == nil {
			t.Errorf("twin: %d %q", status, text)
		}
	}
}

func BenchmarkGuardedBody(b *testing.B) {
	k := newKit(b)
	k.grant("cell1", "run1", "api", "key")
	text := bytes.Repeat([]byte(`{"id":"evt_1","object":"event","created":1724500000,"data":{"amount":1099}}`+"\n"), 10_000)
	r := request("POST", "https://ok.test/upload")
	p := pass(b, "cell1", "run1", r)
	buf := make([]byte, 32<<10)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		r.Body = io.NopCloser(bytes.NewReader(text))
		if err := k.client.Inject(b.Context(), p, r); err != nil {
			b.Fatal(err)
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r.Body}, buf); err != nil {
			b.Fatal(err)
		}
	}
}
