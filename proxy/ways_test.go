package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
)

// seen is what an origin saw of a request.
type seen struct {
	Method, Host, URI, Body string
	Header                  http.Header
}

// witness is an origin that keeps what it saw.
type witness struct {
	mu   sync.Mutex
	saw  []seen
	next http.HandlerFunc // nil: 200 and "hello"
}

func (w *witness) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	var body []byte
	if w.next == nil {
		body, _ = io.ReadAll(r.Body)
	}
	w.mu.Lock()
	w.saw = append(w.saw, seen{r.Method, r.Host, r.RequestURI, string(body), r.Header.Clone()})
	w.mu.Unlock()
	if w.next != nil {
		w.next(rw, r)
		return
	}
	fmt.Fprint(rw, "hello")
}

func (w *witness) take() []seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.saw
	w.saw = nil
	return out
}

// line is what a record says, without what differs from way to way.
type line struct {
	Kind                  audit.Kind
	Verdict, Reason, Rule string
	Host, Method, Path    string
	Status                int
}

func linesOf(records []audit.Record) (out []line) {
	for _, r := range records {
		out = append(out, line{r.Kind, r.Verdict, r.Reason, r.Rule, r.Host, r.Method, r.Path, r.Status})
	}
	return out
}

// TestEveryWay runs each case over every path and expects one behaviour.
func TestEveryWay(t *testing.T) {
	admitted := func(rule, host, method, path string) []line {
		return []line{
			{audit.Admit, "inspect", "allowed", rule, host, method, path, 0},
			{audit.Done, "inspect", "allowed", rule, host, method, path, 200},
		}
	}
	refused := func(reason, rule, host, method, path string) []line {
		return []line{{audit.Refuse, "deny", reason, rule, host, method, path, 403}}
	}
	misspelled := func(method string) []line {
		return []line{{audit.Refuse, "deny", "bad_request", "", "any.test", method, "/a", 400}}
	}
	tests := []struct {
		name               string
		host, method, path string
		body               string
		status             int
		saw                string // "METHOD URI BODY" at the origin, "" for nothing
		records            []line
	}{
		{"NM-05 unknown host", "evil.test", "GET", "/x", "", 403, "", refused("host_not_allowed", "", "evil.test", "GET", "/x")},
		{"NM-04 suffix", "notok.test", "GET", "/", "", 403, "", refused("host_not_allowed", "", "notok.test", "GET", "/")},
		{"HT-16 method", "ok.test", "DELETE", "/public/a", "", 403, "", refused("method_not_allowed", "", "ok.test", "DELETE", "/public/a")},
		{"HT-16 lower case", "any.test", "delete", "/a", "", 400, "", misspelled("delete")},
		{"HT-16 mixed case", "any.test", "PATCh", "/a", "", 400, "", misspelled("PATCh")},
		{"HT-16 PROPFIND", "ok.test", "PROPFIND", "/public/a", "", 403, "", refused("method_not_allowed", "", "ok.test", "PROPFIND", "/public/a")},
		{"HT-16 TRACE", "any.test", "TRACE", "/", "", 403, "", refused("method_not_allowed", "", "any.test", "TRACE", "/")},
		{"CN-21 path", "ok.test", "POST", "/secret", "body", 403, "", refused("path_not_allowed", "", "ok.test", "POST", "/secret")},
		{"NM-22 deny wins", "ok.test", "GET", "/public/secret", "", 403, "", refused("denied_by_rule", "no-secret", "ok.test", "GET", "/public/secret")},
		{"HT-13 dot segments", "ok.test", "GET", "/public/../secret", "", 403, "", refused("path_ambiguous", "", "ok.test", "GET", "/public/../secret")},
		{"HT-13 encoded slash", "ok.test", "GET", "/public/..%2fsecret", "", 403, "", refused("path_ambiguous", "", "ok.test", "GET", "/public/..%2Fsecret")},
		{"HT-13 escaped letter", "ok.test", "GET", "/%70ublic/x", "", 200, "GET /public/x ", admitted("ok", "ok.test", "GET", "/public/x")},
		{"plain", "ok.test", "GET", "/public/a?q=%41&x;y", "", 200, "GET /public/a?q=%41&x;y ", admitted("ok", "ok.test", "GET", "/public/a")},
		{"body", "ok.test", "POST", "/v1/charges", "a=1", 200, "POST /v1/charges a=1", admitted("ok", "ok.test", "POST", "/v1/charges")},
		{"other rule", "any.test", "DELETE", "/x%20y", "", 200, "DELETE /x%20y ", admitted("any", "any.test", "DELETE", "/x%20y")},
	}
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			o := &witness{}
			for _, h := range []string{"ok.test", "any.test", "evil.test", "notok.test"} {
				l.serveOrigin(h, w.h2, o)
			}
			client := w.client(l)
			for _, tt := range tests {
				t.Run(tt.name, func(t *testing.T) {
					req, err := http.NewRequestWithContext(t.Context(), tt.method, w.url(tt.host, "/"), strings.NewReader(tt.body))
					must(t, err)
					path, query, _ := strings.Cut(tt.path, "?")
					req.URL.Opaque, req.URL.RawQuery = "//"+tt.host+path, query
					resp, err := client.Do(req)
					must(t, err)
					body, err := io.ReadAll(resp.Body)
					must(t, err)
					resp.Body.Close()
					if resp.StatusCode != tt.status {
						t.Errorf("status %d, want %d: %s", resp.StatusCode, tt.status, body)
					}
					got := ""
					for _, s := range o.take() {
						got += s.Method + " " + s.URI + " " + s.Body
						if s.Host != tt.host {
							t.Errorf("the origin was asked for %q, want %q", s.Host, tt.host)
						}
					}
					if got != tt.saw {
						t.Errorf("the origin saw %q, want %q", got, tt.saw)
					}
					if n := len(l.dialled()); tt.saw == "" && n > 0 {
						t.Errorf("%d connections were opened for a refused request", n)
					}
					if diff := cmp.Diff(tt.records, linesOf(l.log.await(t, len(tt.records)))); diff != "" {
						t.Errorf("records (-want +got):\n%s", diff)
					}
					if tt.status >= 400 {
						checkDenial(t, resp, string(body), tt.records[0].Reason)
					} else if resp.Header.Get("Sallyport-Request") != "" || string(body) != "hello" {
						t.Errorf("an allowed request got %v %q", resp.Header, body)
					}
				})
			}
			if err := l.stop(); err != nil {
				t.Error(err)
			}
			// Allowed streams that ended leave nothing behind; so do denied ones.
			if rest := l.log.take(); len(rest) != 0 {
				t.Errorf("records after the end: %+v", linesOf(rest))
			}
		})
	}
}

// checkDenial holds an answer against what every refusal must have.
func checkDenial(t *testing.T, resp *http.Response, body, reason string) {
	t.Helper()
	h := resp.Header
	if got := h.Get("Sallyport-Reason"); got != reason {
		t.Errorf("Sallyport-Reason %q, want %q", got, reason)
	}
	id := h.Get("Sallyport-Request")
	if len(id) != 26 || !strings.Contains(body, "request "+id) || !strings.Contains(body, "Blocked by sandbox egress policy") {
		t.Errorf("request %q in the header, body %q", id, body)
	}
	if !strings.HasPrefix(h.Get("Proxy-Status"), "sallyport; error=") || h.Get("Cache-Control") != "no-store" {
		t.Errorf("header %v", h)
	}
}
