package dial_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/proxy/dial"
	"sallyport/test/lab"
)

// script is a server of HTTP/1.1 in the clear that says what a test has it say.
type script struct {
	conns atomic.Int32
	l     net.Listener
	done  chan struct{}
}

// newScript has talk serve each connection; n counts them from 1.
func newScript(t *testing.T, talk func(c net.Conn, br *bufio.Reader, n int)) *script {
	t.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(okAddr, 80)))
	if err != nil {
		t.Fatal(err)
	}
	s := &script{l: l, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n := int(s.conns.Add(1))
			go func() {
				defer c.Close()
				talk(c, bufio.NewReader(c), n)
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-s.done
	})
	return s
}

const short = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// reply reads requests and answers each with text.
func reply(c net.Conn, br *bufio.Reader, texts ...string) {
	for _, text := range texts {
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		if _, err := io.WriteString(c, text); err != nil {
			return
		}
	}
}

func plainWorld(t *testing.T, change func(*dial.Config)) *world {
	w := newWorld(t, ok, change)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	return w
}

// eventually waits for something that another goroutine does.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// arrived waits until what was sent to the other end of a connection, or its end, is
// there to be read: the kernel may take its time, on a loopback too.
func arrived(t *testing.T, to net.Addr) {
	t.Helper()
	at := to.(*net.TCPAddr).AddrPort()
	own := netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	eventually(t, "octets on their way", func() bool {
		return socket(t, func(s lab.Socket) bool {
			return s.Own == own && (s.State == unix.BPF_TCP_CLOSE_WAIT || s.Unread > 0)
		})
	})
}

// TestWiresAreUsedAgain: after answers of every framing, and not after those that
// end the connection or leave something behind.
func TestWiresAreUsedAgain(t *testing.T) {
	tests := []struct {
		name, first string
		conns       int32
	}{
		{"length", short, 1},
		{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 1},
		{"no body", "HTTP/1.1 204 No Content\r\n\r\n", 1},
		{"closing", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", 2},
		{"HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 2},
		{"more than was announced", short + "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := plainWorld(t, nil)
			s := newScript(t, func(c net.Conn, br *bufio.Reader, _ int) { reply(c, br, tt.first, short) })
			for i := range 2 {
				resp, err := w.get("http://ok.test/")
				if err != nil {
					t.Fatal(err)
				}
				if got := body(t, resp); got != "ok" && (got != "" || tt.name != "no body" || i > 0) {
					t.Errorf("answer %d: %q", i+1, got)
				}
			}
			if got := s.conns.Load(); got != tt.conns {
				t.Errorf("%d connections, want %d", got, tt.conns)
			}
		})
	}
}

// TestClosedWires: a request that may be sent twice is, and one that may not is
// not lost on a connection that is known to be closed.
func TestClosedWires(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		t.Run(method, func(t *testing.T) {
			w := plainWorld(t, nil)
			closed := make(chan net.Addr, 1)
			newScript(t, func(c net.Conn, br *bufio.Reader, n int) {
				reply(c, br, short)
				if n == 1 {
					_ = c.Close()
					closed <- c.RemoteAddr()
				}
			})
			for i := range 2 {
				resp, err := w.do(method, "http://ok.test/", nil)
				if err != nil {
					t.Fatalf("request %d: %v", i+1, err)
				}
				if got := body(t, resp); got != "ok" {
					t.Errorf("request %d: %q", i+1, got)
				}
				if i == 0 {
					arrived(t, <-closed)
				}
				if method == "POST" {
					w.Idled() // what idled for less is not asked
				}
			}
		})
	}
}

// TestUnaskedAnswers: what comes on an idle connection is no answer to the next
// request.
func TestUnaskedAnswers(t *testing.T) {
	w := plainWorld(t, nil)
	idle, said := make(chan struct{}), make(chan net.Addr)
	s := newScript(t, func(c net.Conn, br *bufio.Reader, n int) {
		reply(c, br, short)
		if n == 1 {
			<-idle
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
			said <- c.RemoteAddr()
			_, _ = br.ReadByte()
		}
	})
	for i := range 2 {
		resp, err := w.get("http://ok.test/")
		if err != nil {
			t.Fatal(err)
		}
		if got := body(t, resp); got != "ok" {
			t.Errorf("got %q", got)
		}
		if i == 0 {
			close(idle)
			arrived(t, <-said)
			w.Idled() // what idled for less is not asked
		}
	}
	if got := s.conns.Load(); got != 2 {
		t.Errorf("%d connections, want 2", got)
	}
}

// TestEarlyAnswer: an answer that comes before the end of a body is handed on,
// and the connection is not used again.
func TestEarlyAnswer(t *testing.T) {
	w := plainWorld(t, nil)
	s := newScript(t, func(c net.Conn, br *bufio.Reader, _ int) {
		if _, err := http.ReadRequest(br); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
			_, _ = io.Copy(io.Discard, br)
		}
	})
	pr, pw := io.Pipe()
	defer pw.Close()
	go func() { _, _ = io.WriteString(pw, "begin") }()
	resp, err := w.do("POST", "http://ok.test/", func(r *http.Request) { r.Body, r.ContentLength = pr, -1 })
	if err != nil || resp.StatusCode != 413 {
		t.Fatalf("%v, %v", resp, err)
	}
	if got := body(t, resp); got != "no" {
		t.Errorf("got %q", got)
	}
	if _, err := pw.Write([]byte("more")); err == nil {
		t.Error("the body was left open")
	}
	eventually(t, "a second connection", func() bool {
		resp, err := w.get("http://ok.test/")
		if err == nil {
			body(t, resp)
		}
		return s.conns.Load() == 2
	})
}

// TestBodiesThatFail: what upstream got of them is not whole, and the error is the
// body's.
func TestBodiesThatFail(t *testing.T) {
	cause := errors.New("on cue")
	for _, length := range []int64{10, 100 << 10, -1} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			w := plainWorld(t, nil)
			whole := make(chan bool, 1)
			newScript(t, func(_ net.Conn, br *bufio.Reader, _ int) {
				req, err := http.ReadRequest(br)
				if err == nil {
					_, err = io.Copy(io.Discard, req.Body)
				}
				whole <- err == nil
			})
			_, err := w.do("POST", "http://ok.test/", func(r *http.Request) {
				r.Body, r.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("half"), failing{cause})), length
			})
			if !errors.Is(err, cause) {
				t.Errorf("length %d: %v, want the body's own", length, err)
			}
			if length == 10 {
				// It is read before anything is sent, and why it ended is all that is said.
				if strings.Contains(err.Error(), "shorter") {
					t.Errorf("length %d: %v", length, err)
				}
				return
			}
			if <-whole {
				t.Errorf("length %d: upstream took half of it for the whole", length)
			}
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestInterimAnswers: they are told, and not without end.
func TestInterimAnswers(t *testing.T) {
	for n, want := range map[int]bool{3: true, 1000: false} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := plainWorld(t, nil)
			newScript(t, func(c net.Conn, br *bufio.Reader, _ int) {
				reply(c, br, strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", n)+short)
			})
			told := 0
			resp, err := w.do("GET", "http://ok.test/", func(r *http.Request) {
				*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
					Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
						if code == 103 && h.Get("Link") == "</a>" {
							told++
						}
						return nil
					},
				}))
			})
			if (err == nil) != want || want && (told != n || body(t, resp) != "ok") {
				t.Errorf("%d interim answers: %d told, %v", n, told, err)
			}
		})
	}
}

// TestSilentUpstream: neither a server that says nothing nor one that stops in
// the middle of a head is waited for for ever; a body may take as long as it likes.
func TestSilentUpstream(t *testing.T) {
	const patience = 200 * time.Millisecond
	w := plainWorld(t, func(c *dial.Config) { c.Timeouts.Response = patience })
	begin := "HTTP/1.1 200 OK\r\n"
	newScript(t, func(c net.Conn, br *bufio.Reader, n int) {
		switch n {
		case 1:
			reply(c, br, "")
			_, _ = br.ReadByte()
		case 2:
			reply(c, br, begin)
			_, _ = br.ReadByte()
		default:
			reply(c, br, begin+"Content-Length: 2\r\n\r\no")
			time.Sleep(2 * patience) // longer than an answer may take
			_, _ = io.WriteString(c, "k")
		}
	})
	for range 2 {
		if _, err := w.get("http://ok.test/"); status(err) != "http_response_timeout" {
			t.Errorf("got %v (%s)", err, status(err))
		}
	}
	resp, err := w.get("http://ok.test/")
	for range 50 { // on a machine that does much else the head may be late as well
		if status(err) == "http_response_timeout" {
			resp, err = w.get("http://ok.test/")
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := body(t, resp); got != "ok" {
		t.Errorf("got %q", got)
	}
}

// TestGoneClientFreesTheWire: in the middle of a body, too.
func TestGoneClientFreesTheWire(t *testing.T) {
	w := plainWorld(t, nil)
	gone := make(chan error, 1)
	newScript(t, func(c net.Conn, br *bufio.Reader, _ int) {
		reply(c, br, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
		_, err := br.ReadByte()
		gone <- err
	})
	ctx, cancel := context.WithCancel(t.Context())
	p := w.fetch("GET", "http://ok.test/")
	req, err := http.NewRequestWithContext(ctx, "GET", "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := w.Forward(ctx, p, req)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.ReadAll(resp.Body); !errors.Is(err, context.Canceled) {
		t.Errorf("reading on: %v, want cancelled", err)
	}
	if err := <-gone; err == nil {
		t.Error("the connection was left open")
	}
}

// TestHTTP2IsFoundOut: the first request opens one connection, whatever it turns
// out to speak, and a small body is not lost on the way.
func TestHTTP2IsFoundOut(t *testing.T) {
	w := plainWorld(t, nil)
	s := w.site("ok.test", okAddr, func(rw http.ResponseWriter, r *http.Request) { _, _ = io.Copy(rw, r.Body) })
	for i := range 3 {
		resp, err := w.do("POST", "https://ok.test/", func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader("small")), 5
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := body(t, resp); got != "small" || resp.ProtoMajor != 2 {
			t.Errorf("request %d: %q over %s", i+1, got, resp.Proto)
		}
	}
	if got := s.Connections(); got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
}

// TestSlowHandshake: one that does not end is upstream's fault, in time.
func TestSlowHandshake(t *testing.T) {
	w := plainWorld(t, func(c *dial.Config) { c.Timeouts.TLS = 100 * time.Millisecond })
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(okAddr, 443)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := w.get("https://ok.test/"); status(err) != "connection_timeout" {
		t.Errorf("got %v (%s)", err, status(err))
	}
	var record tls.RecordHeaderError
	if _, err := w.get("https://ok.test/"); errors.As(err, &record) {
		t.Error(fmt.Errorf("said something: %w", err))
	}
}

// TestBusyHostsKeepTheirWires: many hosts that were asked once do not push out
// the connections of one that is asked all the time.
func TestBusyHostsKeepTheirWires(t *testing.T) {
	w := plainWorld(t, nil)
	s := w.site("ok.test", okAddr, nil)
	get := func(u string) {
		t.Helper()
		resp, err := w.get(u)
		if err != nil {
			t.Fatal(err)
		}
		body(t, resp)
	}
	const n = dial.IdlePerPool + 10
	for i := range n {
		name := fmt.Sprintf("n%d.wild.test", i)
		w.resolver.Set(name, "A 11.7.7.7")
		get("http://" + name + "/")
	}
	for range 10 {
		get("http://ok.test/")
	}
	if got := s.Connections(); got != n+1 {
		t.Errorf("%d connections, want %d", got, n+1)
	}
}
