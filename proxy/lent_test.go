package proxy_test

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestExchangesAreApart: the memory of an exchange is lent to the next (ADR-0056). No
// origin sees a field, a query or a body of another request, also after one that was
// refused, that had a body, or that broke off.
func TestExchangesAreApart(t *testing.T) {
	const clients, each = 4, 24
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			l.serveOrigin("any.test", w.h2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if r.URL.RawQuery == "broken" {
					panic(http.ErrAbortHandler)
				}
				_, _ = io.WriteString(rw, onlyOf(r))
			}))
			l.serveOrigin("ok.test", w.h2, http.NotFoundHandler())
			var all sync.WaitGroup
			for n := range clients {
				all.Go(func() {
					c := w.client(l)
					for i := range each {
						sendApart(t, w, c, fmt.Sprintf("%d-%d", n, i), i)
					}
				})
			}
			all.Wait()
		})
	}
}

// sendApart sends one request of its own kind: it wants to be told of itself alone.
func sendApart(t *testing.T, w way, c *http.Client, id string, kind int) {
	host, path, method, body := "any.test", "/v1/x?"+id, http.MethodGet, ""
	switch kind % 4 {
	case 1:
		method, body = http.MethodPost, "body "+id
	case 2:
		host, path = "ok.test", "/public/secret" // a rule denies it
	case 3:
		path = "/v1/x?" + cmp.Or(map[bool]string{true: "broken"}[kind%8 == 3], id)
	}
	req, err := http.NewRequest(method, w.url(host, path), strings.NewReader(body))
	must(t, err)
	req.Header.Set("X-Only-"+id, id)
	want := onlyOf(req) + body
	resp, err := c.Do(req)
	if err != nil {
		t.Errorf("%s: %v", id, err)
		return
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	switch {
	case host == "ok.test" && resp.StatusCode != http.StatusForbidden, strings.HasSuffix(path, "broken") && resp.StatusCode != http.StatusBadGateway:
		t.Errorf("twin: %s: %s", id, resp.Status)
	case host == "any.test" && resp.StatusCode == http.StatusOK && (err != nil || string(got) != want):
		t.Errorf("%s: the origin saw %q, want %q; %v", id, got, want, err)
	}
}

// onlyOf tells query, fields and body of a request.
func onlyOf(r *http.Request) string {
	var names []string
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Only-") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	text := r.URL.RawQuery + " " + strings.Join(names, " ") + " "
	if r.URL.Host == "" { // at the origin
		body, err := io.ReadAll(r.Body)
		text += string(body)
		if err != nil {
			text += err.Error()
		}
	}
	return text
}
