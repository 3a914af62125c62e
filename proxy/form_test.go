package proxy_test

import (
	"bufio"
	"bytes"
	"net/http"
	"strings"
	"testing"

	"sallyport/proxy"
)

// FuzzRequestHead: whatever net/http reads and we accept is sent as exactly
// what was judged, and reads the same when it arrives.
func FuzzRequestHead(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n", "GET /a%2fb?c=d#e HTTP/1.1\r\nHost: ok.test:8443\r\n\r\n",
		"GET http://ok.test?x HTTP/1.1\r\nHost: evil.test\r\n\r\n", "GET https://ok.test/{a}|\"b\" HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET //evil.test/x HTTP/1.1\r\nHost: ok.test\r\n\r\n", "GET /\\..\\x HTTP/1.0\r\nHost: [::1]:80\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: ok.test\r\n\r\n", "GET /a;b/..;/c%25%41 HTTP/1.1\r\nHost: ok.test.\r\n\r\n",
	} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, head []byte, secure bool) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
		if err != nil {
			return
		}
		to, path, query, sent, err := proxy.ReadForm(r, secure)
		if err != nil {
			return
		}
		if strings.HasPrefix(path.String(), "//") && sent.EscapedPath() != path.String() {
			return // dial refuses it
		}
		out := &http.Request{Method: "GET", URL: sent, Host: sent.Host, Header: http.Header{}}
		var b bytes.Buffer
		if err := out.Write(&b); err != nil {
			t.Fatalf("what was accepted cannot be sent: %v", err)
		}
		again, err := http.ReadRequest(bufio.NewReader(&b))
		if err != nil {
			t.Fatalf("what is sent cannot be read: %v", err)
		}
		want := path.String()
		if query != "" {
			want += "?" + query
		}
		if again.RequestURI != want {
			t.Fatalf("judged %q, sent %q", want, again.RequestURI)
		}
		to2, path2, query2, _, err := proxy.ReadForm(again, secure)
		if err != nil || to2 != to || path2 != path || query2 != query {
			t.Fatalf("judged %v %v %q, arrived as %v %v %q, %v", to, path, query, to2, path2, query2, err)
		}
	})
}
