package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
)

// TestHeadBounds is DS-04: a head over a bound is refused on every way, with words
// that say which bound, and nobody is told to wait.
func TestHeadBounds(t *testing.T) {
	lines := func(n int) http.Header { return http.Header{"A": strings.Split(strings.Repeat("x", n), "")} }
	tests := []struct {
		name  string
		head  http.Header
		bound string // "" is served
	}{
		{"under both", lines(150), ""},
		{"lines", lines(300), "200 header lines at most"},
		{"octets", http.Header{"A": {strings.Repeat("x", 100<<10)}}, "65536 octets at most"},
	}
	for _, w := range ways() {
		l := newLab(t)
		l.serveOrigin("ok.test", w.h2, &witness{})
		client := w.client(l)
		for _, tt := range tests {
			t.Run(w.name+", "+tt.name, func(t *testing.T) {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url("ok.test", "/public/a"), http.NoBody)
				must(t, err)
				req.Header = tt.head
				resp, err := client.Do(req)
				must(t, err)
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				must(t, err)
				if tt.bound == "" {
					if resp.StatusCode != 200 {
						t.Errorf("the twin: %s", resp.Status)
					}
					l.log.await(t, 2)
					return
				}
				checkDenial(t, resp, string(body), "limit")
				if resp.StatusCode != 431 || resp.Header.Get("Retry-After") != "" || strings.Contains(string(body), "Wait") || !strings.Contains(string(body), tt.bound) {
					t.Errorf("answer %s %v %q", resp.Status, resp.Header, body)
				}
				if r := wantRefusal(t, l, "limit"); r.Status != 431 || !strings.Contains(r.Error, tt.bound) {
					t.Errorf("record %+v", r)
				}
			})
		}
	}
}

// TestConnectHeadBounds: the head of a CONNECT has the same bounds.
func TestConnectHeadBounds(t *testing.T) {
	l := newLab(t)
	over1 := func(t *testing.T, lines int) (int, string) {
		c, err := l.sandboxDial(t.Context(), l.explicitAddr)
		must(t, err)
		defer c.Close()
		status, _, body := exchangeRaw(t, c, "CONNECT ok.test:443 HTTP/1.1\r\nHost: ok.test:443\r\n"+strings.Repeat("A: b\r\n", lines)+"\r\n")
		return status, body
	}
	over2 := func(t *testing.T, lines int) (int, string) {
		c, err := l.connect2(t.Context(), "ok.test:443") // makes the door
		must(t, err)
		must(t, c.Close())
		wantRefusal(t, l, "no_request")
		up, w := io.Pipe()
		defer w.Close()
		req := (&http.Request{
			Method: http.MethodConnect, URL: &url.URL{Scheme: "http", Host: l.explicitAddr}, Host: "ok.test:443",
			Header: http.Header{"A": strings.Split(strings.Repeat("b", lines), "")}, Body: up,
		}).WithContext(t.Context())
		resp, err := l.door.RoundTrip(req)
		must(t, err)
		defer resp.Body.Close()
		if resp.StatusCode == 200 {
			return 200, ""
		}
		body, err := io.ReadAll(resp.Body)
		must(t, err)
		return resp.StatusCode, string(body)
	}
	for name, ask := range map[string]func(*testing.T, int) (int, string){"HTTP/1": over1, "HTTP/2": over2} {
		t.Run(name, func(t *testing.T) {
			if status, _ := ask(t, 100); status != 200 {
				t.Errorf("the twin: %d", status)
			}
			wantRefusal(t, l, "no_request")
			status, body := ask(t, 300)
			if status != 431 || !strings.Contains(body, "200 header lines at most") || strings.Contains(body, "Wait") {
				t.Errorf("answer %d %q", status, body)
			}
			if r := wantRefusal(t, l, "limit"); r.Status != 431 || !strings.Contains(r.Error, "200 header lines at most") {
				t.Errorf("record %+v", r)
			}
		})
	}
	wantNothingDialled(t, l)
}

// TestLengthsOfH2 is HT-02 in HTTP/2: a request that states its length in several
// ways, or with no body of that length, is refused as one of HTTP/1 is.
func TestLengthsOfH2(t *testing.T) {
	tests := []struct {
		name    string
		lengths []string
		body    string
		want    string
	}{
		{"one", []string{"3"}, "abc", ""},
		{"the same twice", []string{"3", "3"}, "abc", ""},
		{"none of nothing", []string{"0"}, "", ""},
		{"two", []string{"3", "4"}, "abc", "several Content-Length"},
		{"two, without a body", []string{"0", "4"}, "", "several Content-Length"},
		{"a sign", []string{"+3"}, "", "malformed Content-Length"},
		{"a list", []string{"3, 3"}, "", "malformed Content-Length"},
		{"no body", []string{"3"}, "", "a Content-Length of 3 without a body"},
	}
	for _, w := range ways() {
		if !w.h2 {
			continue
		}
		l := newLab(t)
		o := &witness{}
		l.serveOrigin("ok.test", true, o)
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s, %s", w.name, tt.name), func(t *testing.T) {
				f, c := overH2(t, l, w)
				defer c.Close()
				var lengths []hpack.HeaderField
				for _, n := range tt.lengths {
					lengths = append(lengths, field("content-length", n))
				}
				f.begin(1, tt.body == "", plainHead(lengths...)...)
				if tt.body != "" {
					must(t, f.WriteData(1, true, []byte(tt.body)))
				}
				got := f.result()
				if tt.want == "" {
					if got != "200" {
						t.Errorf("the twin: %s", got)
					}
					l.log.await(t, 2)
					if saw := o.take(); len(saw) != 1 || saw[0].Body != tt.body {
						t.Errorf("the origin saw %+v", saw)
					}
					return
				}
				if got != "400" {
					t.Errorf("got %s, want 400", got)
				}
				if r := wantRefusal(t, l, "bad_request"); !strings.Contains(r.Error, tt.want) {
					t.Errorf("record %+v, want %q", r, tt.want)
				}
				if saw := o.take(); len(saw) > 0 {
					t.Errorf("the origin saw %+v", saw)
				}
			})
		}
	}
}
