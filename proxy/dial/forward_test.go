package dial_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"sallyport/proxy/dial"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/test/lab"
)

func body(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("reading: %v", err)
	}
	_ = resp.Body.Close()
	return string(b)
}

func TestForwardRefusesWithoutPass(t *testing.T) {
	w := newWorld(t, append([]rules.Rule{allow("raw", raw, "raw.test")}, ok...), nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	w.resolver.Set("raw.test", "A 11.7.7.7")
	s := w.site("ok.test", okAddr, nil)
	done := w.fetch("GET", "https://ok.test/")
	if err := done.Done(t.Context(), gate.Outcome{}); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		pass   gate.Pass
		change func(*http.Request)
	}{
		{"no pass", gate.Pass{}, nil},
		{"a pass that is done", done, nil},
		{"a stream's pass", w.tunnel("raw.test:443"), nil},
		{"another method", w.fetch("GET", "https://ok.test/"), func(r *http.Request) { r.Method = "POST" }},
	}
	for _, tt := range tests {
		closed := &closer{Reader: strings.NewReader("x")}
		_, err := w.forward(tt.pass, func(r *http.Request) {
			r.Method = "GET"
			r.Body = closed
			if tt.change != nil {
				tt.change(r)
			}
		})
		if !errors.Is(err, dial.ErrNoPass) {
			t.Errorf("%s: %v, want ErrNoPass", tt.name, err)
		}
		if !closed.closed {
			t.Errorf("%s: the body was left open", tt.name)
		}
	}
	untouched(t, s)
	if q := w.resolver.Queries(); len(q) > 0 {
		t.Errorf("asked %v", q)
	}
}

type closer struct {
	io.Reader
	closed bool
}

func (c *closer) Close() error { c.closed = true; return nil }

// TestForwardSendsWhatWasAdmitted: place, path and query are the pass's,
// whatever the request says (TestMain's forward sets another URL and Host).
func TestForwardSendsWhatWasAdmitted(t *testing.T) {
	w := newWorld(t, ok, nil)
	s := w.site("ok.test", okAddr, nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	for _, target := range []string{
		"/", "/v1/charges", "/a%2Fb", "/a%20b", "/a+b;c=d", "/%7Buser%7D", "//evil.test/x", "/a//b", "/.well-known/x", "/a%3Fb",
		"/x?q=%2F&r=a+b", "/x?a=1;b=2", "/x?q=http://evil.test/",
	} {
		for _, scheme := range []string{"http", "https"} {
			s.Reset()
			if _, err := w.get(scheme + "://ok.test" + target); err != nil {
				t.Errorf("%s %s: %v", scheme, target, err)
				continue
			}
			v := s.Seen()[0]
			if v.URI != target || v.Host != "ok.test" || v.Secure != (scheme == "https") {
				t.Errorf("%s %s: site saw %s of %s", scheme, target, v.URI, v.Host)
			}
		}
	}
	// What the canonical form escapes, or net/url would, is sent as it was judged.
	for _, p := range []string{`/a{b}`, `/a|b`, `/"q"`, `/a^b`, "/a'b", "/[1]", "/a%5Bb", "/!$&'()*+,;=:@", "/%21%24%26", "/%7e"} {
		s.Reset()
		pass, err := w.gate.Admit(t.Context(), rules.Request{
			Question: rules.Fetch, Cell: "c1", Secure: true, Method: "GET",
			Endpoint: endpoint(t, "ok.test"), Path: path(t, p), Query: "x=1",
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.forward(pass, nil); err != nil {
			t.Errorf("%s: %v", p, err)
			continue
		}
		if v := s.Seen()[0]; v.URI != path(t, p).String()+"?x=1" {
			t.Errorf("%s: site saw %s", p, v.URI)
		}
	}
}

func TestPortsInTheHost(t *testing.T) {
	w := newWorld(t, ok, nil)
	s := lab.NewSite("ok.test", okAddr)
	t.Cleanup(func() { _ = s.Close() })
	h := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	if err := s.ServeTLS(w.ca, 8443, h); err != nil {
		t.Fatal(err)
	}
	w.resolver.Set("ok.test", "A 11.7.7.7")
	if _, err := w.get("https://ok.test:8443/"); err != nil {
		t.Fatal(err)
	}
	if v := s.Seen()[0]; v.Host != "ok.test:8443" || v.SNI != "ok.test" {
		t.Errorf("site saw host %q, SNI %q", v.Host, v.SNI)
	}
}

func TestHTTP2(t *testing.T) {
	w := newWorld(t, ok, nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	s := w.site("ok.test", okAddr, nil)
	resp, err := w.get("https://ok.test/")
	if err != nil {
		t.Fatal(err)
	}
	if resp.Proto != "HTTP/2.0" || s.Seen()[0].Proto != "HTTP/2.0" {
		t.Errorf("protocol %s, site saw %s", resp.Proto, s.Seen()[0].Proto)
	}
	resp, err = w.get("http://ok.test/")
	if err != nil {
		t.Fatal(err)
	}
	if resp.Proto != "HTTP/1.1" {
		t.Errorf("plain: protocol %s", resp.Proto)
	}
}

// TestDialledAddressIsTold by net/http/httptrace, new and reused, h1 and h2.
func TestDialledAddressIsTold(t *testing.T) {
	w := newWorld(t, ok, nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	w.site("ok.test", okAddr, nil)
	for _, u := range []string{"http://ok.test/", "https://ok.test/"} {
		for i := range 2 {
			var got httptrace.GotConnInfo
			resp, err := w.do("GET", u, func(r *http.Request) {
				*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
					GotConn: func(i httptrace.GotConnInfo) { got = i },
				}))
			})
			if err != nil {
				t.Fatal(err)
			}
			body(t, resp)
			if got.Conn == nil || !strings.HasPrefix(got.Conn.RemoteAddr().String(), "11.7.7.7:") || got.Reused != (i > 0) {
				t.Errorf("%s, request %d: told %+v", u, i, got)
			}
		}
	}
}

// TestRedirectsAreNotFollowed: RD-01.
func TestRedirectsAreNotFollowed(t *testing.T) {
	w := newWorld(t, append([]rules.Rule{allow("evil", nil, "evil.test")}, ok...), nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	w.resolver.Set("evil.test", "A 11.7.7.66")
	evil := w.site("evil.test", evilAddr, nil)
	var code int
	var to string
	s := w.site("ok.test", okAddr, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Location", to)
		rw.WriteHeader(code)
	})
	n := 0
	for _, code = range []int{301, 302, 303, 307, 308} {
		for _, to = range []string{"https://evil.test/", "//evil.test/", "/elsewhere", "http://169.254.169.254/"} {
			n++
			resp, err := w.get("https://ok.test/")
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != code || resp.Header.Get("Location") != to {
				t.Errorf("%d to %s: got %d to %s", code, to, resp.StatusCode, resp.Header.Get("Location"))
			}
		}
	}
	if len(s.Seen()) != n {
		t.Errorf("site saw %d requests, want %d", len(s.Seen()), n)
	}
	untouched(t, evil)
}

func TestEnvironmentIsNotAsked(t *testing.T) {
	w := newWorld(t, ok, nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	s, evil := w.site("ok.test", okAddr, nil), w.site("proxy", evilAddr, nil)
	for _, v := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"} {
		t.Setenv(v, "http://11.7.7.66:80")
	}
	for _, u := range []string{"http://ok.test/", "https://ok.test/"} {
		if _, err := w.get(u); err != nil {
			t.Error(err)
		}
	}
	if len(s.Seen()) != 2 {
		t.Errorf("site saw %d requests", len(s.Seen()))
	}
	untouched(t, evil)
}

// TestBodiesAreNotTouched: no compression is asked for or undone.
func TestBodiesAreNotTouched(t *testing.T) {
	w := newWorld(t, ok, nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte("hello"))
	_ = z.Close()
	s := w.site("ok.test", okAddr, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Encoding", "gzip")
		_, _ = rw.Write(packed.Bytes())
	})
	resp, err := w.get("https://ok.test/")
	if err != nil {
		t.Fatal(err)
	}
	if got := body(t, resp); got != packed.String() || resp.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("got %d octets, want %d", len(got), packed.Len())
	}
	if got := s.Seen()[0].Header.Get("Accept-Encoding"); got != "" {
		t.Errorf("asked for %q", got)
	}
}

func TestTrailersBothWays(t *testing.T) {
	w := newWorld(t, ok, nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	got := make(chan string, 2)
	w.site("ok.test", okAddr, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Trailer", "X-Down")
		_, _ = io.Copy(io.Discard, r.Body)
		got <- r.Trailer.Get("X-Up")
		_, _ = rw.Write([]byte("x"))
		rw.Header().Set("X-Down", "down")
	})
	for _, u := range []string{"http://ok.test/", "https://ok.test/"} {
		resp, err := w.do("POST", u, func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader("body")), -1
			r.Trailer = http.Header{"X-Up": {"up"}}
		})
		if err != nil {
			t.Fatal(err)
		}
		body(t, resp)
		if up := <-got; up != "up" || resp.Trailer.Get("X-Down") != "down" {
			t.Errorf("%s: up %q, down %q", u, up, resp.Trailer.Get("X-Down"))
		}
	}
}

// TestEventsAreNotHeldBack: a body is read as it comes.
func TestEventsAreNotHeldBack(t *testing.T) {
	w := newWorld(t, ok, nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	next := make(chan struct{})
	w.site("ok.test", okAddr, func(rw http.ResponseWriter, r *http.Request) {
		for i := range 3 {
			_, _ = fmt.Fprintf(rw, "data: %d\n", i)
			_ = http.NewResponseController(rw).Flush()
			<-next // not before the event was read
		}
	})
	for _, u := range []string{"http://ok.test/", "https://ok.test/"} {
		resp, err := w.get(u)
		if err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(resp.Body)
		for i := range 3 {
			line, err := r.ReadString('\n')
			if err != nil || line != fmt.Sprintf("data: %d\n", i) {
				t.Fatalf("%s: event %d: %q, %v", u, i, line, err)
			}
			next <- struct{}{}
		}
	}
}

// TestExpectContinue: a body that upstream does not want is not sent.
func TestExpectContinue(t *testing.T) {
	w := newWorld(t, ok, nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	w.site("ok.test", okAddr, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			rw.WriteHeader(http.StatusExpectationFailed)
			return
		}
		_, _ = io.Copy(rw, r.Body)
	})
	for _, scheme := range []string{"http", "https"} {
		read := &countReader{Reader: strings.NewReader(strings.Repeat("x", 1<<20))}
		send := func(p string, b io.Reader) *http.Response {
			resp, err := w.do("POST", scheme+"://ok.test"+p, func(r *http.Request) {
				r.Header.Set("Expect", "100-continue")
				r.Body, r.ContentLength = io.NopCloser(b), 1<<20
			})
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		if resp := send("/no", read); resp.StatusCode != 417 || read.n > 0 {
			t.Errorf("%s: status %d, %d octets of the body read", scheme, resp.StatusCode, read.n)
		}
		if got := body(t, send("/yes", strings.NewReader(strings.Repeat("y", 1<<20)))); len(got) != 1<<20 {
			t.Errorf("%s: %d octets came back", scheme, len(got))
		}
	}
}

type countReader struct {
	io.Reader
	n int
}

func (c *countReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

// TestWebSocket: over HTTP/1.1 also to a server that speaks h2, and nothing
// but WebSocket (HW-10).
func TestWebSocket(t *testing.T) {
	w := newWorld(t, ok, nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	s := w.site("ok.test", okAddr, func(rw http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(rw, r, nil)
		if err != nil {
			return
		}
		kind, data, err := c.Read(r.Context())
		if err == nil {
			_ = c.Write(r.Context(), kind, data)
		}
		_ = c.Close(websocket.StatusNormalClosure, "")
	})
	if resp, err := w.get("https://ok.test/h2-first"); err != nil || resp.Proto != "HTTP/2.0" {
		t.Fatalf("warming up: %v", err)
	}
	for _, u := range []string{"http://ok.test/ws", "https://ok.test/ws"} {
		rt := roundTrip(func(r *http.Request) (*http.Response, error) {
			return w.do("GET", u, func(out *http.Request) { out.Header = r.Header })
		})
		c, _, err := websocket.Dial(t.Context(), u, &websocket.DialOptions{HTTPClient: &http.Client{Transport: rt}})
		if err != nil {
			t.Fatalf("%s: %v", u, err)
		}
		if err := c.Write(t.Context(), websocket.MessageText, []byte("ping")); err != nil {
			t.Fatal(err)
		}
		if _, data, err := c.Read(t.Context()); err != nil || string(data) != "ping" {
			t.Errorf("%s: %q, %v", u, data, err)
		}
		_ = c.CloseNow()
	}
	s.Reset()
	for _, token := range []string{"h2c", "TLS/1.0", "connect-udp", "websocket, h2c", ""} {
		_, err := w.do("GET", "http://ok.test/ws", func(r *http.Request) {
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", token)
		})
		if status(err) != "http_request_error" {
			t.Errorf("upgrade to %q: %v", token, err)
		}
	}
	if v := s.Seen(); len(v) > 0 {
		t.Errorf("site saw %v", v)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestClientGone(t *testing.T) {
	w := newWorld(t, ok, nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	came := make(chan struct{})
	w.site("ok.test", okAddr, func(_ http.ResponseWriter, r *http.Request) {
		close(came)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-came; cancel() }()
	p := w.fetch("GET", "https://ok.test/")
	req, err := http.NewRequestWithContext(ctx, "GET", "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Forward(ctx, p, req); !errors.Is(err, context.Canceled) {
		t.Errorf("Forward = %v, want cancelled", err)
	}
}

func TestLoadRoots(t *testing.T) {
	if _, err := dial.LoadRoots("/nonexistent.pem"); err == nil {
		t.Error("a file that is not there was accepted")
	}
	if _, err := dial.LoadRoots("/dev/null"); err == nil {
		t.Error("a file without certificates was accepted")
	}
	if roots, err := dial.LoadRoots(); err != nil || roots == nil {
		t.Errorf("the system's alone: %v", err)
	}
}
