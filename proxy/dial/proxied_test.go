package dial_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"sallyport/proxy/dial"
	"sallyport/test/lab"
)

// proxyAddr is where the tests' corporate proxy listens.
var proxyAddr = netip.MustParseAddr("11.7.7.80")

// corpProxy is an HTTP proxy that wants a name and a password and remembers
// what it was asked for.
type corpProxy struct {
	site *lab.Site
	mu   sync.Mutex // guards all below
	asks []string
	auth []string
}

// startProxy starts one whose answer to a CONNECT is answer, or the real thing if empty.
func startProxy(t *testing.T, answer string) *corpProxy {
	t.Helper()
	p := &corpProxy{site: lab.NewSite("proxy", proxyAddr)}
	t.Cleanup(func() { _ = p.site.Close() })
	if err := p.site.ServeConn(3128, func(_ context.Context, c net.Conn) { p.serve(c, answer) }); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *corpProxy) serve(c net.Conn, answer string) {
	r := bufio.NewReader(c)
	req, err := http.ReadRequest(r)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.asks = append(p.asks, req.Method+" "+req.RequestURI)
	p.auth = append(p.auth, req.Header.Get("Proxy-Authorization"))
	p.mu.Unlock()
	if answer != "" {
		_, _ = io.WriteString(c, answer)
		return
	}
	req.Header.Set("Authorization", req.Header.Get("Proxy-Authorization"))
	if user, password, _ := req.BasicAuth(); req.Method != http.MethodConnect || user != "corp" || password != "pass:word" {
		_, _ = io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n")
		return
	}
	up, err := net.Dial("tcp", req.RequestURI)
	if err != nil {
		_, _ = io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
		return
	}
	defer up.Close()
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nVia: 1.1 corp\r\n\r\n")
	go func() { _, _ = io.Copy(up, r) }()
	_, _ = io.Copy(c, up)
}

func (p *corpProxy) asked() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.asks, "; ")
}

func through(user string) func(*dial.Config) {
	return func(c *dial.Config) {
		c.Proxy = &dial.UpstreamProxy{Addr: netip.AddrPortFrom(proxyAddr, 3128), User: user, Password: "pass:word"}
	}
}

// TestUpstreamProxy: requests and streams go through the proxy, which is told the
// vetted address and no name; TLS is with the origin.
func TestUpstreamProxy(t *testing.T) {
	p := startProxy(t, "")
	w := newWorld(t, ok, through("corp"))
	w.resolver.Set("ok.test", "A 11.7.7.7")
	s := w.site("ok.test", okAddr, nil)
	for _, u := range []string{"https://ok.test/a", "http://ok.test/b"} {
		resp, err := w.get(u)
		if err != nil {
			t.Fatalf("%s: %v", u, err)
		}
		body(t, resp)
	}
	if len(s.Seen()) != 2 || s.Seen()[0].SNI != "ok.test" {
		t.Errorf("site saw %+v", s.Seen())
	}
	if want := "CONNECT 11.7.7.7:443; CONNECT 11.7.7.7:80"; p.asked() != want {
		t.Errorf("the proxy was asked %q, want %q", p.asked(), want)
	}
}

// TestUpstreamProxyServerFirst: what the far end says at once is not lost, and the
// connection tells the address that was vetted, not the proxy's.
func TestUpstreamProxyServerFirst(t *testing.T) {
	startProxy(t, "")
	w := newWorld(t, okRaw, through("corp"))
	w.resolver.Set("ok.test", "A 11.7.7.7")
	greeter(t, "ok.test", okAddr)
	if got := w.reach("ok.test:5432"); got != "11.7.7.7" {
		t.Errorf("dialled %s", got)
	}
	c, err := w.Dial(t.Context(), w.tunnel("ok.test:5432"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if line, err := bufio.NewReader(c).ReadString('\n'); line != "hello\n" {
		t.Errorf("read %q, %v", line, err)
	}
}

// TestUpstreamProxyVets: an address that the policy refuses is never told to the
// proxy, which might reach it.
func TestUpstreamProxyVets(t *testing.T) {
	p := startProxy(t, "")
	w := newWorld(t, okRaw, through("corp"))
	for _, addr := range []string{"169.254.169.254", "10.0.0.5", "127.0.0.1"} {
		w.resolver.Reset()
		w.resolver.Set("ok.test", "A "+addr)
		w.again(through("corp")) // nothing cached
		_, err := w.Dial(t.Context(), w.tunnel("ok.test:5432"))
		if reason(err) == "" {
			t.Errorf("%s: %v, want a refusal", addr, err)
		}
	}
	if p.asked() != "" {
		t.Errorf("the proxy was asked %s", p.asked())
	}
}

// TestUpstreamProxyRefuses: whose fault it was is said; nothing is dialled beside
// the proxy.
func TestUpstreamProxyRefuses(t *testing.T) {
	tests := []struct {
		name, user, answer string
		want               string
	}{
		{"no credentials", "", "", "407"},
		{"other credentials", "eve", "", "407"},
		{"forbidden", "corp", "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "403 Forbidden"},
		{"no HTTP", "corp", "SSH-2.0-OpenSSH_9.2\r\n\r\n", "reading its answer"},
		{"it hangs up", "corp", "HTTP/1.1 200", "reading its answer"},
		{"a head without end", "corp", "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-A: b\r\n", 4<<10), "longer than"},
		{"good", "corp", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			startProxy(t, tt.answer)
			w := newWorld(t, okRaw, through(tt.user))
			w.resolver.Set("ok.test", "A 11.7.7.7")
			s := greeter(t, "ok.test", okAddr)
			c, err := w.Dial(t.Context(), w.tunnel("ok.test:5432"))
			if c != nil {
				_ = c.Close()
			}
			if got := fmt.Sprint(err); (err == nil) != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("Dial: %v, want an error with %q", err, tt.want)
			}
			if tt.want != "" {
				untouched(t, s)
			}
		})
	}
}
