package proxy_test

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/rules"
	"sallyport/rules/gate"
)

const (
	placeholder = "Bearer placeholder"
	realSecret  = "Bearer real"
)

// brokered has the lab treat one host as a broker does: what the policy grants
// there is put in, and a placeholder on its way elsewhere is told as leaked.
func (l *lab) brokered(host string) {
	l.finds = func(_ string, r *http.Request) []rules.Carry {
		if r.Header.Get("Authorization") == placeholder && r.Host != host {
			return []rules.Carry{{Credential: "api", State: rules.Leaked}}
		}
		return nil
	}
	l.inject = func(_ context.Context, p gate.Pass, r *http.Request) error {
		if p.Request().Endpoint.Host.String() == host && p.Request().Secure {
			r.Header.Set("Authorization", realSecret)
		}
		return nil
	}
}

// TestAnswersThatPointElsewhere is RD-02, RD-04 and RD-07: where an answer sends
// its client nobody goes by himself, and what the client then asks for is judged
// like any other request, without the credential of where it came from.
func TestAnswersThatPointElsewhere(t *testing.T) {
	tests := []struct {
		name, field, value string
		status             int
		next               string // the host that the client goes to
		plain              bool   // in the clear
		placeholder        bool   // and takes it along
		want               int    // what it is told there
		reason             string
	}{
		{"RD-02 to a host that is denied", "Location", "https://evil.test/take", 302, "evil.test", false, false, 403, "host_not_allowed"},
		{"RD-02 to a host that is denied, with the placeholder", "Location", "https://evil.test/take", 302, "evil.test", false, true, 403, "placeholder_leak"},
		{"RD-02 to another host, with the placeholder", "Location", "https://any.test/take", 307, "any.test", false, true, 403, "placeholder_leak"},
		{"RD-02 to another host", "Location", "https://any.test/take", 307, "any.test", false, false, 200, ""},
		{"RD-02 to plain HTTP", "Location", "http://ok.test/public/a", 301, "ok.test", true, false, 200, ""},
		{"RD-04 realm", "Www-Authenticate", `Bearer realm="https://evil.test/token",service="x"`, 401, "evil.test", false, false, 403, "host_not_allowed"},
		{"RD-04 link", "Link", `<https://evil.test/token>; rel="token_endpoint"`, 200, "evil.test", false, false, 403, "host_not_allowed"},
		{"RD-07 metadata", "Location", "http://169.254.169.254/latest/", 302, "169.254.169.254", true, false, 403, "address_not_allowed"},
		{"RD-07 loopback", "Location", "http://localhost/", 302, "localhost", true, false, 403, "host_not_allowed"},
		{"RD-07 file", "Location", "file:///etc/passwd", 302, "", true, false, 0, ""},
	}
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			here, there := &witness{}, &witness{}
			l.serveOrigin("ok.test", w.h2, here)
			for _, h := range []string{"evil.test", "any.test", "169.254.169.254", "localhost"} {
				l.serveOrigin(h, w.h2, there)
			}
			l.brokered("ok.test")
			for _, tt := range tests {
				t.Run(tt.name, func(t *testing.T) {
					here.next = func(rw http.ResponseWriter, r *http.Request) {
						if r.URL.Path == "/v1/away" {
							rw.Header().Set(tt.field, tt.value)
							rw.WriteHeader(tt.status)
						}
					}
					resp := l.visit(t, w, "ok.test", "/v1/away", placeholder)
					if resp.StatusCode != tt.status || resp.Header.Get(tt.field) != tt.value {
						t.Errorf("answered %d, %s %q", resp.StatusCode, tt.field, resp.Header.Get(tt.field))
					}
					saw := here.take()
					if len(saw) != 1 || w.secure && saw[0].Header.Get("Authorization") != realSecret {
						t.Errorf("the origin saw %+v", saw)
					}
					if n := len(there.take()); n != 0 || len(l.dialled()) > 1 {
						t.Errorf("somebody followed, %d times", n)
					}
					if got := l.log.await(t, 2); len(got) != 2 || got[1].Status != tt.status {
						t.Errorf("records %+v", linesOf(got))
					}
					if tt.next != "" {
						l.follow(t, w, tt.next, tt.plain, tt.placeholder, tt.want, tt.reason, here, there)
					}
				})
			}
		})
	}
}

// follow does what the client that was sent elsewhere does.
func (l *lab) follow(t *testing.T, w way, host string, plain, carries bool, want int, reason string, origins ...*witness) {
	t.Helper()
	if plain && w.secure {
		w = w.inTheClear()
	}
	auth, path := "", "/public/take"
	if carries {
		auth = placeholder
	}
	resp := l.visit(t, w, host, path, auth)
	if resp.StatusCode != want || resp.Header.Get("Sallyport-Reason") != reason {
		t.Errorf("then: %d %v", resp.StatusCode, resp.Header)
	}
	var saw []seen
	for _, o := range origins {
		saw = append(saw, o.take()...)
	}
	n := 2 // admit and done
	if want != 200 {
		n = 1
		if len(saw)+len(l.dialled()) != 0 {
			t.Errorf("refused, and an origin saw %+v", saw)
		}
	} else if len(saw) != 1 || saw[0].Header.Get("Authorization") != "" {
		t.Errorf("the next origin saw %+v, want one request without a credential", saw)
	}
	l.dialled()
	got := l.log.await(t, n)
	var reasons []string
	for _, r := range got {
		if r.Kind != "credential" {
			reasons = append(reasons, r.Reason)
		}
	}
	wantReasons := []string{"allowed", "allowed"}
	if want != 200 {
		wantReasons = []string{reason}
	}
	if diff := cmp.Diff(wantReasons, reasons); diff != "" {
		t.Errorf("reasons of the records (-want +got):\n%s", diff)
	}
}

// inTheClear is the way by the same door without TLS.
func (w way) inTheClear() way {
	w.name, w.secure, w.h2, w.client = w.name+", in the clear", false, false, tlsClient(w.open, false)
	return w
}

// visit sends one request and reads the whole answer.
func (l *lab) visit(t *testing.T, w way, host, path, auth string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url(host, path), nil)
	must(t, err)
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	c := w.client(l)
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := c.Do(req)
	must(t, err)
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	must(t, err)
	return resp
}
