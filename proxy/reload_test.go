package proxy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"sallyport/audit"
)

// withoutAny is the lab's policy without the host any.test.
func withoutAny() string { return strings.ReplaceAll(labPolicy, "any.test", "other.test") }

// TestReloadWebSockets is NW-14: the one that is denied by now is cut within a
// second, the one beside it goes on.
func TestReloadWebSockets(t *testing.T) {
	for _, w := range ways() {
		if w.h2 {
			continue // a client that offers h2 opens another connection for it
		}
		t.Run(w.name, bubble(func(t *testing.T) {
			l := newPipeLab(t)
			echo := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				c, err := websocket.Accept(rw, r, nil)
				if err != nil {
					return
				}
				defer c.CloseNow()
				for {
					kind, b, err := c.Read(r.Context())
					if err != nil || c.Write(r.Context(), kind, b) != nil {
						return
					}
				}
			})
			var open []*websocket.Conn
			for _, to := range []string{"any.test", "ok.test"} {
				l.serveOrigin(to, false, echo)
				c, _, err := websocket.Dial(t.Context(), w.url(to, "/v1/ws"), &websocket.DialOptions{HTTPClient: w.client(l)})
				must(t, err)
				defer c.CloseNow()
				says(t, c, "before")
				open = append(open, c)
			}
			l.setPolicy(withoutAny())
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, _, err := open[0].Read(ctx); err == nil || ctx.Err() != nil {
				t.Errorf("the denied one is open after a second: %v", err)
			}
			says(t, open[1], "after")
			for _, r := range l.log.await(t, 3) {
				if r.Host != "any.test" && strings.Contains(r.Error, "change of policy") {
					t.Errorf("record %+v", r)
				}
			}
		}))
	}
}

func says(t *testing.T, c *websocket.Conn, text string) {
	t.Helper()
	must(t, c.Write(t.Context(), websocket.MessageText, []byte(text)))
	_, got, err := c.Read(t.Context())
	must(t, err)
	if string(got) != text {
		t.Fatalf("echo %q, want %q", got, text)
	}
}

// TestReloadRequestsUnderWay: of two downloads, over h1 and h2, the one from a
// host that is denied by now is cut; the other ends as it would have.
func TestReloadRequestsUnderWay(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, bubble(func(t *testing.T) {
			l := newPipeLab(t)
			goOn := make(chan struct{})
			half := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(rw, "one")
				_ = http.NewResponseController(rw).Flush()
				select {
				case <-goOn:
					_, _ = io.WriteString(rw, " two")
				case <-r.Context().Done():
				}
			})
			var bodies []io.ReadCloser
			for _, to := range []string{"any.test", "ok.test"} {
				l.serveOrigin(to, true, half)
				resp, err := w.client(l).Get(w.url(to, "/public/x"))
				must(t, err)
				defer resp.Body.Close()
				if want := 1 + map[bool]int{true: 1}[w.h2]; resp.ProtoMajor != want {
					t.Fatalf("HTTP/%d, want %d", resp.ProtoMajor, want)
				}
				bodies = append(bodies, resp.Body)
			}
			l.setPolicy(withoutAny())
			cut := make(chan error, 1)
			go func() {
				_, err := io.ReadAll(bodies[0])
				cut <- err
			}()
			select {
			case err := <-cut:
				if err == nil {
					t.Error("the denied download ended as if it were whole")
				}
			case <-time.After(time.Second):
				t.Error("the denied download goes on after a second")
			}
			close(goOn)
			if got, err := io.ReadAll(bodies[1]); err != nil || string(got) != "one two" {
				t.Errorf("the allowed one: %q, %v", got, err)
			}
		}))
	}
}

// closing is a connection that tells when its user has given it up.
type closing struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *closing) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// TestReloadIdleConnections: a client's connection on which nothing is under way is
// judged again as well, h1 and h2; one whose host is still allowed serves on.
func TestReloadIdleConnections(t *testing.T) {
	for _, w := range ways() {
		if w.open == nil {
			continue // the proxy's own connection is for any host: it has nothing to be judged by
		}
		t.Run(w.name, bubble(func(t *testing.T) {
			l := newPipeLab(t)
			var open []*closing
			var clients []*http.Client
			for _, to := range []string{"any.test", "ok.test"} {
				l.serveOrigin(to, true, &witness{})
				tr := &http.Transport{
					TLSClientConfig: &tls.Config{RootCAs: l.roots}, ForceAttemptHTTP2: w.h2,
					DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
						c, err := w.open(l, ctx, addr)
						if err != nil {
							return nil, err
						}
						kept := &closing{Conn: c, closed: make(chan struct{})}
						open = append(open, kept)
						return kept, nil
					},
				}
				t.Cleanup(tr.CloseIdleConnections)
				clients = append(clients, &http.Client{Transport: tr})
				fetch(t, clients[len(clients)-1], w.url(to, "/public/x"), false)
			}
			l.setPolicy(withoutAny())
			select {
			case <-open[0].closed:
			case <-time.After(time.Second):
				t.Error("the idle connection to a denied host is open after a second")
			}
			fetch(t, clients[1], w.url("ok.test", "/public/y"), true)
		}))
	}
}

// fetch wants a 200, over a connection that was there before or not.
func fetch(t *testing.T, c *http.Client, url string, reused bool) {
	t.Helper()
	var was bool
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { was = i.Reused }})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	must(t, err)
	resp, err := c.Do(req)
	must(t, err)
	_, err = bufio.NewReader(resp.Body).WriteTo(io.Discard)
	must(t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK || was != reused {
		t.Errorf("GET %s: %d over a connection with reused = %v, want 200, %v", url, resp.StatusCode, was, reused)
	}
}

// TestReloadWhileItIsRecorded is NW-14 for what was decided before the policy changed, and
// recorded after all that was open had been judged again: it is not carried on.
func TestReloadWhileItIsRecorded(t *testing.T) {
	change := func(l *lab, policy string) {
		l.log.admits = sync.OnceFunc(func() {
			l.setPolicy(policy)
			for range 4 { // two of three that were taken are one server's, which is done with the first
				l.changed <- struct{}{}
			}
		})
	}
	wantCut := func(t *testing.T, l *lab) {
		t.Helper()
		got := l.log.await(t, 2)
		if len(got) < 2 || got[0].Kind != audit.Admit || got[1].Kind != audit.Done || !strings.Contains(got[1].Error, "change of policy") {
			t.Errorf("records %+v: %q", linesOf(got), errorsOf(got))
		}
		wantNothingDialled(t, l)
	}
	for name, open := range opens() {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.serveRaw(func(c net.Conn) { _, _ = io.WriteString(c, "hello") })
			change(l, strings.ReplaceAll(labPolicy, "raw.test", "other.test"))
			if c, err := open(l, t.Context(), "raw.test:5432"); err == nil {
				defer c.Close()
				if got := readAll(t, c); got != "" {
					t.Errorf("the other end says %q", got)
				}
			}
			wantCut(t, l)
		})
	}
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			l.serveOrigin("any.test", w.h2, &witness{})
			change(l, withoutAny())
			if resp, err := w.client(l).Get(w.url("any.test", "/")); err == nil {
				resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					t.Error("it was answered")
				}
			}
			wantCut(t, l)
		})
	}
}
