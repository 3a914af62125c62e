package clients_test

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestProxyCredentialsProveNothing: a cell is known by its bridge. Whatever a
// program shows the proxy counts for nothing, and goes no further (JW-03, JW-08).
func TestProxyCredentialsProveNothing(t *testing.T) {
	var seen []string
	g := newGateway(t, []origin{{host: "api.test", handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, fmt.Sprint(r.Header["Proxy-Authorization"], r.Header["Authorization"]))
	})}}, []credential{{name: "api", host: "api.test", secret: "the-true-key-of-the-api", doc: "type: bearer\nplaceholder: {env: API_KEY}"}})
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	for name, header := range map[string]string{
		"none": "", "no colon": "Proxy-Authorization: " + basic("nobody") + "\r\n", "another cell's name": "Proxy-Authorization: " + basic("cell0002:x") + "\r\n",
		"a token of nobody's": "Proxy-Authorization: Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJjZWxsMDAwMiJ9.\r\n",
		"two":                 "Proxy-Authorization: " + basic("a:b") + "\r\nProxy-Authorization: Bearer x\r\n", "broken": "Proxy-Authorization: Basic ####\r\n",
		"8 KiB": "Proxy-Authorization: " + basic(strings.Repeat("u", 8<<10)+":x") + "\r\n",
	} {
		if got := connect(t, g.proxy, header); got != http.StatusOK {
			t.Errorf("JW-08 %s: %d", name, got)
		}
	}
	if got := connect(t, g.proxy, "Proxy-Authorization: Bearer "+strings.Repeat(".", 1<<20)+"\r\n"); got != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("JW-03 a million dots: %d", got)
	}
	// Inside, it is not handed on, and does not stand in for the credential.
	g.must("", "curl", "-sS", "--fail", "-H", "Proxy-Authorization: Bearer x", "https://api.test/")
	if len(seen) != 1 || seen[0] != "[] [Bearer the-true-key-of-the-api]" {
		t.Errorf("the server saw %q", seen)
	}
}

// connect asks the proxy for a tunnel and returns the status.
func connect(t *testing.T, proxy, header string) int {
	t.Helper()
	c, err := net.DialTimeout("tcp", proxy, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() { _, _ = fmt.Fprintf(c, "CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n%s\r\n", header) }() // cut off where it is too long
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}
