package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/rules/gate"
)

// exchangeRaw sends text as it is and reads one answer. Status 0 is an end of the
// connection without one.
func exchangeRaw(t *testing.T, c net.Conn, text string) (status int, header http.Header, body string) {
	t.Helper()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	if _, err := io.WriteString(c, text); err != nil && !isReset(err) { // the answer may come before its end, and the end with it
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(text, " ")
	return readAnswer(t, bufio.NewReader(c), method)
}

func readAnswer(t *testing.T, br *bufio.Reader, method string) (status int, header http.Header, body string) {
	t.Helper()
	resp, err := http.ReadResponse(br, &http.Request{Method: method})
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), isReset(err):
		return 0, nil, ""
	case err != nil:
		t.Fatalf("reading the answer: %v", err)
	}
	if method == "CONNECT" && resp.StatusCode == 200 {
		return 200, resp.Header, ""
	}
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	must(t, resp.Body.Close())
	return resp.StatusCode, resp.Header, string(b)
}

func isReset(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && !op.Timeout() || errors.Is(err, syscall.ECONNRESET)
}

// TestAuthorities sends spellings that have two readings to the explicit
// listener, where an authority is text.
func TestAuthorities(t *testing.T) {
	tests := []struct {
		name, line string
		status     int
		reason     string
	}{
		{"NM-01 two dots", "CONNECT ok.test..:443", 400, "bad_request"},
		{"NM-02 brackets around a name", "CONNECT [evil.test]:443", 400, "bad_request"},
		{"NM-02 brackets twice", "CONNECT [[::1]]:443", 400, "bad_request"},
		{"NM-02 absolute", "GET http://[evil.test]/", 400, "bad_request"},
		{"NM-05 userinfo that looks allowed", "GET http://ok.test@evil.test/", 400, "bad_request"},
		{"NM-08 NUL", "CONNECT evil.test\x00.ok.test:443", 400, "bad_request"},
		{"NM-08 encoded NUL", "GET http://evil.test%00.ok.test/", 400, "bad_request"},
		{"NM-09 CONNECT with userinfo", "CONNECT ok.test:443@evil.test:443", 400, "bad_request"},
		{"NM-09 user", "CONNECT u@ok.test:443", 400, "bad_request"},
		{"NM-09 absolute with userinfo", "GET http://ok.test:80@evil.test/", 400, "bad_request"},
		{"NM-09 encoded at", "GET http://ok.test%40evil.test/", 400, "bad_request"},
		{"NM-11 ideographic full stop", "CONNECT ok。test:443", 400, "bad_request"},
		{"NM-11 full-width digits", "GET http://①②⑦.0.0.1:9/", 400, "bad_request"},
		{"NM-11 address with odd dots", "GET http://127。0。0。1:9/", 400, "bad_request"},
		{"NM-13 ASCII-only punycode", "CONNECT xn--ok-.test:443", 400, "bad_request"},
		{"NM-14 encoded letter", "GET http://ev%69l.test/", 400, "bad_request"},
		{"NM-14 encoded dot", "CONNECT evil%2etest:443", 400, "bad_request"},
		{"NM-14 encoded slash", "GET http://evil.test%2fok.test/", 400, "bad_request"},
		{"NM-15 empty host", "CONNECT :443", 400, "bad_request"},
		{"NM-15 empty host, absolute", "GET http://:9/", 400, "bad_request"},
		{"NM-17 zone", "CONNECT [fe80::1%25eth0]:3128", 400, "bad_request"},
		{"NM-17 zone of a name", "GET http://[::1%25ok.test]:80/", 400, "bad_request"},
		{"NM-19 opaque", "GET http:evil.test/", 400, "bad_request"},
		{"NM-19 no authority", "GET http:///x", 400, "bad_request"},
		{"NM-19 authority form", "GET evil.test:80", 400, "bad_request"},
		{"NM-19 two slashes", "GET //evil.test/x", 400, "bad_request"},
		{"NM-19 query alone", "GET ?x", 400, "bad_request"},
		{"NM-19 asterisk", "OPTIONS *", 400, "bad_request"},
		{"NM-20 file", "GET file:///etc/passwd", 400, "bad_request"},
		{"NM-20 ftp", "GET ftp://ok.test/", 400, "bad_request"},
		{"NM-20 https in the clear", "GET https://ok.test/", 400, "bad_request"},
		{"NM-20 ws", "GET ws://ok.test/", 400, "bad_request"},
		{"NM-20 gopher", "GET gopher://ok.test:6379/_x", 400, "bad_request"},
		{"NM-23 leading hyphen", "CONNECT -a.wild.test:443", 400, "bad_request"},
		{"NM-23 empty label", "CONNECT a..wild.test:443", 400, "bad_request"},
		{"CN-01 port 22", "CONNECT ok.test:22", 403, "port_not_allowed"},
		{"CN-01 plain on another port", "GET http://ok.test:8080/", 403, "port_not_allowed"},
		{"CN-02 plain HTTP to the port of HTTPS", "GET http://ok.test:443/", 403, "protocol_not_allowed"},
		{"CN-03 unknown place with a server that speaks first", "CONNECT evil.test:5432", 403, "host_not_allowed"},
		{"CN-12 origin form", "GET /", 400, "bad_request"},
		{"CN-17 sallyport.internal on another port", "CONNECT sallyport.internal:22", 403, "port_not_allowed"},
		{"CN-17 loopback", "CONNECT 127.0.0.1:22", 403, "address_not_allowed"},
		{"CN-17 loopback, plain", "GET http://127.0.0.1:9090/metrics", 403, "address_not_allowed"},
		{"HW-01 half an h2 preface", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", 400, "bad_request"},
		{"HT-22 CRLF in the name", "CONNECT evil.test%0d%0aX:1:443", 400, "bad_request"},
		{"HT-22 8 KiB host", "CONNECT " + strings.Repeat("a", 8<<10) + ".test:443", 400, "bad_request"},
		{"HT-22 script", "GET http://<script>/", 400, "bad_request"},
		{"HT-23 HTTP/0.9", "GET /\r\n", 400, "bad_request"},
		{"HT-23 odd version", "GET http://ok.test/ HTTP/1.1x", 400, "bad_request"},
		{"HT-23 version 9.9", "GET http://ok.test/ HTTP/9.9", 505, "bad_request"},
		{"HT-23 spaces", "GET  http://ok.test/  HTTP/1.1", 400, "bad_request"},
		{"DS-11 unparsable", "GET %zz", 400, "bad_request"},
		{"DS-11 bracket", "GET http://[::1", 400, "bad_request"},
		{"DS-11 colon", "GET :", 400, "bad_request"},
		{"CN-20 socks4", "\x04\x01\x00\x50", 400, "bad_request"},
		{"CN-20 PROXY protocol", "PROXY TCP4 127.0.0.2 127.0.0.1 1 2", 400, "bad_request"},
		// The positive twins.
		{"NM-01 one dot", "GET http://any.test./", 200, ""},
		{"NM-03 case", "GET HtTp://ANY.Test/", 200, ""},
		{"no path", "GET http://any.test", 200, ""},
		{"query and no path", "GET http://any.test?x", 200, ""},
		{"CONNECT", "CONNECT any.test:443", 200, ""},
		{"NM-01 CONNECT with a dot", "CONNECT any.test.:443", 200, ""},
	}
	l := newLab(t)
	o := &witness{}
	l.serveOrigin("any.test", false, o)
	l.serveOrigin("evil.test", false, o)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := l.sandboxDial(t.Context(), l.explicitAddr)
			must(t, err)
			defer c.Close()
			text := tt.line
			if !strings.HasPrefix(text, "PRI") && !strings.Contains(text, " HTTP/") && !strings.HasSuffix(text, "\r\n") {
				text += " HTTP/1.1"
			}
			status, header, body := exchangeRaw(t, c, text+"\r\nHost: ok.test\r\n\r\n")
			must(t, c.Close())
			if status != tt.status {
				t.Errorf("status %d, want %d: %s", status, tt.status, body)
			}
			want := 1 // a refusal; the positive ones: admit and done, or no_request
			if tt.status == 200 && strings.HasPrefix(text, "GET") {
				want = 2
			}
			records := l.log.await(t, want)
			if len(records) != want {
				t.Errorf("%d records, want %d: %+v", len(records), want, linesOf(records))
			}
			if tt.status != 200 {
				if len(records) == 1 && records[0].Reason != tt.reason {
					t.Errorf("reason %q, want %q", records[0].Reason, tt.reason)
				}
				if len(l.dialled())+len(o.take()) != 0 {
					t.Error("an origin was reached")
				}
				checkNoEcho(t, header, body)
			}
			l.dialled()
		})
	}
}

// checkNoEcho: HT-22, an answer of ours repeats nothing that was not parsed.
func checkNoEcho(t *testing.T, h http.Header, body string) {
	t.Helper()
	var all bytes.Buffer
	must(t, h.Write(&all))
	all.WriteString(body)
	for _, s := range []string{"script", "aaaaaaaa", "X:1", "\x1b"} {
		if strings.Contains(all.String(), s) {
			t.Errorf("the refusal repeats %q: %s", s, all.String())
		}
	}
}

// TestRequestHeads sends odd requests over every way that speaks HTTP/1.
// Where net/http reads an odd framing, the origin must have seen exactly one
// well-formed request for each that was judged.
func TestRequestHeads(t *testing.T) {
	// PREFIX stands for nothing, or for the scheme and authority of the
	// absolute form.
	tests := []struct {
		name, text string
		status     int
		reason     string // of the first record that refuses, "" for none
		saw        string
	}{
		{"CN-07 other Host", "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", 421, "authority_mismatch", ""},
		{"CN-07 other port", "GET / HTTP/1.1\r\nHost: any.test:8443\r\n\r\n", 421, "authority_mismatch", ""},
		{"CN-09 absolute URI of another host", "GET http://evil.test/ HTTP/1.1\r\nHost: any.test\r\n\r\n", 421, "authority_mismatch", ""},
		{"HT-07 two Hosts", "GET PREFIX/ HTTP/1.1\r\nHost: any.test\r\nhost: evil.test\r\n\r\n", 400, "bad_request", ""},
		{"HT-07 list of hosts", "GET / HTTP/1.1\r\nHost: any.test, evil.test\r\n\r\n", 400, "bad_request", ""},
		{"HT-07 HTTP/1.0 without Host", "GET / HTTP/1.0\r\n\r\n", 400, "bad_request", ""},
		{"NM-15 empty Host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", 400, "bad_request", ""},
		{"HT-02 two lengths", "POST PREFIX/ HTTP/1.1\r\nHost: any.test\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", 400, "bad_request", ""},
		{"HT-02 list", "POST PREFIX/ HTTP/1.1\r\nHost: any.test\r\nContent-Length: 5, 5\r\n\r\nabcde", 400, "bad_request", ""},
		{"HT-02 plus", "POST PREFIX/ HTTP/1.1\r\nHost: any.test\r\nContent-Length: +5\r\n\r\nabcde", 400, "bad_request", ""},
		{"HT-02 hexadecimal", "POST PREFIX/ HTTP/1.1\r\nHost: any.test\r\nContent-Length: 0x5\r\n\r\nabcde", 400, "bad_request", ""},
		{"HT-02 negative", "POST PREFIX/ HTTP/1.1\r\nHost: any.test\r\nContent-Length: -1\r\n\r\n", 400, "bad_request", ""},
		{"HT-02 huge", "POST PREFIX/ HTTP/1.1\r\nHost: any.test\r\nContent-Length: 18446744073709551616\r\n\r\n", 400, "bad_request", ""},
		{"HT-01 unknown coding", "POST PREFIX/ HTTP/1.1\r\nHost: any.test\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, "bad_request", ""},
		{"HT-04 CR alone", "GET PREFIX/ HTTP/1.1\r\nHost: any.test\r\nA: b\rC: d\r\n\r\n", 400, "bad_request", ""},
		{"HT-04 space before colon", "GET PREFIX/ HTTP/1.1\r\nHost: any.test\r\nA : b\r\n\r\n", 400, "bad_request", ""},
		{"HT-20 other expectation", "POST PREFIX/ HTTP/1.1\r\nHost: any.test\r\nExpect: 200-ok\r\nContent-Length: 1\r\n\r\na", 417, "bad_request", ""},
		{"HT-23 HTTP/0.9", "GET /\r\n\r\n", 400, "bad_request", ""},
		{"HT-23 version", "GET PREFIX/ HTTP/1.1x\r\nHost: any.test\r\n\r\n", 400, "bad_request", ""},
		{"DS-04 header line", "GET PREFIX/ HTTP/1.1\r\nHost: any.test\r\nA: " + strings.Repeat("x", 256<<10) + "\r\n\r\n", 431, "limit", ""},
		{"DS-04 header lines", "GET PREFIX/ HTTP/1.1\r\nHost: any.test\r\n" + strings.Repeat("A: b\r\n", 500) + "\r\n", 431, "limit", ""},
		{"DS-11 unparsable", "GET PREFIX/%zz HTTP/1.1\r\nHost: any.test\r\n\r\n", 400, "bad_request", ""},
		{"DS-11 asterisk", "OPTIONS * HTTP/1.1\r\nHost: any.test\r\n\r\n", 400, "bad_request", ""},
		{"HT-16 CONNECT inside", "CONNECT any.test:443 HTTP/1.1\r\nHost: any.test\r\n\r\n", 400, "bad_request", ""},
		{"HT-16 PRI", "PRI * HTTP/1.1\r\nHost: any.test\r\n\r\n", 400, "bad_request", ""},
		{"HT-16 no token", "GE:T PREFIX/ HTTP/1.1\r\nHost: any.test\r\n\r\n", 400, "bad_request", ""},
		{"HT-16 long", strings.Repeat("A", 5000) + " PREFIX/ HTTP/1.1\r\nHost: any.test\r\n\r\n", 400, "bad_request", ""},
		{"HT-23 empty line first", "\r\nGET PREFIX/ HTTP/1.1\r\nHost: any.test\r\n\r\n", 400, "bad_request", ""},
		{"HT-23 two spaces", "GET  PREFIX/ HTTP/1.1\r\nHost: any.test\r\n\r\n", 400, "bad_request", ""},
		{"HT-23 tab", "GET\tPREFIX/ HTTP/1.1\r\nHost: any.test\r\n\r\n", 400, "bad_request", ""},
		{"HT-16 lower case", "get PREFIX/public/a HTTP/1.1\r\nHost: ok.test\r\n\r\n", 400, "bad_request", ""},
		{"HT-16 CONNECT in lower case", "connect any.test:443 HTTP/1.1\r\nHost: any.test\r\n\r\n", 400, "bad_request", ""},
		{"fragment", "GET PREFIX/a?b#c HTTP/1.1\r\nHost: any.test\r\n\r\n", 400, "bad_request", ""},
		{"HW-10 websocket with POST", "POST PREFIX/ HTTP/1.1\r\nHost: any.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", 400, "bad_request", ""},
		{"HW-10 choice of upgrades", "GET PREFIX/ HTTP/1.1\r\nHost: any.test\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", 400, "bad_request", ""},
		{"HW-10 websocket without a key", "GET PREFIX/ HTTP/1.1\r\nHost: any.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n", 400, "bad_request", ""},
		// What is read in one way only, and arrives so.
		{"HT-01 both framings", "POST PREFIX/ HTTP/1.1\r\nHost: any.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 200, "", "POST / abc"},
		{"HT-04 bare LF", "POST PREFIX/ HTTP/1.1\nHost: any.test\nContent-Length: 3\n\nabc", 200, "", "POST / abc"},
		{"HT-05 chunk extension", "POST PREFIX/ HTTP/1.1\r\nHost: any.test\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\n\r\n", 200, "", "POST / abc"},
		{"CN-11 Host against an absolute URI", "GET http://any.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", 200, "", "GET / "},
		{"NM-03 case of Host", "GET PREFIX/ HTTP/1.1\r\nHOST: ANY.TEST\r\n\r\n", 200, "", "GET / "},
		{"HTTP/1.0", "GET PREFIX/ HTTP/1.0\r\nHost: any.test\r\n\r\n", 200, "", "GET / "},
		{"HW-02 upgrade to h2c is forgotten", "GET PREFIX/ HTTP/1.1\r\nHost: any.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n", 200, "", "GET / "},
		{"HW-10 upgrade to foo is forgotten", "GET PREFIX/ HTTP/1.1\r\nHost: any.test\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\n", 200, "", "GET / "},
	}
	for _, w := range ways() {
		if w.h2 {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			o := &witness{}
			l.serveOrigin("any.test", false, o)
			l.serveOrigin("ok.test", false, o)
			for _, tt := range tests {
				t.Run(tt.name, func(t *testing.T) {
					relative := !strings.Contains(tt.text, "PREFIX") && !strings.Contains(tt.text, "http://")
					if w.open == nil && (relative || strings.HasPrefix(tt.name, "CN-09")) || w.secure && strings.HasPrefix(tt.name, "CN-11") {
						return // means something else on this way
					}
					host := "any.test"
					if strings.Contains(tt.text, "Host: ok.test") {
						host = "ok.test"
					}
					c, prefix := w.raw(t, l, host)
					text := strings.ReplaceAll(tt.text, "PREFIX", prefix)
					if w.secure && strings.HasPrefix(tt.name, "CN-09") {
						text = strings.Replace(text, "http:", "https:", 1)
					}
					status, _, body := exchangeRaw(t, c, text)
					c.Close()
					if status != tt.status {
						t.Errorf("status %d, want %d: %s", status, tt.status, body)
					}
					want := 1
					if tt.status == 200 {
						want = 2
					}
					records := l.log.await(t, want)
					if len(records) != want || tt.reason != "" && len(records) > 0 && records[0].Reason != tt.reason {
						t.Errorf("records %+v, want %d, reason %q", linesOf(records), want, tt.reason)
					}
					checkSaw(t, o, tt.saw)
				})
			}
		})
	}
}

func checkSaw(t *testing.T, o *witness, want string) {
	t.Helper()
	got := ""
	for _, s := range o.take() {
		got += s.Method + " " + s.URI + " " + s.Body
		for _, name := range []string{"Upgrade", "Http2-Settings", "Connection", "Keep-Alive", "Proxy-Connection"} {
			if v := s.Header.Get(name); v != "" && !(name == "Connection" && v == "close") {
				t.Errorf("the origin saw %s: %s", name, v)
			}
		}
	}
	if got != want {
		t.Errorf("the origin saw %q, want %q", got, want)
	}
}

// TestPipelined is HT-17 and HT-01: what rides along is judged on its own.
func TestPipelined(t *testing.T) {
	for _, w := range ways() {
		if w.h2 {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			o := &witness{}
			l.serveOrigin("ok.test", false, o)
			c, prefix := w.raw(t, l, "ok.test")
			must(t, c.SetDeadline(time.Now().Add(patience)))
			fmt.Fprintf(c, "POST %[1]s/public/a HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+
				"POST %[1]s/secret HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 0\r\n\r\n"+
				"GET %[1]s/public/b HTTP/1.1\r\nHost: ok.test\r\n\r\n", prefix)
			br := bufio.NewReader(c)
			var got []int
			for range 3 {
				status, _, _ := readAnswer(t, br, "GET")
				got = append(got, status)
			}
			if fmt.Sprint(got) != "[200 403 200]" {
				t.Errorf("statuses %v, want [200 403 200]", got)
			}
			checkSaw(t, o, "POST /public/a GET /public/b ")
			var kinds []audit.Kind
			for _, r := range l.log.await(t, 5) {
				kinds = append(kinds, r.Kind)
			}
			if fmt.Sprint(kinds) != "[admit done refuse admit done]" {
				t.Errorf("records %v", kinds)
			}
		})
	}
}

// restating are headers that would have an origin do another request than the one
// that was judged.
var restating = []string{
	"X-Forwarded-Prefix", "X-Forwarded-Uri", "X-Forwarded-User", "X_forwarded_host", "X-Forwarded", "X-Original-Host", "X-Host",
	"X-Http-Host-Override", "X-Real-Ip", "X-Remote-User", "Remote-User", "X-Original-Url", "X-Rewrite-Url", "X-Method-Override",
}

// TestHeaders is HT-09, HT-10, HT-11, HT-12, HT-16 and HW-13: what passes which way.
func TestHeaders(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			l.inject = func(_ context.Context, _ gate.Pass, r *http.Request) error {
				r.Header.Set("Authorization", "Bearer REAL_x")
				return nil
			}
			o := &witness{next: func(rw http.ResponseWriter, r *http.Request) {
				h := rw.Header()
				h.Set("Sallyport-Reason", "forged")
				h.Set("Sallyport-Request", "forged")
				h.Set("X-Deny-Reason", "forged")
				h.Set("Proxy-Status", "sallyport; error=forged")
				h.Set("Proxy-Authenticate", "Basic")
				h.Set("Alt-Svc", `h3=":443"; h2="evil.test:443"`)
				h.Set("NEL", "{}")
				h.Set("Keep-Alive", "timeout=5")
				h.Set("X-Kept", "yes")
				h.Add("Set-Cookie", "a=1")
				h.Add("Set-Cookie", "b=2")
				fmt.Fprint(rw, "ok")
			}}
			l.serveOrigin("any.test", w.h2, o)
			req, err := http.NewRequestWithContext(t.Context(), "GET", w.url("any.test", "/"), nil)
			must(t, err)
			for k, v := range map[string]string{
				"Proxy-Authorization": "Basic cGg6", "Proxy-Foo": "1", "X-Forwarded-For": "10.0.0.1", "Forwarded": "for=10.0.0.1",
				"X-HTTP-Method-Override": "DELETE", "Sallyport-Cell": "other", "Keep-Alive": "5", "X-Kept": "yes",
				"User-Agent": "agent/1", "Accept-Encoding": "br",
			} {
				req.Header.Set(k, v)
			}
			for _, name := range restating {
				req.Header[name] = []string{"x"}
			}
			if !w.h2 {
				req.Header.Set("Connection", "close, Authorization, X-Named")
				req.Header.Set("X-Named", "1")
				req.Header.Set("TE", "trailers, deflate")
			}
			resp, err := w.client(l).Do(req)
			must(t, err)
			defer resp.Body.Close()
			_, err = io.Copy(io.Discard, resp.Body)
			must(t, err)
			saw := o.take()
			if len(saw) != 1 {
				t.Fatalf("the origin saw %d requests", len(saw))
			}
			h := saw[0].Header
			for _, name := range []string{
				"Proxy-Authorization", "Proxy-Foo", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded", "Via",
				"X-Http-Method-Override", "Sallyport-Cell", "Keep-Alive", "X-Named", "Proxy-Connection", "Connection",
			} {
				if v, ok := h[name]; ok {
					t.Errorf("the origin saw %s: %q", name, v)
				}
			}
			for name := range h {
				if slices.ContainsFunc(restating, func(sent string) bool { return strings.EqualFold(sent, name) }) {
					t.Errorf("HT-16: the origin saw %s", name)
				}
			}
			if h.Get("X-Kept") != "yes" || h.Get("User-Agent") != "agent/1" || h.Get("Accept-Encoding") != "br" || h.Get("Authorization") != "Bearer REAL_x" {
				t.Errorf("the origin saw %v", h)
			}
			if v := h.Get("Te"); v != "" && v != "trailers" {
				t.Errorf("the origin saw TE: %s", v)
			}
			for _, name := range []string{
				"Sallyport-Reason", "Sallyport-Request", "X-Deny-Reason", "Proxy-Status", "Proxy-Authenticate", "Alt-Svc", "Nel", "Keep-Alive",
			} {
				if v, ok := resp.Header[name]; ok {
					t.Errorf("the sandbox saw %s: %q", name, v)
				}
			}
			if resp.Header.Get("X-Kept") != "yes" || len(resp.Header["Set-Cookie"]) != 2 {
				t.Errorf("the sandbox saw %v", resp.Header)
			}
		})
	}
}

// TestDNSOverHTTPS is DN-06: no second resolver, on a host that is allowed.
func TestDNSOverHTTPS(t *testing.T) {
	tests := []struct {
		name, method, field, value string
		refused                    bool
	}{
		{"DN-06 a question in the body", "POST", "Content-Type", "application/dns-message", true},
		{"DN-06 a question in the query", "GET", "Accept", "text/html, Application/DNS-Message;q=0.9", true},
		{"DN-06 JSON", "GET", "Accept", "application/dns-json", true},
		{"JSON of another kind", "GET", "Accept", "application/json", false},
		{"a body of another kind", "POST", "Content-Type", "application/octet-stream", false},
	}
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			o := &witness{}
			l.serveOrigin("any.test", w.h2, o)
			for _, tt := range tests {
				req, err := http.NewRequestWithContext(t.Context(), tt.method, w.url("any.test", "/dns-query?dns=AAABAAAB"), nil)
				must(t, err)
				req.Header.Set(tt.field, tt.value)
				resp, err := w.client(l).Do(req)
				must(t, err)
				must(t, resp.Body.Close())
				records := l.log.await(t, 1)
				saw := len(o.take())
				if tt.refused && (resp.StatusCode != 403 || saw != 0 || len(records) != 1 || records[0].Reason != "protocol_not_allowed") {
					t.Errorf("%s: status %d, the origin saw %d, records %+v", tt.name, resp.StatusCode, saw, linesOf(records))
				}
				if !tt.refused {
					if resp.StatusCode != 200 || saw != 1 {
						t.Errorf("%s: status %d, the origin saw %d", tt.name, resp.StatusCode, saw)
					}
					l.log.await(t, 2-len(records))
				}
			}
		})
	}
}
