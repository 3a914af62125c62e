package proxy_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"sallyport/audit"
	"sallyport/proxy"
	"sallyport/rules"
	"sallyport/rules/gate"
)

// TestWebSocket is the one upgrade: both ways, large messages, and judged like
// any request (HW-07).
func TestWebSocket(t *testing.T) {
	for _, w := range ways() {
		if w.h2 {
			continue // a client that offers h2 opens another connection for it
		}
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			h := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				c, err := websocket.Accept(rw, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionContextTakeover})
				if err != nil {
					return
				}
				defer c.CloseNow()
				c.SetReadLimit(-1)
				for {
					kind, b, err := c.Read(r.Context())
					if err != nil || c.Write(r.Context(), kind, b) != nil {
						return
					}
				}
			})
			l.serveOrigin("any.test", true, h)
			client := w.client(l)
			opts := &websocket.DialOptions{HTTPClient: client, CompressionMode: websocket.CompressionContextTakeover}
			for _, to := range []string{"evil.test", "ok.test"} {
				_, resp, err := websocket.Dial(t.Context(), w.url(to, "/secret"), opts)
				if err == nil || resp == nil || resp.StatusCode != 403 {
					t.Errorf("HW-07: %s was not refused: %v", to, err)
				}
				l.log.await(t, 1)
			}
			wantNothingDialled(t, l)
			c, _, err := websocket.Dial(t.Context(), w.url("any.test", "/"), opts)
			must(t, err)
			c.SetReadLimit(-1)
			for _, n := range []int{1, 200, 1 << 19} {
				msg := bytes.Repeat([]byte{'a', byte(n)}, n)
				must(t, c.Write(t.Context(), websocket.MessageBinary, msg))
				_, got, err := c.Read(t.Context())
				must(t, err)
				if !bytes.Equal(got, msg) {
					t.Fatalf("a message of %d octets came back as %d", len(msg), len(got))
				}
			}
			must(t, c.Close(websocket.StatusNormalClosure, ""))
			got := l.log.await(t, 2)
			if len(got) != 2 || got[1].Kind != audit.Done || got[1].Status != 101 || got[1].Sent < 1000 || got[1].Received < 1000 {
				t.Errorf("records %+v", got)
			}
		})
	}
}

// TestWebSocketCut is NW-14 for an upgraded stream.
func TestWebSocketCut(t *testing.T) {
	for _, w := range ways() {
		if w.h2 {
			continue
		}
		t.Run(w.name, bubble(func(t *testing.T) {
			l := newPipeLab(t)
			l.serveOrigin("any.test", false, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				c, err := websocket.Accept(rw, r, nil)
				if err == nil {
					_, _, _ = c.Read(r.Context())
					c.CloseNow()
				}
			}))
			c, _, err := websocket.Dial(t.Context(), w.url("any.test", "/"), &websocket.DialOptions{HTTPClient: w.client(l)})
			must(t, err)
			defer c.CloseNow()
			l.detach()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, _, err := c.Read(ctx); err == nil || ctx.Err() != nil {
				t.Errorf("the WebSocket outlived its cell: %v", err)
			}
			if got := l.log.await(t, 2); len(got) != 2 || !strings.Contains(got[1].Error, "change of policy") {
				t.Errorf("records %+v", got)
			}
		}))
	}
}

// TestUnaskedUpgrade is HW-02, HW-09 and HW-10: an origin that switches protocols by
// itself is at fault, and nothing is spliced.
func TestUnaskedUpgrade(t *testing.T) {
	for _, w := range ways() {
		if w.h2 {
			continue
		}
		l := newLab(t)
		l.serveOrigin("any.test", false, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nraw bytes")
		}))
		for _, upgrade := range []string{"", "Connection: Upgrade\r\nUpgrade: foo\r\n", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"} {
			c, prefix := w.raw(t, l, "any.test")
			status, _, body := exchangeRaw(t, c, "GET "+prefix+"/ HTTP/1.1\r\nHost: any.test\r\n"+upgrade+"\r\n")
			if status != 502 || strings.Contains(body, "raw bytes") {
				t.Errorf("%s: %d %s", w.name, status, body)
			}
			c.Close()
		}
		_ = l.stop()
	}
}

// TestEvents: the first event of a stream is not held back, nor the header of
// an answer that has no body yet.
func TestEvents(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			next, gone := make(chan string), make(chan struct{})
			l.serveOrigin("any.test", w.h2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Content-Type", "text/event-stream")
				rw.WriteHeader(200)
				_ = http.NewResponseController(rw).Flush()
				for {
					select {
					case s := <-next:
						fmt.Fprintf(rw, "data: %s\n\n", s)
						_ = http.NewResponseController(rw).Flush()
					case <-r.Context().Done():
						close(gone)
						return
					}
				}
			}))
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, "GET", w.url("any.test", "/"), nil)
			must(t, err)
			resp, err := w.client(l).Do(req)
			must(t, err)
			br := bufio.NewReader(resp.Body)
			for i := range 3 {
				next <- fmt.Sprint(i)
				s, err := br.ReadString('\n')
				must(t, err)
				if s != fmt.Sprintf("data: %d\n", i) {
					t.Errorf("event %q", s)
				}
				_, _ = br.ReadString('\n')
			}
			cancel()
			resp.Body.Close()
			<-gone // the origin learns that nobody listens
			if got := l.log.await(t, 2); len(got) != 2 || got[1].Received != int64(len("data: 0\n\n")*3) {
				t.Errorf("records %+v", got)
			}
		})
	}
}

// TestLargeBodies streams both ways in constant memory (DS-07): half-way, less
// is held than is still to come.
func TestLargeBodies(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			var size int64 = 8 << 20
			if w.h2 || strings.Contains(w.name, "h2") {
				size = 24 << 20 // two flow-control windows of 4 MiB may be full, and what is between them
			}
			l := newLab(t)
			var before, up, down uint64
			l.serveOrigin("any.test", w.h2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				n, _ := io.CopyN(io.Discard, r.Body, size/2)
				up = heap()
				rest, _ := io.Copy(io.Discard, r.Body)
				rw.Header().Set("X-Got", fmt.Sprint(n+rest))
				if r.URL.Path == "/length" {
					rw.Header().Set("Content-Length", fmt.Sprint(size))
				}
				_, _ = io.CopyN(rw, zeroes{}, size)
			}))
			for _, path := range []string{"/length", "/chunked"} {
				before = heap()
				resp, err := w.client(l).Post(w.url("any.test", path), "x/y", io.LimitReader(zeroes{}, size))
				must(t, err)
				n, err := io.CopyN(io.Discard, resp.Body, size/2)
				must(t, err)
				down = heap()
				rest, err := io.Copy(io.Discard, resp.Body)
				must(t, err)
				resp.Body.Close()
				if n+rest != size || resp.Header.Get("X-Got") != fmt.Sprint(size) {
					t.Errorf("%s: %d octets down, %s up", path, n+rest, resp.Header.Get("X-Got"))
				}
				if limit := before + uint64(size/2); up > limit || down > limit {
					t.Errorf("%s: heap grew from %d KiB to %d half-way up, %d half-way down", path, before>>10, up>>10, down>>10)
				}
				got := l.log.await(t, 2)
				if len(got) != 2 || got[1].Sent != size || got[1].Received != size || got[1].Error != "" {
					t.Errorf("records %+v", got)
				}
			}
		})
	}
}

type zeroes struct{}

func (zeroes) Read(b []byte) (int, error) { return len(b), nil }

// TestExpectContinue is HT-20: a refusal comes instead of 100, before any
// body; and what the origin says at once, too.
func TestExpectContinue(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			l.serveOrigin("any.test", w.h2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/no" {
					rw.WriteHeader(413)
					return
				}
				n, _ := io.Copy(io.Discard, r.Body)
				fmt.Fprint(rw, n)
			}))
			client := w.client(l)
			for _, tt := range []struct {
				to, path string
				status   int
				cont     bool
			}{{"evil.test", "/", 403, false}, {"any.test", "/no", 413, false}, {"any.test", "/", 200, true}} {
				cont := false
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { cont = true }})
				body := &counting{r: io.LimitReader(zeroes{}, 1<<20)}
				req, err := http.NewRequestWithContext(ctx, "POST", w.url(tt.to, tt.path), body)
				must(t, err)
				req.ContentLength = 1 << 20
				req.Header.Set("Expect", "100-continue")
				resp, err := client.Do(req)
				must(t, err)
				b, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				// net/http does not tell a handler that an h2 request expects 100:
				// upstream is not asked to wait then.
				early := w.h2 && tt.path == "/no"
				if resp.StatusCode != tt.status || !early && (cont != tt.cont || (body.n > 0) != tt.cont) {
					t.Errorf("%s%s: %d, 100 %v, %d octets sent, %s", tt.to, tt.path, resp.StatusCode, cont, body.n, b)
				}
			}
		})
	}
}

type counting struct {
	r io.Reader
	n int
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += n
	return n, err
}

// TestTrailers is HW-14 and HT-07: both ways, without what would route or
// forge, and with the connection in step afterwards.
func TestTrailers(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			l.serveOrigin("any.test", w.h2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				rw.Header().Set("Trailer", "X-Sum")
				fmt.Fprintf(rw, "got %s %s", r.Trailer.Get("X-Up"), r.Trailer.Get("Authorization"))
				rw.Header().Set("X-Sum", "42")
				rw.Header().Set(http.TrailerPrefix+"X-Late", "yes")
				rw.Header().Set(http.TrailerPrefix+"Sallyport-Reason", "forged")
			}))
			client := w.client(l)
			for range 2 {
				req, err := http.NewRequestWithContext(t.Context(), "POST", w.url("any.test", "/"), nil)
				must(t, err)
				req.Trailer = http.Header{"X-Up": nil}
				if !w.h2 { // net/http ends the stream itself
					req.Trailer["Authorization"] = nil
				}
				req.Body = io.NopCloser(&atEnd{strings.NewReader("body"), func() {
					for name := range req.Trailer {
						req.Trailer.Set(name, "seven")
					}
				}})
				req.ContentLength = -1
				resp, err := client.Do(req)
				must(t, err)
				b, err := io.ReadAll(resp.Body)
				must(t, err)
				resp.Body.Close()
				if string(b) != "got seven " || resp.Trailer.Get("X-Sum") != "42" || resp.Trailer.Get("X-Late") != "yes" || resp.Trailer.Get("Sallyport-Reason") != "" {
					t.Errorf("%q, trailer %v", b, resp.Trailer)
				}
			}
		})
	}
}

type atEnd struct {
	r io.Reader
	f func()
}

func (a *atEnd) Read(b []byte) (int, error) {
	n, err := a.r.Read(b)
	if err == io.EOF {
		a.f()
	}
	return n, err
}

// TestInformational: 103 passes, without forged headers and what Interim takes out, and
// not at all where it cannot; also on a connection that was used before.
func TestInformational(t *testing.T) {
	for _, w := range ways() {
		l := newLab(t, func(c *proxy.Config) {
			c.Interim = func(p gate.Pass, h http.Header) error {
				h.Del("X-Secret")
				if h.Get("X-Opaque") != "" || !p.Valid() {
					return errors.New("cannot be looked into")
				}
				return nil
			}
		})
		l.serveOrigin("any.test", w.h2, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			for _, name := range []string{"X-Opaque", ""} {
				rw.Header().Set("Link", "</a>")
				rw.Header().Set("Sallyport-Reason", "forged")
				rw.Header().Set("X-Secret", "secret")
				rw.Header().Set(cmp.Or(name, "X-Clear"), "yes")
				rw.WriteHeader(103)
				clear(rw.Header())
			}
			fmt.Fprint(rw, "ok")
		}))
		var early []textproto.MIMEHeader
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			early = append(early, h)
			return nil
		}})
		c := w.client(l)
		for range 2 {
			early = nil
			req, err := http.NewRequestWithContext(ctx, "GET", w.url("any.test", "/"), nil)
			must(t, err)
			resp, err := c.Do(req)
			must(t, err)
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if len(early) != 1 || early[0].Get("Link") != "</a>" || early[0].Get("X-Clear") != "yes" || early[0].Get("Sallyport-Reason")+early[0].Get("X-Secret") != "" {
				t.Errorf("%s: early headers %v", w.name, early)
			}
		}
		_ = l.stop()
	}
}

// TestBidirectional is what gRPC needs: both sides speak at once over h2, the
// status comes after the body, and a refusal is a status too.
func TestBidirectional(t *testing.T) {
	for _, w := range ways() {
		if !w.h2 {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			l.serveOrigin("ok.test", true, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Content-Type", "application/grpc")
				rw.WriteHeader(200)
				_ = http.NewResponseController(rw).Flush()
				br := bufio.NewReader(r.Body)
				for {
					s, err := br.ReadString('\n')
					if err != nil {
						break
					}
					fmt.Fprint(rw, "re: "+s)
					_ = http.NewResponseController(rw).Flush()
				}
				rw.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
				if r.Header.Get("Te") != "trailers" {
					rw.Header().Set(http.TrailerPrefix+"Grpc-Status", "13")
				}
			}))
			client := w.client(l)
			call := func(path string, body io.Reader) *http.Response {
				req, err := http.NewRequestWithContext(t.Context(), "POST", w.url("ok.test", path), body)
				must(t, err)
				req.Header.Set("Content-Type", "application/grpc+proto")
				req.Header.Set("Te", "trailers")
				resp, err := client.Do(req)
				must(t, err)
				return resp
			}
			pr, pw := io.Pipe()
			resp := call("/pkg.Service/Talk", pr)
			br := bufio.NewReader(resp.Body)
			for i := range 3 {
				fmt.Fprintf(pw, "msg %d\n", i)
				if s, err := br.ReadString('\n'); s != fmt.Sprintf("re: msg %d\n", i) {
					t.Fatalf("%q, %v", s, err)
				}
			}
			pw.Close()
			_, err := io.ReadAll(br)
			must(t, err)
			resp.Body.Close()
			if resp.Trailer.Get("Grpc-Status") != "0" {
				t.Errorf("trailer %v", resp.Trailer)
			}
			l.log.await(t, 2)
			resp = call("/other.Service/Talk", strings.NewReader("x"))
			resp.Body.Close()
			if resp.StatusCode != 200 || resp.Header.Get("Grpc-Status") != "7" || !strings.Contains(resp.Header.Get("Grpc-Message"), "Blocked by sandbox egress policy") {
				t.Errorf("a refused call: %d %v", resp.StatusCode, resp.Header)
			}
			wantRefusal(t, l, "path_not_allowed")
		})
	}
}

// TestH2Authority is HW-03, with frames of our own: Go's client would not
// send them.
func TestH2Authority(t *testing.T) {
	field := func(name, value string) hpack.HeaderField { return hpack.HeaderField{Name: name, Value: value} }
	tests := []struct {
		name   string
		fields []hpack.HeaderField
		status string
		reason string
	}{
		{"other authority", []hpack.HeaderField{field(":authority", "evil.test")}, "421", "authority_mismatch"},
		{"other port", []hpack.HeaderField{field(":authority", "ok.test:8443")}, "421", "authority_mismatch"},
		{"other host beside it", []hpack.HeaderField{field(":authority", "ok.test"), field("host", "evil.test")}, "421", "authority_mismatch"},
		{"other host alone", []hpack.HeaderField{field("host", "evil.test")}, "421", "authority_mismatch"},
		{"two hosts", []hpack.HeaderField{field("host", "ok.test"), field("host", "evil.test")}, "421", "authority_mismatch"},
		{"userinfo", []hpack.HeaderField{field(":authority", "ok.test@evil.test")}, "400", "bad_request"},
		{"none", nil, "400", "bad_request"},
		{"scheme", []hpack.HeaderField{field(":scheme", "http"), field(":authority", "ok.test:443")}, "400", "bad_request"},
		{"twin, scheme", []hpack.HeaderField{field(":scheme", "https"), field(":authority", "ok.test:443")}, "200", "allowed"},
		{"the same twice", []hpack.HeaderField{field(":authority", "ok.test"), field("host", "OK.test")}, "200", "allowed"},
		{"host alone", []hpack.HeaderField{field("host", "ok.test")}, "200", "allowed"},
	}
	for _, w := range ways() {
		if !w.h2 {
			continue
		}
		l := newLab(t)
		o := &witness{}
		l.serveOrigin("ok.test", true, o)
		for _, tt := range tests {
			t.Run(w.name+" "+tt.name, func(t *testing.T) {
				c, err := w.open(l, t.Context(), "ok.test:443")
				must(t, err)
				defer c.Close()
				tc, err := handshake(t, l, c, &tls.Config{ServerName: "ok.test", NextProtos: []string{"h2"}})
				must(t, err)
				if got := h2Get(t, tc, "/public/a", tt.fields); got != tt.status {
					t.Errorf("status %q, want %q", got, tt.status)
				}
				tc.Close()
				if saw := o.take(); len(saw) != 0 && tt.status != "200" {
					t.Errorf("the origin saw %+v", saw)
				}
				if records := l.log.await(t, 1); tt.reason != "" && (len(records) == 0 || records[0].Reason != tt.reason) {
					t.Errorf("records %+v", linesOf(records))
				}
			})
		}
		_ = l.stop()
	}
}

// h2Get sends one request on a fresh connection and returns the status.
func h2Get(t *testing.T, c net.Conn, path string, fields []hpack.HeaderField) (status string) {
	t.Helper()
	_, err := io.WriteString(c, http2.ClientPreface)
	must(t, err)
	f := http2.NewFramer(c, c)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	must(t, f.WriteSettings())
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	all := []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":path", Value: path}}
	if len(fields) == 0 || fields[0].Name != ":scheme" {
		all = append(all, hpack.HeaderField{Name: ":scheme", Value: "https"})
	}
	for _, h := range append(all, fields...) {
		must(t, enc.WriteField(h))
	}
	must(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}))
	for {
		fr, err := f.ReadFrame()
		if err != nil {
			return ""
		}
		switch fr := fr.(type) {
		case *http2.MetaHeadersFrame:
			return fr.PseudoValue("status")
		case *http2.RSTStreamFrame:
			return ""
		}
	}
}

// TestKeepAliveAfterDenial: a refusal costs no connection.
func TestKeepAliveAfterDenial(t *testing.T) {
	for _, w := range ways() {
		l := newLab(t)
		l.serveOrigin("ok.test", w.h2, &witness{})
		if !w.h2 { // net/http gives a connection up that is answered 50 ms before it knows of its own last octet
			keepsAliveRaw(t, l, w)
			_ = l.stop()
			continue
		}
		client := w.client(l)
		var conns []net.Conn
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { conns = append(conns, i.Conn) }})
		for _, path := range []string{"/secret", "/public/a", "/secret", "/public/b"} {
			req, err := http.NewRequestWithContext(ctx, "POST", w.url("ok.test", path), strings.NewReader(strings.Repeat("x", 10000)))
			must(t, err)
			resp, err := client.Do(req)
			must(t, err)
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		for _, c := range conns {
			if c != conns[0] {
				t.Errorf("%s: a new connection after a refusal", w.name)
			}
		}
		_ = l.stop()
	}
}

// keepsAliveRaw has requests that are refused and others answered on one connection
// of HTTP/1.
func keepsAliveRaw(t *testing.T, l *lab, w way) {
	t.Helper()
	c, prefix := w.raw(t, l, "ok.test")
	must(t, c.SetDeadline(time.Now().Add(patience)))
	br := bufio.NewReader(c)
	for _, path := range []string{"/secret", "/public/a", "/secret", "/public/b"} {
		_, err := fmt.Fprintf(c, "POST %s%s HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 10000\r\n\r\n%s", prefix, path, strings.Repeat("x", 10000))
		must(t, err)
		want := map[bool]int{true: 403, false: 200}[path == "/secret"]
		if status, h, body := readAnswer(t, br, "POST"); status != want || h.Get("Connection") == "close" {
			t.Errorf("%s: %s: %d %v %s", w.name, path, status, h, body)
		}
	}
}

// TestCredentials: what is found is judged, and what the broker refuses is
// not sent.
func TestCredentials(t *testing.T) {
	tests := []struct {
		name   string
		finds  []rules.Carry
		inject error
		status int
		reason string
		kinds  string
	}{
		{"CR-05 placeholder on its way elsewhere", []rules.Carry{{Credential: "stripe", State: rules.Leaked}}, nil, 403, "placeholder_leak", "refuse credential"},
		{"CR-11 broker down", nil, errors.New("no such socket"), 503, "broker_unavailable", "admit done credential"},
		{"CR-11 secret gone", nil, &gate.DeniedError{Reason: rules.CredentialUnavail, ID: "x"}, 503, "credential_unavailable", "admit done credential"},
		{"CR-24 broker's own lock", nil, &gate.DeniedError{Reason: rules.CredentialMismatch, ID: "x"}, 403, "credential_mismatch", "admit done credential"},
		{"IP-12 resolved address", nil, nil, 403, "private_ip", "admit done"},
	}
	for _, w := range ways() {
		for _, tt := range tests {
			t.Run(w.name+" "+tt.name, func(t *testing.T) {
				l := newLab(t)
				o := &witness{}
				l.serveOrigin("any.test", w.h2, o)
				l.finds = func(string, *http.Request) []rules.Carry { return tt.finds }
				l.inject = func(context.Context, gate.Pass, *http.Request) error {
					if tt.reason == "private_ip" {
						return fmt.Errorf("vetting: %w", &gate.DeniedError{Reason: rules.PrivateIP, ID: "x"})
					}
					return tt.inject
				}
				resp, err := w.client(l).Get(w.url("any.test", "/"))
				must(t, err)
				body, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode != tt.status || resp.Header.Get("Sallyport-Reason") != tt.reason {
					t.Errorf("%d %v %s", resp.StatusCode, resp.Header, body)
				}
				if tt.status == 403 && (strings.Contains(string(body), "To ask a human") || !strings.Contains(string(body), "No approval changes that.")) {
					t.Errorf("it can be asked for: %s", body)
				}
				if len(o.take())+len(l.dialled()) > 0 {
					t.Error("the origin was reached")
				}
				records := l.log.await(t, strings.Count(tt.kinds, " ")+1)
				kinds := ""
				for _, r := range records {
					kinds = strings.TrimSpace(kinds + " " + string(r.Kind))
					if r.Kind != audit.Admit && r.Reason != tt.reason {
						t.Errorf("record %+v", r)
					}
				}
				if kinds != tt.kinds {
					t.Errorf("records %s, want %s", kinds, tt.kinds)
				}
			})
		}
	}
}

// TestPanicStaysLocal is DS-12: a panic costs one request.
func TestPanicStaysLocal(t *testing.T) {
	for _, w := range ways() {
		l := newLab(t)
		l.serveOrigin("any.test", w.h2, &witness{})
		l.inject = func(_ context.Context, _ gate.Pass, r *http.Request) error {
			if r.Method == "DELETE" {
				panic("on cue")
			}
			return nil
		}
		client := w.client(l)
		req, err := http.NewRequestWithContext(t.Context(), "DELETE", w.url("any.test", "/"), nil)
		must(t, err)
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
			t.Errorf("%s: a request that panicked was answered: %d", w.name, resp.StatusCode)
		}
		records := l.log.await(t, 2)
		if last := records[len(records)-1]; last.Kind != audit.Done || !strings.Contains(last.Error, "panic") {
			t.Errorf("%s: records %+v", w.name, linesOf(records))
		}
		resp, err := client.Get(w.url("any.test", "/"))
		must(t, err)
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("%s: the next request: %d", w.name, resp.StatusCode)
		}
		_ = l.stop()
	}
}

// TestLeakOfARefusedRequestLG04: what is refused before a policy is asked is looked at all
// the same, and what it leaks is in no record.
func TestLeakOfARefusedRequestLG04(t *testing.T) {
	for _, w := range ways() {
		l := newLab(t)
		l.serveOrigin("any.test", w.h2, &witness{})
		l.finds = func(_ string, r *http.Request) []rules.Carry {
			if strings.Contains(r.RequestURI+r.URL.Path, "pl4ceholder") {
				return []rules.Carry{{Credential: "stripe", State: rules.Leaked}}
			}
			return nil
		}
		req, err := http.NewRequest(http.MethodGet, w.url("any.test", "/pl4ceholder"), nil)
		must(t, err)
		req.Header.Set("Accept", "application/dns-message")
		resp, err := w.client(l).Do(req)
		must(t, err)
		resp.Body.Close()
		_ = l.stop()
		records := l.log.take()
		if resp.Header.Get("Sallyport-Reason") != "protocol_not_allowed" || len(records) != 1 || records[0].Path != "/hash" {
			t.Errorf("%s: %d %v, records %+v", w.name, resp.StatusCode, resp.Header, records)
		}
	}
}

// TestErrorCitesNoSecretLG04: what an upstream sends may hold what it was sent, and stand
// in an error.
func TestErrorCitesNoSecretLG04(t *testing.T) {
	const secret = "sk_live_4eC39HqLyjWDarjtT1zdp7dc"
	for _, known := range []bool{true, false} {
		for _, w := range ways()[:map[bool]int{true: 2, false: 1}[known]] {
			l := newLab(t, func(c *proxy.Config) {
				c.Hide = func(cell, text string) string {
					if !known || cell != cellID {
						return ""
					}
					return strings.ReplaceAll(text, secret, "***")
				}
				c.Forward = func(context.Context, gate.Pass, *http.Request) (*http.Response, error) {
					return nil, fmt.Errorf("http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR, debug=%q", `"`+secret)
				}
			})
			l.serveOrigin("any.test", w.h2, &witness{})
			resp, err := w.client(l).Get(w.url("any.test", "/"))
			must(t, err)
			resp.Body.Close()
			_ = l.stop()
			want := `debug="\"***"`
			if !known {
				want = `debug="…"`
			}
			records := l.log.take()
			if n := len(records); n != 2 || records[1].Kind != audit.Done || !strings.HasSuffix(records[1].Error, want) {
				t.Errorf("%s: records %+v, want an error that ends in %s", w.name, records, want)
			}
		}
	}
}

// TestPanicBeforeTheGate: a panic before there is a decision is recorded as a
// refusal, and nothing is sent.
func TestPanicBeforeTheGate(t *testing.T) {
	for _, w := range ways() {
		l := newLab(t)
		l.serveOrigin("any.test", w.h2, &witness{})
		l.finds = func(string, *http.Request) []rules.Carry { panic("on cue") }
		if resp, err := w.client(l).Get(w.url("any.test", "/")); err == nil {
			resp.Body.Close()
			t.Errorf("%s: answered: %d", w.name, resp.StatusCode)
		}
		_ = l.stop()
		records := l.log.take()
		if len(records) == 0 || records[0].Kind != audit.Refuse || !strings.Contains(records[0].Error, "panic") {
			t.Errorf("%s: records %+v", w.name, records)
		}
		wantNothingDialled(t, l)
	}
}

// TestBrokenOff: an answer that upstream does not finish is not made to look
// whole (DS-09), and a request that the client does not finish is not sent as
// if it were.
func TestBrokenOff(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			var sum [32]byte
			whole := make(chan bool, 1)
			l.serveOrigin("any.test", w.h2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if r.Method == "POST" {
					b, err := io.ReadAll(r.Body)
					sum = sha256.Sum256(b)
					whole <- err == nil
					return
				}
				if r.URL.Path == "/length" {
					rw.Header().Set("Content-Length", "100")
				}
				fmt.Fprint(rw, "half")
				_ = http.NewResponseController(rw).Flush()
				panic(http.ErrAbortHandler)
			}))
			client := w.client(l)
			for _, path := range []string{"/length", "/chunked"} {
				resp, err := client.Get(w.url("any.test", path))
				must(t, err)
				if b, err := io.ReadAll(resp.Body); err == nil {
					t.Errorf("%s: %q looks whole", path, b)
				}
				resp.Body.Close()
				if got := l.log.await(t, 2); len(got) != 2 || got[1].Error == "" {
					t.Errorf("records %+v", got)
				}
			}
			req, err := http.NewRequestWithContext(t.Context(), "POST", w.url("any.test", "/"), io.MultiReader(strings.NewReader("half"), failing{}))
			must(t, err)
			if resp, err := client.Do(req); err == nil {
				resp.Body.Close()
			}
			_ = l.log.await(t, 2)
			_ = l.stop()
			select {
			case ok := <-whole:
				if ok {
					t.Errorf("the origin takes half a body for a whole one: %x", sum)
				}
			default: // it was not even asked
			}
		})
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("on cue") }

// TestBadChunk is HT-04: framing that breaks in the body.
func TestBadChunk(t *testing.T) {
	for _, w := range ways() {
		if w.h2 {
			continue
		}
		l := newLab(t)
		l.serveOrigin("any.test", false, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err == nil {
				t.Error("the origin got a whole body")
			}
		}))
		c, prefix := w.raw(t, l, "any.test")
		status, _, _ := exchangeRaw(t, c, "POST "+prefix+"/ HTTP/1.1\r\nHost: any.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcXX0\r\n\r\n")
		if status != 400 {
			t.Errorf("%s: status %d", w.name, status)
		}
		if got := l.log.await(t, 2); len(got) != 2 || got[1].Reason != "bad_request" {
			t.Errorf("%s: records %+v", w.name, linesOf(got))
		}
		c.Close()
		_ = l.stop()
	}
}

// TestDrain: what is in flight when the server is told to end may end.
func TestDrain(t *testing.T) {
	for _, w := range ways() {
		l := newLab(t, func(c *proxy.Config) { c.Timeouts.Drain = time.Hour })
		started, release := make(chan struct{}), make(chan struct{})
		l.serveOrigin("any.test", w.h2, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			close(started)
			<-release
			fmt.Fprint(rw, "done")
		}))
		result := make(chan string, 1)
		client := w.client(l)
		go func() {
			resp, err := client.Get(w.url("any.test", "/"))
			if err != nil {
				result <- err.Error()
				return
			}
			b, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			result <- string(b)
		}()
		<-started
		stopped := make(chan error, 1)
		go func() { stopped <- l.stop() }()
		close(release)
		if got := <-result; got != "done" {
			t.Errorf("%s: %q", w.name, got)
		}
		must(t, <-stopped)
	}
}

// TestEndWaitsForOutcomes: a request that is cut off when the server ends has its
// outcome in the log by the time that the server has ended, whichever way it came.
func TestEndWaitsForOutcomes(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			started, release := make(chan struct{}), make(chan struct{})
			l := newLab(t, func(c *proxy.Config) {
				c.Timeouts.Drain = time.Millisecond
				c.Forward = func(context.Context, gate.Pass, *http.Request) (*http.Response, error) {
					close(started)
					<-release // later than its client is gone
					return nil, fault{"connection_refused"}
				}
			})
			client, gone := w.client(l), make(chan struct{})
			go func() {
				defer close(gone)
				if resp, err := client.Post(w.url("any.test", "/"), "", nil); err == nil {
					resp.Body.Close()
					t.Errorf("an answer of a server that has ended: %s", resp.Status)
				}
			}()
			<-started
			stopped := make(chan error, 1)
			go func() { stopped <- l.stop() }()
			<-gone
			select {
			case err := <-stopped:
				t.Fatalf("the server ended while a request was under way (%v)", err)
			case <-time.After(100 * time.Millisecond): // in which it would have
			}
			close(release)
			must(t, <-stopped)
			kinds := map[audit.Kind]int{}
			for _, r := range l.log.take() {
				kinds[r.Kind]++
			}
			if want := (map[audit.Kind]int{audit.Admit: 1, audit.Done: 1}); !maps.Equal(kinds, want) {
				t.Errorf("records %v, want %v", kinds, want)
			}
		})
	}
}

// TestDrainOfSilentClients: who has connected and said nothing does not hold the end
// of the server up, whichever way it came; what is in flight still may end.
func TestDrainOfSilentClients(t *testing.T) {
	for name, open := range opens() {
		l := newLab(t, func(c *proxy.Config) {
			c.Timeouts = proxy.Timeouts{Fresh: 50 * time.Millisecond, Drain: time.Hour}
		})
		started, release := make(chan struct{}), make(chan struct{})
		l.serveOrigin("any.test", false, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			close(started)
			<-release
			fmt.Fprint(rw, "done")
		}))
		// The silent ones come first, so that they are accepted once the other is served.
		silent, err := open(l, t.Context(), "any.test:80")
		must(t, err)
		defer silent.Close()
		atDoor, err := l.sandboxDial(t.Context(), l.explicitAddr)
		must(t, err)
		defer atDoor.Close()
		busy, err := open(l, t.Context(), "any.test:80")
		must(t, err)
		defer busy.Close()
		_, err = io.WriteString(busy, "GET / HTTP/1.1\r\nHost: any.test\r\n\r\n")
		must(t, err)
		<-started
		stopped := make(chan error, 1)
		go func() { stopped <- l.stop() }()
		readAll(t, silent)
		readAll(t, atDoor)
		select {
		case err := <-stopped:
			t.Errorf("%s: ended before what was in flight: %v", name, err)
		default:
		}
		close(release)
		if got := readAll(t, busy); !strings.HasSuffix(got, "done") {
			t.Errorf("%s: in flight: %q", name, got)
		}
		must(t, <-stopped)
		var told []string
		for _, r := range l.log.take() {
			if r.Kind == audit.Refuse {
				told = append(told, r.Reason+": "+r.Error)
			}
		}
		if want := []string{"no_request: the gateway is shutting down"}; !slices.Equal(told, want) {
			t.Errorf("%s: refusals %q, want %q", name, told, want)
		}
	}
}
